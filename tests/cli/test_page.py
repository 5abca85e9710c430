"""holdfast report page: by run, by the id of its reports or by a proof's file; beside the proof, or elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Answer, Cli
from tests.operate.publications import RUN, published


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ".holdfast"


@pytest.fixture
def page(cli: Cli, state: Path) -> Callable[..., Answer]:
    return lambda *words: cli("report", "page", *words, "--store", state / "training/store.sqlite")


@pytest.mark.parametrize("by", ["run", "id", "file"])
def test_the_page_of_a_proof_is_written_beside_it(page: Callable[..., Answer], state: Path, by: str) -> None:
    proof = published(state)
    out = page({"run": "run-7-C0FFEE", "id": RUN, "file": proof}[by]).out
    expected = proof.with_name(f"m24-benchmark-page-{RUN}.html")
    assert out == f"{expected}\n"
    assert expected.read_text().startswith("<!doctype html>") and "sprout@2" in expected.read_text()


def test_a_run_with_several_proofs_shows_the_last(page: Callable[..., Answer], state: Path) -> None:
    for number in (9, 10, 2):
        published(state, run=f"m24-run-7-{number}")
    published(state, run="m24-run-77-99")  # another run that begins alike
    published(state, run="m24-run-7-9-11")
    assert page("run-7").out.endswith("/m24-run-7-10/m24-benchmark-page-m24-run-7-10.html\n")


def test_the_page_can_be_put_elsewhere_and_told_as_json(
    page: Callable[..., Answer], state: Path, tmp_path: Path
) -> None:
    proof, target = published(state, rates=(0.3, 0.8), tasks=100), tmp_path / "new" / "page.html"
    told = page(RUN, "--output", target, "--json", "--primary", "reward").json
    assert told == {
        "page": str(target),
        "proof": str(proof),
        "run_id": RUN,
        "outcome": "promote",
        "standing": "promote",
        "tasks": 100,
    }
    assert "reward" in target.read_text() and not list(proof.parent.glob("*.html"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run-1"], "run run-1: there is no proof of it in .*/reports; 'holdfast report list' shows all"),
        (["m24-run-7-c0ffee-3"], "run m24-run-7-c0ffee-3: there is no proof of it"),
        (["nothing.json"], "proof nothing.json: there is no such file"),
        ([RUN, "--output", "/"], "--output /: is a folder; name a file in it"),
        ([RUN, "--primary", "charm"], "primary = 'charm': has no range"),
        ([RUN, "--primary", "reward", "--reward-range", "0.5", "1"], "reward = 0.1: outside 0.5 to 1"),
        ([RUN, "--max-cost", "0.01"], "max_safety_regression = 0.05: must be from 0 to below max_cost"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    page: Callable[..., Answer], state: Path, words: list[str], expected: str
) -> None:
    published(state)
    ran = page(*words)
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1
    assert re.search(expected, ran.err)
    assert not list(state.rglob("*.html"))


def test_a_proof_that_does_not_hold_has_no_page(page: Callable[..., Answer], state: Path) -> None:
    proof = published(state)
    told = json.loads(proof.read_text())
    told["significance"]["p_value"] = 0.0
    proof.write_text(json.dumps(told))
    ran = page(RUN)
    assert ran.code == 2 and ".json: $." in ran.err and "report validate" in ran.err
