"""The functions that are broken on purpose do what another way to compute it says, type and all."""

from __future__ import annotations

import calendar
import csv
import math
import re
import statistics
import textwrap
from collections import Counter, deque
from collections.abc import Callable
from datetime import date, timedelta
from functools import cache
from itertools import combinations, groupby, permutations
from string import ascii_lowercase as low
from string import ascii_uppercase as up
from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components, shortest_path  # type: ignore[import-untyped]

from experiments.coding.tasks import catalogue
from tests.experiments.coding.scene import agrees, function

NODES = "abcdefz"


def days_in_month(year: int, month: int) -> int:
    if month not in range(1, 13):
        raise ValueError
    return calendar.monthrange(year, month)[1]


def age_on(born: date, day: date) -> int:
    return sum(date(year, born.month, born.day) <= day for year in range(born.year + 1, day.year + 1))


def minutes_between(start: str, end: str) -> int:
    one, two = (timedelta(hours=int(text[:2]), minutes=int(text[3:])) for text in (start, end))
    return round(((two - one) % timedelta(days=1)).total_seconds() / 60)


def cheapest(roads: dict[str, dict[str, int]], start: str, end: str) -> int:
    matrix = [[roads.get(one, {}).get(two, 0) for two in NODES] for one in NODES]
    found = shortest_path(csr_matrix(matrix))[NODES.index(start), NODES.index(end)]
    return int(found) if found < 1e9 else -1


def steps_between(graph: dict[str, list[str]], start: str, end: str) -> int:
    return cheapest({one: dict.fromkeys(others, 1) for one, others in graph.items()}, start, end)


def in_order(needs: dict[str, list[str]]) -> list[str]:
    for order in permutations(sorted(needs)):
        if all(order.index(one) > order.index(need) for one in needs for need in needs[one]):
            return list(order)  # permutations of sorted names come in the order of the alphabet
    raise ValueError


