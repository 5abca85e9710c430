"""Reading a store: runs, rollouts, spans, workers, the ledger, data quality, thinking budgets, tool adoption."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import Limit, Output, RolloutText, RunText, StoreOptions, Text
from holdfast.contracts.errors import NotFound
from holdfast.contracts.lines import printable
from holdfast.contracts.rollout import OutcomeKind, RolloutState, Split, outcome_kind
from holdfast.contracts.run import DesiredState, RunState
from holdfast.contracts.task import asked_of
from holdfast.contracts.trace import SpanKind

if TYPE_CHECKING:
    from holdfast.contracts.rollout import Attempt, Rollout
    from holdfast.contracts.run import RunRecord
    from holdfast.contracts.trace import Span
    from holdfast.learn.quality import QualityReport, Standards
    from holdfast.reward.tools import AdoptionRate, AdoptionRow, ToolAttempt
    from holdfast.store.budgets import BudgetTotals, BudgetUse
    from holdfast.store.store import Store


TRACEBACK = "traceback"  # the attribute of a span that ended by an exception
SILENT_S = 60.0  # a process that drives or works beats far more often


def runs(
    at: StoreOptions,
    status: Annotated[RunState | None, Option(help="Only those in this state.")] = None,
    limit: Limit = 20,
    after: Annotated[str | None, Option(metavar="RUN", help="Begin behind this one.")] = None,
) -> Output:
    """List the runs, newest first."""
    with at.existing() as opened:
        found = list(islice(_runs(opened, status, after), limit + 1))
        if not found:
            what = f"no {status} runs" if status else "no runs yet" if after is None else "no more runs"
            begin = f"to begin one: holdfast run start --config FILE --store {opened.url}"
            return Output([], f"{what} in project {at.project}; {begin}")
        page = found[:limit]
        table = show.table(*_run_table(opened, page))
    following = {"status": status, "limit": limit, "after": page[-1].id}
    return Output(page, table, more=_more(at, len(found) > limit, "run list", **following))


def _more(at: StoreOptions, is_more: bool, command: str, *words: str, **options: object) -> str:
    """The command that shows the next page, if there is one."""
    return f"{show.next_page(command, *words, **options)}{at}" if is_more else ""


def _runs(store: Store, status: RunState | None, after: str | None) -> Iterator[RunRecord]:
    last = None if after is None else store.runs.get(after).id
    while page := store.runs.newest(most=100, before=last):
        yield from (run for run in page if status in (None, run.state))
        last = page[-1].id


def _run_table(store: Store, page: list[RunRecord]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Builds the table of runs. A narrow terminal still shows the outcomes; unchecked ones get a column if needed."""
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
    return run.id, state, f"{done}/{every}", *came, show.local_time(run.created_at)[5:16], took, run.model_ref


def rollouts(
    run: RunText,
    at: StoreOptions,
    outcome: Annotated[OutcomeKind | None, Option(help="Only those of which this came.")] = None,
    status: Annotated[RolloutState | None, Option(help="Only those with this status.")] = None,
    split: Annotated[Split | None, Option(help="Only those of this split.")] = None,
    limit: Limit = 50,
    after: Annotated[str | None, Option(metavar="NAME", help="Begin behind this one.")] = None,
) -> Output:
    """List the rollouts of a run, in the order they were queued."""
    with at.existing() as opened:
        from holdfast.store.store import full_name

        run = opened.runs.get(run).id
        last = None if after is None else full_name(opened, run, after.removeprefix(f"{run}/"))
        found = opened.views.rollouts(run, most=limit + 1, after=last, status=status, split=split, outcome=outcome)
        summary = "" if after is not None else _summary(opened, run)
    page, is_more = found[:limit], len(found) > limit
    if not page:
        none = f"no {'more ' if after else ''}rollouts that fit"
        return Output([], f"{summary}\n{none}" if summary else none)
    following = {"outcome": outcome, "status": status, "split": split, "limit": limit, "after": page[-1].name}
    columns = ("~name", "outcome", "status", "?split", "?>tries", ">reward", "?>took", "~prompt or reason")
    shown: list[Text] = [*([summary] if summary else []), show.table(columns, map(_rollout_row, page))]
    return Output(page, shown, more=_more(at, is_more, "run rollouts", run, **following))


