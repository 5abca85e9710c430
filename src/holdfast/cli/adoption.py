"""`holdfast adoption`: whether tools are used where tasks need them, from the spans of stored attempts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing

if TYPE_CHECKING:
    from holdfast.contracts.rollout import Rollout
    from holdfast.reward.tools import AdoptionRate, AdoptionRow, ToolAttempt
    from holdfast.store.store import Store

PAGE = 500
ROOM = 12  # letters of a version beside a tool
EPILOG = """Rates are of tasks, never of calls: adopted, of tasks that need the tool, are those whose first call of it
was well formed; overused, of tasks that do not need it, those that called it; formed and worked, of those that called
it; mended, of those in which it failed. In brackets, the 95 % interval.

What a task needs is said by its "needs": a list of tools, empty for none."""


class By(StrEnum):
    TOOL = "tool"
    VERSION = "version"
    DAY = "day"


KEYS = {None: ("tool", "model", "version"), By.TOOL: ("tool",), By.VERSION: ("model", "version"), By.DAY: ("window",)}


def adoption(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Ids, or the beginnings of them.")] = None,
    by: Annotated[By | None, typer.Option("--by", help="Take together all but this.")] = None,
    newest: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="How many of the newest runs, where none is named.")
    ] = 10,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Show how far tools are adopted where they are needed; without a run, in the newest ones."""
    from holdfast.prove.estimate import wilson
    from holdfast.reward.tools import adoption_rates

    with existing(store, project) as opened:
        named = (
            [opened.runs.get(run).id for run in runs] if runs else [run.id for run in opened.runs.newest(most=newest)]
        )
        records = [record for run in dict.fromkeys(named) for record in _records(opened, run)]
    found = adoption_rates(records, wilson, by=KEYS[by])
    if json:
        from holdfast.contracts.records import encode

        show.print_json({"runs": named, "attempts": len(records), "rows": [encode(row) for row in found]})
    elif not found:
        print('no decided attempt called a tool, was offered one or needed one; tasks say so by "tools" and "needs"')
    else:
        models = {row.model for row in found if row.model is not None}
        of = f", all of {models.pop()}" if len(models) == 1 else ""
        print(f"{show.count(len(records), 'attempt')} in {show.count(len(set(named)), 'run')}{of}")
        _print(found, tuple(key for key in KEYS[by] if key != "model" or not of))


def _records(store: Store, run: str) -> Iterator[ToolAttempt]:
    """Of the attempts that decided their rollouts."""
    from holdfast.operate.look.lessons import catalog, record

    tools = catalog(store, run)
    with show.progress("reading rollouts", None) as advance:
        for rollout in _rollouts(store, run):
            advance()
            experience = store.experiences.one(rollout.id) if rollout.final_attempt is not None else None
            if experience is not None:
                yield record(rollout, experience.spans, tools)


def _rollouts(store: Store, run: str) -> Iterator[Rollout]:
    last = None
    while page := store.views.rollouts(run, most=PAGE, after=last):
        yield from page
        last = page[-1].name


def _print(found: tuple[AdoptionRow, ...], keys: tuple[str, ...]) -> None:
    titles = {"tool": "tool", "model": "~model", "version": "~version", "window": "day"}
    columns = [*(titles[key] for key in keys), ">need", ">adopted", "", ">overused", ">formed", ">worked", ">mended"]
    show.print_table(columns, [(*(_key(row, key) for key in keys), *_cells(row)) for row in found])


def _key(row: AdoptionRow, key: str) -> object:
    value = getattr(row, key)
    if key == "version" and value is not None and row.tool is not None and len(value) > ROOM:
        return f"…{value[1 - ROOM :]}"  # versions of one run differ at their ends
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d}" if key == "window" else value


def _cells(row: AdoptionRow) -> tuple[object, ...]:
    adopted = row.adoption
    sure = f"[{100 * adopted.interval.low:.0f}-{100 * adopted.interval.high:.0f}]" if adopted.of else "-"
    rest = (row.overuse, row.formed, row.worked, row.mended)
    return adopted.of, _percent(adopted), sure, *map(_percent, rest)


def _percent(rate: AdoptionRate) -> str:
    return "-" if rate.share is None else f"{100 * rate.share:.0f} %"
