"""`holdfast store …`: check, back up, migrate, measure, export and prune a store; OpenTelemetry; JSON Schemas."""

from __future__ import annotations

import asyncio
import difflib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import (
    DEFAULT_STORE,
    AnyProject,
    CommandSet,
    Leave,
    Limit,
    Output,
    StoreAt,
    StoreOptions,
    Text,
    classes_left,
    existing,
    needing,
    who,
    written_whole,
)
from holdfast.contracts import records
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.lines import say
from holdfast.contracts.records import PUBLISHED
from holdfast.contracts.rollout import AttemptState

if TYPE_CHECKING:
    from holdfast.collect.otlp.wire import OtelSpan
    from holdfast.contracts.rollout import Rollout
    from holdfast.store.admin import Old, Stats
    from holdfast.store.store import Store


REPORTS = {  # what --json of a command prints, where it is not a plain record
    "compat-report": ("holdfast.cli.doctor", "CompatReport"),
    "store-check": ("holdfast.store.check", "Checked"),
    "store-copy": ("holdfast.store.backup", "StoreCopy"),
    "store-export": ("holdfast.store.export", "Exported"),
    "store-migration": ("holdfast.store.admin", "Migration"),
    "store-prune": ("holdfast.store.admin", "Pruned"),
    "store-stats": ("holdfast.store.admin", "Stats"),
}
SETTINGS = "optimize-settings"


def schema(
    name: Annotated[str | None, Argument(help="One of the published names; without it they are listed.")] = None,
) -> Output:
    """Print the JSON Schema of a published record."""
    names = sorted([*PUBLISHED, *REPORTS, SETTINGS])
    if name is None:
        return Output(names, "\n".join(names))
    found = document(name, names)
    return Output(found, lambda: show.print_json(found))


def document(name: str, names: list[str]) -> dict[str, Any]:
    if name == SETTINGS:
        from holdfast.contracts.settings import OptimizeSettings

        return {"$schema": records.DIALECT, **OptimizeSettings.model_json_schema()}
    if name in REPORTS:
        module, attribute = REPORTS[name]
        return records.schema(getattr(import_module(module), attribute))
    if name in records.PUBLISHED:
        return records.schema(records.PUBLISHED[name])
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else "'holdfast store schema' lists the names"
    raise NotFound(f"schema {name!r}", why="is not published", remedy=remedy)


traces_app = CommandSet("OpenTelemetry in and out. A proxy that runs also takes spans, at POST /v1/traces.")


@traces_app.command("export")
def export_traces(
    source: Annotated[str, Argument(metavar="RUN[/NAME]", help="A run, or one rollout of it.")],
    to: Annotated[str, Option(metavar="URL|FILE", help="A collector (OTLP over HTTP), or a file.")],
    at: StoreOptions,
    header: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Sent along, as for a collector's key.")
    ] = None,
) -> Output:
    """Send the spans of every finished attempt, with the same ids each time; a file has a request of JSON a line."""
    headers, is_remote = dict(map(read_header, header or ())), to.startswith(("http://", "https://"))
    if is_remote:
        from holdfast.collect.client import checked

        checked("--to", to, example="http://127.0.0.1:4318, with --header authorization='Bearer …'")
    with needing("otlp"), at.existing() as opened:
        from holdfast.collect.otlp import conventions, wire

        rollouts = _rollouts(opened, source)
        with show.progress("exporting rollouts", None) as advance:
            spans = _spans(opened, rollouts, advance)
            if is_remote:
                taken = asyncio.run(conventions.send(to, spans, headers=headers))
            else:
                taken = 0
                with written_whole(Path(to)) as file:
                    for batch in conventions.batches(spans):
                        file.write(wire.written(batch, wire.JSON).decode() + "\n")
                        taken += len(batch)
    return Output({"to": to, "spans": taken}, f"{to}: {show.count(taken, 'span')}")


@traces_app.command("import")
def import_traces(
    file: Annotated[Path, Argument(metavar="FILE", help="Lines of OTLP's JSON, as collectors write them.")],
    at: StoreOptions,
    scrub: Annotated[
        bool, Option("--scrub/--no-scrub", help="Take secrets and personal data out of what is kept.")
    ] = True,
    leave: Leave = None,
) -> Output:
    """Import other tracers' traces from a file; each becomes a finished rollout that can be trained on."""
    if not file.is_file():
        raise BadInput(f"file {file}", why="there is none", remedy="give lines of OTLP's JSON")
    with needing("serve"), at.open() as opened:
        from holdfast.collect.otlp.take import SpanReceiver
        from holdfast.privacy.scrub import Scrub, key_in
        from holdfast.reward.turns import TurnRewards

        scrubbing = Scrub(key_in(opened.folder), leave=classes_left(leave)).span if scrub else None
        how: dict[str, Any] = {"scrub": scrubbing, "turns": TurnRewards(), "keeps_sources": True}
        taker = SpanReceiver(opened, clock=time.time, **how)
        kept, refused, why = asyncio.run(_take(file, taker))
    message = f"{file}: {show.count(kept, 'span')} kept" + (f", {refused} refused: {why}" if refused else "")
    return Output({"file": file, "kept": kept, "refused": refused, "why": why}, message, int(bool(refused)))


