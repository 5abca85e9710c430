"""A store where the engine makes no difference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.store.store import Store, open_store
from tests.conftest import Files


@pytest.fixture
def file_store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh(), poll_s=0.01) as opened:
        yield opened
