"""Finding a local model by name: one of those in the package, or a folder; ours, or in Hugging Face's format."""

from __future__ import annotations

from pathlib import Path

from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import Transformer
from holdfast.policies.weights import Manifest, transformer

HERE = Path(__file__).parent
PACKAGED = {
    "sprout": HERE / "sprout" / "sprout",
    "sprout-weak": HERE / "sprout" / "sprout-weak",
    "tiny-tools": HERE / "models" / "tiny-tools",  # in Hugging Face's format
}
NAMES = tuple(PACKAGED)


def folder_of(name: str | Path) -> Path:
    """Where the model of this name, or at this path, lies."""
    if str(name) in PACKAGED:
        return PACKAGED[str(name)]
    folder = Path(name)
    if not folder.is_dir():
        raise BadInput(
            f"local model {str(name)!r}",
            why="is neither in the package nor a folder",
            remedy=f"use {', '.join(NAMES)}, or the folder of a model or a checkpoint",
        )
    return folder


def load(name: str, *, device: str = "cpu") -> tuple[Transformer, Manifest]:
    """One of our own; any model a policy names is loaded by `policies.loading`."""
    return transformer(folder_of(name), device=device)


def card(name: str = "sprout") -> str:
    """What a model of the package can do, as it was measured."""
    folder = folder_of(name)
    own = folder / "README.md"
    return (own if own.is_file() else folder.parent / "card.md").read_text(encoding="utf-8")
