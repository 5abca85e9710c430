"""How sprout is made: the same recipe gives the same ground in any number of processes, and something grows on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import folder_of
from holdfast.policies.tokens import END, SYSTEM
from holdfast.policies.weights import read
from holdfast.workloads.pretraining import PORTION, RECIPES, PretrainRecipe, ground, grow
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.tasks import EASY

TINY = PretrainRecipe(
    kind="strong",
    conversations=200,
    steps=60,
    batch=1,
    learning_rate=2e-2,
    shape=ModelShape(width=32, layers=2, heads=2, context=832),
)


def test_the_ground_is_the_same_however_many_processes_made_it() -> None:
    recipe = replace(TINY, conversations=PORTION + 100)
    alone, together = (ground(recipe, processes=processes) for processes in (1, 2))
    assert alone[2] == together[2]
    assert np.array_equal(alone[0], together[0]) and np.array_equal(alone[1], together[1])


def test_the_ground_holds_every_conversation_and_nothing_else() -> None:
    ids, decided, _ = ground(TINY, processes=1)
    told, marked = corpus("strong", "train", 0, 200)
    assert ids.shape == decided.shape == (len(ids), 832)
    assert (ids == SYSTEM).sum() == 200  # each begins with its instructions
    assert int(decided.sum()) == sum(map(sum, marked))
    assert ids[0, : len(told[0])].tolist() == told[0]


@pytest.mark.parametrize(
    "change",
    [{}, {"kind": "weak"}, {"conversations": 201}, {"mix": (EASY,)}, {"seed": 1}],
    ids=["nothing", "kind", "conversations", "mix", "seed"],
)
def test_the_hash_is_of_what_lies_in_it(change: dict[str, Any]) -> None:
    """The seed decides what grows, and not what it grows on."""
    is_same = not change or "seed" in change
    assert (ground(replace(TINY, **change), processes=1)[2] == ground(TINY, processes=1)[2]) is is_same


def test_a_kind_that_nobody_demonstrates_is_refused() -> None:
    with pytest.raises(BadInput, match="kind 'medium'"):
        ground(replace(TINY, kind="medium"), processes=1)


def test_a_tiny_model_grows_on_it() -> None:
    seen: list[tuple[int, float]] = []
    grown = grow(TINY, processes=1, observe=lambda step, loss: seen.append((step, loss)))
    ids, decided, sha256 = ground(TINY, processes=1)
    assert (grown.tokens, grown.action_tokens, grown.data_sha256) == (ids.size, int(decided.sum()), sha256)
    assert seen == [(60, grown.loss)]
    seed = Transformer(TINY.shape, seed=TINY.seed)
    assert surprise(seed, ids[:8], decided[:8]) > 5.0  # ln 264 = 5.6 nats is to know nothing
    assert surprise(grown.model, ids[:8], decided[:8]) < grown.loss < 5.0  # the loss is the mean of all sixty steps


@torch.no_grad()
def surprise(model: Transformer, ids: np.ndarray, decided: np.ndarray) -> float:
    """Nats per decided token."""
    rows = torch.from_numpy(ids).long()
    chances = model(rows[:, :-1]).log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
    return float(-chances[torch.from_numpy(decided)[:, 1:]].mean())


def test_what_is_left_of_a_row_is_ends_that_nobody_decided() -> None:
    ids, decided, _ = ground(replace(TINY, conversations=1), processes=1)
    length = len(corpus("strong", "train", 0, 1)[0][0])
    assert set(ids[0, length:].tolist()) == {END} and not decided[0, length:].any()


@pytest.mark.parametrize(("name", "kind"), [("sprout", "strong"), ("sprout-weak", "weak")])
def test_the_shipped_weights_were_grown_on_what_this_code_makes(name: str, kind: str) -> None:
    notes: Any = read(folder_of(name)).notes
    recipe = RECIPES[kind]
    assert (notes["recipe"]["steps"], notes["recipe"]["conversations"]) == (recipe.steps, recipe.conversations)
    first = replace(recipe, conversations=PORTION)
    assert ground(first, processes=1)[2] == notes["first_portion"]
