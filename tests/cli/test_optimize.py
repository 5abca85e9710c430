"""`holdfast run start` and `work` as a user runs them; where signals and prints matter, in a process of their own. And
what drives them: exit codes, `status.json`, progress, signals, the report."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import drive as driving
from holdfast.cli.drive import Progress, drive, obeying, report, stdout_kept_clean
from holdfast.cli.options import DEFAULT_STORE
from holdfast.collect.agent import Context
from holdfast.contracts.agent import Agent
from holdfast.contracts.algorithm import Batch
from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import decode, loads
from holdfast.contracts.rollout import DONE, RolloutState
from holdfast.contracts.run import DesiredState, RunState, SplitRewards, Status
from holdfast.pipeline.collect import collect
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Answer, Cli, ended, running, until
from tests.collect.scene import fall_silent
from tests.collect.scene import until as eventually
from tests.conftest import Databases
from tests.endpoint import Endpoint, Scripted, serving
from tests.pipeline.driving import all_of, echo, names, spec_of, work
from tests.pipeline.driving import failing as always_failing

EXAMPLE = Path(__file__).parents[2] / "examples/arithmetic.json"
BIN = Path(sys.executable).parent

AGENTS = '''
import asyncio, os, time
from pathlib import Path

async def quick(task, context):
    return task.get("expected", "4")

async def gated(task, context):
    """Tasks of "wait" wait until there is a file `go`; each says that it has begun."""
    if task["prompt"] == "wait":
        name = context.assignment.attempt.rpartition("/")[2]
        Path(f"begun-{name}").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.01)
    return "4"

def printing(task, context):
    print("printed by an agent\\n", end="", flush=True)
    os.system("echo printed by a child of an agent")
    return "4"

async def failing(task, context):
    raise ValueError("no idea")

async def moody(task, context):
    if task["prompt"] == "ho" and not Path("go").exists():
        raise ValueError("not in the mood")
    return "4"

async def wandering(task, context):
    os.chdir("/")
    return "4"

class Odd(BaseException):
    pass

async def odd(task, context):
    if task["prompt"] == "ho":
        raise Odd("no Exception")
    return "4"

def slow(task, context):
    time.sleep(0.01)
    return "4"
'''


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the commands, with agents in it."""
    monkeypatch.delitem(sys.modules, "my_agents", raising=False)
    for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    (here / "my_agents.py").write_text(AGENTS)
    return here


def config(folder: Path, prompts: list[str], name: str = "config.json", **fields: Any) -> str:
    """A config file in the folder; every prompt expects a 4."""
    quick: dict[str, Any] = {"heartbeat_interval_ms": 100, "lease_secs": 60.0, "poll_interval_ms": 10}
    tasks = [{"prompt": prompt, "expected": "4"} for prompt in prompts]
    (folder / name).write_text(json.dumps({"optimize": tasks, **quick, **fields}))
    return name


STORE = ("--store", "store.db")
PROXY = ["--prompt-optimization-proxy-server", "--prompt-optimization-proxy-upstream-url"]


def optimizing(*words: object, **how: Any) -> AbstractContextManager[subprocess.Popen[str]]:
    """The command while it goes on."""
    return running("optimize", *STORE, *words, **how)


def begun(folder: Path, count: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob("begun-*"))) >= count


def status_in(folder: Path) -> Status:
    return loads(Status, (folder / "status.json").read_bytes())


def attempts_by_rollout(folder: Path, run: str) -> dict[str, list[str]]:
    """After a look that every rollout ended exactly once."""
    with open_store(folder / "store.db", create=False) as store:
        found = {}
        for rollout in store.views.rollouts(run, most=1000):
            states = [str(attempt.status) for attempt in store.views.attempts(rollout.id)]
            assert rollout.status in DONE
            assert states.count("succeeded") == (rollout.status is RolloutState.SUCCEEDED)
            found[rollout.name] = states
    return found


# Whole runs


def test_two_runs_on_one_store_are_both_kept_and_never_collide(folder: Path, cli: Cli) -> None:
    first, second = (cli("optimize", "--config", EXAMPLE, *STORE) for _ in range(2))
    assert (first.code, first.err) == (second.code, second.err) == (0, "")
    listed = cli("runs", *STORE, "--json").json
    assert [(run["state"], run["model_ref"]) for run in listed] == [
        ("completed", "agent/holdfast.workloads.arithmetic:agent")
    ] * 2
    ids = [run["id"] for run in listed]
    assert first.lines[0].startswith(f"{ids[1]} completed in ")
    assert first.lines[1:6] == [
        "  outcome    9 right, 3 wrong, 0 failed",
        "  rollouts   12: 12 succeeded, 0 failed",
        "  rewards    train 0.750 (8 of 8), val 0.750 (4 of 4)",
        "  model      agent/holdfast.workloads.arithmetic:agent",
        "  resources  resources-1",
    ]
    for run in ids:
        assert list(attempts_by_rollout(folder, run).values()) == [["succeeded"]] * 12
    status = status_in(folder)
    assert (status.run_id, status.run_state, status.succeeded) == (ids[0], RunState.COMPLETED, 12)
    assert {split: of.mean_reward for split, of in status.rewards.items()} == {"train": 0.75, "val": 0.75}


