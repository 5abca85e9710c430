"""`holdfast store …`: is it sound, how big is it, bring it up to date, write it out, remove what is old."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, AnyProject, Json, Limit, Project, StoreAt, existing, who

if TYPE_CHECKING:
    from holdfast.store.admin import Old
    from holdfast.store.store import Store

app = typer.Typer(help="Look after a store.", add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.command()
def check(
    store: StoreAt = DEFAULT_STORE,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the comparison of indexes with tables.")] = False,
    json: Json = False,
) -> None:
    """Look for damage: the file, the life cycle, the ledger's chain, the blobs. Exits 5 when there is any."""
    with existing(store) as opened:
        from holdfast.contracts.records import encode
        from holdfast.store import check as checks

        found = []
        with show.progress("checking", len(checks.parts(opened))) as advance:
            for part in checks.check(opened, quick=quick):
                found.append(part)
                advance(now=part.name)
        answer = checks.Checked(store=opened.url, ok=not any(part.problems for part in found), parts=tuple(found))
    if json:
        show.print_json(encode(answer))
    else:
        for part in found:
            print(f"{part.name:<12}{'ok' if not part.problems else show.count(len(part.problems), 'problem')}")
            for problem in part.problems:
                print(f"  {problem}")
        print(f"{answer.store}: {'sound' if answer.ok else 'damaged; keep a copy of it before anything else'}")
    if not answer.ok:
        raise typer.Exit(5)


@app.command()
def migrate(store: StoreAt = DEFAULT_STORE, json: Json = False) -> None:
    """Bring a store to this version's schema."""
    from holdfast.contracts.records import encode
    from holdfast.store import admin

    with show.progress("migrating", None):
        done = admin.migrate(store)
    if json:
        show.print_json(encode(done))
    elif done.before == done.after:
        print(f"{done.store}: schema {done.after} already, nothing to do")
    else:
        print(f"{done.store}: schema {done.before} → {done.after}")


@app.command()
def stats(store: StoreAt = DEFAULT_STORE, project: AnyProject = None, limit: Limit = 20, json: Json = False) -> None:
    """Count rows, bytes on disk, and the rollouts of the newest runs."""
    with existing(store) as opened:
        from holdfast.contracts.records import encode
        from holdfast.store import admin

        with show.progress("counting", None):
            found = admin.stats(opened, project=project, most=limit)
    if json:
        show.print_json(encode(found))
        return
    free = f", {show.size(found.bytes_free)} of it free" if found.bytes_free else ""
    print(f"{found.store}: schema {found.schema}, {show.size(found.bytes_database)}{free}")
    print(f"blobs: {show.size(found.bytes_blobs)}\n")
    show.print_table(("table", ">rows"), found.rows.items())
    if found.runs:
        states = [state for state in found.runs[0].rollouts if any(run.rollouts[state] for run in found.runs)]
        print()
        rows = [(one.run, one.project, one.state, *(one.rollouts[state] for state in states)) for one in found.runs]
        show.print_table(("run", "~project", "state", *(f">{state}" for state in states)), rows)


@app.command()
def export(
    store: StoreAt = DEFAULT_STORE,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Written aside, then renamed; else stdout.")
    ] = None,
    project: AnyProject = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only this run, of the project or of 'default'.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --output: print the counts as JSON.")] = False,
) -> None:
    """Write every record as lines of JSON, all from one moment."""
    with existing(store, project or "default") as opened:
        from holdfast.cli.files import written_whole
        from holdfast.contracts.records import encode
        from holdfast.store.export import Exported

        if run is not None:
            run, project = opened.runs.get(run).id, opened.project
        if output is None:
            _export(opened, sys.stdout, project, run)
            return
        with written_whole(output) as file:
            lines = _export(opened, file, project, run)
    if json:
        show.print_json(encode(Exported(output=str(output), lines=lines)))
    else:
        print(f"{output}: " + ", ".join(f"{n} {kind}" for kind, n in lines.items()))


def _export(store: Store, file: TextIO, project: str | None, run: str | None) -> dict[str, int]:
    from importlib.metadata import version

    from holdfast.store import export as exports

    total = exports.rollouts(store) if project is None and run is None else None
    with show.progress("exporting rollouts", total) as advance:
        return exports.export(
            store,
            file.write,
            version=version("holdfast"),
            now=time.time(),
            project=project,
            run=run,
            done=advance,
        )


@app.command()
def prune(
    older_than: Annotated[float, typer.Option(metavar="DAYS", min=0, help="Runs that ended longer ago than this.")],
    yes: Annotated[bool, typer.Option("--yes", help="Really remove them; without it they are only listed.")] = False,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Remove finished runs with all their rollouts; never a running one, never the ledger."""
    with existing(store, project) as opened:
        from holdfast.contracts.records import encode
        from holdfast.store.admin import Pruned, old_runs

        before = time.time() - older_than * 86_400
        old = old_runs(opened, before=before)
        if yes:
            _remove(opened, old)
        answer = Pruned(store=opened.url, project=project, before=before, removed=yes, runs=tuple(old))
    if json:
        show.print_json(encode(answer))
        return
    if not old:
        print(f"no finished runs in project {project} ended more than {older_than:g} days ago: nothing to remove")
        return
    show.print_table(
        ("run", "state", "ended", ">rollouts"), [(o.run, o.state, show.moment(o.ended_at), o.rollouts) for o in old]
    )
    done = (
        "removed; the ledger keeps a note, and the room they took is used again"
        if yes
        else "would go; add --yes to remove them"
    )
    print(f"{show.count(len(old), 'run')} {done}")


def _remove(store: Store, old: list[Old]) -> None:
    from holdfast.store.admin import prune

    with show.progress("removing rollouts", sum(one.rollouts for one in old)) as advance:
        for one in old:
            began = time.monotonic()
            for removed in prune(store, one, who=who(), now=time.time()):
                advance(removed, now=one.run)
                time.sleep(time.monotonic() - began)  # as long as the piece took: half of the time is the workers'
                began = time.monotonic()