def _summary(store: Store, run: str) -> str:
    counts = {state: n for state, n in store.views.counts(run).items() if n}
    parts = [f"{n} {state}" for state, n in counts.items()]
    came = [f"{n} {_plain(kind)}" for kind, n in store.views.outcomes(run).items() if n]
    lines = [f"{run}: {show.count(sum(counts.values()), 'rollout')}"]
    lines += [f"{title}: {', '.join(lines)}" for title, lines in (("outcome", came), ("status", parts)) if lines]
    for split, rewards in store.views.rewards(run).items():
        if rewards.mean_reward is not None:
            lines.append(f"reward {split}: mean {rewards.mean_reward:.4g} over {rewards.rewarded} of {rewards.total}")
    return "\n".join(lines)


def _rollout_row(rollout: Rollout) -> tuple[object, ...]:
    end, begin = rollout.ended_at, rollout.started_at
    took = show.span_of_time(end - begin) if end is not None and begin is not None else "-"
    kind = outcome_kind(rollout.status, rollout.outcome)
    # Tries that came to nothing, and the one that runs or succeeded: what was handed back unharmed costs none.
    tries = rollout.faults + (rollout.status in (RolloutState.RUNNING, RolloutState.SUCCEEDED))
    said, came = rollout.reason or asked_of(rollout.input), None if kind is None else _plain(kind)
    counted = f"{tries}/{rollout.max_attempts}"
    return rollout.name, came, rollout.status, rollout.split, counted, rollout.reward, took, said


def _plain(kind: OutcomeKind) -> str:
    return kind.replace("_", " ")


def _ended(rollout: Rollout) -> str:
    """Names the outcome of a rollout, and its status where that differs."""
    kind = outcome_kind(rollout.status, rollout.outcome)
    if kind is None or kind is OutcomeKind.FAILED:
        return str(rollout.status)
    return f"{_plain(kind)} ({rollout.status})"


def spans(
    rollout: RolloutText,
    at: StoreOptions,
    attempt: Annotated[int | None, Option(metavar="N", min=1, help="Of this try; else of the deciding one.")] = None,
    kind: Annotated[SpanKind | None, Option(help="Only spans of this kind.")] = None,
    limit: Limit = 50,
    after: Annotated[int, Option(metavar="SEQ", min=0, help="Begin behind this one.")] = 0,
) -> Output:
    """Show what happened in one attempt at a rollout."""
    with at.existing() as opened:
        from holdfast.operate.conversation import shown_attempt
        from holdfast.store.store import find_rollout

        found = find_rollout(opened, rollout)
        one = shown_attempt(found, opened.views.attempts(found.id), attempt)
        recorded = [] if one is None else opened.traces.spans(one.token)
        fitting = [span for span in recorded if span.seq > after and kind in (None, span.kind)]
        lines = [] if after else list(_attempt_lines(opened, found, one))
    page = fitting[:limit]
    if one is None or not page:
        none = [] if one is None else ["no spans that fit" if recorded else "no spans were recorded"]
        return Output(page, "\n".join([*lines, *none]))
    following = {"attempt": one.number, "kind": kind, "limit": limit, "after": page[-1].seq}
    more = _more(at, len(fitting) > limit, "run spans", found.id, **following)
    depths = _depths(recorded)
    rows = [_span_row(span, depths[span.seq]) for span in page]
    table = show.table((">seq", "kind", "~name", ">took", "~what"), rows)
    return Output(page, [*lines, table, *_tracebacks(page)], more=more)


