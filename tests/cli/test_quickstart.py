"""`holdfast quickstart`: what it leaves behind and says, and that neither kill -9 nor Ctrl-C loses or doubles anything.

Whole runs take seconds: there is one here, and one that is killed in its midst and resumed.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from holdfast.cli.improve import _unfinished
from holdfast.contracts.errors import BadInput, NotFound, StoreError
from holdfast.contracts.evidence import Evidence
from holdfast.contracts.records import loads
from holdfast.contracts.run import LEGACY_STEP, DesiredState, RunState, Status
from holdfast.policies.registry import load
from holdfast.policies.weights import read, transformer
from holdfast.prove.reports.validate import validate
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.quickstart import QUICK, Quickstart, turned
from holdfast.workloads.tooluse.tasks import generate
from tests.cli.conftest import Cli
from tests.collect.scene import fall_silent
from tests.conftest import Files

PATIENCE_S = 300.0
LEARNING = [f"0/{n}/{what}" for n in range(3) for what in ("collect", "learn")]  # a cold probe, a warm one, practice
STEPS = ["begin", "base", "0/start", *LEARNING, "0/live", "0/prove/0", "0/decide", "marks"]
ROLLOUTS = 2 * QUICK.test_seeds * QUICK.test_tasks + 2 * QUICK.probe_tasks + QUICK.grpo_tasks * QUICK.grpo_samples


def test_a_weak_model_is_trained_measured_and_left_behind(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("quickstart", "--quick", "--store", "a b/s.db", "--project", "mine")
    assert ran.code == 0, ran.err
    assert all(len(line) <= 80 for line in ran.lines if not line.startswith(("  holdfast ", "  proof ")))
    run, state, *_ = ran.lines[0].split()
    assert state == "completed"
    assert ran.lines[2] == "(so little practice shows that everything runs, not that anything was learnt)"
    assert ran.lines[4].split()[:8] == ["held-out", "tasks", "baseline", "95", "%", "trained", "95", "%"]
    assert [line.partition("  ")[0] for line in ran.lines[5:8]] == ["tasks solved", "tool adoption", "style kept"]
    assert any(line.startswith("tasks solved, paired by task: ") for line in ran.lines)
    shown = dict(line.split(maxsplit=1) for line in ran.lines if line.startswith(("  picture ", "  checkpoint ")))
    assert Path(shown["picture"]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    model, manifest = transformer(Path(shown["checkpoint"]))
    assert model.shape == load("sprout-weak")[0].shape
    assert manifest.sha256 != read(Path("a b/checkpoints") / Path(shown["checkpoint"]).name).parent

    with open_store(tmp_path / "a b/s.db", project="mine") as store:
        updates = store.steps.of_run(run)
        assert [update.name for update in updates] == STEPS
        checkpoints = store.checkpoints.of_run(run)
        assert [one.algorithm for one in checkpoints] == ["sft", "grpo"]
        assert Path(shown["checkpoint"]).name == checkpoints[-1].id
        assert _unfinished(store, QUICK) is None  # a second call begins anew
        live, body = store.releases.live(run), updates[-2].body
        assert live is not None
        assert live.source == "shelf:sprout-weak"  # so little practice proves nothing
        assert (body["release"], body["decision"]["open"]) == (f"{run}@2", False)
        assert body["decision"]["needs"] > 0
        assert validate(Path(body["proof"])) == []
        is_turned = bool(turned(store, updates))
    assert f"the gate  {run}@2: held; about {body['decision']['needs']} more episodes may open the gate" in ran.lines
    page = next(line.split(maxsplit=1)[1] for line in ran.lines if line.startswith("  proof "))
    assert Path(page).read_text(encoding="utf-8").startswith("<!doctype html>")

    assert ("one reward, turn by turn" in ran.lines) == is_turned
    following = ran.out.partition("next:\n")[2].replace("\\\n", "")  # a long one goes over two lines
    commands = [line.partition("   #")[0].strip() for line in following.splitlines()]
    assert [shlex.split(command)[1] for command in commands] == ["release", "sprout", "rollouts", "rewards", "spans"]
    for command in [commands[0], *commands[2:]]:
        done = cli(*shlex.split(command)[1:])
        assert done.code == 0, f"{command}\n{done.err}"

    at = ("--store", "a b/s.db", "--project", "mine")
    more = cli("prove", "more", f"{run}@2", *at)
    assert more.code == 2 and "is of the kind quickstart, whose proof cannot be added to" in more.err
    versions = f"--baseline {run}@1 --candidate {run}@2"
    assert f"'holdfast prove run SUITE {versions}', then 'holdfast release decide'" in more.err
    proof = cli("prove", "run", "tooluse:4:1", *versions.split(), *at)
    assert proof.code == 0, proof.err
    decided = cli("release", "decide", f"{run}@2", "--run", proof.lines[0].split()[0], "--json", *at)
    assert decided.code == 1, decided.err
    with open_store(tmp_path / "a b/s.db", project="mine") as store:
        evidence = loads(Evidence, store.blobs.get(str(store.releases.get(f"{run}@2").evidence)))
        kept = json.loads(store.blobs.get(str(evidence.samples)))
    assert kept["weighing"]["alpha"] == 0.025  # the second time that the two were measured


@contextmanager
def running(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "holdfast.cli", "quickstart", "--quick", "--store", "s.db", *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def attempts(store: Store, run: str, *, is_done: bool = False) -> dict[str, list[str]]:
    return {
        rollout.name: [f"{one.id} {one.status}" for one in store.views.attempts(rollout.id)]
        for rollout in store.views.rollouts(run, most=1000)
        if not is_done or rollout.final_attempt is not None
    }


def until_taught(store: Store, child: subprocess.Popen[str]) -> str:
    """Until the warm-up has left a checkpoint and the step after it has begun."""
    patience = time.monotonic() + PATIENCE_S
    while time.monotonic() < patience:
        assert child.poll() is None, child.communicate()
        for run in store.runs.newest(most=1):
            done = [step.name for step in store.steps.of_run(run.id)]
            if "0/0/learn" in done and len(attempts(store, run.id)) > QUICK.probe_tasks:
                return run.id
        time.sleep(0.02)
    raise AssertionError("it never learnt anything")


def ctrl_c(folder: Path, other: str) -> None:
    """One of another seed: a new run, that stops when it is told to and says how to go on."""
    with running(folder, "--seed", "1") as another:
        while loads(Status, (folder / "status.json").read_bytes()).run_id == other:
            assert another.poll() is None, another.communicate()
            time.sleep(0.02)
        another.send_signal(signal.SIGINT)
        out, err = another.communicate(timeout=PATIENCE_S)
    assert another.returncode == 130, err
    first, _, following = out.splitlines()
    assert first.startswith("run-2-")
    assert "cancelled" in first
    assert following == "  holdfast quickstart --quick --seed 1 --store s.db   # goes on where it stopped"
    assert "Traceback" not in err
    with open_store(folder / "s.db") as store:
        assert _unfinished(store, replace(QUICK, seed=1)) == store.runs.newest(most=1)[0].id


def test_a_run_that_is_killed_goes_on_where_it_was_while_another_is_stopped_by_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    open_store(path).close()
    with open_store(path) as store, running(tmp_path) as killed:
        run = until_taught(store, killed)
        killed.kill()
        killed.wait()
        before, kept = attempts(store, run, is_done=True), store.steps.of_run(run)
        assert store.runs.get(run).state is RunState.RUNNING
        ctrl_c(tmp_path, run)
        fall_silent(store, run)

    with running(tmp_path, "--json") as resumed:
        out, err = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, err
    told = json.loads(out)
    assert (told["status"]["run_id"], told["status"]["run_state"]) == (run, "completed")
    assert told["status"]["succeeded"] + told["status"]["failed"] == told["status"]["total_rollouts"] == ROLLOUTS
    assert set(told["results"]["changes"]) == {"success", "adoption", "format"}
    assert Path(told["picture"]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with open_store(path) as store:
        assert (store.runs.get(run).state, store.runs.get(run).driver) == (RunState.COMPLETED, 2)
        updates = store.steps.of_run(run)
        assert [update.name for update in updates] == STEPS
        assert updates[: len(kept)] == kept  # what was learnt was not learnt again
        assert told["proposed"]["release"] == f"{run}@2"
        assert told["proposed"]["decision"] == updates[-2].body["decision"]
        noted = [next(iter(entry.body)) for entry in store.releases.history(run)]
        assert noted == ["add", "move", "add", "refuse"]
        after = attempts(store, run)
        assert {name: after[name] for name in before} == before  # nor was anything run again
        right = [sum(one.endswith("succeeded") for one in states) for states in after.values()]
        assert (len(right), max(right), sum(right)) == (ROLLOUTS, 1, told["status"]["succeeded"])
        checkpoints = store.checkpoints.of_run(run)
        assert [one.id for one in store.checkpoints.lineage(told["checkpoint"])] == [one.id for one in checkpoints]
        for one in checkpoints:
            assert one.artifact is not None
            assert transformer(tmp_path / one.artifact.uri)[1].sha256 == one.artifact.sha256
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == sorted(one.id for one in checkpoints)


def test_only_an_unfinished_run_of_the_same_settings_is_taken_up(files: Files) -> None:
    def begin(settings: Quickstart, kind: str = "quickstart") -> str:
        begun = store.runs.begin(
            kind=kind, model_ref="m", settings=asdict(settings), salt="s", who="test", now=time.time()
        )
        return begun.result().id

    def end(run: str, state: RunState) -> None:
        store.runs.end(run, state, who="test", now=time.time(), error=None, driver=1).result()

    with open_store(files.fresh()) as store:
        assert _unfinished(store, QUICK) is None
        begin(QUICK, kind="optimize")
        begin(replace(QUICK, seed=1))
        assert _unfinished(store, QUICK) is None
        first = begin(QUICK)
        assert _unfinished(store, QUICK) == first  # perhaps it was killed
        for state in (RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT):
            run = begin(QUICK)
            end(run, state)
            assert _unfinished(store, QUICK) == run
        store.runs.want(run, DesiredState.CANCELLED, who="test", why="enough", now=time.time()).result()
        assert _unfinished(store, QUICK) is None  # for good
        done = begin(QUICK)
        end(done, RunState.COMPLETED)
        assert _unfinished(store, QUICK) == done  # Ctrl-C came before its report was made
        (picture := store.reports / f"{done}.png").parent.mkdir(exist_ok=True)
        picture.write_bytes(b"")
        assert _unfinished(store, QUICK) is None


def test_a_checkpoint_that_is_gone_can_be_restored_or_begun_without(cli: Cli, tmp_path: Path) -> None:
    path, now = tmp_path / "s.db", time.time()
    with open_store(path) as store:
        run = store.runs.begin(
            kind="quickstart", model_ref="m", settings=asdict(QUICK), salt="s", who="test", now=now
        ).result()
        body = {"phase": "warm-up", "is_warm": False, "checkpoint": "c-1"}  # of a version before durable steps
        store.steps.add(run.id, "lesson-1", body, function=LEGACY_STEP, inputs_sha256="", now=now).result()
        store.runs.end(run.id, RunState.CANCELLED, who="test", now=now, error=None, driver=1).result()
    ran = cli("quickstart", "--quick", "--store", path)
    assert (ran.code, ran.out) == (StoreError.exit_code, ""), ran.err
    gone = tmp_path / "checkpoints/c-1"
    anew = f"holdfast quickstart --quick --store {path} --fresh"
    line = f"holdfast: error: checkpoint c-1: {gone}: is missing; restore it from a copy, or begin anew: {anew}"
    assert ran.err.splitlines()[-1] == line
    with open_store(path) as store:
        assert _unfinished(store, QUICK) == run.id  # once it is restored


@pytest.mark.parametrize("seed", ["-1", "1000001", "x"])
def test_a_seed_out_of_bounds_is_refused_before_anything_is_made(cli: Cli, tmp_path: Path, seed: str) -> None:
    ran = cli("quickstart", "--quick", "--seed", seed, "--store", tmp_path / "s.db")
    assert (ran.code, ran.out) == (2, "")
    assert "--seed" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_highest_seed_has_tasks_and_examples_of_its_own() -> None:
    most = Quickstart(seed=10**6)
    last = most.seed * 1000 + most.grpo_steps
    assert generate("train", last, 1) != generate("train", last - 1, 1)
    prompts, _ = corpus("strong", "train", most.seed * 10**6 + 1000, 2)
    assert len(prompts) == 2


def test_what_cannot_start_says_why(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("--store", tmp_path), ("--store", tmp_path / "s.db", "--project", " ")):
        ran = cli("quickstart", "--quick", *words)
        assert ran.code in (BadInput.exit_code, StoreError.exit_code, NotFound.exit_code)
        assert ran.err.startswith("holdfast: error: ")
        assert len(ran.err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    ran = cli("quickstart", "--quick", "--store", tmp_path / "s.db")
    assert (ran.code, ran.err) == (
        2,
        "holdfast: error: quickstart: needs PyTorch, which is not installed; pip install 'holdfast[learn]'\n",
    )
    assert list(tmp_path.iterdir()) == []
