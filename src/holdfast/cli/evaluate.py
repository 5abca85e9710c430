"""`holdfast reward evaluate` reports on task results, `reward diff` on a change: rules, judges, minimality, safety."""

from __future__ import annotations

import os
import time
from asyncio import Runner
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import Output, StoreOptions, read_jsonl, who
from holdfast.cli.reward import BaseUrl
from holdfast.cli.show import fold
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import say

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.contracts.flag import Features
    from holdfast.contracts.judgement import EvalItem
    from holdfast.pipeline.judges import Court
    from holdfast.promote.flags import Snapshot
    from holdfast.reward.diff.edits import Change, EditFinding, EditPart
    from holdfast.reward.diff.minimality import Excess
    from holdfast.reward.evaluation import Evaluation, Part, PartVerdict, TaskResult
    from holdfast.reward.judges.ensemble import Opinion
    from holdfast.store.store import Store


LARGEST = 5_000_000  # bytes of a file that is read
CONTEXT = 3  # unchanged lines around a hunk on the page
MOST_PARTS = 200  # edits of one file that the terminal shows
IGNORED = frozenset({"__pycache__", "node_modules"})
SIGNS = {"insert": ("+", "green"), "delete": ("-", "red"), "update": ("~", "yellow"), "move": (">", "cyan")}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: str
    cost: float
    parts: tuple[EditPart, ...]
    errors: tuple[int, ...]  # lines after that do not parse
    is_coarse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All that is said about a change."""

    files: tuple[_File, ...]
    spent: Excess
    has_reference: bool
    multiplier: float
    scaffolding: tuple[EditFinding, ...]
    vetoes: tuple[EditFinding, ...]

    @property
    def is_minimal(self) -> bool:
        return self.spent.excess == 0.0 and not self.scaffolding and not self.spent.is_broken


def diff(
    before: Annotated[Path, Argument(metavar="BEFORE", help="A file or a folder.")],
    after: Annotated[Path, Argument(metavar="AFTER", help="The same, changed.")],
    reference: Annotated[Path | None, Option(metavar="PATH", help="The least fix, if one is known.")] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page instead.")] = None,
) -> Output:
    """Show how a program was changed, node by node: what was inserted, deleted, updated or moved.

    Python, JavaScript and TypeScript are compared as trees, so that layout costs nothing; other files line by line.
    The last line says what the change cost, what in it looks like scaffolding, and what works on the tests instead of
    on the task.
    """
    change = _change(before, after)
    least = None if reference is None else _references(before, reference, change)
    seen = _look(change, least)
    if html is None:
        return Output(_diff_record(seen), lambda: _print(seen))
    _write(html, _page(change, seen))
    return Output(_diff_record(seen) | {"page": html}, f"{html}\n{_summary(seen)}")


def _change(before: Path, after: Path) -> Change:
    for path in (before, after):
        if not path.exists():
            raise BadInput(str(path), why="does not exist", remedy="give two files, or two folders")
    if before.is_dir() != after.is_dir():
        raise BadInput(f"{before} and {after}", why="are a file and a folder", remedy="give two of one kind")
    if not before.is_dir():
        pairs: Change = {after.name: (_text(before), _text(after))}
    else:
        paths = sorted({*_inside(before), *_inside(after)})
        pairs = {path: (_found(before / path), _found(after / path)) for path in paths}
    return {path: texts for path, texts in pairs.items() if texts[0] != texts[1]}


def _inside(folder: Path) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part in IGNORED or part.startswith(".") for part in parts):
            found.append("/".join(parts))
    return found


def _found(path: Path) -> str | None:
    """The text of a file in a folder; None where there is none, or no text in it."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return None
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(str(path), why=f"is larger than {show.size(LARGEST)}", remedy="compare parts of it")
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadInput(str(path), why="is not UTF-8 text", remedy="give source text") from None
    except OSError as error:
        raise BadInput(str(path), why=str(error.strerror), remedy="give a file that can be read") from None


