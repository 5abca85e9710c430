"""Following: what other runs do is learnt from as it arrives, each rollout once, whoever is slow or done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from holdfast.contracts.algorithm import Batch, RolloutTail, Work
from holdfast.contracts.errors import Fault
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim, RolloutState, Split, Task
from holdfast.contracts.run import RunState
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.run import Control, DurableRun, RunSpec
from holdfast.policies.prompt import Prompt
from holdfast.store.store import Store, open_store
from tests.collect.scene import until
from tests.conftest import Files
from tests.pipeline.driving import EACH_ENGINE
from tests.pipeline.scene import ran, spec_of
from tests.pipeline.test_promote import begun


@dataclass
class Source:
    """A run of which so many train rollouts are under way, and one of the validation split."""

    store: Store
    count: int
    run: str = ""
    claims: dict[str, Claim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = begun(self.store)
        tasks = [Task(name=f"s{n}", input=n, split=Split.TRAIN, max_attempts=1) for n in range(self.count)]
        tasks.append(Task(name="v", input=0, split=Split.VAL))
        now = time.time()
        self.store.queue.enqueue(self.run, tasks, now=now).result()
        claimed = self.store.queue.claim(self.run, "w", now=now, lease_s=600.0, most=len(tasks)).result()
        self.claims = {claim.rollout.name: claim for claim in claimed}

    def finish(self, *names: str, reward: float | None = 1.0) -> None:
        for name in names:
            attempt, now = self.claims[name].attempt, time.time()
            if reward is not None:
                self.store.traces.score(attempt, [RewardTerm(name="worth", value=reward, source="rule")], now=now)
            self.store.queue.finish(attempt, AttemptState.SUCCEEDED, now=now, reward=reward).result()

    def end(self) -> None:
        now = time.time()
        self.store.runs.end(self.run, RunState.COMPLETED, who="test", now=now, error=None, driver=1).result()


def following(source: Source, steps: int, least: int, heard: list[list[str]]) -> RunSpec:
    """A run whose steps take what there is of another's, each once."""

    def learn(batch: Batch, *, ctx: StepContext) -> dict[str, int]:
        heard.append([one.rollout.partition("/")[2] for one in ctx.experiences(batch)])
        return {"seen": batch.count}

    async def program(run: DurableRun) -> None:
        taken: tuple[str, ...] = ()
        for n in range(steps):
            tail = RolloutTail(run=source.run, least=least, taken=taken)
            batch: Batch = await run.step(f"{n}/collect", collect, [tail])
            assert batch.ids is not None
            taken = (*taken, batch.ids)
            await run.step(f"{n}/learn", learn, batch)

    return spec_of(program)


@EACH_ENGINE
async def test_a_step_that_follows_another_run_waits_until_enough_has_arrived(store: Store) -> None:
    source, heard = Source(store, 6), list[list[str]]()
    going = asyncio.create_task(ran(store, following(source, 2, 2, heard)))
    source.finish("s1", "v")
    source.finish("s2", reward=None)  # nothing can be learnt from it
    await asyncio.sleep(0.1)
    assert heard == []
    source.finish("s4")
    await until(lambda: len(heard) == 1)
    source.finish("s0")
    await asyncio.sleep(0.2)
    assert len(heard) == 1
    source.finish("s3")
    status = await going
    assert (status.run_state, status.total_rollouts) == (RunState.COMPLETED, 0)
    assert heard == [["s1", "s4"], ["s0", "s3"]]  # what is slow is not left out


async def test_what_others_report_in_another_process_is_heard(files: Files) -> None:
    url = files.fresh()
    with open_store(url, poll_s=0.01) as store, open_store(url, poll_s=0.01) as other:
        source, heard = Source(other, 1), list[list[str]]()
        going = asyncio.create_task(ran(store, following(source, 1, 1, heard)))
        await asyncio.sleep(0.2)
        source.finish("s0")
        await going
    assert heard == [["s0"]]


async def test_rollouts_without_a_reward_do_not_stand_in_the_way_of_those_behind_them(store: Store) -> None:
    source, heard = Source(store, 12), list[list[str]]()
    source.finish(*(f"s{n}" for n in range(10)), reward=None)
    source.finish("s10", "s11")
    await ran(store, following(source, 1, 2, heard))
    assert heard == [["s10", "s11"]]


async def test_an_agent_that_failed_is_an_outcome_to_whoever_follows(store: Store) -> None:
    source, heard = Source(store, 4), list[list[str]]()
    source.finish("s0", "s3")
    for name, state in (("s1", AttemptState.FAILED), ("s2", AttemptState.FAULT)):
        source.store.queue.finish(
            source.claims[name].attempt, state, now=time.time(), error="context overflow"
        ).result()
    source.end()
    await ran(store, following(source, 1, 2, heard))
    assert [sorted(one) for one in heard] == [["s0", "s1", "s3"]]  # a fault of ours is missing


