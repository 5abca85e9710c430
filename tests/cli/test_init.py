"""`holdfast init`: four files, nothing overwritten, and a project that is in order before it is run.

Whole improvement of it takes half a minute: `tests/test_examples.py` has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.improve import CONFIG, files
from holdfast.contracts.settings import load_settings
from holdfast.pipeline.spec import improve_spec
from tests.cli.conftest import Cli


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_is_four_short_files_and_the_next_command(cli: Cli, here: Path) -> None:
    ran = cli("init", "support")
    assert ran.code == 0
    assert sorted(path.name for path in (here / "support").iterdir()) == sorted(files("support"))
    assert all(len(text.splitlines()) < 40 for name, text in files("support").items() if name != "tasks.jsonl")
    assert ran.lines[-1].startswith("  holdfast improve support/holdfast.toml")
    assert max(map(len, ran.lines)) <= 80


def test_nothing_is_overwritten(cli: Cli, here: Path) -> None:
    (here / "support").mkdir()
    (here / "support/score.py").write_text("mine")
    ran = cli("init", "support")
    assert (ran.code, "support/score.py: is there already" in ran.err) == (2, True)
    assert [path.name for path in (here / "support").iterdir()] == ["score.py"]
    assert (here / "support/score.py").read_text() == "mine"
    (here / "file").write_text("")
    assert cli("init", "file").code == 2
    assert cli("init", "a@b").code == 2


def test_its_json_names_the_files(cli: Cli, here: Path) -> None:
    told = cli("init", "support", "--json").json
    assert told["next"] == f"holdfast improve support/{CONFIG}"
    assert all(Path(path).is_file() for path in told["files"])


def test_its_settings_are_in_order_and_its_scorer_passes_the_kit(cli: Cli, here: Path) -> None:
    cli("init", "support")
    spec = improve_spec(load_settings(f"support/{CONFIG}"))
    spec.runtime.close()
    assert (spec.policy, spec.model_ref) == ("support", "local/sprout")
    held_out, train = spec.settings["validate"], spec.settings["optimize"]
    assert min(len(held_out), len(train)) > 60
    json.dumps(spec.settings)


def test_within_the_project_no_file_has_to_be_named(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("init", "support")
    monkeypatch.chdir(here / "support")
    Path("tasks.jsonl").write_text("")  # so that it ends at once, with the name of what it read
    ran = cli("improve")
    assert (ran.code, "tasks.jsonl" in ran.err) == (2, True)
