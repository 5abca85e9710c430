"""What a run has proved about two versions, as it is printed: `prove show` and `prove run` use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.workloads.scene import tiny


@pytest.fixture
def at(tmp_path: Path, cli: Cli) -> tuple[object, ...]:
    store = ("--store", str(tmp_path / "s.sqlite"))
    ran = cli(
        *("prove", "run", "tooluse:3", "--baseline", tiny(tmp_path / "a", 0), "--candidate", tiny(tmp_path / "b", 1)),
        *store,
    )
    assert ran.code == 0, ran.err
    return store


def test_every_look_and_what_all_episodes_come_to_fit_80_columns(at: tuple[object, ...], cli: Cli) -> None:
    shown = cli("prove", "show", "run-1", *at)
    assert shown.code == 0, shown.err
    assert any(line.startswith("HOLD after 3 tasks, 1 look") for line in shown.lines)
    assert max(len(line) for line in shown.lines if "/" not in line) <= 80


def test_as_json_a_look_has_no_episodes_and_the_proof_its_verdict(at: tuple[object, ...], cli: Cli) -> None:
    told = cli("prove", "show", "run-1", *at, "--json").json
    assert told["proof"]["verdict"]["outcome"] == "hold" and told["proof"]["tasks"] == 3
    assert [("episodes" in one, one["tasks"]) for one in told["looks"]] == [(False, 3)]
