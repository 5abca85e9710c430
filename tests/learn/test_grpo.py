from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState
from holdfast.learn.batch import Intake, Reason
from holdfast.learn.grpo import OBJECTIVE, Grpo, compare
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.policies.lm import Shape, Transformer
from tests.learn.attempts import attempt, call, signal

torch.set_num_threads(1)


def member(name: str, reward: float | None, *, task: str = "t", completion: int = 5, **fields: Any) -> Experience:
    signals = None if reward is None else [signal(reward)]
    return attempt(name, call([1, 2], [completion]), signals=signals, task=task, **fields)


def advantages(attempts: list[Experience], settings: Grpo | None = None) -> dict[str, list[float]]:
    """By rollout, on its decided tokens."""
    found = compare(attempts, Intake(), settings or Grpo())
    assert found.samples is not None and found.samples.advantages is not None
    bounds = found.samples.bounds
    return {
        name: found.samples.advantages[a:b][found.samples.decided[a:b]].tolist()
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
    assert advantages(group, Grpo(scale=False, leave_one_out=True))["a"] == pytest.approx([1.0])


def test_a_group_without_spread_is_skipped_whole() -> None:
    found = compare([member("a", 1.0), member("b", 1.0), *pair()], Intake(), Grpo())
    assert found.samples is not None and found.samples.rollouts == ("x", "y")
    assert (found.groups, found.skipped_groups) == (2, 1)
    assert found.reasons == {"a": Reason.ZERO_SPREAD, "b": Reason.ZERO_SPREAD, "x": None, "y": None}
    assert compare([member("a", 1.0), member("b", 1.0)], Intake(), Grpo()).samples is None


def pair() -> list[Experience]:
    return [member("x", 1.0, task="u"), member("y", 0.0, task="u")]


def test_a_fault_is_missing_and_not_a_zero() -> None:
    fault = member("c", None, state=RolloutState.DEAD)
    with_fault = advantages([member("a", 1.0), member("b", 0.5), fault])
    assert with_fault == advantages([member("a", 1.0), member("b", 0.5)])
    alone = compare([member("a", 1.0), fault], Intake(), Grpo())
    assert alone.samples is None and alone.reasons == {"a": Reason.ALONE, "c": Reason.FAULT}


def test_an_average_attempt_has_no_weight_and_says_so() -> None:
    found = compare([member("a", 1.0), member("b", 0.5), member("c", 0.0)], Intake(), Grpo())
    assert found.reasons == {"a": None, "b": Reason.ZERO_WEIGHT, "c": None}


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
        found = compare([wrong, *group, huge], Intake(), settings)
        assert found.reasons == {"a": None, "b": None, "c": Reason.BAD_TURN, "d": Reason.BAD_REWARD}
        assert advantages([wrong, *group, huge], settings) == advantages(group, settings)


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(BadInput, match="grpo.mix"):
        Grpo(mix=1.5)


def test_a_rewarded_token_becomes_likelier() -> None:
    """A bandit for a language model: after [1, 2], token 7 pays. Eight draws a step, log-probs as drawn."""
    model = Transformer(Shape(vocabulary=16, width=32, layers=2, heads=2, context=16), seed=0)
    trainer = Trainer(model, Settings(objective=OBJECTIVE, pace=Pace(learning_rate=1e-2)), seed=0)
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
        found = compare(group, Intake(), Grpo())
        if found.samples is not None:
            trainer.step(found.samples)
    assert before < 0.15 and chances()[7] > 0.9
