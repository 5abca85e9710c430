"""holdfast report page: a published proof as one HTML file, weighed again from its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing
from holdfast.cli.show import print_json, progress
from holdfast.contracts.errors import BadInput


def page(
    what: Annotated[str, typer.Argument(metavar="RUN|PROOF", help="A run, the id of its reports, or a proof's file.")],
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write it; else beside the proof.")
    ] = None,
    primary: Annotated[
        str | None, typer.Option("--primary", metavar="METRIC", help="What had to improve: success, reward or safety.")
    ] = None,
    reward_range: Annotated[
        tuple[float, float], typer.Option("--reward-range", metavar="LOW HIGH", help="All that a reward can be.")
    ] = (0.0, 1.0),
    max_cost: Annotated[
        float, typer.Option("--max-cost", metavar="COST", help="The highest safety cost that one episode can have.")
    ] = 1.0,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    as_json: Json = False,
) -> None:
    """Write a proof's page: the verdict, what would change it, and every figure it rests on.

    The page is one file that needs no network and no script, for screens, phones and paper. It shows nothing that
    cannot be computed again: a proof that does not validate has no page.
    """
    from holdfast.operate import publication
    from holdfast.operate.proof import render
    from holdfast.store.blobs import write_atomically

    proof = _proof(what, store, project)
    with progress("weighing the samples again", None):
        published = publication.read(proof)
        how = publication.weighing(published, primary=primary, reward_range=reward_range, max_cost=max_cost)
        view = publication.view(published, how)
        path = output or published.page
        if path.is_dir():
            raise BadInput(f"--output {path}", why="is a folder", remedy="name a file in it")
        write_atomically(path, render(view).encode())
    if as_json:
        told = {"page": str(path), "proof": str(proof), "run_id": published.run}
        print_json({**told, "outcome": str(view.verdict.outcome), "tasks": len(view.tasks)})
    else:
        print(path)


def _proof(what: str, store: str, project: str) -> Path:
    """The proof that is meant: a file, the id of reports, or a run of the store and then its newest reports."""
    from holdfast.prove import document

    if what.endswith(".json") or "/" in what:
        return Path(what)
    with existing(store, project) as opened:
        reports = opened.reports
    wanted = [what] if what.startswith("m24-") else []
    wanted += _of_run(reports, what)
    for run in wanted:
        for found in document.catalogue(reports):
            if found.kind == document.PROOF and found.path.name == document.active_name(document.PROOF, run):
                return found.path
    raise BadInput(f"run {what}", why=f"no proof of it under {reports}", remedy="'holdfast report list' shows all")


def _of_run(reports: Path, run: str) -> list[str]:
    """The ids of a run's reports, the last first: they are called after it, and numbered."""
    from holdfast.prove import document

    begin = "m24-" + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in run.lower()) + "-"
    names = {
        found.path.name.removeprefix("m24-benchmark-proof-").removesuffix(".json")
        for found in document.catalogue(reports)
    }
    numbered = [(int(name.removeprefix(begin)), name) for name in names if name.removeprefix(begin).isdecimal()]
    return [name for number, name in sorted(numbered, reverse=True) if name.startswith(begin)]
