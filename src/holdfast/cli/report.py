"""`holdfast report …`: benchmark reports and proofs; what is there, whether it is true, and how long it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show, significance
from holdfast.cli.main import PLAIN
from holdfast.cli.onward import near
from holdfast.cli.options import DEFAULT_STORE, Json, StoreAt
from holdfast.cli.page import page
from holdfast.cli.report_files import ReportsAt, find_proof, fold, moment_of, reports_folder
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.prove.reports.document import Problem
    from holdfast.prove.reports.validate import RetentionAction, RetentionStep

app = typer.Typer(
    help="Benchmark reports and proofs: list, check, publish, archive.",
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)
app.command("page")(page)
app.command("significance")(significance.significance)
app.command("safety")(significance.safety)

Yes = Annotated[bool, typer.Option("--yes", help="Really do it; without it, it is only listed.")]


@app.command("list")
def list_all(reports: ReportsAt = None, store: StoreAt = DEFAULT_STORE, json: Json = False) -> None:
    """List the published runs, newest first, with what their proofs say."""
    folder = reports_folder(reports, store)
    runs = _runs(folder)
    if json:
        show.print_json(runs)
        return
    if not runs:
        print(f"no reports in {near(folder)}")
        return
    _print_runs(runs)
    print("reward and safety cost: by how much they rose; a safety cost above 0 is worse")


def _print_runs(runs: list[dict[str, Any]]) -> None:
    """A line for each; two where their ids are so long that one would be cut."""
    from rich.console import Console

    titles = ["run", "published", "proof", ">reward", ">p", ">safety cost", "gate"]
    rows = [[run["run_id"], *_row(run)] for run in runs]
    if any(run["place"] != "active" for run in runs):
        titles, rows = [*titles, "place"], [[*row, run["place"]] for row, run in zip(rows, runs, strict=True)]
    widths = [max(map(len, column)) for column in zip([title.lstrip(">") for title in titles], *rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= Console().width:
        show.print_table(titles, rows)
        return
    for row in ([title.lstrip(">") for title in titles], *rows):
        cells = zip(titles[1:], row[1:], widths[1:], strict=True)
        figures = [cell.rjust(width) if title.startswith(">") else cell.ljust(width) for title, cell, width in cells]
        print(row[0], f"  {'  '.join(figures)}".rstrip(), sep="\n")


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
    """One row for each run: what its proof says, unchecked."""
    from holdfast.prove.reports.document import PROOF, catalogue

    runs: dict[str, dict[str, Any]] = {}
    for found in catalogue(folder):
        row = runs.setdefault(found.run, {"run_id": found.run, **_said(None), "place": "", "files": 0})
        row["files"] += 1
        place = "archive" if found.is_archived else "active"
        row["place"] = place if row["place"] in ("", place) else "both"
        if found.kind == PROOF and row["generated_at"] is None:
            row |= _said(found.path)
    return sorted(runs.values(), key=lambda row: (row["generated_at"] or "", row["run_id"]), reverse=True)


def _said(proof: Path | None) -> dict[str, Any]:
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
    what: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, the id of its reports, or a file.")],
    reports: ReportsAt = None,
    store: StoreAt = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show a proof or a report, and whether it is true. Exits 1 when it is not."""
    from holdfast.prove.reports.document import Problem, parse
    from holdfast.prove.reports.validate import validate

    path = _named(what, reports_folder(reports, store))
    with show.progress("recomputing", None):
        problems = validate(path)
    data = parse(path.read_bytes())
    if json:
        told = None if isinstance(data, Problem) or any(_is_no_number(p) for p in problems) else data
        show.print_json({"file": str(path), "document": told, "problems": _told(problems)})
    else:
        if not isinstance(data, Problem):
            _print_document(data)
        print(near(path))
        print("true, recomputed from its samples" if not problems else _how_many(problems))
        if problems:
            print(f"all problems: holdfast report validate {near(path)}")
    raise typer.Exit(1 if problems else 0)


def _is_no_number(problem: Problem) -> bool:
    return problem.why == "must be a finite number"


def _print_document(data: dict[str, Any]) -> None:
    """Every figure but the samples and the hashes, one to a line, and then what it says in words."""
    hidden = {"schema_version", "samples", "seal", "sha256", "artifacts", "reports", "publication"}
    words, rows = [], []
    for name, value in data.items():
        for key, inner in value.items() if isinstance(value, dict) else [("", value)]:
            place = f"{name}.{key}".rstrip(".")
            if place in ("failure_analysis.summary", "outcome.sentence", "diagnostics"):
                words += inner if isinstance(inner, list) else [inner]
            elif name not in hidden:
                rows.append((place, _figure(inner)))
    show.print_table(("figure", "~value"), rows)
    for line in words:
        print(fold(line))


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
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Reports, proofs, or folders of them.")],
    json: Json = False,
) -> None:
    """Compute every figure and verdict again from the samples. Exits 0 true, 1 not true, 2 not there."""
    from holdfast.prove.reports.validate import validate as problems_of

    files = [file for path in paths for file in _files(path)]
    answers = []
    with show.progress("recomputing", len(files)) as advance:
        for file in files:
            answers.append((file, problems_of(file)))
            advance(now=file.name)
    if json:
        told = [
            {"file": str(file), "ok": not found, "is_moved": _is_moved(found), "problems": _told(found)}
            for file, found in answers
        ]
        show.print_json({"ok": not any(found for _, found in answers), "files": told})
    else:
        _print_answers(answers)
    raise typer.Exit(1 if any(found for _, found in answers) else 0)


