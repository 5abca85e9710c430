"""How fast the town lives: agent-steps of one core, by what residents do and see and by how many worlds run together.

Figures are CPU time of one thread, with rewards, action masks and observations; no state is hashed unless said.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town.env import Env, advance, masks
from holdfast.town.observations import observe
from holdfast.town.state import TownState
from parts import report
from parts.report import Figures, progress, rounded

RESIDENTS = 64
TOWNLET = (204, 1_284)  # agent-steps a second that were measured of Townlet: its newest version, and its fastest
BATCHES = (1, 8, 64, 512, 4096)
MAPS_BATCHES = (1, 8, 64, 512)  # 4,096 worlds of maps would not fit into memory
SHOWN = 64  # the batch of the headline figures
HOURS = (3, 7, 12, 18)  # of the first day, at which is measured
LIVED = 8  # worlds that live until then; larger batches repeat them

MEANINGS = {
    "agent_steps_per_s_core": f"scripted residents, compact observations, masks, {SHOWN} worlds",
    "agent_steps_per_s_core_random": "the same with random actions that the mask allows",
    "agent_steps_per_s_core_hybrid": "scripted, with maps of 11 × 11",
    "by_batch": "agent-steps per CPU-second: what they do, what they see, how many worlds",
    "vs_townlet": "times the agent-steps per second of Townlet, newest and fastest",
    "ns_per_agent_step": f"{SHOWN} worlds: the step that is counted above; alone, choosing, and two parts of a step",
    "tick_ms_64": "one live world of 64 residents: plan, step, observe, mask; median",
    "hash_ms_64": "the name of one world's state; not counted above",
    "cold_start_s": "a new process, until the first step is done; compiled code is cached; median of three",
    "memory_bytes_per_world": "state, compact observations, masks and rewards",
    "wants": "what is expected, and whether it is so",
}
WANTS = {
    "agent_steps_per_s_core": 4_000_000,
    "agent_steps_per_s_core_random": 4_000_000,
    "agent_steps_per_s_core_hybrid": 1_000_000,
}

Phases = dict[str, float]


def measure(quick: bool) -> Figures:
    batches, maps = ((1, SHOWN), (1, SHOWN)) if quick else (BATCHES, MAPS_BATCHES)
    budget = 60_000 if quick else 600_000  # agent-steps that are timed, at least
    table: dict[str, dict[str, dict[str, float]]] = {}
    shown: dict[tuple[str, str], Phases] = {}
    for who in ("scripted", "random"):
        for variant, sizes in (("compact", batches), ("hybrid", maps)):
            row = table.setdefault(who, {}).setdefault(variant, {})
            for worlds in sizes:
                progress(f"{who}, {variant}, {worlds} worlds")
                spent = phases(who, variant, worlds, budget)
                row[str(worlds)] = rounded(rate(spent))
                if worlds == SHOWN:
                    shown[who, variant] = spent
    figures: Figures = {
        "agent_steps_per_s_core": table["scripted"]["compact"][str(SHOWN)],
        "agent_steps_per_s_core_random": table["random"]["compact"][str(SHOWN)],
        "agent_steps_per_s_core_hybrid": table["scripted"]["hybrid"][str(SHOWN)],
        "by_batch": table,
        "ns_per_agent_step": {f"{who}_{variant}": named(spent) for (who, variant), spent in shown.items()},
    }
    figures["vs_townlet"] = [rounded(figures["agent_steps_per_s_core"] / one) for one in TOWNLET]
    figures |= live(200 if quick else 1000) | {"cold_start_s": rounded(cold_start()), "state_hash": False}
    figures["memory_bytes_per_world"] = memory()
    wants = {name: {"at least": least, "is_met": figures[name] >= least} for name, least in WANTS.items()}
    wants["tick_ms_64"] = {"at most": 1.0, "is_met": figures["tick_ms_64"] <= 1.0}
    return figures | {"wants": wants}


def rate(spent: Phases) -> float:
    return 1 / spent["step"]


def named(spent: Phases) -> dict[str, float]:
    return {phase: rounded(1e9 * seconds) for phase, seconds in spent.items()}


@cache
def moments(who: str) -> tuple[TownState, ...]:
    """A few worlds at four hours of a day: some sleep, some walk, most work, many are at home."""
    env = Env(worlds=LIVED)
    env.reset(1)
    rng, kept = np.random.default_rng(1), []
    for tick in range(max(HOURS) * 60):
        if tick in {60 * hour for hour in HOURS}:
            kept.append(env.state.copy())
        env.step(chosen(who, env, rng))
    return (*kept, env.state.copy())


def chosen(who: str, env: Env, rng: np.random.Generator) -> NDArray[np.int64]:
    """What residents do: what they plan, or any one of the actions that the mask allows."""
    if who == "scripted":
        return env.scripted()
    upto = env._mask.cumsum(axis=2, dtype=np.uint8)
    pick = (rng.random(upto.shape[:2]) * upto[:, :, -1]).astype(np.int64)
    return (upto > pick[:, :, None]).argmax(axis=2)


def phases(who: str, variant: str, worlds: int, budget: int) -> Phases:
    """CPU-seconds of one agent-step, phase by phase: the mean of four hours of a day."""
    env = Env(worlds=worlds, variant=variant)
    rng, spent = np.random.default_rng(1), dict.fromkeys(("choose", "step", "observe", "mask"), 0.0)

    def timed(phase: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        done = work()
        spent[phase] += time.process_time() - began
        return done

    each = worlds * RESIDENTS
    ticks = max(3, budget // each // len(HOURS))
    for moment in moments(who):
        env.restore(TownState(**{name: array[np.arange(worlds) % LIVED] for name, array in moment.arrays.items()}))
        s = env.state
        seen = (env.law, s.town, s.people, s.things, s.who)
        env.step(chosen(who, env, rng))  # into the caches
        for _ in range(ticks):
            actions = timed("choose", lambda: chosen(who, env, rng))
            given = (*s.arrays.values(), actions, env._reward, env._features, env._maps, env._mask)
            timed("step", lambda: advance(env.law, *given))  # noqa: B023
            timed("observe", lambda: observe(*seen, env._features, env._maps))  # noqa: B023
            timed("mask", lambda: masks(*seen, env._mask))  # noqa: B023
    return {phase: seconds / (len(HOURS) * ticks * each) for phase, seconds in spent.items()}


def live(ticks: int) -> Figures:
    env = Env(worlds=1)
    env.reset(1)
    took, hashed = [], []
    for tick in range(ticks):
        began = time.process_time()
        env.step(env.scripted())
        took.append(time.process_time() - began)
        if tick % 10 == 0:
            began = time.process_time()
            env.state.sha256()
            hashed.append(time.process_time() - began)
    return {"tick_ms_64": rounded(1e3 * median(took)), "hash_ms_64": rounded(1e3 * median(hashed))}


def cold_start() -> float:
    code = "from holdfast.town.env import Env; env = Env(); env.reset(0); env.step(env.scripted())"
    took = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True)
        took.append(time.monotonic() - began)
    return median(took)


def memory() -> int:
    env = Env(worlds=1)
    arrays = (*env.state.arrays.values(), env._features, env._mask, env._reward)
    return sum(array.nbytes for array in arrays)


if __name__ == "__main__":
    report.main("How fast the town lives.", measure, MEANINGS)
