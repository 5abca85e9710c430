"""Answers come and go at any time, and each is what it would have been alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.decoder import Decoder, DecodeRequest
from holdfast.policies.sampling import Completion, Sampling
from tests.policies.small import generate, recomputed, small

HEAD = list(np.random.default_rng(0).integers(0, 256, 70))
HOW = Sampling(max_tokens=12)


def requests(count: int) -> list[DecodeRequest]:
    """Each with a beginning in common, and in fours the same throughout."""
    return [DecodeRequest(n, [*HEAD, *([n // 4] * (n % 3 if n < 4 else 5)), 7], HOW, n) for n in range(count)]


def test_answers_join_while_others_are_written() -> None:
    model, asked = small(), requests(14)
    alone = generate(model, [r.ids for r in asked], HOW, [r.key for r in asked])
    decoder = Decoder(model, slots=4)
    waiting, done = list(asked), dict[Any, Completion]()
    for _ in range(300):
        left = decoder.admit(waiting[:3])  # a few at a time
        waiting = left + waiting[3:]
        done.update(decoder.step())
        if len(done) == len(asked):
            break
    assert [done[n].ids for n in range(14)] == [completion.ids for completion in alone]
    assert decoder.busy == 0 and decoder.room == 4 and decoder.step() == []


def test_conversations_go_on_from_what_is_there() -> None:
    model, decoder = small(), None
    decoder = Decoder(model, slots=3)
    prompts = [[*HEAD, n] for n in range(3)]
    for turn in range(3):
        answers = decoder.generate(prompts, HOW, [turn * 10 + n for n in range(3)])
        for prompt, completion in zip(prompts, answers, strict=True):
            expected = recomputed(model, prompt, completion, HOW)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
        prompts = [[*p, *c.ids, 5, turn] for p, c in zip(prompts, answers, strict=True)]


def test_an_unwanted_answer_leaves_its_place() -> None:
    decoder = Decoder(small(), slots=2)
    assert decoder.admit(requests(3)) == requests(3)[2:]
    decoder.step()
    decoder.drop([0])
    assert (decoder.busy, decoder.room) == (1, 1)
    assert decoder.admit(requests(3)[2:]) == []
    done = dict[Any, Completion]()
    while decoder.busy:
        done.update(decoder.step())
    assert set(done) == {1, 2}


def test_new_weights_forget_the_old_ones() -> None:
    one, two = small(1), small(2)
    decoder = Decoder(one, slots=2)
    prompts = [r.ids for r in requests(2)]
    decoder.generate(prompts, HOW, [0, 1])
    decoder.load(two)
    assert [c.ids for c in decoder.generate(prompts, HOW, [0, 1])] == [
        c.ids for c in generate(two, prompts, HOW, [0, 1])
    ]
    decoder.admit(requests(1))
    with pytest.raises(BadInput, match="new weights: 1 answers are under way"):
        decoder.load(one)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fixed_layout_gives_the_same_bits_whatever_runs_beside(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        decoder = Decoder(small(), slots=5, fixed=True)
        asked = requests(10)
        together = decoder.generate([r.ids for r in asked], HOW, [r.key for r in asked])
        backwards = decoder.generate([r.ids for r in asked[::-1]], HOW, [r.key for r in asked[::-1]])[::-1]
        alone = [decoder.generate([r.ids], HOW, [r.key])[0] for r in asked]
    finally:
        torch.set_num_threads(before)
    assert together == backwards == alone


def test_a_decoder_needs_a_slot() -> None:
    with pytest.raises(BadInput, match="slots = 0"):
        Decoder(small(), slots=0)
