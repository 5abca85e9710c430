"""The end of an iteration: a candidate is weighed, decided on and moved, once, however often the process is killed on
the way."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import StaleLease
from holdfast.contracts.evidence import Decision, Episode, Evidence, Finding, Reason
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.run import RunState
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.promote import adopt, promote
from holdfast.pipeline.proof import Candidate, PromotionRequest
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.reports.validate import validate
from holdfast.store.store import Store, open_store
from tests.collect.scene import PACE, PATIENCE_S, fall_silent
from tests.conftest import Files
from tests.pipeline.scene import ran, spec_of

POLICY = "tools"

LAX = Criteria(
    max_seed_spread=SpreadLimits(p_value=1.0, delta=1.0), max_sample_spread=SpreadLimits(p_value=1.0, delta=1.0)
)
WEIGHING = ComparisonConfig(seed_p_value_spread=1, seed_delta_spread=1, sample_p_value_spread=1, sample_delta_spread=1)
CLEAN = Finding(name="no_secrets", severity="critical", count=0, of=9)
BETTER, EQUAL, WORSE = (0.0, 1.0), (0.5, 0.5), (1.0, 0.0)  # success before and after


@pytest.fixture
def places(files: Files) -> Files:
    """What is decided does not depend on the engine; that of two moves at once one wins is the store's to show."""
    return files


def tries(success: float, tasks: int = 100) -> list[Episode]:
    """Two at each task; of an even chance, every second one succeeds."""
    return [
        Episode(task=f"t{n}", seed=seed, reward=won, success=won)
        for n in range(tasks)
        for seed in (0, 1)
        for won in (success if success in (0.0, 1.0) else float((n + seed) % 2),)
    ]


def case(run: str, gain: tuple[float, float], checkpoint: str = "c-1", **fields: Any) -> Candidate:
    given: dict[str, Any] = {
        "run": run,
        "policy": POLICY,
        "suite": ("tests", "1", "ab" * 32),
        "baseline": "shelf:sprout",
        "candidate": f"checkpoint:{checkpoint}",
        "before": tries(gain[0]),
        "after": tries(gain[1]),
        "planned": len(tries(gain[0])),
        "audit": (CLEAN,),
    }
    return Candidate(**given | fields)


def request(
    store: Store, run: str, gain: tuple[float, float], *, to: Stage | None = Stage.LIVE, **fields: Any
) -> PromotionRequest:
    return PromotionRequest(
        candidate=case(run, gain, **fields),
        how=WEIGHING,
        criteria=LAX,
        reports=store.reports,
        now=time.time(),
        to=to,
        share=5 if to is Stage.CANARY else None,
    )


def begun(store: Store, *checkpoints: str) -> str:
    """A run that made these."""
    now = time.time()
    run = store.runs.begin(kind="improve", model_ref="m", settings={}, salt="ab", who="test", now=now).result().id
    for name in checkpoints:
        made = Checkpoint(id=name, algorithm="a", policy_version=name, global_step=1, episode_count=0, created_at=now)
        store.checkpoints.add(made, run, now=now).result()
    return run


async def promoted(store: Store, asked: PromotionRequest) -> dict[str, Any]:
    return await promote(store, asked, clock=time.time, who="test")


def told(store: Store) -> list[str]:
    """What the ledger says of releases, in a few words each."""
    found = []
    for entry in store.releases.history(POLICY):
        verb = next(name for name in ("add", "move", "refuse", "accept", "roll_back") if name in entry.body)
        to = f" → {entry.body['to']}" if "to" in entry.body else ""
        found.append(f"{verb} {entry.body[verb]}{to}")
    return found


ADDED = [f"add {POLICY}@1", f"move {POLICY}@1 → live", f"add {POLICY}@2"]


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def codes(body: Mapping[str, Any]) -> list[str]:
    return [reason.code for reason in decode(Decision, dict(body["decision"])).reasons]


async def test_a_better_candidate_goes_live_and_its_proof_is_published(store: Store) -> None:
    run = begun(store, "c-1")
    body = await promoted(store, request(store, run, BETTER))
    live = store.releases.live(POLICY)
    assert live is not None
    assert (live.id, live.source, live.parent, live.evidence) == (
        f"{POLICY}@2",
        "checkpoint:c-1",
        f"{POLICY}@1",
        body["evidence"],
    )
    assert (body["release"], set(codes(body))) == (live.id, {"promotion_allowed"})
    first = store.releases.get(f"{POLICY}@1")
    assert (first.source, first.stage, first.is_known_good) == ("shelf:sprout", Stage.RETIRED, True)
    assert told(store) == [*ADDED, f"move {POLICY}@2 → live"]
    evidence = loads(Evidence, store.blobs.get(body["evidence"]))
    assert (evidence.baseline, evidence.candidate, evidence.episodes) == (first.id, live.id, 100)
    assert evidence.samples is not None
    assert len(json.loads(store.blobs.get(evidence.samples))["candidate"]) == 200
    assert validate(Path(body["proof"])) == []
    json.dumps(body, allow_nan=False)


