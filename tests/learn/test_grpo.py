from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import PROGRESS, TURN_REWARD, RewardTerm
from holdfast.contracts.rollout import RolloutState
from holdfast.learn.batch import SampleFilter, SkipReason
from holdfast.learn.grpo import GRPO, Grpo, GrpoDials, compare
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.reward.breakdown import OutcomeGate, total
from tests.learn.attempts import attempt, call, signal

torch.set_num_threads(1)


def member(name: str, reward: float | None, *, task: str = "t", completion: int = 5, **fields: Any) -> Experience:
    signals = None if reward is None else [signal(reward)]
    return attempt(name, call([1, 2], [completion]), signals=signals, task=task, **fields)


def advantages(attempts: list[Experience], settings: Grpo | None = None) -> dict[str, list[float]]:
    """By rollout, on its decided tokens."""
    found = compare(attempts, SampleFilter(), settings or Grpo())
    assert found.samples is not None and found.samples.advantages is not None
    bounds = found.samples.bounds
    return {
        name: found.samples.advantages[a:b][found.samples.action_mask[a:b]].tolist()
        for name, a, b in zip(found.samples.rollouts, bounds[:-1], bounds[1:], strict=True)
    }


def test_each_attempt_is_judged_by_the_others_at_its_task() -> None:
    group = [member("a", 1.0), member("b", 0.0), member("c", 0.0), member("d", 0.0)]
    other = [member("e", 5.0, task="u"), member("f", 3.0, task="u")]
    scaled = advantages([*group, *other])  # mean ¼, population std √3/4
    assert scaled == {
        "a": pytest.approx([3**0.5]),
        **{name: pytest.approx([-(3**-0.5)]) for name in "bcd"},
        "e": pytest.approx([1.0]),
        "f": pytest.approx([-1.0]),
    }
    assert advantages(group, Grpo(scale=False))["a"] == pytest.approx([0.75])


def test_a_group_without_spread_is_skipped_whole() -> None:
    found = compare([member("a", 1.0), member("b", 1.0), *pair()], SampleFilter(), Grpo())
    assert found.samples is not None and found.samples.rollouts == ("x", "y")
    assert (found.groups, found.skipped_groups) == (2, 1)
    assert found.reasons == {"a": SkipReason.ZERO_SPREAD, "b": SkipReason.ZERO_SPREAD, "x": None, "y": None}
    assert compare([member("a", 1.0), member("b", 1.0)], SampleFilter(), Grpo()).samples is None


def pair() -> list[Experience]:
    return [member("x", 1.0, task="u"), member("y", 0.0, task="u")]


def test_a_fault_is_missing_and_not_a_zero() -> None:
    fault = member("c", None, state=RolloutState.DEAD)
    with_fault = advantages([member("a", 1.0), member("b", 0.5), fault])
    assert with_fault == advantages([member("a", 1.0), member("b", 0.5)])
    alone = compare([member("a", 1.0), fault], SampleFilter(), Grpo())
    assert alone.samples is None and alone.reasons == {"a": SkipReason.ALONE, "c": SkipReason.FAULT}


def test_an_average_attempt_has_no_weight_and_says_so() -> None:
    found = compare([member("a", 1.0), member("b", 0.5), member("c", 0.0)], SampleFilter(), Grpo())
    assert found.reasons == {"a": None, "b": SkipReason.ZERO_WEIGHT, "c": None}


def test_a_good_turn_in_a_lost_game_is_still_raised() -> None:
    def two_turns(name: str, first: float, outcome: float) -> Experience:
        calls = (call([1], [2]), call([1, 2, 3], [4]))
        return attempt(name, *calls, signals=[signal(first, "call", turn=0), signal(outcome)], task="t")

    group = [two_turns("a", 1.0, -1.0), two_turns("b", 0.0, 2.0)]
    # Totals 0 and 2: outcomes −1 and 1. Turn 0 relative: 1 and −1; turn 1 has no rewards of its own.
    assert advantages(group) == {"a": pytest.approx([-1, -1]), "b": pytest.approx([1, 1])}
    mixed = advantages(group, Grpo(mix=0.75))
    assert mixed == {"a": pytest.approx([0.5, -0.25]), "b": pytest.approx([-0.5, 0.25])}


