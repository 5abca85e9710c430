"""What is stored already: runs, their rollouts as a table, and another scoring of them; and how such things look.

No agent is run here. What is shown is a list of blocks, sentences and grids of cells: text of at most 80 columns, the
same in a rich terminal, HTML in a notebook.
"""

from __future__ import annotations

import ast
import gc
import getpass
import operator
import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from holdfast.api.inputs import TaskScore, default_store, described, scorers_from
from holdfast.contracts.errors import BadInput, Conflict
from holdfast.contracts.evidence import Episode, Verdict
from holdfast.contracts.experience import Experience, ScoredRollout
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardBreakdown, RewardTerm, Scoring, outcome_of
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import RunRecord
from holdfast.contracts.task import TaskItem, canonical, task_of
from holdfast.pipeline import importing
from holdfast.pipeline.prove import ProveConfig, completed, episode, judged
from holdfast.prove.comparison import ComparisonConfig
from holdfast.reward.rescore import Rescored, ScoringComparison, StoredRollout, compare_scorings
from holdfast.reward.rescore import rescore as score_again
from holdfast.reward.scorers import combine
from holdfast.store.store import Store, open_store

if TYPE_CHECKING:
    from rich.text import Text


PAGE = 500
SHOWN = 20  # rows of a table that are printed
ARMS = ("baseline", "candidate")
PROVING = re.compile(r"(?P<proof>.*-)?(?P<arm>baseline|candidate)-(?P<place>\d+)-(?P<seed>\d+)")  # names of rollouts


# How things look ----------------------------------------------------------------------------------------------------

WIDTH = 80


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows under columns; a column whose name begins with ">" is set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = str | TextTable


class Shown:
    """Whatever says of itself in blocks what there is to see."""

    __slots__ = ()

    @abstractmethod
    def blocks(self) -> Sequence[Block]: ...

    def __str__(self) -> str:
        return text(self.blocks())

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        return html(self.blocks())


def text(blocks: Sequence[Block]) -> str:
    found: list[str] = []
    for block in blocks:
        if isinstance(block, TextTable):
            found += _grid(block)
        else:
            indent = len(block) - len(block.lstrip())
            found += wrap(
                block, WIDTH, subsequent_indent=" " * (indent + 2), break_on_hyphens=False, break_long_words=False
            ) or [""]
    return "\n".join(found)