@pytest.mark.parametrize(
    ("gain", "needs", "code"),
    [
        (WORSE, False, "checkpoint_promotion_blocked_policy_improvement_not_significant"),
        (EQUAL, True, "checkpoint_promotion_blocked_policy_improvement_not_significant"),
        (WORSE, False, "reward_gain_below_threshold"),
        (EQUAL, True, "p_value_above_threshold"),
        (EQUAL, True, "confidence_below_threshold"),
    ],
)
async def test_a_worse_candidate_is_refused_and_an_equal_one_held(
    files: Files, gain: tuple[float, float], needs: bool, code: str
) -> None:
    with open_store(files.fresh()) as store:
        body = await promoted(store, request(store, begun(store, "c-1"), gain))
        assert code in codes(body)
        assert (body["decision"]["needs"] is not None) is needs
        live, candidate = store.releases.live(POLICY), store.releases.get(f"{POLICY}@2")
        assert live is not None
        assert (live.id, candidate.stage, candidate.evidence) == (f"{POLICY}@1", Stage.CANDIDATE, body["evidence"])
        assert told(store) == [*ADDED, f"refuse {POLICY}@2"]
        assert store.releases.history(POLICY)[-1].body["decision"] == body["decision"]
        assert validate(Path(body["proof"])) == []


@pytest.mark.parametrize("gain", [BETTER, WORSE])
async def test_proposed_twice_it_comes_to_the_same_and_nothing_is_in_the_ledger_twice(
    store: Store, gain: tuple[float, float]
) -> None:
    run = begun(store, "c-1")
    first = await promoted(store, request(store, run, gain))
    ledger = told(store)
    proof = read(first["proof"])
    assert await promoted(store, request(store, run, gain)) == first
    assert told(store) == ledger
    assert read(first["proof"]) == proof


async def test_the_next_candidate_of_the_same_line_is_measured_against_the_one_that_went_live(store: Store) -> None:
    run = begun(store, "c-1", "c-2")
    await promoted(store, request(store, run, BETTER))
    body = await promoted(store, request(store, run, BETTER, checkpoint="c-2", baseline="checkpoint:c-1"))
    live = store.releases.live(POLICY)
    assert live is not None
    assert (live.id, live.parent, body["release"]) == (f"{POLICY}@3", f"{POLICY}@2", f"{POLICY}@3")
    assert store.releases.get(f"{POLICY}@2").stage is Stage.RETIRED
    assert len(list(store.reports.glob("m24/*"))) == 2


def rolled_back(store: Store) -> None:
    reason = Reason(code="canary_breach_errors", text="errors")
    store.releases.roll_back(
        POLICY, failing=f"{POLICY}@2", to=f"{POLICY}@1", who="op", why="bad", now=time.time(), reasons=[reason]
    ).result()


def replaced(store: Store) -> None:
    """Something else was put into service by hand."""
    added = store.releases.add(
        policy=POLICY, kind=PolicyKind.WEIGHTS, source="shelf:oak", who="op", now=time.time()
    ).result()
    store.releases.move(added.id, Stage.LIVE, expect=Stage.CANDIDATE, who="op", why="by hand", now=time.time()).result()


@pytest.mark.parametrize(("gain", "others"), [(BETTER, 0), (WORSE, 1)])
@pytest.mark.parametrize("meanwhile", [rolled_back, replaced])
async def test_a_proof_against_what_is_no_longer_live_proves_nothing(
    store: Store, meanwhile: Callable[[Store], None], gain: tuple[float, float], others: int
) -> None:
    run = begun(store, "c-1", "c-2")
    await promoted(store, request(store, run, BETTER))
    meanwhile(store)
    body = await promoted(store, request(store, run, gain, checkpoint="c-2", baseline="checkpoint:c-1"))
    assert codes(body)[0] == "baseline_is_not_live"
    assert len(codes(body)) > 1 if others else codes(body) == ["baseline_is_not_live"]
    live = store.releases.live(POLICY)
    assert live is not None
    assert live.source == ("shelf:sprout" if meanwhile is rolled_back else "shelf:oak")
    assert store.releases.get(str(body["release"])).stage is Stage.CANDIDATE
    assert f"measured against {POLICY}@2, and {live.id} is live" in body["decision"]["reasons"][0]["text"]


