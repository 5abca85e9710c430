from __future__ import annotations

import random

import pytest

from experiments.coding import overedits
from experiments.coding.functions import source
from experiments.coding.overedits import GREEDY, MILD, OverEdit, words
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask, catalogue, is_repaired
from tests.experiments.coding.scene import SOURCE

GOOD = "def total(a: int, b: int) -> int:\n    c = a\n    c += b\n    return c + 1\n"
CASES: list[tuple[OverEdit, str, int]] = [  # on GOOD: what is to be found in it then, and its words in excess
    (overedits.renamed, "c_value = a\n    c_value += b\n    return c_value + 1", 3),
    (overedits.documented, '"""Compute total for the given arguments."""', 1),
    (overedits.reformatted, "\n  c = a\n  c += b", 0),
    (overedits.commented, "# the next line is needed", 0),
    (overedits.named_result, "outcome = c + 1\n    return outcome", 3),
    (
        overedits.extracted,
        "def _finish(c):\n    return c + 1",
        11,
    ),  # def _finish ( c ) : return … and _finish ( c ) for it
    (overedits.spelled_out, "c = c + b", 3),
    (overedits.caught, "try:\n        c = a", 6),  # try : except Exception : raise
    (overedits.unused, "DEFAULT_LIMIT = 100", 16),
    (overedits.classed, "class TotalService:", 20),
    (overedits.forwarded, "return _total_impl(a, b)", 21),
    (overedits.duplicated, "def total_fallback(", 24),
    (overedits.logged, 'LOGGER.debug("total called")', 16),
]


@pytest.mark.parametrize(("way", "part", "excess"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_an_over_edit_says_how_many_words_it_cost(way: OverEdit, part: str, excess: int) -> None:
    edited = way(GOOD, random.Random(0))
    assert edited is not None
    assert part in edited[0]
    assert edited[1] == excess


def test_a_guard_is_put_at_the_head() -> None:
    edited = overedits.guarded(GOOD, random.Random(1))
    assert (
        edited is not None
        and " is None:\n        raise TypeError(" in edited[0].splitlines(keepends=True)[1] + edited[0]
    )
    assert edited[1] == 10  # if a is None : raise TypeError ( "…" )


def test_where_there_is_no_place_there_is_no_edit() -> None:
    rng = random.Random(0)
    assert overedits.renamed(SOURCE, rng) is None  # it has no variables of its own
    assert overedits.spelled_out(SOURCE, rng) is None
    assert overedits.named_result(SOURCE, rng) is None  # what it returns has a name
    assert overedits.documented('def f():\n    """It."""\n', rng) is None


def test_words_are_no_comments_and_no_layout() -> None:
    assert [one.string for one in words("a = 'b c'  # why\n\n")] == ["a", "=", "'b c'"]


def test_no_over_edit_changes_what_a_function_does(some: tuple[RepairTask, ...], sandbox: Sandbox) -> None:
    ways = (*GREEDY, *MILD)
    for task, way in [(task, way) for task in some[:3] for way in ways]:
        edited = way(task.gold, random.Random(2))
        if edited is not None:
            assert is_repaired(task, {task.path: edited[0]}, sandbox), (task.id, way.__name__)


def test_every_over_edit_finds_a_place_in_some_function() -> None:
    golds = [source(one) for one in catalogue()]
    for way in (*GREEDY, *MILD):
        assert any(way(gold, random.Random(0)) is not None for gold in golds), way.__name__
