"""`holdfast improve`, `init` and `quickstart`: what they say of each iteration, that they can be stopped or killed and
taken up, and that what is wrong is said before any work. Whole runs take seconds: there are few here."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from holdfast.cli.improve import CONFIG, _unfinished, _with_folder, files
from holdfast.contracts.errors import BadInput, NotFound, StoreError
from holdfast.contracts.evidence import Evidence
from holdfast.contracts.records import loads
from holdfast.contracts.run import LEGACY_STEP, DesiredState, RunState, Status
from holdfast.contracts.settings import load_settings
from holdfast.pipeline.spec import improve_spec
from holdfast.policies.model import load_transformer
from holdfast.policies.weights import read, transformer
from holdfast.prove.reports.validate import validate
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.quickstart import QUICK, Quickstart, turned
from holdfast.workloads.tooluse.tasks import Dials, generate, to_input
from tests.cli.conftest import Cli, ended, running, until
from tests.collect.scene import fall_silent
from tests.workloads.scene import tiny

TOOLUSE = "holdfast.workloads.tooluse.agent:agent"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EASY = Dials(families=("trivial", "chat"), think=0.0)
STORE = ("--store", "s.db")


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


def test_an_iteration_ends_with_a_decision_and_its_page(cli: Cli, here: Path) -> None:
    words = ("--policy", "tools", "--model", "local/sprout-weak", *STORE, "--project", "mine")
    ran = cli("improve", config(here), *words).done()
    assert all(len(line) <= 80 for line in ran.lines if not line.startswith(("  page", "  holdfast")))
    told = "warning: these tasks can promote no candidate; the run starts all the same:\n- 4 tasks cannot "
    assert (
        ran.err.startswith(told) and "--max-safety-regression 0.6" in ran.err and "no gain, however large," in ran.err
    )
    run, state, *_ = ran.lines[0].split()
    assert state == "completed"
    with open_store(here / "s.db", project="mine") as store:
        names = [update.name for update in store.steps.of_run(run)]
        learnt = ["0/start", "0/0/collect", "0/0/learn"]
        assert names == ["begin", "base", *learnt, "0/live", "0/prove/order", "0/prove/0", "0/decide"]
        body = store.steps.of_run(run)[-1].body
        assert (body["release"], body["decision"]["open"]) == ("tools@2", False)  # four tasks prove nothing
        assert store.releases.live("tools") is None  # nothing moves without a stage
        assert store.releases.get("tools@1").source == "shelf:sprout-weak"
    assert any(line.startswith("  tools@2: ") for line in ran.lines)
    assert ran.lines[1].startswith("practice: 1 steps, mean reward ")
    assert ran.lines[1].endswith(" (of other tasks each step)")
    help_text = " ".join(cli("improve", "-h").out.split())
    assert "accept or hold it, and repeat" in help_text and "Nothing moves unless a stage is set" in help_text
    assert any(line.startswith("    codes: population_below_minimum") for line in ran.lines)
    page = next(line.split(maxsplit=1)[1] for line in ran.lines if line.startswith("  page"))
    assert Path(page).absolute().parent == Path(body["proof"]).parent
    assert not any("release serve" in line for line in ran.lines)  # nothing is live that could be
    command = ran.lines[-1].strip()
    assert command == "holdfast release explain tools@2 --store s.db --project mine"
    cli(*shlex.split(command)[1:]).done()

    # A candidate is what another run may begin with, by any name that it is shown under.
    made = here / "checkpoints" / body["candidate"]["manifest"]["checkpoint"]
    for name in (made.name, f"sprout-weak@{made.name}", "tools@2"):
        again = load_settings(config(here)).model_copy(update={"model": f"local/{name}"})
        assert _with_folder(again, "s.db", "mine").model == f"local/{made}"
    words = ("--policy", "more", "--model", f"local/{made.name}", *STORE, "--project", "mine")
    cli("improve", config(here), *words).done()
    with open_store(here / "s.db", project="mine") as store:
        assert store.releases.get("more@1").source == f"weights:{made}"
    refused = cli("improve", config(here), "--model", "local/nobody", *STORE).refusal
    assert "a folder of weights, a checkpoint's id, or policy@number" in refused


def test_stopped_while_it_waits_for_others_it_says_how_to_go_on_and_does(cli: Cli, here: Path) -> None:
    path, status = config(here, follow_least=4), here / "status.json"
    with open_store(here / "s.db") as store:
        now = time.time()
        other = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="s", who="t", now=now).result()
        with running("improve", path, *STORE, "--follow", other.id) as child:
            until(lambda: status.exists() and loads(Status, status.read_bytes()).lesson == "iteration 1, step 1", child)
            child.send_signal(signal.SIGINT)
            stopped = ended(child)
        assert stopped.code == 130 and "Traceback" not in stopped.err
        run = store.runs.newest(most=1)[0]
        resume = f"  holdfast improve --resume {run.id} --store s.db"
        assert stopped.lines[1:] == ["interrupted, at iteration 1, step 1", "next:", resume]
        store.runs.end(other.id, RunState.COMPLETED, who="t", now=now, error=None, driver=1).result()
        told = cli("improve", "--resume", run.id, *STORE, "--json").done().json
        assert (told["status"]["run_id"], told["pages"]) == (run.id, [None])
        why = "nothing was learnt, so there is nothing to prove: no succeeded train rollouts"
        assert told["iterations"][0]["why"] == why


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({"validate": []}, (), "validate: is empty; "),
        ({"model": "openai/gpt"}, (), "resources: has no text, so there is no prompt to improve"),
        ({}, ("--model", "local/oak"), "local model 'oak': is neither in the package nor a folder"),
        ({"improve": {"prove": {"seeds": 0}}}, (), "improve.prove.seeds = 0: must be at least 1; "),
        ({"improve": {"stpes": 2}}, (), "improve.stpes = 2: unknown key; did you mean steps? "),
        (
            {"improve": {"prove": {"primary": "reward"}}},
            (),
            "improve.prove.reward_range = [0, 1]: the agent's rewards go from 0 to 1.1; ",
        ),
        (
            {},
            ("--max-safety-regression", "0.2", "--waive-safety", "reviewed"),
            "--max-safety-regression: safety is waived; keep one of the two options",
        ),
        ({}, ("--max-safety-regression", "2"), "--max-safety-regression 2: "),
        ({}, ("--policy", "a@b"), "improve.policy 'a@b': '@' comes before the number of a release"),
        ({}, ("--policy", " "), '--policy " ": is blank'),
        ({}, ("--resume", "run-1"), "CONFIG: and --resume were both given; "),
        (None, (), "CONFIG: is missing; "),
        (None, ("--env", "Nowhere-v0"), "environment Nowhere-v0: "),
        (None, ("--env", "CliffWalking-v1"), "; --reward-range LOW HIGH of an episode's return"),
        (None, ("--env", "CartPole-v1", "--model", "local/sprout"), "--model: means nothing to a network"),
        (None, ("--env", "CartPole-v1", "--resume", "run-1"), "--env: and --resume were both given; "),
        (
            None,
            ("--env", "CartPole-v1", "--reward-range", "5", "1"),
            "reward_range = 5 to 1: must be finite and in order",
        ),
    ],
)
def test_what_is_wrong_is_one_line_before_any_work(
    cli: Cli, here: Path, change: dict[str, Any] | None, words: tuple[str, ...], said: str
) -> None:
    """None: without a file of settings."""
    path = () if change is None else (config(here),)
    for file in path:
        file.write_text(json.dumps(json.loads(file.read_text()) | (change or {})))
    assert said in cli("improve", *path, *words, *STORE).refusal
    assert not (here / "s.db").exists()


def test_a_run_to_follow_or_to_take_up_has_to_be_there(cli: Cli, here: Path) -> None:
    assert cli("improve", config(here), "--follow", "run-9", *STORE).code != 0
    assert not (here / "s.db").exists()
    with open_store(here / "s.db") as store:
        begun = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="s", who="t", now=1.0).result()
    for words in ((config(here), "--follow", "run-9"), (config(here, follow="run-9"),), ("--resume", "run-9")):
        ran = cli("improve", *words, *STORE)
        assert ran.code == NotFound.exit_code and "run-9" in ran.err
    said = cli("improve", "--resume", begun.id, *STORE).refusal
    assert f"run {begun.id}: is of kind optimize; resume it with its own command" in said
    said = cli("improve", "--resume", begun.id, "--policy", "p", *STORE).refusal
    assert "--resume: a run keeps the settings it began with" in said
    with open_store(here / "s.db") as store:
        assert [run.id for run in store.runs.newest()] == [begun.id]


def _has_learnt(store: Store, run: str) -> bool:
    return any("checkpoint" in one.body for one in store.steps.of_run(run))


@pytest.mark.usefixtures("untraced")
def test_a_network_in_an_environment_killed_while_it_learns_goes_on_where_it_was(cli: Cli, here: Path) -> None:
    with open_store(here / "s.db") as store:
        with running("improve", "--env", "CartPole-v1", *STORE) as child:
            until(lambda: any(_has_learnt(store, run.id) for run in store.runs.newest()), child)
            child.kill()
        run = store.runs.newest(most=1)[0].id
        fall_silent(store, run)
        ran = cli("improve", "--resume", run, *STORE).done()
        assert ran.lines[0].startswith(f"{run} completed")
        assert "  CartPole-v1@2: accepted; it stays candidate" in ran.lines
        assert not any("release serve" in line for line in ran.lines)
        rewards = [one.reward or 0.0 for one in store.views.rollouts(run, most=1000) if "candidate" in one.name]
        assert sum(rewards) / len(rewards) > 400.0
        assert "has played all the episodes" in cli("prove", "more", "CartPole-v1@2", *STORE).refusal


def test_the_example_is_made_of_generated_tasks_and_nothing_is_in_both_lists() -> None:
    given = json.loads((EXAMPLES / "improve.json").read_text(encoding="utf-8"))
    lists = {name: [item["prompt"] for item in given[name]] for name in ("optimize", "validate")}
    assert not set(lists["optimize"]) & set(lists["validate"])
    assert len(lists["validate"]) >= 80  # else safety could never be proved, and the gate never open
    bare = [{key: item[key] for key in item if key not in ("sampling", "max_turns")} for item in given["optimize"]]
    assert bare == [json.loads(json.dumps(to_input(task))) for task in generate("train", 11, len(bare))]


# A project of four files, in order before it is run; `tests/test_examples.py` improves it


def test_a_project_is_four_short_files_in_order_and_the_next_command(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = cli("init", "support").done()
    assert sorted(path.name for path in (here / "support").iterdir()) == sorted(files("support"))
    assert all(len(text.splitlines()) < 40 for name, text in files("support").items() if name != "tasks.jsonl")
    assert ran.page[-1].startswith("  holdfast improve support/holdfast.toml")
    told = cli("init", "other", "--json").json
    assert told["next"] == f"holdfast improve other/{CONFIG}"
    assert all(Path(path).is_file() for path in told["files"])
    spec = improve_spec(load_settings(f"support/{CONFIG}"))
    spec.runtime.close()
    assert (spec.policy, spec.model_ref) == ("support", "local/sprout")
    assert min(len(spec.settings["validate"]), len(spec.settings["optimize"])) > 60
    json.dumps(spec.settings)
    monkeypatch.chdir(here / "support")  # within the project no file has to be named
    Path("tasks.jsonl").write_text("")  # so that it ends at once, with the name of what it read
    assert "tasks.jsonl" in cli("improve").refusal


def test_nothing_is_overwritten(cli: Cli, here: Path) -> None:
    (here / "support").mkdir()
    (here / "support/score.py").write_text("mine")
    assert "support/score.py: is there already" in cli("init", "support").refusal
    assert [path.name for path in (here / "support").iterdir()] == ["score.py"]
    assert (here / "support/score.py").read_text() == "mine"
    (here / "file").write_text("")
    assert cli("init", "file").code == cli("init", "a@b").code == 2
    assert cli("init", "bad name!").refusal.endswith("for example bad-name\n") and not (here / "bad name!").exists()


# Quickstart: what it leaves behind and says, and that neither kill -9 nor Ctrl-C loses or doubles anything

LEARNING = [f"0/{n}/{what}" for n in range(3) for what in ("collect", "learn")]  # a cold probe, a warm one, practice
STEPS = ["begin", "base", "0/start", *LEARNING, "0/live", "0/prove/order", "0/prove/0", "0/decide", "marks"]
ROLLOUTS = 2 * QUICK.test_seeds * QUICK.test_tasks + 2 * QUICK.probe_tasks + QUICK.grpo_tasks * QUICK.grpo_samples
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_weak_model_is_trained_measured_and_left_behind(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--store", "a b/s.db", "--project", "mine")
    slow = replace(QUICK, warm_up_rate=1e-7, grpo_rate=1e-7)  # so small that nothing can be proved
    monkeypatch.setattr("holdfast.workloads.tooluse.quickstart.QUICK", slow)
    ran = cli("quickstart", "--quick", *at).done()
    assert all(len(line) <= 80 for line in ran.lines if not line.startswith(("  holdfast ", "  proof ")))
    run, state, *_ = ran.lines[0].split()
    assert state == "completed"
    assert ran.lines[2] == "(so little practice shows that everything runs, not that anything was learnt)"
    assert ran.lines[4].split()[:8] == ["held-out", "tasks", "baseline", "95", "%", "trained", "95", "%"]
    assert [line.partition("  ")[0] for line in ran.lines[5:8]] == ["tasks solved", "tool adoption", "style kept"]
    assert any(line.startswith("tasks solved, paired by task: ") for line in ran.lines)
    shown = dict(line.split(maxsplit=1) for line in ran.lines if line.startswith(("  picture ", "  checkpoint ")))
    assert Path(shown["picture"]).read_bytes().startswith(PNG)
    model, manifest = transformer(Path(shown["checkpoint"]))
    assert model.shape == load_transformer("sprout-weak")[0].shape
    assert manifest.sha256 != read(Path("a b/checkpoints") / Path(shown["checkpoint"]).name).parent

    with open_store(here / "a b/s.db", project="mine") as store:
        updates = store.steps.of_run(run)
        assert [update.name for update in updates] == STEPS
        checkpoints = store.checkpoints.of_run(run)
        assert [one.algorithm for one in checkpoints] == ["sft", "grpo"]
        assert Path(shown["checkpoint"]).name == checkpoints[-1].id
        assert _unfinished(store, slow) is None  # a second call begins anew
        live, body = store.releases.live(run), updates[-2].body
        assert live is not None and live.source == "shelf:sprout-weak"  # so little practice proves nothing
        assert (body["release"], body["decision"]["open"]) == (f"{run}@2", False)
        assert body["decision"]["needs"] is None  # nothing is gained, so no number of episodes helps
        assert validate(Path(body["proof"])) == []
        is_turned = bool(turned(store, updates))
    assert f"the gate  {run}@2: held; no gain yet, more episodes will not help" in ran.lines
    page = next(line.split(maxsplit=1)[1] for line in ran.lines if line.startswith("  proof "))
    assert Path(page).read_text(encoding="utf-8").startswith("<!doctype html>")

    assert ("one reward, turn by turn" in ran.lines) == is_turned
    following = ran.out.partition("next:\n")[2].replace("\\\n", "")  # a long one goes over two lines
    commands = [shlex.split(line.partition("   #")[0]) for line in following.splitlines()]
    assert [words[2] for words in commands if words] == ["explain", "chat", "rollouts", "show", "spans"]
    for words in [commands[0], *commands[2:]]:
        cli(*words[1:]).done()

    more = cli("prove", "more", f"{run}@2", *at).refusal
    assert "is of the kind quickstart, whose proof cannot be added to" in more
    versions = f"--baseline {run}@1 --candidate {run}@2"
    assert f"'holdfast prove run SUITE {versions}', then 'holdfast release decide'" in more
    proof = cli("prove", "run", "tooluse:4:1", *versions.split(), *at).done()
    decided = cli("release", "decide", f"{run}@2", "--run", proof.lines[0].split()[0], "--json", *at)
    assert decided.code == 1, decided.err
    with open_store(here / "a b/s.db", project="mine") as store:
        evidence = loads(Evidence, store.blobs.get(str(store.releases.get(f"{run}@2").evidence)))
        kept = json.loads(store.blobs.get(str(evidence.samples)))
    assert kept["weighing"]["alpha"] == pytest.approx(0.05 / 4)  # the first candidate on these tasks


def quickly(*words: str) -> AbstractContextManager[Popen[str]]:
    return running("quickstart", "--quick", *STORE, *words)


def attempts(store: Store, run: str, *, is_done: bool = False) -> dict[str, list[str]]:
    return {
        rollout.name: [f"{one.id} {one.status}" for one in store.views.attempts(rollout.id)]
        for rollout in store.views.rollouts(run, most=1000)
        if not is_done or rollout.final_attempt is not None
    }


def is_taught(store: Store) -> bool:
    """The warm-up has left a checkpoint, and the step after it has begun."""
    return any(
        "0/0/learn" in [step.name for step in store.steps.of_run(run.id)]
        and len(attempts(store, run.id)) > QUICK.probe_tasks
        for run in store.runs.newest(most=1)
    )


def ctrl_c(folder: Path, other: str) -> None:
    """One of another seed: a new run, that stops when it is told to and says how to go on."""
    with quickly("--seed", "1") as another:
        until(lambda: loads(Status, (folder / "status.json").read_bytes()).run_id != other, another)
        another.send_signal(signal.SIGINT)
        ran = ended(another)
    assert ran.code == 130 and "Traceback" not in ran.err
    first, _, following = ran.lines
    assert first.startswith("run-2-") and "cancelled" in first
    assert following == "  holdfast quickstart --quick --seed 1 --store s.db   # goes on where it stopped"
    with open_store(folder / "s.db") as store:
        assert _unfinished(store, replace(QUICK, seed=1)) == store.runs.newest(most=1)[0].id


@pytest.mark.usefixtures("untraced")
def test_a_run_that_is_killed_goes_on_where_it_was_while_another_is_stopped_by_ctrl_c(cli: Cli, here: Path) -> None:
    path = here / "s.db"
    with open_store(path) as store:
        with quickly() as killed:
            until(lambda: is_taught(store), killed)
            killed.kill()
        run = store.runs.newest(most=1)[0].id
        before, kept = attempts(store, run, is_done=True), store.steps.of_run(run)
        assert store.runs.get(run).state is RunState.RUNNING
        ctrl_c(here, run)
        fall_silent(store, run)

    told = cli("quickstart", "--quick", *STORE, "--json").done().json
    status = told["status"]
    assert (status["run_id"], status["run_state"]) == (run, "completed")
    assert status["succeeded"] + status["failed"] == status["total_rollouts"] == ROLLOUTS
    assert set(told["results"]["changes"]) == {"success", "adoption", "format"}
    assert Path(told["picture"]).read_bytes().startswith(PNG)
    with open_store(path) as store:
        assert (store.runs.get(run).state, store.runs.get(run).driver) == (RunState.COMPLETED, 2)
        updates = store.steps.of_run(run)
        assert [update.name for update in updates] == STEPS
        assert updates[: len(kept)] == kept  # what was learnt was not learnt again
        assert told["proposed"]["release"] == f"{run}@2"
        assert told["proposed"]["decision"] == updates[-2].body["decision"]
        noted = [next(iter(entry.body)) for entry in store.releases.history(run)]
        is_open = updates[-2].body["decision"]["open"]  # so short a practice may be proved, or not
        assert noted == ["add", "move", "add", "move" if is_open else "refuse"]
        after = attempts(store, run)
        assert {name: after[name] for name in before} == before  # nor was anything run again
        right = [sum(one.endswith("succeeded") for one in states) for states in after.values()]
        assert (len(right), max(right), sum(right)) == (ROLLOUTS, 1, status["succeeded"])
        checkpoints = store.checkpoints.of_run(run)
        assert [one.id for one in store.checkpoints.lineage(told["checkpoint"])] == [one.id for one in checkpoints]
        for one in checkpoints:
            assert one.artifact is not None
            assert transformer(here / one.artifact.uri)[1].sha256 == one.artifact.sha256
    assert sorted(path.name for path in (here / "checkpoints").iterdir()) == sorted(one.id for one in checkpoints)


def test_only_an_unfinished_run_of_the_same_settings_is_taken_up(store: Store) -> None:
    about: dict[str, Any] = {"who": "test", "now": time.time()}

    def begin(settings: Quickstart, kind: str = "quickstart") -> str:
        return store.runs.begin(kind=kind, model_ref="m", settings=asdict(settings), salt="s", **about).result().id

    def end(run: str, state: RunState) -> str:
        store.runs.end(run, state, error=None, driver=1, **about).result()
        return run

    assert _unfinished(store, QUICK) is None
    begin(QUICK, kind="optimize")
    begin(replace(QUICK, seed=1))
    assert _unfinished(store, QUICK) is None
    first = begin(QUICK)
    assert _unfinished(store, QUICK) == first  # perhaps it was killed
    for state in (RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT):
        run = end(begin(QUICK), state)
        assert _unfinished(store, QUICK) == run
    store.runs.want(run, DesiredState.CANCELLED, why="enough", **about).result()
    assert _unfinished(store, QUICK) is None  # for good
    done = end(begin(QUICK), RunState.COMPLETED)
    assert _unfinished(store, QUICK) == done  # Ctrl-C came before its report was made
    (picture := store.reports / f"{done}.png").parent.mkdir(exist_ok=True)
    picture.write_bytes(b"")
    assert _unfinished(store, QUICK) is None


def test_a_checkpoint_that_is_gone_can_be_restored_or_begun_without(cli: Cli, tmp_path: Path) -> None:
    path, about = tmp_path / "s.db", {"who": "test", "now": time.time()}
    with open_store(path) as store:
        given: dict[str, Any] = {"kind": "quickstart", "model_ref": "m", "settings": asdict(QUICK), "salt": "s"}
        run = store.runs.begin(**given, **about).result()
        body = {"phase": "warm-up", "is_warm": False, "checkpoint": "c-1"}  # of a version before durable steps
        store.steps.add(run.id, "lesson-1", body, function=LEGACY_STEP, inputs_sha256="", now=time.time()).result()
        store.runs.end(run.id, RunState.CANCELLED, error=None, driver=1, **about).result()  # type: ignore[arg-type]
    ran = cli("quickstart", "--quick", "--store", path)
    assert (ran.code, ran.out) == (StoreError.exit_code, ""), ran.err
    gone = tmp_path / "checkpoints/c-1"
    anew = f"holdfast quickstart --quick --store {path} --fresh"
    line = f"holdfast: error: checkpoint c-1: {gone}: is missing; restore it from a copy, or begin anew: {anew}"
    assert ran.err.splitlines()[-1] == line
    with open_store(path) as store:
        assert _unfinished(store, QUICK) == run.id  # once it is restored


def test_what_cannot_start_says_why(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in ("-1", "1000001", "x"):
        ran = cli("quickstart", "--quick", "--seed", seed, "--store", tmp_path / "s.db")
        assert (ran.code, ran.out) == (2, "") and "--seed" in ran.err
    for words in (("--store", tmp_path), ("--store", tmp_path / "s.db", "--project", " ")):
        ran = cli("quickstart", "--quick", *words)
        assert ran.code in (BadInput.exit_code, StoreError.exit_code, NotFound.exit_code)
        assert ran.err.startswith("holdfast: error: ") and len(ran.err.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    said = cli("quickstart", "--quick", "--store", tmp_path / "s.db").refusal
    why = "needs PyTorch, which is not installed; pip install 'holdfast[learn]'"
    assert said == f"holdfast: error: quickstart: {why}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_highest_seed_has_tasks_and_examples_of_its_own() -> None:
    most = Quickstart(seed=10**6)
    last = most.seed * 1000 + most.grpo_steps
    assert generate("train", last, 1) != generate("train", last - 1, 1)
    prompts, _ = corpus("strong", "train", most.seed * 10**6 + 1000, 2)
    assert len(prompts) == 2