def test_an_odd_attempt_is_left_out_and_the_rest_is_compared() -> None:
    group = [member("a", 1.0), member("b", 0.0)]
    wrong = attempt("c", call([1, 2], [5]), signals=[signal(1.0, turn=3)], task="t")
    huge = attempt("d", call([1, 2], [5]), signals=[signal(1.7e308, "x"), signal(1.7e308, "y")], task="t")
    for settings in (Grpo(), Grpo(mix=0.5)):
        found = compare([wrong, *group, huge], SampleFilter(), settings)
        assert found.reasons == {"a": None, "b": None, "c": SkipReason.BAD_TURN, "d": SkipReason.BAD_REWARD}
        assert advantages([wrong, *group, huge], settings) == advantages(group, settings)


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(BadInput, match="grpo.mix"):
        Grpo(mix=1.5)


def test_a_rewarded_token_becomes_likelier() -> None:
    """A bandit for a language model: after [1, 2], token 7 pays. Eight draws a step, log-probs as drawn."""
    model = Transformer(ModelShape(vocabulary=16, width=32, layers=2, heads=2, context=16), seed=0)
    trainer = Trainer(
        model, Settings(objective=GRPO().objective, optimizer=OptimizerConfig(learning_rate=1e-2)), seed=0
    )
    rng = np.random.default_rng(0)

    def chances() -> np.ndarray[Any, np.dtype[np.float64]]:
        with torch.no_grad():
            logits = model(torch.tensor([[1, 2]]))[0, -1].double()
        return np.asarray(logits.softmax(-1))

    before = chances()[7]
    for _ in range(40):
        p = chances()
        drawn = rng.choice(16, size=16, p=p / p.sum())
        group = [
            attempt(f"r{i}", call([1, 2], [token], logprobs=[float(np.log(p[token]))]), signals=[signal(token == 7)])
            for i, token in enumerate(map(int, drawn))
        ]
        found = compare(group, SampleFilter(), Grpo())
        if found.samples is not None:
            trainer.step(found.samples)
    assert before < 0.15 and chances()[7] > 0.9


GUARD = OutcomeGate(vetoes=("tampered",))


def shaped(name: str, *shaping: RewardTerm, success: float, **fields: Any) -> Experience:
    """An attempt of one turn whose breakdown went through the guard."""
    breakdown = total([signal(success, "success"), *shaping], GUARD)
    return attempt(name, call([1, 2], [5]), signals=breakdown.signals, task="t", **fields)


def test_a_term_of_wide_numbers_does_not_drown_one_of_narrow_ones() -> None:
    """All passed. `wide` says a over b by 0.2, `narrow` says b over a by 0.002, with twice the weight."""
    group = [
        shaped("a", signal(0.2, "wide", weight=0.5), signal(0.000, "narrow"), success=1.0),
        shaped("b", signal(0.0, "wide", weight=0.5), signal(0.002, "narrow"), success=1.0),
    ]
    assert advantages(group) == {"a": pytest.approx([1.0]), "b": pytest.approx([-1.0])}
    # z is ±1 in each: −0.5 and 0.5 remain, held to ±¼ of the outcome's weight.
    normal = Grpo(terms="normalised", scale=False)
    assert advantages(group, normal) == {"a": pytest.approx([-0.25]), "b": pytest.approx([0.25])}


def test_many_small_penalties_do_not_sink_a_success_below_a_failure() -> None:
    """Where the outcome is normalised with the rest, they do: z is 1 for the outcome, −1 for each of three."""
    small = [signal(-0.01, name) for name in ("x", "y", "z")]
    group = [shaped("won", *small, success=1.0), shaped("lost", success=0.0)]
    columns = np.asarray([[1.0, 0.0], [-0.01, 0.0], [-0.01, 0.0], [-0.01, 0.0]])
    plain = ((columns - columns.mean(1, keepdims=True)) / columns.std(1, keepdims=True)).sum(0)
    assert plain[0] < plain[1]
    found = advantages(group, Grpo(terms="normalised"))
    assert found["won"][0] > found["lost"][0]


