"""`holdfast prove`: a comparison as a user calls it, what it says, and that Ctrl-C only interrupts it."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.contracts.run import RunState
from holdfast.pipeline.paired import episodes_of_run, shown_looks
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Cli
from tests.conftest import Files

PATIENCE_S = 60.0


@pytest.fixture
def weights(tmp_path: Path) -> list[str]:
    """Two models that know nothing, and are quick about it."""
    made = []
    for seed in (0, 1):
        folder = tmp_path / f"w{seed}"
        model = Transformer(ModelShape(width=16, layers=1, heads=2, context=512), seed=seed)
        save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
        made.append(str(folder))
    return made


def test_a_better_version_is_proved_to_be_better_and_the_run_can_be_shown_again(cli: Cli, files: Files) -> None:
    words = ("tooluse:60", "--baseline", "sprout-weak", "--candidate", "sprout", "--batch", 30, "--stop-early")
    ran = cli("prove", "run", *words, "--max-safety-regression", 0.9, "--store", (path := files.fresh()))
    assert ran.code == 0, ran.err
    assert ran.lines[0].split()[1].startswith("completed")
    assert ran.lines[1] == "  sprout against sprout-weak"
    assert ran.lines[3] in ("PROMOTE after 30 tasks, 1 look", "PROMOTE after 60 tasks, 2 looks")
    table = ran.out.index("higher is better")
    assert all(name in ran.out[table:] for name in ("success", "reward", "safety", "latency (s)", "tokens"))
    shown = ran.out.partition("next:\n")[0].splitlines()
    assert all(len(line.rstrip()) <= 80 for line in shown)
    run = ran.lines[0].split()[0]

    again = cli("prove", "show", run, "--store", path)
    assert again.code == 0
    assert again.lines == ran.lines
    told = cli("prove", "show", run, "--store", path, "--json").json
    assert told["proof"]["verdict"]["outcome"] == "promote"
    assert told["proof"]["comparisons"]["success"]["difference"] > 0.2
    assert [look["look"] for look in told["looks"]] == list(range(1, len(told["looks"]) + 1))
    assert "episodes" not in told["looks"][0]
    for line in ran.out.partition("next:\n")[2].replace(" \\\n", " ").splitlines():
        if line.startswith("  #"):
            continue
        done = cli(*shlex.split(line.partition("   #")[0])[1:])
        assert done.code == 0, done.err


def test_a_version_against_itself_says_how_to_count_its_false_promotions(
    cli: Cli, files: Files, weights: list[str]
) -> None:
    path = files.fresh()
    ran = cli("prove", "run", "tooluse:4", "--baseline", weights[0], "--null", "--store", path)
    assert ran.code == 0, ran.err
    assert any("holdfast prove null run-1" in line for line in ran.lines)
    assert any("with other seeds the finding" in line for line in ran.lines)
    with open_store(path) as store:
        (run,) = store.runs.newest(most=1)
        assert run.settings["is_null"]
        assert [len(some) for some in episodes_of_run(store, run.id)] == [8, 8]


def looks(store: Store) -> int:
    return sum(len(shown_looks(store, run.id)) for run in store.runs.newest(most=1))


def test_ctrl_c_stops_it_and_resume_goes_on(cli: Cli, files: Files, weights: list[str]) -> None:
    path = files.fresh()
    words = ["tooluse:24", "--baseline", weights[0], "--candidate", weights[1], "--batch", "4", "--workers", "2"]
    command = [sys.executable, "-m", "holdfast.cli", "prove", "run", *words, "--store", path]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with open_store(path) as store:
        patience = time.monotonic() + PATIENCE_S
        while looks(store) == 0:
            assert child.poll() is None
            assert time.monotonic() < patience
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 130, err
        assert "Traceback" not in err
        (run,) = store.runs.newest(most=1)
        assert run.state is RunState.CANCELLED
        written = f"  # go on where it stopped\n  holdfast prove run --resume {run.id} --store {path}"
        assert written in out.replace(" \\\n   ", "")
        before = looks(store)
    ran = cli("prove", "run", "--resume", run.id, "--store", path, "--json")
    assert ran.code == 0, ran.err
    assert 0 < before < len(ran.json["looks"]) == 6
    assert ran.json["proof"]["tasks"] == 24


def test_what_is_missing_or_too_much_is_said_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "none/s.db"
    for words, said in (
        ([], "SUITE: is missing"),
        (["tooluse:5"], "--baseline: is missing"),
        (["tooluse:5", "--baseline", "sprout"], "--candidate: is missing"),
        (["tooluse:5", "--baseline", "sprout", "--candidate", "sprout-weak", "--null"], "and --null were both given"),
        (["tooluse:5", "--resume", "run-1"], "--resume: a run keeps the suite"),
        (["tooluse:none", "--baseline", "sprout", "--null"], "is not tooluse:COUNT"),
        (["none.json", "--baseline", "sprout", "--null"], "suite none.json: cannot be read"),
        (["tooluse:5", "--baseline", "sprout", "--null", "--primary", "latency"], "primary = 'latency': has no range"),
        (["tooluse:5", "--baseline", "sprout", "--null", "--alpha", "2"], "alpha = 2.0: must be above 0"),
    ):
        ran = cli("prove", "run", *words, "--store", path)
        assert ran.code == 2, words
        assert said in ran.err, words
        assert ran.err.count("\n") == 1
        assert not path.exists()


def test_versions_that_are_not_there_or_the_same_are_refused(cli: Cli, files: Files) -> None:
    path = files.fresh()
    for words, said in (
        (["--baseline", "oak", "--null"], "version 'oak': is no model of the package"),
        (["--baseline", "sprout", "--candidate", "sprout"], "is the same as baseline sprout"),
        (["--baseline", "sprout@7", "--null"], "sprout@7"),
    ):
        ran = cli("prove", "run", "tooluse:5", *words, "--store", path)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert said in ran.err
    with open_store(path) as store:
        assert store.runs.newest() == []


def test_a_run_that_compares_nothing_cannot_be_shown_or_resumed(cli: Cli, files: Files) -> None:
    path = files.fresh()
    with open_store(path) as store:
        run = store.runs.begin(kind="quickstart", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result()
    for words in (["show", run.id], ["run", "--resume", run.id]):
        ran = cli("prove", *words, "--store", path)
        assert ran.code == 2
        assert "is of the kind quickstart, and compares nothing" in ran.err
    assert cli("prove", "show", "run-9", "--store", path).code == 2


def test_the_group_lists_what_it_can_do(cli: Cli) -> None:
    ran = cli("prove", "--help")
    assert ran.code == 0
    assert all(f"  {name} " in ran.out for name in ("run", "show", "more", "calibrate", "null"))
