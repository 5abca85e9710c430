"""Iterations of improvement: what comes next follows from the record, a candidate is measured beside what is live, and
what is not accepted is left behind.

Answers are scripted and the model is tiny; what it learns is real. Whole commands are the business of their tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.agent import Context
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.evidence import Evidence, Outcome
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.records import loads
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import Rollout, Split
from holdfast.contracts.run import RunState, Status, StepRecord
from holdfast.learn.grpo import GRPO
from holdfast.learn.turns import TurnPPO
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.improve import NEVER_ASKED, IterationResult, Spec, hold, improve
from holdfast.pipeline.prove import ProveConfig
from holdfast.pipeline.run import Control, DurableRun, RunSpec
from holdfast.policies.model import Model
from holdfast.policies.weights import read
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import ComparisonConfig
from holdfast.reward.scorers import with_safety
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.pipeline.scene import Script, fresh_in, ran, spec_of, success
from tests.workloads.scene import tiny

LINE = "tools"
TRAIN = [{"prompt": f"train {n}"} for n in range(5)]
VAL = [{"prompt": f"val {n}"} for n in range(30)]
WIDE = SpreadLimits(p_value=1.0, delta=1.0)
LAX = Criteria(max_seed_spread=WIDE, max_sample_spread=WIDE, max_safety_regression=0.5)
HOW = ComparisonConfig(
    max_safety_regression=0.5,  # few tasks are enough to see that
    seed_p_value_spread=1,
    seed_delta_spread=1,
    sample_p_value_spread=1,
    sample_delta_spread=1,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tiny(tmp_path_factory.mktemp("base") / "tiny"))


def every_second(name: str) -> float | None:
    return float(name[-1] in "13579")


@dataclass
class Play:
    """A run whose attempts are worth what a script says; None: a fault of ours, always."""

    policy: Model
    practice: Callable[[str], float | None] = every_second
    before: float | None = 0.0  # in the proof
    after: float | None = 1.0
    hook: Callable[[str], Any] = lambda name: None
    score: Any = field(default_factory=lambda: with_safety(success))
    engine: Script = field(default_factory=Script)

    async def agent(self, task: Mapping[str, Any], context: Context) -> float:
        name = context.assignment.rollout.partition("/")[2]
        self.hook(name)
        await context.ask([{"role": "user", "content": task["prompt"]}])
        arms = {"baseline": self.before, "candidate": self.after}
        won = arms[name.split("-")[2]] if name.startswith("proof-") else self.practice(name)
        if won is None:
            raise Fault("endpoint", why="is down")
        return won

    def spec(self, *, algorithm: Any = None, prove: Mapping[str, Any] | None = None, **fields: Any) -> RunSpec:
        given: dict[str, Any] = {
            "line": LINE,
            "policy": self.policy,
            "algorithm": algorithm or GRPO(lr=1e-2, steps=2, tasks=2, samples=2),
            "tasks": TRAIN,
            "held_out": [HeldOut(id=f"val-{n}", input=one) for n, one in enumerate(VAL, 1)],
            "prove": ProveConfig(**{"how": HOW, "batch": 15, "least": 20, "seeds": (0, 1), **(prove or {})}),
            "criteria": LAX,
            **fields,
        }
        made = Spec(**given)

        async def program(run: DurableRun) -> None:
            await improve(run, made)

        return spec_of(
            program, agent=self.agent, score=self.score, engine=self.engine, kind="improve", workers=8, max_faults=0
        )

    async def run(self, store: Store, features: Features = ALL_ON, **fields: Any) -> Played:
        status = await ran(store, self.spec(**fields), features=features)
        return Played(store, status)


@dataclass(frozen=True)
class Played:
    store: Store
    status: Status

    @property
    def steps(self) -> list[StepRecord]:
        return self.store.steps.of_run(self.status.run_id)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.steps]

    def body(self, name: str) -> Mapping[str, Any]:
        (found,) = [one.body for one in self.steps if one.name == name]
        return found

    def decided(self, iteration: int = 0) -> IterationResult:
        return IterationResult.from_record(self.body(f"{iteration}/decide"))

    def evidence(self, iteration: int = 0) -> Evidence:
        return loads(Evidence, self.store.blobs.get(str(self.body(f"{iteration}/decide")["evidence"])))

    def judged(self) -> tuple[Any, ...]:
        """Evidence and decision, without what names the run or tells how long something took."""
        decision, compared = self.decided().decision, self.evidence().comparisons
        assert decision is not None
        texts = [re.sub(r"[0-9a-f]{64}", "samples", one.text) for one in decision.reasons]
        return decision.open, texts, {name: one for name, one in compared.items() if name != "latency"}

    def rollouts(self, step: str) -> list[Rollout]:
        return self.store.views.of_step(self.status.run_id, step)

    @property
    def checkpoints(self) -> list[str]:
        return [one.id for one in self.store.checkpoints.of_run(self.status.run_id)]

    def sha256(self, place: int) -> str:
        return read(self.store.folder / "checkpoints" / self.checkpoints[place]).sha256


async def test_an_iteration_practises_and_proves_on_other_tasks_in_batches_by_both_versions_side_by_side(
    base: Model, store: Store
) -> None:
    played = await Play(base, before=0.5, after=0.5).run(store, prove={"stop_early": False})
    assert played.status.run_state is RunState.COMPLETED
    practice = [f"0/{n}/{what}" for n in (0, 1) for what in ("collect", "learn")]
    proof = ["0/live", "0/prove/order", "0/prove/0", "0/prove/1", "0/decide"]
    assert played.names == ["begin", "base", "0/start", *practice, *proof]
    asked = {
        name: [(one.input["prompt"], one.split) for one in played.rollouts(name)]
        for name in ("0/0/collect", "0/1/collect", "0/prove/0", "0/prove/1")
    }
    assert asked["0/0/collect"] == [(f"train {n}", Split.TRAIN) for n in (0, 0, 1, 1)]
    assert asked["0/1/collect"] == [(f"train {n}", Split.TRAIN) for n in (2, 2, 3, 3)]
    proved = [*asked["0/prove/0"], *asked["0/prove/1"]]
    assert sorted(proved) == sorted((f"val {n}", Split.VAL) for n in range(30) for _ in range(4))
    assert proved[::4] == proved[3::4] and proved[::4] != sorted(proved[::4])  # mixed, each task by both side by side
    looked = played.rollouts("0/prove/0")
    assert [one.name for one in looked[:4]] == [
        f"proof-0-{arm}-0-{seed}" for seed in (0, 1) for arm in ("baseline", "candidate")
    ]
    chance = [one.metadata["seed"] for one in looked]
    assert chance[::2] == chance[1::2] and len(set(chance)) == 30  # both arms draw alike, by task and seed
    assert {one.max_attempts for name in asked for one in played.rollouts(name)} == {1}


async def test_a_better_candidate_is_measured_on_as_many_tasks_as_the_gate_asks_for_and_accepted(
    base: Model, store: Store
) -> None:
    played = await Play(base).run(store, prove={"batch": 15})
    looks = [played.body(name) for name in played.names if name.startswith("0/prove/") and name != "0/prove/order"]
    assert [(one["tasks"], one["verdict"]["outcome"]) for one in looks] == [(15, "promote"), (30, "promote")]
    assert played.decided().is_accepted
    assert store.releases.live(LINE) is None  # without a stage nothing moves
    assert {one.stage for one in (store.releases.get(f"{LINE}@{n}") for n in (1, 2))} == {Stage.CANDIDATE}
    assert "accept" in store.releases.history(LINE)[-1].body
    first, last = (base.at(name) for name in played.checkpoints)
    for one in store.experiences.of([one.id for one in played.rollouts("0/prove/0")]):
        assert one.version == (last if "candidate" in one.rollout else base).version  # each arm by its own weights
    practised = [store.experiences.of([one.id for one in played.rollouts(f"0/{n}/collect")]) for n in (0, 1)]
    assert [{one.version for one in some} for some in practised] == [{base.version}, {first.version}]
    assert len({played.sha256(0), played.sha256(1), read(Path(base.name)).sha256}) == 3


async def test_an_agent_that_fails_in_a_proof_was_wrong_is_not_tried_again_and_the_first_look_decides(
    base: Model, store: Store
) -> None:
    def raise_odd(name: str) -> None:
        if name.startswith("proof-0-candidate"):
            raise ValueError("no idea")

    played = await Play(base, before=1.0, hook=raise_odd).run(store, prove={"batch": 15})
    assert [name for name in played.names if name.startswith("0/prove/")] == ["0/prove/order", "0/prove/0"]  # of two
    assert played.body("0/prove/0")["verdict"]["outcome"] == "reject"
    evidence = played.evidence()
    assert (evidence.missing or {})["candidate"] == 0 and evidence.comparisons["success"].difference == -1.0
    assert {len(store.views.attempts(one.id)) for one in played.rollouts("0/prove/0")} == {1}
    assert not played.decided().is_accepted


async def test_what_is_missing_in_a_proof_counts_against_the_candidate_though_the_baseline_lost_it(
    base: Model, store: Store
) -> None:
    played = await Play(base, before=None, after=0.0).run(store, prove={"stop_early": False})
    evidence = played.evidence()
    assert played.body("0/prove/1")["missing"] == {"baseline": 60, "candidate": 0}
    assert evidence.missing == {"planned": 60, "baseline": 60, "candidate": 0}
    assert evidence.comparisons["success"].difference == evidence.comparisons["reward"].difference == -1.0
    assert not played.decided().is_accepted


@pytest.mark.parametrize(
    ("lost", "is_accepted", "retried"),
    [
        ({"baseline": (1,), "candidate": (2,)}, True, {"baseline": 20, "candidate": 20}),  # blind to the version
        ({"baseline": (), "candidate": (1, 2)}, False, {"baseline": 0, "candidate": 0}),  # may be its own doing
    ],
)
async def test_what_infrastructure_lost_in_both_arms_is_measured_again_before_a_candidate_is_held(
    base: Model, store: Store, lost: Mapping[str, tuple[int, ...]], is_accepted: bool, retried: Mapping[str, int]
) -> None:
    def down(name: str) -> None:
        """For a third of the tasks, or two; up again in the end."""
        parts = name.split("-")
        if name.startswith("proof-") and not name.endswith("-retry") and int(parts[3]) % 3 in lost[parts[2]]:
            raise Fault("endpoint", why="is down")

    played = await Play(base, hook=down).run(store)
    assert played.body("0/prove/lost")["retried"] == retried
    assert played.decided().is_accepted is is_accepted
    assert (played.evidence().missing or {})["candidate"] == (0 if is_accepted else 40)
    again = {one.name.removesuffix("-retry"): one for one in played.rollouts("0/prove/lost")}
    first = {one.name: one for step in ("0/prove/0", "0/prove/1") for one in played.rollouts(step)}
    assert len(again) == sum(retried.values()) and again.keys() <= first.keys()
    assert all(one.metadata["seed"] == first[name].metadata["seed"] for name, one in again.items())  # the same chance


async def test_who_lost_as_much_as_the_baseline_is_not_proved_worse_by_it(base: Model, store: Store) -> None:
    """Fault: what is missing counts against the candidate, so faults of ours proved an equal version worse."""

    def down(name: str) -> None:
        if name.startswith("proof-") and not name.endswith("-retry"):
            arm, place = name.split("-")[2:4]
            if int(place) % 2 == (arm == "candidate"):
                raise Fault("endpoint", why="is down")

    played = await Play(base, before=1.0, after=1.0, hook=down).run(store)
    looks = [played.body(f"0/prove/{name}")["verdict"]["outcome"] for name in (0, 1, "lost")]
    assert looks == ["hold"] * 3 and played.body("0/prove/lost")["retried"] == {"baseline": 30, "candidate": 30}
    verdict = played.evidence().verdict
    assert verdict is not None and verdict.outcome is Outcome.HOLD


async def test_an_agent_that_raised_has_had_its_try_though_others_are_measured_again(base: Model, store: Store) -> None:
    def down(name: str) -> None:
        if name.startswith("proof-") and name.split("-")[3] in "12345":
            raise ValueError("no idea") if "candidate" in name else Fault("endpoint", why="is down")

    played = await Play(base, hook=down).run(store)
    assert {one.name.split("-")[2] for one in played.rollouts("0/prove/lost")} == {"baseline"}
    assert not played.decided().is_accepted


async def test_the_evidence_has_all_that_was_measured_and_found(base: Model, store: Store) -> None:
    played = await Play(base).run(store, stage=Stage.CANARY, prove={"stop_early": False})
    decided, evidence = played.decided(), played.evidence()
    candidate = store.releases.get(str(played.body("0/decide")["release"]))
    assert decided.is_accepted and decided.candidate == base.at(played.checkpoints[-1])
    assert (candidate.stage, candidate.share, candidate.policy) == (Stage.CANARY, 5, LINE)
    assert candidate.source == f"checkpoint:{played.checkpoints[-1]}"
    assert {name: candidate.manifest[name] for name in ("run", "checkpoint", "grew_from", "steps")} == {
        "run": played.status.run_id,
        "checkpoint": played.checkpoints[-1],
        "grew_from": None,
        "steps": 2,
    }
    assert (evidence.baseline, evidence.candidate, evidence.episodes) == (f"{LINE}@1", f"{LINE}@2", 30)
    assert evidence.comparisons["success"].difference == 1.0
    assert evidence.missing == {"planned": 60, "baseline": 0, "candidate": 0}
    assert evidence.audit is not None
    assert {one.of for one in evidence.audit if one.name == "required_fields"} == {8}  # of both steps


async def test_what_was_live_when_proving_began_is_what_the_candidate_is_measured_against(
    base: Model, store: Store
) -> None:

    def promote_another(name: str) -> None:
        if name == "proof-0-baseline-20-0":
            added = store.releases.add(
                policy=LINE, kind=PolicyKind.WEIGHTS, source="shelf:oak", who="op", now=1.0
            ).result()
            store.releases.move(added.id, Stage.LIVE, expect=Stage.CANDIDATE, who="op", why="by hand", now=2.0).result()

    play = Play(base, hook=promote_another)
    played = await play.run(store, stage=Stage.LIVE, prove={"stop_early": False})
    decided = played.decided()
    assert decided.decision is not None and not decided.is_accepted
    assert decided.decision.reasons[0].code == "baseline_is_not_live"
    live = store.releases.live(LINE)
    assert live is not None and live.source == "shelf:oak"


async def test_the_next_iteration_begins_with_what_was_accepted_and_is_proved_against_what_is_live(
    base: Model, store: Store
) -> None:
    play = Play(base)

    def first_fails(name: str) -> None:
        play.before, play.after = (1.0, 0.0) if name.startswith("proof-0") else (0.0, 1.0)

    play.hook = first_fails
    played = await play.run(store, iterations=3, stage=Stage.LIVE, algorithm=GRPO(lr=1e-2, tasks=2, steps=1))
    assert [played.decided(n).is_accepted for n in range(3)] == [False, True, True]
    first, second, third = played.checkpoints
    began = [played.body(f"{n}/start")["state"]["base"]["manifest"]["checkpoint"] for n in range(3)]
    assert began == [None, None, second]  # what was refused is left behind
    assert [played.body(f"{n}/live")["policy"]["manifest"]["checkpoint"] for n in range(3)] == [None, None, second]
    live = store.releases.live(LINE)
    assert live is not None and (live.source, live.parent) == (f"checkpoint:{third}", f"{LINE}@3")
    assert len({first, second, third}) == 3


async def test_a_run_that_is_stopped_goes_on_to_the_same_weights_and_the_same_decision(
    base: Model, files: Files, tmp_path: Path
) -> None:
    folders = [fresh_in(tmp_path / name, files) for name in ("whole", "cut")]
    with open_store(folders[0]) as unbroken, open_store(folders[1]) as store:
        whole = await Play(base).run(unbroken)
        seen: set[str] = set()
        run: str | None = None
        for at in ("practice-0-0-1-0", "practice-0-1-0-1", "proof-0-candidate-17-1", "never"):
            control = Control()

            def stop(name: str, at: str = at, control: Control = control) -> None:
                if name == at and name not in seen:
                    seen.add(name)
                    control.stop()

            spec = Play(base, hook=stop).spec()  # a process of its own: nothing of the one before is in memory
            status = await ran(store, spec, control, resume=run)
            run = status.run_id
        cut = Played(store, status)
        assert len(seen) == 3 and cut.status.run_state is RunState.COMPLETED
        assert cut.names == whole.names
        assert [cut.sha256(n) for n in (0, 1)] == [whole.sha256(n) for n in (0, 1)]
        assert cut.judged() == whole.judged()


# Where there is nothing to prove


async def test_where_nothing_was_learnt_nothing_is_measured_and_the_reason_has_counts(
    base: Model, store: Store
) -> None:
    played = await Play(base, practice=lambda name: 0.0).run(store)
    assert not [name for name in played.names if "prove" in name]
    assert played.body("0/decide") == {
        "phase": "decide",
        "iteration": 0,
        "proposed": False,
        "why": "nothing was learnt, so there is nothing to prove: 8 rollouts zero variance group",
    }
    assert store.releases.history(LINE) == []


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"no_trajectory": 768}, NEVER_ASKED),
        ({"gate:no_pii": 768}, "768 put aside by the data gate no_pii"),
        (
            {"zero_variance_group": 8, "no_trajectory": 2},
            "8 rollouts zero variance group, 2 rollouts no trajectory",
        ),
    ],
)
def test_why_nothing_was_learnt_is_said_in_words(counts: dict[str, int], told: str) -> None:
    aside = [{"name": "put_aside", "count": sum(counts.values())}]
    body = {"iteration": 0, "audit": {"counts": counts}, "quality": aside, "rollouts": sum(counts.values())}
    done = [StepRecord(run="r", step=1, name="0/0/learn", function="f", inputs_sha256="ab" * 32, at=0.0, body=body)]
    assert hold(done, 0).why == f"nothing was learnt, so there is nothing to prove: {told}"


class Mute(Play):
    async def agent(self, task: Mapping[str, Any], context: Context) -> float:
        return every_second(context.assignment.rollout) or 0.0


@pytest.mark.parametrize("algorithm", [GRPO(steps=1, tasks=2, samples=2), TurnPPO(steps=1, tasks=2, samples=2)])
async def test_an_agent_that_asks_no_model_is_told_so(base: Model, store: Store, algorithm: Any) -> None:
    why = str((await Mute(base).run(store, algorithm=algorithm)).decided().why)
    assert why.partition(": ")[2] == NEVER_ASKED
    assert "never asked the model through ctx.ask or ctx.base_url" in why and "--policy prompt" in why


async def test_an_update_that_was_taken_back_is_no_candidate_and_is_the_reason(base: Model, store: Store) -> None:
    played = await Play(base).run(store, algorithm=GRPO(lr=1e30, steps=1, tasks=2, samples=2))
    assert played.checkpoints == []
    why = str(played.decided().why)
    assert why.startswith("nothing was learnt, so there is nothing to prove: 1 updates were taken back, the last ")
    assert str(played.body("0/0/learn")["update"]["restored"]) in why


async def test_an_update_that_moved_nothing_is_no_candidate_and_is_the_reason(base: Model, store: Store) -> None:
    """A whole step that would go too far is stopped before its first update: the weights are what they were."""
    algorithm = TurnPPO(steps=1, tasks=2, samples=2, ppo={"max_kl": 1e-9})
    played = await Play(base).run(store, algorithm=algorithm)
    assert played.checkpoints == [] and not [name for name in played.names if "prove" in name]
    assert str(played.decided().why).endswith("1 updates moved nothing")


async def test_what_infrastructure_lost_is_no_reward_of_zero_and_is_counted(base: Model, store: Store) -> None:
    play = Play(base, practice=lambda name: 1.0 if name.endswith("-0") else None)
    played = await play.run(store, algorithm=GRPO(steps=1, tasks=2, samples=3))
    why = str(played.decided().why)
    assert "2 rollouts group of one" in why and "4 rollouts never came back" in why
    assert played.body("0/0/learn")["reward"] == 1.0


# What cannot be


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("shelf:oak", "policy tools: shelf:oak is live, and not this model; name another policy, or that model"),
        ("resources:1", "policy tools: resources:1 is live, and has no weights to go on from; name another policy"),
    ],
)
async def test_a_line_that_another_model_serves_is_not_improved_with_this_one(
    base: Model, store: Store, source: str, said: str
) -> None:
    store.versions.publish({"system": "Be brief."}, now=1.0).result()
    added = store.releases.add(policy=LINE, kind=PolicyKind.WEIGHTS, source=source, who="op", now=1.0).result()
    store.releases.move(added.id, Stage.LIVE, expect=Stage.CANDIDATE, who="op", why="x", now=2.0).result()
    with pytest.raises(BadInput, match=f"^{said}$"):
        await Play(base).run(store)


@pytest.mark.parametrize(
    ("primary", "said"),
    [
        ("success", "improve.prove.primary = success: no rollout has a signal called success or exact_match; "),
        ("reward", r"improve.prove.reward_range = \[0, 1\]: the reward of run-1-.* is 2; "),
    ],
)
async def test_what_cannot_be_measured_is_said_after_the_first_step(
    base: Model, store: Store, primary: Any, said: str
) -> None:
    def taste(task: Any, output: Any, spans: Any) -> tuple[RewardTerm, ...]:
        return (RewardTerm(name="taste", value=2.0, source="rule"),)

    with pytest.raises(BadInput, match=f"^{said}"):
        await Play(base, score=taste).run(store, prove={"how": replace(HOW, primary=primary)})
    (run,) = store.runs.newest()
    assert [one.name for one in store.steps.of_run(run.id)][-1] == "0/0/collect"
