"""holdfast report page: by run, by the id of its reports or by a proof's file; beside the proof, or elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli.page import page
from holdfast.contracts.errors import BadInput
from holdfast.store.store import open_store
from tests.operate.publications import RUN, published


@pytest.fixture
def state(tmp_path: Path) -> Path:
    open_store(str(tmp_path / ".holdfast/training/store.sqlite")).close()
    return tmp_path / ".holdfast"


def called(state: Path, *words: object) -> str:
    """What the command prints; an error is the test's."""
    alone = typer.Typer()
    alone.command()(page)
    ran = CliRunner().invoke(alone, [*map(str, words), "--store", str(state / "training/store.sqlite")])
    if isinstance(ran.exception, BadInput):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize("by", ["run", "id", "file"])
def test_the_page_of_a_proof_is_written_beside_it(state: Path, by: str) -> None:
    proof = published(state)
    out = called(state, {"run": "run-7-C0FFEE", "id": RUN, "file": proof}[by])
    expected = proof.with_name(f"m24-benchmark-page-{RUN}.html")
    assert out == f"{expected}\n"
    assert expected.read_text().startswith("<!doctype html>") and "sprout@2" in expected.read_text()


def test_a_run_with_several_proofs_shows_the_last(state: Path) -> None:
    for number in (9, 10, 2):
        published(state, run=f"m24-run-7-{number}")
    published(state, run="m24-run-77-99")  # another run that begins alike
    published(state, run="m24-run-7-9-11")
    assert called(state, "run-7").endswith("/m24-run-7-10/m24-benchmark-page-m24-run-7-10.html\n")


def test_the_page_can_be_put_elsewhere_and_told_as_json(state: Path, tmp_path: Path) -> None:
    proof, target = published(state, rates=(0.3, 0.8)), tmp_path / "new" / "page.html"
    told = json.loads(called(state, RUN, "--output", target, "--json", "--primary", "reward"))
    assert told == {
        "page": str(target),
        "proof": str(proof),
        "run_id": RUN,
        "outcome": "promote",
        "tasks": 60,
    }
    assert "reward" in target.read_text() and not list(proof.parent.glob("*.html"))


def test_a_run_without_reports_is_refused_before_anything_is_written(state: Path) -> None:
    with pytest.raises(BadInput, match="run run-1: no proof of it under .*reports; 'holdfast report list' shows all"):
        called(state, "run-1")
    with pytest.raises(BadInput, match="there is no such file"):
        called(state, state / "reports/nothing.json")


def test_a_folder_is_no_place_for_a_page(state: Path, tmp_path: Path) -> None:
    published(state)
    with pytest.raises(BadInput, match="is a folder; name a file in it"):
        called(state, RUN, "--output", tmp_path)


def test_an_unknown_metric_is_refused(state: Path) -> None:
    published(state)
    with pytest.raises(BadInput, match="primary = 'charm'"):
        called(state, RUN, "--primary", "charm")
