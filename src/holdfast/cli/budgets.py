"""`holdfast budgets`: what attempts were allowed to think, what they did with it, and what was for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreAt, existing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.store.budgets import BudgetTotals, BudgetUse
    from holdfast.store.store import Store

EPILOG = """Wasted is all that a failed attempt thought, and of the others what went beyond their allowance. An attempt
has failed when it broke off, and when nothing was paid for it.

A run has budgets when its config says "thinking_budgets": true."""


def budgets(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Its id, or the beginning of it.")] = None,
    limit: Limit = 10,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Show thinking budgets: by tier of one run, or of each run that has any."""
    from holdfast.contracts.records import encode

    with existing(store, project) as opened:
        if run is not None:
            _one(opened, opened.runs.get(run).id, limit, json)
            return
        found = opened.budgets.by_run(most=limit)
    if json:
        show.print_json([encode(one) for one in found])
    elif not found:
        print('no run has thinking budgets; a config with "thinking_budgets": true asks for them')
    else:
        _print_totals("~run", found)


def _one(store: Store, run: str, limit: int, json: bool) -> None:
    tiers, modes = store.budgets.by_tier(run), store.budgets.by_mode(run)
    uses = store.budgets.of_run(run, most=limit)
    if json:
        from holdfast.contracts.records import encode

        told: dict[str, Any] = {"run": run, "tiers": [encode(one) for one in tiers]}
        told["modes"] = {mode or "unknown": n for mode, n in modes.items()}
        told["budgets"] = [_told(use) for use in uses]
        show.print_json(told)
    elif not tiers:
        print(f'{run}: no attempt has a thinking budget; "thinking_budgets": true in the config asks for them')
    else:
        _print(run, tiers, modes, uses)


def _told(use: BudgetUse) -> dict[str, Any]:
    from holdfast.contracts.records import encode

    came = {"status": use.status.value, "has_failed": use.has_failed, "waste": use.waste}
    return {"budget": encode(use.budget), **came}


def _print(run: str, tiers: list[BudgetTotals], modes: Mapping[str | None, int], uses: list[BudgetUse]) -> None:
    spent, allowed, waste = (sum(getattr(one, name) for one in tiers) for name in ("spent", "allowed", "waste"))
    count = show.count(sum(one.budgets for one in tiers), "budget")
    print(f"{run}: {count}, {spent} of {allowed} thinking tokens used{_share(spent, allowed)}, {waste} wasted")
    known = ", ".join(f"{mode or 'unknown'} {n}" for mode, n in sorted(modes.items(), key=str))
    print(f"held to it by: {known}\n")
    _print_totals("tier", tiers)
    print("\nthe newest:")
    columns = ("~attempt", "tier", "status", "mode", ">allowed", ">spent", ">over", ">wasted")
    show.print_table(columns, map(_row, uses))


def _row(use: BudgetUse) -> tuple[object, ...]:
    budget = use.budget
    status = "no reward" if use.has_failed and use.status == "succeeded" else use.status.value
    attempt = budget.attempt.partition("/")[2]
    return attempt, budget.tier, status, budget.mode, budget.allowed, budget.spent, budget.overspent, use.waste


def _print_totals(name: str, found: list[BudgetTotals]) -> None:
    columns = (name, ">n", ">failed", ">calls", ">grown", ">empty", ">allowed", ">spent", ">over", ">wasted")
    show.print_table(
        columns,
        [
            (
                one.name,
                one.budgets,
                one.failed,
                one.calls,
                one.escalations,
                one.exhausted,
                one.allowed,
                one.spent,
                one.overspent,
                one.waste,
            )
            for one in found
        ],
    )


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""
