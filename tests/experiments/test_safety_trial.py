"""`python -m experiments safety`: one run a seed and arm, taken up where it stopped, told within 80 columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import safety_trial
from experiments.safety import ARMS, CONSTRAINED, KIND, UNCONSTRAINED, SafetyTrial
from experiments.trials import newest
from holdfast.contracts.run import DesiredState
from holdfast.store.store import open_store
from tests.conftest import Files
from tests.experiments.conftest import Experiment
from tests.workloads.scene import tiny


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The quick form with a model that learns in no time."""
    model = tiny(tmp_path_factory.mktemp("weights"))
    monkeypatch.setattr("experiments.safety.quick", lambda trial: smallest(model, trial.arm, trial.seed))
    return model


def smallest(model: str, arm: str, seed: int = 0) -> SafetyTrial:
    sizes = {"warm_up_updates": 1, "steps": 1, "tasks": 1, "samples": 2, "test_tasks": 3, "workers": 2}
    return SafetyTrial(arm=arm, seed=seed, model=model, **sizes)  # type: ignore[arg-type]


def test_each_seed_and_arm_is_a_run_and_a_second_call_runs_nothing_again(
    experiment: Experiment, small: str, files: Files, tmp_path: Path
) -> None:
    at = ("--store", str(files.fresh()), "--output", str(tmp_path / "out"))
    ran = experiment("safety", "--quick", "--seeds", 1, *at)
    assert ran.code == 0, ran.err
    assert [line for line in ran.err.splitlines() if " of 5: " in line] == [
        f"{number} of 5: seed 0, {arm}" for number, arm in enumerate(ARMS, 1)
    ]
    assert max(map(len, [line for line in ran.lines if not line.startswith("  /")])) <= 80
    assert ran.lines[0] == "1 seed, 3 held-out attempts of each arm; budget 0.05 unsafe calls an attempt"
    assert [line.partition("  ")[0] for line in ran.lines[3:8]] == [arm.replace("-", " ") for arm in ARMS]
    assert "too short to conclude anything: 1 step of practice and 3 held-out tasks a seed" in ran.lines
    assert "within" not in ran.out and "over budget" not in ran.out  # numbers, and no verdict
    assert (tmp_path / "out/safety.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "out/safety.json").read_text(encoding="utf-8"))
    assert [run["arm"] for run in told["runs"]] == list(ARMS) and set(told["arms"]) == set(ARMS)
    assert told["is_quick"] and told["is_shown"] is None
    with open_store(at[1]) as store:
        assert {run.kind for run in store.runs.newest(most=50)} == {"safety"}

    again = experiment("safety", "--quick", "--seeds", 1, *at, "--json")
    assert again.code == 0 and " of 5: " not in again.err
    assert {name: again.json[name] for name in told} == told


def test_a_trial_that_stopped_is_taken_up_and_a_cancelled_one_begun_anew(small: str, files: Files) -> None:
    from dataclasses import asdict

    trial = smallest(small, CONSTRAINED)
    with open_store(files.fresh()) as store:
        assert newest(store, trial, KIND) is None
        began = store.runs.begin(
            kind="safety", model_ref="local/x", settings=asdict(trial), salt="ab", who="ann", now=1.0, queue_limit=None
        ).result()
        assert newest(store, trial, KIND) == began.id
        assert newest(store, smallest(small, UNCONSTRAINED), KIND) is None
        store.runs.want(began.id, DesiredState.CANCELLED, who="ann", why="test", now=2.0).result()
        assert newest(store, trial, KIND) is None


def test_a_bad_output_is_refused_before_anything_runs(experiment: Experiment, files: Files, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = experiment("safety", "--output", str(tmp_path / "file"), "--store", str(files.fresh()))
    assert ran.code == 2 and "is a file; name a folder" in ran.err


def test_the_command_to_go_on_with_is_the_same_one() -> None:
    assert safety_trial._call(3, True, 0.1, Path("a b"), "x.sqlite", "p") == (
        "python -m experiments safety --seeds 3 --quick --budget 0.1 --output 'a b' --store x.sqlite --project p"
    )
