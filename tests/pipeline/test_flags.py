"""Flags in runs: each switches something for its units, and experiments about them count what came of these."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.collect.agent import Context, OwnScore
from holdfast.contracts.algorithm import Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ARMS, WITHOUT, Features, Flag, FlagRule, features_without, unit_of
from holdfast.contracts.release import Experiment
from holdfast.contracts.reward import Reward
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import ModelCall
from holdfast.operate.switches import conclude, flag_reader, ruling_of
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import Endpoints, Runtime, StepContext
from holdfast.pipeline.run import DurableRun, FlagsAfter, RunSpec
from holdfast.policies.prompt import Prompt
from holdfast.promote.experiment import KIND, Design, ExperimentCall, arms_of, settings_of
from holdfast.promote.flags import SWITCHES, Snapshot, features, snapshot
from holdfast.reward import ready
from holdfast.reward.scorers import Scorer, combine
from holdfast.store.store import Store
from holdfast.workloads.tooluse.score import scorer as tooluse_scorer
from tests.collect.scene import until
from tests.pipeline.driving import Gate, Watched, spec_of

BEFORE = "def price(n):\n    return n * 2\n"
FIXED = "def price(n):\n    return n * 3\n"
# The same fix, and a function that nobody needs.
PADDED = FIXED + "\n\ndef unused_wrapper(n):\n    pass\n"
CHANGE: Mapping[str, Any] = {"files": {"price.py": BEFORE}, "expected": {"price.py": FIXED}}
QUESTION: Mapping[str, Any] = {"prompt": "2 + 2?", "expected": "4", "style": "brief"}


def by_turn(task: Any, answer: Any) -> Reward:
    return Reward(1.0, turns={0: {"progress": 1.0}})


class Grader:
    """A judge that finds everything good."""

    asks_model, feature, name = True, "judges", "graded"

    def __call__(self, task: Any, answer: Any) -> float:
        return 1.0


async def programmer(task: Any, context: Context) -> Any:
    said = {"role": "assistant", "content": "done"}
    context.trace.model(
        ModelCall(model="m", messages=({"role": "user", "content": "?"},), response=said), started_at=1.0
    )
    if context.budget is not None:
        context.budget.settle(context.budget.grant([], ()), None)
    return {"price.py": PADDED}


def scored() -> Any:
    gate = Scorer(lambda task, answer: 1.0, name="gate", gate=True)
    return combine([gate, Scorer(ready.diff, weight=0.1), Scorer(Grader(), weight=0.2), Scorer(by_turn, weight=0.1)])


class Program:
    """One task, and then a step that would learn."""

    def __init__(self, *inputs: Any) -> None:
        self.inputs, self.learnt = inputs, list[bool]()

    async def __call__(self, run: DurableRun) -> None:
        todo = [Work(name=f"t{n}", input=one, policy=Prompt(), group=f"t{n}") for n, one in enumerate(self.inputs)]
        await run.step("collect", collect, todo, 1, None)
        await run.step("learn", self.learn)

    def learn(self, *, ctx: StepContext) -> dict[str, Any]:
        self.learnt.append(ctx.features.learning)
        return {}


def seen(*flags: Flag) -> Snapshot:
    return snapshot(flags, now=1.0, environment={})


async def observed(store: Store, flags: Any) -> dict[str, Any]:
    """What a run with every feature shows of each."""
    found = dict[str, Any]()
    for task, score in ((QUESTION, OwnScore(tooluse_scorer)), (CHANGE, scored())):
        program, runtime = Program(task), Runtime(programmer, score, Endpoints(), has_budgets=True)
        watched = Watched(store, replace(spec_of(program), runtime=runtime), features=lambda done: flags)
        status = await watched.run()
        assert status.run_state is RunState.COMPLETED, status.error
        (rollout,) = store.views.rollouts(status.run_id)
        attempt = store.views.attempts(rollout.id)[0]
        terms = {one.name: one for one in store.traces.breakdown(attempt.token).signals}
        budget = store.budgets.get(attempt.token)
        found |= {"budgets": budget is not None, "adaptive": None if budget is None else str(budget.budget.tier)}
        found["learning"] = program.learnt[-1]
        if task is QUESTION:
            found["tool_rewards"] = "efficiency" in terms
        else:
            found["minimal_diff"] = round(terms["diff"].value, 3)
            found["judges"] = "graded" in terms
            found["combined"] = terms["graded"].weight if "graded" in terms else None
            found["turn_rewards"] = any(one.turn is not None for one in terms.values())
    return found


ALL = {"budgets": True, "adaptive": "trivial", "minimal_diff": 0.255, "judges": True, "combined": 0.2}
ALL |= {"turn_rewards": True, "tool_rewards": True, "learning": True}
CHANGED: Mapping[str, Mapping[str, Any]] = {  # flag → what a run shows while it is killed
    SWITCHES["budgets"]: {"budgets": False, "adaptive": None},
    SWITCHES["adaptive"]: {"adaptive": "standard"},
    SWITCHES["minimal_diff"]: {"minimal_diff": 1.0},
    SWITCHES["scaffolding"]: {"minimal_diff": 0.636},
    SWITCHES["judges"]: {"judges": False, "combined": None},
    SWITCHES["combined"]: {"combined": 0.0},
    SWITCHES["tool_rewards"]: {"tool_rewards": False},
    SWITCHES["turn_rewards"]: {"turn_rewards": False},
    SWITCHES["learning"]: {"learning": False},
    "extendedThinking.enabled": {"budgets": False, "adaptive": None},
    "rewardHackingPrevention.enabled": {"minimal_diff": 1.0},
    "agenticRL.enabled": {"tool_rewards": False, "turn_rewards": False, "learning": False},
    "intelligentEvaluation.enabled": {"judges": False, "combined": None},
}


def made(name: str, **how: Any) -> Flag:
    return replace(next(one for one in features({}, owner="ann") if one.name == name), **how)


@pytest.mark.parametrize("name", [None, *(flag.name for flag in features({}, owner="ann"))])
async def test_every_flag_switches_something_in_a_run(store: Store, name: str | None) -> None:
    flags = seen() if name is None else seen(made(name, killed=True))
    assert await observed(store, flags) == {**ALL, **(CHANGED[name] if name else {})}


async def test_a_percentage_is_one_of_tasks_and_attempts_at_one_task_are_treated_alike(store: Store) -> None:
    inputs = [{"prompt": f"question {n % 100}"} for n in range(200)]  # each twice
    runtime = Runtime(programmer, scored_plainly(), Endpoints(), has_budgets=True)
    flags = seen(made(SWITCHES["budgets"], rules=(FlagRule(variant="on", percent=30.0),)))
    spec = replace(spec_of(Program(*inputs), programmer), runtime=runtime)
    status = await Watched(store, spec, features=lambda done: flags).run()
    rollouts = store.views.rollouts(status.run_id, most=200)
    without = {one.name: one.metadata.get(WITHOUT) for one in rollouts}
    assert set(map(str, without.values())) == {"None", "['budgets']"}
    assert all(without[f"t{n}"] == without[f"t{n + 100}"] for n in range(100))
    kept = [one for one in rollouts if store.budgets.get(store.views.attempts(one.id)[0].token) is not None]
    assert {one.name for one in kept} == {name for name, off in without.items() if off is None}
    assert 30 <= len(kept) <= 90  # of 200; 60 are meant


async def test_a_run_that_was_stopped_goes_on_where_a_flag_was_switched_off_meanwhile(store: Store) -> None:
    """Tasks that are in the queue keep the features that they were given; a Conflict would end the run for good."""
    gate = Gate()

    def spec() -> RunSpec:
        runtime = Runtime(gate, scored_plainly(), Endpoints(), has_budgets=True)
        return replace(spec_of(Program({"prompt": "1"}, {"prompt": "2"})), runtime=runtime)

    stopped = Watched(store, spec(), features=lambda done: seen())
    async with stopped.going():
        await until(lambda: gate.held)
        stopped.control.stop()
    gate.opened.set()
    off = seen(made(SWITCHES["budgets"], killed=True))
    status = await Watched(store, spec(), resume=stopped.run_id, features=lambda done: off).run()
    assert status.run_state is RunState.COMPLETED, status.error
    assert [one.metadata.get(WITHOUT) for one in store.views.rollouts(status.run_id)] == [None, None]


def scored_plainly() -> Any:
    return combine([Scorer(lambda task, answer: 1.0, name="gate", gate=True)])


def test_a_unit_is_the_user_or_the_task() -> None:
    assert unit_of({"prompt": "a", "user": "ann", "id": "7"}) == "ann"
    assert unit_of({"id": "7", "input": {"prompt": "a", "user": "bob"}, "expected": "4"}) == "bob"
    assert unit_of({"id": "7", "input": "a"}) == "7"
    assert unit_of({"a": 1, "b": 2}) == unit_of({"b": 2, "a": 1}) != unit_of({"a": 1, "b": 3})
    assert unit_of("what is 2 + 2?") == unit_of("what is 2 + 2?") != unit_of(["what is 2 + 2?"])
    assert features_without(["judges", "of a newer version"]) == Features(judges=False)


async def test_a_scorer_that_nobody_may_use_is_refused_before_the_run_and_one_for_some_before_its_step(
    store: Store,
) -> None:
    alone = combine([Scorer(Grader(), gate=True)])
    runtime = Runtime(programmer, alone, Endpoints())
    watched = Watched(store, replace(spec_of(Program("a"), programmer), runtime=runtime))
    watched.features = lambda done: seen(made(SWITCHES["judges"], killed=True))
    with pytest.raises(BadInput, match="scorer graded: needs the feature judges"):
        await watched.run()
    assert store.runs.newest() == []
    runtime = Runtime(programmer, alone, Endpoints())
    half = seen(made(SWITCHES["judges"], rules=(FlagRule(variant="on", percent=50.0),)))
    spec = replace(spec_of(Program(*map(str, range(20))), programmer), runtime=runtime)
    with pytest.raises(BadInput, match="scorer graded: needs the feature judges"):
        await Watched(store, spec, features=lambda done: half).run()
    assert store.views.rollouts(store.runs.newest()[0].id) == []


# Experiments about features ------------------------------------------------------------------------------------------


async def thinker(task: Any, context: Context) -> str:
    """Right only where it may think."""
    return "no" if context.budget is None else "yes"


def is_right(task: Any, answer: Any) -> float:
    return float(answer == "yes")


def begun(store: Store, feature: str = "budgets", *, share: float = 0.5, **how: Any) -> Experiment:
    flag, now = made(SWITCHES[feature]), time.time()
    trial = Experiment(
        name=f"{flag.name}-1",
        kind=KIND,
        arms=arms_of(flag, share),
        salt=f"trial/{flag.name}-1",
        created_at=now,
        settings=settings_of(Design(**{"flag": flag.name, "until": now + 3_600.0, **how})),
    )
    return store.trials.begin(trial, who="ann", now=now).result()


def asked(store: Store) -> FlagsAfter:
    return flag_reader(store, clock=time.time, environment={})


async def thought(store: Store, n: int = 200, flags: FlagsAfter | None = None) -> str:
    runtime = Runtime(thinker, combine([Scorer(is_right, gate=True)]), Endpoints(), has_budgets=True)
    program = Program(*({"prompt": f"question {number}"} for number in range(n)))
    spec = replace(spec_of(program, thinker), runtime=runtime)
    status = await Watched(store, spec, features=flags or asked(store)).run()
    assert status.run_state is RunState.COMPLETED, status.error
    return status.run_id


async def test_the_tasks_of_a_run_are_the_units_of_an_experiment_and_its_outcomes_give_the_verdict(
    store: Store,
) -> None:
    trial = begun(store, live={})
    run = await thought(store)
    rollouts = store.views.rollouts(run, most=200)
    arms = {unit_of(one.input): one.metadata[ARMS][trial.name] for one in rollouts}
    exposed = store.trials.exposed(trial.name)
    assert exposed == {arm: list(arms.values()).count(arm) for arm in ("off", "on")} and min(exposed.values()) > 70
    served = store.trials.served(trial.name)
    assert {(one.unit, one.arm, one.success) for one in served} == {
        (unit, arm, float(arm == "on")) for unit, arm in arms.items()
    }
    ruling = ruling_of(store, store.trials.get(trial.name), now=time.time())
    assert (ruling.call, ruling.arm) == (ExperimentCall.PROMOTE, "on") and ruling.ratio_p > 0.001
    again = await thought(store)  # a unit keeps its arm
    assert {unit_of(one.input): one.metadata[ARMS][trial.name] for one in store.views.rollouts(again, most=200)} == arms
    assert store.trials.exposed(trial.name) == exposed


async def test_an_experiment_ends_when_its_time_is_over_and_a_verdict_that_is_applied_moves_the_flag(
    store: Store,
) -> None:
    name, now = SWITCHES["budgets"], time.time()
    trial = begun(store, apply=True)
    await thought(store)  # its last step finds the verdict
    ended = store.trials.get(trial.name)
    assert ruling_of(store, ended, now=time.time()).call is ExperimentCall.PROMOTE and ended.ended_at is not None
    assert [(one.variant, one.percent) for one in store.flags.get(name).rules] == [("on", 100.0)]
    entry = next(one for one in store.ledger.entries() if one.kind == "flag")
    assert entry.who == "guard" and trial.name in entry.body["why"]
    assert conclude(store, now=time.time(), environment={}) == []
    other = store.trials.begin(
        replace(trial, name=f"{name}-2", settings={**trial.settings, "until": now + 10.0, "apply": False}),
        who="ann",
        now=now,
    ).result()
    assert conclude(store, now=now + 9.0, environment={}) == []  # nothing is proved, and there is time
    ((over, _),) = conclude(store, now=now + 99.0, environment={})
    assert (over.name, over.ended_at) == (other.name, now + 10.0)
    assert store.flags.get(name).rules[0].percent == 100.0  # what follows is the operator's


async def test_a_run_that_could_not_show_the_difference_takes_part_in_no_experiment(store: Store) -> None:
    trial = begun(store, "judges")  # and the run asks none
    run = await thought(store, 10)
    assert all(ARMS not in one.metadata for one in store.views.rollouts(run))
    assert sum(store.trials.exposed(trial.name).values()) == 0


async def test_the_units_of_an_experiment_about_learning_are_runs(store: Store) -> None:
    trial = begun(store, "learning")
    for _ in range(4):
        await thought(store, 4)
    assert sum(store.trials.exposed(trial.name).values()) == 1  # all of these runs have one salt, and so one key
    served = store.trials.served(trial.name)
    assert len(served) == 4 and {one.success for one in served} == {1.0}