def _attempt_lines(store: Store, rollout: Rollout, attempt: Attempt | None) -> Iterator[str]:
    yield f"{rollout.id}: {_ended(rollout)}" + (f", {show.one_line(rollout.reason)}" if rollout.reason else "")
    if attempt is None:
        yield "nobody has tried it yet"
        return
    ended = f": {show.one_line(attempt.error)}" if attempt.error else ""
    yield f"attempt {attempt.number} of {rollout.attempt_count} by {attempt.worker}, {attempt.status}{ended}"
    for signal in store.traces.breakdown(attempt.token).signals:
        words = f": {show.one_line(signal.feedback)}" if signal.feedback else ""
        yield f"reward {signal.name} = {signal.value:.4g} × {signal.weight:.4g} ({signal.source}){words}"
    output = store.views.output(attempt)
    if output is not None:
        yield f"output {show.one_line(output)}"


def _depths(recorded: list[Span]) -> dict[int, int]:
    depths: dict[int, int] = {}
    for span in recorded:
        depths[span.seq] = depths.get(span.parent, -1) + 1 if span.parent is not None else 0
    return depths


def _span_row(span: Span, depth: int) -> tuple[object, ...]:
    if span.model is not None:
        what: object = _answer_text(span.model.response)
    elif span.tool is not None:
        what = f"{show.pairs(span.tool.arguments)} → {show.one_line(span.tool.error or span.tool.result)}"
    else:
        what = span.attributes.get("text") or show.pairs({**span.attributes, TRACEBACK: None})
    took = "open" if span.ended_at is None else show.span_of_time(span.ended_at - span.started_at)
    return span.seq, span.kind, "· " * depth + span.name, took, what


def _tracebacks(page: list[Span]) -> Iterator[str]:
    """Whole and as they are: where an agent failed is what its author came to see."""
    for span in page:
        text = span.attributes.get(TRACEBACK)
        if isinstance(text, str):
            yield f"\n{span.seq} {show.one_line(span.name)}:"
            yield from map(printable, text.splitlines())


def _answer_text(response: Mapping[str, Any]) -> str:
    """Joins the model's text, the calls it asks for and its thoughts."""
    calls = [call.get("function", {}) for call in response.get("tool_calls") or ()]
    parts = [str(response.get("content") or "")]
    parts += [f"→ {function.get('name')} {function.get('arguments')}" for function in calls]
    if thought := response.get("reasoning_content"):
        parts.append(f"(thought: {thought})")
    return " ".join(filter(None, parts))


def ledger(
    at: StoreOptions,
    run: Annotated[str | None, Option(metavar="RUN", help="Only entries about this run, pruned ones included.")] = None,
    limit: Limit = 50,
    after: Annotated[int, Option(metavar="SEQ", min=0, help="Begin behind this one.")] = 0,
) -> Output:
    """List who decided what, oldest first."""
    from holdfast.operate.briefs import happened

    with at.existing() as opened:
        run = opened.runs.get(run).id if run is not None else None
        entries = (entry for entry in opened.ledger.entries(run=run) if entry.seq > after)
        found = list(islice(entries, limit + 1))
    if not found:
        none = f"no {'more ' if after else ''}entries in project {at.project}"
        return Output([], f"{none}; a run makes the first: holdfast run start --help")
    page = found[:limit]
    rows = [
        (entry.seq, show.local_time(entry.at), entry.who, ": ".join(filter(None, happened(entry)))) for entry in page
    ]
    more = _more(at, len(found) > limit, "store ledger", run=run, limit=limit, after=page[-1].seq)
    return Output(page, show.table((">seq", "at", "~who", "~what"), rows), more=more)


def workers(at: StoreOptions, limit: Limit = 50) -> Output:
    """List the processes that work, or worked, on rollouts, newest first."""
    with at.existing() as opened:
        records = opened.workers.newest(limit)
    if not records:
        return Output([], f"no workers yet in project {at.project}; a run brings its own: holdfast run start --help")
    now, rows = time.time(), []
    for record in records:
        quiet = show.span_of_time(now - record.beat_at)
        state = "stopped" if record.stopped_at else f"silent {quiet}" if now - record.beat_at > SILENT_S else "working"
        rows.append(
            (record.id, state, record.slots, record.host, record.pid, show.local_time(record.started_at), quiet)
        )
    return Output(records, show.table(("~worker", "state", ">slots", "~host", ">pid", "started", ">last beat"), rows))


