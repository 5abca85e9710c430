"""Story 6: into service and back, as production sees it."""

from __future__ import annotations

import time

import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.release import Stage
from holdfast.store.store import open_store
from tests.api import scene
from tests.api.conftest import Improved

KEYS = [f"user-{n}" for n in range(200)]


def within_a_second(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 1.0
    while not condition():
        assert time.monotonic() < until, "not within a second"
        time.sleep(0.02)


def test_a_promoted_version_is_live_and_a_rollback_takes_it_back(improved: Improved) -> None:
    with pytest.raises(NotFound, match="nothing of it is live"):
        hf.live("support", store=improved.store)
    release = improved.result.promote(why="proved")
    assert release.stage is Stage.LIVE and release.id == "support@2"
    live = hf.live("support", store=improved.store)
    assert live.prompt("system") == scene.GOOD and live.version() == "support@2" and live.model() == "tiny"
    assert hf.live("support", store=improved.store) is live  # one store for all requests
    back = hf.rollback("support", store=improved.store, why="customers complain")
    assert back.id == "support@1"  # what it was measured against went live before it
    within_a_second(lambda: live.prompt("system") == scene.FAIR)
    live.close()
    with open_store(improved.store, create=False) as store:
        assert store.releases.recompute() == [] and store.ledger.verify()
        moved = [one.body for one in store.releases.history("support") if one.body.get("move") == "support@2"]
        assert moved[-1]["evidence"] and moved[-1]["proof"] and moved[-1]["decision"]["open"]


def test_a_canary_answers_its_share_of_the_keys_always_the_same_ones(improved: Improved) -> None:
    assert improved.result.promote(canary=0.25).share == 25
    live = hf.live("support", store=improved.store)
    asked = {key: live.prompt("system", key=key) for key in KEYS}
    share = sum(text == scene.GOOD for text in asked.values()) / len(KEYS)
    assert 0.1 < share < 0.4 and {live.prompt("system", key=key) == asked[key] for key in KEYS} == {True}
    assert live.prompt("system") == scene.FAIR  # without a key, what is live
    assert improved.result.promote(canary=0.5).share == 50
    within_a_second(lambda: sum(live.prompt("system", key=key) == scene.GOOD for key in KEYS) > 0.35 * len(KEYS))
    assert all(live.prompt("system", key=key) == scene.GOOD for key in KEYS if asked[key] == scene.GOOD)
    hf.rollback("support", store=improved.store)
    within_a_second(lambda: all(live.prompt("system", key=key) == scene.FAIR for key in KEYS))
    live.close()


def test_a_canary_goes_live_by_the_next_promotion(improved: Improved) -> None:
    improved.result.promote(shadow=True)
    improved.result.promote(canary=0.05)
    assert improved.result.promote().stage is Stage.LIVE
    live = hf.live("support", store=improved.store)
    assert all(live.prompt("system", key=key) == scene.GOOD for key in KEYS)
    with pytest.raises(BadInput, match="has none"):
        live.prompt("sytem")
    live.close()


@pytest.mark.parametrize("canary", [0.0, 1.5, -1, True])
def test_a_share_that_is_none_is_refused(improved: Improved, canary: float) -> None:
    with pytest.raises(BadInput, match="is a share of the callers"):
        improved.result.promote(canary=canary)


def test_there_is_nothing_to_take_back_where_nothing_serves(improved: Improved) -> None:
    with pytest.raises(BadInput, match="nothing of it is in service"):
        hf.rollback("support", store=improved.store)


def test_the_next_improvement_is_proved_against_what_is_live(improved: Improved) -> None:
    improved.result.promote()
    call = improved.call | {"algorithm": hf.Candidates([scene.FAIR, scene.GOOD])}
    result = hf.improve(scene.agent, scene.questions(60), **call)
    assert result.candidate is None and "did better than the prompt in force" in result.missing[0]
