"""`python -m experiments safety`: a run a seed and arm, taken up where it stopped, told in 80 columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from experiments import safety
from experiments.plots import draw_safety, mean_course
from experiments.safety import SafetyOutcome, SafetyTrial
from experiments.trials import carry_out, check, keep
from holdfast.contracts.errors import BadInput
from holdfast.contracts.run import DesiredState
from holdfast.store.store import open_store
from holdfast.workloads.trials import TrialKind, newest
from tests.conftest import Files
from tests.experiments.conftest import Experiment
from tests.workloads.scene import tiny


def test_the_group_names_every_experiment(experiment: Experiment) -> None:
    ran = experiment("--help")
    assert ran.code == 0
    for name in ("code", "redteam", "safety", "turns", "privacy"):
        assert any(line.startswith(f"  {name} ") for line in ran.lines)
    assert max(map(len, ran.lines)) <= 80
    assert experiment("nothing").code == 2
    assert "--seeds" in experiment("safety", "--help").out


@dataclass(frozen=True)
class Case:
    """An experiment, and what is told of its quick form."""

    name: str
    seeds: int
    arms: tuple[str, ...]
    trial: Callable[..., Any]
    title: str  # of a run
    first: str
    rows: list[str]
    quick: str


SIZES = {"steps": 1, "tasks": 1, "samples": 2, "test_tasks": 3, "workers": 2}
CASES = [
    Case(
        "safety",
        1,
        tuple(safety.ARMS),
        lambda **given: SafetyTrial(**given, warm_up_updates=1),
        "seed {}, {}",
        "1 seed, 3 held-out attempts of each arm; budget 0.05 unsafe calls an attempt",
        [arm.replace("-", " ") for arm in safety.ARMS],
        "too short to conclude anything: 1 step of practice and 3 held-out tasks a seed",
    ),
]
EACH = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that learns in no time."""
    return tiny(tmp_path_factory.mktemp("weights"))


@EACH
def test_each_seed_and_arm_is_a_run_and_a_second_call_runs_nothing_again(
    case: Case, model: str, experiment: Experiment, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def smallest(trial: Any) -> Any:
        return case.trial(arm=trial.arm, seed=trial.seed, model=model, **SIZES)

    monkeypatch.setattr(f"experiments.{case.name}.quick", smallest)
    words = (
        case.name,
        "--quick",
        "--seeds",
        case.seeds,
        "--store",
        str(files.fresh()),
        "--output",
        str(tmp_path / "out"),
    )
    ran = experiment(*words)
    assert ran.code == 0, ran.err
    every = [(seed, arm) for seed in range(case.seeds) for arm in case.arms]
    many = len(every)
    assert [line for line in ran.err.splitlines() if f" of {many}: " in line] == [
        f"{number} of {many}: {case.title.format(*one)}" for number, one in enumerate(every, 1)
    ]
    assert max(map(len, [line for line in ran.lines if not line.startswith("  /")])) <= 80
    assert ran.lines[0] == case.first and case.quick in ran.lines
    assert [line.partition("  ")[0] for line in ran.lines[3 : 3 + len(case.rows)]] == case.rows
    assert "within" not in ran.out and "over budget" not in ran.out  # numbers, and no verdict
    assert (tmp_path / f"out/{case.name}.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / f"out/{case.name}.json").read_text(encoding="utf-8"))
    assert [(run["seed"], run["arm"]) for run in record["runs"]] == every
    if case.name == "safety":
        assert set(record["arms"]) == set(case.arms) and record["is_quick"] and record["is_shown"] is None
    with open_store(str(words[5])) as store:
        runs = store.runs.newest(most=50)
    assert {run.kind for run in runs} == {case.name} and len(runs) == many

    again = experiment(*words, "--json")
    assert again.code == 0 and f" of {many}: " not in again.err
    assert {name: again.json[name] for name in record} == record


@EACH
def test_a_trial_that_stopped_is_taken_up_and_a_cancelled_one_begun_anew(case: Case, files: Files) -> None:
    trial, other = (case.trial(arm=arm, **SIZES) for arm in case.arms[:2])
    with open_store(files.fresh()) as store:
        assert newest(store, trial, case.name) is None
        how: dict[str, Any] = {"model_ref": "m", "salt": "a", "who": "ann", "now": 1.0, "queue_limit": None}
        run = store.runs.begin(kind=case.name, settings=asdict(trial), **how).result().id
        assert newest(store, trial, case.name) == run
        assert newest(store, other, case.name) is None
        store.runs.want(run, DesiredState.CANCELLED, who="ann", why="test", now=2.0).result()
        assert newest(store, trial, case.name) is None


@EACH
def test_a_file_in_the_place_of_its_folder_is_refused(
    case: Case, experiment: Experiment, tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    ran = experiment(case.name, "--output", tmp_path / "f", "--store", files.fresh())
    assert ran.code == 2 and "is a file; name a folder" in ran.err
    check(case.name, tmp_path)
    check(case.name, None)
    monkeypatch.setattr("holdfast.cli.options.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=rf"experiment {case.name}: needs PyTorch.*holdfast\[learn\]"):
        check(case.name, None)


def test_to_go_on_is_the_same_command(
    files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.workloads.trials.run_all", lambda *given: ([], 130))
    kind: TrialKind[Any, Any] = TrialKind(kind="safety", spec_for=max, outcome=max, title=str)  # type: ignore[arg-type]
    at = files.fresh()
    with pytest.raises(typer.Exit) as stopped:
        carry_out([1, 2], kind, (str(at), "mine"), {"seeds": 3, "quick": True, "budget": 0.1, "output": Path("a b")})
    call = f"python -m experiments safety --seeds 3 --quick --budget 0.1 --output 'a b' --store {at} --project mine"
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == f"0 of 2 runs are done; to go on:\n  {call}\n"


def test_the_table_and_the_picture_are_kept_in_a_folder_that_is_made(tmp_path: Path) -> None:
    files = keep(tmp_path / "a/b", "safety", {"x": 1}, lambda path: path.write_text("drawn") and None)
    assert files == [tmp_path / "a/b/safety.png", tmp_path / "a/b/safety.json"]
    assert files[0].read_text() == "drawn" and json.loads(files[1].read_text()) == {"x": 1}


# Plots


def cost(arm: str, costs: list[float | None]) -> SafetyOutcome:
    many = len(costs)
    ways: dict[str, Any] = {"successes": [0.5] * many, "multipliers": [0.5] * many if arm == safety.CONSTRAINED else []}
    trial = SafetyTrial(arm=arm, seed=0)
    return SafetyOutcome(trial=trial, run="r", success=0.9, cost=0.1, of=10, costs=costs, **ways)


def test_the_course_is_the_mean_over_seeds_that_have_a_value() -> None:
    arm, other = safety.UNCONSTRAINED, safety.CONSTRAINED
    given = [cost(arm, [0.0, 0.5, None]), cost(arm, [1.0, None, None]), cost(other, [0.3])]
    assert mean_course(given, arm, "costs") == [0.5, 0.5, None]
    assert mean_course(given, other, "costs") == [0.3]
    assert mean_course([], arm, "costs") == []


def test_a_picture_is_drawn_even_where_steps_are_missing(tmp_path: Path) -> None:
    costs = [cost(arm, [1.0, None, 0.2]) for arm in safety.ARMS]
    held = safety.weigh(costs)
    assert held is not None
    draw_safety(tmp_path / "b.png", costs, held)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
