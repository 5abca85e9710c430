"""One endpoint for all, and one run that was accepted: most stories begin with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.api.results import result_of
from holdfast.api.stored import StoreAddress
from tests.api import scene
from tests.endpoint import Endpoint, serving


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        found.reply = scene.reply
        yield found


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "training" / "store.sqlite"


@dataclass(frozen=True)
class Improved:
    """A store with one accepted run, and the call that made it."""

    store: Path
    result: hf.Result
    call: dict[str, Any]


@pytest.fixture(scope="session")
def accepted(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Improved:
    store = tmp_path_factory.mktemp("accepted") / "training" / "store.sqlite"
    call = scene.short(endpoint, store, budget=hf.Budget(rollouts=700))
    call |= {"scorers": [hf.Scorer(scene.correct, gate=True), hf.Scorer(scene.brief, weight=0.1)]}
    call |= {"algorithm": hf.Candidates([scene.GOOD, scene.POOR])}
    return Improved(store, hf.improve(scene.agent, scene.questions(230), **call), call)


@pytest.fixture
def improved(accepted: Improved, tmp_path: Path) -> Improved:
    """The same in a copy of the store, to be changed at will."""
    folder = shutil.copytree(accepted.store.parent.parent, tmp_path / "copy")
    store = folder / "training" / "store.sqlite"
    run = hf.Run(StoreAddress(str(store)), accepted.result.run.id)
    with run.place.open() as opened:
        return Improved(store, result_of(opened, run), accepted.call | {"store": store})
