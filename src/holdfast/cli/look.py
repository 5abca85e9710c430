"""Looking at a store: runs, rollouts, spans, the ledger, workers; pages for 80 columns, or JSON. Nothing changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, RolloutText, RunText, StoreAt, existing
from holdfast.contracts.rollout import OutcomeKind, RolloutState, Split, outcome_kind
from holdfast.contracts.run import DesiredState, RunState
from holdfast.contracts.task import asked_of
from holdfast.contracts.trace import SpanKind

if TYPE_CHECKING:
    from holdfast.contracts.rollout import Attempt, Rollout
    from holdfast.contracts.run import RunRecord
    from holdfast.contracts.trace import Span
    from holdfast.store.store import Store

TRACEBACK = "traceback"  # the attribute of a span that ended by an exception
SILENT_S = 60.0  # a process that drives or works beats far more often


def runs(
    status: Annotated[RunState | None, typer.Option(help="Only those in this state.")] = None,
    limit: Limit = 20,
    after: Annotated[str | None, typer.Option(metavar="RUN", help="Begin behind this one.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """List the runs, newest first."""
    with existing(store, project) as opened:
        found = list(islice(_runs(opened, status, after), limit + 1))
        page = found[:limit]
        if json:
            show.print_records(page)
        elif page:
            show.print_table(*_run_table(opened, page))
        else:
            what = f"no {status} runs" if status else "no runs yet" if after is None else "no more runs"
            print(f"{what} in project {project}; to begin one: holdfast optimize --config FILE --store {opened.url}")
        if len(found) > limit:
            show.next_page("runs", quiet=json, status=status, limit=limit, after=page[-1].id, **_where(store, project))


def _runs(store: Store, status: RunState | None, after: str | None) -> Iterator[RunRecord]:
    last = None if after is None else store.runs.get(after).id
    while page := store.runs.newest(most=100, before=last):
        yield from (run for run in page if status in (None, run.state))
        last = page[-1].id


def _run_table(store: Store, page: list[RunRecord]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """What came of the rollouts is never left out on a narrow terminal; what was not checked has a column if needed."""
    found = [(run, store.views.outcomes(run.id)) for run in page]
    is_unchecked = any(outcomes[OutcomeKind.NOT_CHECKED] for _, outcomes in found)
    titles = (">right", ">wrong", *((">unchecked",) if is_unchecked else ()), ">failed")
    columns = ("run", "state", ">done", *titles, "?started", "?>took", "~model")
    return columns, [_run_row(store, run, outcomes, is_unchecked) for run, outcomes in found]


def _run_row(
    store: Store, run: RunRecord, outcomes: Mapping[OutcomeKind, int], is_unchecked: bool
) -> tuple[object, ...]:
    counts = store.views.counts(run.id)
    every, done = sum(counts.values()), sum(outcomes.values())
    bad = counts[RolloutState.FAILED] + counts[RolloutState.DEAD]
    middle = (outcomes[OutcomeKind.NOT_CHECKED],) if is_unchecked else ()
    now = time.time()
    state = str(run.state)
    if run.state is RunState.RUNNING and now - run.beat_at > SILENT_S:
        state = f"silent {show.span_of_time(now - run.beat_at)}"
    elif run.state is RunState.RUNNING and run.wanted is not DesiredState.RUNNING:
        state = f"running, {run.wanted}"
    took = show.span_of_time((run.ended_at or now) - run.created_at)
    came = (outcomes[OutcomeKind.RIGHT], outcomes[OutcomeKind.WRONG], *middle, bad)
    return run.id, state, f"{done}/{every}", *came, show.moment(run.created_at)[5:16], took, run.model_ref


def rollouts(
    run: RunText,
    outcome: Annotated[OutcomeKind | None, typer.Option(help="Only those of which this came.")] = None,
    status: Annotated[RolloutState | None, typer.Option(help="Only those with this status.")] = None,
    split: Annotated[Split | None, typer.Option(help="Only those of this split.")] = None,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(metavar="NAME", help="Begin behind this one.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """List the rollouts of a run, in the order they were queued."""
    with existing(store, project) as opened:
        from holdfast.store.find import full_name

        run = opened.runs.get(run).id
        last = None if after is None else full_name(opened, run, after.removeprefix(f"{run}/"))
        found = opened.views.rollouts(run, most=limit + 1, after=last, status=status, split=split, outcome=outcome)
        page = found[:limit]
        if json:
            show.print_records(page)
        else:
            if after is None:
                print(_summary(opened, run))
            if page:
                columns = ("~name", "outcome", "status", "?split", "?>tries", ">reward", "?>took", "~prompt or reason")
                show.print_table(columns, map(_rollout_row, page))
            else:
                print(f"no {'more ' if after else ''}rollouts that fit")
        if len(found) > limit:
            given = {"outcome": outcome, "status": status, "split": split, "limit": limit, "after": page[-1].name}
            show.next_page("rollouts", run, quiet=json, **given, **_where(store, project))


def _summary(store: Store, run: str) -> str:
    counts = {state: n for state, n in store.views.counts(run).items() if n}
    parts = [f"{n} {state}" for state, n in counts.items()]
    came = [f"{n} {_plain(kind)}" for kind, n in store.views.outcomes(run).items() if n]
    lines = [f"{run}: {show.count(sum(counts.values()), 'rollout')}"]
    lines += [f"{title}: {', '.join(said)}" for title, said in (("outcome", came), ("status", parts)) if said]
    for split, rewards in store.views.rewards(run).items():
        if rewards.mean_reward is not None:
            lines.append(f"reward {split}: mean {rewards.mean_reward:.4g} over {rewards.rewarded} of {rewards.total}")
    return "\n".join(lines)


def _rollout_row(rollout: Rollout) -> tuple[object, ...]:
    end, begin = rollout.ended_at, rollout.started_at
    took = show.span_of_time(end - begin) if end is not None and begin is not None else "-"
    kind = outcome_kind(rollout.status, rollout.outcome)
    return (
        rollout.name,
        None if kind is None else _plain(kind),
        rollout.status,
        rollout.split,
        f"{_costly(rollout)}/{rollout.max_attempts}",
        rollout.reward,
        took,
        rollout.reason or asked_of(rollout.input),
    )


def _plain(kind: OutcomeKind) -> str:
    return kind.replace("_", " ")


def _ended(rollout: Rollout) -> str:
    """What came of it, and its status where that says something else."""
    kind = outcome_kind(rollout.status, rollout.outcome)
    if kind is None or kind is OutcomeKind.FAILED:
        return str(rollout.status)
    return f"{_plain(kind)} ({rollout.status})"


def _costly(rollout: Rollout) -> int:
    """Tries that came to nothing, and the one that runs or succeeded: what was handed back unharmed costs none."""
    return rollout.faults + (rollout.status in (RolloutState.RUNNING, RolloutState.SUCCEEDED))


def spans(
    rollout: RolloutText,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of this try; else of the deciding one.")
    ] = None,
    kind: Annotated[SpanKind | None, typer.Option(help="Only spans of this kind.")] = None,
    limit: Limit = 50,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Begin behind this one.")] = 0,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Show what happened in one attempt at a rollout."""
    with existing(store, project) as opened:
        from holdfast.store.find import find_rollout

        found = find_rollout(opened, rollout)
        one = _attempt(opened, found, attempt)
        recorded = [] if one is None else opened.traces.spans(one.token)
        fitting = [span for span in recorded if span.seq > after and kind in (None, span.kind)]
        page = fitting[:limit]
        if json:
            show.print_records(page)
        else:
            if not after:
                _print_attempt(opened, found, one)
            if page:
                depths = _depths(recorded)
                show.print_table(
                    (">seq", "kind", "~name", ">took", "~what"), [_span_row(s, depths[s.seq]) for s in page]
                )
                _print_tracebacks(page)
            elif one is not None:
                print("no spans that fit" if recorded else "no spans were recorded")
        if len(fitting) > limit and one is not None:
            given = {"attempt": one.number, "kind": kind, "limit": limit, "after": page[-1].seq}
            show.next_page("spans", found.id, quiet=json, **given, **_where(store, project))


