from __future__ import annotations

from itertools import permutations

from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components, shortest_path  # type: ignore[import-untyped]

from experiments.coding.known.graphs import FUNCTIONS
from tests.experiments.coding.scene import agrees, function

NODES = "abcdefz"


def _shortest(roads: dict[str, dict[str, int]], start: str, end: str) -> int:
    matrix = [[roads.get(one, {}).get(two, 0) for two in NODES] for one in NODES]
    found = shortest_path(csr_matrix(matrix))[NODES.index(start), NODES.index(end)]
    return int(found) if found < 1e9 else -1


def test_the_fewest_steps_are_those_of_scipy() -> None:
    def oracle(graph: dict[str, list[str]], start: str, end: str) -> int:
        return _shortest({one: dict.fromkeys(others, 1) for one, others in graph.items()}, start, end)

    agrees(function(FUNCTIONS, "steps_between"), oracle, 60)


def test_the_cheapest_way_is_that_of_scipy() -> None:
    agrees(function(FUNCTIONS, "cheapest"), _shortest, 60)


def test_an_order_is_the_first_that_is_allowed_step_by_step() -> None:
    def oracle(needs: dict[str, list[str]]) -> list[str]:
        for order in permutations(sorted(needs)):
            if all(order.index(one) > order.index(need) for one in needs for need in needs[one]):
                return list(order)  # permutations of sorted names come in the order of the alphabet
        raise ValueError

    agrees(function(FUNCTIONS, "in_order"), oracle, 60)


def test_islands_are_connected_components() -> None:
    def oracle(grid: list[list[int]]) -> int:
        cells = [(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell]
        if not cells:
            return 0
        links = [[int(abs(a - c) + abs(b - d) == 1) for c, d in cells] for a, b in cells]
        return int(connected_components(csr_matrix(links))[0])

    agrees(function(FUNCTIONS, "islands"), oracle, 60)


def test_the_depth_is_the_longest_chain_of_children() -> None:
    def oracle(tree: dict[str, list[str]], root: str) -> int:
        level, depth = [root], 0
        while level:
            level, depth = [child for node in level for child in tree.get(node, [])], depth + 1
        return depth

    agrees(function(FUNCTIONS, "depth"), oracle)


def test_groups_are_connected_components() -> None:
    def oracle(count: int, links: list[tuple[int, int]]) -> int:
        matrix = [[int((a, b) in links) for b in range(count)] for a in range(count)]
        return int(connected_components(csr_matrix(matrix))[0])

    agrees(function(FUNCTIONS, "groups"), oracle, 60)
