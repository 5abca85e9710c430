"""Rewards after the end: added to the sheet, never changed, noted with who told them, and all of it or nothing."""

from __future__ import annotations

import threading

import pytest

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, NotFound, Refused
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind
from holdfast.store.check import check
from holdfast.store.notifications import FINISHED
from holdfast.store.traces import Rewarded
from tests.store.scene import Scene, signal

R = RolloutState
TONE = RewardTerm(name="tone", value=0.5, source="person:ann")


def attach(scene: Scene, told: RewardTerm = TONE, name: str = "t") -> Rewarded:
    return scene.store.rewards.attach(f"{scene.run}/{name}", told, who="ann", now=scene.clock.now).result()


def scored(scene: Scene, name: str = "t") -> int:
    """A rollout that ended with a reward of 1; the token of its attempt."""
    scene.enqueue(name)
    attempt = scene.claim().attempt
    scene.store.traces.score(attempt, [signal("exact", 1.0)], now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, reward=1.0)
    return attempt.token


def test_a_signal_is_added_to_the_sheet_and_the_reward_is_its_total(scene: Scene) -> None:
    token, seen = scored(scene), scene.store.changes.seen(FINISHED)
    made = attach(scene, RewardTerm(name="tone", value=0.5, weight=-2.0, source="person:ann"))
    assert (made.rollout, made.attempt) == (f"{scene.run}/t", f"{scene.run}/t:attempt-1")
    assert made.is_new and made.reward == scene.rollout("t").reward == 0.0  # 1 − 2 · 0.5
    assert [one.name for one in scene.store.traces.sheet(token).signals] == ["exact", "tone"]
    assert scene.store.changes.wait(FINISHED, seen, 60.0)  # who waits for rewards is told
    assert not [part for part in check(scene.store) if part.problems]


def test_who_told_it_is_in_the_ledger(scene: Scene) -> None:
    scored(scene)
    attach(scene)
    entry = list(scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.run) == ("reward", "ann", scene.run)
    assert entry.body == {
        "rollout": f"{scene.run}/t",
        "attempt": f"{scene.run}/t:attempt-1",
        "name": "tone",
        "value": 0.5,
        "weight": 1.0,
        "source": "person:ann",
        "turn": None,
        "feedback": None,
        "before": 1.0,
        "reward": 1.5,
        "outcome_before": None,
        "outcome": None,
    }


def test_the_same_again_changes_nothing_and_another_value_is_refused(scene: Scene) -> None:
    token = scored(scene)
    assert attach(scene).is_new
    entries = len(list(scene.store.ledger.entries()))
    again = attach(scene)
    assert (again.is_new, again.reward) == (False, 1.5)
    for other in (
        RewardTerm(name="tone", value=0.6, source="person:ann"),
        RewardTerm(name="tone", value=0.5, weight=2, source="person:ann"),
    ):
        with pytest.raises(Conflict, match=r"person:ann told tone before: 0\.5 × 1"):
            attach(scene, other)
    assert attach(scene, RewardTerm(name="tone", value=0.6, source="person:bob")).reward == 2.1
    assert len(scene.store.traces.sheet(token).signals) == 3
    assert len(list(scene.store.ledger.entries())) == entries + 1


def test_a_rollout_without_a_reward_gets_its_first_and_a_failed_one_too(scene: Scene) -> None:
    for name, state in (("t", R.SUCCEEDED), ("u", R.FAILED)):
        assert scene.brought_to(state, name).reward is None
        assert attach(scene, name=name).reward == scene.rollout(name).reward == 0.5
    found = scene.store.experiences.one(f"{scene.run}/u")
    assert found is not None and found.sheet is not None and found.sheet.total == 0.5


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (R.QUEUING, "is queuing: its own worker scores it when it ends"),
        (R.RUNNING, "is running: its own worker"),
        (R.REQUEUING, "is requeuing: its own worker"),
        (R.DEAD, "is dead: no attempt decided it"),
        (R.CANCELLED, "is cancelled: no attempt decided it"),
    ],
)
def test_what_nothing_decided_cannot_be_rewarded(scene: Scene, state: RolloutState, why: str) -> None:
    scene.brought_to(state)
    with pytest.raises(Refused, match=why):
        attach(scene)
    assert scene.rollout("t").reward is None


def test_a_rollout_that_is_not_there_is_not_found(scene: Scene) -> None:
    with pytest.raises(NotFound):
        attach(scene, name="nope")


