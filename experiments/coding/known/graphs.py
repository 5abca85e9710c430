"""Functions on graphs and grids; a graph is a dict from a node to its neighbours."""

from __future__ import annotations

import heapq
import random
from collections import deque

from experiments.coding.functions import Function


def steps_between(graph: dict[str, list[str]], start: str, end: str) -> int:
    waiting = deque([(start, 0)])
    seen = {start}
    while waiting:
        node, steps = waiting.popleft()
        if node == end:
            return steps
        for other in graph.get(node, []):
            if other not in seen:
                seen.add(other)
                waiting.append((other, steps + 1))
    return -1


def cheapest(roads: dict[str, dict[str, int]], start: str, end: str) -> int:
    waiting = [(0, start)]
    best = {start: 0}
    while waiting:
        cost, node = heapq.heappop(waiting)
        if node == end:
            return cost
        for other, length in roads.get(node, {}).items():
            total = cost + length
            if other not in best or total < best[other]:
                best[other] = total
                heapq.heappush(waiting, (total, other))
    return -1


def in_order(needs: dict[str, list[str]]) -> list[str]:
    done: list[str] = []
    while len(done) < len(needs):
        ready = [name for name in sorted(needs) if name not in done and all(n in done for n in needs[name])]
        if not ready:
            raise ValueError("there is a circle")
        done.append(ready[0])
    return done


def islands(grid: list[list[int]]) -> int:
    seen = set()
    count = 0
    for y, row in enumerate(grid):
        for x, cell in enumerate(row):
            if cell == 0 or (y, x) in seen:
                continue
            count += 1
            waiting = [(y, x)]
            while waiting:
                i, j = waiting.pop()
                if (i, j) in seen or not (0 <= i < len(grid) and 0 <= j < len(grid[i])) or grid[i][j] == 0:
                    continue
                seen.add((i, j))
                waiting.extend([(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)])
    return count


def depth(tree: dict[str, list[str]], root: str) -> int:
    children = tree.get(root, [])
    if not children:
        return 1
    return 1 + max(depth(tree, child) for child in children)


def groups(count: int, links: list[tuple[int, int]]) -> int:
    parent = list(range(count))
    for left, right in links:
        while parent[left] != left:
            left = parent[left]
        while parent[right] != right:
            right = parent[right]
        if left != right:
            parent[right] = left
            count -= 1
    return count


def _graph(rng: random.Random) -> dict[str, list[str]]:
    return {node: [other for other in "abcdef" if other != node and rng.random() < 0.3] for node in "abcdef"}


def _roads(rng: random.Random) -> dict[str, dict[str, int]]:
    return {node: {other: rng.randint(1, 9) for other in others} for node, others in _graph(rng).items()}


def _needs(rng: random.Random) -> tuple[dict[str, list[str]]]:
    is_circle = rng.random() < 0.15
    names = rng.sample("abcdef", rng.randint(1, 6))
    needs = {name: [other for other in names[:place] if rng.random() < 0.4] for place, name in enumerate(names)}
    if is_circle:
        needs[names[0]] = [names[-1]]
    return (needs,)


def _tree(rng: random.Random) -> tuple[dict[str, list[str]], str]:
    tree: dict[str, list[str]] = {}
    for place, name in enumerate("bcdefg", start=1):
        tree.setdefault(rng.choice("abcdefg"[:place]), []).append(name)
    return tree, rng.choice("aab")


def _links(rng: random.Random) -> tuple[int, list[tuple[int, int]]]:
    count = rng.randint(1, 6)
    return count, [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(0, 6))]


FUNCTIONS = (
    Function(
        call=steps_between,
        examples=(
            (({"a": ["b"], "b": ["c"], "c": []}, "a", "c"), 2),
            (({"a": []}, "a", "z"), -1),
            (({"a": ["a"]}, "a", "a"), 0),
            (({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, "a", "d"), 2),
        ),
        draw=lambda rng: (_graph(rng), rng.choice("abcdef"), rng.choice("abcdef")),
    ),
    Function(
        call=cheapest,
        examples=(
            (({"a": {"b": 5, "c": 1}, "c": {"b": 2}}, "a", "b"), 3),
            (({"a": {}}, "a", "b"), -1),
            (({"a": {"b": 4}}, "a", "a"), 0),
            (({"a": {"b": 1}, "b": {"c": 1, "a": 1}}, "a", "c"), 2),
        ),
        draw=lambda rng: (_roads(rng), rng.choice("abcdef"), rng.choice("abcdef")),
    ),
    Function(
        call=in_order,
        examples=(
            (({"b": ["a"], "a": []},), ["a", "b"]),
            (({},), []),
            (({"a": ["b"], "b": ["a"]},), ValueError),
            (({"c": ["a", "b"], "b": [], "a": ["b"]},), ["b", "a", "c"]),
        ),
        draw=_needs,
    ),
    Function(
        call=islands,
        examples=(
            (([[1, 0], [0, 1]],), 2),
            (([[1, 1], [0, 1]],), 1),
            (([],), 0),
            (([[0, 1, 0], [1, 0, 1], [1, 0, 0]],), 3),
        ),
        draw=lambda rng: ([[int(rng.random() < 0.5) for _ in range(4)] for _ in range(rng.randint(0, 4))],),
    ),
    Function(
        call=depth,
        examples=((({"a": ["b", "c"], "c": ["d"]}, "a"), 3), (({}, "a"), 1), (({"a": ["b"]}, "b"), 1)),
        draw=_tree,
    ),
    Function(
        call=groups,
        examples=(
            ((4, [(0, 1), (2, 3)]), 2),
            ((3, []), 3),
            ((3, [(0, 1), (1, 0)]), 2),
            ((4, [(0, 1), (1, 2), (3, 2)]), 1),
        ),
        draw=_links,
    ),
)
