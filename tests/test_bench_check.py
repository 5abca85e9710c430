"""The gate against slow decay: ratios are compared with those committed, each by its own tolerance and direction."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import bench_check as gate

ROOT = Path(__file__).parents[1]
COMMITTED = {"store.raw_ceiling_ratio": 0.5, "store.growth": 1.0, "store.rollouts_per_cpu_s": 4_000.0}
FIGURES = {"raw_ceiling_ratio": 0.5, "growth": 1.0, "rollouts_per_cpu_s": 2_000.0, "reference_ms": 2.0}


@pytest.mark.parametrize(
    ("changed", "fallen"),
    [
        ({}, []),
        ({"raw_ceiling_ratio": 0.38}, []),  # within a quarter
        ({"raw_ceiling_ratio": 0.37}, ["store.raw_ceiling_ratio"]),
        ({"raw_ceiling_ratio": 5.0}, []),  # better is no fall
        ({"growth": 1.29}, []),
        ({"growth": 1.31}, ["store.growth"]),  # here lower is better
        ({"rollouts_per_cpu_s": 1_000.0, "reference_ms": 4.0}, []),  # the machine is half as fast, and so are we
        ({"rollouts_per_cpu_s": 1_000.0}, ["store.rollouts_per_cpu_s"]),
        ({"raw_ceiling_ratio": 0.1, "growth": 9.0}, ["store.growth", "store.raw_ceiling_ratio"]),
    ],
)
def test_a_ratio_that_fell_by_more_than_its_tolerance_is_named(changed: dict[str, float], fallen: list[str]) -> None:
    rows = gate.compare(gate.ratios_of("store", {**FIGURES, **changed}), COMMITTED, {"store": None})
    assert [row.key for row in rows if row.is_fall] == fallen
    shown = gate.table(rows).splitlines()
    assert [line.split()[0] for line in shown[1 : 1 + len(fallen)]] == fallen  # they stand first


def test_what_could_not_be_measured_fails_nothing_and_what_is_no_longer_measured_does() -> None:
    found = gate.ratios_of("store", {**FIGURES, "vs_agentlightning_03": None})
    states = {row.key: row.state for row in gate.compare(found, {**COMMITTED, "store.old": 1.0}, {"store": None})}
    assert states["store.vs_agentlightning_03"] == "not measured" and states["store.old"] == "gone"
    elsewhere = gate.compare(found, {**COMMITTED, "town.vs_townlet": 9.0}, {"store": None})
    assert "town.vs_townlet" not in {row.key for row in elsewhere}  # that benchmark was not run
    first = gate.compare(found, {}, {"store": None})
    assert {row.state for row in first} == {"new", "not measured"} and not any(row.is_fall for row in first)


def test_every_number_of_an_object_is_a_ratio() -> None:
    found = gate.ratios_of("learn", {"generate_share_of_ceiling": {"1": 0.5, "64": 0.7}, "gae_vs_numpy": 3})
    assert {key: value for key, (_, value) in found.items() if value is not None} == {
        "learn.generate_share_of_ceiling.1": 0.5,
        "learn.generate_share_of_ceiling.64": 0.7,
        "learn.gae_vs_numpy": 3.0,
    }


@pytest.mark.parametrize(("now", "code"), [(0.5, 0), (0.1, 1)])
def test_the_command_exits_with_1_when_something_fell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, now: float, code: int
) -> None:
    monkeypatch.setattr(gate, "COMMITTED", tmp_path / "ratios.json")
    (tmp_path / "ratios.json").write_text(json.dumps(COMMITTED))
    monkeypatch.setattr(gate, "measured", lambda name: {**FIGURES, "raw_ceiling_ratio": now})
    monkeypatch.setattr(sys, "argv", ["bench_check.py", "store", "--json"])
    assert gate.main() == code
    assert json.loads(capsys.readouterr().out)["fell"] == (["store.raw_ceiling_ratio"] if code else [])
    monkeypatch.setattr(sys, "argv", ["bench_check.py", "store", "--keep"])
    assert gate.main() == 0 and gate.read()["store.raw_ceiling_ratio"] == now


def test_a_benchmark_that_fails_is_a_fall_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(gate, "COMMITTED", tmp_path / "ratios.json")
    monkeypatch.setattr(gate, "measured", lambda name: None if name == "town" else FIGURES)
    monkeypatch.setattr(sys, "argv", ["bench_check.py", "town", "store"])
    assert gate.main() == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split() == ["town", "-", "-", "-", "broken"] and any("store.growth" in line for line in shown)


def test_every_benchmark_has_ratios_and_every_committed_one_is_of_a_benchmark() -> None:
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == set(gate.RATIOS)
    keys = {f"{name}.{ratio.key}" for name, ratios in gate.RATIOS.items() for ratio in ratios}
    assert all(any(re.match(re.escape(key) + r"(\.|$)", one) for key in keys) for one in gate.read())
    assert gate.read()


def test_it_is_a_target_of_make_and_no_part_of_ci() -> None:
    assert "tools/bench_check.py" in (ROOT / "Makefile").read_text()
    workflows = (ROOT / ".github/workflows").glob("*") if (ROOT / ".github").exists() else ()
    assert not any("bench" in path.read_text() for path in workflows)
