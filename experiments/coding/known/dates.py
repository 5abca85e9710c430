"""Functions on dates and times of day."""

from __future__ import annotations

import random
from datetime import date, timedelta

from experiments.coding.functions import Function


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year: int, month: int) -> int:
    if not 1 <= month <= 12:
        raise ValueError("month must be between 1 and 12")
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    return 30 if month in (4, 6, 9, 11) else 31


def workdays_between(start: date, end: date) -> int:
    count = 0
    day = start
    while day < end:
        if day.weekday() < 5:
            count += 1
        day += timedelta(days=1)
    return count


def age_on(born: date, day: date) -> int:
    had_birthday = (day.month, day.day) >= (born.month, born.day)
    years = day.year - born.year
    return years if had_birthday else years - 1


def minutes_between(start: str, end: str) -> int:
    hours, minutes = start.split(":")
    begin = int(hours) * 60 + int(minutes)
    hours, minutes = end.split(":")
    finish = int(hours) * 60 + int(minutes)
    if finish < begin:
        finish += 24 * 60
    return finish - begin


def spoken_duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = []
    if hours > 0:
        parts.append(f"{hours} h")
    if minutes > 0:
        parts.append(f"{minutes} min")
    if rest > 0 or not parts:
        parts.append(f"{rest} s")
    return " ".join(parts)


def _day(rng: random.Random, around: int = 2000, years: int = 8) -> date:
    return date(around + rng.randint(0, years), rng.randint(1, 12), rng.randint(1, 28))


def _span(rng: random.Random) -> tuple[date, date]:
    start = _day(rng)
    return start, start + timedelta(days=rng.randint(-3, 20))


def _birthday(rng: random.Random) -> tuple[date, date]:
    born = _day(rng)
    near = date(born.year + rng.randint(1, 40), born.month, born.day) + timedelta(days=rng.randint(-40, 40))
    return born, near


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"


FUNCTIONS = (
    Function(
        call=is_leap,
        examples=(((2024,), True), ((1900,), False), ((2000,), True), ((2023,), False)),
        draw=lambda rng: (rng.choice((100, 4, 1)) * rng.randint(15, 25) + rng.choice((0, 0, 1900)),),
    ),
    Function(
        call=days_in_month,
        examples=(((2024, 2), 29), ((2023, 2), 28), ((2023, 4), 30), ((2023, 12), 31), ((2023, 13), ValueError)),
        draw=lambda rng: (rng.choice((1900, 2000, 2023, 2024)), rng.randint(0, 13)),
    ),
    Function(
        call=workdays_between,
        examples=(
            ((date(2024, 1, 1), date(2024, 1, 8)), 5),
            ((date(2024, 1, 6), date(2024, 1, 8)), 0),
            ((date(2024, 1, 5), date(2024, 1, 5)), 0),
            ((date(2024, 1, 5), date(2024, 1, 9)), 2),
        ),
        draw=_span,
    ),
    Function(
        call=age_on,
        examples=(
            ((date(2000, 5, 20), date(2020, 5, 20)), 20),
            ((date(2000, 5, 20), date(2020, 5, 19)), 19),
            ((date(2000, 5, 20), date(2020, 12, 1)), 20),
        ),
        draw=_birthday,
    ),
    Function(
        call=minutes_between,
        examples=(
            (("09:15", "10:00"), 45),
            (("23:30", "00:10"), 40),
            (("08:00", "08:00"), 0),
            (("01:05", "13:06"), 721),
        ),
        draw=lambda rng: (_clock(rng), _clock(rng)),
    ),
    Function(
        call=spoken_duration,
        examples=(((3661,), "1 h 1 min 1 s"), ((0,), "0 s"), ((120,), "2 min"), ((7200,), "2 h"), ((59,), "59 s")),
        draw=lambda rng: (rng.choice((0, 60, 3600)) * rng.randint(0, 5) + rng.choice((0, rng.randint(0, 200))),),
    ),
)
