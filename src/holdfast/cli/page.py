"""holdfast report page: a published proof as one HTML file, weighed again from its samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.onward import near
from holdfast.cli.options import DEFAULT_STORE, Json, StoreAt
from holdfast.cli.report_files import ReportsAt, find_proof, reports_folder
from holdfast.cli.show import print_json, progress
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.operate.proof_view import ProofView
    from holdfast.operate.publication import Publication
    from holdfast.prove.comparison import ComparisonConfig


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
    reports: ReportsAt = None,
    store: StoreAt = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write a proof's page: the verdict, what would change it, and every figure it rests on.

    The page is one file that needs no network and no script, for screens, phones and paper. It shows nothing that
    cannot be computed again: a proof that does not validate has no page.
    """
    from holdfast.operate import publication
    from holdfast.operate.proof_view import standing

    proof = find_proof(what, reports_folder(reports, store))
    with progress("weighing the samples again", None):
        published = publication.read(proof)
        how = publication.weighing(published, primary=primary, reward_range=reward_range, max_cost=max_cost)
        path, view = _written(published, how, output)
    if json:
        told = {"page": str(path), "proof": str(proof), "run_id": published.run}
        found = {"outcome": str(view.verdict.outcome), "standing": standing(view).kind, "tasks": len(view.tasks)}
        print_json(told | found)
    else:
        print(near(path))


def write_page(proof: Path, how: ComparisonConfig | None = None) -> Path:
    """The page of a proof, beside it; weighed as it was, or as can be told from the proof alone."""
    from holdfast.operate import publication

    published = publication.read(proof)
    return _written(published, how or publication.weighing(published), None)[0]


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
