"""Orders to runs and rollouts; each is noted in the ledger with who gave it and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.look import RolloutText, RunText
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, Why, existing, who
from holdfast.cli.show import count
from holdfast.contracts.run import RunState, Wanted

if TYPE_CHECKING:
    from holdfast.contracts.rollout import Rollout
    from holdfast.store.store import Store


SILENT_S = 30.0  # after that nobody drives the run any more, and it has to be ended from here


def order(
    run: RunText,
    wanted: Annotated[Wanted, typer.Argument(metavar="WANTED", help="What it shall do from now on.")],
    why: Why,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Tell a run to go on, pause, drain or end; its workers obey at their next claim or beat."""
    with existing(store, project) as opened:
        before = opened.runs.get(run)
        after = opened.runs.want(before.id, wanted, who=who(), why=why, now=time.time()).result()
        cancelled = 0
        if wanted is Wanted.CANCELLED:
            while n := opened.queue.cancel_open(before.id, now=time.time(), why=why).result():
                cancelled += n
            if after.state is RunState.RUNNING and time.time() - after.beat_at > SILENT_S:
                after = opened.runs.end(after.id, RunState.CANCELLED, who=who(), now=time.time(), error=why).result()
        if json:
            _print_record(after)
        else:
            more = f"; {count(cancelled, 'rollout')} cancelled" if wanted is Wanted.CANCELLED else ""
            print(f"{after.id}: wanted {after.wanted}, was {before.wanted}{more}")


def requeue(
    rollout: RolloutText, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """Give a failed, dead or cancelled rollout a fresh set of attempts."""
    with existing(store, project) as opened:
        found = _find(opened, rollout)
        now = time.time()
        after = opened.queue.requeue(found.id, now=now).result()
        body = {"rollout": found.id, "before": found.status, "reason": found.reason}
        opened.ledger.append("requeue", body, who=who(), now=now, run=found.run).result()
        if json:
            _print_record(after)
            return
        print(f"{after.id}: queued again, was {found.status}")
        run = opened.runs.get(found.run)
        if run.wanted is Wanted.CANCELLED:
            print("its run was cancelled for good: nobody claims it")
        elif run.state is not RunState.RUNNING:
            print(f"its run is {run.state}: nobody claims it until 'holdfast optimize --resume {run.id}'")


def cancel(
    rollout: RolloutText,
    why: Why = "cancelled by an operator",
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """End a rollout that is not done; whoever works on it is told at the next beat."""
    with existing(store, project) as opened:
        found = _find(opened, rollout)
        now = time.time()
        after = opened.queue.cancel(found.id, now=now, why=why).result()
        body = {"rollout": found.id, "before": found.status, "why": why}
        opened.ledger.append("cancel", body, who=who(), now=now, run=found.run).result()
        if json:
            _print_record(after)
        else:
            print(f"{after.id}: cancelled, was {found.status}")


def _find(store: Store, text: str) -> Rollout:
    from holdfast.store.find import find_rollout

    return find_rollout(store, text)


def _print_record(record: object) -> None:
    from holdfast.cli.show import print_json
    from holdfast.contracts.records import encode

    print_json(encode(record))