async def _take(file: Path, taker: Any) -> tuple[int, int, str]:
    from holdfast.collect.otlp import wire

    kept, refused, why = 0, 0, ""
    try:
        with show.progress("reading lines", None) as advance, file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    spans, unread = wire.read(line, wire.JSON, is_bounded=False)
                except BadInput as error:
                    raise BadInput(f"{file}:{number}", why=error.why, remedy="give lines of OTLP's JSON") from None
                taken = await taker.take(spans)
                kept, refused = kept + taken.kept, refused + taken.refused + unread
                why = why or taken.why or ("spans without ids or times cannot be read" if unread else "")
                advance(1)
    finally:
        await taker.close()
    return kept, refused, why


def _rollouts(store: Store, what: str) -> Iterator[Rollout]:
    from holdfast.store.store import find_rollout

    return iter([find_rollout(store, what)]) if "/" in what else store.views.every(store.runs.get(what).id)


def _spans(store: Store, rollouts: Iterator[Rollout], advance: Any) -> Iterator[OtelSpan]:
    from holdfast.collect.otlp.conventions import given

    for rollout in rollouts:
        for attempt in store.views.attempts(rollout.id):
            if attempt.status is not AttemptState.RUNNING:
                yield from given(
                    rollout, attempt, store.traces.spans(attempt.token), store.traces.breakdown(attempt.token)
                )
        advance(1)


def read_header(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise BadInput("--header", why="is not NAME=VALUE", remedy="as in --header authorization='Bearer …'")
    return name.strip(), value.strip()


app = CommandSet("Check, seal, back up, migrate, export and prune a store.")
WITNESS_S = 10.0
SealKey = Annotated[Path | None, Option(metavar="FILE", help="The key that seals the ledger; its end must be sealed.")]


@app.command()
def check(
    store: StoreAt = DEFAULT_STORE,
    quick: Annotated[bool, Option("--quick", help="Skip the comparison of indexes with tables.")] = False,
    deep: Annotated[bool, Option("--deep", help="Read every value, and compare each row with its checksum.")] = False,
    seal_key: SealKey = None,
    anchors: Annotated[
        Path | None, Option(metavar="FILE", help="A copy of ledger.anchors, or a witness's file, kept elsewhere.")
    ] = None,
) -> Output:
    """Look for damage: the file, the life cycle, the ledger's chain, the blobs. Exits 5 when there is any."""
    if quick and deep:
        raise BadInput("--deep", why="and --quick were both given", remedy="give one of them")
    if anchors is not None and not anchors.is_file():
        raise BadInput(f"--anchors {anchors}", why="there is no such file", remedy="give a copy of ledger.anchors")
    with existing(store) as opened:
        from holdfast.store import check as checks
        from holdfast.store.ledger import read_key

        key = None if seal_key is None else read_key(seal_key, apart_from=opened.folder)
        how: dict[str, Any] = {"quick": quick, "deep": deep, "sealed": checks.Sealed(key, anchors)}
        parts = []
        with show.progress("checking", len(checks.parts(opened, **how))) as advance:
            for part in checks.check(opened, **how):
                parts.append(part)
                advance(now=part.name)
        answer = checks.Checked(store=opened.url, ok=not any(part.problems for part in parts), parts=tuple(parts))
    lines = []
    for part in parts:
        lines.append(f"{part.name:<12}{'ok' if not part.problems else show.count(len(part.problems), 'problem')}")
        lines += [f"  {text}" for text in (*part.problems, *part.notes)]
    lines.append(f"{answer.store}: {'sound' if answer.ok else 'damaged; keep a copy of it before anything else'}")
    return Output(answer, "\n".join(lines), 0 if answer.ok else 5)


@app.command()
def seal(
    seal_key: Annotated[Path, Option(metavar="FILE", help="The key: 32 bytes or more, kept away from the store.")],
    store: StoreAt = DEFAULT_STORE,
    witness: Annotated[
        str | None, Option(metavar="FILE|URL", help="Also add the line to a file elsewhere, or send it there.")
    ] = None,
) -> Output:
    """Verify the ledger and seal its last entry, so that nobody without the key can write it anew unnoticed.

    With HOLDFAST_SEAL_KEY=FILE in the environment, every command seals what it adds to the ledger. 'holdfast store
    check --seal-key FILE' compares; with '--anchors FILE' also with a witness's file or a copy of ledger.anchors.
    """
    is_remote = witness is not None and witness.startswith(("http://", "https://"))
    with existing(store) as opened, show.progress("sealing", None):
        from holdfast.store.ledger import read_key

        key = read_key(seal_key, apart_from=opened.folder)
        line = opened.ledger.seal(key, None if witness is None or is_remote else Path(witness))
        if witness is not None and is_remote:
            _send(witness, line)
    seq, sha256 = line.split(" ", 2)[:2]
    payload = {"store": store, "entries": int(seq), "sha256": sha256, "witness": witness}
    at = f", also at {witness}" if witness else ""
    return Output(payload, f"{store}: sealed up to entry {seq}{at}")


def _send(url: str, line: str) -> None:
    """The line as the body of a POST; a witness answers it with a 2xx once it has it."""
    import urllib.request
    from http.client import HTTPException

    from holdfast.contracts.errors import StoreError

    try:
        request = urllib.request.Request(url, data=f"{line}\n".encode(), headers={"content-type": "text/plain"})
        with urllib.request.urlopen(request, timeout=WITNESS_S):
            return
    except (OSError, HTTPException, ValueError) as error:  # nobody is there, it answers no HTTP, or it is no address
        why, remedy = str(getattr(error, "reason", error)), "the seal itself is kept; send it again"
        raise StoreError(f"witness {url}", why=why, remedy=remedy) from error


@app.command()
def backup(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A new folder; nothing of a store may be there.")],
    store: StoreAt = DEFAULT_STORE,
) -> Output:
    """Copy the store, its weights, reports and keys to a folder, while it is in use, and check the copy.

    The copy is a store: 'holdfast store check --store FOLDER/store.sqlite' checks it, 'holdfast store restore FOLDER'
    puts it back. Keep it as private as the store: it holds scrub.key.
    """
    return _copied(store, str(folder / Path(store).name))


@app.command()
def restore(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="What 'holdfast store backup' wrote.")],
    store: StoreAt = DEFAULT_STORE,
) -> Output:
    """Copy a backup to where the store was; a store that is still there has to be moved away first."""
    return _copied(str(folder / Path(store).name), store)


