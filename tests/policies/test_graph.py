"""Decoding in strides, as on a GPU. Without one the same steps run uncaptured, and give what the CPU's own give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.policies.decoder import Decoder
from holdfast.policies.graph import Cuda
from holdfast.policies.sampling import Sampling
from holdfast.policies.tokens import END, THINK
from tests.policies.small import generate, recomputed, small

HOWS = [
    Sampling(max_tokens=21),
    Sampling(max_tokens=30, temperature=0.7, top_p=0.9),
    Sampling(max_tokens=9, temperature=0.0),
    Sampling(max_tokens=30, top_k=40, thinking=0),
    Sampling(max_tokens=30, thinking=3),
    Sampling(max_tokens=200, stop=("a", "b")),
    Sampling(
        max_tokens=50, stop=tuple(f"q{chr(last)}" for last in range(32, 127))
    ),  # ends of stops, hardly a whole one
]
PROMPTS = [[1], [1, 2, 3], list(b"a longer prompt than the others"), [7] * 100, [9] * 158, [5, 6], [8]]


@pytest.mark.parametrize("fixed", [False, True])
def test_strides_give_the_same_answers_as_single_steps(fixed: bool) -> None:
    model = small(favour={THINK: 3.0, END: 1.0})
    expected = generate(model, PROMPTS, HOWS, range(len(HOWS)))
    cuda = Cuda(model, 4, torch.device("cpu"), fixed=fixed)
    decoder = Decoder(model, slots=4, cuda=cuda)
    found = decoder.generate(PROMPTS, HOWS, range(len(HOWS)))
    assert [(c.ids, c.forced, c.finish) for c in found] == [(c.ids, c.forced, c.finish) for c in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    other = small(seed=5)
    decoder.load(other)
    assert [c.ids for c in decoder.generate(PROMPTS, HOWS, range(len(HOWS)))] == [
        c.ids for c in generate(other, PROMPTS, HOWS, range(len(HOWS)))
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_log_probs_are_those_of_training_up_to_bfloat16() -> None:
    model = small(favour={THINK: 3.0, END: 1.0})
    found = generate(model, PROMPTS * 20, HOWS * 20, range(20 * len(HOWS)), device="cuda", slots=64)
    assert np.mean([c.logprobs[0] for c in found]) < -0.5  # nothing so certain that anything would agree about it
    errors = []
    for prompt, how, completion in zip(PROMPTS * 20, HOWS * 20, found, strict=True):
        drawn = [place for place in range(len(completion.ids)) if place not in completion.forced]
        error = (recomputed(model, prompt, completion, how) - torch.tensor(completion.logprobs))[drawn]
        errors += error.abs().tolist()
    assert sum(errors) / len(errors) < 0.05
