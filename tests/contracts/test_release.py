"""A release is called by its policy and number, and its moves are those of the one table."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, BadRecord, IllegalMove
from holdfast.contracts.release import MOVES, SHARES, PolicyKind, Release, Stage, check_name, move

S = Stage


def release(**changes: Any) -> Release:
    given = {"id": "sprout@3", "project": "default", "policy": "sprout", "number": 3, "kind": PolicyKind.WEIGHTS}
    given |= {"source": "shelf:sprout-weak", "stage": S.CANDIDATE, "created_at": 1.0, "changed_at": 1.0}
    return Release(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 4}, "release sprout@3: must be called sprout@4"),
        ({"policy": "oak"}, "release sprout@3: must be called oak@3"),
        ({"policy": " ", "id": " @3"}, "release  @3: policy and source must not be blank"),
        ({"source": ""}, "release sprout@3: policy and source must not be blank"),
        ({"share": -1}, "release sprout@3: share = -1: must be from 0 to 100"),
        ({"share": 101}, "release sprout@3: share = 101: must be from 0 to 100"),
    ],
)
def test_what_is_no_release_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        release(**changes)
    assert str(refusal.value) == message


@pytest.mark.parametrize(("old", "new"), list(product(Stage, repeat=2)))
def test_a_move_is_legal_exactly_when_the_table_says_so(old: Stage, new: Stage) -> None:
    if new in MOVES[old]:
        assert move(release(stage=old), new) is new
        return
    with pytest.raises(IllegalMove) as refusal:
        move(release(stage=old), new)
    allowed = ", ".join(sorted(MOVES[old]))
    said = f"release sprout@3: cannot go from {old} to {new}; from {old} it may go to {allowed}"
    assert str(refusal.value) == said


def test_the_table_has_a_row_for_each_stage_and_no_dead_end() -> None:
    assert set(MOVES) == set(Stage)
    assert all(MOVES.values())


def test_who_was_never_live_is_rejected_and_who_was_is_rolled_back() -> None:
    """A canary answers people: it is taken back, and never merely refused."""
    assert [stage for stage in Stage if S.REJECTED in MOVES[stage]] == [S.CANDIDATE, S.SHADOW]
    assert [stage for stage in Stage if S.ROLLED_BACK in MOVES[stage]] == [S.CANARY, S.LIVE]


def test_what_was_taken_back_or_refused_begins_again_as_a_candidate() -> None:
    assert MOVES[S.ROLLED_BACK] == MOVES[S.REJECTED] == {S.CANDIDATE}
    assert MOVES[S.RETIRED] == {S.LIVE}


def test_the_steps_of_a_canary_grow_up_to_everything() -> None:
    assert SHARES == (5, 25, 50, 100)


@pytest.mark.parametrize("name", ["a", "tools", "my tools 2", "Grüße", "日本語", "x" * 100, "a.b/c-d_e:f"])
def test_a_plain_name_is_good(name: str) -> None:
    check_name("policy", name)


@pytest.mark.parametrize(
    ("name", "shown", "why"),
    [
        ("", "''", "must not be blank, nor begin or end with a blank"),
        (" a", "' a'", "must not be blank, nor begin or end with a blank"),
        ("a\u3000", "'a\\u3000'", "must not be blank, nor begin or end with a blank"),
        ("a\x00b", "'a\\x00b'", "has characters in it that cannot be seen"),
        ("a\nb", "'a\\nb'", "has characters in it that cannot be seen"),
        ("a\x1b[31m", "'a\\x1b[31m'", "has characters in it that cannot be seen"),
        ("a\u202eb", "'a\\u202eb'", "has characters in it that cannot be seen"),  # turns the text round
        ("a\u2066b", "'a\\u2066b'", "has characters in it that cannot be seen"),
        ("a\u200bb", "'a\\u200bb'", "has characters in it that cannot be seen"),  # as wide as nothing
        ("a\ud800", "'a\\ud800'", "has characters in it that cannot be seen"),
        ("a@1", "'a@1'", "'@' comes before the number of a release"),
        ("x" * 101, f"'{'x' * 100}…'", "has 101 characters, 100 at most are allowed"),
    ],
)
def test_a_name_that_could_be_taken_for_another_is_refused(name: str, shown: str, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_name("policy", name)
    assert str(refused.value) == f"policy {shown}: {why}; give it a plain name"