def _references(before: Path, reference: Path, change: Change) -> dict[str, str | float]:
    if not reference.exists() or reference.is_dir() != before.is_dir():
        kind = "a folder" if before.is_dir() else "a file"
        raise BadInput(f"--reference {reference}", why=f"is not {kind}", remedy=f"give {kind}, like BEFORE")
    if not reference.is_dir():
        return dict.fromkeys(change, _text(reference))
    found = {path: _found(reference / path) for path in change}
    return {path: text for path, text in found.items() if text is not None}


def _look(change: Change, references: dict[str, str | float] | None) -> _Seen:
    from holdfast.reward.diff import minimality, tamper
    from holdfast.reward.diff.edits import compare, outline
    from holdfast.reward.diff.trees import language_of

    files = []
    with show.progress("comparing", len(change)) as advance:
        for path, (before, after) in change.items():
            script = compare(before or "", after or "", language_of(path))
            files.append(
                _File(
                    path=path,
                    cost=script.cost,
                    parts=outline(script, before or "", after or ""),
                    errors=script.both.after.errors,
                    is_coarse=script.both.is_coarse,
                )
            )
            advance(now=path)
        spent = minimality.total_excess(change, references)
        findings = minimality.unneeded_scaffolding(change, references)
        vetoes = tamper.inspect(change)
    value = minimality.multiplier(
        spent.excess, minimality.scaffold_amount(findings), reference_cost=spent.reference_cost
    )
    return _Seen(
        files=tuple(files),
        spent=spent,
        has_reference=references is not None,
        multiplier=min(value, minimality.BROKEN) if spent.is_broken else value,
        scaffolding=findings,
        vetoes=vetoes,
    )


def _summary(seen: _Seen) -> str:
    if not seen.files:
        return "no change"
    spent = seen.spent
    least = "the least" if seen.has_reference else "a guess at the least"
    verdict = "minimal" if seen.is_minimal else f"×{seen.multiplier:.2f}"
    found = f"scaffolding {len(seen.scaffolding)}, vetoes {len(seen.vetoes)}"
    if spent.cost == 0.0 and not seen.has_reference:  # there is nothing that could be larger than a guess
        return f"cost 0.0, nothing but the layout has changed; {found}"
    return f"cost {spent.cost:.1f}, {least} {spent.reference_cost:.1f}: {verdict}; {found}"


def _print(seen: _Seen) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for file in seen.files:
        console.print(
            Text(f"{file.path}  cost {file.cost:.1f}{_note(file)}", style="bold"), no_wrap=True, overflow="ellipsis"
        )
        for part in file.parts[:MOST_PARTS]:
            console.print(_row(part, console.width), no_wrap=True, overflow="ellipsis")
        if len(file.parts) > MOST_PARTS:
            print(f"  … {len(file.parts) - MOST_PARTS} more; --json and --html have all")
    for title, style, findings in (("scaffolding", "yellow", seen.scaffolding), ("veto", "bold red", seen.vetoes)):
        for finding in findings:
            line = Text(
                f"{title}: {finding.path}:{finding.line}  {finding.rule}  {show.one_line(finding.what)}", style=style
            )
            console.print(line, no_wrap=True, overflow="ellipsis")
    print(_summary(seen))


def _note(file: _File) -> str:
    if file.errors:
        return f"  does not parse at line {file.errors[0]}: compared word by word"
    return "  too much differs for trees: compared line by line" if file.is_coarse else ""


def _row(part: EditPart, width: int) -> Text:
    from rich.text import Text

    sign, style = SIGNS[part.verb]
    text = f"{part.was} → {part.text}" if part.verb == "update" else part.text
    head = f"  {sign} {part.line:>5}  {part.kind[:22]:<22}  "
    shown = show.one_line(text)
    room = max(8, width - len(head) - 8)
    shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
    return Text(f"{head}{shown:<{room}} {part.cost:>6.1f}", style=style)


