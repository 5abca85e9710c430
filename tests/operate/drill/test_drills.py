"""A full disk for real: a run of our own command runs out of room, is taken up, and is computed again from its store.

A crash for real is in tests/cli/test_drill.py; the other drills take longer, and are gone through with by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from holdfast.collect.agent import Context, Tracer
from holdfast.contracts.executor import Assignment
from holdfast.contracts.settings import settings_from
from holdfast.operate.drill.drills import DRILLS, Load, busy, perform
from holdfast.operate.drill.playbook import KINDS, validate
from tests.store.children import unmeasured

PATIENT = {"recovery_s": 600.0, "obey_s": 600.0}  # a busy machine is no crash


def test_every_kind_of_drill_has_an_artifact() -> None:
    assert list(DRILLS) == list(KINDS)


def test_the_load_is_a_run_that_optimize_takes(tmp_path: Path) -> None:
    config = Load(tasks=100, seconds=0.1).config()
    assert len(settings_from(config, "a drill").train) == 100
    lengths = [one["seconds"] for one in config["optimize"]]
    assert 0.05 <= min(lengths) < 0.06 < 0.14 < max(lengths) <= 0.15


def test_the_agent_of_the_drills_answers_what_is_expected() -> None:
    spans: list[object] = []
    given = Assignment(rollout="r", attempt="a", number=1, split=None, input={}, resources={}, seed=0)
    context = Context(assignment=given, trace=Tracer(record=spans.append, clock=time.time), complete=None)
    assert asyncio.run(busy({"prompt": "task 1", "seconds": 0.0}, context)) == "task 1" and len(spans) == 2


@pytest.mark.timeout(600)
def test_a_run_without_room_says_so_and_is_taken_up_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ.keys() - unmeasured().keys():  # coverage would find no room for its figures, and say so
        monkeypatch.delenv(name)
    path = perform("disk", tmp_path, quick=True, clock=time.time, say=lambda text: None, limits=PATIENT)
    artifact, problems = validate(path)
    assert not problems and artifact["outcome"]["pass"] is True
    manifest = json.loads((tmp_path / artifact["crash_drill"]["running_manifest_path"]).read_text())
    assert manifest["run"]["id"] == artifact["resume_drill"]["resumed_job_id"] and manifest["run"]["state"] == "running"
    log = (tmp_path / artifact["evidence"]["operator_log_path"]).read_text()
    assert f"$ {artifact['resume_drill']['restart_command']}\n" in log
    assert artifact["measured"]["recovery_s"] > 0.0
