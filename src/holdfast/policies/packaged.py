"""The models of the package by name, for whoever only asks whether a name is one: PyTorch is not loaded here."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
PACKAGED = {
    "sprout": HERE / "sprout" / "sprout",
    "sprout-weak": HERE / "sprout" / "sprout-weak",
    "tiny-tools": HERE / "models" / "tiny-tools",  # in Hugging Face's format
}
NAMES = tuple(PACKAGED)
