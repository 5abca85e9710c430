"""Durable steps: what is done is read and not done again, what is not done leaves nothing, and nobody mixes the two
up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest

from holdfast.collect.agent import Context
from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.errors import BadInput, BadRecord, Interrupted, StaleLease, StoreCorrupt
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import DesiredState, RunState
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import Endpoints, StepContext
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.policies.prompt import Prompt
from holdfast.store.notifications import ORDERS
from holdfast.store.runs import LARGEST
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.collect.scene import PACE, PATIENCE_S, until
from tests.conftest import Files
from tests.pipeline.driving import (
    ASLEEP,
    EACH_ENGINE,
    Gate,
    Program,
    Watched,
    all_of,
    names,
    order,
    spec_of,
    work,
    worth,
)
from tests.store.scene import checkpoint


class Calls:
    """What was computed, in its order; a step whose name is `breaks` fails."""

    def __init__(self, breaks: str = "") -> None:
        self.made: list[str] = []
        self.breaks = breaks

    def plain(self, name: str, given: Any = None) -> dict[str, Any]:
        self.made.append(name)
        if name == self.breaks:
            raise OSError("the machine is on fire")
        return {"name": name, "given": given}

    async def awaited(self, name: str, given: Any = None) -> dict[str, Any]:
        await asyncio.sleep(0)
        return self.plain(name, given)

    async def program(self, run: DurableRun) -> None:
        a = await run.step("a", self.plain, "a")
        b = await run.step("b", self.awaited, "b", a)
        await run.step("c", self.plain, "c", b)


async def broken(store: Store, spec: RunSpec) -> str:
    """A run that failed by a fault of the machine."""
    watched = Watched(store, spec)
    with pytest.raises(OSError, match="on fire"):
        await watched.run()
    assert watched.ended() == (RunState.FAILED, "OSError: the machine is on fire")
    return watched.run_id


# What is done is not done again


@EACH_ENGINE
async def test_a_finished_step_is_not_run_again_and_its_result_is_read(store: Store) -> None:
    first, again = Calls(breaks="c"), Calls()
    run = await broken(store, spec_of(first.program))
    assert names(store, run) == ["begin", "a", "b"]  # only success is recorded
    status = await Watched(store, spec_of(again.program), resume=run).run()
    assert (status.run_state, first.made, again.made) == (RunState.COMPLETED, ["a", "b", "c"], ["c"])
    last = store.steps.get(run, "c")
    assert last is not None
    assert last.body["given"] == {"name": "b", "given": {"name": "a", "given": None}}
    store.steps.verify(run)


async def test_steps_are_numbered_and_named_in_the_order_of_the_program_not_in_that_of_their_ends(store: Store) -> None:
    async def slow(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def program(run: DurableRun) -> None:
        found = await asyncio.gather(*(run.step(f"{n}/wait", slow, 0.2 - n / 10) for n in range(3)))
        assert found == [0.2, 0.1, 0.0]

    status = await Watched(store, spec_of(program)).run()
    kept = {one.name: one.body for one in store.steps.of_run(status.run_id)}
    assert {name: body["value"] for name, body in kept.items() if name != "begin"} == {
        "0/wait": 0.2,
        "1/wait": 0.1,
        "2/wait": 0.0,
    }


async def test_a_name_that_the_program_uses_twice_is_refused(store: Store) -> None:
    calls = Calls()

    async def program(run: DurableRun) -> None:
        await run.step("a", calls.plain, "first")
        await run.step("a", calls.plain, "first")

    with pytest.raises(BadInput, match="step a of run-1-abcd: the program has asked for it before; give each step"):
        await Watched(store, spec_of(program)).run()
    assert calls.made == ["first"]


@dataclass(frozen=True)
class Sum:
    """A result of a type of its own."""

    total: int

    def record(self) -> dict[str, Any]:
        return {"sum": self.total}

    @classmethod
    def from_record(cls, record: Any) -> Sum:
        return cls(total=record["sum"])


def added(*numbers: int) -> Sum:
    return Sum(sum(numbers))


def times(by: int, before: Sum) -> int:
    return by * before.total


async def test_what_is_computed_is_what_is_read_later(store: Store) -> None:
    """A result goes through its record either way: nobody depends on having been there."""
    seen: list[Any] = []

    async def program(run: DurableRun) -> None:
        total = await run.step("sum", added, 1, 2)
        seen.append((total, await run.step("times", partial(times, 5), total)))

    status = await Watched(store, spec_of(program)).run()
    await Watched(store, spec_of(program), resume=status.run_id).run()
    assert seen == [(Sum(3), 15), (Sum(3), 15)]


# Another program, or another input, is refused before any work


async def swapped(run: DurableRun, calls: Calls) -> None:
    await run.step("a", calls.awaited, "a")


async def changed(run: DurableRun, calls: Calls) -> None:
    await run.step("a", calls.plain, "a", {"something": "else"})


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (swapped, r"was recorded by tests.*Calls.plain, and is asked of tests.*Calls.awaited now"),
        (changed, "was recorded with other inputs than it is given now"),
    ],
)
async def test_a_recorded_step_with_another_function_or_other_inputs_is_refused(
    store: Store, other: Callable[[DurableRun, Calls], Any], why: str
) -> None:
    run, calls = await broken(store, spec_of(Calls(breaks="b").program)), Calls()
    with pytest.raises(BadInput, match=rf"step a of {run}: {why}; resume it with the settings, tasks and version"):
        await Watched(store, spec_of(partial(other, calls=calls)), resume=run).run()
    assert (calls.made, names(store, run)) == ([], ["begin", "a"])
    status = await Watched(store, spec_of(Calls().program), resume=run).run()  # and it can still be resumed
    assert status.run_state is RunState.COMPLETED


async def test_a_run_that_other_settings_began_is_refused_and_stays_as_it_is(store: Store) -> None:
    status = await Watched(store, spec_of(Calls().program, settings={"tasks": [1, 2]})).run()
    before, ledger = store.runs.get(status.run_id), list(store.ledger.entries())
    calls = Calls()
    with pytest.raises(BadInput, match="step begin of .*: was recorded with other inputs"):
        await Watched(store, spec_of(calls.program, settings={"tasks": [1, 3]}), resume=status.run_id).run()
    assert (store.runs.get(status.run_id), list(store.ledger.entries()), calls.made) == (before, ledger, [])


async def test_nothing_is_worked_on_before_what_is_recorded_was_compared(store: Store) -> None:
    """Work that an open step has left in the queue waits for a program that asks for it."""
    gate, ran = Gate(passes=1), list[Any]()

    async def program(run: DurableRun, first: str) -> None:
        await run.step("first", Calls().plain, first)
        await all_of(work(4))(run)

    stopped = Watched(store, spec_of(partial(program, first="this"), gate))
    async with stopped.going():
        await until(lambda: gate.held == 2)
        stopped.control.stop()

    async def agent(task: Any, context: Context) -> None:
        ran.append(task)

    with pytest.raises(BadInput, match="other inputs"):
        await Watched(store, spec_of(partial(program, first="that"), agent), resume=stopped.run_id).run()
    assert ran == []
    assert store.views.counts(stopped.run_id)[RolloutState.QUEUING] == 3


# Results and effects


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (1, False)])
async def test_a_result_has_at_most_64_kib(store: Store, spare: int, fits: bool) -> None:
    def large() -> dict[str, str]:
        return {"text": "x" * (LARGEST - len('{"text":""}') + spare)}

    async def program(run: DurableRun) -> None:
        await run.step("large", large)

    watched = Watched(store, spec_of(program))
    if fits:
        assert (await watched.run()).run_state is RunState.COMPLETED
        return
    with pytest.raises(BadRecord, match=r"its result has 65537 bytes, 65536 are allowed; keep the data in a blob"):
        await watched.run()
    assert names(store, watched.run_id) == ["begin"]


@EACH_ENGINE
async def test_effects_and_row_are_one_transaction(store: Store) -> None:
    """An effect that raises leaves no row and no effect; the step is run again later, and has its effect once."""
    effects = {"is_broken": True}

    def touching(*, ctx: StepContext) -> dict[str, Any]:
        ctx.add_checkpoint(checkpoint("made", created_at=ctx.now()))
        if effects["is_broken"]:
            ctx.effects.append(on_fire)
        return {"checkpoint": "made"}

    def on_fire(tx: Transaction) -> None:
        raise OSError("the machine is on fire")

    async def program(run: DurableRun) -> None:
        await run.step("touch", touching)

    run = await broken(store, spec_of(program))
    assert (names(store, run), store.checkpoints.of_run(run)) == (["begin"], [])
    effects["is_broken"] = False
    for _ in range(2):
        await Watched(store, spec_of(program), resume=run).run()
    assert names(store, run) == ["begin", "touch"]
    assert [one.id for one in store.checkpoints.of_run(run)] == ["made"]


@EACH_ENGINE
async def test_what_was_computed_by_a_driver_that_was_replaced_is_refused(store: Store, url: str) -> None:
    """Nothing shows it before it records the step: neither a beat nor a status was due."""
    began, go = asyncio.Event(), asyncio.Event()

    async def compute(*, ctx: StepContext) -> dict[str, Any]:
        ctx.add_checkpoint(checkpoint("late"))
        began.set()
        await go.wait()
        return {"checkpoint": "late"}

    async def program(run: DurableRun) -> None:
        await run.step("late", compute)

    watched = Watched(store, spec_of(program, timing=replace(PACE, **ASLEEP), report_s=PATIENCE_S))
    with open_store(url) as other:
        async with watched.going() as running:
            await began.wait()
            other.runs.resume(watched.run_id, who="other", now=time.time(), silent_s=0.0).result()
            go.set()
            with pytest.raises(StaleLease, match="another process has taken it up"):
                await running
    assert (names(store, watched.run_id), store.checkpoints.of_run(watched.run_id)) == (["begin"], [])
    assert store.runs.get(watched.run_id).state is RunState.RUNNING


# Threads, orders and heartbeats


async def test_plain_functions_run_beside_the_event_loop_and_awaited_ones_on_it(store: Store) -> None:
    def plain() -> str:
        return threading.current_thread().name

    async def awaited() -> str:
        return threading.current_thread().name

    async def program(run: DurableRun) -> None:
        found.append(await run.step("plain", plain))
        found.append(await run.step("awaited", awaited))

    found: list[str] = []
    await Watched(store, spec_of(program)).run()
    assert found[0] != "MainThread" and found[1] == "MainThread"


async def test_a_thread_is_interrupted_where_it_checks_and_leaves_no_row(store: Store, operator: Store) -> None:
    pieces: list[int] = []
    ended: list[BaseException] = []
    go = threading.Event()

    def long(*, ctx: StepContext) -> dict[str, Any]:
        try:
            for piece in range(1000):
                ctx.check()
                pieces.append(piece)
                assert piece != 1 or go.wait(PATIENCE_S)
        except Interrupted as error:
            ended.append(error)
            raise
        return {}

    async def program(run: DurableRun) -> None:
        await run.step("long", long)

    watched = Watched(store, spec_of(program, timing=replace(PACE, **ASLEEP)))
    async with watched.going():
        await until(lambda: len(pieces) == 2)
        order(operator, watched.run_id, DesiredState.CANCELLED)
    assert watched.ended() == (RunState.CANCELLED, "cancelled by an order")  # before the thread came back
    go.set()
    await until(lambda: ended)
    assert (pieces, names(store, watched.run_id)) == ([0, 1], ["begin"])


@pytest.mark.parametrize("wanted", [DesiredState.PAUSED, DesiredState.FROZEN])
async def test_a_thread_waits_where_it_checks_while_the_run_is_held_and_that_is_no_part_of_its_work(
    store: Store, operator: Store, wanted: DesiredState
) -> None:
    pieces: list[int] = []
    checks: list[int] = []
    go = threading.Event()

    def long(*, ctx: StepContext) -> float:
        for piece in range(3):
            pieces.append(piece)
            assert piece != 1 or go.wait(PATIENCE_S)
            checks.append(piece)
            ctx.check()
        return ctx.held_s

    async def program(run: DurableRun) -> None:
        held.append(await run.step("long", long))

    held = list[float]()
    watched = Watched(store, spec_of(program, timing=replace(PACE, **ASLEEP)))
    async with watched.going() as running:
        await until(lambda: len(pieces) == 2)
        seen = store.changes.seen(ORDERS)
        order(operator, watched.run_id, wanted)
        await asyncio.wait_for(store.changes.after(ORDERS, seen), PATIENCE_S)  # heard of here
        go.set()
        await until(lambda: len(checks) == 2)  # on a busy machine the thread may come to it late
        await asyncio.sleep(0.4)
        assert pieces == [0, 1] and not running.done()
        order(operator, watched.run_id, DesiredState.RUNNING)
    assert watched.ended() == (RunState.COMPLETED, None)
    assert held[0] > 0.2


async def test_no_step_begins_while_the_run_is_paused(store: Store, operator: Store) -> None:
    calls = Calls()

    async def program(run: DurableRun) -> None:
        order(operator, run.id, DesiredState.PAUSED)
        await run.step("a", calls.plain, "a")

    watched = Watched(store, spec_of(program))
    async with watched.going() as running:
        await asyncio.sleep(0.4)
        assert calls.made == [] and not running.done()
        order(operator, watched.run_id, DesiredState.RUNNING)
    assert (calls.made, watched.ended()) == (["a"], (RunState.COMPLETED, None))


class Slow:
    """An input that takes its time to be compared."""

    def __init__(self, moment: threading.Event) -> None:
        self.moment, self.is_asked = moment, threading.Event()

    def record(self) -> dict[str, Any]:
        self.is_asked.set()
        assert self.moment.wait(PATIENCE_S)
        return {}


def nothing(given: Any) -> dict[str, Any]:
    return {}


async def test_heartbeats_go_on_while_steps_are_replayed(files: Files) -> None:
    """Before the first step that is not recorded there is much to compare, and damaged checkpoints are made anew."""
    url, now = files.fresh(), threading.Event()
    now.set()

    async def program(run: DurableRun, given: Slow) -> None:
        await run.step("a", nothing, given)

    with open_store(url) as store, open_store(url) as other:
        status = await Watched(store, spec_of(partial(program, given=Slow(now)))).run()
        slow = Slow(threading.Event())
        again = Watched(store, spec_of(partial(program, given=slow)), resume=status.run_id)
        async with again.going():
            await until(slow.is_asked.is_set)
            for _ in range(3):
                before = other.runs.get(status.run_id).beat_at
                await until(lambda before=before: other.runs.get(status.run_id).beat_at > before)
            slow.moment.set()
        assert again.ended() == (RunState.COMPLETED, None)


# Rollouts belong to their step


@EACH_ENGINE
async def test_work_left_by_another_driver_is_run_by_the_policy_of_its_step(store: Store) -> None:
    """However long that takes to be opened: nobody uses up what a rollout may meet of faults meanwhile."""

    async def said(task: Any, context: Context) -> Any:
        await gate(task, context)
        return context.resources["say"]

    class Late(Endpoints):
        def open_endpoint(self, model: str) -> Any:
            time.sleep(0.3)
            return super().open_endpoint(model)

    async def program(run: DurableRun) -> None:
        for name in ("first", "second"):
            slow = Prompt({"say": name}, model="slow")
            todo = [Work(name=f"{name}-{n}", input=n, policy=slow, group=f"{name}-{n}") for n in range(3)]
            await run.step(f"{name}/collect", collect, todo, 1, None)

    gate = Gate(passes=4)  # all of the first step, and one of the second
    stopped = Watched(store, spec_of(program, said, engine=Late()))
    async with stopped.going():
        await until(lambda: gate.held == 2)
        stopped.control.stop()
    gate = Gate(passes=100)
    status = await Watched(store, spec_of(program, said, engine=Late(), max_faults=0), resume=stopped.run_id).run()
    assert (status.error, status.run_state, status.succeeded) == (None, RunState.COMPLETED, 6)
    for one in store.views.rollouts(status.run_id, most=10):
        tried = store.views.attempts(one.id)
        assert store.views.output(tried[-1]) == one.name.partition("-")[0]
        assert {str(attempt.status) for attempt in tried} <= {"released", "succeeded"}


async def test_what_somebody_requeues_of_a_recorded_step_is_not_run_by_a_later_policy_and_the_run_ends(
    store: Store,
    operator: Store,
) -> None:
    ran: list[str] = []
    gate = Gate()

    async def agent(task: Any, context: Context) -> Any:
        ran.append(f"{task} by {context.resources['say']}")
        if task == "fails":
            raise ValueError("no")
        return await gate(task, context) if task == "waits" else task

    async def program(run: DurableRun) -> None:
        for name, todo in (("first", ["fails", "works"]), ("second", ["waits"])):
            policy = Prompt({"say": name})
            work = [Work(name=f"{name}-{one}", input=one, policy=policy, group=one) for one in todo]
            await run.step(f"{name}/collect", collect, work, 1, None)

    watched = Watched(store, spec_of(program, agent))
    async with watched.going():
        await until(lambda: gate.held == 1)
        operator.queue.requeue(f"{watched.run_id}/first-fails", now=time.time()).result()
        before = store.workers.newest()[0].beat_at
        await until(lambda: store.workers.newest()[0].beat_at > before + 0.1)
        assert operator.views.rollout(f"{watched.run_id}/first-fails").status is RolloutState.QUEUING
        gate.opened.set()
    assert watched.ended() == (RunState.COMPLETED, None)
    left = store.views.rollout(f"{watched.run_id}/first-fails")
    assert (left.status, left.reason) == (RolloutState.CANCELLED, "no step asks for it")
    assert sorted(ran) == ["fails by first", "waits by second", "works by first"]


async def test_a_step_waits_for_its_own_rollouts_alone(store: Store) -> None:
    """Others of the run may be open: those of a step beside it, or what nobody asks for any more."""
    gate = Gate()

    async def agent(task: Any, context: Context) -> Any:
        return await gate(task, context) if task == "slow" else task

    async def program(run: DurableRun) -> None:
        slow, quick = ([Work(name=one, input=one, policy=Prompt(), group=one)] for one in ("slow", "quick"))
        beside = asyncio.ensure_future(run.step("slow/collect", collect, slow, 1, None))
        await until(lambda: gate.held == 1)
        await run.step("quick/collect", collect, quick, 1, None)
        assert names(store, run.id) == ["begin", "quick/collect"]
        gate.opened.set()
        await beside

    status = await Watched(store, spec_of(program, agent)).run()
    assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 2)


def one_step(function: Any, *inputs: Any) -> Program:
    async def program(run: DurableRun) -> None:
        await run.step("one", function, *inputs)

    return program


async def test_a_step_knows_where_it_is(store: Store) -> None:
    seen: list[Any] = []

    def look(*, ctx: StepContext) -> dict[str, Any]:
        seen.append((ctx.run, ctx.name, ctx.store, ctx.folder, ctx.seed, ctx.who, ctx.driver, ctx.features.learning))
        return {}

    status = await Watched(store, spec_of(one_step(look), seed=7)).run()
    assert seen == [(status.run_id, "one", store, store.folder, 7, "test", 1, True)]


async def test_what_is_too_large_for_a_result_is_kept_by_its_hash_and_verified_when_it_is_read(store: Store) -> None:
    found: list[Any] = []

    def keep(*, ctx: StepContext) -> str:
        assert ctx.save({"b": 1, "a": 2}) == ctx.save({"a": 2, "b": 1})  # the same content, the same hash
        return ctx.save({"a": 2, "b": 1})

    def read(sha256: str, *, ctx: StepContext) -> dict[str, Any]:
        found.append(ctx.read(sha256))
        store.blobs.path(sha256).write_bytes(b"torn")
        with pytest.raises(StoreCorrupt):
            ctx.read(sha256)
        return {}

    async def program(run: DurableRun) -> None:
        await run.step("read", read, await run.step("keep", keep))

    await Watched(store, spec_of(program)).run()
    assert found == [{"a": 2, "b": 1}]


async def test_what_is_planned_shows_in_the_status_before_it_is_there(store: Store) -> None:
    async def program(run: DurableRun) -> None:
        run.planned = 40

    status = await Watched(store, spec_of(program)).run()
    assert (status.total_rollouts, status.succeeded) == (40, 0)


async def test_a_checkpoint_that_is_known_is_not_added_again(store: Store) -> None:
    """A step that is computed once more gives it another time: the record stays as it was."""
    times = iter((1.0, 2.0))

    def made(name: str, *, ctx: StepContext) -> dict[str, Any]:
        ctx.add_checkpoint(checkpoint("c", created_at=next(times)))
        return {}

    async def program(run: DurableRun) -> None:
        for name in ("first", "second"):
            await run.step(name, made, name)

    status = await Watched(store, spec_of(program)).run()
    assert [one.created_at for one in store.checkpoints.of_run(status.run_id)] == [1.0]


# Rollouts


async def test_each_policy_of_a_batch_answers_with_its_own_resources(store: Store) -> None:
    async def said(task: Any, context: Context) -> Any:
        return context.resources.get("say")

    policies = [Prompt({"say": "hi"}), Prompt({"say": "ho"}), Prompt()]
    todo = [Work(name=f"w{n}", input=n, policy=one, group="g", seed=f"s{n}") for n, one in enumerate(policies)]
    status = await Watched(store, spec_of(all_of(todo), said)).run()
    rollouts = store.views.rollouts(status.run_id)
    assert [store.views.output(store.views.attempts(one.id)[-1]) for one in rollouts] == ["hi", "ho", None]
    assert [one.resources for one in rollouts] == [1, 2, None]
    assert [one.version for one in rollouts] == [one.version for one in policies]
    assert [dict(one.metadata) for one in rollouts] == [{"group": "g", "seed": f"s{n}"} for n in range(3)]


async def test_a_policy_that_cannot_be_opened_ends_the_run_before_anything_is_enqueued(store: Store) -> None:
    class Closed:
        kind = version = source = "closed"
        manifest: ClassVar[dict[str, Any]] = {}

        def open(self, engine: Any) -> Any:
            raise BadInput("policy closed", why="cannot be store")

    todo = [Work(name="w", input=1, policy=Closed(), group="w")]
    watched = Watched(store, spec_of(all_of(todo)))
    with pytest.raises(BadInput, match="cannot be store"):
        await watched.run()
    assert watched.ended()[0] is RunState.FAILED
    assert store.views.rollouts(watched.run_id) == []


async def test_a_batch_may_be_of_another_run(store: Store) -> None:
    """Its rollouts are listed in a blob; those that nobody decided are left out."""
    other = await Watched(store, spec_of(all_of(work(4)), score=worth)).run()
    seen: list[Any] = []

    def read(*, ctx: StepContext) -> dict[str, Any]:
        ids = ctx.save([f"{other.run_id}/t3", f"{other.run_id}/t1"])
        found = ctx.experiences(Batch(run=other.run_id, step=ctx.name, count=2, ids=ids))
        seen.extend((one.rollout, one.run, one.split, one.breakdown and one.breakdown.total) for one in found)
        return {}

    await Watched(store, spec_of(one_step(read))).run()
    run = other.run_id
    assert seen == [(f"{run}/t3", run, Split.TRAIN, 3.0), (f"{run}/t1", run, Split.TRAIN, 1.0)]


async def test_more_work_than_is_handed_over_at_once_arrives_whole_and_is_read_in_its_order(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pipeline.context.CHUNK", 5)
    seen = list[str]()

    def read(batch: Batch, *, ctx: StepContext) -> dict[str, Any]:
        seen.extend(one.rollout.partition("/")[2] for one in ctx.experiences(batch))
        return {}

    async def program(run: DurableRun) -> None:
        await run.step("read", read, await run.step("collect", collect, work(12), 1, None))

    status = await Watched(store, spec_of(program, score=worth, workers=8)).run()
    assert status.succeeded == 12 and seen == [f"t{n}" for n in range(12)]
