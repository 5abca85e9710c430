from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import PROGRESS
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import TRUNCATED, ModelCall, Span, SpanKind
from holdfast.learn.batch import SampleFilter, fitted, gather
from holdfast.learn.critic import Critic, CriticConfig
from holdfast.learn.train import Settings, Trainer
from holdfast.learn.turns import GaeSettings, PpoSettings, RlSettings, TurnPPO, _advised, optimize_turns, trainer_for
from holdfast.policies.lm import ModelShape, Transformer
from tests.learn.attempts import attempt, call, signal

torch.set_num_threads(1)
TWO = (call([1, 2], [3]), call([1, 2, 3, 4], [5, 6]))
LONG = (call([1, 2], [3]), call([1, 2, 3, 4], [5, 6], finish="length"))


def model() -> Transformer:
    return Transformer(ModelShape(vocabulary=16, width=8, layers=1, heads=2, context=16), seed=0)


def scored(name: str, reward: float, calls: tuple[ModelCall, ...] = TWO, **fields: Any) -> Experience:
    return attempt(name, *calls, signals=[signal(reward)], **fields)


def settings(critic: Any = "separate", **ppo: Any) -> RlSettings:
    return RlSettings(ppo=PpoSettings(**{"learning_rate": 1e-2, **ppo}), critic=CriticConfig(mode=critic))


def test_the_optimizer_moves_the_parameters_and_says_how_far() -> None:
    trained = model()
    summary = optimize_turns([scored("a", 1.0), scored("b", 0.0)], trained, settings(), seed=0)
    distance = sum(
        (p - q).square().sum().item() for p, q in zip(trained.parameters(), model().parameters(), strict=True)
    )
    assert summary.executed and summary.skipped_reason is None
    assert (summary.trajectories, summary.samples, summary.updates) == (2, 4, 1)
    assert distance > 0.0 and summary.parameter_delta_norm == pytest.approx(distance**0.5, rel=0.2)  # with the critic
    assert summary.grad_norm is not None and summary.grad_norm > 0.0 and summary.mean_total_loss is not None
    assert summary.observed_approx_kl is not None and summary.observed_approx_kl > 0.0  # recorded −1 is not the model's


def test_the_better_conversation_becomes_likelier() -> None:
    good, bad = ((call([1, 2], [token]),) for token in (5, 9))
    attempts = [scored("a", 1.0, good), scored("b", 0.0, bad)]
    trained = model()
    optimize_turns(attempts, trained, settings(epochs=5, entropy_coefficient=0.0), seed=0)
    with torch.no_grad():
        before, after = (one(torch.tensor([[1, 2]]))[0, -1].log_softmax(-1) for one in (model(), trained))
    assert after[5] > before[5] and after[9] < before[9]


@pytest.mark.parametrize(
    ("attempts", "reason", "trajectories"),
    [
        ([], "no_succeeded_train_rollouts", 0),
        ([scored("a", 1.0, split=Split.VAL)], "no_succeeded_train_rollouts", 0),
        ([scored("a", 1.0, state=RolloutState.DEAD)], "no_succeeded_train_rollouts", 0),
        ([scored("a", 1.0, is_final=False)], "no_succeeded_train_rollouts", 0),
        ([scored("a", 1.0, calls=())], "no_trajectories_collected", 0),
        ([attempt("a", *TWO, signals=None)], "no_trajectories_collected", 0),  # never scored
        ([scored("a", 1.0, calls=(call([1], [2], logprobs=None),))], "no_ppo_samples_constructed", 1),
        ([scored("a", 1.0, calls=(call([1], [2], forced=[0]),))], "no_ppo_samples_constructed", 1),
    ],
)
def test_what_cannot_be_learnt_from_is_skipped_with_a_reason(
    attempts: list[Experience], reason: str, trajectories: int
) -> None:
    trained = model()
    summary = optimize_turns(attempts, trained, settings(), seed=0)
    assert (summary.executed, summary.skipped_reason, summary.trajectories) == (False, reason, trajectories)
    assert summary.to_dict() == {
        "executed": False,
        "trajectories": trajectories,
        "samples": 0,
        "early_stop_triggered": False,
        "skipped_reason": reason,
        "updates": 0,
        "reasons": dict(summary.reasons),
    }
    assert all(torch.equal(p, q) for p, q in zip(trained.parameters(), model().parameters(), strict=True))


def test_weights_out_of_reach_are_not_pretended_to_move() -> None:
    summary = optimize_turns([scored("a", 1.0)], None, settings(), seed=0)
    assert (summary.executed, summary.skipped_reason) == (False, "weights_out_of_reach")
    assert (summary.trajectories, summary.samples) == (1, 2)


