"""One endpoint for all, and one run that was accepted: most stories begin with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
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
    call: dict[str, Any] = {
        "name": "support",
        "scorers": [hf.Scorer(scene.correct, gate=True), hf.Scorer(scene.brief, weight=0.1)],
        "policy": hf.Prompt(system=scene.FAIR),
        "model": "tiny",
        "base_url": endpoint.url,
        "algorithm": hf.Candidates([scene.GOOD, scene.POOR]),
        "budget": hf.Budget(rollouts=700),
        "store": store,
    }
    return Improved(store, hf.improve(scene.agent, scene.questions(230), **call), call)


@pytest.fixture
def improved(accepted: Improved, tmp_path: Path) -> Improved:
    """The same in a copy of the store, to be changed at will."""
    folder = shutil.copytree(accepted.store.parent.parent, tmp_path / "copy")
    store = folder / "training" / "store.sqlite"
    call = accepted.call | {"store": store}
    from holdfast.api.results import result_of

    run = hf.Run(_place(store), accepted.result.run.id)
    with run.place.open() as opened:
        return Improved(store, result_of(opened, run), call)


def _place(store: Path) -> Any:
    from holdfast.api.stored import StoreAddress

    return StoreAddress(str(store))
