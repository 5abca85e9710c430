"""The end of the loop: a candidate is weighed, decided on and moved, once, however often the process is killed on
the way."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast.collect.plan import Learnt, Lesson, Plan, Proposal, Standing
from holdfast.loop import Control, optimize
from holdfast.workloads.promotion import adopt, promote
from holdfast.workloads.proof import Case, propose

from holdfast.collect.agent import Context, no_model
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.errors import StaleLease
from holdfast.contracts.evidence import Decision, Episode, Evidence, Finding, Reason
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.contracts.reward import Signal
from holdfast.contracts.rollout import AttemptState, Task
from holdfast.contracts.run import RunState, Status
from holdfast.promote.gate import Criteria, Spread
from holdfast.prove.reports.validate import validate
from holdfast.prove.weigh import Weighing
from holdfast.store.store import Store, open_store
from tests.collect.scene import PACE, PATIENCE_S, fall_silent
from tests.conftest import Files

POLICY = "tools"

LAX = Criteria(max_seed_spread=Spread(p_value=1.0, delta=1.0), max_sample_spread=Spread(p_value=1.0, delta=1.0))
WEIGHING = Weighing(seed_p_value_spread=1, seed_delta_spread=1, sample_p_value_spread=1, sample_delta_spread=1)
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


def case(run: str, gain: tuple[float, float], checkpoint: str = "c-1", **fields: Any) -> Case:
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
    return Case(**given | fields)


def proposal(store: Store, run: str, gain: tuple[float, float], **fields: Any) -> Proposal:
    return propose(case(run, gain, **fields), WEIGHING, LAX, reports=store.reports, now=time.time())


def begun(store: Store, *checkpoints: str) -> str:
    """A run that made these."""
    now = time.time()
    run = store.runs.begin(kind="improve", model_ref="m", settings={}, salt="ab", who="test", now=now).result().id
    for name in checkpoints:
        made = Checkpoint(id=name, algorithm="a", policy_version=name, global_step=1, episode_count=0, created_at=now)
        store.checkpoints.add(made, run, now=now).result()
    return run


async def promoted(store: Store, asked: Proposal) -> dict[str, Any]:
    return await promote(store, asked, clock=time.time, who="test")


def told(store: Store) -> list[str]:
    """What the ledger says of releases, in a few words each."""
    found = []
    for entry in store.releases.history(POLICY):
        verb = next(name for name in ("add", "move", "refuse", "roll_back") if name in entry.body)
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
    body = await promoted(store, proposal(store, run, BETTER))
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
        body = await promoted(store, proposal(store, begun(store, "c-1"), gain))
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
    first = await promoted(store, proposal(store, run, gain))
    ledger = told(store)
    proof = read(first["proof"])
    assert await promoted(store, proposal(store, run, gain)) == first
    assert told(store) == ledger
    assert read(first["proof"]) == proof


async def test_the_next_candidate_of_the_same_line_is_measured_against_the_one_that_went_live(store: Store) -> None:
    run = begun(store, "c-1", "c-2")
    await promoted(store, proposal(store, run, BETTER))
    body = await promoted(store, proposal(store, run, BETTER, checkpoint="c-2", baseline="checkpoint:c-1"))
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
    await promoted(store, proposal(store, run, BETTER))
    meanwhile(store)
    body = await promoted(store, proposal(store, run, gain, checkpoint="c-2", baseline="checkpoint:c-1"))
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
    first = await promoted(store, proposal(store, run, BETTER))
    meanwhile(store)
    ledger, live = told(store), store.releases.live(POLICY)
    assert await promoted(store, proposal(store, run, BETTER)) == first
    assert (told(store), store.releases.live(POLICY)) == (ledger, live)


async def test_what_a_gate_found_in_the_data_is_in_the_decision(files: Files) -> None:
    leaked = Finding(name="no_secrets", severity="critical", count=1, of=9, detail="run/1: a key")
    odd = Finding(name="reward_varies", severity="warning", count=9, of=9, blocks=False)
    with open_store(files.fresh()) as store:
        run = begun(store, "c-1", "c-2")
        body = await promoted(store, proposal(store, run, BETTER, audit=(leaked, odd)))
        assert codes(body) == ["data_quality_no_secrets"]
        body = await promoted(store, proposal(store, run, BETTER, checkpoint="c-2", audit=None))
        assert codes(body) == ["evidence_missing_audit"]


@pytest.mark.parametrize(("to", "share"), [(Stage.SHADOW, 0), (Stage.CANARY, 5)])
async def test_an_open_gate_may_lead_to_an_earlier_stage(files: Files, to: Stage, share: int) -> None:
    with open_store(files.fresh()) as store:
        asked = propose(
            case(begun(store, "c-1", "c-2"), BETTER), WEIGHING, LAX, reports=store.reports, now=time.time(), to=to
        )
        body = await promoted(store, asked)
        candidate, live = store.releases.get(str(body["release"])), store.releases.live(POLICY)
        assert (candidate.stage, candidate.share) == (to, share)
        assert live is not None and live.id == f"{POLICY}@1"
        if to is Stage.CANARY:  # one is enough, and whoever resumes is told so again
            second = replace(asked, candidate="checkpoint:c-2")
            for _ in range(2):
                body = await promoted(store, second)
                assert codes(body) == ["canary_under_way"] and store.releases.get(str(body["release"])).share == 0


async def test_the_first_version_is_adopted_without_a_proof_and_only_where_nothing_is_live(store: Store) -> None:
    add = store.releases.add
    now = time.time()
    one = await add(policy=POLICY, kind=PolicyKind.WEIGHTS, source="shelf:sprout", who="test", now=now)
    live = await adopt(store, one, who="test", now=now)
    assert (live.stage, live.is_known_good, live.evidence) == (Stage.LIVE, True, None)
    await promoted(store, proposal(store, begun(store, "c-1"), BETTER, baseline="shelf:oak"))
    found = store.releases.live(POLICY)
    assert found is not None
    assert found.id == one.id  # the other baseline did not take its place
    assert store.releases.get(f"{POLICY}@2").stage is Stage.CANDIDATE


# Within a run


async def echo(task: Any, context: Context) -> Any:
    return task


def worth(task: Any, output: Any, spans: Any) -> tuple[Signal, ...]:
    return (Signal(name="worth", value=float(output), source="rule:test"),)


def plan_of(course: Callable[[Standing], Lesson | None], **fields: Any) -> Plan:
    home = Home(echo, worth, no_model, time.time)
    given: dict[str, Any] = {
        "course": course,
        "resources": {},
        "model_ref": "agent/test",
        "policy": POLICY,
        "settings": {},
        "seats": lambda: Seat(home.place()),
        "close": home.close,
        "workers": 2,
        "pace": PACE,
        "report_s": 0.05,
        "look_s": 0.01,
    }
    return Plan(**{**given, **fields})


async def ran(store: Store, plan: Plan, control: Control | None = None, resume: str | None = None) -> Status:
    going = optimize(
        store,
        plan,
        control or Control(),
        clock=time.time,
        observe=lambda status: None,
        who="test",
        salt="ab",
        resume=resume,
    )
    return await asyncio.wait_for(going, PATIENCE_S)


def proving(store: Store, gains: Sequence[tuple[float, float]], hook: Callable[[str], None] = lambda at: None) -> Plan:
    """A lesson for each gain, whose checkpoint is proposed; `hook` is told how far it is."""

    def course(standing: Standing) -> Lesson | None:
        number = len(standing.done)
        if number == len(gains):
            return None

        def learn(experiences: Sequence[Experience]) -> Learnt:
            identity = f"{standing.run}-{number}"
            made = Checkpoint(
                id=identity, algorithm="a", policy_version="1", global_step=1, episode_count=0, created_at=1.0
            )
            asked = proposal(store, standing.run, gains[number], checkpoint=identity)
            return Learnt(body={}, checkpoint=made, proposal=hooked(asked, hook))

        return Lesson(name=f"lesson {number + 1}", tasks=[Task(name=f"l{number}", input=1)], learn=learn)

    return plan_of(course)


def hooked(asked: Proposal, hook: Callable[[str], None]) -> Proposal:
    def weigh(*given: str) -> Evidence:
        hook("weigh")
        return asked.weigh(*given)

    def publish(evidence: Evidence, decision: Decision) -> Mapping[str, Any]:
        hook("publish")
        body = asked.publish(evidence, decision)
        hook("published")
        return body

    return replace(asked, weigh=weigh, publish=publish)


async def test_a_decision_is_part_of_the_lesson_that_led_to_it_and_the_next_one_sees_what_is_live(
    store: Store,
) -> None:
    lives: list[Release | None] = []
    plan = proving(store, [BETTER])
    course = plan.course

    def watched(standing: Standing) -> Lesson | None:
        lives.append(standing.live)
        assert standing.reports == store.reports
        return course(standing)

    status = await ran(store, replace(plan, course=watched))
    assert status.run_state is RunState.COMPLETED
    (update,) = store.steps.of_run(status.run_id)
    assert update.body["release"] == f"{POLICY}@2"
    assert update.body["decision"]["open"] is True
    assert [live and live.id for live in lives] == [None, f"{POLICY}@2"]


async def test_a_plan_without_a_policy_has_nothing_live(files: Files) -> None:
    seen: list[Release | None] = []

    def course(standing: Standing) -> None:
        seen.append(standing.live)

    with open_store(files.fresh()) as store:
        await promoted(store, proposal(store, begun(store, "c-1"), BETTER))
        await ran(store, plan_of(course, policy=None))
        await ran(store, plan_of(course, policy="other"))
    assert seen == [None, None]


async def test_a_driver_that_was_replaced_promotes_nothing(files: Files) -> None:
    url = files.fresh()
    with open_store(url) as store, open_store(url) as operator:
        asleep = replace(PACE, heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)
        plan = proving(store, [BETTER])
        course = plan.course

        def slow(standing: Standing) -> Lesson | None:
            lesson = course(standing)
            assert lesson is not None and lesson.learn is not None
            learn = lesson.learn

            def taken_from_it(experiences: Sequence[Experience]) -> Learnt:
                operator.runs.resume(standing.run, who="other", now=time.time(), silent_s=0.0).result()
                return replace(learn(experiences), checkpoint=None)

            return replace(lesson, learn=taken_from_it)

        with pytest.raises(StaleLease, match="another process has taken it up"):
            await ran(store, replace(plan, course=slow, pace=asleep, report_s=PATIENCE_S))
        assert told(store) == []


CHILD = """
import asyncio, os, signal, sys
from holdfast.store.releases import Releases
from holdfast.store.store import open_store
from holdfast.store.updates import Updates
from tests.workloads import test_promotion as here

