"""What the calls have in common: warnings before, a waiver in the ledger, and what is kept of a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.conftest import Improved
from tests.api.scene import short
from tests.endpoint import Endpoint


def test_a_waiver_is_in_the_ledger_and_on_every_page(endpoint: Endpoint, at: Path) -> None:
    result = hf.improve(scene.agent, scene.questions(30), **short(endpoint, at, safety=hf.Waived("people look first")))
    assert result.proof is not None and result.proof.waived == "people look first"
    assert "safety was NOT measured: people look first" in str(result)
    with open_store(at, create=False) as store:
        noted = [one for one in store.ledger.entries(run=result.run.id) if one.kind == "waiver"]
        assert [one.body["why"] for one in noted] == ["people look first"]


def test_the_report_on_the_tasks_is_shown_before_a_run_that_has_warnings(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = scene.questions(30)
    assert capsys.readouterr().err == ""
    hf.improve(scene.agent, tasks, **short(endpoint, at))
    assert "held-out tasks: a proof needs many" in " ".join(capsys.readouterr().err.split())


def test_what_proves_nothing_by_a_split_does_not_ask_for_one(
    endpoint: Endpoint, at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"scorers": scene.correct, "model": "tiny", "base_url": endpoint.url, "store": at}
    tasks = scene.questions(6, held_out=None)
    fair, good = hf.Prompt(system=scene.FAIR), hf.Prompt(system=scene.GOOD)
    hf.collect(scene.agent, tasks, policy=fair, **given)
    hf.compare(fair, good, tasks, agent=scene.agent, **given)
    assert "held-out" not in capsys.readouterr().err
    twice = hf.tasks([{"question": "Twice 1?", "expected": "2"}, {"question": "Twice 1?", "expected": "2"}])
    hf.collect(scene.agent, twice, policy=fair, **given)
    assert "! Dropped 1 duplicates" in capsys.readouterr().err  # what concerns every run is still said


def test_settings_of_a_run_hold_no_task_and_no_key(accepted: Improved) -> None:
    assert len(json.dumps(dict(accepted.result.run.record.settings))) < 4000
