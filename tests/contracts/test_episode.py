"""Terminated is not truncated: steps, trajectories, windows and groups keep the two apart, and refuse the rest."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.experience import (
    AdvantageBatch,
    Group,
    Step,
    StepKind,
    Trajectory,
    advance,
    begin,
    terminate,
    truncate,
    window,
)

NAN, INF = float("nan"), float("inf")
ENDINGS = {"terminated": terminate, "truncated": truncate, None: advance}


def episode(decisions: int = 3, end: str | None = "terminated", **changes: Any) -> Trajectory:
    """Seen 0, 1, 2, …; the i-th decision is "a<i>" and earns i + 1."""
    middle = (advance(float(i), i).act(f"a{i}", -0.5, 0.25) for i in range(1, decisions))
    steps = (begin(0).act("a0"), *middle, ENDINGS[end](float(decisions), decisions))
    return Trajectory(**{"id": "t", "task": "k", "steps": steps, "created_at": 1.0, **changes})


def test_a_step_is_built_by_what_it_means() -> None:
    assert begin("x") == Step(kind=StepKind.BEGUN, observation="x", reward=None)
    assert advance(1.0, "x") == Step(kind=StepKind.ADVANCED, observation="x", reward=1.0)
    assert terminate(1.0, "x") == Step(kind=StepKind.TERMINATED, observation="x", reward=1.0)
    assert truncate(1.0, "x") == Step(kind=StepKind.TRUNCATED, observation="x", reward=1.0)


def test_there_is_no_done() -> None:
    assert "done" not in {f.name for f in fields(Step)} | {f.name for f in fields(Trajectory)}
    assert not hasattr(begin(0), "done")


def test_a_step_gets_its_decision_once_and_keeps_what_was_seen() -> None:
    step = advance(1.0, "x").act("go", -0.5, 0.25, span=1)
    assert (step.observation, step.reward) == ("x", 1.0)
    assert (step.action, step.logprob, step.value, step.span) == ("go", -0.5, 0.25, 1)


def test_an_estimate_without_a_decision_stays_when_a_decision_follows() -> None:
    assert truncate(1.0, "x").valued(0.5).value == 0.5
    assert begin("x").valued(0.5).act("go").value == 0.5
    assert begin("x").valued(0.5).act("go", value=0.75).value == 0.75


@pytest.mark.parametrize("action", [0, "", False, [], {}])
def test_anything_but_none_is_an_action(action: Any) -> None:
    assert begin(0).act(action).action == action


BAD_STEPS = [
    # not finite
    (lambda: advance(NAN, 0), "advanced step: reward = nan: must be finite"),
    (lambda: begin(0).act("a", logprob=-INF), "begun step: logprob = -inf: must be finite"),
    (lambda: begin(0).act("a", value=NAN), "begun step: value = nan: must be finite"),
    # a reward before any decision, and none after one
    (
        lambda: Step(kind=StepKind.BEGUN, observation=0, reward=1.0),
        "begun step: reward = 1.0: every step has one but the begun one",
    ),
    (
        lambda: Step(kind=StepKind.TERMINATED, observation=0),
        "terminated step: reward = None: every step has one but the begun one",
    ),
    # a decision after the end
    (lambda: terminate(1.0, 0).act("a"), "terminated step: has an action, but the episode ended there"),
    (lambda: truncate(1.0, 0).act("a"), "truncated step: has an action, but the episode ended there"),
    # an estimate of nothing
    (
        lambda: terminate(1.0, 0).valued(0.5),
        "terminated step: value = 0.5: nothing follows, so it is 0 and not estimated",
    ),
    # no decision
    (lambda: begin(0).act(None), "begun step: None is not an action; name doing nothing, say 'wait'"),
    (lambda: replace(begin(0), logprob=-1.0), "begun step: has a logprob or a span, but no action"),
    (lambda: replace(begin(0), span=1), "begun step: has a logprob or a span, but no action"),
    # two decisions
    (lambda: begin(0).act("a").act("b"), "begun step: has its action already: 'a'"),
    # spans are counted from 1
    (lambda: begin(0).act("a", span=0), "begun step: span = 0: must be at least 1"),
]


@pytest.mark.parametrize(("build", "message"), BAD_STEPS, ids=[message for _, message in BAD_STEPS])
def test_a_step_that_means_nothing_is_refused(build: Any, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        build()
    assert str(refusal.value) == message


FIRST, NEXT, LAST = begin(0).act("a"), advance(1.0, 1).act("b"), terminate(2.0, 2)
BAD_TRAJECTORIES: list[tuple[dict[str, Any], str]] = [
    ({"id": " "}, "trajectory: the id must not be blank"),
    ({"discount": 1.1}, "trajectory t: discount = 1.1: must be between 0 and 1"),
    ({"discount": -0.1}, "trajectory t: discount = -0.1: must be between 0 and 1"),
    ({"discount": NAN}, "trajectory t: discount = nan: must be between 0 and 1"),
    ({"padding": -1}, "trajectory t: padding = -1: must not be negative"),
    ({"created_at": INF}, "trajectory t: created_at = inf: must be finite"),
    # nothing happened
    ({"steps": ()}, "trajectory t: 0 steps: needs one decision and what came of it, two at least"),
    ({"steps": (begin(0),)}, "trajectory t: 1 steps: needs one decision and what came of it, two at least"),
    # begins in the middle, or twice
    ({"steps": (NEXT, LAST)}, "trajectory t: steps[0]: is advanced; the first step, and no other, is begun"),
    ({"steps": (FIRST, FIRST, LAST)}, "trajectory t: steps[1]: is begun; the first step, and no other, is begun"),
    # goes on after its end
    (
        {"steps": (FIRST, terminate(1.0, 1), LAST)},
        "trajectory t: steps[1]: is terminated; only the last step may end the episode",
    ),
    (
        {"steps": (FIRST, truncate(1.0, 1), LAST)},
        "trajectory t: steps[1]: is truncated; only the last step may end the episode",
    ),
    # decisions missing, or without an outcome
    ({"steps": (begin(0), LAST)}, "trajectory t: steps[0]: has no action; every step but the last takes one"),
    (
        {"steps": (FIRST, NEXT)},
        "trajectory t: steps[1]: the last step has an action; add the step it led to, or leave the action out",
    ),
    # finite rewards with an infinite sum
    (
        {"steps": (FIRST, advance(1e308, 1).act("b"), terminate(1e308, 2))},
        "trajectory t: total return: the rewards add up to more than a number can hold",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD_TRAJECTORIES, ids=[message for _, message in BAD_TRAJECTORIES])
def test_a_trajectory_that_could_not_be_learnt_from_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        episode(**changes)
    assert str(refusal.value) == message


def test_a_trajectory_adds_its_rewards_up_without_discount() -> None:
    assert episode(3).total_return == 1.0 + 2.0 + 3.0
    assert episode(3).discount == 0.99


def test_a_transition_is_a_decision_with_what_it_led_to() -> None:
    found = [(s.observation, s.action, n.reward, n.observation) for s, n in episode(2).transitions]
    assert found == [(0, "a0", 1.0, 1), (1, "a1", 2.0, 2)]


@pytest.mark.parametrize("end", ENDINGS)
def test_a_trajectory_says_how_it_ended_or_that_it_is_open(end: str | None) -> None:
    assert episode(2, end).end == end


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_the_edges_of_the_discount_are_allowed(discount: float) -> None:
    assert episode(discount=discount).discount == discount


def test_a_window_keeps_the_last_transitions_and_begins_anew() -> None:
    cut = window(episode(5), 2)
    assert [step.observation for step in cut.steps] == [3, 4, 5]
    assert cut.steps[0] == begin(3).act("a3", -0.5, 0.25)
    assert cut.total_return == 4.0 + 5.0
    assert cut.padding == 0


WINDOWS = [
    # decisions, size, pad, transitions left, padding
    (3, 5, False, 3, 0),  # shorter
    (3, 5, True, 3, 2),  # shorter, padded
    (3, 3, True, 3, 0),  # exact
    (3, 3, False, 3, 0),
    (4, 3, True, 3, 0),  # longer: there is nothing to pad
    (4, 1, False, 1, 0),  # only the last one
]


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize(("decisions", "size", "pad", "left", "padding"), WINDOWS)
def test_a_window_ends_nothing(decisions: int, size: int, pad: bool, left: int, padding: int, end: str | None) -> None:
    cut = window(episode(decisions, end), size, pad)
    assert (len(cut.transitions), cut.padding) == (left, padding)
    assert cut.end == end
    assert cut.steps[-1] == episode(decisions, end).steps[-1]


def test_a_window_of_a_padded_trajectory_counts_its_own_padding() -> None:
    padded = episode(2, padding=7)
    assert window(padded, 3, pad=True).padding == 1
    assert window(padded, 3).padding == 0


def test_a_trajectory_that_fits_is_left_as_it_is() -> None:
    assert window(episode(3), 3) == episode(3)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(BadRecord) as refusal:
        window(episode(), 0)
    assert str(refusal.value) == "window of 0: must be at least 1"


@given(st.integers(1, 8), st.integers(1, 10), st.booleans(), st.sampled_from(list(ENDINGS)))
def test_windowing_twice_is_windowing_once(decisions: int, size: int, pad: bool, end: str | None) -> None:
    once = window(episode(decisions, end), size, pad)
    assert window(once, size, pad) == once
    assert len(once.transitions) + once.padding == (size if pad else min(size, decisions))


BAD_GROUPS = [
    ((), "group k: has no trajectories"),
    ((episode(), episode(id="u", task="other")), "group k: trajectory u is of task other"),
    ((episode(task=None),), "group k: trajectory t is of task None"),
    ((episode(2), episode(3)), "group k: holds a trajectory twice"),
]


@pytest.mark.parametrize(("trajectories", "message"), BAD_GROUPS)
def test_a_group_compares_different_tries_at_one_task(trajectories: tuple[Trajectory, ...], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        Group(task="k", trajectories=trajectories)
    assert str(refusal.value) == message


def test_one_trajectory_is_a_group() -> None:
    assert Group(task="k", trajectories=(episode(),)).trajectories == (episode(),)


def batch(**changes: Any) -> AdvantageBatch:
    given: dict[str, Any] = {"id": "b", "trajectory": "t", "advantages": (0.5, -0.5), "returns": (1.0, 2.0)}
    return AdvantageBatch(**{**given, "normalized": True, "created_at": 1.0, **changes})


BAD_BATCHES: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "advantages : id and trajectory 't' must not be blank"),
    ({"trajectory": " "}, "advantages b: id and trajectory ' ' must not be blank"),
    ({"advantages": (), "returns": ()}, "advantages b: is empty"),
    ({"returns": (1.0,)}, "advantages b: 1 returns for 2 advantages"),
    ({"value_targets": (1.0,)}, "advantages b: 1 value targets for 2 advantages"),
    ({"advantages": (0.5, NAN)}, "advantages b: advantages: must be finite"),
    ({"returns": (INF, 1.0)}, "advantages b: returns: must be finite"),
    ({"value_targets": (1.0, -INF)}, "advantages b: value_targets: must be finite"),
    ({"created_at": NAN}, "advantages b: created_at = nan: must be finite"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_BATCHES)
def test_advantages_that_do_not_fit_their_trajectory_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        batch(**changes)
    assert str(refusal.value) == message


def test_value_targets_may_be_left_out_or_be_as_many_as_the_advantages() -> None:
    assert batch().value_targets == ()
    assert batch(value_targets=(1.0, 2.0)).value_targets == (1.0, 2.0)
