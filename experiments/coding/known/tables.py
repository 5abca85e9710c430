"""Functions on rows, counts and statistics."""

from __future__ import annotations

import random

from experiments.coding.functions import Function


def median(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def moving_average(values: list[float], window: int) -> list[float]:
    if window < 1:
        raise ValueError("window must be at least 1")
    ends = range(window, len(values) + 1)
    return [sum(values[end - window : end]) / window for end in ends]


def most_common(words: list[str], limit: int) -> list[str]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return ordered[:limit]


def group_totals(rows: list[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, amount in rows:
        if amount < 0:
            continue
        totals[name] = totals.get(name, 0) + amount
    return totals


def transpose(rows: list[list[int]]) -> list[list[int]]:
    if not rows:
        return []
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        raise ValueError("rows differ in length")
    return [[row[column] for row in rows] for column in range(width)]


def variance(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def ranks(values: list[int]) -> list[int]:
    result = []
    for value in values:
        above = 0
        for other in values:
            if other > value:
                above += 1
        result.append(above + 1)
    return result


def invert(table: dict[str, str]) -> dict[str, list[str]]:
    inverted: dict[str, list[str]] = {}
    for key in sorted(table):
        value = table[key]
        if value not in inverted:
            inverted[value] = []
        inverted[value].append(key)
    return inverted


def _numbers(rng: random.Random, most: int = 7) -> list[int]:
    return [rng.randint(-9, 9) for _ in range(rng.randint(0, most))]


def _rows(rng: random.Random) -> list[list[int]]:
    width, is_ragged = rng.randint(0, 3), rng.random() < 0.15
    return [[rng.randint(0, 9) for _ in range(width + int(is_ragged and y == 1))] for y in range(rng.randint(0, 4))]


FUNCTIONS = (
    Function(
        call=median,
        examples=((([3, 1, 2],), 2), (([4, 1, 3, 2],), 2.5), (([7],), 7), (([],), ValueError), (([9, 1],), 5.0)),
        draw=lambda rng: (_numbers(rng),),
    ),
    Function(
        call=moving_average,
        examples=((([1, 2, 3, 4], 2), [1.5, 2.5, 3.5]), (([5], 1), [5.0]), (([1], 2), []), (([1], 0), ValueError)),
        draw=lambda rng: (_numbers(rng), rng.randint(0, 4)),
    ),
    Function(
        call=most_common,
        examples=(((["b", "a", "b", "c"], 2), ["b", "a"]), (([], 3), []), ((["x", "x", "y"], 1), ["x"])),
        draw=lambda rng: ([rng.choice("abcd") for _ in range(rng.randint(0, 9))], rng.randint(0, 4)),
    ),
    Function(
        call=group_totals,
        examples=(
            (([("a", 1), ("b", 2), ("a", 3)],), {"a": 4, "b": 2}),
            (([("a", -1)],), {}),
            (([("z", 0)],), {"z": 0}),
        ),
        draw=lambda rng: ([(rng.choice("abc"), amount) for amount in _numbers(rng)],),
    ),
    Function(
        call=transpose,
        examples=(
            (([[1, 2], [3, 4]],), [[1, 3], [2, 4]]),
            (([],), []),
            (([[1], [2, 3]],), ValueError),
            (([[5, 6]],), [[5], [6]]),
        ),
        draw=lambda rng: (_rows(rng),),
    ),
    Function(
        call=variance,
        examples=((([1, 2, 3, 4],), 1.6666666666666667), (([5],), 0.0), (([2, 4],), 2.0)),
        draw=lambda rng: (_numbers(rng),),
    ),
    Function(
        call=ranks,
        examples=((([10, 30, 20],), [3, 1, 2]), (([5, 5],), [1, 1]), (([],), []), (([1, 2, 2],), [3, 1, 1])),
        draw=lambda rng: ([rng.randint(0, 5) for _ in range(rng.randint(0, 7))],),
    ),
    Function(
        call=invert,
        examples=(
            (({"a": "x", "b": "y", "c": "x"},), {"x": ["a", "c"], "y": ["b"]}),
            (({},), {}),
            (({"k": "v"},), {"v": ["k"]}),
        ),
        draw=lambda rng: ({key: rng.choice("xyz") for key in "abcde"[: rng.randint(0, 5)]},),
    ),
)
