"""Recovery: a dead driver is found by its silence, what it left is given back, and the run goes on to the same end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import IllegalMove, Lost, StaleLease, StoreCorrupt
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import AttemptState, RolloutState, Task
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.operate.lifecycle import is_dead, lease_s, recover
from holdfast.pipeline.promote import PromotionRequest
from holdfast.store.store import Store, open_store
from tests.collect.scene import PATIENCE_S, fall_silent
from tests.conftest import Files
from tests.pipeline import learning
from tests.pipeline.learning import LINE, is_whole, model_spec
from tests.pipeline.scene import ran
from tests.workloads.scene import tiny

NOW = 1_000_000.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def made(base: str, template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The hashes of the weights that a run leaves which nobody disturbs."""
    with open_store(Files(tmp_path_factory.mktemp("calm"), template).fresh()) as store:
        return learning.made(store, asyncio.run(ran(store, model_spec(base))).run_id)


def begun(store: Store, *, kind: str = "optimize", **settings: Any) -> RunRecord:
    return store.runs.begin(kind=kind, model_ref="m", settings=settings, salt="a", who="t", now=NOW).result()


def recovered(store: Store, run_id: str, now: float) -> Any:
    return recover(store, run_id, who="ann", why="the machine is gone", now=now)


def kinds(store: Store, run_id: str) -> list[str]:
    return [entry.kind for entry in store.ledger.entries(run=run_id)]


# Finding the dead


@pytest.mark.parametrize(
    ("settings", "lease"),
    [({}, 10.0), ({"lease_secs": 90.0}, 90.0), ({"lease_secs": None, "heartbeat_interval_ms": 2000}, 10.0)],
    ids=["none", "its own", "by its beats"],
)
def test_a_run_is_dead_once_it_was_silent_for_longer_than_its_lease(
    file_store: Store, settings: dict[str, Any], lease: float
) -> None:
    found = begun(file_store, **settings)
    assert lease_s(found) == lease
    silence = max(lease, 30.0)
    assert not is_dead(found, now=NOW + silence - 1)
    assert is_dead(found, now=NOW + silence)


def test_what_has_ended_or_was_never_driven_is_not_dead(file_store: Store) -> None:
    over, _, driven = begun(file_store), begun(file_store, kind="otlp"), begun(file_store)
    file_store.runs.end(over.id, RunState.FAILED, who="t", now=NOW).result()
    file_store.runs.beat(driven.id, driver=1, now=NOW + 500).result()
    runs = file_store.runs.newest()
    assert len(runs) == 3 and not any(is_dead(one, now=NOW + 501) for one in runs)
    with pytest.raises(IllegalMove, match=r"it is driven \(last sign of life 1\.0 s ago\)"):
        recovered(file_store, driven.id, NOW + 501)
    report = recovered(file_store, over.id, NOW + 501)
    assert (report.crash_detected, report.state) == (False, "failed")
    assert report.diagnostics[-1] == "no crash: the run is failed, and nothing was changed"
    assert kinds(file_store, over.id) == ["run", "run"]


# Giving back


def test_what_the_dead_left_is_queued_again_and_they_are_refused_should_they_wake(file_store: Store) -> None:
    store, found = file_store, begun(file_store)
    tasks = [Task(name=name, input=1, max_attempts=tries) for name, tries in (("one", 1), ("many", 3), ("done", 1))]
    store.queue.enqueue(found.id, tasks, now=NOW).result()
    claims = store.queue.claim(found.id, "dead", now=NOW, lease_s=5.0, most=3).result()
    store.queue.finish(claims[2].attempt, AttemptState.SUCCEEDED, now=NOW).result()
    store.runs.want(found.id, DesiredState.PAUSED, who="bob", why="lunch", now=NOW).result()
    report = recovered(store, found.id, NOW + 60)
    assert (report.crash_detected, report.requeued, report.held, report.state) == (True, 2, 0, "failed")
    assert (report.prior_lifecycle_state, report.prior_training_state) == ("paused", "running")
    assert report.replayed_actions == ("pause",) and report.replayed_audit_events == 2
    assert (report.checkpoint, report.diagnostics) == (None, ("nothing was learnt yet",))
    assert report.resume == f"holdfast run start --resume {found.id}"
    states = {one.name: one.status for one in store.views.rollouts(found.id)}
    assert states["done"] is RolloutState.SUCCEEDED
    assert {states["one"], states["many"]} <= {RolloutState.QUEUING, RolloutState.REQUEUING}
    after = store.runs.get(found.id)
    assert after.state is RunState.FAILED and after.error is not None and "silent for 60 s" in after.error
    with pytest.raises(StaleLease):
        store.runs.beat(found.id, driver=found.driver, now=NOW + 61).result()
    with pytest.raises(StaleLease):
        store.queue.finish(claims[0].attempt, AttemptState.SUCCEEDED, now=NOW + 61).result()
    (incident,) = (entry for entry in store.ledger.entries(run=found.id) if entry.kind == "incident")
    assert (incident.who, incident.body["requeued"], incident.body["why"]) == ("ann", 2, "the machine is gone")
    taken = store.runs.resume(found.id, who="t", now=NOW + 61, silent_s=60.0).result()  # at once
    assert taken.state is RunState.RUNNING