def _diff_record(seen: _Seen) -> dict[str, Any]:
    return {
        "files": [
            {
                "path": file.path,
                "cost": round(file.cost, 4),
                "parse_errors": list(file.errors),
                "is_coarse": file.is_coarse,
                "edits": [asdict(part) for part in file.parts],
            }
            for file in seen.files
        ],
        "cost": round(seen.spent.cost, 4),
        "reference_cost": round(seen.spent.reference_cost, 4) if seen.has_reference else None,
        "excess": round(seen.spent.excess, 4),
        "is_minimal": seen.is_minimal,
        "multiplier": round(seen.multiplier, 4),
        "scaffolding": [asdict(finding) for finding in seen.scaffolding],
        "vetoes": [asdict(veto) for veto in seen.vetoes],
    }


def _page(change: Change, seen: _Seen) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(loader=PackageLoader("holdfast.operate"), autoescape=True, undefined=StrictUndefined)
    hunks = {path: _hunks(before or "", after or "") for path, (before, after) in change.items()}
    notes = {file.path: _note(file) for file in seen.files}
    signs = {verb: sign for verb, (sign, _) in SIGNS.items()}
    page = pages.get_template("diff.html")
    return page.render(seen=seen, hunks=hunks, notes=notes, signs=signs, summary=_summary(seen))


def _hunks(before: str, after: str) -> list[list[tuple[str, int, str]]]:
    """Lines that differ with some around them: (kind, number, text). Those that share what is around them are one."""
    from holdfast.reward.diff.trees import line_changes, normalise_newlines

    old, new = normalise_newlines(before).split("\n"), normalise_newlines(after).split("\n")
    found: list[list[tuple[str, int, str]]] = []
    reached = 0  # of the lines after, those that are shown

    def same(start: int, end: int) -> list[tuple[str, int, str]]:
        return [("same", at + 1, new[at]) for at in range(start, end)]

    for b0, b1, a0, a1 in line_changes(old, new):
        if not found or a0 - CONTEXT > reached + CONTEXT:
            if found:
                found[-1] += same(reached, reached + CONTEXT)
            found.append([])
            reached = max(0, a0 - CONTEXT)
        found[-1] += same(reached, a0)
        found[-1] += [("delete", at + 1, old[at]) for at in range(b0, b1)]
        found[-1] += [("insert", at + 1, new[at]) for at in range(a0, a1)]
        reached = a1
    if found:
        found[-1] += same(reached, min(len(new), reached + CONTEXT))
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--html {path}", why=str(error.strerror), remedy="name a file that can be written") from None


FEATURES = {"minimal diff": "minimal_diff", "judges": "judges", "tools": "tool_rewards"}  # of the parts
SHOWN = 3  # reasons of one result; all of them are in the JSON