def test_what_the_report_says_to_do_next_can_be_done(folder: Path, cli: Cli) -> None:
    config(folder, ["hi", "wait"], agent="my_agents:gated", completion_timeout_secs=1.5)
    ran = cli("optimize", "--config", "config.json", "--store", "a b/s.db", "--project", "it's")
    assert ran.code == 4
    following = ran.out.partition("next:\n")[2].replace("\\\n", "")  # a long one goes over two lines
    commands = [line for line in (line.partition("#")[0].strip() for line in following.splitlines()) if line]
    assert [shlex.split(command)[2] for command in commands] == ["start", "rollouts", "spans"]
    (folder / "go").touch()
    for command in commands:
        done = cli(*shlex.split(command)[1:])
        assert done.code == 0, f"{command}\n{done.out}{done.err}"
    assert loads(Status, (folder / "a b/status.json").read_bytes()).run_state is RunState.COMPLETED


def said(ran: Answer) -> list[str]:
    """What stands on stderr but for progress, which a slow machine tells every ten seconds."""
    return [line for line in ran.err.splitlines() if not line.startswith("run-")]


@pytest.mark.parametrize("kind", ["tasks", "processes"])
def test_as_json_the_report_is_the_status_whatever_agents_print(folder: Path, cli: Cli, kind: str) -> None:
    name = config(folder, ["hi"] * 3, agent="my_agents:printing", worker_kind=kind)
    ran = cli.real("optimize", "--config", name, *STORE, "--json")
    assert ran.code == 0
    assert ran.json == json.loads((folder / "status.json").read_text())
    assert ran.json["succeeded"] == 3
    assert sorted(said(ran)) == ["printed by a child of an agent"] * 3 + ["printed by an agent"] * 3


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        yield found


@pytest.mark.parametrize("kind", ["tasks", "processes"])
def test_a_model_is_asked_and_what_it_sampled_is_kept(folder: Path, cli: Cli, endpoint: Endpoint, kind: str) -> None:
    name = config(folder, ["hi", "ho"], resources={"system_prompt": "Be brief."}, worker_kind=kind)
    flags = ("--config", name, "--model", "openai/tiny", "--base-url", endpoint.url)
    ran = cli.real("optimize", *flags, *STORE, env=os.environ | {"OPENAI_API_KEY": "s3cret"})
    assert (ran.code, ran.err) == (0, "")  # and no connection was left open
    assert [asked.headers["Authorization"] for asked in endpoint.asked] == ["Bearer s3cret"] * 2
    assert endpoint.asked[0].body["messages"][0] == {"role": "system", "content": "Be brief."}
    status = status_in(folder)
    assert (status.model_ref, status.rewards["train"].mean_reward) == ("openai/tiny", 0.0)
    with open_store(folder / "store.db") as store:
        (attempt,) = store.views.attempts(f"{status.run_id}/train-1")
        call = next(span.model for span in store.traces.spans(attempt.token) if span.model)
        assert (call.completion_ids, call.logprobs) == ((5, 6, 7), (-0.5, -0.25, 0.0))
        assert "s3cret" not in json.dumps(store.runs.get(status.run_id).settings)


def test_an_endpoint_that_fails_leaves_rewards_missing_and_not_zero(folder: Path, cli: Cli) -> None:
    name = config(folder, ["hi"], max_attempts=1, max_faults=0, retry_initial_ms=10)
    with serving() as endpoint:
        endpoint.script.extend([Scripted(503, {})] * 8)
        flags = ("--config", name, "--model", "openai/tiny", "--base-url", endpoint.url)
        ran = cli("optimize", *flags, *STORE, "--json")
    assert (ran.code, ran.json["run_state"], ran.json["dead"]) == (3, "failed", 1)
    assert ran.json["rewards"]["train"] == {"total": 1, "rewarded": 0, "mean_reward": None}


