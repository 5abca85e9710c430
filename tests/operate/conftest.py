"""A store where the engine makes no difference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.store.filled import filled

LIVED_AT = 1_800_000_000.0  # when that life was last heard of


@pytest.fixture
def file_store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh(), poll_s=0.01) as opened:
        yield opened


@pytest.fixture(scope="session")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a long life behind it, to look at; see `tests.store.filled`."""
    path = filled(tmp_path_factory.mktemp("lived") / "store.db", 1_000, now=LIVED_AT)
    with open_store(path, poll_s=0.01) as opened:
        yield opened
