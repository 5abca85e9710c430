"""Runs that this process drives: beside a running event loop, stopped, and gone on with."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.api.driving import LINE_S, QUIET_S, ProgressLine
from holdfast.contracts.run import RunState, Status
from holdfast.promote.flags import SWITCHES, features
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.scene import short
from tests.endpoint import Endpoint
from tests.store.children import unmeasured
from tests.warm import Warm, ran


async def test_it_works_inside_a_running_event_loop(endpoint: Endpoint, at: Path) -> None:
    run = hf.start(scene.agent, scene.questions(30), **short(endpoint, at))
    states = [status.run_state for status in await asyncio.to_thread(lambda: list(run.events()))]
    assert states[0] is RunState.RUNNING and states[-1] is RunState.COMPLETED
    assert run.wait().release == "support@2" and run.is_over


def test_what_is_stopped_goes_on_by_the_same_call(endpoint: Endpoint, at: Path) -> None:
    is_slow = [True]

    async def agent(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(0.2 if is_slow[0] else 0.0)
        return await scene.agent(task, ctx)

    run = hf.start(agent, scene.questions(30), **short(endpoint, at))
    for status in run.events():
        if status.succeeded:
            break
    run.stop()
    with pytest.raises(hf.HoldfastError, match="the same call goes on from there"):
        run.wait()
    is_slow[0] = False
    again = hf.start(agent, scene.questions(30), **short(endpoint, at))
    result = again.wait()
    assert again.id == run.id and again.resumed == run.id and result.release == "support@2"
    anew = hf.start(agent, scene.questions(30), **short(endpoint, at))
    assert anew.wait().run.id != run.id  # what came to its end is not gone on with


def test_another_call_is_another_run(endpoint: Endpoint, at: Path) -> None:
    async def slow(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(30)
        return ""

    run = hf.start(slow, scene.questions(30), **short(endpoint, at))
    assert run.id
    run.stop()
    with pytest.raises(hf.HoldfastError):
        run.wait()
    other = hf.improve(scene.agent, scene.questions(30), **short(endpoint, at))
    assert other.run.id != run.id


INTERRUPTED = """
import asyncio, signal, sys
from pathlib import Path
import holdfast as hf
from tests.api import scene
from tests.endpoint import Endpoint

at, url, begun, is_again = Path(sys.argv[1]), sys.argv[2], [], len(sys.argv) > 3
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it

async def agent(task, ctx):
    begun.append(ctx.assignment.rollout)
    print(begun[-1], flush=True)
    if len(begun) > 20 and not is_again:
        await asyncio.sleep(60)
    return await scene.agent(task, ctx)

result = hf.improve(agent, scene.questions(30), **scene.short(Endpoint(url=url), at))
print("done", result.run.id)
"""


def test_ctrl_c_stops_the_run_and_loses_nothing(endpoint: Endpoint, at: Path, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(INTERRUPTED, encoding="utf-8")
    env = unmeasured() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command, pipe = [str(script), str(at), endpoint.url], subprocess.PIPE
    with Warm(command, env=env, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        for _ in range(21):
            assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode != 0 and "the same call goes on from there" in err and "KeyboardInterrupt" in err, err
    (stopped,) = hf.runs(store=at)
    kept = {row["id"] for row in stopped.rollouts("status == 'succeeded'")}
    assert stopped.state == "cancelled" and kept
    again = ran([*command, "again"], env=env, timeout_s=120)
    assert again.returncode == 0, again.stderr
    *tried, last = again.stdout.splitlines()
    assert last == f"done {stopped.id}" and tried and not kept & set(tried)  # what was there was not run again


def test_a_run_that_another_drives_is_not_taken_from_it(endpoint: Endpoint, at: Path) -> None:
    async def agent(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(0.05)
        return await scene.agent(task, ctx)

    run = hf.start(agent, scene.questions(30), **short(endpoint, at))
    assert run.id
    with pytest.raises(hf.HoldfastError, match="another process drives it"):
        hf.improve(agent, scene.questions(30), **short(endpoint, at))
    run.stop()
    with pytest.raises(hf.HoldfastError):
        run.wait()


KILLED = """
import asyncio

import holdfast as hf
from tests.api import scene

is_slow = True

async def agent(task, ctx):
    if is_slow:
        print("begun", flush=True)
        await asyncio.sleep(600)
    return await scene.agent(task, ctx)