def evaluate(
    source: Annotated[str, Argument(metavar="FILE|RUN", help="Results, one JSON object a line; or a run's id.")],
    at: StoreOptions,
    limit: Annotated[int, Option(metavar="N", min=1, max=100_000, help="At most so many results.")] = 1000,
    trip: Annotated[bool, Option("--trip", help="Kill the flag of a part whose p95 is over its limit.")] = False,
    judge: Annotated[
        list[str] | None, Option(metavar="NAME", help="Asked after the rules, on what it is calibrated on; several.")
    ] = None,
    base_url: BaseUrl = None,
    keep: Annotated[bool, Option("--keep/--no-keep", help="Store what was found.")] = True,
    name: Annotated[str | None, Option(metavar="NAME", help="What the scoring of a run is called.")] = None,
    pay: Annotated[
        float | None, Option(metavar="WEIGHT", help="Attach the scores to the run's rollouts as a reward.")
    ] = None,
) -> Output:
    """Evaluate answers by rules, judges, minimal diff and safety, with one score for each, and keep the results.

    A line has a task with an output and what was expected, or a text before and after, the visible tests, a reference
    fix, and whether hidden tests passed. What failed its hidden check scores 0, whatever else is good about it, and so
    does what tampers. Without a hidden check there are verdicts and no score. No model is called but the judges that
    are named: verifier, a folder of 'judge train', or a model of --base-url. A file's results become the rollouts of a
    run, scrubbed; a run's are kept beside its own rewards, as another scoring. Exits 1 where something fails.
    """
    from holdfast.operate.switches import p95, snapshot_at

    flags_now = snapshot_at(at.store, at.project, clock=time.time, environment=os.environ)
    is_file = Path(source).is_file() or source.endswith((".jsonl", ".json"))
    _check_kept(is_file, keep, name, pay)
    given = _from_file(Path(source), limit) if is_file else None
    names = (judge or ()) if flags_now.somebody().judges else ()  # switched off for all, nobody is even loaded
    with ExitStack() as stack:
        opened = stack.enter_context(at.existing()) if names or given is None else None
        judging = partial(_opinions, stack.enter_context(Runner()), _court(names, base_url, opened))
        looking = _Looking(flags_now, judging, {})
        if given is None:
            assert opened is not None
            run, keys = opened.runs.get(source).id, list[str]()
            title = _free(opened, run, name) if keep else None
            found = _all(_from_run(opened, run, limit, keys), looking, None)
            kept = None if title is None or not found else _keep(opened, at, run, title, keys, found, names, pay)
        else:
            found = _all(((result.task, result) for result in given), looking, len(given))
            kept = _keep_file(at, Path(source), given, found, names) if keep and found else None
    if not found:
        raise BadInput(source, why="has no finished result", remedy="give a file of results, or a run that has some")
    tripped = _trip(looking.took, at.store, at.project) if trip else []
    data = _record(found, looking.given) | {"parts_p95_ms": {part: p95(times) for part, times in looking.took.items()}}
    has_failed = any(evaluation.decision == "fail" for evaluation, _ in found)
    lines = [] if kept is None else _kept_lines(kept, str(at))
    return Output(
        data | {"tripped": tripped, "kept": kept},
        lambda: _tell(found, looking.given, tripped, lines),
        int(has_failed),
    )


def _check_kept(is_file: bool, keep: bool, name: str | None, pay: float | None) -> None:
    for option, value in (("--name", name), ("--pay", pay)):
        if value is not None and (is_file or not keep):
            why = "is for a run that is evaluated" if is_file else "and --no-keep were both given"
            raise BadInput(option, why=why, remedy="leave one of them out")
    if pay is not None and not (isfinite(pay) and pay > 0.0):
        raise BadInput(f"--pay {pay:g}", why="must be a finite number above 0", remedy="as in --pay 0.3")


def _court(names: Sequence[str], base_url: str | None, opened: Store | None) -> Court:
    from holdfast.pipeline.judges import court, trusted_court

    if opened is None or not names:
        return court((), None)
    with show.progress("loading judges", None):
        return trusted_court(names, base_url, opened)


def _opinions(runner: Runner, asked: Court, item: EvalItem) -> list[Opinion]:
    return runner.run(asked.opinions(item))


def _free(store: Store, run: str, name: str | None) -> str:
    from holdfast.api.stored import scoring_name

    return scoring_name(store, run, name, "evaluated")


def _keep(
    store: Store,
    at: StoreOptions,
    run: str,
    title: str,
    keys: Sequence[str],
    found: Sequence[tuple[Evaluation, float]],
    names: Sequence[str],
    weight: float | None,
) -> dict[str, Any]:
    """A run's evaluation beside its own rewards and, where it is to be paid, on top of them."""
    from holdfast.api.stored import Run, StoreAddress, decided_of, set_beside
    from holdfast.pipeline.evaluating import pay
    from holdfast.reward.evaluation import OUTCOME_GATE, terms_of
    from holdfast.reward.rescore import Rescored

    evaluated = {key: evaluation for key, (evaluation, _) in zip(keys, found, strict=True)}
    decided = [rollout for rollout in decided_of(store, run) if rollout.rollout in evaluated]
    results = [Rescored(id=key, signals=terms_of(evaluation)) for key, evaluation in evaluated.items()]
    parts = sorted({part.part for evaluation, _ in found for part in evaluation.verdicts})
    settings = {"evaluation": OUTCOME_GATE.name, "parts": parts, "judges": list(names)}
    beside = set_beside(Run(StoreAddress(at.store, at.project), run), store, decided, results, title, settings)
    kept = {"run": run, "scoring": title, "comparison": asdict(beside.comparison)}
    if weight is not None:
        scores = {key: evaluation.score for key, evaluation in evaluated.items() if evaluation.score is not None}
        paid, before = pay(store, decided, scores, weight, who=who(), now=time.time())
        kept["paid"] = {"weight": weight, "rollouts": paid, "before": before}
    return kept