def _copied(source: str, target: str) -> Output:
    with existing(source) as opened, show.progress("copying files", None) as advance:
        from holdfast.store import check as checks
        from holdfast.store.backup import copy_store

        made = copy_store(opened, target, advance=advance)
    with existing(target) as opened, show.progress("checking the copy", None):
        problems = [problem for part in checks.check(opened) for problem in part.problems]
    held = f"{show.count(made.files, 'file')} and the database, {show.size(made.bytes)}"
    state = "sound" if not problems else f"damaged; look at what it was made of: holdfast store check --store {source}"
    lines = [*problems, f"{made.copy}: {held}, the ledger up to entry {made.ledger_entries}; {state}"]
    return Output(made, "\n".join(lines), 5 if problems else 0)


@app.command()
def migrate(store: StoreAt = DEFAULT_STORE) -> Output:
    """Migrate a store to this version's schema."""
    from holdfast.store import admin

    with show.progress("migrating", None):
        done = admin.migrate(store)
    is_same = done.before == done.after
    message = f"{done.after} already, nothing to do" if is_same else f"{done.before} → {done.after}"
    return Output(done, f"{done.store}: schema {message}")


@app.command()
def stats(store: StoreAt = DEFAULT_STORE, project: AnyProject = None, limit: Limit = 20) -> Output:
    """Count rows, bytes on disk, and the rollouts of the newest runs."""
    with existing(store) as opened:
        from holdfast.store import admin

        with show.progress("counting", None):
            found = admin.stats(opened, project=project, most=limit)
    return Output(found, _stats_lines(found))


def _stats_lines(stats: Stats) -> Iterator[Text]:
    free = f", {show.size(stats.bytes_free)} of it free" if stats.bytes_free else ""
    yield f"{stats.store}: schema {stats.schema}, {show.size(stats.bytes_database)}{free}"
    yield f"blobs: {show.size(stats.bytes_blobs)}\n"
    yield show.table(("table", ">rows"), stats.rows.items())
    if stats.runs:
        states = [state for state in stats.runs[0].rollouts if any(run.rollouts[state] for run in stats.runs)]
        rows = [(run.run, run.project, run.state, *(run.rollouts[state] for state in states)) for run in stats.runs]
        yield from ("", show.table(("run", "~project", "state", *(f">{state}" for state in states)), rows))


class ExportAs(StrEnum):
    """What an export writes: all records of the store, or those that learning reads and makes of one run."""

    RECORDS = "records"
    TRAJECTORIES = "trajectories"
    ADVANTAGES = "advantages"


