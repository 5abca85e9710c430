"""Each kind of server, so that an attack on one is tried on all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect import endpoint
from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.collect.proxy import app as proxy
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.commands import Role
from holdfast.operate import app as room
from holdfast.operate.auth import digest
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.operate.room import listening

TOKEN = "hf_an-operators-own-token"
KEY = b"k" * 32
Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def file_store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh(), poll_s=0.01) as opened:
        yield opened


async def nobody(messages: Any, /, **sampling: Any) -> Any:
    raise AssertionError("no attack reaches a model")


@pytest.fixture(params=["endpoint", "proxy", "room"])
def serve(request: pytest.FixtureRequest, file_store: Store) -> Serve:
    """Starts the server, with limits of its connections."""

    def application() -> Any:
        if request.param == "endpoint":
            return endpoint.app(nobody, name="m", token=TOKEN)
        if request.param == "room":
            file_store.tokens.add("olga", Role.OPERATOR, digest(TOKEN), 0.0).result()
            return room.app(file_store)
        taking = routes(SpanReceiver(file_store, clock=lambda: 0.0), token=TOKEN, key=KEY)
        return proxy.app(file_store, [Upstream("http://127.0.0.1:9")], token=TOKEN, key=KEY, routes=taking)

    @contextmanager
    def started(**limits: Any) -> Iterator[str]:
        with listening(endpoint.server(application(), **limits)) as url:
            yield url

    return started


def resident_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