url, at, gain = sys.argv[1:]

def die(*ignored, **ignored_too):
    os.kill(os.getpid(), signal.SIGKILL)

def hook(place):
    if place == at:
        die()

if at == "move":
    move = Releases.move
    Releases.move = lambda self, *a, **how: die() if how.get("decision") else move(self, *a, **how)
elif at == "update":
    Updates.add = die
with open_store(url) as store:
    asyncio.run(here.ran(store, here.proving(store, [getattr(here, gain)], hook)))
"""


@pytest.mark.parametrize(
    ("at", "gain"),
    [
        ("publish", "BETTER"),  # the evidence is kept, and there is no report
        ("move", "BETTER"),  # it is published, the version has not moved
        ("update", "BETTER"),  # all is done but for the record of it
        ("update", "WORSE"),
    ],
)
def test_killed_on_the_way_to_a_decision_a_run_comes_to_the_same_one(files: Files, at: str, gain: str) -> None:
    url, root = files.fresh(), Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", CHILD, url, at, gain]
    died = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=root)
    assert died.returncode == -signal.SIGKILL, died.stderr
    with open_store(url) as store:
        (run,) = store.runs.newest()
        assert store.steps.of_run(run.id) == []
        live = store.releases.live(POLICY)
        assert live is not None
        assert (live.id == f"{POLICY}@2") is (gain == "BETTER" and at == "update")
        fall_silent(store, run.id)
        status = asyncio.run(ran(store, proving(store, [globals()[gain]]), resume=run.id))
        assert status.run_state is RunState.COMPLETED
        last = f"move {POLICY}@2 → live" if gain == "BETTER" else f"refuse {POLICY}@2"
        assert told(store) == [*ADDED, last]
        (update,) = store.steps.of_run(run.id)
        assert update.body["decision"]["open"] is (gain == "BETTER")
        assert [one.id for one in store.checkpoints.of_run(run.id)] == [f"{run.id}-0"]
        entry = store.releases.history(POLICY)[-1].body
        assert (entry["decision"], entry["evidence"]) == (update.body["decision"], update.body["evidence"])
        assert validate(Path(update.body["proof"])) == []
        assert len(list(store.reports.glob("m24/*"))) == 1
        assert [attempt.status for attempt in store.views.attempts(f"{run.id}/l0")] == [AttemptState.SUCCEEDED]


async def test_of_two_proofs_against_one_live_version_only_the_first_puts_a_version_into_service(store: Store) -> None:
    run = begun(store, "c-1", "c-2")
    first, second = (proposal(store, run, BETTER, checkpoint=name) for name in ("c-1", "c-2"))
    await promoted(store, proposal(store, run, WORSE, checkpoint="c-1"))  # so that something is live
    raced: list[str] = []

    def publish(evidence: Evidence, decision: Decision) -> Mapping[str, Any]:
        """Between the other's decision and its move this one goes live."""
        if not raced:
            raced.append("now")
            raced.append(str(asyncio.run(promoted(store, first))["release"]))
        return second.publish(evidence, decision)

    body = await promoted(store, replace(second, publish=publish))
    live = store.releases.live(POLICY)
    assert live is not None and live.id == raced[1]
    assert codes(body) == ["baseline_is_not_live"]
    assert store.releases.get(str(body["release"])).stage is Stage.CANDIDATE