SHAPING = st.lists(
    st.builds(signal, st.floats(-50, 50), st.sampled_from(["format", "cost", "gain"]), st.just(0), st.floats(0, 3)),
    max_size=4,
)
VETO = st.sampled_from([(), (signal(1.0, "tampered", weight=2.0),), (signal(1.0, "tampered", weight=0.0),)])


@given(st.lists(st.tuples(st.booleans(), SHAPING, VETO), min_size=2, max_size=6), st.booleans())
def test_no_failure_ends_above_a_success_however_its_terms_are_normalised(
    drawn: list[tuple[bool, list[RewardTerm], tuple[RewardTerm, ...]]], scale: bool
) -> None:
    group = [
        shaped(f"r{place}", *shaping, *veto, success=float(has_passed))
        for place, (has_passed, shaping, veto) in enumerate(drawn)
    ]
    settings = Grpo(terms="normalised", scale=scale, skip_zero_spread=False)
    found = advantages(group, settings)
    won = [found[f"r{place}"][0] for place, (has_passed, _, veto) in enumerate(drawn) if has_passed and not veto]
    lost = [found[f"r{place}"][0] for place, (has_passed, _, veto) in enumerate(drawn) if not has_passed or veto]
    if won and lost:
        assert min(won) > max(lost)


def test_a_vetoed_attempt_stands_below_every_failure_however_well_it_is_shaped() -> None:
    """Six small penalties are more than a veto, once each is divided by its own spread."""
    small = [signal(-0.01, f"p{place}") for place in range(6)]
    group = [
        shaped("penalised", *small, signal(0.0, "tampered"), success=0.0),
        shaped("vetoed", signal(1.0, "tampered", weight=0.0), success=1.0),
        shaped("plain", signal(0.0, "tampered"), success=0.0),
        shaped("other", *small, signal(0.0, "tampered"), success=0.0),
    ]
    found = {name: credit[0] for name, credit in advantages(group, Grpo(terms="normalised", scale=False)).items()}
    assert found["vetoed"] < min(found["penalised"], found["other"]) < found["plain"]
    # −1 for the veto, and half of ±¼ at least between any two ranks.
    assert min(found["penalised"], found["other"]) - found["vetoed"] >= 0.5
    gate = RewardTerm(name="safety.hard_gate", value=1.0, weight=0.0, source="rule:safety")
    leaked = attempt("leaked", call([1, 2], [5]), signals=[signal(0.0, "success"), gate], task="t")
    assert advantages([leaked, group[0]], Grpo(terms="normalised"))["leaked"] == pytest.approx([-1.0])


TURNS = 3
TURN_SHAPING = st.lists(
    st.builds(
        signal, st.floats(-50, 50), st.sampled_from(["gain", "form"]), st.integers(0, TURNS - 1), st.floats(0, 3)
    ),
    max_size=6,
)


MEASURED = st.lists(st.floats(-50, 50), min_size=TURNS, max_size=TURNS)


@given(
    st.lists(st.tuples(st.booleans(), TURN_SHAPING, VETO, MEASURED), min_size=2, max_size=5),
    st.builds(
        Grpo,
        mix=st.floats(0, 1),
        scale=st.booleans(),
        terms=st.sampled_from(["sum", "normalised"]),
        skip_zero_spread=st.just(False),
    ),
)
def test_no_token_of_a_failure_has_more_credit_than_one_of_a_success(
    drawn: list[tuple[bool, list[RewardTerm], tuple[RewardTerm, ...], list[float]]], settings: Grpo
) -> None:
    group = [
        attempt(
            f"r{place}",
            *(call([1, *[2, 3] * turn], [2]) for turn in range(TURNS)),
            signals=(*total([signal(float(has_passed), "success"), *shaping, *veto], GUARD).signals, *measured(values)),
            task="t",
        )
        for place, (has_passed, shaping, veto, values) in enumerate(drawn)
    ]
    found = advantages(group, settings)
    ranked: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for place, (has_passed, _, veto, _) in enumerate(drawn):
        ranked[0 if veto else 2 if has_passed else 1] += found[f"r{place}"]
    if ranked[2] and (lower := ranked[0] + ranked[1]):
        assert min(ranked[2]) > max(lower)
    if settings.terms == "normalised" and ranked[0] and ranked[1]:
        assert min(ranked[1]) > max(ranked[0])


