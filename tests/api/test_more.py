"""A way on for a candidate that is held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Stage
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.scene import short
from tests.endpoint import Endpoint


def test_a_held_candidate_is_proved_on_further_tasks(endpoint: Endpoint, at: Path) -> None:
    few = hf.improve(scene.agent, scene.questions(90), **short(endpoint, at))
    assert not few.is_accepted and few.decision.needs and "result.prove(tasks)" in str(few)
    with pytest.raises(BadInput, match="all of them are measured already"):
        few.prove()
    more = scene.questions(230).select(ids=[f"t{n}" for n in range(90, 230)])
    result = few.prove(more)
    assert result.is_accepted and result.version == few.release == "support@2"
    assert result.proof is not None and few.proof is not None
    assert result.proof.evidence.episodes > few.proof.evidence.episodes + 30
    assert result.run.id != few.run.id and result.promote().stage is Stage.LIVE
    with pytest.raises(BadInput, match="is accepted already"):
        result.prove(more)
    with open_store(at, create=False) as store:
        assert store.releases.recompute() == [] and store.ledger.verify()


def test_a_budget_that_left_tasks_out_is_made_up_for(endpoint: Endpoint, at: Path) -> None:
    call = short(endpoint, at, budget=hf.Budget(rollouts=200))
    first = hf.improve(scene.agent, scene.questions(230), **call)
    assert not first.is_accepted and len(first.run.rollouts()) <= 200
    learnt = scene.questions(230).train[:3]
    with pytest.raises(BadInput, match="is one that it learnt from"):
        first.prove([replace(one, split=None).row() for one in learnt])
    assert first.prove().is_accepted
