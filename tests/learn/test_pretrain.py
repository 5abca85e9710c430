"""A language model from nothing: conversations are packed whole, the loss falls, and the seed decides the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.learn.pretrain import Pretraining, pack, pretrain
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.tokens import ASSISTANT, END, SYSTEM, USER, render

SHAPE = ModelShape(width=16, layers=1, heads=2, context=24)
Conversation = tuple[Sequence[int], Sequence[bool]]


def said(question: str, answer: str) -> Conversation:
    return render([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


def test_conversations_lie_one_after_the_other_until_the_next_does_not_fit() -> None:
    """<user>a<end><assistant>b<end> has 6 tokens, of which the last two are decided: two fit into 13."""
    ids, decided = pack([said("a", "b"), said("c", "d"), said("e", "f")], 13)
    a, b, c, d, e, f = b"abcdef"
    assert ids.tolist() == [
        [USER, a, END, ASSISTANT, b, END, USER, c, END, ASSISTANT, d, END, END],
        [USER, e, END, ASSISTANT, f, END, *[END] * 7],
    ]
    assert decided.astype(int).tolist() == [[0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1, *[0] * 7]]


def test_a_conversation_may_fill_its_row_and_must_not_be_longer() -> None:
    ids, _ = pack([said("a", "b")] * 2, 6)
    assert ids.shape == (2, 6)
    with pytest.raises(BadInput, match="a conversation of 6 tokens: does not fit into a row of 5"):
        pack([said("a", "b")], 5)


words = st.text("xyz", max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=12), st.integers(18, 40))
def test_none_is_cut_none_is_lost_and_a_row_begins_with_a_beginning(spoken: list[tuple[str, str]], width: int) -> None:
    told = [said(*words) for words in spoken]
    ids, decided = pack(told, width)
    assert ids.shape == decided.shape and ids.shape[1] == width
    assert set(ids[:, 0].tolist()) == {USER}
    read: list[Conversation] = []
    for row, marks in zip(ids.tolist(), decided.tolist(), strict=True):
        starts = [place for place, token in enumerate(row) if token == USER]
        for start, stop in zip(starts, [*starts[1:], width], strict=True):
            end = start + 1 + [i for i, token in enumerate(row[start + 1 : stop]) if token == END][1]
            read.append((row[start : end + 1], marks[start : end + 1]))
            assert not any(marks[end + 1 : stop])
    assert read == told


def lines(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """A corpus that can be learnt: the answer repeats the question."""
    return pack([said(letter, letter) for letter in "abc" * count], SHAPE.context)


def trained(seed: int = 0, **pace: float) -> tuple[Transformer, float, list[tuple[int, float]]]:
    model, seen = Transformer(SHAPE, seed=0), list[tuple[int, float]]()
    how = Pretraining(**{"steps": 150, "batch": 4, "learning_rate": 2e-2, "warm_up": 10, "seed": seed, **pace})  # type: ignore[arg-type]
    loss = pretrain(model, *lines(), how, observe=lambda step, loss: seen.append((step, loss)))
    return model, loss, seen


def surprise(model: Transformer, ids: np.ndarray, decided: np.ndarray) -> float:
    """Nats per decided token."""
    rows = torch.from_numpy(ids).long()
    with torch.no_grad():
        chances = model(rows[:, :-1]).log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
    return float(-chances[torch.from_numpy(decided)[:, 1:]].mean())


def test_it_lowers_the_loss_and_tells_of_it_every_hundred_steps() -> None:
    before = surprise(Transformer(SHAPE, seed=0), *lines())
    model, loss, seen = trained()
    assert [step for step, _ in seen] == [100, 150]
    assert seen[1][1] == loss < seen[0][1] < before  # each is the mean of the hundred steps before
    assert before > 4.0 > 1.0 > surprise(model, *lines())
    assert not model.training


def test_the_same_seed_gives_the_same_parameters_and_another_gives_others() -> None:
    one, same, other = (trained(seed=seed, steps=5)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_only_what_was_decided_is_learnt() -> None:
    """Questions that are never answered by `z` but often contain it do not make `z` any likelier as an answer."""
    ids, decided = pack([said("z", "a")] * 20, SHAPE.context)
    model = Transformer(SHAPE, seed=0)
    pretrain(model, ids, decided, Pretraining(steps=40, batch=4, learning_rate=2e-2, warm_up=1))
    with torch.no_grad():
        chances = model(torch.tensor([[USER, ord("z"), END, ASSISTANT]]))[0].softmax(-1)
    assert chances[-1, ord("a")] > 0.9
    assert chances[0, ord("z")] < 0.1  # after <user> there always came z, and nobody learnt it


@pytest.mark.parametrize(
    ("ids", "decided"), [((4, 24), (4, 23)), ((4, 24), (3, 24)), ((24,), (24,)), ((1, 4, 24), (1, 4, 24))]
)
def test_bad_shapes_are_refused(ids: tuple[int, ...], decided: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="must be two arrays"):
        pretrain(Transformer(SHAPE, seed=0), np.zeros(ids, np.int16), np.ones(decided, bool), Pretraining(steps=1))


@pytest.mark.parametrize(("rows", "steps", "batch"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_nothing_to_learn_from_or_no_time_is_refused(rows: int, steps: int, batch: int) -> None:
    ids = np.full((rows, 24), SYSTEM, np.int16)
    with pytest.raises(BadInput):
        pretrain(Transformer(SHAPE, seed=0), ids, np.ones((rows, 24), bool), Pretraining(steps=steps, batch=batch))


def test_a_corpus_in_which_nothing_is_decided_is_refused_before_the_parameters_are_spoilt() -> None:
    ids, decided = lines()
    model = Transformer(SHAPE, seed=0)
    with pytest.raises(BadInput, match="nothing is decided"):
        pretrain(model, ids, np.zeros_like(decided), Pretraining(steps=1))
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