def _grid(grid: TextTable) -> list[str]:
    names = [name.removeprefix(">") for name in grid.columns]
    cells = [names, *grid.rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH - 2 and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in cells:
        shown = []
        for at, cell in enumerate(row):
            cut = cell if len(cell) <= widths[at] else cell[: widths[at] - 1] + "…"
            shown.append(cut.rjust(widths[at]) if grid.columns[at].startswith(">") else cut.ljust(widths[at]))
        lines.append(("  " + "  ".join(shown)).rstrip())
    return lines


def html(blocks: Sequence[Block]) -> str:
    found = []
    for block in blocks:
        if isinstance(block, str):
            found.append(f"<div>{escape(block)}</div>")
            continue
        right = [name.startswith(">") for name in block.columns]
        align = ["right" if one else "left" for one in right]
        head = "".join(
            f'<th style="text-align:{side}">{escape(name.removeprefix(">"))}</th>'
            for name, side in zip(block.columns, align, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{side}">{escape(cell)}</td>' for cell, side in zip(row, align, strict=True)
            )
            + "</tr>"
            for row in block.rows
        )
        found.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "".join(found)


# Runs ---------------------------------------------------------------------------------------------------------------


def who() -> str:
    """The user's login name, for the ledger."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is, and whose part of it."""

    store: str
    project: str = "default"

    @classmethod
    def of(cls, store: str | Path | None, project: str) -> StoreAddress:
        return cls(str(store or default_store()), project)

    def open(self, *, create: bool = False) -> Store:
        return open_store(self.store, project=self.project, create=create)


# Runs ----------------------------------------------------------------------------------------------------------------


class Run(Shown):
    """One run in a store, by its id."""

    def __init__(self, place: StoreAddress, run: str) -> None:
        self.place, self._id = place, run

    @property
    def id(self) -> str:
        return self._id

    @property
    def record(self) -> RunRecord:
        """The run's current record in the store."""
        with self.place.open() as store:
            return store.runs.get(self.id)

    @property
    def state(self) -> str:
        """running, completed, failed, cancelled or timed_out."""
        return str(self.record.state)

    def rollouts(self, where: str | None = None, *, limit: int | None = None) -> Table:
        """The rollouts as a table, oldest first; `where` is a condition such as "reward < 0.5 and split == 'val'"."""
        fits = condition(where, COLUMNS) if where is not None else None
        found: list[dict[str, Any]] = []
        with self.place.open() as store:
            for row in _rows(store, self.id):
                if limit is not None and len(found) >= limit:
                    break
                if fits is None or fits(row):
                    found.append(row)
        return Table(found)

    def scorings(self) -> list[Scoring]:
        """The scorings beside the first one, of `hf.rescore` and `holdfast reward evaluate`, oldest first."""
        with self.place.open() as store:
            return store.scorings.of_run(self.id)

    def scoring(self, name: str) -> Table:
        """A table of one scoring, with a row for each rollout that it measured."""
        with self.place.open() as store:
            return Table(
                {
                    "id": rollout,
                    "reward": RewardBreakdown(signals=signals).total,
                    "outcome": outcome_of(signals),
                    "feedback": "; ".join(signal.feedback for signal in signals if signal.feedback) or None,
                    "terms": [encode(signal) for signal in signals],
                }
                for rollout, signals in store.scorings.signals(self.id, name)
            )

    def blocks(self) -> Sequence[Block]:
        with self.place.open() as store:
            record = store.runs.get(self.id)
            return [TextTable(HEAD, [_line(store, record)]), *([record.error] if record.error else [])]


HEAD = ("run", "kind", "state", ">right", ">wrong", ">unchecked", ">failed", "begun")


class RunList(list[Run], Shown):
    """Runs, the newest first."""

    def blocks(self) -> Sequence[Block]:
        if not self:
            return ["no runs"]
        with self[0].place.open() as store:
            return [TextTable(HEAD, [_line(store, store.runs.get(run.id)) for run in self[:SHOWN]]), *_more(self)]

    __repr__ = Shown.__repr__


def _more(rows: Sequence[Any]) -> list[str]:
    return [f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []


def _line(store: Store, run: RunRecord) -> tuple[str, ...]:
    counts = {"right": 0, "wrong": 0, None: 0}
    failed = 0
    for rollout in store.views.every(run.id):
        if rollout.status in (RolloutState.FAILED, RolloutState.DEAD):
            failed += 1
        elif rollout.status is RolloutState.SUCCEEDED:
            counts[rollout.outcome] = counts.get(rollout.outcome, 0) + 1
    begun = datetime.fromtimestamp(run.created_at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    numbers = (counts["right"], counts["wrong"], counts[None], failed)
    return run.id, run.kind, str(run.state), *map(str, numbers), begun


def runs(*, limit: int = 50, store: str | Path | None = None, project: str = "default") -> RunList:
    """The runs of a store, newest first."""
    place = StoreAddress.of(store, project)
    with place.open() as opened:
        return RunList(Run(place, run.id) for run in opened.runs.newest(most=limit))


def run_of(given: Any, place: StoreAddress) -> Run:
    """A run that was handed over, or the one with this id."""
    if isinstance(given, Run):
        return given
    if isinstance(run := getattr(given, "run", None), Run):
        return run
    if not isinstance(given, str):
        raise BadInput("run", why=f"is {type(given).__name__}", remedy='give a run, or its id, as in "run-3"')
    with place.open() as store:
        return Run(place, store.runs.get(given).id)


# Rollouts as a table -------------------------------------------------------------------------------------------------

COLUMNS = (
    "id",
    "task",
    "split",
    "status",
    "outcome",
    "reward",
    "seed",
    "version",
    "step",
    "input",
    "expected",
    "answer",
    "feedback",
    "error",
    "seconds",
)


class Table(list[dict[str, Any]], Shown):
    """Plain rows: a list of objects, as pandas and polars take them."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self[0]) if self else COLUMNS

    def to_pandas(self) -> Any:
        return import_module("pandas").DataFrame(list(self), columns=list(self.columns))

    def to_polars(self) -> Any:
        return import_module("polars").DataFrame(list(self), infer_schema_length=None)

    def blocks(self) -> Sequence[Block]:
        names = [name for name in ("task", "split", "outcome", "reward", "answer", "error") if name in self.columns]
        rows = [[_cell(row[name]) for name in names] for row in self[:SHOWN]]
        return [f"{len(self)} rollouts", *([TextTable(names, rows)] if rows else []), *_more(self)]

    __repr__ = Shown.__repr__


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else " ".join(str(value).split())


def decided_of(store: Store, run: str, *, spans: bool = False) -> Iterator[ScoredRollout]:
    last = None
    while page := store.experiences.scored(run, after=last, most=PAGE, spans=spans):
        yield from page
        last = page[-1].rollout


def _rows(store: Store, run: str) -> Iterator[dict[str, Any]]:
    decided = {rollout.rollout: rollout for rollout in decided_of(store, run)}
    for rollout in store.views.every(run):
        task, found = task_of(rollout.input), decided.get(rollout.id)
        is_item = isinstance(task, TaskItem)
        lines = [] if found is None else [signal.feedback for signal in found.signals if signal.feedback]
        took = None if rollout.started_at is None or rollout.ended_at is None else rollout.ended_at - rollout.started_at
        yield {
            "id": rollout.id,
            "task": task.id if is_item else rollout.metadata.get("group", rollout.name),
            "split": None if rollout.split is None else str(rollout.split),
            "status": str(rollout.status),
            "outcome": rollout.outcome,
            "reward": rollout.reward,
            "seed": rollout.metadata.get("seed"),
            "version": rollout.version,
            "step": rollout.step,
            "input": task.input if is_item else rollout.input,
            "expected": task.expected if is_item else _expected(rollout.input),
            "answer": None if found is None else found.output,
            "feedback": "; ".join(lines) or None,
            "error": rollout.reason if found is None or found.error is None else found.error,
            "seconds": took,
        }


def _expected(given: Any) -> Any:
    return given.get("expected") if isinstance(given, Mapping) else None


# Conditions ----------------------------------------------------------------------------------------------------------

COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def condition(where: str, columns: Sequence[str]) -> Callable[[Mapping[str, Any]], bool]:
    """A test of one row, from a condition over the columns. It is read, never run: there are no calls in it."""
    at = f"where = {where!r}"
    try:
        tree = ast.parse(where.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = getattr(error, "msg", None) or str(error)
        raise BadInput(at, why=f"cannot be read: {said}", remedy='as in "reward < 0.5"') from None
    try:
        test = _test(tree, columns)
    except RecursionError:
        raise BadInput(at, why="is nested too deep") from None
    except BadInput as error:
        raise BadInput(at, why=f"{error.what} {error.why}", remedy=error.remedy) from None
    return lambda row: bool(test(row))


def _test(node: ast.expr, columns: Sequence[str]) -> Callable[[Mapping[str, Any]], Any]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        value = node.value
        return lambda row: value
    if isinstance(node, ast.Name):
        name = node.id
        if name not in columns:
            raise BadInput(name, why="is no column", remedy=f"the columns are {', '.join(columns)}")
        return lambda row: row[name]
    if isinstance(node, ast.List | ast.Tuple):
        many = [_test(elt, columns) for elt in node.elts]
        return lambda row: [one(row) for one in many]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        inner = _test(node.operand, columns)
        if isinstance(node.op, ast.Not):
            return lambda row: not inner(row)
        return lambda row: _quietly(operator.neg, inner(row))
    if isinstance(node, ast.BoolOp):
        parts = [_test(one, columns) for one in node.values]
        every = all if isinstance(node.op, ast.And) else any
        return lambda row: every(part(row) for part in parts)
    if isinstance(node, ast.Compare):
        sides = [_test(one, columns) for one in (node.left, *node.comparators)]
        signs = [COMPARE[type(one)] for one in node.ops]
        return lambda row: all(
            _quietly(sign, one(row), other(row)) for sign, one, other in zip(signs, sides, sides[1:], strict=False)
        )
    what = ast.unparse(node)
    raise BadInput(what, why="is not allowed in a condition", remedy="compare columns with values, and join by and, or")


def _quietly(function: Callable[..., Any], *given: Any) -> Any:
    """Calls the function; a missing value is neither less nor more than anything."""
    try:
        return function(*given)
    except TypeError:
        return False


# Another scoring -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Rescoring(Shown):
    """Two scorings of the same rollouts side by side."""

    run: Run
    name: str  # of the new scoring, in the store
    comparison: ScoringComparison
    errors: Mapping[str, str]  # by rollout, where a scorer raised
    old_verdict: Verdict | None = None  # about the candidate of a run that proved; None: it proved nothing
    new_verdict: Verdict | None = None

    @property
    def changed(self) -> Table:
        """The rollouts that the two see differently, the largest change first."""
        return Table(
            {
                "id": changed.id,
                "old": changed.old,
                "new": changed.new,
                "was_right": changed.was_right,
                "is_right": changed.is_right,
            }
            for changed in self.comparison.changed
        )

    def blocks(self) -> Sequence[Block]:
        comparison = self.comparison
        told: list[Block] = [f"{self.run.id}: {comparison.rollouts} rollouts, scored again as {self.name!r}"]
        share = [
            ("agreement", comparison.agreement),
            ("Cohen's kappa", comparison.kappa),
            ("same reward", comparison.same_reward),
        ]
        means = [("mean reward before", comparison.old_mean), ("mean reward now", comparison.new_mean)]
        rows = [(name, f"{value:.3f}") for name, value in (*share, *means) if value is not None]
        rows += [("became right", str(comparison.became_right)), ("became wrong", str(comparison.became_wrong))]
        told.append(TextTable(("figure", ">value"), rows))
        if comparison.arms is not None:
            arms = comparison.arms
            told.append(
                f"candidate less baseline in {arms.primary} on {arms.tasks} tasks: "
                f"{arms.old:+.3f} as it was scored, {arms.new:+.3f} now"
            )
        if self.old_verdict is not None and self.new_verdict is not None:
            told.append(f"the verdict was {self.old_verdict.outcome}, and is {self.new_verdict.outcome} now")
        if self.errors:
            first = next(iter(self.errors.items()))
            told.append(f"{len(self.errors)} could not be scored: {first[0]}: {first[1]}")
        return told


@contextmanager
def _few_collections() -> Iterator[None]:
    """Python looks for garbage less often: among 10,000 rollouts in memory, looking takes a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_few_collections()
def rescore(
    run: Any,
    scorers: Any,
    *,
    name: str | None = None,
    safety: Sequence[Any] = (),
    store: str | Path | None = None,
    project: str = "default",
) -> Rescoring:
    """Score the stored rollouts of a run by other scorers, without running the agent again.

    One function alone is the gate, as in `improve`. Both scorings are kept: the rollouts keep their rewards, the new
    scoring lies beside them under its name.
    """
    found = run_of(run, StoreAddress.of(store, project))
    made = scorers_from(scorers)
    combined = combine(made, safety=safety)
    with found.place.open() as opened:
        title = scoring_name(opened, found.id, name)
        decided = list(decided_of(opened, found.id, spans=True))
        stored = [_stored(rollout) for rollout in decided if rollout.status is RolloutState.SUCCEEDED]
        results: list[Rescored] = score_again(stored, combined if combined.is_group else TaskScore(combined))
        settings = {"scorers": described(made), "safety": described(safety)}
        return set_beside(found, opened, decided, results, title, settings)


def scoring_name(store: Store, run: str, name: str | None, prefix: str = "rescored") -> str:
    """The name of a new scoring; one that is taken is refused before any work."""
    taken = {scoring.name for scoring in store.scorings.of_run(run)}
    if name is not None and name in taken:
        remedy = "what was scored stands; give this one another name"
        raise Conflict(f"scoring {name} of {run}", why="is there already", remedy=remedy)
    return name or next(one for n in range(1, len(taken) + 2) if (one := f"{prefix}-{n}") not in taken)


def set_beside(
    run: Run,
    store: Store,
    decided: Sequence[ScoredRollout],
    results: Sequence[Rescored],
    name: str,
    settings: Mapping[str, Any],
) -> Rescoring:
    """Keep another scoring of a run's rollouts, and compare it with what they were given."""
    store.scorings.add(
        run.id, name, settings, [(rescored.id, rescored.signals) for rescored in results], who=who(), now=time.time()
    )
    old = {rollout.rollout: rollout.signals for rollout in decided}
    failed = [rollout.rollout for rollout in decided if rollout.status is RolloutState.FAILED]
    new = {rescored.id: rescored.signals for rescored in results}
    arms = _arms_of(decided)
    pairs = {rollout: (arm.arm, arm.task) for rollout, arm in arms.items()}
    compared = compare_scorings(old, new, arms=pairs or None, failed=failed)
    errors = {rescored.id: rescored.error for rescored in results if rescored.error is not None}
    verdicts = (_verdict(decided, arms, old, run.id), _verdict(decided, arms, new, run.id))
    return Rescoring(run, name, compared, errors, *verdicts)


def _stored(one: ScoredRollout) -> StoredRollout:
    return StoredRollout(
        id=one.rollout,
        task=task_of(one.input),
        answer=one.output,
        spans=one.spans,
        signals=one.signals,
        group=str(one.metadata["group"]) if "group" in one.metadata else None,
    )


@dataclass(frozen=True, slots=True)
class _Arm:
    """The place of a rollout in a proof."""

    proof: str  # which one of the run
    arm: str
    task: str
    seed: int


def _arms_of(decided: Sequence[ScoredRollout]) -> dict[str, _Arm]:
    """Finds the arm, task and seed of each rollout of the run's last proof; empty where it proved nothing."""
    found = {}
    for scored_rollout in decided:
        name = scored_rollout.rollout.partition("/")[2]
        if (match := PROVING.fullmatch(name)) is not None:
            task = str(scored_rollout.metadata.get("group", match["place"]))
            found[scored_rollout.rollout] = _Arm(match["proof"] or "", match["arm"], task, int(match["seed"]))
    last = next((arm.proof for arm in reversed(found.values())), None)
    return {rollout: arm for rollout, arm in found.items() if arm.proof == last}


def _verdict(
    decided: Sequence[ScoredRollout], arms: Mapping[str, _Arm], signals: Mapping[str, Sequence[RewardTerm]], run: str
) -> Verdict | None:
    """Tests the candidate under one scoring; None where there is no proof, or nothing to compare."""
    sides: dict[str, list[Episode]] = {arm: [] for arm in ARMS}
    scored = {rollout.rollout: experience_of(rollout, run, signals.get(rollout.rollout, ())) for rollout in decided}
    totals = [experience.breakdown.total for experience in scored.values() if experience.breakdown is not None]
    lowest = min([0.0, *(total for total in totals if total is not None)])
    for rollout, at in arms.items():
        made = episode(scored[rollout], task=at.task, seed=at.seed, lowest=lowest)
        sides[at.arm] += [] if made is None else [made]
    every = [one for side in sides.values() for one in side]
    if not every:
        return None
    primary = "success" if any(one.success is not None for one in every) else "reward"
    rewards, costs = [one.reward for one in every], [one.safety_cost for one in every if one.safety_cost is not None]
    how = ComparisonConfig(
        primary=primary,
        reward_range=(min([0.0, *rewards]), max([1.0, *rewards])),
        max_cost=max([1.0, *costs]),
        max_safety_regression=ComparisonConfig().max_safety_regression if costs else None,
    )
    whole = []
    for arm, side in sides.items():
        places = {rollout: (at.task, at.seed) for rollout, at in arms.items() if at.arm == arm}
        whole.append(completed(side, places, how, is_candidate=arm == ARMS[1])[0])
    verdict: Verdict | None = judged(whole[0], whole[1], ProveConfig(how=how)).get("verdict")
    return verdict


def experience_of(rollout: ScoredRollout, run: str, signals: Sequence[RewardTerm]) -> Experience:
    return Experience(
        rollout=rollout.rollout,
        run=run,
        task=rollout.rollout,
        split=rollout.split,
        is_final=True,
        state=rollout.status,
        spans=rollout.spans,
        breakdown=RewardBreakdown(signals=tuple(signals)),
        input=rollout.input,
    )


def task_key(given: Any, name: str) -> str:
    """Returns the key that pairs tasks of two runs: the task's id, else its input."""
    task = task_of(given)
    if isinstance(task, TaskItem):
        return task.id
    return name if task is None else canonical(task)


def import_logs(
    path: str | Path,
    *,
    split: str = "train",
    model: str = "imported",
    scrub: bool = True,
    leave: Collection[str] = (),
    store: str | Path | None = None,
    project: str = "default",
) -> Run:
    """Take in chat logs, one object with "messages" a line: scrubbed, through the data gates, each conversation once.
    `leave` names classes that stay as they are, such as "ip".

    They are rollouts of one run of the project, which goes on with every import.
    """
    if split not in tuple(Split):
        raise BadInput(f"split = {split!r}", why="is unknown", remedy=f"use {', '.join(Split)}")
    rows, place = importing.read_logs(Path(path)), StoreAddress.of(store, project)
    with place.open(create=True) as opened:
        imported = importing.import_logs(
            opened, rows, split=Split(split), model=model, scrub=scrub, leave=leave, who=who(), clock=time.time
        )
    if imported.run is None or imported.is_fruitless:
        gates = sorted({name for names in imported.quarantined.values() for name in names})
        raise BadInput(f"file {path}", why=f"nothing passed the data gates: {', '.join(gates)}", remedy="look at them")
    return Run(place, imported.run)