def call(url, store):
    how = {"policy": hf.Prompt(system=scene.FAIR), "algorithm": hf.Candidates([scene.GOOD]), "workers": 2}
    how |= {"model": "tiny", "base_url": url, "store": store}
    return hf.start(agent, scene.questions(30), name="support", scorers=scene.correct, **how)
"""


@pytest.mark.usefixtures("untraced")
def test_the_same_call_takes_over_at_once_from_a_process_that_was_killed(
    endpoint: Endpoint, at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    monkeypatch.syspath_prepend(tmp_path)
    killed: Any = importlib.import_module("killed")
    (tmp_path / "first.py").write_text(f"import killed; killed.call({endpoint.url!r}, {str(at)!r}).wait()")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[2])])}
    with Warm([str(tmp_path / "first.py")], env=env, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "begun\n"
        first.kill()
    (run,) = hf.runs(store=at)
    with run.place.open() as store:
        store.runs.beat(run.id, driver=1, now=time.time()).result()  # however long the test took to come here
    killed.is_slow = False
    again = killed.call(endpoint.url, at)
    assert (again.id, again.wait().release) == (run.id, "support@2")


def test_an_agent_that_never_answers_rightly_ends_in_words(endpoint: Endpoint, at: Path) -> None:
    def agent(task: Any, ctx: hf.Context) -> str:
        raise KeyError("nope")

    with pytest.raises(hf.HoldfastError, match="no rollout succeeded"):
        hf.improve(agent, scene.questions(30), **short(endpoint, at))
    assert all("nope" in row["error"] for row in hf.runs(store=at)[0].rollouts())


def test_a_collection_says_how_many_rollouts_it_has(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(0.5)
        return await scene.agent(task, ctx)

    monkeypatch.setattr("holdfast.api.driving.QUIET_S", 0.0)
    monkeypatch.setattr("holdfast.api.driving.LINE_S", 0.0)
    tasks, prompt = scene.questions(3, held_out=None), hf.Prompt(system="x")
    hf.collect(slow, tasks, policy=prompt, model="tiny", base_url=endpoint.url, store=at, workers=1)
    err = capsys.readouterr().err
    assert re.search(r"^run-1-\w+: [012] of 3 rollouts, collecting$", err, re.M), err


def test_what_is_quick_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status(
        updated_unix_ms=0,
        run_state=RunState.RUNNING,
        run_id="run-1",
        project="default",
        model_ref="tiny",
        store_path="",
        resources_id=None,
        total_rollouts=9,
        succeeded=3,
        failed=0,
        cancelled=0,
        dead=0,
        running=1,
        waiting=5,
        rewards={},
        elapsed_s=1.0,
        lesson="look 1 of 2",
    )
    with ProgressLine() as progress:
        progress.show(status)
        assert capsys.readouterr().err == ""
        progress._since = progress._said = time.monotonic() - QUIET_S - 1.0
        progress.show(status)
        assert capsys.readouterr().err == "run-1: 3 of 9 rollouts, look 1 of 2\n"
        progress._said = time.monotonic() - LINE_S - 1.0
        progress.show(replace(status, total_rollouts=0, succeeded=0))  # an environment has no rollouts to count
        assert capsys.readouterr().err == "run-1: look 1 of 2\n"


def paid_by_turn(task: Any, answer: Any) -> hf.Reward:
    return hf.Reward(float(answer == task.expected), turns={0: {"progress": 1.0}})


def test_flags_reach_runs_of_a_program(endpoint: Endpoint, at: Path) -> None:
    """They were asked about learning alone: every other feature that was killed went on in calls of the API."""
    found = []
    for killed in (False, True):
        with open_store(at) as store:
            flag = next(one for one in features({}, owner="ann") if one.name == SWITCHES["turn_rewards"])
            store.flags.put(replace(flag, killed=killed), who="ann", why="test", now=1.0).result()
        how = scene.at_endpoint(endpoint, at) | {"scorers": [paid_by_turn], "safety": hf.Waived("a test")}
        run = hf.collect(scene.agent, scene.questions(4, held_out=None), **how)
        with open_store(at) as store:
            (attempt,) = store.views.attempts(store.views.rollouts(run.id)[0].id)
            found.append({one.turn for one in store.traces.breakdown(attempt.token).signals})
    assert found == [{None, 0}, {None}]
