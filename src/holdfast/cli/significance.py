"""`holdfast report significance` and `safety`: reports of samples that were measured elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import show
from holdfast.cli.onward import near
from holdfast.cli.options import DEFAULT_STORE, Json, StoreAt
from holdfast.cli.report_files import ReportsAt, fold, moment_of, reports_folder
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Episode

RunId = Annotated[str, typer.Option("--run-id", metavar="ID", help="m24- and then small letters, digits, hyphens.")]
Samples = Annotated[Path, typer.Option(metavar="FILE", help="A JSON list: numbers, or objects with task and seed.")]
Penalties = Annotated[Path | None, typer.Option(metavar="FILE", help="Safety penalties; without it those of above.")]
Alpha = Annotated[float, typer.Option(metavar="A", help="Intervals are of the level 1 − A.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of the resampling; it is kept in the report.")]
Bound = Annotated[float, typer.Option(metavar="X", help="By so much the mean safety penalty may rise.")]
Moment = Annotated[str | None, typer.Option(metavar="TIME", help="Such as 2026-07-01T12:00:00Z; without it, now.")]
Policy = Annotated[str, typer.Option("--retention", metavar="POLICY", help="archive-then-purge or retain-only.")]
RetainDays = Annotated[int, typer.Option(metavar="DAYS", help="It is purged no sooner.")]
ArchiveAfter = Annotated[int, typer.Option("--archive-after-days", metavar="DAYS", help="Then it is archived.")]
SuiteName = Annotated[str, typer.Option(metavar="NAME", help="Of the benchmark suite.")]
SuiteVersion = Annotated[str, typer.Option(metavar="VERSION", help="Of the benchmark suite.")]


def significance(
    baseline_samples: Samples,
    trained_samples: Samples,
    run_id: RunId,
    baseline_safety_samples: Penalties = None,
    trained_safety_samples: Penalties = None,
    baseline_checkpoint: Annotated[str, typer.Option(metavar="ID", help="What was measured first.")] = "baseline",
    trained_checkpoint: Annotated[str, typer.Option(metavar="ID", help="What should be better.")] = "trained",
    suite_name: SuiteName = "m24-rl-suite",
    suite_version: SuiteVersion = "1",
    min_reward_delta: Annotated[float, typer.Option(metavar="X", help="So much the mean reward must rise.")] = 0.05,
    max_safety_regression: Bound = 0.05,
    max_p_value: Annotated[float, typer.Option(metavar="P", help="The p-value must not be above it.")] = 0.05,
    min_confidence_level: Annotated[float, typer.Option(metavar="LEVEL", help="0.95 or more.")] = 0.95,
    alpha: Alpha = 0.05,
    seed: Seed = 0,
    generated_at: Moment = None,
    retention: Policy = "archive-then-purge",
    retain_days: RetainDays = 365,
    archive_after_days: ArchiveAfter = 30,
    reports: ReportsAt = None,
    store: StoreAt = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Publish all reports of two sets of samples, and the proof. Exits 1 when it fails; it is written all the same."""
    from holdfast.cli.samples import read_samples, with_penalties
    from holdfast.prove.reports.document import Retention
    from holdfast.prove.reports.report import ProofCriteria, publish

    sides = []
    for path, penalties in ((baseline_samples, baseline_safety_samples), (trained_samples, trained_safety_samples)):
        episodes = read_samples(path, "reward")
        if penalties is not None:
            episodes = with_penalties(episodes, read_samples(penalties, "safety_penalty"), penalties)
        sides.append(episodes)
    with show.progress("comparing", None):
        done = publish(
            reports_folder(reports, store),
            run_id=run_id,
            suite=(suite_name, suite_version, _measured(sides[0])),
            baseline=sides[0],
            trained=sides[1],
            checkpoints=(baseline_checkpoint, trained_checkpoint),
            criteria=ProofCriteria(
                min_reward_delta=min_reward_delta,
                max_safety_regression=max_safety_regression,
                max_p_value=max_p_value,
                min_confidence_level=min_confidence_level,
            ),
            alpha=alpha,
            seed=seed,
            generated_at=moment_of(generated_at),
            retention=Retention(policy=retention, retain_days=retain_days, archive_after_days=archive_after_days),
        )
    if json:
        files = {kind: str(path) for kind, path in done.paths.items()}
        show.print_json({"ok": done.is_pass, "files": files, "proof": done.proof})
    else:
        print(near(done.paths["proof"].parent), *(f"  {path.name}" for path in done.paths.values()), sep="\n")
        print(fold(f"proof_status={done.proof['proof_status']}: {done.proof['failure_analysis']['summary']}"))
    raise typer.Exit(0 if done.is_pass else 1)


def safety(
    baseline_safety_samples: Samples,
    trained_safety_samples: Samples,
    run_id: RunId,
    max_safety_regression: Bound = 0.05,
    suite_name: SuiteName = "m24-rl-suite",
    suite_version: SuiteVersion = "1",
    alpha: Alpha = 0.05,
    seed: Seed = 0,
    generated_at: Moment = None,
    retention: Policy = "archive-then-purge",
    retain_days: RetainDays = 365,
    archive_after_days: ArchiveAfter = 30,
    output_report: Annotated[Path | None, typer.Option(metavar="FILE", help="A copy of the report goes there.")] = None,
    reports: ReportsAt = None,
    store: StoreAt = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write the safety report alone. Exits 1 when promotion is blocked; it is written all the same."""
    from holdfast.cli.samples import read_samples
    from holdfast.prove.reports.document import Retention
    from holdfast.prove.reports.report import ProofCriteria, ReportComparison, head_at, publish_safety
    from holdfast.store.artifacts import write_atomically

    before, after = (read_samples(file, "safety_penalty") for file in (baseline_safety_samples, trained_safety_samples))
    how = ReportComparison(criteria=ProofCriteria(max_safety_regression=max_safety_regression), alpha=alpha, seed=seed)
    folder = reports_folder(reports, store)
    head = head_at(
        folder,
        run_id=run_id,
        suite=(suite_name, suite_version, _measured(before)),
        generated_at=moment_of(generated_at),
        retention=Retention(policy=retention, retain_days=retain_days, archive_after_days=archive_after_days),
    )
    if output_report is not None and not output_report.parent.is_dir():
        raise BadInput(f"--output-report {output_report}", why="its folder does not exist", remedy="make it")
    path, data = publish_safety(folder, head, before, after, how)
    if output_report is not None:
        write_atomically(output_report, path.read_bytes())
    if json:
        show.print_json({"ok": data["promotion_allowed"], "file": str(path), "report": data})
    else:
        print(near(path))
        allowed = "yes" if data["promotion_allowed"] else f"no: {', '.join(data['reason_codes'])}"
        print(fold(f"promotion_allowed={allowed}; {'; '.join(data['diagnostics'])}"))
    raise typer.Exit(0 if data["promotion_allowed"] else 1)


def _measured(episodes: list[Episode]) -> str:
    """A hash of what was measured, where samples do not say which fixtures they come from."""
    import hashlib
    import json

    keys = sorted([one.task, one.seed] for one in episodes)
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()