def test_a_turn_is_a_whole_call_of_the_model(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    call = ModelCall(model="m", messages=(), response={"role": "assistant", "content": "x"})
    spans = [
        Span(seq=seq, kind=SpanKind.MODEL, name="chat", started_at=1.0, ended_at=2.0, model=call, attributes=notes)
        for seq, notes in enumerate(({}, {PARTIAL: "cut"}, {}), 1)
    ]
    scene.store.traces.add(attempt, spans, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED)
    for turn in (0, 1):
        assert attach(scene, RewardTerm(name="tone", value=1.0, source="a", turn=turn)).is_new
    assert scene.rollout("t").reward == 2.0
    with pytest.raises(BadInput, match=r"turn 2: rollout .*/t has 2 turns, the last is 1"):
        attach(scene, RewardTerm(name="tone", value=1.0, source="a", turn=2))


def test_a_total_that_is_no_number_leaves_everything_as_it_was(scene: Scene) -> None:
    scored(scene)
    huge = RewardTerm(name="a", value=1.7e308, source="s")
    attach(scene, huge)
    with pytest.raises(BadRecord, match="add up to inf"):
        attach(scene, RewardTerm(name="b", value=1.7e308, source="s"))
    assert scene.rollout("t").reward == 1.7e308


def test_of_many_who_tell_the_same_at_once_one_is_new(scene: Scene) -> None:
    token = scored(scene)
    made: list[Rewarded] = []
    threads = [threading.Thread(target=lambda: made.append(attach(scene))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.is_new for one in made) == [False] * 7 + [True]
    assert len(scene.store.traces.sheet(token).signals) == 2 and scene.rollout("t").reward == 1.5


def test_a_requeued_rollout_keeps_no_reward_of_its_failed_attempt(scene: Scene) -> None:
    scene.brought_to(R.FAILED)
    attach(scene)
    scene.requeue("t")
    with pytest.raises(Refused, match="is queuing"):
        attach(scene)
    scene.finish(scene.claim(), AttemptState.SUCCEEDED)
    assert attach(scene).attempt == f"{scene.run}/t:attempt-2"
    assert scene.rollout("t").reward == 0.5


@pytest.mark.parametrize(
    ("signals", "outcome"),
    [
        ([RewardTerm(name="success", value=1.0, source="person:ann")], "right"),
        ([RewardTerm(name="success", value=0.5, source="person:ann")], "wrong"),
        ([RewardTerm(name="exact_match", value=1.0, source="rule:exact_match")], "right"),
        # success says more than an exact match, whichever came first
        (
            [
                RewardTerm(name="success", value=0.0, source="person:ann"),
                RewardTerm(name="exact_match", value=1.0, source="rule:exact_match"),
            ],
            "wrong",
        ),
        ([TONE], None),  # a tone is no check
        ([RewardTerm(name="success", value=1.0, source="agent:t")], None),  # nor is an agent's own word
    ],
)
def test_a_reward_that_checks_changes_the_outcome(scene: Scene, signals: list[RewardTerm], outcome: str | None) -> None:
    scored(scene)
    assert scene.rollout("t").outcome is None
    for told in signals:
        attach(scene, told)
    assert scene.rollout("t").outcome == outcome


def test_what_its_worker_found_stands_until_a_check_says_otherwise(scene: Scene) -> None:
    scene.enqueue("t")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome="wrong")
    attach(scene)
    assert scene.rollout("t").outcome == "wrong"  # a tone says nothing about it
    attach(scene, RewardTerm(name="success", value=1.0, source="person:ann"))
    assert scene.rollout("t").outcome == "right"


def test_what_failed_stays_wrong_whatever_is_told_of_it(scene: Scene) -> None:
    scene.brought_to(R.FAILED)
    attach(scene, RewardTerm(name="success", value=1.0, source="person:ann"))
    assert (scene.rollout("t").outcome, scene.rollout("t").reward) == ("wrong", 1.0)


def test_feedback_in_words_is_kept_with_the_signal(scene: Scene) -> None:
    token = scored(scene)
    told = RewardTerm(name="tone", value=0.5, source="person:ann", feedback="too long, \x00 and rude")
    attach(scene, told)
    kept = scene.store.traces.sheet(token).signals[-1]
    assert kept.feedback == "too long, \ufffd and rude"
    assert list(scene.store.ledger.entries())[-1].body["feedback"] == kept.feedback
