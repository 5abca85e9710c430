from __future__ import annotations

from math import exp

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.learn.batch import PLAIN, SampleFilter, SkipReason
from holdfast.learn.examples import ImitationConfig, imitate, portions, sequences
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.tokens import END, prompt, render
from tests.learn.attempts import attempt, call, signal

torch.set_num_threads(1)
PAIRS = (("one", "eins"), ("two", "zwei"), ("three", "drei"))


def dialogue(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_a_small_model_learns_a_few_dialogues_by_heart() -> None:
    model = Transformer(ModelShape(width=32, layers=2, heads=2, context=64), seed=0)
    samples = sequences(render(dialogue(question, answer)) for question, answer in PAIRS)
    trainer = Trainer(model, Settings(pace=OptimizerConfig(learning_rate=1e-2)), seed=0)
    for _ in range(50):
        update = trainer.step(samples)
    assert update.terms["clone"] < 0.02
    for question, answer in PAIRS:
        ids = prompt([{"role": "user", "content": question}])
        while ids[-1] != END and len(ids) < 40:
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert bytes(ids[len(prompt([{"role": "user", "content": question}])) : -1]).decode() == answer


def test_only_what_the_assistant_says_weighs_anything() -> None:
    samples = sequences([render(dialogue("q", "a"))])
    assert samples.weights is not None
    assert samples.decided.tolist() == [False, False, False, False, True, True]  # <user> q <end> <assistant> a <end>
    assert samples.weights.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def test_sequences_weigh_as_much_as_they_are_told() -> None:
    samples = sequences([([1, 2], [False, True]), ([3, 4, 5], [False, True, True])], weights=[0.5, 2.0])
    assert samples.weights is not None and samples.weights.tolist() == [0.0, 0.5, 0.0, 2.0, 2.0]
    assert samples.bounds.tolist() == [0, 2, 5]


def test_long_sequences_are_left_out_whole() -> None:
    samples = sequences([([1, 2], [False, True]), ([3, 4, 5], [False, True, True])], max_tokens=2)
    assert samples.ids.tolist() == [1, 2]
    with pytest.raises(BadInput, match="too long"):
        sequences([([1, 2, 3], [False, True, True])], max_tokens=2)


def test_the_best_attempts_are_imitated_by_what_they_were_worth() -> None:
    calls = call([1], [2, 3], sampling={"temperature": 0.5}, forced=[1])
    attempts = [
        attempt("good", calls, signals=[signal(1.0)]),
        attempt("fair", calls, signals=[signal(0.5)]),
        attempt("bad", calls, signals=[signal(0.0)]),
    ]
    samples, reasons = imitate(attempts, SampleFilter(), ImitationConfig(least=0.5, temperature=0.25))
    assert samples is not None and samples.weights is not None
    assert samples.rollouts == ("good", "fair")
    assert samples.weights.tolist() == pytest.approx([0, 1, 0, 0, exp(-2), 0])
    assert samples.rules == (PLAIN,) and samples.logprobs is None  # however it was sampled
    assert reasons == {"good": None, "fair": None, "bad": SkipReason.ZERO_WEIGHT}


def test_demonstrations_need_neither_rewards_nor_log_probs() -> None:
    calls = call([1], [2], logprobs=None, sampling={"temperature": 0.0})
    samples, reasons = imitate([attempt("a", calls, signals=None)], SampleFilter())
    assert samples is not None and samples.tokens == 1 and reasons == {"a": None}


def test_other_splits_and_faults_are_never_imitated() -> None:
    calls = call([1], [2])
    attempts = [attempt("a", calls, split=Split.TEST), attempt("b", calls, state=RolloutState.DEAD)]
    assert imitate(attempts, SampleFilter()) == (None, {"a": SkipReason.WRONG_SPLIT, "b": SkipReason.FAULT})


def test_portions_pass_over_everything_and_can_be_taken_up_again() -> None:
    samples = sequences([([i, i], [False, True]) for i in range(6)])
    stream = portions(samples, 2, seed=1)
    first = [next(stream).ids[::2].tolist() for _ in range(6)]
    for a_pass in (first[:3], first[3:]):
        assert sorted(number for portion in a_pass for number in portion) == list(range(6))
    assert first[:3] != first[3:]
    later = portions(samples, 2, seed=1, start=4)
    assert [next(later).ids[::2].tolist() for _ in range(2)] == first[4:]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadInput, match="2 ids, 1 marks"):
        sequences([([1, 2], [True])])
    with pytest.raises(BadInput, match="weight"):
        sequences([([1, 2], [False, True])], weights=[float("nan")])
    with pytest.raises(BadInput, match="portions"):
        next(portions(sequences([([1, 2], np.array([False, True]).tolist())]), 0, seed=0))