ROOM = 12  # letters of a version beside a tool
ADOPTION_EPILOG = """Rates are of tasks, never of calls: adopted, of tasks that need the tool, are those whose first
call of it was well formed; used, of tasks that have it, those that called it; overused, of tasks that do not need it,
those that called it; formed and worked, of those that called it; mended, of those in which it failed. In brackets, the
95 % interval.

What a task needs is said by its "needs": a list of tools, empty for none."""


class By(StrEnum):
    TOOL = "tool"
    VERSION = "version"
    DAY = "day"


KEYS = {None: ("tool", "model", "version"), By.TOOL: ("tool",), By.VERSION: ("model", "version"), By.DAY: ("window",)}


def adoption(
    at: StoreOptions,
    runs: Annotated[list[str] | None, Argument(metavar="RUN", help="Ids, or the beginnings of them.")] = None,
    by: Annotated[By | None, Option(help="Take together all but this.")] = None,
    newest: Annotated[
        int, Option(metavar="N", min=1, max=1000, help="How many of the newest runs, where none is named.")
    ] = 10,
) -> Output:
    """Show how often agents use tools where tools are needed, in one run or in the newest ones."""
    from holdfast.prove.estimate import wilson
    from holdfast.reward.tools import adoption_rates

    with at.existing() as opened:
        named = (
            [opened.runs.get(run).id for run in runs] if runs else [run.id for run in opened.runs.newest(most=newest)]
        )
        records = [record for run in dict.fromkeys(named) for record in _records(opened, run)]
    rows = adoption_rates(records, wilson, by=KEYS[by])
    data = {"runs": named, "attempts": len(records), "rows": rows}
    if not rows:
        none = 'no decided attempt called a tool, was offered one or needed one; tasks say so by "tools" and "needs"'
        return Output(data, none)
    counted = f"{show.count(len(records), 'attempt')} in {show.count(len(set(named)), 'run')}"
    return Output(data, _adoption_table(rows, KEYS[by], counted))


def _records(store: Store, run: str) -> Iterator[ToolAttempt]:
    """Yields the tool use of the attempts that decided their rollouts."""
    from holdfast.operate.learning_views import catalog, record

    tools = catalog(store, run)
    with show.progress("reading rollouts", None) as advance:
        for rollout in store.views.every(run):
            advance()
            experience = store.experiences.get(rollout.id) if rollout.final_attempt is not None else None
            if experience is not None:
                yield record(rollout, experience.spans, tools)


def _adoption_table(found: tuple[AdoptionRow, ...], keys: tuple[str, ...], counted: str) -> list[Text]:
    models = {row.model for row in found if row.model is not None}
    of = f", all of {models.pop()}" if len(models) == 1 else ""
    keys = tuple(key for key in keys if key != "model" or not of)
    titles = {"tool": "tool", "model": "~model", "version": "~version", "window": "day"}
    rates = (">need", ">adopted", "", ">used", ">overused", ">formed", ">worked", ">mended")
    rows = [(*(_key(row, key) for key in keys), *_cells(row)) for row in found]
    return [f"{counted}{of}", show.table((*(titles[key] for key in keys), *rates), rows)]


def _key(row: AdoptionRow, key: str) -> object:
    value = getattr(row, key)
    if key == "version" and value is not None and row.tool is not None and len(value) > ROOM:
        return f"…{value[1 - ROOM :]}"  # versions of one run differ at their ends
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d}" if key == "window" else value