def test_a_cancelled_run_is_ended_for_good_and_a_lease_that_lasts_is_left_to_its_worker(file_store: Store) -> None:
    over, going = begun(file_store), begun(file_store)
    for run in (over, going):
        file_store.queue.enqueue(run.id, [Task(name="t", input=1)], now=NOW).result()
    file_store.runs.want(over.id, DesiredState.CANCELLED, who="bob", why="enough", now=NOW).result()
    report = recovered(file_store, over.id, NOW + 60)
    assert (report.state, report.resume) == ("cancelled", None)
    assert file_store.views.rollout(f"{over.id}/t").status is RolloutState.CANCELLED
    file_store.queue.claim(going.id, "helper", now=NOW + 50, lease_s=30.0).result()
    report = recovered(file_store, going.id, NOW + 60)
    assert (report.requeued, report.held) == (0, 1)
    assert report.diagnostics[-1].startswith("rollouts still leased") and report.diagnostics[-1].endswith(": 1")


# Killed for real


CASES = {
    "learning": ("learn 1 3", "live"),
    "proving": ("run prove 1", "live"),
    "in canary": ("record 0/decide", "canary"),
}


@pytest.fixture(scope="module")
def killed(base: str, template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Stores whose drivers were killed, by what they did then."""
    urls = {name: Files(tmp_path_factory.mktemp("killed"), template).fresh() for name in CASES}
    told = ["|".join((urls[name], "model", *CASES[name])) for name in CASES]
    assert learning.told(base, *told, timeout_s=4 * PATIENCE_S) == [{"killed": True}] * len(CASES)
    return urls


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_a_driver_that_was_killed_is_replaced_and_the_run_comes_to_the_same_end(
    killed: dict[str, str], base: str, made: list[str], case: str
) -> None:
    to = Stage(CASES[case][1])
    with open_store(killed[case]) as store:
        (found,) = store.runs.newest()
        with pytest.raises(IllegalMove, match="it is driven"):
            recovered(store, found.id, found.beat_at + 1)
        fall_silent(store, found.id)
        assert is_dead(store.runs.get(found.id), now=time.time())
        report = recovered(store, found.id, time.time())
        learnt = 1 if case == "learning" else 2
        assert (report.crash_detected, report.checkpoint_source) == (True, "primary")
        assert (report.checkpoint_sha256, report.checkpoint_global_step) == (made[learnt - 1], learnt)
        assert report.checkpoint_run_id == found.id and report.checkpoint_optimizer_step == 8 * learnt
        asyncio.run(ran(store, model_spec(base, stage=to), resume=found.id))
        is_whole(store, found.id, made)
        candidate = store.releases.get(f"{LINE}@2")
        assert candidate.stage is to
        moved = [one.body for one in store.releases.history(LINE) if one.body.get("move") == candidate.id]
        assert len(moved) == 1
        assert kinds(store, found.id).count("incident") == 1


# Damaged checkpoints


def spoil(store: Store, checkpoint: str, *parts: str) -> None:
    (file,) = store.folder.joinpath("checkpoints", checkpoint, *parts).glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def stopped_after(store: Store, base: str, place: str) -> str:
    """A run that broke at this place, as by a fault of the machine."""

    def hook(at: str) -> None:
        if at == place:
            raise OSError("the machine is on fire")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PromotionRequest, "weigh", lambda *given: hook("decide"))
        with pytest.raises(OSError, match="on fire"):
            asyncio.run(ran(store, model_spec(base, hook)))
    return store.runs.newest()[0].id


@pytest.mark.parametrize("parts", [(), ("trainer",)], ids=["weights", "trainer"])
@pytest.mark.parametrize("place", ["decide", "learn 1 1"], ids=["the second", "the first"])
def test_a_damaged_checkpoint_is_made_anew_from_the_one_before(
    files: Files, base: str, made: list[str], parts: Sequence[str], place: str
) -> None:
    with open_store(files.fresh()) as store:
        run_id = stopped_after(store, base, place)
        made_by_then = [one.id for one in store.checkpoints.of_run(run_id)]
        spoil(store, made_by_then[-1], *parts)
        report = recovered(store, run_id, time.time())
        assert report.checkpoint_source == ("fallback" if place == "decide" else "base")
        assert report.checkpoint == (made_by_then[0] if place == "decide" else None)
        assert f"checkpoint {made_by_then[-1]} is damaged" in report.diagnostics[0]
        asyncio.run(ran(store, model_spec(base), resume=run_id))
        is_whole(store, run_id, made)
        # A trainer that nobody needs any more stays as it is.
        is_mended = not (parts and place == "decide")
        assert kinds(store, run_id).count("mend") == is_mended
        if is_mended:
            assert recovered(store, run_id, time.time()).checkpoint_source == "primary"


def test_where_the_one_before_is_damaged_too_nothing_is_touched(files: Files, base: str) -> None:
    with open_store(files.fresh()) as store:
        run_id = stopped_after(store, base, "decide")
        for one in store.checkpoints.of_run(run_id):
            spoil(store, one.id)
        before = kinds(store, run_id)
        with pytest.raises(StoreCorrupt, match="and the one before, "):
            recovered(store, run_id, time.time())
        with pytest.raises(Lost, match="hashes to .* the manifest says"):
            asyncio.run(ran(store, model_spec(base), resume=run_id))
        assert "mend" not in kinds(store, run_id) and kinds(store, run_id)[: len(before)] == before