def _attempt(store: Store, rollout: Rollout, number: int | None) -> Attempt | None:
    """The attempt asked for, else the one that decided the rollout, else the last."""
    from holdfast.contracts.errors import NotFound

    tries = store.views.attempts(rollout.id)
    if number is not None:
        for attempt in tries:
            if attempt.number == number:
                return attempt
        raise NotFound(f"attempt {number} of {rollout.id}", why=f"it has {len(tries)}", remedy="leave --attempt out")
    decided = [attempt for attempt in tries if attempt.id == rollout.final_attempt]
    return next(iter(decided or tries[-1:]), None)


def _print_attempt(store: Store, rollout: Rollout, attempt: Attempt | None) -> None:
    print(f"{rollout.id}: {_ended(rollout)}" + (f", {show.one_line(rollout.reason)}" if rollout.reason else ""))
    if attempt is None:
        print("nobody has tried it yet")
        return
    ended = f": {show.one_line(attempt.error)}" if attempt.error else ""
    print(f"attempt {attempt.number} of {rollout.attempt_count} by {attempt.worker}, {attempt.status}{ended}")
    for signal in store.traces.sheet(attempt.token).signals:
        words = f": {show.one_line(signal.feedback)}" if signal.feedback else ""
        print(f"reward {signal.name} = {signal.value:.4g} × {signal.weight:.4g} ({signal.source}){words}")
    output = store.views.output(attempt)
    if output is not None:
        print(f"output {show.one_line(output)}")


