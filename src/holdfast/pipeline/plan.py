"""The forecast of a proof that is about to be run: with the α that the account leaves to it, and the base rate known.

What so many tasks can prove is computed by `prove.plan`. Nothing is charged and nothing is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.contracts.evidence import Episode, Evidence
from holdfast.contracts.lines import say
from holdfast.contracts.records import decode, loads
from holdfast.pipeline.alpha_account import at_charge, digests, promoted, reader
from holdfast.promote.alpha_account import Charge, charge, level
from holdfast.prove.comparison import METRICS, ComparisonConfig
from holdfast.prove.plan import Forecast, forecast
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.pipeline.improve import Spec

UNKNOWN_RATE = 0.5  # the base rate where nothing was measured yet: the worst case
PLANNED = "planned"


def forecast_of(spec: Spec, store: Store | None = None) -> Forecast:
    """Forecasts the proof of a line's next candidate; without a store it is the first one on these tasks."""
    how = spec.prove.how
    tasks = [held_out.input for held_out in spec.held_out]
    rate = None if store is None else base_rate(store, spec.line, how)
    return forecast(
        charged_next(how, store, spec.line, tasks),
        tasks=len(tasks),
        seeds=len(spec.prove.seeds),
        base_rate=UNKNOWN_RATE if rate is None else rate,
        least=spec.criteria.least,
    )


def tell(forecast: Forecast) -> None:
    """On stderr, before anything runs: what the tasks can prove, or a warning where they can open no gate.

    Such a run is not refused: its candidate can be given more tasks afterwards.
    """
    if not forecast.is_provable:
        say("warning: these tasks can promote no candidate; the run starts all the same:")
    for line in forecast.lines:
        say(line if forecast.is_provable else f"- {line}")
    if not forecast.is_provable:
        say("- later, 'holdfast prove more VERSION --tasks FILE' adds tasks to a candidate that is held")


def charged_next(
    how: ComparisonConfig, store: Store | None, policy: str | None, tasks: Iterable[Any] | None
) -> ComparisonConfig:
    """Returns the comparison with the α of the next candidate on these tasks; unknown tasks count as fresh."""
    if store is None or policy is None or tasks is None:
        return replace(how, alpha=level(how.alpha, 1), safety_alpha=how.uncharged_alpha)
    names, read = frozenset(digests(store, policy, list(tasks))), reader(store)
    known = [Charge.from_record(entry.body) for entry in store.releases.charges(policy)]
    about: dict[str, Any] = {**dict.fromkeys(("key", "run", "baseline", "candidate"), ""), "policy": policy}
    found = charge(
        known,
        promoted(store, known, store.releases.history(policy)),
        lambda sha256: names if sha256 == PLANNED else read(sha256),
        alpha=how.alpha,
        tasks=PLANNED,
        count=len(names),
        **about,
    )
    return at_charge(how, found)


def base_rate(store: Store, policy: str, how: ComparisonConfig) -> float | None:
    """Reads the live version's rate in its proof, as a share of what it can reach; None: nobody measured it."""
    live = store.releases.live(policy)
    if live is None or live.evidence is None:
        return None
    evidence = loads(Evidence, store.blobs.get(live.evidence))
    kept = json.loads(store.blobs.get(str(evidence.samples)))
    side = "candidate" if evidence.candidate == live.id else "baseline"
    values = [METRICS[how.primary](decode(Episode, one)) for one in kept[side]]
    known = [value for value in values if value is not None]
    if not known or how.primary == "safety":
        return None
    low, high = how.reward_range if how.primary == "reward" else (0.0, 1.0)
    return float(np.clip((np.mean(known) - low) / (high - low), 0.0, 1.0))
