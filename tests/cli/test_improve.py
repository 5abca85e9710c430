"""`holdfast improve`: what it says of each iteration, that it can be stopped and taken up, and that what is wrong is
said before any work. Whole runs take seconds: there is one here, of a few tasks."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.improve import _found
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.records import loads
from holdfast.contracts.run import RunState, Status
from holdfast.contracts.settings import load_settings
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.tasks import Dials, generate, to_input
from tests.cli.conftest import Cli
from tests.collect.scene import fall_silent
from tests.workloads.scene import tiny

PATIENCE_S = 60.0
TOOLUSE = "holdfast.workloads.tooluse.agent:agent"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EASY = Dials(families=("trivial", "chat"), think=0.0)


def items(split: str, count: int) -> list[dict[str, Any]]:
    short = {"sampling": {"temperature": 1.0, "max_tokens": 24}, "max_turns": 2}
    return [{**to_input(task), **short} for task in generate(split, 5, count, EASY)]


def config(folder: Path, **improve: Any) -> Path:
    """Few tasks for a very small model."""
    block = {"steps": 1, "step_tasks": 4, "samples": 6, "prove": {"batch": 4}, **improve}
    model = folder / "tiny"
    if not model.exists():
        tiny(model)
    given = {"agent": TOOLUSE, "model": f"local/{model}", "worker_count": 8, "max_attempts": 1}
    tasks = {"optimize": items("train", 4), "validate": items("val", 4)}
    path = folder / "improve.json"
    path.write_text(json.dumps({**given, **tasks, "heartbeat_interval_ms": 100, "lease_secs": 60.0, "improve": block}))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_iteration_ends_with_a_decision_and_its_page(cli: Cli, here: Path) -> None:
    words = ("--policy", "tools", "--model", "local/sprout-weak", "--store", "s.db", "--project", "mine")
    ran = cli("improve", config(here), *words)
    assert ran.code == 0, ran.err
    assert all(len(line) <= 80 for line in ran.lines if not line.startswith(("  page", "  holdfast")))
    run, state, *_ = ran.lines[0].split()
    assert state == "completed"
    with open_store(here / "s.db", project="mine") as store:
        names = [update.name for update in store.steps.of_run(run)]
        learnt = ["0/start", "0/0/collect", "0/0/learn"]
        assert names == ["begin", "base", *learnt, "0/live", "0/prove/0", "0/decide"]
        body = store.steps.of_run(run)[-1].body
        assert (body["release"], body["decision"]["open"]) == ("tools@2", False)  # four tasks prove nothing
        assert store.releases.live("tools") is None  # nothing moves without a stage
        assert store.releases.get("tools@1").source == "shelf:sprout-weak"
    assert any(line.startswith("  tools@2: ") for line in ran.lines)
    assert "    population_below_minimum" in ran.lines
    page = next(line.split(maxsplit=1)[1] for line in ran.lines if line.startswith("  page"))
    assert Path(page).absolute().parent == Path(body["proof"]).parent
    assert not any("release serve" in line for line in ran.lines)  # nothing is live that could be
    command = ran.lines[-1].strip()
    assert command == "holdfast release explain tools@2 --store s.db --project mine"
    assert cli(*shlex.split(command)[1:]).code == 0

    # A candidate is what another run may begin with, by any name that it is shown under.
    made = here / "checkpoints" / body["candidate"]["manifest"]["checkpoint"]
    for name in (made.name, f"sprout-weak@{made.name}", "tools@2"):
        again = load_settings(config(here)).model_copy(update={"model": f"local/{name}"})
        assert _found(again, "s.db", "mine").model == f"local/{made}"
    words = ("--policy", "more", "--model", f"local/{made.name}", "--store", "s.db", "--project", "mine")
    ran = cli("improve", config(here), *words)
    assert ran.code == 0, ran.err
    with open_store(here / "s.db", project="mine") as store:
        assert store.releases.get("more@1").source == f"weights:{made}"
    refused = cli("improve", config(here), "--model", "local/nobody", "--store", "s.db")
    assert refused.code == 2 and "a folder of weights, a checkpoint's id, or policy@number" in refused.err


def test_stopped_while_it_waits_for_others_it_says_how_to_go_on_and_does(cli: Cli, here: Path) -> None:
    path = config(here, follow_least=4)
    with open_store(here / "s.db") as store:
        now = time.time()
        other = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="s", who="t", now=now).result()
        command = [sys.executable, "-m", "holdfast.cli", "improve", str(path), "--store", "s.db", "--follow", other.id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here) as child:
            patience = time.monotonic() + PATIENCE_S
            while not _is_following(here / "status.json"):
                assert child.poll() is None and time.monotonic() < patience, child.communicate()
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 130, err
        assert "Traceback" not in err
        run = store.runs.newest(most=1)[0]
        assert out.splitlines()[1:] == [
            "interrupted, at iteration 1, step 1",
            "next:",
            f"  holdfast improve --resume {run.id} --store s.db",
        ]
        store.runs.end(other.id, RunState.COMPLETED, who="t", now=now, error=None, driver=1).result()
        ran = cli("improve", "--resume", run.id, "--store", "s.db", "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["status"]["run_id"], ran.json["pages"]) == (run.id, [None])
        assert ran.json["iterations"][0]["why"] == (
            "nothing was learnt, so there is nothing to prove: no succeeded train rollouts"
        )


def _is_following(status: Path) -> bool:
    return status.exists() and loads(Status, status.read_bytes()).lesson == "iteration 1, step 1"


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({"validate": []}, (), "validate: is empty; "),
        ({"model": "openai/gpt"}, (), "model openai/gpt: its weights are out of reach"),
        ({}, ("--model", "local/oak"), "local model 'oak': is neither in the package nor a folder"),
        ({"improve": {"prove": {"seeds": 0}}}, (), "improve.prove.seeds = 0: must be at least 1; "),
        ({"improve": {"stpes": 2}}, (), "improve.stpes = 2: unknown key; did you mean steps? "),
        (
            {"improve": {"prove": {"primary": "reward"}}},
            (),
            "improve.prove.reward_range = [0, 1]: the agent's rewards go from 0 to 1.1; ",
        ),
        ({}, ("--policy", " "), '--policy " ": is blank'),
        ({}, ("--resume", "run-1"), "CONFIG: and --resume were both given; "),
    ],
)
def test_what_is_wrong_is_one_line_before_any_work(
    cli: Cli, here: Path, change: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    path = config(here)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    ran = cli("improve", path, *words, "--store", "s.db")
    assert (ran.code, ran.out) == (BadInput.exit_code, "")
    (line,) = ran.err.splitlines()
    assert said in line
    assert not (here / "s.db").exists()


def test_a_run_to_follow_or_to_take_up_has_to_be_there(cli: Cli, here: Path) -> None:
    assert cli("improve", "--store", "s.db").err.startswith("holdfast: error: CONFIG: is missing; ")
    ran = cli("improve", config(here), "--follow", "run-9", "--store", "s.db")
    assert ran.code != 0
    assert not (here / "s.db").exists()
    with open_store(here / "s.db") as store:
        begun = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="s", who="t", now=1.0).result()
    for words in ((config(here), "--follow", "run-9"), (config(here, follow="run-9"),), ("--resume", "run-9")):
        ran = cli("improve", *words, "--store", "s.db")
        assert ran.code == NotFound.exit_code
        assert "run-9" in ran.err
    ran = cli("improve", "--resume", begun.id, "--store", "s.db")
    assert f"run {begun.id}: is of kind optimize; resume it with its own command" in ran.err
    ran = cli("improve", "--resume", begun.id, "--policy", "p", "--store", "s.db")
    assert "--resume: a run keeps the settings it began with" in ran.err
    with open_store(here / "s.db") as store:
        assert [run.id for run in store.runs.newest()] == [begun.id]


def test_a_network_in_an_environment_killed_while_it_learns_goes_on_where_it_was(cli: Cli, here: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "improve", "--env", "CartPole-v1", "--store", "s.db"]
    with open_store(here / "s.db") as store:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=here) as child:
            patience = time.monotonic() + 2 * PATIENCE_S
            while not (runs := store.runs.newest()) or not _learnt(store, runs[0].id):
                assert child.poll() is None and time.monotonic() < patience
                time.sleep(0.02)
            child.kill()
        run = store.runs.newest(most=1)[0].id
        fall_silent(store, run)
        ran = cli("improve", "--resume", run, "--store", "s.db")
        assert ran.code == 0, ran.err
        assert ran.lines[0].startswith(f"{run} completed")
        assert "  CartPole-v1@2: accepted; it stays candidate" in ran.lines
        assert not any("release serve" in line for line in ran.lines)
        rewards = [one.reward or 0.0 for one in store.views.rollouts(run, most=1000) if "candidate" in one.name]
        assert sum(rewards) / len(rewards) > 400.0
        told = cli("prove", "more", "CartPole-v1@2", "--store", "s.db")
        assert told.code == BadInput.exit_code and "has played all the episodes" in told.err


def _learnt(store: Store, run: str) -> bool:
    return any("checkpoint" in one.body for one in store.steps.of_run(run))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env", "Nowhere-v0"), "environment Nowhere-v0: "),
        (("--env", "CliffWalking-v1"), "give reward_range="),
        (("--env", "CartPole-v1", "--model", "local/sprout"), "--model: means nothing to a network"),
        (("--env", "CartPole-v1", "--resume", "run-1"), "--env: and --resume were both given; "),
        (("--env", "CartPole-v1", "--reward-range", "5", "1"), "reward_range = 5 to 1: must be finite and in order"),
    ],
)
def test_an_environment_that_cannot_be_improved_in_is_one_line_before_any_work(
    cli: Cli, here: Path, words: tuple[str, ...], said: str
) -> None:
    ran = cli("improve", *words, "--store", "s.db")
    assert (ran.code, ran.out) == (BadInput.exit_code, "")
    (line,) = ran.err.splitlines()
    assert said in line
    assert not (here / "s.db").exists()


def test_the_example_is_made_of_generated_tasks_and_nothing_is_in_both_lists() -> None:
    given = json.loads((EXAMPLES / "improve.json").read_text(encoding="utf-8"))
    lists = {name: [item["prompt"] for item in given[name]] for name in ("optimize", "validate")}
    assert not set(lists["optimize"]) & set(lists["validate"])
    assert len(lists["validate"]) >= 20  # else the gate could never open
    bare = [{key: item[key] for key in item if key not in ("sampling", "max_turns")} for item in given["optimize"]]
    assert bare == [json.loads(json.dumps(to_input(task))) for task in generate("train", 11, len(bare))]
