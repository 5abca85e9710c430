"""`holdfast traces`: out of one store and into another, through a file and through a collector."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette

from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Cli
from tests.collect.proxy.far import running, served
from tests.conftest import Files

CALL = ModelCall(
    model="m",
    messages=({"role": "user", "content": "Write to ada.lovelace@posteo.de"},),
    response={"role": "assistant", "content": "Done."},
    finish_reason="stop",
    prompt_ids=(1, 2),
    completion_ids=(3,),
    logprobs=(-0.25,),
)


@pytest.fixture
def told(files: Files) -> str:
    """A store with one finished rollout."""
    address = files.fresh()
    with open_store(address) as store:
        attempt = running(store)
        now = time.time()
        span = Span(seq=1, kind=SpanKind.MODEL, name="model.m", started_at=now, ended_at=now + 1, model=CALL)
        store.traces.add(attempt, [span], now=now).result()
        store.traces.score(attempt, [RewardTerm(name="s", value=0.5, source="rule:s")], now=now).result()
        store.queue.finish(attempt, AttemptState.SUCCEEDED, now=now, reward=0.5).result()
    return address


def taken(store: Store) -> tuple[float | None, list[Span]]:
    (run,) = store.runs.newest()
    assert run.kind == "otlp"
    (rollout,) = store.views.rollouts(run.id)
    assert rollout.status is RolloutState.SUCCEEDED
    (attempt,) = store.views.attempts(rollout.id)
    return rollout.reward, store.traces.spans(attempt.token)


def test_a_file_takes_spans_from_one_store_to_another(cli: Cli, told: str, files: Files, tmp_path: Path) -> None:
    file, other = tmp_path / "traces.jsonl", files.fresh()
    ran = cli("traces", "export", "run-1", "--to", file, "--store", told)
    assert (ran.code, ran.out) == (0, f"{file}: 2 spans\n")
    ran = cli("traces", "import", file, "--store", other, "--no-scrub", "--json")
    assert ran.json == {"file": str(file), "kept": 2, "refused": 0, "why": ""}
    with open_store(other) as store:
        reward, (_, model) = taken(store)
    assert reward == 0.5 and model.model == CALL


def test_what_is_taken_in_is_scrubbed_unless_told_otherwise(cli: Cli, told: str, files: Files, tmp_path: Path) -> None:
    file, other = tmp_path / "traces.jsonl", files.fresh()
    cli("traces", "export", "run-1/t1", "--to", file, "--store", told)
    assert "ada.lovelace@posteo.de" in file.read_text()
    assert cli("traces", "import", file, "--store", other).code == 0
    with open_store(other) as store:
        _, (_, model) = taken(store)
    assert "ada.lovelace@posteo.de" not in repr(model) and "<email:" in repr(model)


def test_a_collector_gets_them_with_the_headers_it_asks_for(cli: Cli, told: str, files: Files) -> None:
    with open_store(files.fresh()) as other:
        taking = routes(SpanReceiver(other, clock=time.time), token="tell-nobody")
        with served(lambda: Starlette(routes=taking)) as at:
            refused = cli("traces", "export", "run-1", "--to", at, "--store", told)
            key = ("--header", "authorization=Bearer tell-nobody")
            ran = cli("traces", "export", "run-1", "--to", at, *key, "--store", told, "--json")
        assert refused.code == 1 and "HTTP 401" in refused.err and "tell-nobody" not in refused.err
        assert ran.json == {"to": at, "spans": 2}
        assert len(taken(other)[1]) == 2


def test_an_address_with_a_password_is_refused_without_it(cli: Cli, told: str) -> None:
    ran = cli("traces", "export", "run-1", "--to", "http://me:tell-nobody@127.0.0.1:9", "--store", told)
    assert (ran.code, ran.out) == (2, "") and "127.0.0.1:9" in ran.err and "--header" in ran.err
    assert "tell-nobody" not in ran.err


def test_bad_input_is_one_line(cli: Cli, told: str, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    ran = cli("traces", "export", "run-9", "--to", file, "--store", told)
    assert ran.code == 2 and "run 'run-9'" in ran.err and not file.exists()
    ran = cli("traces", "export", "run-1", "--to", file, "--header", "nonsense", "--store", told)
    assert ran.code == 2 and "NAME=VALUE" in ran.err
    ran = cli("traces", "import", file, "--store", told)
    assert ran.code == 2 and "there is none" in ran.err
    file.write_text('{"resourceSpans": []}\n{')
    ran = cli("traces", "import", file, "--store", told)
    assert ran.code == 2 and f"{file}:2" in ran.err


def test_what_was_refused_is_told_and_is_no_success(cli: Cli, told: str, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "no ids"}]}]}]}))
    ran = cli("traces", "import", file, "--store", told)
    assert ran.code == 1 and "1 refused: spans without ids" in ran.out
