"""`holdfast mcp` as a client of the SDK starts it: a process of its own, spoken to over stdin and stdout."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from holdfast.cli.mcp import TOKEN
from holdfast.contracts.access import Role
from holdfast.operate.auth import digest, mint
from holdfast.store.store import open_store
from tests.cli.conftest import Cli

PATIENCE_S = 120.0


def started(store: Path, **environment: str) -> Client:
    words = ["-m", "holdfast.cli", "mcp", "--store", str(store)]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environment)
    return Client(stdio_client(parameters), read_timeout_seconds=PATIENCE_S)


def said(result: Any) -> str:
    return "".join(one.text for one in result.content)


@pytest.mark.timeout(300)
async def test_a_client_judges_looks_and_with_a_token_orders(tmp_path: Path) -> None:
    path, token = tmp_path / "store.sqlite", mint()
    with open_store(str(path)) as store:
        store.tokens.add("ann", Role.OPERATOR, digest(token), time.time(), None).result()
        begun = store.runs.begin(
            kind="optimize", model_ref="none", settings={}, salt="x", who="test", now=time.time()
        ).result()
    async with started(path) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "judge_artifact" in names and not any(name.startswith("control_") for name in names)
        told = await client.call_tool("judge_artifact", {"task": "2 + 2?", "output": "5", "expected": "4"})
        assert told.structured_content is not None and not told.is_error
        refused = await client.call_tool("control_cancel", {"id": "1", "subject": begun.id, "why": "no token"})
        assert refused.is_error and said(refused).startswith("control_cancel: is for operators")
    async with started(path, **{TOKEN: token}) as client:
        assert "control_cancel" in [tool.name for tool in (await client.list_tools()).tools]
        await client.call_tool("control_pause", {"id": "2", "subject": begun.id, "why": "a test"})
        shown = await client.call_tool("query_runs", {"run": begun.id})
        assert shown.structured_content is not None and shown.structured_content["run"]["wanted"] == "paused"
    with open_store(str(path)) as store:
        assert [one.who for one in store.ledger.entries() if one.kind == "command"] == ["ann"]


def test_what_is_not_installed_is_said_in_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    told = cli("mcp")
    assert told.code == 2 and "pip install 'holdfast[mcp]'" in told.err and len(told.err.splitlines()) == 1
