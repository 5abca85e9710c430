"""JSON as a tree of leaves: read strictly, compared leaf by leaf, and every problem with its place.

What a document should say is the business of those who build it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any

MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    where: str  # "$.metrics.episodes"; of another file than the one asked about, its name stands before it
    why: str
    is_place: bool = False  # the file itself may be true: it only lies elsewhere than it says


def parse(raw: bytes) -> dict[str, Any] | Problem:
    """A JSON object that can be read in one way only: not cut off, and no key twice."""
    try:
        data = json.loads(raw, object_pairs_hook=_once)
    except RecursionError:
        return Problem(where="$", why="is nested too deeply")
    except _Twice as twice:
        return Problem(where=inside("$.", str(twice)), why="is there twice in one object")
    except ValueError as error:  # of the JSON, of UTF-8, or a number of thousands of digits
        return Problem(where="$", why=f"is not JSON: {error}")
    return data if isinstance(data, dict) else Problem(where="$", why="must be an object")


def differences(wanted: Any, found: Any, where: str) -> Iterator[Problem]:
    """Leaf by leaf. Numbers may differ in the last digits, which another machine computes otherwise."""
    if found is MISSING:
        yield Problem(where=where, why="is missing")
    elif isinstance(wanted, dict) and isinstance(found, dict):
        for name in wanted:
            yield from differences(wanted[name], found.get(name, MISSING), inside(where, name))
        for name in sorted(found.keys() - wanted.keys()):
            yield Problem(where=inside(where, name), why="is unknown")
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield Problem(where=where, why=f"has {len(found)} items, must be {len(wanted)}")
        for place, (one, other) in enumerate(zip(wanted, found, strict=False)):
            yield from differences(one, other, f"{where}[{place}]")
    elif not _same(wanted, found):
        yield Problem(where=where, why=f"is {short(found)}, must be {short(wanted)}")


def inside(where: str, name: str) -> str:
    return f"{where}.{name}" if name.isidentifier() else f"{where}[{json.dumps(name)}]"


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float) and type(found) in (int, float) and abs(found) < 1e300:  # what isclose can hold
        return isclose(wanted, found, rel_tol=1e-9, abs_tol=1e-12)
    return type(wanted) is type(found) and bool(wanted == found)


def not_finite(value: object, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from not_finite(item, inside(where, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from not_finite(item, f"{where}[{place}]")
    elif isinstance(value, float) and not isfinite(value):
        yield where


class _Twice(ValueError):
    """A key that an object has twice; readers disagree on which of them counts."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(name)
        found[name] = value
    return found


def short(value: object) -> str:
    if value is MISSING:
        return "missing"
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}…"
