"""Which lines of two texts differ: a diff that stays fast, since everything else starts from it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence

MOST_STEPS = 100  # lines that may differ where none is unique; beyond that they are not compared one by one
MOST_TRIES = 200  # stretches of lines that may take so many steps; those after them are one gap each

Gap = tuple[int, int, int, int]  # lines from and to before, lines from and to after


def tidy(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")


def changed(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Gap]:
    """Line ranges that differ, as (from, to) before and (from, to) after, in order: a patience diff.

    Lines that occur once on both sides are anchors (Cohen); between them Myers, which
    is fast while little differs.
    """
    gaps: list[Gap] = []
    tries = 0
    todo = [(0, len(before), 0, len(after))]
    while todo:
        b0, b1, a0, a1 = todo.pop()
        while b0 < b1 and a0 < a1 and before[b0] == after[a0]:
            b0, a0 = b0 + 1, a0 + 1
        while b0 < b1 and a0 < a1 and before[b1 - 1] == after[a1 - 1]:
            b1, a1 = b1 - 1, a1 - 1
        if b0 == b1 and a0 == a1:
            continue
        anchors = _anchors(before[b0:b1], after[a0:a1]) if b0 < b1 and a0 < a1 else []
        if anchors:
            edges = [(b0, a0), *((b0 + b, a0 + a) for b, a in anchors), (b1, a1)]
            todo += [(p, r, q, u) for (p, q), (r, u) in zip(edges[-2::-1], edges[:0:-1], strict=True)]
        else:
            is_long = b1 - b0 + a1 - a0 > MOST_STEPS
            tries += is_long
            is_over = is_long and tries > MOST_TRIES
            found = [(0, b1 - b0, 0, a1 - a0)] if is_over else _few(before[b0:b1], after[a0:a1])
            gaps += [(b0 + i, b0 + j, a0 + k, a0 + m) for i, j, k, m in found]
    return gaps


def _anchors(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs of equal lines that are unique on both sides, as many as can stand in one order."""
    once = _unique(before)
    other = _unique(after)
    pairs = [(at, other[line]) for line, at in once.items() if line in other]
    return [pairs[at] for at in rising([a for _, a in pairs])]


def _few(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Gap]:
    """The shortest script of lines where no line is unique; Myers 1986. Beyond MOST_STEPS it is all one gap."""
    many, other = len(before), len(after)
    reach, trail = {1: 0}, []
    for steps in range(min(many + other, MOST_STEPS) + 1):
        trail.append(dict(reach))
        for diagonal in range(-steps, steps + 1, 2):
            is_down = diagonal == -steps or (diagonal != steps and reach[diagonal - 1] < reach[diagonal + 1])
            b = reach[diagonal + 1] if is_down else reach[diagonal - 1] + 1
            a = b - diagonal
            while b < many and 0 <= a < other and before[b] == after[a]:
                b, a = b + 1, a + 1
            reach[diagonal] = b
            if b >= many and a >= other:
                return _gaps(trail, many, other)
    return [(0, many, 0, other)]


def _gaps(trail: Sequence[Mapping[int, int]], b: int, a: int) -> list[Gap]:
    found: list[Gap] = []
    for steps in range(len(trail) - 1, 0, -1):
        reach, diagonal = trail[steps], b - a
        is_down = diagonal == -steps or (diagonal != steps and reach[diagonal - 1] < reach[diagonal + 1])
        from_b = reach[diagonal + (1 if is_down else -1)]
        from_a = from_b - diagonal - (1 if is_down else -1)
        to_b, to_a = (from_b, from_a + 1) if is_down else (from_b + 1, from_a)
        if found and found[-1][0] == to_b and found[-1][2] == to_a:
            found[-1] = (from_b, found[-1][1], from_a, found[-1][3])
        else:
            found.append((from_b, to_b, from_a, to_a))
        b, a = from_b, from_a
    return found[::-1]


def _unique(lines: Sequence[Hashable]) -> dict[Hashable, int]:
    places: dict[Hashable, int] = {}
    for at, line in enumerate(lines):
        places[line] = -1 if line in places else at
    return {line: at for line, at in places.items() if at >= 0}


def rising(values: Sequence[int]) -> list[int]:
    """Positions of a longest rising subsequence; Fredman 1975."""
    tails: list[int] = []
    ends: list[int] = []
    back: list[int] = []
    for at, value in enumerate(values):
        place = bisect_right(ends, value)
        if place and ends[place - 1] == value:
            place -= 1  # strictly rising
        back.append(tails[place - 1] if place else -1)
        if place == len(ends):
            ends.append(value)
            tails.append(at)
        else:
            ends[place], tails[place] = value, at
    found, at = [], tails[-1] if tails else -1
    while at >= 0:
        found.append(at)
        at = back[at]
    return found[::-1]
