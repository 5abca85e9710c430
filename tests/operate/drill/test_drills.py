"""A full disk for real: a run of our own command runs out of room, is taken up, and is computed again from its store.

A crash for real is in tests/cli/test_drill.py; the other drills take longer, and are gone through with by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.collect.agent import Context, Tracer
from holdfast.contracts.executor import Assignment
from holdfast.contracts.settings import settings_from
from holdfast.operate.drills import DRILLS, Callers, DrillFailed, Load, Scratch, busy, pause_s, perform
from holdfast.operate.playbook import KINDS, TRANSCRIPT, validate
from tests.store.children import unmeasured

PATIENT = {"recovery_s": 600.0, "obey_s": 600.0}  # a busy machine is no crash


def test_the_load_is_a_run_that_optimize_takes() -> None:
    assert list(DRILLS) == list(KINDS)
    config = Load(tasks=100, seconds=0.1).config()
    assert len(settings_from(config, "a drill").train) == 100
    lengths = [one["seconds"] for one in config["optimize"]]
    assert 0.05 <= min(lengths) < 0.06 < 0.14 < max(lengths) <= 0.15


@pytest.mark.parametrize(
    ("used_s", "elapsed_s", "share", "pause"),
    [(30.0, 60.0, 0.25, 60.0), (10.0, 60.0, 0.25, 0.0), (30.0, 60.0, None, 0.0)],
)
def test_a_soak_rests_until_it_has_used_its_share(
    used_s: float, elapsed_s: float, share: float | None, pause: float
) -> None:
    assert pause_s(used_s, elapsed_s, share) == pause


def test_the_agent_of_the_drills_answers_what_is_expected() -> None:
    spans: list[object] = []
    given = Assignment(rollout="r", attempt="a", number=1, split=None, input={}, resources={}, seed=0)
    context = Context(assignment=given, trace=Tracer(record=spans.append, clock=time.time), complete=None)
    assert asyncio.run(busy({"prompt": "task 1", "seconds": 0.0}, context)) == "task 1" and len(spans) == 2


@pytest.mark.usefixtures("untraced")
@pytest.mark.timeout(600)
def test_a_run_without_room_says_so_and_is_taken_up_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ.keys() - unmeasured().keys():  # coverage would find no room for its figures, and say so
        monkeypatch.delenv(name)
    path = perform("disk", tmp_path, quick=True, clock=time.time, say=lambda text: None, limits=PATIENT)
    artifact, problems = validate(path)
    assert not problems and artifact["outcome"]["pass"] is True
    manifest = json.loads((tmp_path / artifact["crash_drill"]["running_manifest_path"]).read_text())
    assert manifest["run"]["id"] == artifact["resume_drill"]["resumed_job_id"] and manifest["run"]["state"] == "running"
    log = (tmp_path / artifact["evidence"]["operator_log_path"]).read_text()
    assert f"$ {artifact['resume_drill']['restart_command']}\n" in log
    assert artifact["measured"]["recovery_s"] > 0.0


def test_commands_exits_and_marks_are_written_down_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "/nowhere/else.sqlite")  # a drill has its own store
    said: list[str] = []
    with Scratch(tmp_path, clock=time.time, say=said.append) as scratch:
        scratch.mark("ready", pid=3)
        with pytest.raises(DrillFailed, match="exit 2: .*there is none"):
            scratch.call("run", "list", "--store", str(scratch.store))
        waits = scratch.begin("release", "serve", "--store", str(tmp_path / "none.sqlite"))
        with pytest.raises(DrillFailed, match="pigs fly: did not come"):
            scratch.wait("pigs fly", lambda: False, patience_s=0.0)
    lines = [line.partition(" ")[2] for line in (tmp_path / TRANSCRIPT).read_text().splitlines()]
    assert lines[0] == '* ready {"pid": 3}' and said == ["ready 3"]
    assert lines[1].startswith("$ holdfast run list --store ") and lines[2].startswith(
        "exit 2: holdfast: error: store "
    )
    with pytest.raises(ProcessLookupError):
        os.kill(waits.pid, 0)


def test_a_command_has_the_clock_that_the_drill_gives_it(tmp_path: Path) -> None:
    with Scratch(tmp_path, clock=time.time, say=lambda text: None) as scratch:
        began = time.time()
        for n, ahead in enumerate((-7200.0, 0.0, 7200.0)):
            one = scratch.begin("flags", "set", f"fast{n}", "--store", str(scratch.store))
            one.move_clock(ahead)
            assert scratch.end(one) == 0, one.err
        with scratch.opened() as store:
            times = [entry.at - began for entry in store.ledger.entries() if entry.kind == "flag"]
    assert [round(at, -3) for at in times] == [-7000.0, 0.0, 7000.0]


class Service(BaseHTTPRequestHandler):
    """Answers every caller but the first."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"model": "local/p@2@5e5e"}).encode()
        self.send_response(500 if asked["user"] == "caller-0" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_who_answered_and_what_failed_is_written_down(address: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    end = time.monotonic() + 60.0
    with Callers(address=address, policy="p", path=path, clock=time.time, many=2) as callers:
        while not (callers.answered["p@2"] >= 3 and callers.answered[""] >= 3) and time.monotonic() < end:
            time.sleep(0.01)
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(one["caller"], one["version"], one["error"]) for one in told} == {
        (0, "", "HTTPError: HTTP Error 500: Internal Server Error"),
        (1, "p@2", None),
    }
    assert all(one["began"] <= one["ended"] for one in told)
    assert len(told) == callers.answered.total()


PARENT = """
import sys, time
from pathlib import Path
from holdfast.operate.drills import Running
folder = Path(sys.argv[1])
print(Running(["schema", "run"], folder / "one", folder).pid, flush=True)  # whatever it does: it is stopped at once
time.sleep(60)
"""


def test_what_a_drill_started_ends_with_the_drill_however_it_is_killed(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        status = Path(f"/proc/{child}/status")
        while "_socket" not in Path(f"/proc/{child}/maps").read_text():  # it is past what it says with whom it ends
            time.sleep(0.005)
        os.kill(child, signal.SIGSTOP)
        parent.send_signal(number)
        parent.communicate(timeout=60)
        until = time.monotonic() + 60
        while status.exists() and "State:\tZ" not in status.read_text():
            assert time.monotonic() < until, "it outlived its drill"
            time.sleep(0.01)