def _cells(row: AdoptionRow) -> tuple[object, ...]:
    adopted = row.adoption
    sure = f"[{100 * adopted.interval.low:.0f}-{100 * adopted.interval.high:.0f}]" if adopted.of else "-"
    rest = (row.used, row.overuse, row.formed, row.worked, row.mended)
    return adopted.of, _percent(adopted), sure, *map(_percent, rest)


def _percent(rate: AdoptionRate) -> str:
    return "-" if rate.share is None else f"{100 * rate.share:.0f} %"


BUDGETS_EPILOG = """Wasted is all that a failed attempt thought, and of the others what went beyond their allowance. An
attempt has failed when it broke off, and when nothing was paid for it.

A run has budgets when its config says "thinking_budgets": true; with "thinking_allocation": "learnt" tiers are given by
the outcomes that --allocation shows, and by the table where there are too few."""


def budgets(
    at: StoreOptions,
    run: Annotated[str | None, Argument(metavar="RUN", help="Its id, or the beginning of it.")] = None,
    limit: Limit = 10,
    allocation: Annotated[bool, Option("--allocation", help="What the outcomes of all runs teach.")] = False,
) -> Output:
    """Show thinking budgets: by tier of one run, or of each run that has any."""
    with at.existing() as opened:
        if allocation:
            return _allocation(opened)
        if run is not None:
            return _of_run(opened, opened.runs.get(run).id, limit)
        totals = opened.budgets.by_run(most=limit)
    if not totals:
        return Output([], 'no run has thinking budgets; a config with "thinking_budgets": true asks for them')
    return Output(totals, _totals("~run", totals))


def _allocation(store: Store) -> Output:
    """Lists the outcomes of every tier by context of tasks, and the tier that a learnt allocation prefers."""
    from holdfast.collect.allocation import fit

    allocation = fit((use.budget, use.has_failed) for use in store.budgets.ended())
    rows = [
        {"context": context, "tier": tier, "attempts": outcomes.attempts, "succeeded": outcomes.succeeded,
         "cost": outcomes.cost, "best": allocation.best(context)}
        for context, tiers in sorted(allocation.outcomes.items())
        for tier, outcomes in sorted(tiers.items())
    ]  # fmt: skip
    if not rows:
        return Output([], "no attempt with a thinking budget has ended yet: the table decides")
    titles = ("~context", "tier", ">attempts", ">succeeded", ">cost", "best")
    shown = [[*({**row, "cost": f"{row['cost']:.3f}", "best": row["best"] or "the table"}).values()] for row in rows]
    return Output(rows, show.table(titles, shown))


def _of_run(store: Store, run: str, limit: int) -> Output:
    tiers, modes = store.budgets.by_tier(run), store.budgets.by_mode(run)
    uses = store.budgets.of_run(run, most=limit)
    data: dict[str, Any] = {"run": run, "tiers": tiers, "modes": {mode or "unknown": n for mode, n in modes.items()}}
    data["budgets"] = [
        {"budget": use.budget, "status": use.status, "has_failed": use.has_failed, "waste": use.waste} for use in uses
    ]
    if not tiers:
        none = f'{run}: no attempt has a thinking budget; "thinking_budgets": true in the config asks for them'
        return Output(data, none)
    spent, allowed, waste = (sum(getattr(tier, name) for tier in tiers) for name in ("spent", "allowed", "waste"))
    share = f" ({100 * spent / allowed:.0f} %)" if allowed else ""
    count = show.count(sum(tier.budgets for tier in tiers), "budget")
    used = f"{run}: {count}, {spent} of {allowed} thinking tokens used{share}, {waste} wasted"
    known = ", ".join(f"{mode or 'unknown'} {n}" for mode, n in sorted(modes.items(), key=str))
    columns = ("~attempt", "tier", "status", "mode", ">allowed", ">spent", ">over", ">wasted")
    newest = show.table(columns, map(_row, uses))
    return Output(data, [used, f"held to it by: {known}\n", _totals("tier", tiers), "\nthe newest:", newest])