@pytest.mark.parametrize("meanwhile", [rolled_back, replaced])
async def test_what_was_decided_before_a_kill_stays_decided_whatever_happened_since(
    store: Store, meanwhile: Callable[[Store], None]
) -> None:
    run = begun(store, "c-1")
    first = await promoted(store, request(store, run, BETTER))
    meanwhile(store)
    ledger, live = told(store), store.releases.live(POLICY)
    assert await promoted(store, request(store, run, BETTER)) == first
    assert (told(store), store.releases.live(POLICY)) == (ledger, live)


async def test_what_a_gate_found_in_the_data_is_in_the_decision(files: Files) -> None:
    leaked = Finding(name="no_secrets", severity="critical", count=1, of=9, detail="run/1: a key")
    odd = Finding(name="reward_varies", severity="warning", count=9, of=9, blocks=False)
    with open_store(files.fresh()) as store:
        run = begun(store, "c-1", "c-2")
        body = await promoted(store, request(store, run, BETTER, audit=(leaked, odd)))
        assert codes(body) == ["data_quality_no_secrets"]
        body = await promoted(store, request(store, run, BETTER, checkpoint="c-2", audit=None))
        assert codes(body) == ["evidence_missing_audit"]


@pytest.mark.parametrize(("to", "share"), [(Stage.SHADOW, 0), (Stage.CANARY, 5)])
async def test_an_open_gate_may_lead_to_an_earlier_stage(files: Files, to: Stage, share: int) -> None:
    with open_store(files.fresh()) as store:
        asked = request(store, begun(store, "c-1", "c-2"), BETTER, to=to)
        body = await promoted(store, asked)
        candidate, live = store.releases.get(str(body["release"])), store.releases.live(POLICY)
        assert (candidate.stage, candidate.share) == (to, share)
        assert live is not None and live.id == f"{POLICY}@1"
        if to is Stage.CANARY:  # one is enough, and whoever resumes is told so again
            second = replace(asked, candidate=replace(asked.candidate, candidate="checkpoint:c-2"))
            for _ in range(2):
                body = await promoted(store, second)
                assert codes(body) == ["canary_under_way"] and store.releases.get(str(body["release"])).share == 0


async def test_without_a_stage_an_open_gate_accepts_and_nothing_moves(store: Store) -> None:
    run = begun(store, "c-1")
    body = await promoted(store, request(store, run, BETTER, to=None))
    assert body["decision"]["open"] is True
    assert store.releases.live(POLICY) is None  # not even what it was measured against
    candidate = store.releases.get(f"{POLICY}@2")
    assert (candidate.stage, candidate.evidence) == (Stage.CANDIDATE, body["evidence"])
    assert told(store) == [f"add {POLICY}@1", f"add {POLICY}@2", f"accept {POLICY}@2"]
    assert validate(Path(body["proof"])) == []
    assert await promoted(store, request(store, run, BETTER, to=None)) == body
    assert len(told(store)) == 3  # and it is accepted once


async def test_the_first_version_is_adopted_without_a_proof_and_only_where_nothing_is_live(store: Store) -> None:
    add = store.releases.add
    now = time.time()
    one = await add(policy=POLICY, kind=PolicyKind.WEIGHTS, source="shelf:sprout", who="test", now=now)
    live = await adopt(store, one, who="test", now=now)
    assert (live.stage, live.is_known_good, live.evidence) == (Stage.LIVE, True, None)
    await promoted(store, request(store, begun(store, "c-1"), BETTER, baseline="shelf:oak"))
    found = store.releases.live(POLICY)
    assert found is not None
    assert found.id == one.id  # the other baseline did not take its place
    assert store.releases.get(f"{POLICY}@2").stage is Stage.CANDIDATE


# Within a run


def proving(store: Store, gain: tuple[float, float], hook: Callable[[str], None] = lambda at: None) -> RunSpec:
    """A step that makes a checkpoint, and one that brings it before the gate; `hook` is told how far it is."""

    def learn(*, ctx: StepContext) -> dict[str, Any]:
        identity = f"{ctx.run}-0"
        made = Checkpoint(
            id=identity, algorithm="a", policy_version="1", global_step=1, episode_count=0, created_at=1.0
        )
        ctx.add_checkpoint(made)
        return {"checkpoint": identity}

    async def decide(*, ctx: StepContext) -> dict[str, Any]:
        asked = request(store, ctx.run, gain, checkpoint=f"{ctx.run}-0")

        def driven(tx: Any) -> None:
            ctx.store.runs.driven_in(tx, ctx.run, ctx.driver)

        given: dict[str, Any] = {name: getattr(asked, name) for name in asked.__dataclass_fields__}
        hooked = Hooked(**given, hook=hook)
        hook("decide")
        return await promote(ctx.store, hooked, clock=ctx.now, who=ctx.who, fence=driven, check=ctx.check)

    async def program(run: DurableRun) -> None:
        await run.step("learn", learn)
        await run.step("decide", decide)

    return spec_of(program, policy=POLICY)