def test_an_agent_is_found_in_the_current_folder_or_in_a_file_and_flags_go_over_the_config(
    folder: Path, cli: Cli
) -> None:
    name = config(folder, ["hi"], agent="holdfast.workloads.arithmetic:agent")
    ran = cli("optimize", "--config", name, *STORE, "--agent", "my_agents:quick", "--json").done()
    assert (ran.json["model_ref"], ran.json["rewards"]["train"]["mean_reward"]) == ("agent/my_agents:quick", 1.0)
    (folder / "of mine").mkdir()
    (folder / "of mine/answers.py").write_text("def answer(task, context):\n    return task['prompt']\n")
    cli("optimize", "--config", config(folder, ["hi"], agent="of mine/answers.py:answer"), *STORE).done()
    assert status_in(folder).succeeded == 1


def test_the_documented_names_of_the_flags_work_without_a_command(folder: Path, cli: Cli) -> None:
    name = config(folder, ["hi"], agent="my_agents:quick")
    flags = ("--prompt-optimization-config", name, "--prompt-optimization-store-sqlite", "store.db")
    ran = cli.real(*flags, "--prompt-optimization-json")
    assert (ran.code, ran.err, ran.json["run_state"]) == (0, "", "completed")


def test_on_postgres_the_status_lies_in_the_state_folder(folder: Path, cli: Cli, databases: Databases) -> None:
    ran = cli("optimize", "--config", EXAMPLE, "--store", databases.fresh(), "--state-dir", "state")
    assert ran.code == 0
    assert loads(Status, (folder / "state/status.json").read_bytes()).succeeded == 12


def test_a_run_of_which_nothing_succeeded_exits_with_3(folder: Path, cli: Cli) -> None:
    name = config(folder, ["hi", "ho"], agent="my_agents:failing", max_attempts=1)
    ran = cli("optimize", "--config", name, *STORE)
    assert ran.code == 3
    why = "train-1: failed: ValueError: no idea (my_agents.py:23, in failing) (attempt 1 of 1)"
    assert f"(no rollout succeeded; {why}) outcome 0 right, 0 wrong, 2 failed " in " ".join(ran.out.split())
    assert (status_in(folder).run_state, status_in(folder).failed) == (RunState.FAILED, 2)


