"""Finds a model in Hugging Face's format by name: one of those in the package, or a folder.

Loading it is `policies.hub`'s task: `hub.load(folder_of("tiny-tools"))`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.contracts.errors import BadInput

MODELS = Path(__file__).parent
NAMES = ("tiny-tools",)
CONFIG, CARD = "config.json", "README.md"


def folder_of(name: str | Path) -> Path:
    """The folder of the model with this name, or at this path."""
    if str(name) in NAMES:
        return _complete(MODELS / str(name), remedy="install the package again, or give a folder")
    return _complete(Path(name), remedy=f"use {' or '.join(NAMES)}, or the folder of a downloaded model")


def card(name: str) -> str:
    """What a packaged model can do, as it was measured."""
    return (folder_of(name) / CARD).read_text(encoding="utf-8")


def _complete(folder: Path, *, remedy: str) -> Path:
    if not (folder / CONFIG).is_file():
        why = f"has no {CONFIG}" if folder.is_dir() else "is neither in the package nor a folder"
        raise BadInput(f"model {folder.name!r}", why=why, remedy=remedy)
    return folder
