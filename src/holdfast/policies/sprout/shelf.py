"""Finding a local model by name: one of those in the package, or a folder of weights."""

from __future__ import annotations

from pathlib import Path

from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import Transformer
from holdfast.policies.weights import Manifest, transformer

SHELF = Path(__file__).parent
NAMES = ("sprout", "sprout-weak")


def folder_of(name: str) -> Path:
    """Where the model of this name, or at this path, lies."""
    if name in NAMES:
        return SHELF / name
    folder = Path(name)
    if not folder.is_dir():
        raise BadInput(
            f"local model {name!r}",
            why="is neither in the package nor a folder",
            remedy=f"use {' or '.join(NAMES)}, or the folder of a checkpoint",
        )
    return folder


def load(name: str, *, device: str = "cpu") -> tuple[Transformer, Manifest]:
    return transformer(folder_of(name), device=device)


def card() -> str:
    """What the models in the package can do, as it was measured."""
    return (SHELF / "card.md").read_text(encoding="utf-8")