def measured(values: Sequence[float], name: str = PROGRESS) -> list[RewardTerm]:
    """What was measured of each turn, and is not paid."""
    return [signal(value, name, turn=turn, weight=0.0) for turn, value in enumerate(values)]


def two_turns(name: str, success: float, values: Sequence[float]) -> Experience:
    signals = [signal(success, "success"), *measured(values)]
    return attempt(name, call([1], [2]), call([1, 2, 3], [4]), signals=signals, task="t")


def test_the_turn_that_decided_has_more_of_the_credit_than_one_that_all_did_alike() -> None:
    """Right and wrong began alike: turn 0 has .8 in both. In turn 1 they are .2 above and below its mean."""
    group = [two_turns("right", 1.0, [0.8, 0.6]), two_turns("wrong", 0.0, [0.8, 0.2])]
    assert advantages(group) == {"right": pytest.approx([1, 1]), "wrong": pytest.approx([-1, -1])}
    assert advantages(group, Grpo(mix=0.5)) == {
        "right": pytest.approx([0.5, 0.6]),
        "wrong": pytest.approx([-0.5, -0.6]),
    }
    assert advantages(group, Grpo(mix=0.5, turn_term=TURN_REWARD)) == {
        "right": pytest.approx([0.5, 0.5]), "wrong": pytest.approx([-0.5, -0.5]),
    }  # fmt: skip


@pytest.mark.parametrize("success", [0.0, 1.0])
def test_where_all_failed_or_all_passed_nothing_that_was_only_measured_teaches(success: float) -> None:
    group = [two_turns("a", success, [0.9, 0.9]), two_turns("b", success, [0.1, 0.1])]
    found = compare(group, SampleFilter(), Grpo(mix=0.5))
    assert found.samples is None and found.skipped_groups == 1


@pytest.mark.parametrize("terms", ["sum", "normalised"])
def test_turns_that_lost_a_little_do_not_turn_right_into_wrong(terms: Any) -> None:
    """By turns alone the wrong one is better four times over; it was paid nothing for them."""
    turns = [call([1, *[2, 3] * turn], [2]) for turn in range(4)]
    lost = [signal(-0.001, "gain", weight=0.1, turn=turn) for turn in range(4)]
    gained = [signal(0.5, "gain", weight=0.1, turn=turn) for turn in range(4)]
    group = [
        attempt("right", *turns, signals=total([signal(1.0, "success"), *lost], GUARD).signals, task="t"),
        attempt("wrong", *turns, signals=total([signal(0.0, "success"), *gained], GUARD).signals, task="t"),
    ]
    for mix in (0.1, 0.25, 0.5, 1.0):
        found = advantages(group, Grpo(mix=mix, terms=terms))
        assert min(found["right"]) > 0.0 > max(found["wrong"])


def test_a_term_of_a_turn_counts_by_its_weight_however_wide_its_numbers_are() -> None:
    """In turn 0 `wide` says a over b by 0.2, `narrow` says b over a by 0.002, with twice the weight."""
    turns = (call([1], [2]), call([1, 2, 3], [4]))

    def paid(name: str, wide: float, narrow: float) -> Experience:
        terms = [signal(wide, "wide", weight=0.1, turn=0), signal(narrow, "narrow", weight=0.2, turn=0)]
        return attempt(name, *turns, signals=total([signal(1.0, "success"), *terms], GUARD).signals, task="t")

    group = [paid("a", 0.2, 0.0), paid("b", 0.0, 0.002)]
    found = {terms: advantages(group, Grpo(mix=1.0, terms=terms)) for terms in ("sum", "normalised")}
    assert found["sum"]["a"][0] > 0.0 > found["sum"]["b"][0]
    assert found["normalised"]["b"][0] > 0.0 > found["normalised"]["a"][0]


