"""The end of an iteration: a candidate is weighed, decided on and moved, once, however often the process is killed on
the way."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
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
from holdfast.pipeline.judges import judged_by, with_calibrations
from holdfast.pipeline.promote import Candidate, PromotionRequest, adopt, promote, proof_of, report_ids, summed
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.reports.validate import validate
from holdfast.reward.ready import judge as judge_scorer
from holdfast.reward.scorers import Scorer, combine, with_safety
from holdfast.store.artifacts import sha256_of
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


def tries(success: float, tasks: int = 100) -> list[Episode]:
    """Two at each task; of an even chance, every second one succeeds."""
    return [
        Episode(task=f"t{n}", seed=seed, reward=won, success=won, safety_cost=0.0)
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


SIGNIFICANCE = "checkpoint_promotion_blocked_policy_improvement_not_significant"


@pytest.mark.parametrize(
    ("gain", "is_held", "reasons"),
    [
        (WORSE, False, {SIGNIFICANCE, "reward_gain_below_threshold"}),
        (EQUAL, True, {SIGNIFICANCE, "p_value_above_threshold"}),
    ],
)
async def test_a_worse_candidate_is_refused_and_an_equal_one_held(
    store: Store, gain: tuple[float, float], is_held: bool, reasons: set[str]
) -> None:
    run = begun(store, "c-1")
    body = await promoted(store, request(store, run, gain))
    assert reasons <= set(codes(body))
    assert ("no_gain_seen" in codes(body)) is is_held and body["decision"]["needs"] is None
    live, candidate = store.releases.live(POLICY), store.releases.get(f"{POLICY}@2")
    assert live is not None
    assert (live.id, candidate.stage, candidate.evidence) == (f"{POLICY}@1", Stage.CANDIDATE, body["evidence"])
    assert told(store) == [*ADDED, f"refuse {POLICY}@2"]
    assert store.releases.history(POLICY)[-1].body["decision"] == body["decision"]
    proof = read(body["proof"])
    assert validate(Path(body["proof"])) == []
    assert await promoted(store, request(store, run, gain)) == body  # and once more, nothing is there twice
    assert told(store) == [*ADDED, f"refuse {POLICY}@2"] and read(body["proof"]) == proof


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


@pytest.mark.parametrize("meanwhile", [lambda store: None, rolled_back, replaced], ids=["nothing", "back", "another"])
async def test_what_was_decided_before_a_kill_stays_decided_whatever_happened_since(
    store: Store, meanwhile: Callable[[Store], None]
) -> None:
    run = begun(store, "c-1")
    first = await promoted(store, request(store, run, BETTER))
    meanwhile(store)
    ledger, live = told(store), store.releases.live(POLICY)
    assert await promoted(store, request(store, run, BETTER)) == first
    assert (told(store), store.releases.live(POLICY)) == (ledger, live)


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


async def test_a_driver_that_was_replaced_promotes_nothing(store: Store, operator: Store) -> None:

    def taken_from_it(at: str) -> None:
        if at == "publish":
            (run,) = operator.runs.newest()
            operator.runs.resume(run.id, who="other", now=time.time(), silent_s=0.0).result()

    asleep = replace(PACE, heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)
    spec = replace(proving(store, BETTER, taken_from_it), timing=asleep, report_s=PATIENCE_S)
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

def die(*ignored, **ignored_too):
    os.kill(os.getpid(), signal.SIGKILL)

def killed(url, at, gain):
    if at == "move":
        move = Releases.move
        Releases.move = lambda self, *a, **how: die() if how.get("decision") else move(self, *a, **how)
    elif at == "record":
        add = Steps.add
        Steps.add = lambda self, run, name, *a, **how: die() if name == "decide" else add(self, run, name, *a, **how)
    with open_store(url) as store:
        asyncio.run(ran(store, here.proving(store, getattr(here, gain), lambda place: die() if place == at else None)))

for case in sys.argv[1:]:
    child = os.fork()  # no threads yet, and what was imported need not be again
    if not child:
        killed(*case.split("|"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""
KILLED = [
    ("publish", "BETTER"),  # the evidence is kept, and there is no report
    ("move", "BETTER"),  # it is published, the version has not moved
    ("record", "BETTER"),  # all is done but for the record of it
    ("record", "WORSE"),
]


@pytest.fixture(scope="module")
def killed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """The stores that runs left which were killed there."""
    urls = [Files(tmp_path_factory.mktemp("killed"), template).fresh() for _ in KILLED]
    cases = [f"{url}|{at}|{gain}" for url, (at, gain) in zip(urls, KILLED, strict=True)]
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", CHILD, *cases], timeout=2 * PATIENCE_S, cwd=root, check=True)
    return dict(zip(KILLED, urls, strict=True))


@pytest.mark.parametrize(("at", "gain"), KILLED)
def test_killed_on_the_way_to_a_decision_a_run_comes_to_the_same_one(
    killed: dict[tuple[str, str], str], at: str, gain: str
) -> None:
    with open_store(killed[at, gain]) as store:
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


NOW = 1_700_000_000.0


# What is weighed, and what is published of it

NOW = 1_700_000_000.0


def propose(reports: Path = Path(), *, gain: tuple[float, float] = BETTER, now: float = NOW, **fields: Any) -> Any:
    given = {"suite": ("tests", "2", "cd" * 32), "manifest": {"steps": 3}, **fields}
    criteria = replace(LAX, min_reward_delta=0.1)
    return PromotionRequest(
        candidate=case("Run-1_ab", gain, **given), how=WEIGHING, criteria=criteria, reports=reports, now=now
    )


def weigh(asked: PromotionRequest) -> Evidence:
    return asked.weigh("tools@1", "tools@2", "0" * 64)


def test_evidence_is_weighed_the_same_every_time_and_rests_on_the_samples() -> None:
    asked = propose()
    assert (asked.candidate.kind, asked.to, asked.share) == (PolicyKind.WEIGHTS, None, None)  # nothing moves
    samples = json.loads(asked.samples)
    assert [decode(Episode, one) for one in samples["candidate"]] == tries(1.0)
    assert (samples["weighing"]["alpha"], samples["criteria"]["min_reward_delta"]) == (0.05, 0.1)
    evidence = weigh(asked)
    assert evidence == weigh(asked)
    assert (evidence.suite, evidence.samples) == (f"tests@2 {('cd' * 6)}", "0" * 64)
    assert evidence.comparisons["success"].difference == 1.0
    solved = {"baseline": 0.0, "candidate": 200.0, "of": 200}
    assert evidence.manifest == {"run": "Run-1_ab", "steps": 3, "solved": solved}
    assert (evidence.audit, evidence.golden) == ((CLEAN,), None)
    assert asked.decide(evidence).open and not asked.decide(weigh(propose(gain=WORSE))).open


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"audit": None}, "evidence_missing_audit"),
        ({"audit": (replace(CLEAN, count=1),)}, "data_quality_no_secrets"),
        ({"golden": (Finding(name="reward_hash", severity="error", count=1, of=1),)}, "golden_changed_unsigned"),
    ],
)
def test_what_was_found_besides_keeps_the_gate_closed(fields: dict[str, Any], code: str) -> None:
    odd = Finding(name="reward_varies", severity="warning", count=9, of=9, blocks=False)
    if fields.get("audit"):
        fields = {"audit": (*fields["audit"], odd)}
    asked = propose(**fields)
    assert [reason.code for reason in asked.decide(weigh(asked)).reasons] == [code]


def test_a_report_is_of_the_episodes_that_both_have_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    asked = propose(tmp_path / "reports", after=tries(1.0)[3:])
    evidence = weigh(asked)
    assert evidence.missing == {"planned": 200, "baseline": 0, "candidate": 3}
    path = Path(asked.publish(evidence, asked.decide(evidence))["proof"])
    proof = json.loads(path.read_text())
    assert proof["baseline"]["episodes"] == proof["trained"]["episodes"] == 196 and validate(path) == []
    assert evidence.episodes == 98  # tasks that both were measured on with every seed
    lost = {"baseline": 2, "candidate": 7}  # imputed episodes are among the others
    assert weigh(propose(lost=lost)).missing == {"planned": 200, **lost}


def test_a_report_is_called_after_its_run_and_the_number_of_its_version() -> None:
    for run, release, expected in (
        ("run-1-ab12", "default@2", "m24-run-1-ab12-2"),
        ("run-1-ab12", "a@b@31", "m24-run-1-ab12-31"),
        ("Läuft gut", "p@1", "m24-l-uft-gut-1"),
    ):
        names = list(islice(report_ids(run, release), 30))
        assert names[:3] == [expected, f"{expected}b", f"{expected}c"] and len(set(names)) == 30


def test_several_audits_become_one() -> None:
    one, two = replace(CLEAN, count=1, of=4, detail="r/1: mail"), replace(CLEAN, count=2, of=5, detail="r/9: phone")
    odd = Finding(name="reward_varies", severity="warning", count=3, of=3, blocks=False)
    whole = replace(CLEAN, count=3, of=18, detail="r/1: mail")
    assert summed([]) == () and summed([[CLEAN], [one, odd], [two]]) == (whole, odd)


def test_the_reports_are_published_once_and_can_be_validated(tmp_path: Path) -> None:
    reports = tmp_path / ".holdfast/reports"
    asked = propose(reports)
    evidence = weigh(asked)
    decision = asked.decide(evidence)
    path = Path(asked.publish(evidence, decision)["proof"])
    assert path == reports / "m24/m24-run-1-ab-2/m24-benchmark-proof-m24-run-1-ab-2.json"
    assert validate(path) == []
    written = {file: file.read_bytes() for file in path.parent.iterdir()}
    later = propose(reports, now=NOW + 5)  # as after a kill
    assert later.publish(evidence, decision) == {"proof": str(path), "proof_sha256": sha256_of(path)}
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == written

    path.unlink()  # killed before its last file was there
    later.publish(evidence, decision)
    assert validate(path) == []

    archived = reports / "archive/m24/2023/11" / path.name
    archived.parent.mkdir(parents=True)
    shutil.move(path, archived)  # taken up so late that all of it is in the archive
    later.publish(evidence, decision)
    assert not path.exists()


def test_another_decision_about_the_same_version_is_another_proof(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    asked = propose(reports)
    evidence = weigh(asked)
    first = asked.decide(evidence)
    second = Decision(open=False, reasons=(Reason(code="baseline_is_not_live", text="another is"),))
    assert proof_of(reports, "Run-1_ab", "tools@2", first) is None
    paths = [Path(asked.publish(evidence, one)["proof"]) for one in (first, second, first, second)]
    assert paths[0] == paths[2] != paths[1] == paths[3]
    assert [proof_of(reports, "Run-1_ab", "tools@2", one) for one in (first, second)] == paths[:2]
    assert [validate(path) for path in paths[:2]] == [[], []]


def test_a_judges_word_decides_nothing_until_it_is_calibrated(store: Store) -> None:
    judge = {"judge": "gpt-x", "criterion": "correctness@1", "prompt": "ab" * 32}
    asked = propose(manifest=with_calibrations(store, {"judged": [judge]}))
    reasons = asked.decide(weigh(asked)).reasons
    assert [one.code for one in reasons] == ["evidence_missing_judge_calibration"]
    assert "holdfast reward judge calibrate --judge gpt-x --criterion correctness" in reasons[0].text
    alone = combine([Scorer(judge_scorer(complete=_never), gate=True), Scorer(lambda task, answer: 1.0, name="long")])
    (known,) = judged_by(with_safety(alone), "success")
    assert known["criterion"] == "correctness@1" and len(known["prompt"]) == 64
    beside = combine([Scorer(lambda task, answer: 1.0, name="exact", gate=True), Scorer(judge_scorer(complete=_never))])
    assert judged_by(beside, "success") == [] and len(judged_by(beside, "reward")) == 1


async def _never(messages: Any, **how: Any) -> Any:
    raise AssertionError("nobody is asked")
