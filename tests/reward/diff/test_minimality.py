"""Minimality: the least fix earns all of it, and more never earns more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm
from holdfast.reward.breakdown import OutcomeGate, total
from holdfast.reward.diff.minimality import (
    BROKEN,
    GUESS,
    excess,
    multiplier,
    signals,
    total_excess,
    unneeded_scaffolding,
)

BASE = """def f(a, b):
    total = 0
    for x in a:
        if x > b:
            total += x
    return total
"""
FIX = BASE.replace("x > b", "x >= b")
GUARDED = FIX.replace("    total = 0\n", "    if a is None:\n        return None\n    total = 0\n")
amounts = st.floats(0.0, 1e6)


def value(found: tuple[RewardTerm, ...], name: str) -> float:
    return next(one.value for one in found if one.name == name)


def test_what_is_beyond_the_least_fix_is_excess() -> None:
    found = excess(BASE, FIX, FIX)
    assert (found.cost, found.reference_cost, found.excess) == (0.5, 0.5, 0.0)
    assert excess(BASE, GUARDED, FIX).excess == pytest.approx(
        8.0
    )  # if, comparison, name, is, None, block, return, None
    assert excess(BASE, GUARDED, 2.5).excess == pytest.approx(6.0)  # a cost serves as well
    assert excess(BASE, FIX, 80.0).excess == 0.0  # never negative
    around = "".join(f"\n\ndef other{at}(a):\n    return a + {at}\n" for at in range(300))
    assert excess(BASE + around, GUARDED + around, FIX + around).excess == pytest.approx(8.0)  # in a larger file, too


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_an_impossible_reference_is_refused(cost: float) -> None:
    with pytest.raises(BadInput, match="reference cost"):
        excess(BASE, FIX, cost)
    with pytest.raises(BadInput, match="excess nan"):
        multiplier(float("nan"))


def test_the_multiplier_by_hand() -> None:
    assert multiplier(0.0) == 1.0
    assert multiplier(10.0) == 0.5
    assert multiplier(10.5, 1.0, reference_cost=0.5) == 0.25


@given(least=amounts, more=amounts, scaffolding=amounts, further=amounts, reference=amounts)
def test_more_never_raises_the_multiplier(
    least: float, more: float, scaffolding: float, further: float, reference: float
) -> None:
    here = multiplier(least, scaffolding, reference_cost=reference)
    assert 0.0 < here <= 1.0
    assert multiplier(least + more, scaffolding, reference_cost=reference) <= here
    assert multiplier(least, scaffolding + further, reference_cost=reference) <= here


def test_references_are_by_path_one_cost_for_all_files_or_a_guess() -> None:
    found = total_excess({"m.py": (BASE, FIX), "other.py": (None, "x = 1\n")}, {"m.py": FIX})
    assert (found.cost, found.excess) == (4.5, 4.0)  # another file is all excess
    change = {"m.py": (BASE, GUARDED), "same.py": ("x", "x")}
    assert total_excess(change, 8.0).excess == pytest.approx(0.5)
    assert total_excess(change).reference_cost == GUESS


def test_the_signals_of_the_least_fix() -> None:
    found = signals({"m.py": (BASE, FIX)}, references={"m.py": FIX}, weight=0.4)
    assert {one.name: (one.value, one.weight) for one in found} == {
        "minimality": (1.0, 0.4),
        "excess_edits": (0.0, 0.0),
        "scaffolding": (0.0, 0.0),
        "parse_errors": (0.0, 0.0),
    }


def test_scaffolding_that_the_least_fix_has_is_not_held_against_anybody() -> None:
    change = {"m.py": (BASE, GUARDED)}
    assert [one.rule for one in unneeded_scaffolding(change, {"m.py": FIX})] == ["guard"]
    assert unneeded_scaffolding(change, {"m.py": GUARDED}) == ()
    assert value(signals(change, references={"m.py": GUARDED}), "minimality") == 1.0


def test_a_change_that_no_longer_parses_earns_next_to_nothing() -> None:
    found = signals({"m.py": (BASE, BASE.replace("return total", "return total)"))}, references={"m.py": FIX})
    assert value(found, "minimality") <= BROKEN
    assert value(found, "parse_errors") == 1.0


def test_a_wrong_small_diff_never_beats_a_right_larger_one() -> None:
    guard = OutcomeGate(cap=0.5, vetoes=("tampering",))

    def earned(after: str, success: float) -> float:
        shaping = signals({"m.py": (BASE, after)}, references={"m.py": FIX})
        breakdown = total((RewardTerm(name="success", value=success, source="env"), *shaping), guard)
        assert breakdown.total is not None
        return breakdown.total

    wrong, right = earned(BASE.replace("x > b", "x < b"), 0.0), earned(GUARDED + "\n\n" + BASE.replace("f(", "g("), 1.0)
    assert wrong == 0.0 < 1.0 <= right < earned(FIX, 1.0)


def function(name: str, number: int) -> str:
    return (
        f"export function {name}(a: number, b: number): number {{\n  if (a > b) {{\n    return a * {number};\n  }}\n"
        f"  const c = a + b;\n  return c - {number};\n}}\n\n"
    )


FILE = "".join(function(f"f{at}", at) for at in range(10))  # 80 lines
SCRIPT_FIX = FILE.replace("a > b", "a >= b", 1)
CEREMONY = """interface Runner { run(): void }
class Impl implements Runner { run() { try { f1(1, 2); } catch (e) {} } }
function makeRunner(): Runner { return new Impl(); }
"""
WRONGS = {  # change → what ours must stay below
    "rewrite": ("".join(function(f"other{at}", at + 50).replace("a + b", "b + a + 3") for at in range(10)), 0.3),
    "duplicates": (SCRIPT_FIX + "".join(function(f"helper{at}", at) for at in range(20)), 0.1),
    "ceremony": (f"{SCRIPT_FIX}{CEREMONY}", 0.3),
    "comments": (SCRIPT_FIX.replace("  if (a >= b) {", "  // note\n" * 250 + "  if (a >= b) {"), 0.35),
    "imports": ("".join(f"import {{ x{at} }} from './x{at}';\n" for at in range(120)) + SCRIPT_FIX, 0.3),
}


def ours(before: str, after: str, path: str = "m.ts", fix: str = SCRIPT_FIX) -> float:
    return signals({path: (before, after)}, references={path: fix})[0].value


@pytest.mark.parametrize("name", WRONGS)
def test_more_than_the_fix_is_worth_little_and_the_fix_everything(name: str) -> None:
    after, most = WRONGS[name]
    assert ours(FILE, after) <= most
    assert ours(FILE, SCRIPT_FIX) == 1.0
