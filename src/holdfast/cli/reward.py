"""`holdfast reward`: what a finished rollout was worth, told by somebody who knows it only afterwards."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, Json, Project, RolloutText, StoreAt, existing, who

EPILOG = """What was told stands: the same once more changes nothing, another value for the same name, source and turn
is refused (5). A reward counts for what is learnt from then on; steps that were made before stay as they are.

The ledger has who told it: 'holdfast ledger'."""


def reward(
    rollout: RolloutText,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the signal, as in success or tone.")],
    value: Annotated[float, typer.Option("--value", metavar="X", help="Any finite number.")],
    source: Annotated[str, typer.Option("--source", metavar="TEXT", help="Who or what measured it, as in person:ann.")],
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="T", min=0, help="Of one call of the model, from 0; else of all.")
    ] = None,
    weight: Annotated[
        float, typer.Option("--weight", metavar="X", help="How much it counts in the reward; 0: not at all.")
    ] = 1.0,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Attach a reward to a rollout that has ended."""
    from holdfast.contracts.reward import RewardTerm
    from holdfast.store.find import find_rollout

    told = RewardTerm(name=name, value=value, weight=weight, source=source, turn=turn)
    with existing(store, project) as opened:
        found = find_rollout(opened, rollout)
        after = opened.rewards.attach(found.id, told, who=who(), now=time.time()).result()
    if json:
        from holdfast.cli.show import print_json
        from holdfast.contracts.records import encode

        print_json(encode(after))
        return
    where = "" if turn is None else f" at turn {turn}"
    what = f"{told.name}{where} = {told.value:g} × {told.weight:g} ({told.source})"
    if after.is_new:
        before = "none" if found.reward is None else f"{found.reward:g}"
        print(f"{after.rollout}: {what}; its reward is {after.reward:g}, was {before}")
    else:
        print(f"{after.rollout}: {what} was told before; its reward is {after.reward:g}")