def islands(grid: list[list[int]]) -> int:
    cells = [(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell]
    links = [[int(abs(a - c) + abs(b - d) == 1) for c, d in cells] for a, b in cells]
    return int(connected_components(csr_matrix(links))[0]) if cells else 0


def depth(tree: dict[str, list[str]], root: str) -> int:
    level, found = [root], 0
    while level:
        level, found = [child for node in level for child in tree.get(node, [])], found + 1
    return found


def groups(count: int, links: list[tuple[int, int]]) -> int:
    matrix = [[int((a, b) in links) for b in range(count)] for a in range(count)]
    return int(connected_components(csr_matrix(matrix))[0])


def rotate(values: list[int], steps: int) -> list[int]:
    turned = deque(values)
    turned.rotate(steps)
    return list(turned)


def chunks(values: list[int], size: int) -> list[list[int]]:
    if size < 1:
        raise ValueError
    found: list[list[int]] = []
    for place, value in enumerate(values):
        if place % size == 0:
            found.append([])
        found[-1].append(value)
    return found


def slices(values: list[int]) -> list[list[int]]:
    return [values[i:j] for i, j in combinations(range(len(values) + 1), 2)]


def flatten(items: list[Any], levels: int) -> list[Any]:
    for _ in range(levels):
        items = [inner for item in items for inner in (item if isinstance(item, list) else [item])]
    return items


def prime_factors(n: int) -> list[int]:
    least = next((d for d in range(2, n + 1) if n % d == 0), None)
    return [] if least is None else [least, *prime_factors(n // least)]


def clamp(value: int, least: int, most: int) -> int:
    if least > most:
        raise ValueError
    return sorted((least, value, most))[1]


def is_balanced(text: str) -> bool:
    text = re.sub(r"[^][(){}]", "", text)
    while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
        text = shorter
    return not text


def parse_pairs(text: str) -> dict[str, str]:
    parts = [part.split("=", 1) for part in text.split(";") if "=" in part]
    return {key.strip(): value.strip() for key, value in parts if key.strip()}


def expand_ranges(text: str) -> list[int]:
    parts = [part.split("-") for part in text.split(",") if part]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


def compare_versions(left: str, right: str) -> int:
    one, two = ((*map(int, text.split(".")), 0, 0, 0)[:4] for text in (left, right))
    return (one > two) - (one < two)


def postfix(expression: str) -> int:
    stack: list[str] = []
    for word in expression.split():
        stack.append(f"({stack.pop(-2)}{word}{stack.pop()})" if word in "+-*" else word)
    return int(eval(stack[-1]))


def median(values: list[float]) -> float:
    if not values:
        raise ValueError
    return statistics.median(values)


def group_totals(rows: list[tuple[str, int]]) -> dict[str, int]:
    kept = [(name, n) for name, n in rows if n >= 0]
    return {name: sum(n for other, n in kept if other == name) for name, _ in kept}


def invert(table: dict[str, str]) -> dict[str, list[str]]:
    return {value: sorted(key for key in table if table[key] == value) for value in set(table.values())}


def is_palindrome(text: str) -> bool:
    letters = [letter for letter in text.lower() if letter.isalnum()]
    return letters == letters[::-1]


def caesar(text: str, shift: int) -> str:
    by = shift % 26
    return text.translate(str.maketrans(low + up, low[by:] + low[:by] + up[by:] + up[:by]))


def common_prefix(words: list[str]) -> str:
    heads = [words[0][:length] for length in range(len(words[0]) + 1)] if words else [""]
    return [head for head in heads if all(word.startswith(head) for word in words)][-1]


def snake_case(name: str) -> str:
    pairs = zip(f"_{name}", name, strict=False)
    return "".join("_" * (two.isupper() and one != "_") + two.lower() for one, two in pairs)


@cache
def edit_distance(left: str, right: str) -> int:
    if not left or not right:
        return len(left) + len(right)
    change = edit_distance(left[1:], right[1:]) + int(left[0] != right[0])
    return min(change, edit_distance(left[1:], right) + 1, edit_distance(left, right[1:]) + 1)


SLOW = (cheapest, steps_between, in_order, islands, groups, edit_distance)
NAMED = (
    *SLOW,
    days_in_month,
    age_on,
    minutes_between,
    depth,
    rotate,
    chunks,
    flatten,
    prime_factors,
    clamp,
    is_balanced,
)
NAMED += (parse_pairs, expand_ranges, compare_versions, postfix, median, group_totals, invert, is_palindrome, caesar)
NAMED += (common_prefix, snake_case)
ORACLES: dict[str, Callable[..., Any]] = {oracle.__name__: oracle for oracle in NAMED} | {
    "is_leap": calendar.isleap,
    "workdays_between": lambda start, end: int(np.busday_count(start, end)) if end > start else 0,
    "binary_search": lambda values, one: values.index(one) if one in values else -1,
    "merge_sorted": lambda left, right: sorted(left + right),
    "largest_run_sum": lambda values: max([sum(one) for one in slices(values)] + [0]),
    "second_largest": lambda values: (sorted(set(values))[-2:-1] or [None])[0],
    "longest_rise": lambda values: max([len(one) for one in slices(values) if one == sorted(set(one))] + [0]),
    "greatest_divisor": math.gcd,
    "is_prime": lambda n: sum(n % d == 0 for d in range(1, n + 1)) == 2,
    "digit_sum": lambda n: sum(map(int, str(abs(n)))),
    "triangle_row": lambda n: [math.comb(n, k) for k in range(n + 1)],
    "most_common": lambda words, most: [word for word, _ in Counter(sorted(words)).most_common(most)] if most else [],
    "transpose": lambda rows: [list(column) for column in zip(*rows, strict=True)],
    "ranks": lambda values: [int(rank) for rank in stats.rankdata([-one for one in values], method="min")] or [],
    "run_lengths": lambda text: [(key, len(list(run))) for key, run in groupby(text)],
    "wrap_words": lambda text, width: textwrap.wrap(text, width, break_long_words=False),
}


@pytest.mark.parametrize("name", ORACLES)
def test_a_function_says_what_its_oracle_says(name: str) -> None:
    agrees(function(catalogue(), name), ORACLES[name], 60 if ORACLES[name] in SLOW else 200)


# Those whose results are checked by what holds of them


def roman_value(text: str) -> int:
    worth = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}[letter] for letter in text]
    return sum(-one if one < two else one for one, two in zip(worth, [*worth[1:], 0], strict=True))


def test_what_has_no_oracle_adds_up_or_reads_back() -> None:
    by_name = {one.name: one for one in catalogue()}
    for name in ("spoken_duration", "to_base", "roman", "split_fields", "moving_average", "variance"):
        agrees(by_name[name], by_name[name].call, 1)  # the examples
    assert set(by_name) == {
        *ORACLES,
        "spoken_duration",
        "to_base",
        "roman",
        "split_fields",
        "moving_average",
        "variance",
    }
    worth = {"h": 3600, "min": 60, "s": 1}
    for seconds in (0, 1, 59, 60, 61, 3599, 3600, 3660, 7325, 90_000):
        parts = re.findall(r"(\d+) (h|min|s)", by_name["spoken_duration"].call(seconds))
        assert sum(int(n) * worth[unit] for n, unit in parts) == seconds
        assert len(parts) == 1 or all(n != "0" for n, _ in parts)
    assert all(int(by_name["to_base"].call(n, base), base) == n for n in range(-40, 40) for base in range(2, 17))
    romans = [by_name["roman"].call(n) for n in range(1, 4000)]
    assert [roman_value(text) for text in romans] == list(range(1, 4000)) and len(set(romans)) == 3999
    for line in ("a,b", '"a,b",c', 'x,"",y', '"1,2,3"', "one"):
        assert by_name["split_fields"].call(line) == next(csv.reader([line]))
    averages = by_name["moving_average"].call([1, 5, 2, 8, 4], 3)
    assert np.allclose(averages, np.convolve([1, 5, 2, 8, 4], np.ones(3) / 3, "valid"))
    variance = by_name["variance"].call
    assert all(np.isclose(variance(values), statistics.variance(values)) for values in ([1, 2], [3, -1, 7, 7]))
    assert variance([]) == variance([3]) == 0.0
