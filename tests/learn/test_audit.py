from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall
from holdfast.learn.batch import SampleFilter, SkipReason
from holdfast.learn.examples import sequences
from holdfast.learn.grpo import Grpo, compare
from holdfast.learn.practice import audit, dominance
from holdfast.learn.train import Settings, Trainer
from holdfast.policies.lm import ModelShape, Transformer
from tests.learn.attempts import attempt, call, signal

torch.set_num_threads(1)
FINE = call([1, 2], [3])


def model() -> Transformer:
    return Transformer(ModelShape(vocabulary=16, width=8, layers=1, heads=2, context=16), seed=0)


def odd(one: ModelCall | None = FINE, **fields: Any) -> list[Experience]:
    """Two good attempts at a task, and one at another task with something the matter."""
    good = [attempt(f"good-{i}", FINE, signals=[signal(float(i))]) for i in range(2)]
    calls = () if one is None else (one,)
    return [*good, attempt("odd", *calls, **({"signals": [signal(1.0)], "task": "other"} | fields))]


@pytest.mark.parametrize(
    ("attempts", "intake", "reason"),
    [
        (odd(None), SampleFilter(), SkipReason.NO_TRAJECTORY),
        (odd(call(None, None)), SampleFilter(), SkipReason.NO_IDS),
        (odd(call([1], [2], logprobs=None)), SampleFilter(), SkipReason.NO_LOGPROBS),
        (odd(call([1], [2], forced=[0])), SampleFilter(), SkipReason.ALL_FORCED),
        (odd(call([1], [2], sampling={"temperature": 0})), SampleFilter(), SkipReason.GREEDY),
        (odd(call(range(9), [2])), SampleFilter(max_tokens=8), SkipReason.TOO_LONG),
        (odd(version="old"), SampleFilter(versions=("new", None)), SkipReason.STALE),  # type: ignore[arg-type]
        (odd(signals=None), SampleFilter(), SkipReason.NO_REWARD),
        (odd(state=RolloutState.DEAD), SampleFilter(), SkipReason.FAULT),
        (odd(split=Split.VAL), SampleFilter(), SkipReason.WRONG_SPLIT),
        (odd(is_final=False), SampleFilter(), SkipReason.NOT_FINAL),
        (odd(run="run-2"), SampleFilter(run="run-1"), SkipReason.OTHER_RUN),
        (odd(), SampleFilter(), SkipReason.ALONE),
        (odd(task="task", signals=[signal(0.5)]), SampleFilter(), SkipReason.ZERO_WEIGHT),  # exactly average
    ],
)
def test_every_rollout_that_teaches_nothing_has_its_reason(
    attempts: list[Experience], intake: SampleFilter, reason: SkipReason
) -> None:
    found = compare(attempts, intake, Grpo())
    account = audit(attempts, found.reasons, found.samples)
    assert account.reasons == {"odd": str(reason)} and account.counts == {str(reason): 1}
    assert (account.rollouts, account.taught) == (3, 2)
    assert json.loads(json.dumps(account.to_dict()))["reasons"] == {"odd": str(reason)}


def test_a_group_without_spread_is_told() -> None:
    attempts = [attempt(name, FINE, signals=[signal(1.0)]) for name in "ab"]
    found = compare(attempts, SampleFilter(), Grpo())
    account = audit(attempts, found.reasons, found.samples)
    assert account.counts == {"zero_variance_group": 2} and account.taught == 0 and account.samples == 0


def test_kept_groups_without_spread_weigh_nothing() -> None:
    attempts = [attempt(name, FINE, signals=[signal(1.0)]) for name in "ab"]
    found = compare(attempts, SampleFilter(), Grpo(skip_zero_spread=False))
    trained = model()
    update = Trainer(trained, Settings(), seed=0).step(found.samples)  # type: ignore[arg-type]
    account = audit(attempts, found.reasons, found.samples, update=update)
    assert account.zero_gradient is True and account.idle_tokens == 2 and account.tokens == 0


def test_a_gradient_that_is_there_is_not_called_zero() -> None:
    trained = model()
    samples = sequences([([1, 2, 3], [False, True, True])])
    update = Trainer(trained, Settings(), seed=0).step(samples)
    assert audit([], {}, samples, update=update).zero_gradient is False


def test_the_signal_that_the_reward_is_made_of_is_named() -> None:
    def one(name: str, right: float, style: float) -> Experience:
        return attempt(name, FINE, signals=[signal(right), signal(style, "style", weight=0.1)])

    attempts = [one("a", 1.0, 1.0), one("b", 0.0, 1.0), one("c", 1.0, 0.0), one("d", 0.0, 0.0)]
    shares = dominance(attempts)  # variances ¼ and 0.01 · ¼, not correlated
    assert shares == {"right": pytest.approx(1 / 1.01), "style": pytest.approx(0.01 / 1.01)}
    assert audit(attempts, {}, None).dominant == "right"
    assert dominance(attempts[:1]) == {}


def test_one_signal_alone_does_not_dominate() -> None:
    attempts = [attempt("a", FINE, signals=[signal(1.0)]), attempt("b", FINE, signals=[signal(0.0)])]
    assert audit(attempts, {}, None).dominant is None


def test_prompts_that_did_not_go_on_are_told_by_their_kind() -> None:
    calls = (call([1, 2], [3]), call([1, 4], [3]))
    attempts = [attempt(str(i), *calls, signals=[signal(float(i))]) for i in range(2)]
    found = compare(attempts, SampleFilter(), Grpo())
    account = audit(attempts, found.reasons, found.samples, breaks=found.breaks)
    assert json.loads(json.dumps(account.to_dict()))["breaks"] == {"edited": 2}