def test_normalised_terms_need_an_outcome_to_stand_on() -> None:
    with pytest.raises(BadInput, match="grpo.outcome = 'success': a has no such signal"):
        advantages([member("a", 1.0), member("b", 0.0)], Grpo(terms="normalised"))
    named = advantages([member("a", 1.0), member("b", 0.0)], Grpo(terms="normalised", outcome="right"))
    assert named == {"a": pytest.approx([1.0]), "b": pytest.approx([-1.0])}
    with pytest.raises(BadInput, match="grpo.terms"):
        Grpo(terms="mixed")  # type: ignore[arg-type]


def found_out(name: str, first: int, gain: float, *, success: float) -> Experience:
    """Two turns; the first one says `first` and gained so much."""
    calls = (call([1, 2], [first]), call([1, 2, first, 3], [4]))
    breakdown = total([signal(success, "success"), signal(gain, "information_gain", turn=0, weight=0.2)], GUARD)
    return attempt(name, *calls, signals=breakdown.signals, task="t")


@pytest.mark.parametrize("terms", ["sum", "normalised"])
def test_what_a_turn_found_out_raises_that_turn_and_only_where_the_check_was_passed(terms: Any) -> None:
    group = [
        found_out("found", 7, 1.0, success=1.0),
        found_out("idle", 8, 0.0, success=1.0),
        found_out("gated", 9, 1.0, success=0.0),
    ]
    found = advantages(group, Grpo(mix=0.5, terms=terms))
    assert found["found"][0] > found["found"][1] > 0.0
    assert found["found"][0] > found["idle"][0]
    assert found["gated"][0] < found["gated"][1] < found["idle"][1]  # as if it had found out nothing


def test_the_turn_that_found_something_out_becomes_likelier_and_the_other_does_not() -> None:
    model = Transformer(ModelShape(vocabulary=16, width=32, layers=2, heads=2, context=16), seed=0)
    trainer = Trainer(
        model, Settings(objective=GRPO().objective, optimizer=OptimizerConfig(learning_rate=1e-2)), seed=0
    )
    group = [found_out("found", 7, 1.0, success=1.0), found_out("idle", 8, 0.0, success=1.0)]

    def chance(after: list[int], token: int) -> float:
        with torch.no_grad():
            return float(model(torch.tensor([after]))[0, -1].double().softmax(-1)[token])

    before = chance([1, 2], 7), chance([1, 2], 8)
    for _ in range(10):
        samples = compare(group, SampleFilter(), Grpo(mix=1.0)).samples
        assert samples is not None
        trainer.step(samples)
    assert chance([1, 2], 7) > 1.1 * before[0] and chance([1, 2], 8) < before[1] / 1.1


def test_advantages_of_somebodys_own_take_the_place_of_the_groups() -> None:
    def best_only(group: Any) -> list[float]:
        best = max(one.reward for one in group)
        return [float(one.reward == best) for one in group]

    found = compare([member("a", 1.0), member("b", 0.5)], SampleFilter(), Grpo(), own=best_only)
    assert found.samples is not None and found.samples.advantages is not None
    assert found.samples.advantages[found.samples.action_mask].tolist() == [1.0, 0.0]
    assert found.reasons == {"a": None, "b": SkipReason.ZERO_WEIGHT}


@pytest.mark.parametrize("given", [[1.0], [1.0, 2.0, 3.0], [1.0, float("nan")]])
def test_advantages_that_do_not_fit_the_group_are_refused(given: list[float]) -> None:
    with pytest.raises(BadInput, match="one finite number for each attempt"):
        compare([member("a", 1.0), member("b", 0.5)], SampleFilter(), Grpo(), own=lambda group: given)


def test_the_page_for_those_who_know_other_trainers_names_dials_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").partition("From TRL")[2]
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|")][2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[3])}
    ours = {"turn_credit", "behaviour_kl", "max_kl", "constant"}  # others have no such dial
    assert named <= {one.name for one in fields(GRPO)}
    assert {one.name for one in fields(GrpoDials)} - named == ours
