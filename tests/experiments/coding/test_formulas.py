"""The two formulas that ours replaces: their known values, and the changes that they judged wrongly."""

from __future__ import annotations

import pytest

from experiments.coding.formulas import (
    jaccard,
    lines_score,
    original,
    original_multiplier,
    original_scaffolding,
    spec,
    spec_multiplier,
)
from tests.reward.diff.test_minimality import FILE, SCRIPT_FIX, WRONGS, function, ours


def test_the_known_values_of_the_formulas() -> None:
    points = {9: 1.0, 10: 1.0, 30: 0.9, 50: 0.8, 75: 0.65, 100: 0.5, 300: 0.4, 500: 0.3, 1000: 0.1, 1500: 0.0}
    assert {lines: lines_score(lines) for lines in points} == pytest.approx(points)
    assert spec_multiplier(0.9, files=1, line_ratio=0.1) == pytest.approx(0.9)
    assert spec_multiplier(0.9, files=3, line_ratio=0.2, scaffolding=0.5) == pytest.approx(0.35)
    assert spec_multiplier(0.9, is_equivalent=False) == 0.1
    assert spec_multiplier(0.2, files=9) == 0.1
    assert original_multiplier(1.0, 0) == 1.0
    assert original_multiplier(0.5, 300, 1.0) == pytest.approx(0.5 * (0.35 + 0.12))
    assert original_multiplier(0.0, 2000) == 0.1


def test_the_original_scaffolding_looks_at_the_text_after_alone() -> None:
    assert original_scaffolding("function x() {}") == 0.4
    assert original_scaffolding("import a\n" * 21) == pytest.approx(0.2)
    assert original_scaffolding("// a\n// b\nc") == 0.3
    assert original_scaffolding("    // a\n" * 250) == 0.0  # indented ones were never seen


@pytest.mark.parametrize("name", WRONGS)
def test_ours_is_low_where_theirs_was_not(name: str) -> None:
    after, most = WRONGS[name]
    assert ours(FILE, after) <= most < original({"m.ts": (FILE, after)})


def test_they_put_a_whole_rewrite_above_the_fix_and_we_do_not() -> None:
    rewrite = {"m.ts": (FILE, WRONGS["rewrite"][0])}
    fix = {"m.ts": (FILE, SCRIPT_FIX)}
    assert original(fix) < original(rewrite)
    assert original(rewrite) > 0.95


def test_of_python_they_said_that_everything_is_alike() -> None:
    before = "".join(f"x{at} = {at}\n" for at in range(50))
    after = "".join(f"def q{at}(): return {at} * 2\n" for at in range(50))
    assert jaccard(before, after, "python") == 1.0
    assert original({"m.py": (before, after)}) == 1.0
    assert ours(before, after, "m.py", before.replace("x3 = 3", "x3 = 4")) < 0.1


def test_the_specified_one_saturates_in_a_large_file() -> None:
    large = "".join(function(f"f{at}", at) for at in range(200))
    fix, more = large.replace("a > b", "a >= b", 1), large.replace("a > b", "a >= b && b !== null && a !== null", 1)
    assert spec({"m.ts": (large, more)}, is_equivalent=True) > 0.99
    assert ours(large, more, fix=fix) < 0.7


def test_what_is_not_equivalent_has_the_floor_of_the_specified_one() -> None:
    assert spec({"m.ts": (FILE, SCRIPT_FIX)}, is_equivalent=False) == 0.1
    assert spec({}, is_equivalent=True) == 1.0
    assert original({}) == 1.0