def test_a_model_at_an_address_where_nobody_listens_is_refused_before_any_work(folder: Path, cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    (folder / "dead.json").write_text(json.dumps({"model": "openai/m", "base_url": url, "optimize": ["hi"] * 40}))
    began = time.monotonic()
    said = cli("run", "start", "dead.json", *STORE).refusal
    why = f"model m at {url}: cannot be reached: Connection refused; start its server, or check the address"
    assert said.startswith(f"holdfast: error: {why}") and time.monotonic() - began < 10
    with open_store(folder / STORE[1]) as store:
        assert store.runs.newest(most=1) == []


def test_an_agent_that_changes_the_current_folder_changes_nothing_for_us(folder: Path, cli: Cli) -> None:
    name = config(folder, ["hi"] * 8, agent="my_agents:wandering")
    ran = cli("optimize", "--config", name, *STORE)
    assert (ran.code, ran.lines[1]) == (0, "  outcome    8 right, 0 wrong, 0 failed")
    assert status_in(folder).run_state is RunState.COMPLETED


@pytest.mark.parametrize("kind", ["tasks", "processes"])
def test_whatever_an_agent_throws_is_its_own_failure(folder: Path, cli: Cli, kind: str) -> None:
    name = config(folder, ["hi", "ho"], agent="my_agents:odd", max_attempts=1, worker_kind=kind)
    ran = cli("optimize", "--config", name, *STORE)
    assert (ran.code, said(ran), ran.lines[1]) == (0, [], "  outcome    1 right, 0 wrong, 1 failed")


def test_a_run_over_its_time_exits_with_4(folder: Path, cli: Cli) -> None:
    name = config(folder, ["wait", "wait", "wait"], agent="my_agents:gated", completion_timeout_secs=0.8)
    assert cli("optimize", "--config", name, *STORE).code == 4
    status = status_in(folder)
    assert (status.run_state, status.error) == (RunState.TIMED_OUT, "not done after 0.8 s")
    assert (status.succeeded, status.running, status.waiting) == (0, 0, 3)


def test_the_status_is_whole_whenever_it_is_read(folder: Path, cli: Cli) -> None:
    path, seen, broken = folder / "status.json", list[Status](), list[Exception]()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                if path.exists():
                    seen.append(loads(Status, path.read_bytes()))
                time.sleep(0.001)
            except Exception as error:
                broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    ran = cli("optimize", "--config", config(folder, ["hi"] * 300, agent="my_agents:slow"), *STORE)
    over.set()
    reader.join()
    assert (ran.code, broken) == (0, [])
    states = [status.run_state for status in seen]
    assert states[0] is RunState.RUNNING
    assert len({status.updated_unix_ms for status in seen}) >= 3
    assert [status.updated_unix_ms for status in seen] == sorted(status.updated_unix_ms for status in seen)
    assert status_in(folder).run_state is RunState.COMPLETED


# What stops it


HALF = ["hi"] * 3 + ["wait"] * 5


def stopped_half_way(folder: Path, number: signal.Signals, **fields: Any) -> Answer:
    """Three of eight are done and two are being worked on when the signal comes."""
    name = config(folder, HALF, agent="my_agents:gated", **fields)
    with optimizing("--config", name) as child:
        until(begun(folder, 2))
        until(lambda: status_in(folder).succeeded == 3)
        child.send_signal(number)
        if number is signal.SIGTERM:
            assert child.stderr is not None
            assert child.stderr.readline() == "holdfast: finishing what runs (again to stop now)\n"
            (folder / "go").touch()
        return ended(child)


def resumed(folder: Path, cli: Cli, run: str) -> Answer:
    (folder / "go").touch()
    return cli("optimize", "--resume", run, *STORE, "--json")


def test_ctrl_c_hands_back_and_the_run_can_be_taken_up_again(folder: Path, cli: Cli) -> None:
    ran = stopped_half_way(folder, signal.SIGINT)
    assert (ran.code, ran.err) == (130, "holdfast: stopping, running work is handed back (again to end at once)\n")
    status = status_in(folder)
    assert (status.run_state, status.error) == (RunState.CANCELLED, "interrupted")
    assert (status.succeeded, status.running, status.waiting) == (3, 0, 5)
    again = resumed(folder, cli, status.run_id)
    assert (again.code, again.json["run_id"], again.json["succeeded"]) == (0, status.run_id, 8)
    assert "changed" not in again.err
    found = attempts_by_rollout(folder, status.run_id)
    assert sorted(found.values()) == [["released", "succeeded"]] * 2 + [["succeeded"]] * 6


@pytest.mark.filterwarnings("default")
def test_whoever_resumes_with_other_code_is_told_and_the_ledger_has_it(folder: Path, cli: Cli) -> None:
    (folder / "my_words.py").write_text("WORD = 'four'\n")
    agents = folder / "my_agents.py"
    agents.write_text(f"import my_words\n{AGENTS}")
    stopped_half_way(folder, signal.SIGINT)
    run = status_in(folder).run_id
    (folder / "my_words.py").write_text("WORD = 'vier'\n")
    again = resumed(folder, cli, run)
    assert again.code == 0
    assert f"my_words.py has changed since {run} began: what is done stays as it is" in again.err
    with open_store(folder / "store.db") as store:
        (noted,) = [entry.body for entry in store.ledger.entries(run=run) if "resume" in entry.body]
    assert noted["changed"] == ["my_words.py"]


def test_sigterm_lets_running_work_finish(folder: Path, cli: Cli) -> None:
    ran = stopped_half_way(folder, signal.SIGTERM)
    assert ran.code == 143
    status = status_in(folder)
    assert (status.run_state, status.succeeded, status.waiting) == (RunState.CANCELLED, 5, 3)
    assert resumed(folder, cli, status.run_id).code == 0
    assert list(attempts_by_rollout(folder, status.run_id).values()) == [["succeeded"]] * 8


@pytest.mark.parametrize("after_s", [0.05, 1.0])
def test_ctrl_c_in_a_terminal_meets_the_agents_processes_too_and_hurts_none(folder: Path, after_s: float) -> None:
    name = config(folder, ["wait"] * 4, agent="my_agents:gated", worker_kind="processes")
    with optimizing("--config", name, start_new_session=True) as child:
        until((folder / "status.json").exists)
        time.sleep(after_s)  # while they start, or later
        os.killpg(child.pid, signal.SIGINT)
        ran = ended(child)
    assert (ran.code, said(ran)) == (130, ["holdfast: stopping, running work is handed back (again to end at once)"])
    status = status_in(folder)
    assert (status.run_state, status.running, status.waiting) == (RunState.CANCELLED, 0, 4)


@pytest.mark.parametrize("kind", ["tasks", "processes"])
def test_a_run_that_was_killed_is_finished_by_another_process(folder: Path, cli: Cli, kind: str) -> None:
    name = config(folder, HALF, agent="my_agents:gated", worker_kind=kind)
    with optimizing("--config", name) as child:
        until(begun(folder, 2))
        until(lambda: status_in(folder).succeeded == 3)
        child.kill()
        ended(child)
    status = status_in(folder)
    assert status.run_state is RunState.RUNNING  # nobody was left to say more
    with open_store(folder / "store.db") as store:
        fall_silent(store, status.run_id)  # no test waits for leases
        store.runs.beat(status.run_id, driver=1, now=time.time()).result()
    assert resumed(folder, cli, status.run_id).code == 0  # at once: nobody has the number of the dead process
    assert status_in(folder).run_state is RunState.COMPLETED
    found = attempts_by_rollout(folder, status.run_id)
    assert sorted(found.values()) == [["succeeded"]] * 6 + [["unresponsive", "succeeded"]] * 2


def test_an_order_to_cancel_ends_it(folder: Path, cli: Cli) -> None:
    name = config(folder, HALF, agent="my_agents:gated")
    with optimizing("--config", name) as child:
        until(begun(folder, 2))
        run = status_in(folder).run_id
        assert cli("control", "cancel", run, "--why", "enough", *STORE).code == 0
        assert ended(child).code == 130
    status = status_in(folder)
    assert (status.run_state, status.error) == (RunState.CANCELLED, "cancelled by an order")
    assert (status.succeeded, status.cancelled) == (3, 5)
    refused = resumed(folder, cli, run)
    assert (refused.code, refused.err) == (5, f"holdfast: error: run {run}: was cancelled for good; start a new run\n")


def test_what_failed_in_a_step_that_is_over_cannot_be_queued_again(folder: Path, cli: Cli) -> None:
    name = config(folder, ["hi", "ho"], agent="my_agents:moody", max_attempts=1)
    assert cli("optimize", "--config", name, *STORE).code == 0
    run = status_in(folder).run_id
    assert status_in(folder).failed == 1
    refused = cli("control", "requeue", f"{run}/train-2", "--why", "again", *STORE)
    assert refused.code == 5
    assert "its step collect is recorded, and a recorded step is not run again; begin a new run" in refused.err
    again = resumed(folder, cli, run)
    assert (again.code, again.json["failed"], again.json["cancelled"]) == (0, 1, 0)
    assert attempts_by_rollout(folder, run) == {"train-1": ["succeeded"], "train-2": ["failed"]}


def test_a_status_that_cannot_be_written_is_told_once_and_does_not_end_the_run(folder: Path, cli: Cli) -> None:
    (folder / "status.json").mkdir()
    ran = cli("optimize", "--config", config(folder, ["hi"], agent="my_agents:quick"), *STORE)
    assert ran.code == 0
    assert [line for line in ran.err.splitlines() if "status.json" in line] == [
        "holdfast: status.json: cannot be written (Is a directory); the run goes on"
    ]
    with open_store(folder / "store.db") as store:
        assert [run.state for run in store.runs.newest()] == [RunState.COMPLETED]


# Bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "CONFIG: is missing; give the file with the run's settings, or --resume RUN"),
        (
            ["--config", "good.json", "--resume", "run-1"],
            "CONFIG: and --resume were both given; give the file with the run's settings, or --resume RUN",
        ),
        (["--config", "none.json"], "none.json: there is no such file; check the path"),
        (
            ["--resume", "run-1", "--agent", "my_agents:quick"],
            "--resume: a run keeps the agent and the model it began with; leave --agent and --model out, or ",
        ),
        (["--config", "empty.json"], "empty.json: optimize, validate: there is nothing to run; "),
        (["--config", "good.json", "--agent", "my_agents:nobody"], "agent my_agents:nobody: my_agents has no nobody"),
        (["--config", "good.json", "--agent", "nowhere"], '--agent "nowhere": is not module:function; '),
        (["--config", "bare.json"], "these settings: name neither an agent nor a model; give --agent or --model"),
        (["--config", "bare.json", "--model", "local/x"], "local model 'x': is neither in the package nor a folder; "),
        (
            ["--config", "bare.json", "--model", "x", "--base-url", "here"],
            '--base-url "here": is not an http or https ',
        ),
        (["--resume", "run-1"], "store store.db: there is none; check the path; "),
        (
            ["--config", "good.json", "--prompt-optimization-proxy-server"],
            "--prompt-optimization-proxy-server: starts the capture proxy, and --config or --resume a run: they cannot",
        ),
        (
            ["--config", "good.json", "--prompt-optimization-proxy-bind", "127.0.0.1:0"],
            "--prompt-optimization-proxy-bind: is for the capture proxy; give --prompt-optimization-proxy-server as w",
        ),
        (
            ["--prompt-optimization-proxy-server"],
            "--prompt-optimization-proxy-upstream-url: is missing; give the address that answers the calls",
        ),
        (
            [*PROXY, "http://127.0.0.1:9", "--prompt-optimization-proxy-bind", "8788"],
            "bind '8788': is not HOST:PORT; as in 127.0.0.1:8788",
        ),
        (
            [*PROXY, "http://127.0.0.1:9", "--prompt-optimization-proxy-bind", "0.0.0.0:0"],
            "host 0.0.0.0: everyone who reaches this machine could use the model; give a token",
        ),
        (
            [*PROXY, "http://127.0.0.1:9", "--prompt-optimization-proxy-timeout-ms", "0"],
            "--prompt-optimization-proxy-timeout-ms 0: must be above 0; give milliseconds",
        ),
        ([*PROXY, "ftp://x"], "upstream 'ftp://x': is not an http or https address without a password; "),
        (["--config", "good.json", "--project", " "], "project ' ': must be 1 to 100 characters, not blank"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_bad_input_is_refused_before_the_store_is_touched(
    folder: Path, cli: Cli, words: list[str], message: str
) -> None:
    config(folder, ["hi"], "good.json", agent="my_agents:quick")
    config(folder, ["hi"], "bare.json")
    config(folder, [], "empty.json", agent="my_agents:quick")
    assert cli("optimize", *STORE, *words).refusal.startswith(f"holdfast: error: {message}")
    assert not list(folder.glob("store.db*")) + list(folder.glob("status.json"))


# More hands for a run


def hands(*words: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return running("work", *words, *STORE)


def test_more_hands_work_on_the_same_run_until_it_ends(folder: Path) -> None:
    name = config(folder, ["wait"] * 6, agent="my_agents:gated", worker_count=2)
    with optimizing("--config", name) as driver:
        until(begun(folder, 2))
        run = status_in(folder).run_id
        with hands(run, "--workers", "3") as helper:
            until(begun(folder, 5))  # two of the driver's and three of ours
            (folder / "go").touch()
            assert ended(driver).code == 0
            ran = ended(helper).done()
    assert ran.err == "" and ran.out.startswith(f"{run}: ") and "0 failed, 0 handed back here" in ran.out
    assert list(attempts_by_rollout(folder, run).values()) == [["succeeded"]] * 6


def test_a_helper_that_is_stopped_hands_its_work_back(folder: Path) -> None:
    name = config(folder, ["wait"] * 4, agent="my_agents:gated", worker_count=2)
    with optimizing("--config", name) as driver:
        until(begun(folder, 2))
        run = status_in(folder).run_id
        with hands(run, "--workers", "2") as helper:
            until(begun(folder, 4))
            helper.send_signal(signal.SIGINT)
            assert ended(helper).code == 130
        (folder / "go").touch()
        assert ended(driver).code == 0
    assert sorted(attempts_by_rollout(folder, run).values()) == [["released", "succeeded"]] * 2 + [["succeeded"]] * 2


def test_a_run_that_is_not_there_has_ended_or_is_of_another_kind_is_refused(folder: Path, cli: Cli) -> None:
    missing = "store store.db: there is none; check the path; 'holdfast run start' creates one"
    assert cli("work", "run-1", *STORE).refusal == f"holdfast: error: {missing}\n"
    cli("optimize", "--config", config(folder, ["hi"], agent="my_agents:quick"), *STORE).done()
    run = status_in(folder).run_id
    for words in (["work", "run-9"], ["optimize", "--resume", "run-9"]):
        assert "run 'run-9': there is none in project 'default'; " in cli(*words, *STORE).refusal
    done = cli("work", "run-1", *STORE)
    why = f"run {run}: is completed, not running; 'holdfast run start --resume {run}' takes it up again"
    assert (done.code, done.err) == (5, f"holdfast: error: {why}\n")
    with open_store("store.db") as store:
        other = store.runs.begin(kind="quickstart", model_ref="m", settings={}, salt="t", who="me", now=time.time())
        other_id = other.result().id
    driven = "is a quickstart, which is driven by its own command; call 'holdfast quickstart' again"
    for words in (["work", other_id], ["optimize", "--resume", other_id]):
        assert cli(*words, *STORE).refusal == f"holdfast: error: run {other_id}: {driven}\n"


# Driving: how a run ends becomes an exit code, and `status.json` always says where it is


async def waiting(task: Any, context: Context) -> None:
    await asyncio.sleep(60)


async def interrupting(task: Any, context: Context) -> None:
    """Ctrl-C, once somebody listens: here the terminal and the agents are one process."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)


async def terminating(task: Any, context: Context) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.3)
    return task


def three(agent: Agent, **fields: Any) -> RunSpec:
    return spec_of(all_of(work(3), max_attempts=1), agent, workers=1, **fields)


def taught(learn: Any) -> RunSpec:
    """Three tasks, and what is learnt from them."""

    async def program(run: DurableRun) -> None:
        batch = await run.step("1/collect", collect, work(3), 1, None, title="lesson 1")
        await run.step("1/learn", learn, batch, title="lesson 1")

    return spec_of(program)


@pytest.mark.parametrize(
    ("agent", "fields", "state", "code"),
    [
        (echo, {}, RunState.COMPLETED, 0),
        (always_failing, {}, RunState.FAILED, 3),
        (waiting, {"timeout_s": 0.3}, RunState.TIMED_OUT, 4),
        (interrupting, {}, RunState.CANCELLED, 130),
        (terminating, {}, RunState.CANCELLED, 143),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_how_a_run_ended_is_its_exit_code_and_its_status(
    store: Store, agent: Agent, fields: dict[str, Any], state: RunState, code: int
) -> None:
    status, shown, exit_code = drive(store, three(agent, **fields), None)
    assert (status.run_state, exit_code) == (state, code)
    assert loads(Status, shown.read_bytes()) == status and shown == store.folder / "status.json"
    if agent is interrupting:  # it is resumed by its name
        again, _, code = drive(store, three(echo), status.run_id)
        assert (again.run_id, again.succeeded, code) == (status.run_id, 3, 0)


def test_the_status_is_shown_as_seen_from_here(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.folder)
    assert drive(store, three(echo), None)[1] == Path("status.json")


def test_ctrl_c_while_it_learns_ends_the_run(store: Store) -> None:
    def learn(batch: Batch) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return {}

    status, _, code = drive(store, taught(learn), None)
    assert (status.run_state, status.error) == (RunState.CANCELLED, "interrupted")
    assert (status.lesson, code) == ("lesson 1", 130)
    assert names(store, status.run_id) == ["begin", "1/collect"]


def test_a_learner_that_fails_leaves_the_reason_in_the_status_and_is_raised(store: Store) -> None:
    def learn(batch: Batch) -> dict[str, Any]:
        raise BadInput("lesson 1", why="cannot be learnt", remedy="try another")

    with pytest.raises(BadInput, match="lesson 1: cannot be learnt; try another"):
        drive(store, taught(learn), None)
    status = status_in(store.folder)
    assert (status.run_state, status.error) == (RunState.FAILED, "lesson 1: cannot be learnt; try another")


# Signals become wishes: the first says how to stop, the second to stop now, the third that it may not wait

INT, TERM = signal.SIGINT, signal.SIGTERM
SAID = {
    "drain": "holdfast: finishing what runs (again to stop now)\n",
    "stop": "holdfast: stopping, running work is handed back (again to end at once)\n",
}


class Wishes(list[str]):
    def drain(self) -> None:
        self.append("drain")

    def stop(self) -> None:
        self.append("stop")


@pytest.mark.parametrize(
    ("sent", "wishes", "code"),
    [
        ([], [], 0),
        ([INT], ["stop"], 130),  # Ctrl-C hands back at once
        ([TERM], ["drain"], 143),  # an operator lets running work finish
        ([TERM, TERM], ["drain", "stop"], 143),
        ([TERM, INT], ["drain", "stop"], 130),
        ([TERM, TERM, TERM], ["drain", "stop", "exit 143", "stop"], 143),
        ([INT, TERM], ["stop", "exit 143", "stop"], 143),
        ([INT, INT], ["stop", "exit 130", "stop"], 130),  # the second does not wait: the store may not answer
    ],
)
async def test_a_signal_becomes_a_wish_and_is_told(
    sent: list[signal.Signals],
    wishes: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = Wishes()
    monkeypatch.setattr(os, "_exit", lambda code: made.append(f"exit {code}"))  # which would end the tests
    before = [signal.getsignal(number) for number in (INT, TERM)]
    with obeying(made) as caught:
        for number in sent:
            count = caught.count
            os.kill(os.getpid(), number)
            await eventually(lambda count=count: caught.count > count)  # type: ignore[misc]
            await asyncio.sleep(0)  # a turn of the loop, which does what was wished
    assert (made, caught.exit_code, caught.count) == (wishes, code, len(sent))
    assert capsys.readouterr().err == "".join(SAID[wish] for wish in wishes if wish in SAID)
    kept = [signal.getsignal(number) for number in (INT, TERM)]  # afterwards a signal is again what it was
    assert kept == before


# What a person sees of a run: the bar or a line while it goes, the report at its end

FINISHED = Status(
    updated_unix_ms=1_700_000_000_000,
    run_state=RunState.COMPLETED,
    run_id="run-1-abcd",
    project="default",
    model_ref="openai/tiny",
    store_path=DEFAULT_STORE,
    resources_id="resources-1",
    total_rollouts=12,
    succeeded=10,
    failed=2,
    cancelled=0,
    dead=1,
    running=0,
    waiting=0,
    rewards={
        "train": SplitRewards(total=8, rewarded=6, mean_reward=0.75),
        "val": SplitRewards(total=4, rewarded=0, mean_reward=None),
    },
    elapsed_s=2.5,
)


@pytest.fixture
def reported(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines of the report of a run that differs from the finished one."""

    def lines(**changed: Any) -> list[str]:
        report(replace(FINISHED, **changed), Path("here/status.json"), as_json=False)
        return capsys.readouterr().out.splitlines()

    return lines


def test_the_report_of_a_run(reported: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    rollouts = "  rollouts   12: 10 succeeded, 2 failed (1 given up without an answer)"
    assert reported() == [
        "run-1-abcd completed in 2.5 s",
        rollouts,
        "  rewards    train 0.750 (6 of 8), val missing (0 of 4)",
        "  model      openai/tiny",
        "  resources  resources-1",
        "  store      .holdfast/training/store.sqlite",
        "  status     here/status.json",
        "next:",
        "  holdfast run rollouts run-1-abcd   # every task with its reward",
        "  holdfast run spans run-1-abcd/train-1   # what one agent did, step by step",
    ]
    # An answer that is wrong is no success, whatever the rollout's status is.
    lines = reported(outcomes={"right": 3, "wrong": 7, "not_checked": 0})
    assert lines[1:3] == ["  outcome    3 right, 7 wrong, 2 failed", rollouts]
    unchecked = reported(outcomes={"right": 0, "wrong": 0, "not_checked": 10})[1]
    assert unchecked == "  outcome    0 right, 0 wrong, 10 not checked, 2 failed"
    assert reported(rewards={"val": FINISHED.rewards["val"]})[-1].startswith("  holdfast run spans run-1-abcd/val-1 ")
    following = "\n".join(reported(store_path="my stores/s.db", project="it's")).partition("next:\n")[2]
    command = next(line for line in following.replace("\\\n", "").splitlines() if "run rollouts" in line)
    words = ["holdfast", "run", "rollouts", "run-1-abcd", "--store", "my stores/s.db", "--project", "it's"]
    assert shlex.split(command.partition("#")[0]) == words
    report(FINISHED, Path("here/status.json"), as_json=True)
    assert decode(Status, json.loads(capsys.readouterr().out)) == FINISHED


def test_the_report_of_a_run_that_did_not_come_to_its_end_says_how_to_go_on(reported: Callable[..., list[str]]) -> None:
    late = {"run_state": RunState.TIMED_OUT, "error": "not done after 30 s", "cancelled": 1, "running": 1, "waiting": 2}
    lines = reported(**late, dead=0, resources_id=None)
    assert lines[0] == "run-1-abcd timed out in 2.5 s (not done after 30 s)"
    assert lines[1] == "  rollouts   12: 10 succeeded, 2 failed, 1 cancelled, 3 still to do"
    assert lines[4] == "  resources  none"
    assert lines[8] == "  holdfast run start --resume run-1-abcd   # go on where it stopped"


def test_where_there_is_no_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with Progress() as shown:
        shown.show(FINISHED)
    assert capsys.readouterr() == ("", "")  # a short run leaves a log alone
    monkeypatch.setattr(driving, "LINE_EVERY_S", -1.0)
    with Progress() as shown:
        shown.show(replace(FINISHED, succeeded=0, failed=0, elapsed_s=0.0))
        shown.show(FINISHED, DesiredState.DRAINING)  # it is over: nothing is wanted of it any more
        shown.show(replace(FINISHED, run_state=RunState.RUNNING, succeeded=1), DesiredState.PAUSED)
    out, err = capsys.readouterr()
    lines = ["run-1-abcd: 0 of 12", "run-1-abcd: 12 of 12 4.8/s 2 failed", "run-1-abcd paused: 3 of 12 1.2/s 2 failed"]
    assert (out, err.splitlines()) == ("", lines)


BAR = """
import time
from dataclasses import replace
from holdfast.cli.drive import Progress
from tests.cli.test_optimize import FINISHED

with Progress() as shown:
    for done in (0, 5, 10):
        shown.show(replace(FINISHED, succeeded=done, failed=2))
        time.sleep(0.3)
"""


def test_on_a_terminal_there_is_a_bar_with_rate_and_failures() -> None:
    ours, theirs = os.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen([sys.executable, "-c", BAR], stderr=theirs, stdout=subprocess.PIPE, env=env)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how a terminal ends
        pass
    out, _ = child.communicate(timeout=60)
    os.close(ours)
    assert (child.returncode, out) == (0, b"")
    for part in (b"run-1-abcd", b"12/12", b"4.8/s", b"2 failed"):
        assert part in shown


def test_while_agents_run_stdout_is_kept_for_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")
    with stdout_kept_clean():
        os.write(1, b"by a library\n")
        subprocess.run(["echo", "by a child"], check=True)
    os.write(1, b"after\n")
    assert capfd.readouterr() == ("before\nafter\n", "by a library\nby a child\n")
    body = "from holdfast.cli.drive import stdout_kept_clean\nwith stdout_kept_clean(): print('to nobody')"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(body)} >&-"  # one that was closed is left alone
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