def _keep_file(
    at: StoreOptions,
    path: Path,
    given: Sequence[TaskResult],
    found: Sequence[tuple[Evaluation, float]],
    names: Sequence[str],
) -> dict[str, Any]:
    """A file's results as the rollouts of a run of their own."""
    from holdfast.pipeline.evaluating import keep_results

    settings = {"file": path.name, "judges": list(names)}
    pairs = [(result, evaluation) for result, (evaluation, _) in zip(given, found, strict=True)]
    with at.open() as opened:
        return {"run": keep_results(opened, pairs, settings, who=who(), clock=time.time)}


def _kept_lines(kept: Mapping[str, Any], at: str) -> list[str]:
    run, title = kept["run"], kept.get("scoring")
    if title is None:
        return [f"kept as {run}: holdfast reward show {run}/result-000001{at}"]
    means = kept["comparison"]
    lines = [f"kept beside the rewards of {run}: holdfast reward show {run} --scoring {title}{at}"]
    if means["old_mean"] is not None and means["new_mean"] is not None:
        lines.append(f"mean reward {means['old_mean']:.3f} as it was scored, {means['new_mean']:.3f} as evaluated")
    if (paid := kept.get("paid")) is not None:
        again = f"; {paid['before']} had been paid before" if paid["before"] else ""
        lines.append(f"{show.count(paid['rollouts'], 'rollout')} paid {paid['weight']:g} × score{again}")
    return lines


@dataclass(slots=True)
class _Looking:
    """What each result is looked at by: a share of a flag is a share of the results, by the key of each."""

    flags: Snapshot
    judge: Callable[[EvalItem], list[Opinion]]
    took: dict[str, list[float]]
    given: list[Features] = field(default_factory=list)  # of the results so far

    def parts(self, key: str) -> list[Part]:
        from holdfast.reward.evaluation import parts

        self.given.append(self.flags.features(key))
        return [partial(_timed, part, self.took) for part in parts(self.given[-1], judge=self.judge)]


def _all(
    results: Iterable[tuple[str, TaskResult]], looking: _Looking, total: int | None
) -> list[tuple[Evaluation, float]]:
    """Evaluates the results, which come with their keys, and measures the seconds that each took."""
    from holdfast.reward.evaluation import evaluate as judge

    found = []
    with show.progress("evaluating", total) as advance:
        for key, result in results:
            looked_at, began = looking.parts(key), time.perf_counter()
            found.append((judge(result, looked_at), time.perf_counter() - began))
            advance()
    return found


def _timed(part: Part, took: dict[str, list[float]], result: TaskResult) -> PartVerdict | None:
    began = time.perf_counter()
    verdict = part(result)
    if verdict is not None:
        took.setdefault(verdict.part, []).append((time.perf_counter() - began) * 1000)
    return verdict


def _trip(took: Mapping[str, Sequence[float]], store: str, project: str) -> list[str]:
    """Kill the flags of what is too slow; one call is one look, and there is nothing that it could wait for."""
    from holdfast.operate.alerts import QUIET
    from holdfast.operate.switches import LATENCY, p95, trip
    from holdfast.store.store import open_store

    lines = []
    with open_store(store, project=project) as opened:
        for name, times in took.items():
            if (feature := FEATURES.get(name)) is None:
                continue
            fuse = replace(LATENCY[feature], rule=replace(LATENCY[feature].rule, hold_s=0.0))
            now = time.time()
            _, alert = trip(opened, fuse, QUIET, p95(times), n=len(times), now=now, environment=os.environ)
            lines += [] if alert is None else [alert.message]
    return lines


