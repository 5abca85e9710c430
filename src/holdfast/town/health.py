"""The health of a town: figures of a window of ticks, their limits, and the stages that they unlock.

Pure: counts are added tick by tick, and the figures are a function of the counts. Alarms are raised elsewhere. An empty
town is never healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town.compiled_rules import CompiledRules
from holdfast.town.rules import UNIT
from holdfast.town.state import COUNTS, TownState

WINDOW = 720  # ticks, half a day: what one look rests on
STARVING = UNIT // 20  # of hunger


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCounts:
    """What has been counted of one world since the window began."""

    began: Mapping[str, int]  # the town's own counts at that time
    ticks: int
    alive: int  # resident-ticks
    met: int  # need-ticks at or above what residents begin to care about
    starving: int  # resident-ticks
    due: int  # resident-ticks of shifts
    free: int  # resident-ticks in which something could be chosen
    switches: int
    reward: float
    reward_squared: float
    waits: NDArray[np.int64]  # [A] ticks in line


def counts(state: TownState, world: int = 0) -> dict[str, int]:
    return {name: int(state.town[name][world]) for name in COUNTS}


def begin(state: TownState, world: int = 0) -> HealthCounts:
    nothing = np.zeros(state.people.shape[1], np.int64)
    return HealthCounts(
        began=counts(state, world), ticks=0, alive=0, met=0, starving=0, due=0, free=0, switches=0,
        reward=0.0, reward_squared=0.0, waits=nothing,
    )  # fmt: skip


def add(tally: HealthCounts, law: CompiledRules, state: TownState, world: int = 0) -> HealthCounts:
    """One more tick, after it."""
    people = state.people[world]
    alive = people["alive"] == 1
    time = (int(state.town["tick"][world]) - 1) % int(law.n["day"])
    job = np.maximum(people["job"], 0)
    start, end = np.asarray(law.n["job_start"])[job], np.asarray(law.n["job_end"])[job]
    is_due = alive & (people["job"] >= 0) & (start <= time) & (time < end)
    reward = people["reward"][alive] / UNIT
    return HealthCounts(
        began=tally.began,
        ticks=tally.ticks + 1,
        alive=tally.alive + int(alive.sum()),
        met=tally.met + int((people["need"][alive] >= np.asarray(law.n["low"])).sum()),
        starving=tally.starving + int((people["need"][alive, 0] <= STARVING).sum()),
        due=tally.due + int(is_due.sum()),
        free=tally.free + int((alive & (people["doing"] < 0)).sum()),
        switches=tally.switches + int(people["switches"][alive].sum()),
        reward=tally.reward + float(reward.sum()),
        reward_squared=tally.reward_squared + float(reward @ reward),
        waits=tally.waits + ((people["queue"] >= 0) & alive),
    )


def jain(shares: NDArray[Any]) -> float:
    """(Σx)² / (n Σx²): 1 where all have the same, 1/n where one has it all; 1 where there is nothing to share."""
    squares = float(np.square(shares, dtype=np.float64).sum())
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares else 1.0


def kpis(tally: HealthCounts, law: CompiledRules, state: TownState, world: int = 0) -> dict[str, float | None]:
    """What the window amounts to; None where nothing happened that the number could rest on."""
    people = state.people[world]
    alive = people["alive"] == 1
    new = {name: value - tally.began[name] for name, value in counts(state, world).items()}
    days = tally.alive / int(law.n["day"])  # of residents
    tied = people["tie_to"][alive] >= 0
    rivals = people["tie_rivalry"][alive] >= int(law.n["avoid_at"])
    tried = new["finished"] + new["failed"] + new["aborted"]
    waited = tally.waits[tally.waits > 0]
    slots, ready = state.slots[world], int(state.town["tick"][world]) - int(law.n["slot_cooldown"])
    is_ready = (slots == -1) | ((slots >= 0) & (slots <= ready))
    mean = tally.reward / tally.alive if tally.alive else 0.0
    return {
        "residents": float(alive.sum()),
        "alive": float(alive.mean()),
        "needs_met": _share(tally.met, tally.alive * people["need"].shape[1]),
        "starving": _share(tally.starving, tally.alive),
        "attendance": _share(new["worked"], tally.due),
        "lateness": _share(new["lates"], days),
        "absences": _share(new["absences"], days),
        "queue_wait": _share(int(tally.waits.sum()), days),
        "queue_fairness": jain(waited) if len(waited) >= 2 else None,
        "chats": _share(new["chats"], days),
        "ties": _share(int(tied.sum()), int(alive.sum())),
        "rivalry": _share(int(rivals.sum()), int(alive.sum())),
        "conflicts": _share(new["conflicts"], days),
        "exits": _share(new["exits"], days),
        "failures": _share(new["failed"], tried),
        "thrash": _share(tally.switches, tally.free),
        "reward": mean if tally.alive else None,
        "reward_variance": max(0.0, tally.reward_squared / tally.alive - mean * mean) if tally.alive else None,
        "slots_ready": float(is_ready.mean()),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimit:
    """Where a number is no longer good; what is in between is neither. Per resident and day where it counts events."""

    alert: str
    kpi: str
    above: float | None = None  # one of the two
    below: float | None = None
    clear: float
    hold: int = 0  # ticks for which either must have held
    is_critical: bool = False
    remedy: str

    def is_bad(self, value: float) -> bool:
        return value > self.above if self.above is not None else self.below is not None and value < self.below


LIMITS = (
    HealthLimit(alert="empty-town", kpi="residents", below=1, clear=1, is_critical=True,
                remedy="see why all have left, or begin anew"),
    HealthLimit(alert="population", kpi="alive", below=0.80, clear=0.90, is_critical=True,
                remedy="look at needs and at what residents left for"),
    HealthLimit(alert="starvation", kpi="starving", above=0.02, clear=0.01, is_critical=True,
                remedy="look at stock, prices and wages"),
    HealthLimit(alert="unmet-needs", kpi="needs_met", below=0.55, clear=0.65, remedy="look at queues and at stock"),
    HealthLimit(alert="option-thrash", kpi="thrash", above=0.60, clear=0.50, remedy="let choices last longer"),
    HealthLimit(alert="reward-variance", kpi="reward_variance", above=0.05, clear=0.03, remedy="look at who has left"),
    HealthLimit(alert="lateness", kpi="lateness", above=0.60, clear=0.40, remedy="let residents set out earlier"),
    HealthLimit(alert="attendance", kpi="attendance", below=0.40, clear=0.50,
                remedy="look at who does not come, and why"),
    HealthLimit(alert="affordance-failures", kpi="failures", above=0.30, clear=0.20,
                remedy="look at power, water and stock"),
    HealthLimit(alert="queue-unfairness", kpi="queue_fairness", below=0.15, clear=0.20,
                remedy="add what is queued for"),
    HealthLimit(alert="rivalry", kpi="rivalry", above=1.0, clear=0.8, remedy="arrange meetings"),
    HealthLimit(alert="exits", kpi="exits", above=0.10, clear=0.05, remedy="look at what residents leave for"),
    HealthLimit(alert="embedding-reuse", kpi="slots_ready", below=0.05, clear=0.10, remedy="raise lifecycle.slots"),
)  # fmt: skip


def faults(numbers: Mapping[str, float | None], limits: Sequence[HealthLimit] = LIMITS) -> tuple[str, ...]:
    """Why the window is not green: what is beyond its limit, and what could not be measured in an empty town."""
    if not numbers.get("residents"):
        return ("empty-town: nobody lives here",)
    found = []
    for limit in limits:
        value = numbers.get(limit.kpi)
        if value is not None and limit.is_bad(value):
            side = f"above {limit.above:g}" if limit.above is not None else f"below {limit.below:g}"
            found.append(f"{limit.alert}: {limit.kpi} {value:.3g} is {side}; {limit.remedy}")
    return tuple(found)


def unlocked(
    order: Sequence[str], windows: Sequence[tuple[str, bool]], needed: int, overrides: Sequence[str] = ()
) -> tuple[str, ...]:
    """The stages that may be on: the first always; each other once the one before it had `needed` green windows in a
    row as the last stage that was on, or where it was allowed by hand, and with it all before it."""
    streaks = dict.fromkeys(order, 0)
    done = set()
    for stage, is_green in windows:
        if stage in streaks:
            streaks[stage] = streaks[stage] + 1 if is_green else 0
            if streaks[stage] >= needed:
                done.add(stage)
    upto = 0
    for place in range(1, len(order)):
        if order[place - 1] in done and upto == place - 1:
            upto = place
    forced = max((order.index(stage) for stage in overrides if stage in order), default=0)
    return tuple(order[: max(upto, forced) + 1])
