"""Features: a value that says what is on, and nothing else."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest

from holdfast.contracts.flag import ALL_OFF, ALL_ON, Features


def test_all_are_on_unless_somebody_says_otherwise() -> None:
    assert Features() == ALL_ON and all(asdict(ALL_ON).values()) and not any(asdict(ALL_OFF).values())


def test_a_snapshot_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        ALL_ON.judges = False  # type: ignore[misc]