async def test_of_a_long_run_a_few_steps_worth_are_taken_at_once(store: Store) -> None:
    source, heard = Source(store, 12), list[list[str]]()
    source.finish(*(f"s{n}" for n in range(12)))
    await ran(store, following(source, 2, 2, heard))
    assert heard == [[f"s{n}" for n in range(8)], [f"s{n}" for n in range(8, 12)]]


@EACH_ENGINE
async def test_what_was_overridden_holds_for_the_next_step(store: Store) -> None:
    source, heard = Source(store, 7), list[list[str]]()
    source.finish(*(f"s{n}" for n in range(4)))
    store.overrides.put({"enabled": False}, now=1.0)
    going = asyncio.create_task(ran(store, following(source, 3, 100, heard)))
    await until(lambda: len(store.runs.newest()) == 2)
    source.end()  # it would be enough, were it not held
    await asyncio.sleep(0.2)
    assert heard == []
    store.overrides.put({"enabled": True, "max_rollouts_per_update": 3}, now=2.0)
    assert (await going).run_state is RunState.COMPLETED
    assert heard == [["s0", "s1", "s2"], ["s3"], []]


async def test_an_overridden_interval_is_waited_for_and_no_more(store: Store) -> None:
    source, heard = Source(store, 7), list[list[str]]()
    store.overrides.put({"update_interval_rollouts": 2, "max_rollouts_per_update": 1}, now=1.0)
    source.finish("s0", "s1", "s2")
    await asyncio.wait_for(ran(store, following(source, 2, 100, heard)), 60.0)
    assert heard == [["s0"], ["s1"]]


async def test_once_the_other_run_is_over_what_is_there_is_enough(store: Store) -> None:
    source, heard = Source(store, 3), list[list[str]]()
    going = asyncio.create_task(ran(store, following(source, 2, 3, heard)))
    source.finish("s0")
    await asyncio.sleep(0.2)
    assert heard == []
    source.end()
    assert (await going).run_state is RunState.COMPLETED
    assert heard == [["s0"], []]


@pytest.mark.parametrize("how", ["drain", "stop"])
async def test_a_run_that_waits_for_others_ends_when_it_is_told_to_and_can_be_taken_up(store: Store, how: str) -> None:
    source, heard, control = Source(store, 2), list[list[str]](), Control()
    going = asyncio.create_task(ran(store, following(source, 1, 2, heard), control))
    await until(lambda: len(store.runs.newest()) == 2)
    await asyncio.sleep(0.1)
    getattr(control, how)()
    status = await going
    assert (status.run_state, status.error) == (RunState.CANCELLED, "interrupted")
    source.finish("s0", "s1")
    again = await ran(store, following(source, 1, 2, heard), resume=status.run_id)
    assert again.run_state is RunState.COMPLETED
    assert heard == [["s0", "s1"]]


# What failing means


async def moody(task: str, context: object) -> str:
    """Raises, never ends, or meets a fault of ours for as often as its task says."""
    if task == "raises":
        raise ValueError("no idea")
    if task == "sleeps":
        await asyncio.sleep(60.0)
    if task == "faulty":
        raise Fault("endpoint", why="answers 503")
    return "4"


def right(task: str, output: str, spans: object) -> tuple[RewardTerm, ...]:
    return (RewardTerm(name="success", value=float(output == "4"), source="rule:test"),)


async def test_an_agent_that_raises_or_takes_too_long_teaches_nothing_won_and_a_fault_of_ours_is_missing(
    store: Store,
) -> None:
    found: list[Experience] = []

    def read(batch: Batch, *, ctx: StepContext) -> dict[str, int]:
        found.extend(ctx.experiences(batch))
        return {"planned": batch.count}

    async def program(run: DurableRun) -> None:
        todo = ("fine", "raises", "sleeps", "faulty")
        work = [Work(name=one, input=one, policy=Prompt(), group="g") for one in todo]
        await run.step("read", read, await run.step("collect", collect, work, 1, 0.2))

    status = await ran(store, spec_of(program, agent=moody, score=right, max_faults=2))
    tries = {
        one.name: [str(tried.status) for tried in store.views.attempts(one.id)]
        for one in store.views.rollouts(status.run_id, most=9)
    }
    assert [one.rollout.partition("/")[2] for one in found] == ["fine", "raises", "sleeps"]  # the fourth is missing
    signals = [
        [(one.name, one.value, one.source) for one in each.breakdown.signals] for each in found if each.breakdown
    ]
    failed = [("success", 0.0, "rule:failed"), ("gated", 1.0, "guard:failed")]
    assert signals == [[("success", 1.0, "rule:test")], failed, failed]
    assert [one.state for one in found] == [RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.FAILED]
    assert (len(tries["raises"]), len(tries["sleeps"])) == (1, 1)  # raising buys no new draw of chance
    assert len(tries["faulty"]) == 3  # faults use up none of its tries, and have a bound of their own
