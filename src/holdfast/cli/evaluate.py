"""`holdfast evaluate`: task results from a file or a run, each with one report: rules, judges, diff, safety, score."""

from __future__ import annotations

import os
import sys
import time
from asyncio import Runner
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.judge import BaseUrl, judge_named
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.features import Features
    from holdfast.contracts.judgement import EvalItem
    from holdfast.contracts.rollout import Rollout
    from holdfast.promote.features import Snapshot
    from holdfast.reward.evaluation import Evaluation, Part, PartVerdict, TaskResult
    from holdfast.reward.judges.ensemble import Calibrated, Opinion
    from holdfast.reward.judges.judge import Judge
    from holdfast.store.store import Store

LARGEST = 64 * 2**20  # of a file, in bytes
OUTCOMES = ("success", "exact_match")  # the first of them that a sheet has is what the hidden check said
FEATURES = {"minimal diff": "minimal_diff", "judges": "judges", "tools": "tool_rewards"}  # of the parts
PAGE = 200
SHOWN = 3  # reasons of one result; all of them are in the JSON


def evaluate(
    what: Annotated[str, typer.Argument(metavar="FILE|RUN", help="Results, one JSON object a line; or a run's id.")],
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="At most so many results.")] = 1000,
    trip: Annotated[bool, typer.Option("--trip", help="Kill the flag of a part whose p95 is over its limit.")] = False,
    judge: Annotated[
        list[str] | None,
        typer.Option("--judge", metavar="NAME", help="Asked after the rules, on what it is calibrated on; several."),
    ] = None,
    base_url: BaseUrl = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Judge what was done with tasks: rules, judges, minimal diff and safety, and one score for each.

    A line has a task with an output and what was expected, or a text before and after, the visible tests, a reference
    fix, and whether hidden tests passed. What failed its hidden check scores 0, whatever else is good about it, and so
    does what tampers. Without a hidden check there are verdicts and no score. No model is called but the judges that
    are named: verifier, a folder of 'judge train', or a model of --base-url. Exits 1 where something fails.
    """
    from holdfast.operate.switches import p95, snapshot_at

    flags_now = snapshot_at(store, project, clock=time.time, environment=os.environ)
    took: dict[str, list[float]] = {}
    is_file = Path(what).is_file() or what.endswith((".jsonl", ".json"))
    given = _from_file(Path(what), limit) if is_file else None
    names = (judge or ()) if flags_now.somebody().judges else ()  # switched off for all, nobody is even loaded
    with ExitStack() as stack:
        opened = stack.enter_context(existing(store, project)) if names or given is None else None
        runner = stack.enter_context(Runner())
        looking = _Looking(flags_now, partial(_opinions, runner, _court(names, base_url, opened)), took)
        if given is None:
            assert opened is not None
            found = _all(_from_run(opened, opened.runs.get(what).id, limit), looking, None)
        else:
            found = _all(((one.task, one) for one in given), looking, len(given))
    if not found:
        raise BadInput(what, why="has no finished result", remedy="give a file of results, or a run that has some")
    tripped = _trip(took, store, project) if trip else []
    if json:
        limits = {name: p95(times) for name, times in took.items()}
        show.print_json(_record(found, looking.given) | {"parts_p95_ms": limits, "tripped": tripped})
    else:
        _tell(found, looking.given)
        for message in tripped:
            print(f"switched off: {message}")
    raise typer.Exit(1 if any(one.decision == "fail" for one, _ in found) else 0)


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
    """Each with the seconds it took; results come with their keys."""
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
    from dataclasses import replace

    from holdfast.operate.alerts import QUIET
    from holdfast.operate.switches import LATENCY, p95, trip
    from holdfast.store.store import open_store

    told = []
    with open_store(store, project=project) as opened:
        for name, times in took.items():
            if (feature := FEATURES.get(name)) is None:
                continue
            fuse = replace(LATENCY[feature], rule=replace(LATENCY[feature].rule, hold_s=0.0))
            now = time.time()
            _, alert = trip(opened, fuse, QUIET, p95(times), n=len(times), now=now, environment=os.environ)
            told += [] if alert is None else [alert.message]
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class _Court:
    """Who is asked after the rules, criterion by criterion, and how far each is believed."""

    tiers: Mapping[str, Sequence[Sequence[Judge]]]
    calibrated: Calibrated


def _court(names: Sequence[str], base_url: str | None, opened: Store | None) -> _Court:
    """Each judge where it counts: what it says by a criterion that it is not calibrated on is not worth its price."""
    from holdfast.reward.judges.calibration import weight
    from holdfast.reward.judges.judge import CRITERIA, Kept

    if opened is None:
        return _Court(tiers={}, calibrated=lambda *_: None)
    calibrated = opened.judgements.calibration
    tiers: dict[str, list[list[Judge]]] = {}
    for name in names:
        one = judge_named(name, base_url)
        known = {on.id: calibrated(one.name, on.id, one.prompt(on)) for on in CRITERIA.values()}
        trusted = [criterion for criterion, found in known.items() if found is not None and weight(found) > 0.0]
        if not trusted:
            why = "counts by no criterion" if any(known.values()) else "is calibrated on no criterion"
            more = "" if base_url is None else f" --base-url {base_url}"
            raise BadInput(f"--judge {name}", why=why, remedy=f"holdfast judge calibrate --judge {name}{more}")
        for criterion in trusted:
            tiers.setdefault(criterion, []).append([Kept(one, opened.judgements)])
    return _Court(tiers=tiers, calibrated=calibrated)


def _opinions(runner: Runner, court: _Court, artefact: EvalItem) -> list[Opinion]:
    """By each criterion what the rules can tell, and else whoever is asked after them."""
    from holdfast.reward.judges.ensemble import cascade
    from holdfast.reward.judges.judge import CRITERIA
    from holdfast.reward.judges.rules import RuleJudge

    async def ask() -> list[Opinion]:
        rules = RuleJudge(clock=time.time)
        return [
            await cascade(on, artefact, court.tiers.get(on.id, ()), rules=rules, calibrated=court.calibrated)
            for on in CRITERIA.values()
        ]

    return runner.run(ask())


def _from_file(path: Path, limit: int) -> list[TaskResult]:
    """All lines are read before anything is judged: a bad one is named with its number."""
    from json import loads

    from holdfast.reward.evaluation import result_from

    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(str(path), why=f"is larger than {LARGEST // 2**20} MB", remedy="split it")
        # Only "\n" ends a line: JSON may hold what else Unicode breaks lines at. Editors may put a mark in front.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise BadInput(str(path), why=error.strerror or str(error), remedy="give a file that can be read") from error
    except UnicodeDecodeError as error:
        raise BadInput(str(path), why="is not UTF-8 text", remedy="give one JSON object a line") from error
    found: list[TaskResult] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or len(found) >= limit:
            continue
        try:
            given = loads(line)
        except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, a deep nest
            why = f"is not JSON: {str(error)[:80]}"
            raise BadInput(f"{path}:{number}", why=why, remedy="give one JSON object a line") from error
        found.append(result_from(given, f"{path}:{number}"))
    return found


def _from_run(store: Store, run: str, limit: int) -> Iterator[tuple[str, TaskResult]]:
    """Its finished rollouts with their ids, in the order they were enqueued."""
    after, left = None, limit
    while left > 0:
        page = store.views.rollouts(run, after=after, most=min(PAGE, left))
        for rollout in page:
            if (result := _of_rollout(store, rollout)) is not None:
                yield rollout.id, result
        if len(page) < min(PAGE, left):
            return
        after, left = page[-1].name, left - len(page)


def _of_rollout(store: Store, rollout: Rollout) -> TaskResult | None:
    from holdfast.cli.rewards import read
    from holdfast.collect.executors import is_own
    from holdfast.reward.evaluation import TaskResult

    if rollout.final_attempt is None:
        return None
    spans, sheet, output = read(store, rollout)
    measured = [] if sheet is None else [one for one in sheet.signals if not is_own(one)]  # no agent is its own check
    signals = {one.name: one.value for one in measured}
    known = next((signals[name] for name in OUTCOMES if name in signals), None)
    asked: Mapping[str, Any] = rollout.input if isinstance(rollout.input, Mapping) else {"prompt": rollout.input}
    needs = asked.get("needs")
    return TaskResult(
        task=f"{rollout.name}: {show.one_line(asked.get('prompt'))}",
        output="" if output is None else output if isinstance(output, str) else show.one_line(output),
        passed=None if known is None else known == 1.0,
        spans=tuple(spans),
        needs=tuple(map(str, needs)) if isinstance(needs, list) else None,
    )


def _record(found: Sequence[tuple[Evaluation, float]], given: Sequence[Features]) -> dict[str, Any]:
    """`features` are those that every result got; `features_on` counts the results that got each."""
    from dataclasses import asdict

    from holdfast.contracts.records import encode

    rows = [
        {
            "task": one.task,
            "decision": one.decision,
            "score": one.score,
            "reasons": list(one.reasons),
            "verdicts": [
                {"part": part.part, "holds": part.holds, "reasons": list(part.reasons)} for part in one.verdicts
            ],
            "sheet": None if one.sheet is None else encode(one.sheet),
            "took_ms": round(took * 1000, 3),
        }
        for one, took in found
    ]
    counts = {name: sum(getattr(one, name) for one in given) for name in asdict(given[0])}
    features = {name: count == len(given) for name, count in counts.items()}
    return {"results": rows, "summary": _summary(found), "features": features, "features_on": counts}


def _summary(found: Sequence[tuple[Evaluation, float]]) -> dict[str, Any]:
    decided = [one.decision for one, _ in found]
    scores = [one.score for one, _ in found if one.score is not None]
    took = sorted(took for _, took in found)
    return {
        "results": len(found),
        **{name: decided.count(name) for name in ("pass", "fail", "unknown")},
        "mean_score": sum(scores) / len(scores) if scores else None,
        "p95_ms": round(took[min(len(took) - 1, int(0.95 * len(took)))] * 1000, 3),
    }


def _tell(found: Sequence[tuple[Evaluation, float]], given: Sequence[Features]) -> None:
    """At most 80 columns."""
    from holdfast.cli.report_files import fold

    for one, _ in found:
        score = "  -  " if one.score is None else f"{one.score:.3f}"
        print(f"{one.decision:<7} {score}  {show.one_line(one.task)[:62]}")
        for reason in one.reasons[:SHOWN]:
            print(fold(show.one_line(reason), "  "))
        if len(one.reasons) > SHOWN:
            print(f"  and {len(one.reasons) - SHOWN} more reasons (--json has all)")
    summary = _summary(found)
    mean = "" if summary["mean_score"] is None else f", mean score {summary['mean_score']:.3f}"
    print(
        f"\n{show.count(len(found), 'result')}: {summary['pass']} pass, {summary['fail']} fail, "
        f"{summary['unknown']} unknown{mean}; p95 {summary['p95_ms']:.1f} ms"
    )
    without = {name: sum(not getattr(one, name) for one in given) for name in FEATURES.values()}
    if off := [
        name.replace("_", " ") + ("" if count == len(given) else f" ({count} of {len(given)} results)")
        for name, count in without.items()
        if count
    ]:
        print(f"switched off by flags: {', '.join(off)}", file=sys.stderr)