def test_only_this_runs_train_rollouts_teach() -> None:
    attempts = [scored("a", 1.0), scored("b", 0.0, split=Split.TEST), scored("c", 0.0, run="run-2")]
    summary = optimize_turns(attempts, model(), settings(), seed=0, intake=SampleFilter(run="run-1"))
    assert summary.trajectories == 1 and summary.reasons == {"b": "wrong_split", "c": "other_run"}


def test_too_far_from_what_was_recorded_stops_early() -> None:
    """The recorded log-probs are −1 and the model's near −log 16, so the first minibatch is far already."""
    summary = optimize_turns([scored("a", 1.0), scored("b", 0.0)], model(), settings(epochs=3, max_kl=0.1), seed=0)
    assert summary.early_stop_triggered and summary.stopped_early == "max_kl"
    assert summary.updates == 0 and summary.parameter_delta_norm == 0.0
    assert summary.observed_approx_kl is not None and summary.observed_approx_kl > 0.1
    soft = optimize_turns([scored("a", 1.0), scored("b", 0.0)], model(), settings(epochs=3, target_kl=0.1), seed=0)
    assert soft.stopped_early == "target_kl" and not soft.early_stop_triggered and soft.updates == 1


def constant_critic(value: float) -> nn.Linear:
    critic = nn.Linear(8, 1)
    nn.init.zeros_(critic.weight)
    nn.init.constant_(critic.bias, value)
    return critic


def advised(attempts: list[Experience], gae: GaeSettings, value: float = 0.5) -> Any:
    trainer = Trainer(model(), Settings(), seed=0, critic=constant_critic(value))
    return _advised([reading for _, reading in gather(attempts, SampleFilter()).kept], trainer, None, gae)[0]


def test_credit_by_turn_moves_rewards_between_turns_and_adds_none() -> None:
    """Measured .8 and .4, half of it counts, reward 1: turn 0 gets .4, the last turn 1 + .2 − .6. V = 0."""
    turns = [signal(value, PROGRESS, turn=turn, weight=0.0) for turn, value in enumerate((0.8, 0.4))]
    one = attempt("a", *TWO, signals=[signal(1.0), *turns])
    for lam, wanted in ((0.0, [0.4, 0.6]), (1.0, [1.0, 0.6])):  # the whole attempt is worth 1 as before
        gae = GaeSettings(gamma=1.0, lam=lam, normalize_advantages=False, turn_credit=0.5)
        found = advised([one], gae, value=0.0).advantages
        assert found.tolist() == pytest.approx([0, 0, wanted[0], 0, wanted[1], wanted[1]])
    with pytest.raises(BadInput, match="gae.turn_credit"):
        GaeSettings(turn_credit=1.5)


def test_advantages_by_hand_and_where_they_lie() -> None:
    """V = ½ everywhere, γ = λ = ½, reward 1 at the end: δ = (¼ − ½, 1 − ½), A = (−¼ + ¼·½, ½)."""
    raw = GaeSettings(gamma=0.5, lam=0.5, normalize_advantages=False)
    batch = advised([scored("a", 1.0)], raw)
    assert batch.advantages.tolist() == pytest.approx([0, 0, -0.125, 0, 0.5, 0.5])
    returns = [np.nan, 0.375, np.nan, 1.0, np.nan, np.nan]  # A + V, at the last token of each prompt
    assert batch.returns.tolist() == pytest.approx(returns, nan_ok=True)


def test_a_conversation_cut_by_a_limit_still_has_a_future() -> None:
    raw = GaeSettings(gamma=0.5, lam=0.5, normalize_advantages=False)
    batch = advised([scored("a", 1.0, LONG)], raw)
    assert batch.advantages[-1] == pytest.approx(1.0 + 0.5 * 0.5 - 0.5)  # bootstrapped by what the critic says there
    told = advised([scored("a", 1.0, LONG, ended="terminated")], raw)
    assert told.advantages[-1] == pytest.approx(0.5)


def test_rewards_of_turns_go_to_their_turns() -> None:
    raw = GaeSettings(gamma=1.0, lam=1.0, normalize_advantages=False)
    one = attempt("a", *TWO, signals=[signal(2.0, "call", turn=0), signal(1.0)])
    assert advised([one], raw, value=0.0).advantages.tolist() == pytest.approx([0, 0, 3.0, 0, 1.0, 1.0])


ODD = {
    "bad_turn": attempt("odd", *TWO, signals=[signal(2.0, "call", turn=2)]),
    "bad_reward": scored("odd", 1e300),
    "foreign_tokens": scored("odd", 1.0, (call([1, 16], [3]),)),
    "too_long": scored("odd", 1.0, (call(list(range(1, 15)), [3, 4, 5]),)),
}


