"""`holdfast town`: a run that is kept, lived again and looked at; watching; rules that are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

FEW = ("--residents", "12")


def test_a_run_is_kept_and_lived_again_bit_by_bit(cli: Cli, tmp_path: Path) -> None:
    kept = [("--save", tmp_path / "a.npz"), ("--replay", tmp_path / "a.replay"), ("--record", tmp_path / "a.frames")]
    ran = cli("town", "run", "--days", 0.1, *FEW, "--seed", 7, "--json", *(word for pair in kept for word in pair))
    assert ran.code == 0 and ran.json["tick"] == 144 and ran.json["kpis"]["residents"] == 12
    again = cli("town", "replay", tmp_path / "a.replay", *FEW, "--json")
    assert again.code == 0 and again.json["same"] is True and again.json["state"] == ran.json["state"]
    on = cli("town", "run", "--days", 0.1, *FEW, "--from", tmp_path / "a.npz", "--json")
    whole = cli("town", "run", "--days", 0.2, *FEW, "--seed", 7, "--json")
    assert on.json["state"] == whole.json["state"] and on.json["tick"] == 288
    for name, kind, tick in (
        ("a.npz", "snapshot", "tick"),
        ("a.replay", "replay", "ticks"),
        ("a.frames", "recording", "last_tick"),
    ):
        told = cli("town", "inspect", tmp_path / name, "--json")
        assert told.json["kind"] == kind and told.json[tick] == 144
        assert kind in cli("town", "inspect", tmp_path / name).lines[1]
    frame = cli("town", "replay", tmp_path / "a.frames", "--tick", 100, "--json").json
    assert frame["key"] and frame["tick"] == 100


def test_a_run_that_ends_otherwise_is_told_by_its_exit_code(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a"
    cli("town", "run", "--days", 0.01, *FEW, "--replay", file)
    file.write_text(re.sub(r'"state": "\w', '"state": "x', file.read_text()))
    ran = cli("town", "replay", file, *FEW)
    assert ran.code == 1 and ran.lines == ["14 ticks, 0 commands: NOT the same"]


def test_a_run_tells_how_the_town_did(cli: Cli) -> None:
    ran = cli("town", "run", "--days", 0.05, *FEW)
    assert ran.code == 0 and ran.lines[-2] == "healthy" and ran.lines[-1].endswith("after 72 ticks")
    assert ["alive", "100", "%"] in [line.split() for line in ran.lines]
    assert any(line.startswith("needs met") for line in ran.lines) and max(map(len, ran.lines)) <= 80


def test_behind_a_veil_the_recording_names_nobody(cli: Cli, tmp_path: Path) -> None:
    cli("town", "run", "--days", 0.1, *FEW, "--privacy", "--record", tmp_path / "a")
    text = (tmp_path / "a").read_text()
    assert '"Ada"' not in text and "R-" in text and '"seed"' not in text
    assert cli("town", "inspect", tmp_path / "a", "--json").json["private"] is True


def test_stages_wait_for_green_windows_or_for_a_reason(cli: Cli, tmp_path: Path) -> None:
    log = ("--stages", tmp_path / "stages.jsonl")
    first = cli("town", "run", "--days", 1, *FEW, *log, "--json")
    assert first.json["stages"] == ["needs"] and len(first.json["windows"]) == 2
    is_green = all(not window["faults"] for window in first.json["windows"])
    second = cli("town", "run", "--days", 0.01, *FEW, *log, "--json")
    assert second.json["stages"] == (["needs", "work"] if is_green else ["needs"])
    third = cli("town", "run", "--days", 0.01, *FEW, *log, "--unlock", "ties", "--why", "to see", "--json")
    assert third.json["stages"] == ["needs", "work", "ties"]
    for words, message in ((("--unlock", "ties"), "takes a reason"), (("--unlock", "x", "--why", "y"), "is unknown")):
        refused = cli("town", "run", *log, *words)
        assert refused.code == 2 and message in refused.err
    assert "give --stages FILE" in cli("town", "run", "--unlock", "ties").err


def test_validate_lists_everything_that_is_wrong(cli: Cli, tmp_path: Path) -> None:
    assert cli("town", "validate").lines[0].startswith("the rules are whole: ")
    bad = tmp_path / "bad.toml"
    bad.write_text("residents = 0\n[needs]\nhunger = { decay = -1, weight = 1, low = 0.4 }\n")
    told = cli("town", "validate", bad)
    assert told.code == 1 and len(told.lines) >= 2 and all(";" in line for line in told.lines)
    assert cli("town", "validate", bad, "--json").json["valid"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--rules", "none.toml"), "none.toml"),
        (("run", "--save", "nowhere/a.npz"), "nowhere/a.npz: its folder does not exist; make it first"),
        (("run", "--from", "none.npz"), "No such file"),
        (("replay", "none"), "none: No such file"),
        (("inspect", "none"), "none: No such file"),
        (("watch", "--web", "--host", "0.0.0.0"), "everyone who reaches this machine could watch; give --token"),
        (("watch", "--web", "--operator", "short"), "token of operator: is too short"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(
    words: tuple[str, ...], message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("town", *words)
    assert ran.code == 2 and message in ran.err and len(ran.err.splitlines()) == 1


def test_orders_are_listed_with_their_roles(cli: Cli) -> None:
    told = cli("town", "orders")
    assert any(line.startswith("rain") and "operator" in line for line in told.lines)
    assert {one["name"] for one in cli("town", "orders", "--json").json} >= {"rain", "kill", "inspect"}


def test_bench_tells_figures(cli: Cli) -> None:
    assert cli("town", "bench", "--worlds", 2, "--ticks", 5, "--json").json["agent_steps_per_s"] > 0


def test_watching_writes_windows_to_the_log_of_stages_as_a_run_does(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "stages.jsonl"
    cli("town", "watch", "--ticks", 1441, *FEW, "--stages", log)
    kept = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["what"], one["stage"]) for one in kept] == [("window", "needs")] * 2
    ran = cli("town", "run", "--days", 0.01, *FEW, "--stages", log, "--json")
    assert ran.json["stages"] == (["needs", "work"] if all(one["green"] for one in kept) else ["needs"])
    assert "give --stages FILE" in cli("town", "watch", "--unlock", "ties").err
