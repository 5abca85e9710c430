"""Earlier tries of the live version in a proof: used where all is the same, and dropped where it does otherwise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from holdfast.contracts.errors import Fault
from holdfast.contracts.rollout import Split
from holdfast.pipeline.alpha_account import charged
from holdfast.pipeline.history import setup_of
from holdfast.pipeline.prove import HeldOut, episodes_in
from holdfast.policies.model import Model
from holdfast.promote.alpha_account import Charge
from holdfast.store.store import Store
from tests.pipeline.test_improve import LINE, VAL, Play, Played, every_second
from tests.workloads.scene import tiny

TEN, ONE = ({"seeds": seeds, "reuse_live": True} for seeds in (tuple(range(10)), (0,)))
LIVE = {"success": 0.0}  # of the live version; what an agent reads from the world outside is no part of what it is


async def answer(live: float | None, candidate: float | None, task: Any, context: Any) -> float:
    name = context.assignment.rollout.partition("/")[2]
    await context.ask([{"role": "user", "content": task["prompt"]}])
    if not name.startswith("proof-"):
        return every_second(name) or 0.0
    won = live if "baseline" in name else candidate
    return LIVE["success"] if won is None else won


GONE: dict[str, set[int]] = {"baseline": set(), "candidate": set()}  # the places where infrastructure fails, by arm


async def unreached(live: float | None, candidate: float | None, task: Any, context: Any) -> float:
    name = context.assignment.rollout.partition("/")[2]
    if (
        name.startswith("proof-")
        and not name.endswith("-retry")
        and int(name.split("-")[3]) in GONE[name.split("-")[2]]
    ):
        raise Fault("endpoint", why="is down")
    return await answer(live, candidate, task, context)


class Told(Play):
    @property
    def agent(self) -> Any:  # type: ignore[override]
        return partial(answer, self.before, self.after)


class Lossy(Play):
    @property
    def agent(self) -> Any:  # type: ignore[override]
        return partial(unreached, self.before, self.after)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tiny(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(autouse=True)
def as_it_was() -> None:
    LIVE["success"] = 0.0
    GONE.update({"baseline": set(), "candidate": set()})


def measured(found: Played) -> list[str]:
    """The places of the tasks that the live version was run on, look after look."""
    names = [one.partition("/")[2] for one in _rollouts(found)]
    return sorted({name.split("-")[3] for name in names if "baseline" in name}, key=int)


def _rollouts(found: Played) -> list[str]:
    views = found.store.views.rollouts(found.status.run_id, most=10_000)
    return [one.id for one in views if one.split is not Split.TRAIN]


async def test_the_live_version_is_not_run_again_where_ten_tries_of_a_task_are_known(store: Store, base: Model) -> None:
    """A candidate costs half of the episodes, and is compared with the mean of all that is known."""
    play = Told(base, before=0.0, after=0.0)
    first = await play.run(store, prove=TEN)
    assert "history" not in first.body("0/live") and len(measured(first)) == 30
    second = await play.run(store, prove=ONE)
    assert measured(second) == ["0", "5", "10", "15", "20", "25"]
    assert second.body("0/prove/1")["history"] == {"spared": 24, "has_drifted": False}
    assert second.evidence().manifest["history"] == {"spared": 24, "has_drifted": False}
    assert second.evidence().episodes == 30 and second.evidence().missing == {
        "planned": 30,
        "baseline": 0,
        "candidate": 0,
    }
    account = second.evidence().manifest["account"]
    assert account["number"] == 2
    chances = [{one.metadata["seed"] for one in run.rollouts("0/prove/0")} for run in (first, second)]
    assert not chances[0] & chances[1]  # other draws than before, and the same for both versions
    third = await play.run(store, prove=ONE)  # the fresh ones are added to what is known, and no mean is taken twice
    kept = store.blobs.get(str(third.body("0/live")["history"]))
    assert {one["count"] for one in json.loads(kept).values()} == {10, 11}


async def test_who_does_not_ask_for_it_has_live_run_beside_each_try_of_the_candidate(store: Store, base: Model) -> None:
    """A drift of ten points since the earlier tries opened the gate for 35 of 40 candidates that were no better."""
    play = Told(base, before=0.0, after=0.0)
    await play.run(store, prove=TEN)
    second = await play.run(store, prove={"seeds": (0,)})
    assert len(measured(second)) == 30 and "history" not in second.body("0/live")


async def test_another_agent_or_other_tasks_have_no_earlier_tries(store: Store, base: Model) -> None:
    await Told(base, before=0.0, after=0.0).run(store, prove=TEN)
    other = await Told(base, before=0.0, after=0.25).run(store, prove=ONE)
    assert len(measured(other)) == 30 and "history" not in other.body("0/live")
    assert other.body("0/live")["unused"] == "1 earlier tests of it had another agent or another scorer"
    renamed = [HeldOut(id=f"val-{n}", input={"prompt": f"other {n}"}) for n in range(30)]
    fresh = await Told(base, before=0.0, after=0.0).run(store, prove=ONE, held_out=renamed)
    assert len(measured(fresh)) == 30 and "history" not in fresh.body("0/live")
    assert fresh.evidence().manifest["account"]["number"] == 1


async def test_a_live_version_that_does_otherwise_than_it_did_is_measured_anew(store: Store, base: Model) -> None:
    tasks = [HeldOut(id=f"val-{n}", input={"prompt": f"val {n}"}) for n in range(100)]
    play = Told(base, before=None, after=0.0)
    await play.run(store, prove={**TEN, "stop_early": False}, held_out=tasks)
    LIVE["success"] = 1.0
    found = await play.run(store, prove={**ONE, "batch": 50, "stop_early": False}, held_out=tasks)
    assert found.body("0/prove/0")["history"]["has_drifted"]
    assert len(measured(found)) == 100  # all of them, the first look's included
    before, _ = episodes_in(store, [one for one in found.steps if "episodes" in one.body])
    assert {one.success for one in before} == {1.0} and len(before) == 100
    assert found.body("0/prove/1")["verdict"]["outcome"] == "reject"


async def test_tries_that_opened_a_gate_are_no_earlier_tries(store: Store, base: Model) -> None:
    """Fault: who was live when another was promoted had bad luck, and so a low mean once the other is taken back."""
    play = Told(base, before=0.0, after=1.0)
    first = await play.run(store, prove=TEN)
    assert first.decided().is_accepted
    second = await play.run(store, prove=ONE)
    assert "history" not in second.body("0/live") and len(measured(second)) == 30


async def test_a_try_counts_once_though_two_tests_rest_on_it(store: Store, base: Model) -> None:
    """Fault: a run that goes on has the episodes of the run before among its own, and both are in the account."""
    play = Told(base, before=0.0, after=0.0)
    first = await play.run(store, prove=TEN)
    tested = Charge.from_record(first.body("0/live")["account"])
    tasks = [HeldOut(id=f"val-{n + 1}", input=one) for n, one in enumerate(VAL)]
    again: dict[str, Any] = {"run": tested.run, "iteration": 0, "who": "ada", "now": 1.0, "setup": tested.setup}
    await charged(store, LINE, tasks, alpha=0.05, versions=(tested.baseline, "further seeds"), **again)
    second = await play.run(store, prove=ONE)
    kept = json.loads(store.blobs.get(str(second.body("0/live")["history"])))
    assert {one["count"] for one in kept.values()} == {10} and len(kept) == 30


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_what_earlier_tries_prove_is_proved_by_fresh_ones_before_a_gate_opens(
    store: Store, base: Model, is_confirmed: bool
) -> None:
    """Fault: ten points of drift since the earlier tries opened the gate for 35 of 40 who were no better."""
    play = Told(base, before=None, after=None)
    await play.run(store, prove=TEN)
    LIVE["success"] = 1.0  # of both: the world is kinder today, and too few tasks are watched to see it
    found = await play.run(store, prove={**ONE, "confirm_live": is_confirmed})
    assert found.decided().is_accepted is not is_confirmed
    assert ("0/prove/confirm" in found.names) is is_confirmed
    assert len(measured(found)) == (30 if is_confirmed else 6)
    if is_confirmed:
        assert found.evidence().comparisons["success"].difference == 0.0
        assert found.body("0/prove/confirm")["history"]["is_confirmed"]


async def test_without_an_early_stop_too_what_earlier_tries_prove_is_confirmed(store: Store, base: Model) -> None:
    """Fault: only what ended the looking was confirmed, and without an early stop nothing ends it."""
    play = Told(base, before=None, after=None)
    await play.run(store, prove=TEN)
    LIVE["success"] = 1.0
    found = await play.run(store, prove={**ONE, "stop_early": False})
    assert found.body("0/prove/1")["verdict"]["outcome"] == "promote"
    assert found.body("0/prove/confirm")["verdict"]["outcome"] == "hold" and len(measured(found)) == 30
    assert not found.decided().is_accepted


async def test_what_earlier_tries_prove_once_the_lost_is_measured_is_confirmed(store: Store, base: Model) -> None:
    """Fault: a verdict that only came with the step `lost` was pooled anew, and nobody confirmed it."""
    play = Lossy(base, before=None, after=None)
    await play.run(store, prove=TEN)
    LIVE["success"] = 1.0
    GONE.update({"baseline": {0, 5, 10, 15}, "candidate": set(range(1, 12)) - {5, 10}})
    found = await play.run(store, prove=ONE)
    assert found.body("0/prove/1")["verdict"]["outcome"] == "hold"
    assert found.body("0/prove/lost")["verdict"]["outcome"] == "promote"
    assert found.body("0/prove/confirm")["verdict"]["outcome"] == "hold" and len(measured(found)) == 30
    assert not found.decided().is_accepted


async def test_losses_are_told_apart_by_what_each_arm_was_run_on(store: Store, base: Model) -> None:
    """Fault: live counted as run on the tasks that it was spared, and then 1 lost is far fewer than 7. It was run on 6,
    the candidate on 30."""
    play = Lossy(base, before=0.0, after=0.0)
    await play.run(store, prove=TEN)
    GONE.update({"baseline": {0}, "candidate": {1, 2, 3, 4, 6, 7, 8}})
    found = await play.run(store, prove=ONE)
    assert found.body("0/prove/lost")["retried"] == {"baseline": 1, "candidate": 7}


@dataclass
class Setup:
    """What `setup_of` asks of a step."""

    setup: tuple[Any, ...]
    run: str = "run-1"


def test_a_setup_is_known_by_what_it_is_made_of_and_one_too_large_to_describe_is_like_no_other() -> None:
    def hashed(*parts: Any, run: str = "run-1") -> str:
        return setup_of(Setup(parts, run))  # type: ignore[arg-type]

    assert hashed(partial(answer, 0.0, 1.0)) == hashed(partial(answer, 0.0, 1.0), run="run-2")
    assert hashed(partial(answer, 0.0, 1.0)) != hashed(partial(answer, 0.0, 0.5))
    ring: dict[str, Any] = {}
    ring["self"] = ring
    assert hashed(ring) == hashed(ring)  # it ends
    large = list(range(20_000))
    assert hashed(large) == hashed(large) and hashed(large) != hashed(large, run="run-2")
