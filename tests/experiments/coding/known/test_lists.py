from __future__ import annotations

from collections import deque
from itertools import combinations
from typing import Any

from experiments.coding.known.lists import FUNCTIONS
from tests.experiments.coding.scene import agrees, function


def test_a_search_finds_the_place() -> None:
    agrees(function(FUNCTIONS, "binary_search"), lambda values, one: values.index(one) if one in values else -1)


def test_a_merge_is_sorted() -> None:
    agrees(function(FUNCTIONS, "merge_sorted"), lambda left, right: sorted(left + right))


def test_rotation_is_that_of_a_deque() -> None:
    def oracle(values: list[int], steps: int) -> list[int]:
        turned = deque(values)
        turned.rotate(steps)
        return list(turned)

    agrees(function(FUNCTIONS, "rotate"), oracle)


def test_chunks_joined_are_the_whole() -> None:
    def oracle(values: list[int], size: int) -> list[list[int]]:
        if size < 1:
            raise ValueError
        found: list[list[int]] = []
        for place, value in enumerate(values):
            if place % size == 0:
                found.append([])
            found[-1].append(value)
        return found

    agrees(function(FUNCTIONS, "chunks"), oracle)


def test_the_largest_run_is_the_largest_of_all() -> None:
    def oracle(values: list[int]) -> int:
        return max([sum(values[i:j]) for i, j in combinations(range(len(values) + 1), 2)] + [0])

    agrees(function(FUNCTIONS, "largest_run_sum"), oracle)


def test_flattening_is_done_level_by_level() -> None:
    def oracle(items: list[Any], depth: int) -> list[Any]:
        for _ in range(depth):
            items = [inner for item in items for inner in (item if isinstance(item, list) else [item])]
        return items

    agrees(function(FUNCTIONS, "flatten"), oracle)


def test_the_second_largest_is_of_different_values() -> None:
    def oracle(values: list[int]) -> int | None:
        return (sorted(set(values))[-2:-1] or [None])[0]

    agrees(function(FUNCTIONS, "second_largest"), oracle)


def test_the_longest_rise_is_the_longest_rising_slice() -> None:
    def oracle(values: list[int]) -> int:
        slices = [values[i:j] for i, j in combinations(range(len(values) + 1), 2)]
        return max([len(one) for one in slices if one == sorted(set(one))] + [0])

    agrees(function(FUNCTIONS, "longest_rise"), oracle)
