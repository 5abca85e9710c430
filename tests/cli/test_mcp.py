"""`holdfast control mcp` as a client of the SDK starts it: a process of its own, spoken to over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from holdfast.cli.serve import TOKEN
from holdfast.contracts.commands import Role
from holdfast.operate.auth import digest, mint
from holdfast.store.store import open_store
from tests.cli.conftest import At, Cli, first_line, running
from tests.cli.test_judge import even, jsonl, known
from tests.endpoint import completion, serving

PATIENCE_S = 120.0


def started(store: Path, *more: str, **environment: str) -> Client:
    words = ["-m", "holdfast.cli", "mcp", "--store", str(store), *more]
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # the SDK passes none on
    parameters = StdioServerParameters(command=sys.executable, args=words, env={**path, **environment})
    return Client(stdio_client(parameters), read_timeout_seconds=PATIENCE_S)


def said(result: Any) -> str:
    return "".join(one.text for one in result.content)


@pytest.mark.timeout(300)
async def test_a_client_judges_looks_and_with_a_token_orders(tmp_path: Path) -> None:
    path, token = tmp_path / "store.sqlite", mint()
    with open_store(str(path)) as store:
        store.tokens.add("ann", Role.OPERATOR, digest(token), time.time(), None).result()
        about: dict[str, Any] = {"kind": "optimize", "model_ref": "none", "settings": {}, "salt": "x"}
        begun = store.runs.begin(**about, who="test", now=time.time()).result()
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


@pytest.mark.timeout(300)
async def test_a_client_hears_the_judge_that_was_configured_and_how_far_it_is_believed(
    cli: Cli, tmp_path: Path, at: At
) -> None:
    labels = jsonl(tmp_path / "l.jsonl", *known())
    with serving() as endpoint:
        endpoint.reply = lambda body: completion(even(body))
        there = ("--judge", "even", "--base-url", endpoint.url)
        for name in ("relevance", "safety"):
            words = ("judge", "calibrate", "--criterion", name, "--labels", labels, *there, *at)
            (await asyncio.to_thread(cli, *words)).done()
        async with started(Path(at[1]), *there) as client:
            told = await client.call_tool("judge_artifact", {"task": "an even number", "output": "7."})
    assert told.structured_content is not None
    by = {one["criterion"]: one for one in told.structured_content["opinions"]}
    assert by["relevance@1"]["holds"] is by["safety@1"]["holds"] is False and by["safety@1"]["confidence"] > 0.9
    assert by["correctness@1"]["holds"] is None and by["correctness@1"]["judgements"][0]["grade"] == "no"
    assert "holdfast reward judge calibrate --judge even --criterion correctness" in by["correctness@1"]["remedy"]


def test_a_judge_without_an_address_is_refused_before_anything_is_served(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert "--judge wise: needs an endpoint; give --base-url" in cli("mcp", "--judge", "wise").refusal


@pytest.mark.timeout(300)
def test_a_call_that_a_parser_would_choke_on_is_answered(tmp_path: Path) -> None:
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    outputs = {2: r'"\ud800"', 3: "[" * 900 + "]" * 900}
    call = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"judge_artifact","arguments":%s}}'
    sent = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who})]
    sent.append(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    sent += [call % (n, '{"task": "x", "output": ' + output + "}") for n, output in outputs.items()]
    with running("mcp", "--store", tmp_path / "none.sqlite", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("\n".join(sent) + "\n")
        process.stdin.flush()
        told = {one["id"]: one["result"] for one in (json.loads(first_line(process)) for _ in range(3))}
        process.stdin.close()
    assert not told[2].get("isError") and "opinions" in told[2]["content"][0]["text"]
    message = told[3]["content"][0]["text"]
    assert message.startswith("judge_artifact.output: ") and "is not of type 'string'" in message


def test_what_is_not_installed_is_said_in_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    assert "pip install 'holdfast[mcp]'" in cli("mcp").refusal
