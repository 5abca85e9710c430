"""Trains sprout from scratch on conversations from our own generator.

`sprout` learns from strong demonstrations, `sprout-weak` from weak ones. Both are measured as agents
(`tooluse.agent.examine`); the results are on their card. The models are stored in `policies.sprout`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from inspect import getfile
from pathlib import Path

import numpy as np

from holdfast.learn.pretrain import Pretraining, pack, pretrain
from holdfast.policies.lm import SPROUT, ModelShape, Transformer
from holdfast.policies.tokens import render
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.tasks import HARD, LONG, USUAL, Dials
from holdfast.workloads.tooluse.tools import Toolbox
from holdfast.workloads.tooluse.wordings import TrainWordings

PORTION = 4000  # conversations that one process makes at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRecipe:
    """Everything that decides what the model becomes."""

    kind: str  # "strong" or "weak"
    conversations: int = 2_400_000
    steps: int = 15_000
    batch: int = 192
    learning_rate: float = 3e-3
    seed: int = 0
    shape: ModelShape = SPROUT
    mix: tuple[Dials, ...] = (USUAL,)  # portions of the corpus take turns


FREE, FREE_LONG = replace(USUAL, prompts="free"), replace(LONG, prompts="free", think=0.7)
THINKING = replace(LONG, think=0.7)
RECIPES = {
    "strong": PretrainRecipe(
        kind="strong", mix=(USUAL, FREE, THINKING, USUAL, FREE, HARD, FREE, USUAL, FREE_LONG, THINKING)
    ),
    "weak": PretrainRecipe(
        kind="weak",
        conversations=1_600_000,
        steps=8_000,
        mix=(USUAL, FREE, USUAL, THINKING, USUAL, FREE, HARD, FREE_LONG),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    model: Transformer
    loss: float  # nats per decided token, over the last hundred steps
    tokens: int  # of the corpus
    action_tokens: int  # of those: what the assistant says
    data_sha256: str


def ground(recipe: PretrainRecipe, *, processes: int | None = None) -> tuple[np.ndarray, np.ndarray, str]:
    """The packed corpus and its hash; both are independent of the number of processes."""
    firsts = range(0, recipe.conversations, PORTION)
    sizes = [min(PORTION, recipe.conversations - first) for first in firsts]
    make = partial(_portion, recipe.kind, recipe.shape.context)
    dials = [recipe.mix[place % len(recipe.mix)] for place in range(len(sizes))]
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        parts = list(map(make, dials, firsts, sizes))
    else:
        with ProcessPoolExecutor(processes) as pool:
            parts = list(pool.map(make, dials, firsts, sizes))
    ids, decided = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ids, decided, _sha256(ids, decided)


def grow(
    recipe: PretrainRecipe,
    *,
    device: str = "cpu",
    processes: int | None = None,
    observe: Callable[[int, float], None] = lambda step, loss: None,
) -> Grown:
    ids, decided, sha256 = ground(recipe, processes=processes)
    model = Transformer(recipe.shape, seed=recipe.seed)
    settings = Pretraining(steps=recipe.steps, batch=recipe.batch, learning_rate=recipe.learning_rate, seed=recipe.seed)
    loss = pretrain(model, ids, decided, settings, device=device, observe=observe)
    return Grown(model=model, loss=loss, tokens=ids.size, action_tokens=int(decided.sum()), data_sha256=sha256)


def plant(
    recipe: PretrainRecipe,
    folder: Path,
    *,
    created_at: float,
    device: str = "cpu",
    processes: int | None = None,
    observe: Callable[[int, float], None] = lambda step, loss: None,
) -> Manifest:
    """Trains a model and saves it in half precision, with a manifest of how it was made."""
    began = time.monotonic()
    grown = grow(recipe, device=device, processes=processes, observe=observe)
    manifest = Manifest(
        kind="transformer",
        shape=asdict(recipe.shape),
        step=recipe.steps,
        code=code_sha256(),
        data=grown.data_sha256,
        seeds={"model": recipe.seed, "order": recipe.seed},
        created_at=created_at,
        notes={
            "recipe": asdict(recipe),
            "first_portion": _sha256(*_portion(recipe.kind, recipe.shape.context, recipe.mix[0], 0, PORTION)),
            "loss": round(grown.loss, 5),
            "tokens": grown.tokens,
            "decided": grown.action_tokens,
            "device": device,
            "seconds": round(time.monotonic() - began, 1),
        },
    )
    return save_transformer(folder, grown.model.cpu(), manifest, half=True)


def code_sha256() -> str:
    """The hash of the files that decide what the model becomes."""
    parts = (code_sha256, pretrain, Transformer, render, corpus, Dials, TrainWordings, Toolbox)
    return hashlib.sha256(b"".join(Path(getfile(part)).read_bytes() for part in parts)).hexdigest()


def _sha256(ids: np.ndarray, decided: np.ndarray) -> str:
    return hashlib.sha256(ids.tobytes() + np.packbits(decided).tobytes()).hexdigest()


def _portion(kind: str, width: int, dials: Dials, first: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The packed conversations; the rare one that is longer than a row is left out."""
    pairs = zip(*corpus(kind, "train", first, n, dials), strict=True)
    return pack((pair for pair in pairs if len(pair[0]) <= width), width)