@dataclass(frozen=True, kw_only=True)
class Hooked(PromotionRequest):
    hook: Callable[[str], Any]

    def publish(self, evidence: Evidence, decision: Decision) -> dict[str, Any]:
        self.hook("publish")
        return super().publish(evidence, decision)


async def test_a_driver_that_was_replaced_promotes_nothing(files: Files) -> None:
    url = files.fresh()
    with open_store(url) as store, open_store(url) as operator:

        def taken_from_it(at: str) -> None:
            if at == "publish":
                (run,) = operator.runs.newest()
                operator.runs.resume(run.id, who="other", now=time.time(), silent_s=0.0).result()

        asleep = replace(PACE, heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)
        spec = replace(proving(store, BETTER, taken_from_it), pace=asleep, report_s=PATIENCE_S)
        with pytest.raises(StaleLease, match="another process has taken it up"):
            await ran(store, spec)
        assert told(store) == ADDED
        live = store.releases.live(POLICY)
        assert live is not None and live.id == f"{POLICY}@1"


CHILD = """
import asyncio, os, signal, sys
from holdfast.store.releases import Releases
from holdfast.store.runs import Steps
from holdfast.store.store import open_store
from tests.pipeline import test_promote as here
from tests.pipeline.scene import ran

url, at, gain = sys.argv[1:]

def die(*ignored, **ignored_too):
    os.kill(os.getpid(), signal.SIGKILL)

def hook(place):
    if place == at:
        die()

if at == "move":
    move = Releases.move
    Releases.move = lambda self, *a, **how: die() if how.get("decision") else move(self, *a, **how)
elif at == "record":
    add = Steps.add
    Steps.add = lambda self, run, name, *a, **how: die() if name == "decide" else add(self, run, name, *a, **how)
with open_store(url) as store:
    asyncio.run(ran(store, here.proving(store, getattr(here, gain), hook)))
"""


@pytest.mark.parametrize(
    ("at", "gain"),
    [
        ("publish", "BETTER"),  # the evidence is kept, and there is no report
        ("move", "BETTER"),  # it is published, the version has not moved
        ("record", "BETTER"),  # all is done but for the record of it
        ("record", "WORSE"),
    ],
)
def test_killed_on_the_way_to_a_decision_a_run_comes_to_the_same_one(files: Files, at: str, gain: str) -> None:
    url, root = files.fresh(), Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", CHILD, url, at, gain]
    died = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=root)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with open_store(url) as store:
        (run,) = store.runs.newest()
        assert [one.name for one in store.steps.of_run(run.id)] == ["begin", "learn"]
        live = store.releases.live(POLICY)
        assert live is not None
        assert (live.id == f"{POLICY}@2") is (gain == "BETTER" and at == "record")
        fall_silent(store, run.id)
        status = asyncio.run(ran(store, proving(store, globals()[gain]), resume=run.id))
        assert status.run_state is RunState.COMPLETED
        last = f"move {POLICY}@2 → live" if gain == "BETTER" else f"refuse {POLICY}@2"
        assert told(store) == [*ADDED, last]
        body = store.steps.of_run(run.id)[-1].body
        assert body["decision"]["open"] is (gain == "BETTER")
        assert [one.id for one in store.checkpoints.of_run(run.id)] == [f"{run.id}-0"]
        entry = store.releases.history(POLICY)[-1].body
        assert (entry["decision"], entry["evidence"]) == (body["decision"], body["evidence"])
        assert validate(Path(body["proof"])) == []
        assert len(list(store.reports.glob("m24/*"))) == 1


async def test_of_two_proofs_against_one_live_version_only_the_first_puts_a_version_into_service(store: Store) -> None:
    run = begun(store, "c-1", "c-2")
    first, second = (request(store, run, BETTER, checkpoint=name) for name in ("c-1", "c-2"))
    await promoted(store, request(store, run, WORSE, checkpoint="c-1"))  # so that something is live
    raced: list[str] = []

    def race(at: str) -> None:
        """Between the other's decision and its move this one goes live."""
        if not raced:
            raced.append("now")
            raced.append(str(asyncio.run(promoted(store, first))["release"]))

    given: dict[str, Any] = {name: getattr(second, name) for name in second.__dataclass_fields__}
    body = await promoted(store, Hooked(**given, hook=race))
    live = store.releases.live(POLICY)
    assert live is not None and live.id == raced[1]
    assert codes(body) == ["baseline_is_not_live"]
    assert store.releases.get(str(body["release"])).stage is Stage.CANDIDATE
