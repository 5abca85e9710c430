"""What flags that are off stopped in a run: said by the command that ran it, with what turns each on again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.cli.onward import folded, step
from holdfast.contracts.settings import OptimizeSettings
from holdfast.operate.switches import key_of, snapshot_of
from holdfast.promote.flags import SWITCHES, Off
from holdfast.store.store import Store

LEARNING = "learning"
AGAIN = Off(
    feature=LEARNING, flag=SWITCHES[LEARNING], why="it was off while this run went on, and is on again", remedy=""
)


def stopped(store: Store, run: str, begun: Mapping[str, Off], wanted: Iterable[str]) -> list[Off]:
    """Those of the wanted features that were off when the run began; learning, where it was off before any lesson."""
    found = [begun[feature] for feature in wanted if feature in begun and feature != LEARNING]
    if any(update.body.get("skipped") for update in store.steps.of_run(run)):
        now = snapshot_of(store, clock=time.time, environment=os.environ).off(key_of(run))
        found.insert(0, now.get(LEARNING, AGAIN))
    return found


def wanted(settings: OptimizeSettings) -> list[str]:
    """The features that a run with these settings would use, besides learning."""
    from holdfast.collect.agent import load_agent

    is_shaped = settings.agent is not None and hasattr(load_agent(settings.agent), "scorer")
    return [*(["budgets"] if settings.thinking_budgets else ()), *(["tool_rewards"] if is_shaped else ())]


def lines(off: Sequence[Off], at: str) -> list[str]:
    """At most 80 columns, but for names that are longer. `at` finds the store again."""
    told = []
    for one in off:
        said = f"{one.feature.replace('_', ' ')}: switched off by flag {one.flag} ({one.why})"
        told += folded(said if not one.remedy else f"{said}; turn it on with")
        told += step(one.remedy + (at if one.remedy.startswith("holdfast ") else "")) if one.remedy else ()
    return told


def records(off: Sequence[Off]) -> list[dict[str, Any]]:
    return [asdict(one) for one in off]