def _depths(recorded: list[Span]) -> dict[int, int]:
    depths: dict[int, int] = {}
    for span in recorded:
        depths[span.seq] = depths.get(span.parent, -1) + 1 if span.parent is not None else 0
    return depths


def _span_row(span: Span, depth: int) -> tuple[object, ...]:
    if span.model is not None:
        what: object = _said(span.model.response)
    elif span.tool is not None:
        what = f"{show.pairs(span.tool.arguments)} → {show.one_line(span.tool.error or span.tool.result)}"
    else:
        what = span.attributes.get("text") or show.pairs({**span.attributes, TRACEBACK: None})
    took = "open" if span.ended_at is None else show.span_of_time(span.ended_at - span.started_at)
    return span.seq, span.kind, "· " * depth + span.name, took, what


def _print_tracebacks(page: list[Span]) -> None:
    """Whole and as they are: where an agent failed is what its author came to see."""
    for span in page:
        text = span.attributes.get(TRACEBACK)
        if isinstance(text, str):
            print(f"\n{span.seq} {show.one_line(span.name)}:")
            print("\n".join(show.printable(line) for line in text.splitlines()))


def _said(response: Mapping[str, Any]) -> str:
    """What the model answered: its text, the calls it asks for, or at least what it thought."""
    calls = [call.get("function", {}) for call in response.get("tool_calls") or ()]
    parts = [str(response.get("content") or "")]
    parts += [f"→ {function.get('name')} {function.get('arguments')}" for function in calls]
    if thought := response.get("reasoning_content"):
        parts.append(f"(thought: {thought})")
    return " ".join(filter(None, parts))


def ledger(
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only entries about this run, pruned ones included.")
    ] = None,
    limit: Limit = 50,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Begin behind this one.")] = 0,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """List who decided what, oldest first."""
    with existing(store, project) as opened:
        run = opened.runs.get(run).id if run is not None else None
        entries = (entry for entry in opened.ledger.entries(run=run) if entry.seq > after)
        found = list(islice(entries, limit + 1))
        page = found[:limit]
        if json:
            show.print_records(page)
        elif page:
            columns = (">seq", "at", "kind", "who", "run", "~what")
            rows = [(e.seq, show.moment(e.at), e.kind, e.who, e.run, show.pairs(e.body)) for e in page]
            show.print_table(columns, rows)
        else:
            more = "more " if after else ""
            print(f"no {more}entries in project {project}; a run makes the first: holdfast optimize --help")
        if len(found) > limit:
            show.next_page("ledger", quiet=json, run=run, limit=limit, after=page[-1].seq, **_where(store, project))


def workers(
    limit: Limit = 50, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """List the processes that work, or worked, on rollouts, newest first."""
    with existing(store, project) as opened:
        found = opened.workers.newest(limit)
        if json:
            show.print_records(found)
        elif found:
            now = time.time()
            rows = []
            for one in found:
                quiet = show.span_of_time(now - one.beat_at)
                state = (
                    "stopped" if one.stopped_at else f"silent {quiet}" if now - one.beat_at > SILENT_S else "working"
                )
                rows.append((one.id, state, one.slots, one.host, one.pid, show.moment(one.started_at), quiet))
            show.print_table(("~worker", "state", ">slots", "~host", ">pid", "started", ">last beat"), rows)
        else:
            print(f"no workers yet in project {project}; a run brings its own: holdfast optimize --help")


def _where(store: str, project: str) -> dict[str, object]:
    """The options that lead to the same store, when they are not the defaults."""
    return {
        "store": None if store == DEFAULT_STORE else store,
        "project": None if project == "default" else project,
    }
