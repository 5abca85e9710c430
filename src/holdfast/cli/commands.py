"""The older short orders to runs and rollouts: each is one of `control`'s, by the same desk."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.look import RolloutText, RunText
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, Why, existing
from holdfast.cli.show import count
from holdfast.contracts.run import DesiredState

ACTIONS = {
    DesiredState.RUNNING: "resume",
    DesiredState.PAUSED: "pause",
    DesiredState.FROZEN: "pause",
    DesiredState.DRAINING: "drain",
    DesiredState.CANCELLED: "cancel",
}


def order(
    run: RunText,
    wanted: Annotated[DesiredState, typer.Argument(metavar="WANTED", help="What it shall do from now on.")],
    why: Why,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Tell a run to go on, pause, freeze, drain or end; its workers obey at their next claim or beat."""
    from holdfast.cli.control import give

    with existing(store, project) as opened:
        mode = "freeze" if wanted is DesiredState.FROZEN else None
        told = give(opened, ACTIONS[wanted], run, why, mode=mode)
        if json:
            _print_record(opened.runs.get(told["subject"]))
            return
        more = f"; {count(told['cancelled'], 'rollout')} cancelled" if "cancelled" in told else ""
        print(f"{told['subject']}: wanted {told['after']['wanted']}, was {told['before']['wanted']}{more}")


def requeue(
    rollout: RolloutText,
    why: Why = "queued again by an operator",
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Give a failed, dead or cancelled rollout a fresh set of attempts."""
    from holdfast.cli.control import give

    with existing(store, project) as opened:
        told = give(opened, "requeue", rollout, why)
        if json:
            _print_record(opened.views.rollout(told["subject"]))
            return
        print(f"{told['subject']}: queued again, was {told['before']['status']}")
        if "note" in told:
            print(told["note"])


def cancel(
    rollout: RolloutText,
    why: Why = "cancelled by an operator",
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """End a rollout that is not done; whoever works on it is told at the next beat."""
    from holdfast.cli.control import give

    with existing(store, project) as opened:
        told = give(opened, "cancel_rollout", rollout, why)
        if json:
            _print_record(opened.views.rollout(told["subject"]))
        else:
            print(f"{told['subject']}: cancelled, was {told['before']['status']}")


def _print_record(record: object) -> None:
    from holdfast.cli.show import print_json
    from holdfast.contracts.records import encode

    print_json(encode(record))