def _from_file(path: Path, limit: int) -> list[TaskResult]:
    """Reads all lines before anything is judged; a bad one is named with its number."""
    from holdfast.reward.evaluation import result_from

    return [result_from(given, where) for where, given in islice(read_jsonl(path), limit)]


def _from_run(store: Store, run: str, limit: int, keys: list[str]) -> Iterator[tuple[str, TaskResult]]:
    """Yields the results of the run's decided rollouts with their ids, and adds these to `keys`."""
    from holdfast.api.stored import decided_of
    from holdfast.pipeline.evaluating import stored_result

    for rollout in islice(decided_of(store, run, spans=True), limit):
        keys.append(rollout.rollout)
        yield rollout.rollout, stored_result(rollout)


def _record(found: Sequence[tuple[Evaluation, float]], given: Sequence[Features]) -> dict[str, Any]:
    """`features` are those that every result got; `features_on` counts the results that got each."""
    rows = [
        {
            "task": evaluation.task,
            "decision": evaluation.decision,
            "score": evaluation.score,
            "reasons": evaluation.reasons,
            "verdicts": [
                {"part": part.part, "holds": part.holds, "reasons": part.reasons} for part in evaluation.verdicts
            ],
            "sheet": evaluation.breakdown,
            "took_ms": round(took * 1000, 3),
        }
        for evaluation, took in found
    ]
    counts = {name: sum(getattr(features, name) for features in given) for name in asdict(given[0])}
    features = {name: count == len(given) for name, count in counts.items()}
    return {"results": rows, "summary": _summary_evaluate(found), "features": features, "features_on": counts}


def _summary_evaluate(found: Sequence[tuple[Evaluation, float]]) -> dict[str, Any]:
    decided = [evaluation.decision for evaluation, _ in found]
    scores = [evaluation.score for evaluation, _ in found if evaluation.score is not None]
    took = sorted(took for _, took in found)
    return {
        "results": len(found),
        **{name: decided.count(name) for name in ("pass", "fail", "unknown")},
        "mean_score": sum(scores) / len(scores) if scores else None,
        "p95_ms": round(took[min(len(took) - 1, int(0.95 * len(took)))] * 1000, 3),
    }


def _tell(
    found: Sequence[tuple[Evaluation, float]], given: Sequence[Features], tripped: Sequence[str], kept: Sequence[str]
) -> None:
    """At most 80 columns."""
    for evaluation, _ in found:
        score = "  -  " if evaluation.score is None else f"{evaluation.score:.3f}"
        print(f"{evaluation.decision:<7} {score}  {show.one_line(evaluation.task)[:62]}")
        for reason in evaluation.reasons[:SHOWN]:
            print(fold(show.one_line(reason), "  "))
        if len(evaluation.reasons) > SHOWN:
            print(f"  and {len(evaluation.reasons) - SHOWN} more reasons (--json has all)")
    summary = _summary_evaluate(found)
    mean = "" if summary["mean_score"] is None else f", mean score {summary['mean_score']:.3f}"
    print(
        f"\n{show.count(len(found), 'result')}: {summary['pass']} pass, {summary['fail']} fail, "
        f"{summary['unknown']} unknown{mean}; p95 {summary['p95_ms']:.1f} ms"
    )
    without = {name: sum(not getattr(features, name) for features in given) for name in FEATURES.values()}
    if off := [
        name.replace("_", " ") + ("" if count == len(given) else f" ({count} of {len(given)} results)")
        for name, count in without.items()
        if count
    ]:
        say(f"switched off by flags: {', '.join(off)}")
    for message in (*kept, *(f"switched off: {message}" for message in tripped)):
        print(message)
