"""A sandbox for the whole session, where this machine can have one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.coding.sandbox import NoSandbox, Sandbox
from experiments.coding.tasks import LIMITS, RepairTask, make


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    try:
        box = Sandbox(LIMITS).__enter__()
    except NoSandbox as error:
        pytest.skip(str(error))
    yield box
    box.close()


@pytest.fixture(scope="session")
def some(sandbox: Sandbox) -> tuple[RepairTask, ...]:
    """A few tasks."""
    return make(6, seed=5, sandbox=sandbox)
