from __future__ import annotations

import calendar
import re
from datetime import date, timedelta

import numpy as np

from experiments.coding.known.dates import FUNCTIONS
from tests.experiments.coding.scene import agrees, function


def test_leap_years_are_those_of_the_calendar() -> None:
    agrees(function(FUNCTIONS, "is_leap"), calendar.isleap)


def test_a_month_has_as_many_days_as_in_the_calendar() -> None:
    def oracle(year: int, month: int) -> int:
        if month not in range(1, 13):
            raise ValueError
        return calendar.monthrange(year, month)[1]

    agrees(function(FUNCTIONS, "days_in_month"), oracle)


def test_workdays_are_those_of_numpy() -> None:
    def oracle(start: date, end: date) -> int:
        return int(np.busday_count(start, end)) if end > start else 0

    agrees(function(FUNCTIONS, "workdays_between"), oracle)


def test_an_age_is_the_number_of_birthdays() -> None:
    def oracle(born: date, day: date) -> int:
        return sum(date(year, born.month, born.day) <= day for year in range(born.year + 1, day.year + 1))

    agrees(function(FUNCTIONS, "age_on"), oracle)


def test_minutes_are_counted_over_midnight() -> None:
    def oracle(start: str, end: str) -> int:
        one, two = (timedelta(hours=int(text[:2]), minutes=int(text[3:])) for text in (start, end))
        return round(((two - one) % timedelta(days=1)).total_seconds() / 60)

    agrees(function(FUNCTIONS, "minutes_between"), oracle)


def test_a_spoken_duration_adds_up() -> None:
    one, worth = function(FUNCTIONS, "spoken_duration"), {"h": 3600, "min": 60, "s": 1}
    for seconds in (0, 1, 59, 60, 61, 3599, 3600, 3660, 7325, 90_000):
        parts = re.findall(r"(\d+) (h|min|s)", one.call(seconds))
        assert sum(int(n) * worth[unit] for n, unit in parts) == seconds
        assert len(parts) == 1 or all(n != "0" for n, _ in parts)
    agrees(one, one.call, 1)
