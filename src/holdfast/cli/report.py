"""`holdfast prove report …`: reports and proofs: publish, list, validate, archive, and show them as a page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, CommandSet, Output, StoreAt, Text
from holdfast.cli.show import fold, near, progress
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode

if TYPE_CHECKING:
    from holdfast.operate.proof_view import ProofView
    from holdfast.operate.publication import Publication
    from holdfast.prove.comparison import ComparisonConfig
    from holdfast.prove.reports.document import Problem
    from holdfast.prove.reports.validate import RetentionAction, RetentionStep


NUMBERED = re.compile(r"(.+)-([0-9]{1,9})([a-z][0-9]*|)")  # a run, its version, and which proof of it

ReportsAt = Annotated[
    Path | None,
    Option(
        "--reports", metavar="FOLDER", envvar="HOLDFAST_REPORTS", help="Where they lie; without it, beside the store."
    ),
]


@dataclass(frozen=True, slots=True)
class ReportsOptions:
    """Where reports lie."""

    reports: ReportsAt = None
    store: StoreAt = DEFAULT_STORE

    @property
    def folder(self) -> Path:
        """The folder that was given, or the one beside the store; it need not be there."""
        from holdfast.store.store import STATE_FOLDER

        if self.reports is not None:
            return self.reports
        if "://" in self.store:
            return STATE_FOLDER / "reports"
        beside = Path(self.store).parent
        return (beside.parent if beside.absolute().name == "training" else beside) / "reports"


def find_proof(name: str, folder: Path) -> Path:
    """The proof that is meant: a file, the id of its reports, a release (RUN@NUMBER), or a run and then its last.

    Ids may be cut short, as everywhere: `run-1` is run 1 and never run 10, `run-1-8` is the only run that starts so.
    """
    from holdfast.prove.reports.document import PROOF, catalogue

    if name.endswith(".json") or "/" in name:
        return Path(name)
    proofs: dict[str, Path] = {}
    for report in catalogue(folder):  # active ones first
        if report.kind == PROOF:
            proofs.setdefault(report.run, report.path)
    if name in proofs:
        return proofs[name]
    run, _, number = name.partition("@")
    begin = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in run.lower())
    begin = begin if begin.startswith("m24-") else f"m24-{begin}"
    numbered = [(named[1], int(named[2]), named[3], proof) for proof in proofs if (named := NUMBERED.fullmatch(proof))]
    if number:
        numbered = [one for one in numbered if str(one[1]) == number]
    meant = _starting(begin, numbered)
    if not meant or not run:
        why = f"there is no proof of it in {near(folder)}"
        raise BadInput(f"run {name}", why=why, remedy="'holdfast prove report list' shows all")
    if len({run for run, *_ in meant}) > 1:
        raise BadInput(f"run {name}", why="several start so", remedy="write more of it: 'holdfast prove report list'")
    return proofs[max(meant)[-1]]


def _starting(begin: str, numbered: list[tuple[str, int, str, str]]) -> list[tuple[str, int, str, str]]:
    """Returns the proofs of the run with this name, else of runs whose id goes on after a hyphen or begins so."""
    for fits in (begin.__eq__, lambda run: run.startswith(f"{begin}-")):
        if found := [one for one in numbered if fits(one[0])]:
            return found
    if re.fullmatch(r"m24-run-\d+", begin):  # a number is whole
        return []
    return [one for one in numbered if one[0].startswith(begin)]


def moment_of(written: str | None) -> datetime:
    from holdfast.prove.reports.document import read_timestamp, timestamp

    if written is None:
        return datetime.now(UTC)
    why = timestamp(written)
    if why is not None:
        raise BadInput(f"--generated-at {written!r}", why=why)
    return read_timestamp(written)


REMEDY = 'give a list such as [0.4, 0.6] or [{"task": "t1", "seed": 1, "reward": 0.4}]'


def read_samples(path: Path, value: str) -> list[Episode]:
    """The episodes of a file, of which a bare number is the `value`: "reward" or "safety_penalty"."""
    episodes = []
    for place, row in enumerate(_list(path)):
        if not isinstance(row, dict):
            row = {"task": f"sample-{place + 1}", "seed": 1, value: row}
        _check(row, f"samples {path}: $[{place}]", value)
        known = {name: row[name] for name in ("success", "latency_s", "tokens", "rollout") if name in row}
        episodes.append(
            Episode(
                task=row["task"],
                seed=row.get("seed", 1),
                reward=float(row.get("reward", 0.0)),
                safety_cost=float(row.get("safety_penalty", 0.0)),
                **known,
            )
        )
    if len({episode.task for episode in episodes}) < 2:
        raise BadInput(f"samples {path}", why="two tasks or more are needed", remedy=REMEDY)
    return episodes


def with_penalties(episodes: list[Episode], penalties: list[Episode], path: Path) -> list[Episode]:
    """The episodes with the safety penalties of another file."""
    costs = {(penalty.task, penalty.seed): penalty.safety_cost for penalty in penalties}
    if costs.keys() != {(episode.task, episode.seed) for episode in episodes} or len(costs) != len(penalties):
        why = f"{len(penalties)} penalties do not belong to the {len(episodes)} rewards one by one"
        raise BadInput(f"samples {path}", why=why, remedy="give one for each task and seed")
    return [replace(episode, safety_cost=costs[episode.task, episode.seed]) for episode in episodes]


def _list(path: Path) -> list[Any]:
    try:
        rows = loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"samples {path}", why=error.strerror or str(error), remedy="check the path") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"samples {path}", why=f"is not JSON: {error}", remedy=REMEDY) from None
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"samples {path}", why="is not a list, or an empty one", remedy=REMEDY)
    return rows


def _check(row: dict[str, Any], where: str, value: str) -> None:
    from holdfast.prove.reports.validate import SAMPLE

    for name in row:
        if name not in SAMPLE:
            raise BadInput(f"{where}.{name}", why="is unknown", remedy=f"use {', '.join(SAMPLE)}")
    for name, rule in SAMPLE.items():
        if name not in row and name not in ("task", value):
            continue
        why = rule(row[name]) if name in row else "is missing"
        if why is not None:
            raise BadInput(f"{where}.{name} = {row.get(name)!r}", why=why)


Samples = Annotated[Path, Option(metavar="FILE", help="A JSON list: numbers, or objects with task and seed.")]
Penalties = Annotated[Path | None, Option(metavar="FILE", help="Safety penalties; without it those of above.")]
Bound = Annotated[float, Option(metavar="X", help="By so much the mean safety penalty may rise.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """What every report says of itself."""

    run_id: Annotated[str, Option(metavar="ID", help="m24- and then small letters, digits, hyphens.")]
    suite_name: Annotated[str, Option(metavar="NAME", help="Of the benchmark suite.")] = "m24-rl-suite"
    suite_version: Annotated[str, Option(metavar="VERSION", help="Of the benchmark suite.")] = "1"
    alpha: Annotated[float, Option(metavar="A", help="Intervals are of the level 1 − A.")] = 0.05
    seed: Annotated[int, Option(metavar="N", min=0, help="Of the resampling; it is kept in the report.")] = 0
    generated_at: Annotated[
        str | None, Option(metavar="TIME", help="Such as 2026-07-01T12:00:00Z; without it, now.")
    ] = None
    retention: Annotated[str, Option(metavar="POLICY", help="archive-then-purge or retain-only.")] = (
        "archive-then-purge"
    )
    retain_days: Annotated[int, Option(metavar="DAYS", help="It is purged no sooner.")] = 365
    archive_after_days: Annotated[int, Option(metavar="DAYS", help="Then it is archived.")] = 30

    def head(self, episodes: list[Episode]) -> dict[str, Any]:
        """Samples do not say which fixtures they come from: a hash of what was measured stands for those."""
        from holdfast.prove.reports.document import Retention

        keys = dumps(sorted([episode.task, episode.seed] for episode in episodes)).encode()
        return {
            "run_id": self.run_id,
            "suite": (self.suite_name, self.suite_version, hashlib.sha256(keys).hexdigest()),
            "generated_at": moment_of(self.generated_at),
            "retention": Retention(
                policy=self.retention, retain_days=self.retain_days, archive_after_days=self.archive_after_days
            ),
        }


def significance(
    baseline_samples: Samples,
    trained_samples: Samples,
    how: PublishOptions,
    at: ReportsOptions,
    baseline_safety_samples: Penalties = None,
    trained_safety_samples: Penalties = None,
    baseline_checkpoint: Annotated[str, Option(metavar="ID", help="What was measured first.")] = "baseline",
    trained_checkpoint: Annotated[str, Option(metavar="ID", help="What should be better.")] = "trained",
    min_reward_delta: Annotated[float, Option(metavar="X", help="So much the mean reward must rise.")] = 0.05,
    max_safety_regression: Bound = 0.05,
    max_p_value: Annotated[float, Option(metavar="P", help="The p-value must not be above it.")] = 0.05,
    min_confidence_level: Annotated[float, Option(metavar="LEVEL", help="0.95 or more.")] = 0.95,
) -> Output:
    """Publish all reports of two sets of samples, and the proof. Exits 1 when it fails; it is written all the same."""
    from holdfast.prove.reports.report import ProofCriteria, publish

    sides = []
    for path, penalties in ((baseline_samples, baseline_safety_samples), (trained_samples, trained_safety_samples)):
        episodes = read_samples(path, "reward")
        if penalties is not None:
            episodes = with_penalties(episodes, read_samples(penalties, "safety_penalty"), penalties)
        sides.append(episodes)
    with show.progress("comparing", None):
        done = publish(
            at.folder,
            baseline=sides[0],
            trained=sides[1],
            checkpoints=(baseline_checkpoint, trained_checkpoint),
            criteria=ProofCriteria(
                min_reward_delta=min_reward_delta,
                max_safety_regression=max_safety_regression,
                max_p_value=max_p_value,
                min_confidence_level=min_confidence_level,
            ),
            alpha=how.alpha,
            seed=how.seed,
            **how.head(sides[0]),
        )
    lines = [near(done.paths["proof"].parent), *(f"  {path.name}" for path in done.paths.values())]
    lines.append(fold(f"proof_status={done.proof['proof_status']}: {done.proof['failure_analysis']['summary']}"))
    data = {"ok": done.is_pass, "files": done.paths, "proof": done.proof}
    return Output(data, "\n".join(lines), int(not done.is_pass))


def safety(
    baseline_safety_samples: Samples,
    trained_safety_samples: Samples,
    publish: PublishOptions,
    at: ReportsOptions,
    max_safety_regression: Bound = 0.05,
    output_report: Annotated[Path | None, Option(metavar="FILE", help="A copy of the report goes there.")] = None,
) -> Output:
    """Write the safety report alone. Exits 1 when promotion is blocked; it is written all the same."""
    from holdfast.prove.reports.report import ProofCriteria, ReportComparison, head_at, publish_safety
    from holdfast.store.artifacts import write_atomically

    before, after = (read_samples(file, "safety_penalty") for file in (baseline_safety_samples, trained_safety_samples))
    criteria = ProofCriteria(max_safety_regression=max_safety_regression)
    how = ReportComparison(criteria=criteria, alpha=publish.alpha, seed=publish.seed)
    folder = at.folder
    head = head_at(folder, **publish.head(before))
    if output_report is not None and not output_report.parent.is_dir():
        raise BadInput(f"--output-report {output_report}", why="its folder does not exist", remedy="make it")
    path, data = publish_safety(folder, head, before, after, how)
    if output_report is not None:
        write_atomically(output_report, path.read_bytes())
    is_ok = data["promotion_allowed"]
    allowed = "yes" if is_ok else f"no: {', '.join(data['reason_codes'])}"
    message = fold(f"promotion_allowed={allowed}; {'; '.join(data['diagnostics'])}")
    return Output({"ok": is_ok, "file": path, "report": data}, f"{near(path)}\n{message}", int(not is_ok))


UNIT = (0.0, 1.0)


def page(
    name: Annotated[str, Argument(metavar="RUN|PROOF", help="A run, the id of its reports, or a proof's file.")],
    at: ReportsOptions,
    output: Annotated[Path | None, Option(metavar="FILE", help="Where to write it; else beside the proof.")] = None,
    primary: Annotated[
        str | None, Option(metavar="METRIC", help="What had to improve: success, reward or safety.")
    ] = None,
    reward_range: Annotated[tuple[float, float], Option(metavar="LOW HIGH", help="All that a reward can be.")] = UNIT,
    max_cost: Annotated[float, Option(metavar="COST", help="The highest safety cost that one episode can have.")] = 1.0,
) -> Output:
    """Write a proof's page: the verdict, what would change it, and every figure it rests on.

    The page is one file that needs no network and no script, for screens, phones and paper. It shows nothing that
    cannot be computed again: a proof that does not validate has no page.
    """
    from holdfast.operate import publication
    from holdfast.operate.proof_view import status_of

    proof = find_proof(name, at.folder)
    with progress("weighing the samples again", None):
        published = publication.read(proof)
        how = publication.comparison_config(published, primary=primary, reward_range=reward_range, max_cost=max_cost)
        path, view = _written(published, how, output)
    data = {"page": path, "proof": proof, "run_id": published.run, "outcome": view.verdict.outcome}
    return Output({**data, "standing": status_of(view).kind, "tasks": len(view.tasks)}, near(path))


def write_page(proof: Path, how: ComparisonConfig | None = None) -> Path:
    """The page of a proof, beside it; weighed as it was, or as can be told from the proof alone."""
    from holdfast.operate import publication

    published = publication.read(proof)
    return _written(published, how or publication.comparison_config(published), None)[0]


def _written(published: Publication, how: ComparisonConfig, output: Path | None) -> tuple[Path, ProofView]:
    from holdfast.operate import publication
    from holdfast.operate.proof import render
    from holdfast.store.artifacts import write_atomically

    path = output or published.page
    if path.is_dir():
        raise BadInput(f"--output {path}", why="is a folder", remedy="name a file in it")
    view = publication.view(published, how)
    write_atomically(path, render(view).encode())
    return path, view


app = CommandSet("Benchmark reports and proofs: list, check, publish, archive.")
app.command("page")(page)
app.command("significance")(significance)
app.command("safety")(safety)

Yes = Annotated[bool, Option("--yes", help="Really do it; without it, it is only listed.")]


@app.command("list")
def list_all(at: ReportsOptions) -> Output:
    """List the published runs, newest first, with what their proofs say."""
    runs = _runs(at.folder)
    legend = "reward and safety cost: by how much they rose; a safety cost above 0 is worse"
    return Output(runs, [*_run_table(runs), legend] if runs else f"no reports in {near(at.folder)}")


def _run_table(runs: list[dict[str, Any]]) -> Iterator[Text]:
    """A line for each; two where their ids are so long that one would be cut."""
    from rich.console import Console

    titles = ["run", "published", "proof", ">reward", ">p", ">safety cost", "gate"]
    rows = [[run["run_id"], *_row(run)] for run in runs]
    if any(run["place"] != "active" for run in runs):
        titles, rows = [*titles, "place"], [[*row, run["place"]] for row, run in zip(rows, runs, strict=True)]
    widths = [max(map(len, column)) for column in zip([title.lstrip(">") for title in titles], *rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= Console().width:
        yield show.table(titles, rows)
        return
    for row in ([title.lstrip(">") for title in titles], *rows):
        cells = zip(titles[1:], row[1:], widths[1:], strict=True)
        figures = [cell.rjust(width) if title.startswith(">") else cell.ljust(width) for title, cell, width in cells]
        yield from (row[0], f"  {'  '.join(figures)}".rstrip())


def _row(run: dict[str, Any]) -> list[str]:
    p = run["p_value"]
    return [
        "-" if run["generated_at"] is None else str(run["generated_at"])[:10],
        run["proof_status"] or "-",
        _signed(run["reward_delta"]),
        "-" if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}",
        _signed(run["safety_regression"]),
        run["gate"] or "-",
    ]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _runs(folder: Path) -> list[dict[str, Any]]:
    """Lists one row per run with what its proof claims; nothing is checked."""
    from holdfast.prove.reports.document import PROOF, catalogue

    runs: dict[str, dict[str, Any]] = {}
    for report in catalogue(folder):
        row = runs.setdefault(report.run, {"run_id": report.run, **_proof_figures(None), "place": "", "files": 0})
        row["files"] += 1
        place = "archive" if report.is_archived else "active"
        row["place"] = place if row["place"] in ("", place) else "both"
        if report.kind == PROOF and row["generated_at"] is None:
            row |= _proof_figures(report.path)
    return sorted(runs.values(), key=lambda row: (row["generated_at"] or "", row["run_id"]), reverse=True)


def _proof_figures(proof: Path | None) -> dict[str, Any]:
    """The figures of a proof for a list; one that cannot be read is damaged, none at all has no status."""
    from holdfast.prove.reports.document import Problem, parse

    names = ("generated_at", "proof_status", "reward_delta", "p_value", "safety_regression", "gate")
    blank: dict[str, Any] = dict.fromkeys(names)
    if proof is None:
        return blank
    try:
        data = parse(proof.read_bytes())
        if isinstance(data, Problem):
            return {**blank, "proof_status": "damaged"}
        analysis, decision = data["failure_analysis"], data["decision"]
        gate = None if decision is None else "open" if decision["open"] else "closed"
        figures = (analysis["reward_delta"], data["significance"]["p_value"], analysis["safety_regression"])
        said = (str(data["generated_at"]), str(data["proof_status"]), *map(float, figures), gate)
    except (KeyError, TypeError, ValueError, OSError):
        return {**blank, "proof_status": "damaged"}
    return dict(zip(names, said, strict=True))


@app.command("show")
def show_one(
    name: Annotated[str, Argument(metavar="RUN|FILE", help="A run, the id of its reports, or a file.")],
    at: ReportsOptions,
) -> Output:
    """Show a proof or a report, and whether it is true. Exits 1 when it is not."""
    from holdfast.prove.reports.document import Problem, parse
    from holdfast.prove.reports.validate import validate

    path = _named(name, at.folder)
    with show.progress("recomputing", None):
        problems = validate(path)
    data = parse(path.read_bytes())
    document = None if isinstance(data, Problem) else data
    is_finite = not any(problem.why == "must be a finite number" for problem in problems)
    payload = {"file": path, "document": document if is_finite else None, "problems": _problem_records(problems)}
    verdict = ["true, recomputed from its samples"]
    if problems:
        verdict = [_how_many(problems), f"all problems: holdfast prove report validate {near(path)}"]
    shown = [*(() if document is None else _figures(document)), near(path), *verdict]
    return Output(payload, shown, int(bool(problems)))


def _figures(data: dict[str, Any]) -> Iterator[Text]:
    """Lists every figure except samples and hashes, and then the sentences."""
    hidden = {"schema_version", "samples", "seal", "sha256", "artifacts", "reports", "publication"}
    words, rows = [], []
    for name, value in data.items():
        for key, inner in value.items() if isinstance(value, dict) else [("", value)]:
            place = f"{name}.{key}".rstrip(".")
            if place in ("failure_analysis.summary", "outcome.sentence", "diagnostics"):
                words += inner if isinstance(inner, list) else [inner]
            elif name not in hidden:
                rows.append((place, _figure(inner)))
    yield show.table(("figure", "~value"), rows)
    yield from map(fold, words)


def _figure(value: object) -> str:
    if isinstance(value, list):
        return "; ".join(map(_figure, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return show.pairs(value)
    return value if isinstance(value, str) else show.one_line(value)


@app.command()
def validate(
    paths: Annotated[list[Path], Argument(metavar="PATH…", help="Reports, proofs, or folders of them.")],
) -> Output:
    """Compute every figure and verdict again from the samples. Exits 0 true, 1 not true, 2 not there."""
    from holdfast.prove.reports.validate import validate as problems_of

    files = [file for path in paths for file in _files(path)]
    answers = []
    with show.progress("recomputing", len(files)) as advance:
        for file in files:
            answers.append((file, problems_of(file)))
            advance(now=file.name)
    told = [
        {"file": file, "ok": not problems, "is_moved": _is_moved(problems), "problems": _problem_records(problems)}
        for file, problems in answers
    ]
    is_ok = not any(problems for _, problems in answers)
    return Output({"ok": is_ok, "files": told}, "\n".join(_answer_lines(answers)), int(not is_ok))


def _answer_lines(answers: list[tuple[Path, list[Problem]]]) -> Iterator[str]:
    """Folder by folder: the paths are long, and mostly the same."""
    moved, folder = sum(_is_moved(problems) for _, problems in answers), None
    if moved:
        why = "put them back, or move the whole folder that 'reports' lies in"
        yield fold(f"{show.count(moved, 'file')} intact and true, but elsewhere than they say: {why}")
    for file, problems in answers:
        if file.parent != folder:
            folder = file.parent
            yield near(folder)
        yield f"  {file.name}: {'true' if not problems else _how_many(problems)}"
        yield from (fold(f"{problem.where}: {problem.why}", "    ") for problem in problems)


def _files(path: Path) -> list[Path]:
    from holdfast.prove.reports.document import kind_of

    if path.is_dir():
        paths = sorted(file for file in path.rglob("*.json") if kind_of(file.name))
        if not paths:
            raise BadInput(
                f"folder {path}", why="holds no reports", remedy="'holdfast prove report list' shows what there is"
            )
        return paths
    if not path.is_file():
        raise BadInput(f"report {path}", why="there is none", remedy="'holdfast prove report list' shows what there is")
    return [path]


@app.command()
def archive(at: ReportsOptions, yes: Yes = False) -> Output:
    """Move reports that are old enough to the archive: copied, compared, and only then removed. Exits 1 when one is
    damaged; it is left alone."""
    from holdfast.prove.reports.validate import RetentionAction

    return _due(RetentionAction.ARCHIVE, yes, at.folder)


@app.command()
def purge(at: ReportsOptions, yes: Yes = False) -> Output:
    """Remove archived reports that are past their time; never others. Exits 1 when one is damaged; it is left alone."""
    from holdfast.prove.reports.validate import RetentionAction

    return _due(RetentionAction.PURGE, yes, at.folder)


def _due(action: RetentionAction, yes: bool, folder: Path) -> Output:
    from holdfast.prove.reports.validate import carry_out, due

    with show.progress("looking", None):
        plan = due(folder, moment_of(None))
    chosen = plan.only(action)
    wrong = [step for step in plan.steps if step.is_wrong]
    if yes:
        with show.progress(f"{action} reports", len(chosen.steps)) as advance:
            for step in carry_out(chosen):
                advance(now=step.path.name)
    kept = [_step(step) for step in plan.steps if step not in chosen.steps]
    data = {"action": action, "done": yes, "steps": [_step(step) for step in chosen.steps], "kept": kept}
    alone = [fold(f"left alone: {near(step.path)}: {step.why}") for step in wrong]
    if not chosen.steps:
        return Output(data, [f"no report is due to be {action}d in {near(folder)}", *alone], int(bool(wrong)))
    table = show.table(("~report", "~why"), [(str(step.path.relative_to(folder)), step.why) for step in chosen.steps])
    done = f"{action}d" if yes else f"would be {action}d; add --yes to do it"
    return Output(data, [table, f"{show.count(len(chosen.steps), 'report')} {done}", *alone], int(bool(wrong)))


def _step(step: RetentionStep) -> dict[str, Any]:
    return {"action": step.action, "file": step.path, "to": step.to, "why": step.why, "damaged": step.is_wrong}


def _named(what: str, folder: Path) -> Path:
    """A file as it was typed, or the proof that `report page` would show; of a run without one, what there is."""
    from holdfast.prove.reports.document import catalogue

    if what.endswith(".json") or "/" in what:
        return _files(Path(what))[0]
    reports = [report for report in catalogue(folder) if report.run == what]
    if not reports:
        return find_proof(what, folder)
    return max(reports, key=lambda report: (report.kind == "proof", not report.is_archived, report.kind)).path


def _problem_records(problems: list[Problem]) -> list[dict[str, str]]:
    return [{"where": problem.where, "why": problem.why} for problem in problems]


def _is_moved(problems: list[Problem]) -> bool:
    return bool(problems) and all(problem.is_place for problem in problems)


def _how_many(problems: list[Problem]) -> str:
    if _is_moved(problems):
        return "true, but moved"
    return f"NOT true, {show.count(len(problems), 'problem')}"
