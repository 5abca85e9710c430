from __future__ import annotations

import statistics
from collections import Counter

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from experiments.coding.known.tables import FUNCTIONS
from tests.experiments.coding.scene import agrees, function


def test_the_median_is_that_of_the_standard_library() -> None:
    def oracle(values: list[float]) -> float:
        if not values:
            raise ValueError
        return statistics.median(values)

    agrees(function(FUNCTIONS, "median"), oracle)


def test_moving_averages_are_a_convolution() -> None:
    one = function(FUNCTIONS, "moving_average")
    assert np.allclose(one.call([1, 5, 2, 8, 4], 3), np.convolve([1, 5, 2, 8, 4], np.ones(3) / 3, "valid"))
    agrees(one, one.call, 1)


def test_the_most_common_come_first_and_equals_by_the_alphabet() -> None:
    def oracle(words: list[str], limit: int) -> list[str]:
        return [word for word, _ in Counter(sorted(words)).most_common(limit)] if limit else []

    agrees(function(FUNCTIONS, "most_common"), oracle)


def test_totals_are_sums_of_what_is_not_negative() -> None:
    def oracle(rows: list[tuple[str, int]]) -> dict[str, int]:
        kept = [(name, n) for name, n in rows if n >= 0]
        return {name: sum(n for other, n in kept if other == name) for name, _ in kept}

    agrees(function(FUNCTIONS, "group_totals"), oracle)


def test_columns_are_zipped_rows() -> None:
    agrees(function(FUNCTIONS, "transpose"), lambda rows: [list(column) for column in zip(*rows, strict=True)])


def test_the_variance_is_that_of_the_standard_library() -> None:
    one = function(FUNCTIONS, "variance")
    assert all(np.isclose(one.call(values), statistics.variance(values)) for values in ([1, 2], [3, -1, 7, 7]))
    assert one.call([]) == one.call([3]) == 0.0


def test_ranks_are_those_of_scipy_counted_from_above() -> None:
    def oracle(values: list[int]) -> list[int]:
        return [int(rank) for rank in stats.rankdata([-value for value in values], method="min")] if values else []

    agrees(function(FUNCTIONS, "ranks"), oracle)


def test_inverting_keeps_every_key() -> None:
    def oracle(table: dict[str, str]) -> dict[str, list[str]]:
        return {value: sorted(key for key in table if table[key] == value) for value in set(table.values())}

    agrees(function(FUNCTIONS, "invert"), oracle)