@pytest.mark.parametrize("reason", ODD)
def test_one_odd_attempt_does_not_spoil_what_the_others_teach(reason: str) -> None:
    good, odd = [scored("a", 1.0), scored("b", 0.0)], ODD[reason]
    with_odd, without = model(), model()
    summary = optimize_turns([odd, *good], with_odd, settings(), seed=0)
    expected = optimize_turns(good, without, settings(), seed=0)
    assert summary.reasons == {"odd": reason} and summary.trajectories == 3
    assert summary == replace(expected, reasons=summary.reasons, trajectories=3)
    assert all(torch.equal(p, q) for p, q in zip(with_odd.parameters(), without.parameters(), strict=True))
    alone = optimize_turns([odd], model(), settings(), seed=0)
    assert (alone.executed, alone.skipped_reason) == (False, "no_ppo_samples_constructed")


def test_what_the_caller_allows_is_narrowed_to_what_the_model_can_read() -> None:
    assert fitted(SampleFilter(), model()) == SampleFilter(vocabulary=16, max_tokens=16)
    assert fitted(SampleFilter(max_tokens=4), model()) == SampleFilter(vocabulary=16, max_tokens=4)
    assert fitted(SampleFilter(max_tokens=99), model()).max_tokens == 16
    assert fitted(SampleFilter(), None) == SampleFilter()


@pytest.mark.parametrize(
    "ppo",
    [
        {"learning_rate": 1e3, "epochs": 3},
        {"learning_rate": 1e30},
        {"value_loss_coefficient": 1e300, "critic": "shared"},
        {"learning_rate": 0.1, "max_kl": 0.05},  # recorded as the model says it, so only the move is far
    ],
)
def test_a_step_that_was_taken_back_is_told_in_plain_numbers(ppo: dict[str, Any]) -> None:
    trained = model()
    said = [-math.log(16)]
    attempts = [scored(name, one, (call([1, 2], [i], logprobs=said),)) for name, one, i in (("a", 1, 5), ("b", 0, 9))]
    summary = optimize_turns(attempts, trained, settings(**ppo), seed=0)
    assert summary.executed and summary.restored is not None
    assert (summary.parameter_delta_norm, summary.updates) == (0.0, 0)
    assert all(torch.equal(p, q) for p, q in zip(trained.parameters(), model().parameters(), strict=True))
    json.dumps(summary.to_dict(), allow_nan=False)


def test_advantages_are_normalised_over_the_batch_and_clipped() -> None:
    one_turn = (call([1, 2], [3]),)
    attempts = [scored(name, reward, one_turn) for name, reward in (("a", 1.0), ("b", 0.0))]
    batch = advised(attempts, GaeSettings())
    assert batch.advantages.tolist() == pytest.approx([0, 0, 1, 0, 0, -1], abs=1e-6)  # of one step each, and not 0
    clipped = advised(attempts, GaeSettings(clip_advantages=0.5, normalize_returns=True, clip_returns=0.25))
    assert clipped.advantages[[2, 5]].tolist() == pytest.approx([0.5, -0.5])
    assert clipped.returns[[1, 4]].tolist() == pytest.approx([0.25, -0.25])


def test_minibatches_are_counted_in_turns() -> None:
    attempts = [scored(f"r{i}", float(i)) for i in range(4)]  # two turns each
    summary = optimize_turns(attempts, model(), settings(mini_batch_size=2, epochs=2), seed=0)
    assert (summary.samples, summary.updates) == (8, 8)
    gathered = settings(mini_batch_size=2, gradient_accumulation_steps=2)
    assert optimize_turns(attempts, model(), gathered, seed=0).updates == 2


def test_the_same_seed_gives_the_same_summary() -> None:
    attempts = [scored(f"r{i}", float(i)) for i in range(4)]
    summaries = [optimize_turns(attempts, model(), settings(mini_batch_size=2, epochs=2), seed=3) for _ in range(2)]
    assert summaries[0] == summaries[1]


# The critic


def answers(count: int = 8) -> list[Experience]:
    """Whether an answer is worth something is seen from its question alone: a critic can know it beforehand."""
    asked = [(1 + n % 2, 5 + n % 4) for n in range(count)]
    return [scored(f"r{n}", float(q == 1), (call([q, 2], [a]),)) for n, (q, a) in enumerate(asked)]


