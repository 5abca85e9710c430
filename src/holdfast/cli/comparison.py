"""What a run has proved about two versions: every look, and what all episodes come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.cli.onward import folded, place, step

if TYPE_CHECKING:
    from holdfast.contracts.evidence import MetricComparison
    from holdfast.contracts.run import RunRecord, StepRecord
    from holdfast.prove.comparison import ComparisonResult
    from holdfast.store.store import Store

KEPT = ("episodes", "earlier")  # of a look: where its episodes lie


def tell(store: Store, run: RunRecord, json: bool) -> None:
    """Every look that was taken, and what all episodes come to."""
    from holdfast.cli.show import print_json, progress
    from holdfast.pipeline.paired import shown_looks, weighed

    with progress("weighing", None):
        looks, found = shown_looks(store, run.id), weighed(store, run.id)
    if json:
        print_json(_record(run, looks, found))
    else:
        _print(store, run, looks, found)


def _record(run: RunRecord, taken: list[StepRecord], found: ComparisonResult | None) -> dict[str, Any]:
    from holdfast.contracts.records import encode

    told = None
    if found is not None:
        told = {
            "verdict": encode(found.verdict),
            "tasks": len(found.tasks),
            "comparisons": {name: encode(one) for name, one in found.comparisons.items()},
            "adjusted": dict(found.adjusted),
            "bands": {name: encode(band) for name, band in found.bands.items()},
            "effect": found.effect,
            "improvement": found.improvement,
            "missing": dict(found.missing),
        }
    looks = [{name: value for name, value in one.body.items() if name not in KEPT} for one in taken]
    return {"run": encode(run), "looks": looks, "proof": told}


def _print(store: Store, run: RunRecord, taken: list[StepRecord], found: ComparisonResult | None) -> None:
    """At most 80 columns."""
    from holdfast.cli.decision import name as name_of
    from holdfast.cli.show import count, moment, print_table

    error = f" ({run.error})" if run.error else ""
    print("\n".join(folded(f"{run.id} {run.state.replace('_', ' ')}{error}, begun {moment(run.created_at)}")))
    print("\n".join(folded(run.model_ref, "  ")))
    if found is None:
        print("\nnothing to compare yet")
    else:
        missing = f", {len(found.missing)} left out" if found.missing else ""
        last = taken[-1].body["look"] if taken else run.settings["continues"]["looks"]
        looks = count(int(last), "look")
        print(f"\n{found.verdict.outcome.upper()} after {count(len(found.tasks), 'task')}, {looks}{missing}")
        for reason in found.verdict.reasons:
            print("\n".join(folded(reason, "  ")))
        if found.verdict.needs is not None:
            print(f"  about {found.verdict.needs} more episodes of each version may decide it")
        print()
        print_table(
            ("higher is better", ">difference", "95 %", ">p", ">p (Holm)"),
            [(name_of(name), *_cells(one), _p(found.adjusted[name])) for name, one in found.comparisons.items()],
        )
        print()
        for name, band in found.bands.items():
            held = "holds" if band.within else "does not hold"
            print(f"  with other {'seeds' if name == 'seed' else 'sample sizes'} the finding {held}")
    print("next:")
    for command, about in _next(store, run, found):
        print("\n".join(step(f"{command}{place(store.url, store.project)}", about)))


def _next(store: Store, run: RunRecord, found: ComparisonResult | None) -> Iterator[tuple[str, str]]:
    from holdfast.contracts.evidence import Outcome
    from holdfast.contracts.run import RunState

    if run.state is not RunState.COMPLETED:
        yield f"holdfast prove run --resume {run.id}", "go on where it stopped"
    elif (command := _decide(store, run)) is not None:
        yield command, "let the gate decide"
    is_held = found is not None and found.verdict.outcome is Outcome.HOLD
    if run.state is RunState.COMPLETED and is_held and not run.settings.get("is_null"):
        yield f"holdfast prove more {run.id}", "add episodes to these"
    if run.settings.get("is_null"):
        yield f"holdfast prove null {run.id}", "how often it would have promoted"
    yield f"holdfast rollouts {run.id} --limit 5", "every try with its reward"


def _decide(store: Store, run: RunRecord) -> str | None:
    """What brings the candidate before the gate; None where it is none, or was not measured against what is live."""
    from holdfast.contracts.release import Stage

    known = {one.id: one for policy in store.releases.policies() for one in store.releases.of_policy(policy)}
    old, new = (known.get(str(run.settings[arm]["name"])) for arm in ("baseline", "candidate"))
    if old is None or new is None or old.policy != new.policy:
        return None
    if old.stage is not Stage.LIVE or new.stage is not Stage.CANDIDATE:
        return None
    # What came with the package, or is a text, learnt from no run; of others the gate asks for what they learnt from.
    is_untrained = new.source.startswith(("shelf:", "resources:"))
    return f"holdfast release decide {new.id} --run {run.id}{' --untrained' if is_untrained else ''}"


def _cells(one: MetricComparison) -> tuple[str, str, str]:
    return f"{one.difference:+.3f}", f"{one.interval.low:+.3f} to {one.interval.high:+.3f}", _p(one.p_value)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"