@app.command()
def export(
    only: Annotated[str | None, Argument(metavar="RUN", help="Only this run, as with --run.")] = None,
    kind: Annotated[ExportAs, Option("--as", help="Of one run: what is learnt from, or with which weights.")] = (
        ExportAs.RECORDS
    ),
    store: StoreAt = DEFAULT_STORE,
    output: Annotated[Path | None, Option(metavar="FILE", help="Written aside, then renamed; else stdout.")] = None,
    project: AnyProject = None,
    run: Annotated[str | None, Option(metavar="RUN", help="Only this run, of the project or of 'default'.")] = None,
    json: Annotated[bool, Option("--json", help="With --output: print the counts as JSON.")] = False,
) -> None:
    """Write every record as JSON lines, all from one snapshot.

    With --as, the trajectories or advantage batches of a run, one published record a line:
    'holdfast store schema trajectory' and 'holdfast store schema advantage-batch' describe them.
    """
    if only is not None and run not in (None, only):
        raise BadInput(f"--run {run}", why=f"another run, {only}, was named too", remedy="name one of the two")
    run = only or run
    if kind is not ExportAs.RECORDS and run is None:
        remedy = f"name it: holdfast store export RUN --as {kind}"
        raise BadInput(f"--as {kind}", why="these are of one run", remedy=remedy)
    with existing(store, project or "default") as opened:
        from holdfast.store.export import Exported

        if run is not None:
            run, project = opened.runs.get(run).id, opened.project
        left_out: dict[str, int] = {}

        def write(file: TextIO) -> dict[str, int]:
            if kind is ExportAs.RECORDS or run is None:
                return _export(opened, file, project, run)
            return _export_learning(opened, file, run, kind, left_out)

        if output is None:
            write(sys.stdout)
            return
        with written_whole(output) as file:
            lines = write(file)
    if json:
        show.print_json(Exported(output=str(output), lines=lines, left_out=left_out))
    else:
        print(f"{output}: " + ", ".join(f"{n} {kind}" for kind, n in lines.items()))


def _export_learning(store: Store, file: TextIO, run: str, kind: str, left_out: dict[str, int]) -> dict[str, int]:
    """Writes the records and counts them; rollouts without one are counted in `left_out` and told on stderr."""
    with needing("learn"):
        from holdfast.pipeline.trajectories import RECORDS, lines

        reasons, written = Counter[str](), 0
        for line in lines(store, run, kind, reasons):
            file.write(line)
            written += 1
    left_out |= {str(reason): n for reason, n in reasons.most_common()}
    message = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in left_out.items())
    if not written:
        why = f"has no {kind}" + (f": {message}" if message else ", and no rollouts")
        raise NotFound(f"run {run}", why=why, remedy=f"'holdfast run rollouts {run}' lists what it did")
    if message:
        say(f"left out: {message}")
    return {RECORDS[kind][0]: written}


def _export(store: Store, file: TextIO, project: str | None, run: str | None) -> dict[str, int]:
    from holdfast.store import export as exports

    total = exports.rollouts(store) if project is None and run is None else None
    with show.progress("exporting rollouts", total) as advance:
        return exports.export(
            store, file.write, version=version("holdfast"), now=time.time(), project=project, run=run, done=advance
        )


@app.command()
def prune(
    older_than: Annotated[float, Option(metavar="DAYS", min=0, help="Runs that ended longer ago than this.")],
    at: StoreOptions,
    yes: Annotated[bool, Option("--yes", help="Really remove them; without it they are only listed.")] = False,
) -> Output:
    """Remove finished runs with all their rollouts; never a running one, never the ledger."""
    with at.existing() as opened:
        from holdfast.store.admin import Pruned, old_runs

        before = time.time() - older_than * 86_400
        old = old_runs(opened, before=before)
        if yes:
            _remove(opened, old)
        answer = Pruned(store=opened.url, project=at.project, before=before, removed=yes, runs=tuple(old))
    if not old:
        none = f"no finished runs in project {at.project} ended more than {older_than:g} days ago: nothing to remove"
        return Output(answer, none)
    rows = [(one.run, one.state, show.local_time(one.ended_at), one.rollouts) for one in old]
    removed = "removed; the ledger keeps a note, and the room they took is used again"
    done = f"{show.count(len(old), 'run')} {removed if yes else 'would go; add --yes to remove them'}"
    return Output(answer, [show.table(("run", "state", "ended", ">rollouts"), rows), done])


def _remove(store: Store, old: list[Old]) -> None:
    from holdfast.store.admin import prune

    with show.progress("removing rollouts", sum(one.rollouts for one in old)) as advance:
        for one in old:
            began = time.monotonic()
            for removed in prune(store, one, who=who(), now=time.time()):
                advance(removed, now=one.run)
                time.sleep(time.monotonic() - began)  # as long as the piece took: half of the time is the workers'
                began = time.monotonic()
