"""Functions on lists."""

from __future__ import annotations

import random
from typing import Any

from experiments.coding.functions import Function


def binary_search(values: list[int], wanted: int) -> int:
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    if low < len(values) and values[low] == wanted:
        return low
    return -1


def merge_sorted(left: list[int], right: list[int]) -> list[int]:
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


def rotate(values: list[int], steps: int) -> list[int]:
    if not values:
        return []
    start = -steps % len(values)
    return values[start:] + values[:start]


def chunks(values: list[int], size: int) -> list[list[int]]:
    if size < 1:
        raise ValueError("size must be at least 1")
    return [values[start : start + size] for start in range(0, len(values), size)]


def largest_run_sum(values: list[int]) -> int:
    best = current = 0
    for value in values:
        current = max(0, current + value)
        best = max(best, current)
    return best


def flatten(items: list[Any], depth: int) -> list[Any]:
    flat: list[Any] = []
    for item in items:
        if isinstance(item, list) and depth > 0:
            flat.extend(flatten(item, depth - 1))
        else:
            flat.append(item)
    return flat


def second_largest(values: list[int]) -> int | None:
    first = second = None
    for value in values:
        if first is None or value > first:
            first, second = value, first
        elif value != first and (second is None or value > second):
            second = value
    return second


def longest_rise(values: list[int]) -> int:
    best = length = 0
    previous = None
    for value in values:
        if previous is not None and value > previous:
            length += 1
        else:
            length = 1
        best = max(best, length)
        previous = value
    return best


def _values(rng: random.Random, low: int = -9, high: int = 9, most: int = 9) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(0, most))]


def _nested(rng: random.Random, depth: int = 3) -> list[Any]:
    return [_nested(rng, depth - 1) if depth and rng.random() < 0.5 else rng.randint(0, 9) for _ in range(3)]


FUNCTIONS = (
    Function(
        call=binary_search,
        examples=((([1, 3, 5, 7], 5), 2), (([1, 3, 5, 7], 4), -1), (([], 1), -1), (([2, 4], 4), 1), (([2, 4], 9), -1)),
        draw=lambda rng: (sorted(set(_values(rng))), rng.randint(-10, 10)),
    ),
    Function(
        call=merge_sorted,
        examples=(
            (([1, 4], [2, 3, 9]), [1, 2, 3, 4, 9]),
            (([], [1]), [1]),
            (([5, 6], []), [5, 6]),
            (([1, 1], [1, 2]), [1, 1, 1, 2]),
        ),
        draw=lambda rng: (sorted(_values(rng)), sorted(_values(rng))),
    ),
    Function(
        call=rotate,
        examples=(
            (([1, 2, 3, 4], 1), [4, 1, 2, 3]),
            (([], 3), []),
            (([1, 2, 3], 3), [1, 2, 3]),
            (([1, 2, 3], -1), [2, 3, 1]),
        ),
        draw=lambda rng: (_values(rng), rng.randint(-12, 12)),
    ),
    Function(
        call=chunks,
        examples=(
            (([1, 2, 3, 4, 5], 2), [[1, 2], [3, 4], [5]]),
            (([], 3), []),
            (([1, 2], 1), [[1], [2]]),
            (([1], 0), ValueError),
        ),
        draw=lambda rng: (_values(rng), rng.randint(0, 5)),
    ),
    Function(
        call=largest_run_sum,
        examples=((([-2, 3, 4, -1, 2],), 8), (([-1, -2],), 0), (([],), 0), (([5, -9, 6],), 6)),
        draw=lambda rng: (_values(rng),),
    ),
    Function(
        call=flatten,
        examples=(
            (([1, [2, [3]]], 1), [1, 2, [3]]),
            (([1, [2, [3]]], 2), [1, 2, 3]),
            (([[1]], 0), [[1]]),
            (([], 5), []),
        ),
        draw=lambda rng: (_nested(rng), rng.randint(0, 4)),
    ),
    Function(
        call=second_largest,
        examples=((([3, 1, 4, 4],), 3), (([7],), None), (([2, 2],), None), (([5, 9, 1, 8],), 8)),
        draw=lambda rng: (_values(rng, 0, 5, 6),),
    ),
    Function(
        call=longest_rise,
        examples=((([1, 2, 2, 3, 4],), 3), (([],), 0), (([5, 4, 3],), 1), (([1, 2, 3],), 3)),
        draw=lambda rng: (_values(rng, 0, 6, 10),),
    ),
)
