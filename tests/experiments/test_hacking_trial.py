"""`python -m experiments`: the group names its experiments; the hacking experiment resumes and tells."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from experiments import hacking_trial
from experiments.hacking import ARMS, CARELESS, GUARDED, KIND, HackingTrial
from experiments.trials import newest
from holdfast.contracts.run import DesiredState
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.experiments.conftest import Experiment
from tests.workloads.scene import tiny


def test_the_group_names_every_experiment(experiment: Experiment) -> None:
    ran = experiment("--help")
    assert ran.code == 0
    for name in ("hacking", "code", "redteam", "safety"):
        assert any(line.startswith(f"  {name} ") for line in ran.lines)
    assert max(map(len, ran.lines)) <= 80
    assert experiment("nothing").code == 2
    assert "--seeds" in experiment("hacking", "--help").out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The quick form with a model that learns in no time."""
    model = tiny(tmp_path_factory.mktemp("weights"))

    def smallest(trial: HackingTrial) -> HackingTrial:
        return HackingTrial(
            arm=trial.arm, seed=trial.seed, model=model, test_tasks=3, steps=1, tasks=1, samples=2, workers=2
        )

    monkeypatch.setattr("experiments.hacking.quick", smallest)
    return model


def test_each_seed_and_arm_is_a_run_and_a_second_call_runs_nothing_again(
    experiment: Experiment, small: str, files: Files, tmp_path: Path
) -> None:
    at = ("--store", str(files.fresh()), "--output", str(tmp_path / "out"))
    ran = experiment("hacking", "--quick", "--seeds", 2, *at)
    assert ran.code == 0, ran.err
    assert [line for line in ran.err.splitlines() if " of 4: " in line] == [
        f"{number} of 4: seed {seed}, {arm} reward"
        for number, (seed, arm) in enumerate([(seed, arm) for seed in (0, 1) for arm in ARMS], 1)
    ]
    assert max(map(len, [line for line in ran.lines if not line.startswith("  /")])) <= 80
    assert ran.lines[0] == "2 seeds, 6 held-out rollouts of each arm, 95 % intervals"
    assert [line.partition("  ")[0] for line in ran.lines[3:5]] == ["rollouts that cheat", "tasks solved"]
    assert "(so little practice shows that everything runs, not what is learnt)" in ran.lines
    assert (tmp_path / "out/hacking.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "out/hacking.json").read_text(encoding="utf-8"))
    assert [(run["arm"], run["seed"]) for run in told["runs"]] == [(arm, seed) for seed in (0, 1) for arm in ARMS]
    with open_store(at[1]) as store:
        runs = store.runs.newest(most=50)
    assert {run.kind for run in runs} == {"hacking"} and len(runs) == 4

    again = experiment("hacking", "--quick", "--seeds", 2, *at, "--json")
    assert again.code == 0 and " of 4: " not in again.err
    assert {name: again.json[name] for name in told} == told


def test_a_trial_that_stopped_is_taken_up_and_a_cancelled_one_begun_anew(small: str, files: Files) -> None:
    trial = quick_of(small, CARELESS)
    with open_store(files.fresh()) as store:
        assert newest(store, trial, KIND) is None
        run = began(store, trial)
        assert newest(store, trial, KIND) == run
        assert newest(store, quick_of(small, GUARDED), KIND) is None
        store.runs.want(run, DesiredState.CANCELLED, who="ann", why="test", now=2.0).result()
        assert newest(store, trial, KIND) is None


def quick_of(model: str, arm: str) -> HackingTrial:
    return HackingTrial(arm=arm, model=model, test_tasks=3, steps=1, tasks=1, samples=2, workers=2)


def began(store: Store, trial: HackingTrial) -> str:
    return (
        store.runs.begin(
            kind="hacking", model_ref="m", settings=asdict(trial), salt="a", who="ann", now=1.0, queue_limit=None
        )
        .result()
        .id
    )


def test_a_place_for_its_files_that_is_a_file_is_refused(experiment: Experiment, tmp_path: Path, files: Files) -> None:
    (tmp_path / "f").write_text("x", encoding="utf-8")
    ran = experiment("hacking", "--output", tmp_path / "f", "--store", files.fresh())
    assert ran.code == 2 and ran.err.endswith("is a file; name a folder\n")


def test_to_go_on_is_the_same_command() -> None:
    call = hacking_trial._call(5, True, Path("a b"), "s.db", "mine")
    assert call == "python -m experiments hacking --seeds 5 --quick --output 'a b' --store s.db --project mine"