def _row(use: BudgetUse) -> tuple[object, ...]:
    budget = use.budget
    status = "no reward" if use.has_failed and use.status == "succeeded" else use.status.value
    attempt = budget.attempt.partition("/")[2]
    return attempt, budget.tier, status, budget.mode, budget.allowed, budget.spent, budget.overspent, use.waste


def _totals(name: str, found: list[BudgetTotals]) -> Text:
    titles = (name, ">n", ">failed", ">calls", ">grown", ">empty", ">allowed", ">spent", ">over", ">wasted")
    names = ["name", "budgets", "failed", "calls", "escalations", "exhausted", "allowed", "spent", "overspent", "waste"]
    return show.table(titles, [[getattr(totals, field) for field in names] for totals in found])


QUALITY_EPILOG = """Exit codes: 0 nothing blocks, 1 something does, 2 there is nothing to look at.

Only what is meant for training is looked at; tasks of the splits val and test are what it must not contain."""


def quality(
    run: Annotated[str, Argument(metavar="RUN", help="The run's id, or the beginning of it.")],
    at: StoreOptions,
    rubric: Annotated[
        str, Option(metavar="NAMES", help="Scores that each must have, from 0 to 1: accuracy,tone.")
    ] = "",
    reward_range: Annotated[
        tuple[float, float] | None, Option(metavar="LOW HIGH", help="What a reward can be.")
    ] = None,
    logprobs: Annotated[bool, Option("--logprobs/--no-logprobs", help="Whether every model call needs them.")] = True,
    versions: Annotated[str, Option(metavar="NAMES", help="Versions that are fresh enough; without it any are.")] = "",
    limit: Limit = 20,
) -> Output:
    """Check what a run collected: list what must not be trained on, and why."""
    from holdfast.learn.quality import Standards

    standards = Standards(
        rubric=_names(rubric), reward_range=reward_range, needs_logprobs=logprobs, versions=_names(versions) or None
    )
    with at.existing() as opened:
        name = opened.runs.get(run).id
        report = audited(opened, name, standards)
    data = {"run": name, "is_clean": report.is_clean, "findings": report.findings}
    data |= {"quarantined": report.quarantined, "ready": report.ready}
    return Output(data, _quality_lines(name, report, limit), int(not report.is_clean))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def audited(store: Store, run: str, standards: Standards | None = None) -> QualityReport:
    """Runs the data gates over everything that the run collected for training."""
    from holdfast.learn.quality import audit

    every = list(store.views.every(run))
    kept = [rollout.input for rollout in every if rollout.split in (Split.VAL, Split.TEST)]
    train = {rollout.id: rollout.input for rollout in every if rollout.split in (Split.TRAIN, None)}
    experiences = []
    with show.progress("reading", len(train)) as bar:
        for rollout in train:
            experience = store.experiences.get(rollout)
            if experience is not None:
                experiences.append(experience)
            bar()
    if not experiences:
        why = f"none of its {len(every)} rollouts is for training and decided"
        raise NotFound(f"experiences of {run}", why=why, remedy="let it run first")
    with show.progress("looking", None):
        return audit(experiences, inputs=train, held_out=kept, standards=standards)


def _quality_lines(run: str, found: QualityReport, limit: int) -> Iterator[Text]:
    ready, out = len(found.ready), len(found.quarantined)
    yield f"{run}: {ready} of {show.count(ready + out, 'rollout')} ready to be learnt from, {out} quarantined"
    rows = [
        (finding.name, finding.severity, finding.count, finding.of, finding.detail.removeprefix(f"{run}/") or "-")
        for finding in sorted(found.findings, key=lambda finding: not finding.count)
    ]
    yield show.table(("gate", "severity", ">failed", ">of", "~first"), rows)
    if found.quarantined:
        named = [(rollout.removeprefix(f"{run}/"), ", ".join(names)) for rollout, names in found.quarantined.items()]
        yield from ("", show.table(("~quarantined", "~why"), named[:limit]))
        yield from show.left_out(named, limit)