def test_the_critic_learns_and_is_told_from_batch_to_batch() -> None:
    trained, how = model(), settings(learning_rate=1e-4)
    trainer = trainer_for(trained, how, seed=0)
    told = [optimize_turns(answers(), trained, how, seed=0, trainer=trainer) for _ in range(6)]
    explained = [one.to_dict()["explained_variance"] for one in told]
    assert explained[0] == 0.0 and explained[-1] > 0.5 and explained == sorted(explained)
    assert told[0].value_loss is not None and told[-1].value_loss is not None
    assert told[-1].value_loss < 0.5 * told[0].value_loss


def test_a_first_batch_is_judged_by_critics_that_saw_only_the_other_attempts() -> None:
    """A run that learns once has a critic, too, if its batch is large enough; by chance alone it would explain less
    than nothing, and is not used."""
    told = optimize_turns(answers(32), model(), settings(), seed=0)
    assert told.explained_variance is not None and told.explained_variance > 0.2
    rng = np.random.default_rng(0)
    lots = [scored(f"r{n}", float(rng.integers(2)), (call([1, 2], [5 + n % 4]),)) for n in range(32)]
    assert optimize_turns(lots, model(), settings(), seed=0).explained_variance == 0.0
    untaught = optimize_turns(answers(32), model(), settings(value_loss_coefficient=0.0), seed=0)
    assert untaught.explained_variance == 0.0


def test_the_value_loss_moves_the_model_only_where_the_critic_is_shared() -> None:
    def moved(critic: str, coefficient: float) -> list[torch.Tensor]:
        trained = model()
        how = settings(critic=critic, value_loss_coefficient=coefficient, epochs=2)
        assert optimize_turns(answers(), trained, how, seed=0).parameter_delta_norm
        return [p.detach() for p in trained.parameters()]

    def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(p, q) for p, q in zip(one, other, strict=True))

    assert alike(moved("separate", 5.0), moved("separate", 0.0))
    assert alike(moved("shared", 0.0), moved("separate", 0.0)) and not alike(moved("shared", 5.0), moved("shared", 0.0))


def test_a_step_that_was_taken_back_takes_the_critic_back_too() -> None:
    trained = model()
    trainer = trainer_for(trained, how := settings(learning_rate=1e30), seed=0)
    assert optimize_turns(answers(), trained, how, seed=0, trainer=trainer).restored
    assert isinstance(trainer.critic, Critic) and trainer.critic.scale.seen == 0


def test_an_agent_that_says_its_conversation_was_cut_is_bootstrapped() -> None:
    raw = GaeSettings(gamma=0.5, lam=0.5, normalize_advantages=False)
    cut = Span(seq=9, kind=SpanKind.TELEMETRY, name=TRUNCATED, started_at=0.0, attributes={"why": "max_turns"})
    whole = scored("a", 1.0)
    assert not whole.is_truncated
    batch = advised([replace(whole, spans=(*whole.spans, cut))], raw)
    assert batch.advantages[-1] == pytest.approx(1.0 + 0.5 * 0.5 - 0.5)


@pytest.mark.parametrize(
    ("block", "wrong", "said"),
    [
        ("ppo", {"epochs": 0}, "ppo.epochs = 0: must be a number of at least 1"),
        ("ppo", {"learning_rate": math.nan}, "ppo.learning_rate = nan: must be a number above 0"),
        ("ppo", {"aggregate": "mean"}, "ppo.aggregate = 'mean': is unknown"),
        ("ppo", {"aggregate": "sequence_norm_constant"}, "ppo.constant = None: goes with sequence_norm_constant"),
        ("ppo", {"rate": 1}, "ppo.rate: is unknown; there are clip_epsilon"),
        ("gae", {"lambda": 1.5}, "gae.lam = 1.5: must be a number from 0 to 1"),
        ("critic", {"mode": "joint"}, "critic.mode = 'joint': is unknown"),
        ("critic", 3, "critic: is int, not a mapping"),
    ],
)
def test_a_dial_that_cannot_be_is_refused_before_any_work(block: str, wrong: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        TurnPPO(**{block: wrong})
    assert said in str(refused.value)


def test_every_dial_reaches_the_trainer() -> None:
    dials = {"clip_epsilon": 0.1, "clip_epsilon_high": 0.3, "aggregate": "sequence", "importance_cap": 3.0}
    found = trainer_for(model(), settings(**dials, kl_penalty_coefficient=0.5, piece_tokens=64), seed=0).settings
    objective = found.objective
    assert (objective.clip_low, objective.clip_high, objective.aggregate) == (0.1, 0.3, "sequence")
    assert (objective.importance_cap, objective.behaviour_kl, found.max_tokens_per_batch) == (3.0, 0.5, 64)
