"""What may be drawn and with which probability, by hand; chance is the answer's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.sampling import Sampling, SamplingRules, draw, follow, log_probs, uniforms
from holdfast.policies.tokens import END, THINK, UNTHINK

LOGITS = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.65}, [4 / 7, 3 / 7, 0, 0]),  # 0.4 is not enough, 0.7 is
        ({"top_p": 0.4}, [1, 0, 0, 0]),  # 0.4 is just enough
        ({"top_p": 0.01}, [1, 0, 0, 0]),  # one token is always left
        ({"temperature": 0.5}, [0.16 / 0.30, 0.09 / 0.30, 0.04 / 0.30, 0.01 / 0.30]),  # squared
        ({"temperature": 0.0}, [0.4, 0.3, 0.2, 0.1]),  # greedy: recorded at temperature 1
        ({"top_k": 3, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),  # top-p counts within the three: 4/9, then 7/9
        ({"banned": torch.tensor([True, False, False, False]), "top_k": 2}, [0, 0.6, 0.4, 0]),
        ({"top_k": 1, "chosen": torch.tensor(1)}, [4 / 7, 3 / 7, 0, 0]),  # what was drawn stays in
    ],
)
def test_probabilities_by_hand(how: dict[str, object], expected: list[float]) -> None:
    found = log_probs(LOGITS, **how).exp()  # type: ignore[arg-type]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_rows_may_each_have_their_own_sampling() -> None:
    found = log_probs(
        LOGITS.expand(3, 4), torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0, 0, 2]), torch.tensor([0.65, 1.0, 1.0])
    )
    for row, how in enumerate(({"top_p": 0.65}, {"temperature": 0.5}, {"top_k": 2})):
        torch.testing.assert_close(found[row], log_probs(LOGITS, **how))  # type: ignore[arg-type]


def test_gradients_reach_only_what_could_be_drawn() -> None:
    logits = LOGITS.clone().requires_grad_()
    log_probs(logits, top_k=2)[0].backward()
    np.testing.assert_allclose(logits.grad.numpy(), [3 / 7, -3 / 7, 0, 0], atol=1e-6)  # type: ignore[union-attr]


def test_drawing_inverts_the_distribution_function() -> None:
    logps = LOGITS.expand(6, 4).clone()
    logps[5] = torch.tensor([-torch.inf, 0.0, -torch.inf, -torch.inf])
    uniform = torch.tensor([0.0, 0.39, 0.41, 0.69, 1 - 2**-23, 1 - 2**-23])
    assert draw(logps, uniform).tolist() == [0, 0, 1, 1, 3, 1]


def test_the_stream_of_a_key_is_its_own() -> None:
    assert uniforms(5, 8).tolist() == uniforms(5, 20)[:8].tolist() != uniforms(6, 8).tolist()
    assert uniforms(5, 10_000).max() < 1
    with pytest.raises(BadInput, match="key = -1"):
        uniforms(-1, 3)


def test_any_mark_ends_a_thought() -> None:
    tokens = torch.tensor([THINK, 65, UNTHINK, END, 65])
    inside, left = follow(tokens, torch.tensor([False, True, True, True, False]), torch.full((5,), 9))
    assert inside.tolist() == [True, True, False, False, False]
    assert left.tolist() == [9, 8, 9, 9, 9]


def test_rows_that_all_ask_for_the_same_need_no_tensors() -> None:
    plain = np.array([Sampling().column] * 3, np.float32).T
    assert SamplingRules.of(plain, 264, torch.device("cpu")) == SamplingRules(1.0, None, 0, 1.0, None)
    every = SamplingRules.of(plain, 264, torch.device("cpu"), every=True)
    logits, uniform = torch.randn(3, 264, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.5, 0.9])
    for rules in (every, every.first(3, filtered=False), SamplingRules.of(plain, 264, torch.device("cpu"))):
        tokens, logps = rules.decide(logits, uniform, torch.tensor([False, True, False]))
        assert tokens[1] == UNTHINK and logps[1] == 0
        torch.testing.assert_close(logps[0], torch.log_softmax(logits[0], -1)[tokens[0]])


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": math.inf}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"max_tokens": 0},
     {"stop": ("",)}, {"thinking": -1}, {"temperature": math.nan}, {"temperature": 1e300}, {"temperature": "x"},
     {"temperature": True}, {"top_p": None}, {"stop": ("\ud800",)}, {"stop": (7,)},
     *({name: value} for name in ("top_k", "max_tokens", "thinking") for value in (True, 1.0, 2**31, 10**5000)),
    ],
)  # fmt: skip
def test_impossible_samplings_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"sampling.{next(iter(wrong))} = "):
        Sampling(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1e-50, 1e-40, 9.9e-4])
def test_a_temperature_that_32_bits_cannot_divide_by_is_refused(temperature: float) -> None:
    with pytest.raises(BadInput, match=r"sampling.temperature = .*: is too near to 0; give 0: the likeliest token"):
        Sampling(temperature=temperature)
    assert torch.isfinite(log_probs(torch.tensor([-1e4, 1e4]), Sampling(temperature=1e-3).temperature)).all()
