"""Mixed control: it goes on while nothing is lost, and back by itself where something is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.learn.anneal import AnnealPlan, AnnealState, advance, has_passed, losses

SCRIPT = {"return": 4.0, "stayed": 1.0}
PLAN = AnnealPlan(shares=(0.5, 1.0), better=0.2, worse=0.35)
GOOD, SO_SO, BAD = ({**SCRIPT, "return": value} for value in (3.9, 3.0, 1.0))


def ran(windows: Sequence[dict[str, float]], plan: AnnealPlan = PLAN) -> AnnealState:
    state = AnnealState()
    for kpis in windows:
        assert not state.is_over
        state = advance(state, kpis, SCRIPT, plan)
    return state


def test_it_goes_on_share_by_share_and_is_done_at_the_last() -> None:
    state = ran([GOOD, GOOD])
    assert [one.action for one in state.windows] == ["advance", "done"] and has_passed(state)
    assert state.share(PLAN) == 1.0 and [one.share for one in state.windows] == [0.5, 1.0]


def test_what_hurts_goes_back_by_itself_and_says_what_was_lost() -> None:
    state = ran([BAD])
    assert state.is_over and state.share(PLAN) == 0.0 and not has_passed(state)
    assert (state.windows[0].worst, state.windows[0].loss) == ("return", 0.75)


def test_after_a_return_two_good_windows_are_needed_and_after_two_it_stays_back() -> None:
    state = ran([GOOD, BAD, GOOD])
    assert state.share(PLAN) == 0.5 and state.windows[-1].action == "hold" and not state.is_over
    state = advance(state, GOOD, SCRIPT, PLAN)
    assert state.windows[-1].action == "advance"
    state = advance(state, BAD, SCRIPT, PLAN)
    assert state.is_over and state.share(PLAN) == 0.5 and state.returns == 2


def test_between_the_two_limits_it_neither_goes_on_nor_back_and_not_for_ever() -> None:
    state = ran([SO_SO] * 6)
    assert {one.action for one in state.windows} == {"hold"} and state.is_over and not has_passed(state)


@pytest.mark.parametrize("kpis", [{"return": 4.0}, {"return": 4.0, "stayed": float("nan")}])
def test_what_was_not_measured_counts_as_lost(kpis: dict[str, float]) -> None:
    assert losses(kpis, SCRIPT)["stayed"] == float("inf")
    assert ran([kpis]).share(PLAN) == 0.0


def test_nothing_measured_is_no_anneal() -> None:
    with pytest.raises(BadInput, match="nothing was measured"):
        advance(AnnealState(), {}, {}, PLAN)


@pytest.mark.parametrize(
    "wrong", [{"shares": ()}, {"shares": (0.5, 0.4)}, {"shares": (1.2,)}, {"better": 0.5, "worse": 0.4}]
)
def test_an_impossible_plan_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"anneal\."):
        AnnealPlan(**wrong)
