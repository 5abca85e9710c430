"""What the function of a step may use. Effects, orders and features are in test_steps, following in test_collect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from holdfast.collect.agent import Context
from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.errors import BadInput, StoreCorrupt
from holdfast.contracts.rollout import Split
from holdfast.contracts.run import RunState
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import CHUNK, StepContext
from holdfast.pipeline.run import DurableRun
from holdfast.policies.prompt import Prompt
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.pipeline.driving import Program, Watched, all_of, spec_of, work, worth
from tests.store.scene import checkpoint


@pytest.fixture
def opened(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as store:
        yield store


def one_step(function: Any, *inputs: Any) -> Program:
    async def program(run: DurableRun) -> None:
        await run.step("one", function, *inputs)

    return program


async def test_a_step_knows_where_it_is(opened: Store) -> None:
    seen: list[Any] = []

    def look(*, ctx: StepContext) -> dict[str, Any]:
        seen.append((ctx.run, ctx.name, ctx.store, ctx.folder, ctx.seed, ctx.who, ctx.driver, ctx.features.learning))
        return {}

    status = await Watched(opened, spec_of(one_step(look), seed=7)).run()
    assert seen == [(status.run_id, "one", opened, opened.folder, 7, "test", 1, True)]


async def test_what_is_too_large_for_a_result_is_kept_by_its_hash_and_verified_when_it_is_read(opened: Store) -> None:
    found: list[Any] = []

    def keep(*, ctx: StepContext) -> str:
        assert ctx.save_blob({"b": 1, "a": 2}) == ctx.save_blob({"a": 2, "b": 1})  # the same content, the same hash
        return ctx.save_blob({"a": 2, "b": 1})

    def read(sha256: str, *, ctx: StepContext) -> dict[str, Any]:
        found.append(ctx.read(sha256))
        opened.blobs.path(sha256).write_bytes(b"torn")
        with pytest.raises(StoreCorrupt):
            ctx.read(sha256)
        return {}

    async def program(run: DurableRun) -> None:
        await run.step("read", read, await run.step("keep", keep))

    await Watched(opened, spec_of(program)).run()
    assert found == [{"a": 2, "b": 1}]


async def test_what_is_planned_shows_in_the_status_before_it_is_there(opened: Store) -> None:
    def plan(*, ctx: StepContext) -> dict[str, Any]:
        ctx.plan(40)
        ctx.plan(12)  # fewer than are known already
        return {}

    status = await Watched(opened, spec_of(one_step(plan))).run()
    assert (status.total_rollouts, status.succeeded) == (40, 0)


async def test_a_checkpoint_that_is_known_is_not_added_again(opened: Store) -> None:
    """A step that is computed once more gives it another time: the record stays as it was."""
    times = iter((1.0, 2.0))

    def made(name: str, *, ctx: StepContext) -> dict[str, Any]:
        ctx.add_checkpoint(checkpoint("c", created_at=next(times)))
        return {}

    async def program(run: DurableRun) -> None:
        for name in ("first", "second"):
            await run.step(name, made, name)

    status = await Watched(opened, spec_of(program)).run()
    assert [one.created_at for one in opened.checkpoints.of_run(status.run_id)] == [1.0]


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


async def test_a_policy_that_cannot_be_opened_ends_the_run_before_anything_is_enqueued(opened: Store) -> None:
    class Closed:
        kind = version = source = "closed"
        manifest: ClassVar[dict[str, Any]] = {}

        def open(self, engine: Any) -> Any:
            raise BadInput("policy closed", why="cannot be opened")

    todo = [Work(name="w", input=1, policy=Closed(), group="w")]
    watched = Watched(opened, spec_of(all_of(todo)))
    with pytest.raises(BadInput, match="cannot be opened"):
        await watched.run()
    assert watched.ended()[0] is RunState.FAILED
    assert opened.views.rollouts(watched.run_id) == []


async def test_more_work_than_is_handed_over_at_once_arrives_whole_and_is_read_in_its_order(opened: Store) -> None:
    count, seen = CHUNK + 20, list[str]()

    def read(batch: Batch, *, ctx: StepContext) -> dict[str, Any]:
        seen.extend(one.rollout.partition("/")[2] for one in ctx.experiences(batch))
        return {}

    async def program(run: DurableRun) -> None:
        await run.step("read", read, await run.step("collect", collect, work(count), 1, None))

    status = await Watched(opened, spec_of(program, score=worth, workers=8)).run()
    assert status.succeeded == count
    assert seen == [f"t{n}" for n in range(count)]


async def test_a_batch_may_be_of_another_run(opened: Store) -> None:
    """Its rollouts are listed in a blob; those that nobody decided are left out."""
    other = await Watched(opened, spec_of(all_of(work(4)), score=worth)).run()
    seen: list[Any] = []

    def read(*, ctx: StepContext) -> dict[str, Any]:
        ids = ctx.save_blob([f"{other.run_id}/t3", f"{other.run_id}/t1"])
        found = ctx.experiences(Batch(run=other.run_id, step=ctx.name, count=2, ids=ids))
        seen.extend((one.rollout, one.run, one.split, one.sheet and one.sheet.total) for one in found)
        return {}

    await Watched(opened, spec_of(one_step(read))).run()
    run = other.run_id
    assert seen == [(f"{run}/t3", run, Split.TRAIN, 3.0), (f"{run}/t1", run, Split.TRAIN, 1.0)]