def _print_answers(answers: list[tuple[Path, list[Problem]]]) -> None:
    """Folder by folder: the paths are long, and mostly the same."""
    moved, folder = sum(_is_moved(found) for _, found in answers), None
    if moved:
        why = "put them back, or move the whole folder that 'reports' lies in"
        print(fold(f"{show.count(moved, 'file')} intact and true, but elsewhere than they say: {why}"))
    for file, found in answers:
        if file.parent != folder:
            folder = file.parent
            print(near(folder))
        print(f"  {file.name}: {'true' if not found else _how_many(found)}")
        for problem in found:
            print(fold(f"{problem.where}: {problem.why}", "    "))


def _files(path: Path) -> list[Path]:
    from holdfast.prove.reports.document import kind_of

    if path.is_dir():
        found = sorted(file for file in path.rglob("*.json") if kind_of(file.name))
        if not found:
            raise BadInput(
                f"folder {path}", why="holds no reports", remedy="'holdfast report list' shows what there is"
            )
        return found
    if not path.is_file():
        raise BadInput(f"report {path}", why="there is none", remedy="'holdfast report list' shows what there is")
    return [path]


@app.command()
def archive(yes: Yes = False, reports: ReportsAt = None, store: StoreAt = DEFAULT_STORE, json: Json = False) -> None:
    """Move reports that are old enough to the archive: copied, compared, and only then removed. Exits 1 when one is
    damaged; it is left alone."""
    from holdfast.prove.reports.validate import RetentionAction

    _due(RetentionAction.ARCHIVE, yes, reports_folder(reports, store), json)


@app.command()
def purge(yes: Yes = False, reports: ReportsAt = None, store: StoreAt = DEFAULT_STORE, json: Json = False) -> None:
    """Remove archived reports that are past their time; never others. Exits 1 when one is damaged; it is left alone."""
    from holdfast.prove.reports.validate import RetentionAction

    _due(RetentionAction.PURGE, yes, reports_folder(reports, store), json)


def _due(action: RetentionAction, yes: bool, folder: Path, json: bool) -> None:
    from holdfast.prove.reports.validate import carry_out, due

    with show.progress("looking", None):
        plan = due(folder, moment_of(None))
    chosen = plan.only(action)
    wrong = [step for step in plan.steps if step.is_wrong]
    if yes:
        with show.progress(f"{action} reports", len(chosen.steps)) as advance:
            for step in carry_out(chosen):
                advance(now=step.path.name)
    if json:
        done = [_step(step) for step in chosen.steps]
        kept = [_step(step) for step in plan.steps if step not in chosen.steps]
        show.print_json({"action": str(action), "done": yes, "steps": done, "kept": kept})
    else:
        _print_plan(chosen.steps, wrong, action, yes, folder)
    raise typer.Exit(1 if wrong else 0)


def _print_plan(
    steps: tuple[RetentionStep, ...], wrong: list[RetentionStep], action: RetentionAction, yes: bool, folder: Path
) -> None:
    if steps:
        show.print_table(("~report", "~why"), [(str(step.path.relative_to(folder)), step.why) for step in steps])
    done = f"{action}d" if yes else f"would be {action}d; add --yes to do it"
    none = f"no report is due to be {action}d in {near(folder)}"
    print(f"{show.count(len(steps), 'report')} {done}" if steps else none)
    for step in wrong:
        print(fold(f"left alone: {near(step.path)}: {step.why}"))


def _step(step: RetentionStep) -> dict[str, Any]:
    to = None if step.to is None else str(step.to)
    return {"action": str(step.action), "file": str(step.path), "to": to, "why": step.why, "damaged": step.is_wrong}


def _named(what: str, folder: Path) -> Path:
    """A file as it was typed, or the proof that `report page` would show; of a run without one, what there is."""
    from holdfast.prove.reports.document import catalogue

    if what.endswith(".json") or "/" in what:
        return _files(Path(what))[0]
    found = [one for one in catalogue(folder) if one.run == what]
    if not found:
        return find_proof(what, folder)
    return max(found, key=lambda one: (one.kind == "proof", not one.is_archived, one.kind)).path


def _told(problems: list[Problem]) -> list[dict[str, str]]:
    return [{"where": problem.where, "why": problem.why} for problem in problems]


def _is_moved(problems: list[Problem]) -> bool:
    return bool(problems) and all(problem.is_place for problem in problems)


def _how_many(problems: list[Problem]) -> str:
    if _is_moved(problems):
        return "true, but moved"
    return f"NOT true, {show.count(len(problems), 'problem')}"
