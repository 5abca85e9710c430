"""What a town asks of a version beside its return: windows of health with enough people in them, and signed rules.

Two windows of the candidate's towns have to be green, one after the other, each with a minimum of residents: an empty
town passes nothing. The golden towns are lived by the script, so whatever changes in them is a change of the town: of
what residents see, may do or are paid. `prove.golden` compares and signs, and `promote.gate` decides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.envs import VectorEnv
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.policy import Act
from holdfast.policies.network import ScriptedAct
from holdfast.promote.gate import KpiBand
from holdfast.prove import golden as goldens
from holdfast.prove.golden import Golden, GoldenCase
from holdfast.store.store import Store
from holdfast.workloads.townlife import LIMITS, OBSERVED, WINDOW, Env, Rules, faults, measure_worlds, rounded

TOWNS = 4  # that a candidate's health is measured in
GREEN = 2  # windows in a row
POPULATION = 0.8  # of the seats have to be taken: as the alert of that name says
MEASURED, GOLDEN = 5 * 2**29 + 2**20, 5 * 2**29 + 2**21  # first seeds of these towns: nobody learns or proves in them
GOLDEN_TOWNS = 2
SCRIPTS = "scripts"
Kpis = Mapping[str, float | None]


class TownVectors(VectorEnv, Protocol):
    """The seats of some towns, and the towns themselves."""

    @property
    def env(self) -> Env: ...


class Towns(Protocol):
    """Makes towns under given rules."""

    @property
    def rules(self) -> Rules: ...
    @property
    def name(self) -> str: ...
    @property
    def observation(self) -> str: ...
    def vector_env(self, count: int) -> TownVectors: ...


# Health --------------------------------------------------------------------------------------------------------------


def least_residents(maker: Towns) -> int:
    """In all towns together."""
    return int(np.ceil(POPULATION * TOWNS * int(maker.rules["residents"])))


def bands(maker: Towns) -> dict[str, KpiBand]:
    return {"green_windows": KpiBand(low=GREEN, least=least_residents(maker))}


def windows_of(
    maker: Towns, act: Act, *, seed: int = MEASURED, check: Callable[[], None] = lambda: None
) -> list[list[dict[str, float | None]]]:
    """The figures of each window and town, lived by a policy."""
    envs = maker.vector_env(TOWNS)
    view, choose, first = envs.reset(seed), act.many(envs.count), np.ones(envs.count, np.bool_)

    def step() -> None:
        nonlocal view, first
        result = envs.step(choose(view, first))
        view, first = result.observation, result.terminated | result.truncated

    found = []
    for _ in range(GREEN):
        check()
        found.append(measure_worlds(envs.env, step, WINDOW))
    return found


def kpis_of(windows: Sequence[Sequence[Kpis]]) -> dict[str, dict[str, Any]]:
    """For the gate: how many windows were green one after the other at the end, and the figures of the last one. Each
    rests on the fewest residents that any window ended with."""
    means = [_mean(window) for window in windows]
    here = min((int(sum(one["residents"] or 0 for one in window)) for window in windows), default=0)
    wrong = [faults(mean) for mean in means]
    green = 0
    for found in wrong:
        green = 0 if found else green + 1
    detail = "; ".join(f"window {number}: {found[0]}" for number, found in enumerate(wrong, 1) if found)
    payload: dict[str, dict[str, Any]] = {"green_windows": {"value": green, "of": here, "detail": detail}}
    last = rounded(means[-1]) if means else {}
    named = {limit.kpi for limit in LIMITS} | {"reward", "chats"}
    return payload | {name: {"value": value, "of": here} for name, value in last.items() if name in named}


def _mean(window: Sequence[Kpis]) -> dict[str, float | None]:
    """Over the towns in which each figure could be measured."""
    payload: dict[str, float | None] = {}
    for name in window[0]:
        known = [value for one in window if (value := one[name]) is not None]
        payload[name] = float(np.mean(known)) if known else None
    return payload


# Golden towns --------------------------------------------------------------------------------------------------------


def golden_name(maker: Towns, line: str) -> str:
    """One for each line, size of town and contract of observation: a short course in small towns changes nothing of the
    large ones."""
    seen = f"-{maker.observation}" * (maker.observation != OBSERVED)
    return re.sub(r"[^A-Za-z0-9_-]", "-", line)[:80] + f"-{int(maker.rules['residents'])}{seen}"


def golden_towns(maker: Towns, line: str, *, now: float) -> Golden:
    """Half a day and more of some towns, lived by the script: what was seen, done and paid, as hashes."""
    envs = maker.vector_env(GOLDEN_TOWNS)
    view, choose = envs.reset(GOLDEN), ScriptedAct(maker.name).many(envs.count)
    digests = [{name: hashlib.sha256() for name in goldens.HASHES} for _ in range(GOLDEN_TOWNS)]
    first, paid = np.ones(envs.count, np.bool_), np.zeros(envs.count)
    for _ in range(WINDOW * GREEN):
        actions = choose(view, first)
        assert view.mask is not None
        _add(digests, "observation", view.values, view.mask)
        result = envs.step(actions)
        _add(digests, "action", actions)
        _add(digests, "reward", result.reward)
        view, paid = result.observation, paid + result.reward
    returns = paid.reshape(GOLDEN_TOWNS, -1).mean(axis=1)
    suite = f"{GOLDEN_TOWNS} towns from seed {GOLDEN}, {WINDOW * GREEN} ticks by scripts"
    cases = tuple(
        GoldenCase(case_id=f"town-{GOLDEN + k}", kpis={"reward": float(returns[k])}, **_hex(digests[k]))
        for k in range(GOLDEN_TOWNS)
    )
    made = Golden(
        name=golden_name(maker, line),
        suite=suite,
        suite_sha256=hashlib.sha256(suite.encode()).hexdigest(),
        version=SCRIPTS,
        weights_sha256=maker.rules.sha256,
        sampling={},
        cases=cases,
        recorded_at=now,
        suite_at="town",
    )
    return goldens.with_bands(made)


def _add(digests: Sequence[Mapping[str, Any]], name: str, *arrays: NDArray[Any]) -> None:
    for array in arrays:
        for digest, own in zip(digests, array.reshape(len(digests), -1), strict=True):
            digest[name].update(own.tobytes())


def _hex(digests: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest.hexdigest() for name, digest in digests.items()}


def golden_folder(store: Store) -> Path:
    return store.reports.parent / "golden"


def golden_findings(maker: Towns, store: Store, line: str, *, now: float, who: str = "") -> tuple[Finding, ...]:
    """What changed of the town since its golden was recorded. The first golden is recorded here, and is in the ledger:
    one that was removed or written by hand is refused. What was replayed is kept, to be signed."""
    made = golden_towns(maker, line, now=now)
    path, known = golden_folder(store) / f"{made.name}.json", goldens.known_sha256(store, made.name)
    if known is None:
        goldens.write(path, made)
        goldens.note(store, made, who=who or SCRIPTS, now=now).result()
        return goldens.check(made, made)
    kept = goldens.read(path)
    if kept.sha256 != known:
        why = f"is not the one that the ledger knows, {known[:12]}"
        raise BadInput(f"golden {made.name}", why=why, remedy=f"restore {path.name} from a copy of the store's folder")
    goldens.write(path.with_name(f"{made.name}{goldens.REPLAY}.json"), made)
    return goldens.check(kept, made, signed=goldens.signed(store))


def check_signed(maker: Towns, store: Store, line: str, *, who: str, now: float, at: str = "") -> None:
    """BadInput where the town has changed, and nobody has signed that; `at` are the options that find the store."""
    changed = [
        finding for finding in golden_findings(maker, store, line, now=now, who=who) if finding.count and finding.blocks
    ]
    if changed:
        name = golden_name(maker, line)
        kinds = {"observation_hash": "what residents see", "reward_hash": "what they are paid"}
        message = " and ".join(kinds[finding.name] for finding in changed if finding.name in kinds) or changed[0].name
        why = f"{message} changed since it was recorded, and nobody has signed that: the gate stays closed"
        remedy = f"if it is wanted: holdfast prove golden sign {name} --why WHY{at}"
        raise BadInput(f"golden {name}", why=why, remedy=remedy)
