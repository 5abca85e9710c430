"""What a user brings: every bad input is one clear error, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput
from tests.api import scene
from tests.api.scene import short
from tests.endpoint import Endpoint


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithm": None}, "hf.Candidates"),
        ({"algorithm": "prompt_search"}, "hf.Candidates"),
        ({"algorithm": "grpo"}, "its weights are out of reach"),
        ({"algorithm": hf.GRPO}, "is a class"),
        ({"algorithm": 3}, "is unknown"),
        ({"algorithm": hf.Candidates([7])}, "candidate 1: is int, no prompt"),
        ({"algorithm": hf.Candidates([{"systm": "x"}, hf.Prompt(other="x")])}, "candidate 2: has no text"),
        ({"policy": "tiny"}, "hf.Model('tiny')"),
        ({"policy": 3}, "is int, no policy"),
        ({"model": 3}, "is not a name"),
        ({"scorers": None}, "there are none"),
        ({"scorers": []}, "there are none"),
        ({"scorers": hf.Scorer(lambda task, answer: 1.0, name="kind", gate=True)}, "pays an empty answer"),
        ({"scorers": "exakt"}, "did you mean exact"),
        ({"safety": []}, "what is not measured is not safe"),
        ({"name": "a@b"}, "'@' comes before"),
        ({"budget": hf.Budget(rollouts=3)}, "a proof alone takes"),
        ({"seeds": 0}, "at least 1"),
        ({"stage": "lively"}, "is no stage"),
        ({"sede": 1}, "did you mean seed"),
        ({"base_url": "ftp://here"}, "base URL"),
    ],
)
def test_what_cannot_be_is_one_clear_error_before_any_work(
    endpoint: Endpoint, at: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(").replace(")", r"\)")):
        hf.improve(scene.agent, scene.questions(30), **short(endpoint, at, **more))
    assert not at.exists()


def test_a_model_without_an_address_is_asked_nowhere(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="no address is known"):
        hf.collect(
            scene.agent, scene.questions(4, held_out=None), policy=hf.Prompt(system="x"), model="gpt-4o-mini", store=at
        )


@pytest.mark.parametrize("agent", [3, lambda task: "", "nowhere:agent"])
def test_an_agent_that_cannot_be_called_is_refused(agent: Any, at: Path) -> None:
    with pytest.raises(BadInput, match="agent"):
        hf.collect(agent, scene.questions(4, held_out=None), store=at)
