"""Killed -9 at every boundary of its steps, and at instants of no meaning, a run comes to the same decision and bytes.

`make drill` does it many times more (tests/drills/pipeline.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.collect.scene import PATIENCE_S
from tests.conftest import Files
from tests.pipeline.learning import HELD_OUT, SEARCHED, STEPS, told

# Unbroken; killed at each boundary, or after each record; after shares of the time that the unbroken one took.
HOW = {"prompt": ("", "records"), "model": ("", "boundaries", "0.3,0.3")}
CASES = [(kind, how) for kind, ways in HOW.items() for how in ways]


@pytest.fixture(scope="module")
def driven(
    base: str, template: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], dict[str, Any]]:
    """What became of each run, by what it improves and how it was killed."""
    folder = tmp_path_factory.mktemp("killed")
    urls = []
    for place, _ in enumerate(CASES):
        (folder / str(place)).mkdir()
        urls.append(Files(folder / str(place), template).fresh())
    words = [f"{url}|{kind}|{how}" for url, (kind, how) in zip(urls, CASES, strict=True)]
    return dict(zip(CASES, told(base, *words, timeout_s=4 * PATIENCE_S), strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "how"), [case for case in CASES if case[1]])
def test_a_killed_run_comes_to_the_same_weights_tokens_rewards_evidence_and_decision(
    driven: dict[tuple[str, str], dict[str, Any]], kind: str, how: str
) -> None:
    calm, found = driven[kind, ""], driven[kind, how]
    assert found["came"] == calm["came"]
    assert found["kills"] >= {"boundaries": 2 * STEPS, "records": STEPS}.get(how, 1)
    assert (calm["came"]["state"], calm["kills"]) == ("completed", 0)
    assert len(calm["came"]["steps"]) == STEPS
    assert calm["came"]["moves"] == ["tools@1", "tools@2"]  # accepted, and moved once
    assert bool(calm["came"]["weights"]) is (kind == "model")


@pytest.mark.timeout(300)
def test_a_killed_search_for_a_prompt_has_the_same_winner_pays_nothing_twice_and_keeps_its_budget(
    base: str, template: Path, tmp_path: Path
) -> None:
    urls = []
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
        urls.append(Files(tmp_path / name, template).fresh())
    cases = (f"{urls[0]}|search|", f"{urls[1]}|search|0.3,0.3,0.3")
    calm, found = told(base, *cases, timeout_s=4 * PATIENCE_S)
    assert found["kills"] >= 1 and found["came"] == calm["came"]
    assert calm["came"]["moves"] == ["tools@1", "tools@2"]
    rollouts = found["came"]["rollouts"]  # each has one attempt that succeeded
    searched = {name: one["version"] for name, one in rollouts.items() if not name.startswith("proof")}
    assert 0 < len(searched) <= SEARCHED and len(rollouts) <= SEARCHED + 2 * HELD_OUT
    assert len({(version, name.split("-")[-2]) for name, version in searched.items()}) == len(searched)
