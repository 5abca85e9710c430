"""`holdfast prove` measures two versions on a suite, `holdfast compare` two runs, models or prompts.

`calibrate` and `null`, which measure how often such a proof is wrong, are in `calibrate`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import calibrate, show, targets
from holdfast.cli.options import CommandSet, Output, StoreOptions, Text, check_torch, needing, store_flags, who
from holdfast.cli.show import count, local_time, progress, step
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.evidence import Outcome, comparison_row
from holdfast.contracts.lines import folded, say
from holdfast.contracts.release import Stage
from holdfast.contracts.run import RunState

if TYPE_CHECKING:
    from holdfast.api.results import Comparison
    from holdfast.contracts.evidence import MetricComparison
    from holdfast.contracts.release import Release
    from holdfast.contracts.run import RunRecord, StepRecord
    from holdfast.pipeline.more import CandidateEvidence
    from holdfast.pipeline.paired import PairedEvaluation
    from holdfast.pipeline.run import RunSpec
    from holdfast.prove.comparison import ComparisonConfig, ComparisonResult
    from holdfast.prove.suite import Suite
    from holdfast.store.store import Store


KEPT = ("episodes", "earlier")  # of a look: where its episodes lie


def view_of(store: Store, run: RunRecord, code: int = 0) -> Output:
    """Shows every interim analysis and what all episodes prove."""
    from holdfast.pipeline.paired import comparison_of, shown_looks

    with progress("weighing", None):
        looks, comparison = shown_looks(store, run.id), comparison_of(store, run.id)
    following = list(_next(store, run, comparison))
    return Output(_record(run, looks, comparison), _proof_lines(run, looks, comparison, following), code)


def _record(run: RunRecord, taken: list[StepRecord], found: ComparisonResult | None) -> dict[str, Any]:
    proof = None
    if found is not None:
        names = ("verdict", "comparisons", "adjusted", "bands", "effect", "improvement", "missing")
        proof = {"tasks": len(found.tasks), **{name: getattr(found, name) for name in names}}
        proof["interaction"] = None if found.interaction is None else asdict(found.interaction)
    looks = [{name: value for name, value in step_record.body.items() if name not in KEPT} for step_record in taken]
    return {"run": run, "looks": looks, "proof": proof}


def _proof_lines(
    run: RunRecord, taken: list[StepRecord], found: ComparisonResult | None, following: list[str]
) -> Iterator[Text]:
    """At most 80 columns."""
    error = f" ({run.error})" if run.error else ""
    yield from folded(f"{run.id} {run.state.replace('_', ' ')}{error}, begun {local_time(run.created_at)}")
    yield from folded(run.model_ref, "  ")
    if found is None:
        yield "\nnothing to compare yet"
    else:
        missing = f", {len(found.missing)} left out" if found.missing else ""
        last = taken[-1].body["look"] if taken else run.settings["continues"]["looks"]
        looks = count(int(last), "look")
        yield f"\n{found.verdict.outcome.upper()}: {count(len(found.tasks), 'task')} measured, {looks}{missing}"
        for reason in found.verdict.reasons:
            yield from folded(reason, "  ")
        if found.verdict.needs is not None and sum(found.differences) > 0.0:
            yield f"  about {found.verdict.needs} more episodes of each version may decide it"
        yield ""
        yield show.table(
            ("metric", ">difference", ">corrected", "95 %", ">p", ">p (Holm)", "candidate"),
            [_cells(metric, found.adjusted[name]) for name, metric in found.comparisons.items()],
        )
        yield ""
        for name, band in found.bands.items():
            held = "holds" if band.within else "does not hold"
            yield f"  with other {'seeds' if name == 'seed' else 'sample sizes'} the finding {held} (reported only)"
        if found.interaction is not None:
            yield f"  gains differ by seed with p {_p(found.interaction.p_value)}"
    yield from ["next:", *following]


def _next(store: Store, run: RunRecord, found: ComparisonResult | None) -> Iterator[str]:
    at = store_flags(store.url, store.project)
    if run.state is not RunState.COMPLETED:
        yield from step(f"holdfast prove run --resume {run.id}{at}", "go on where it stopped")
    elif (command := _decide(store, run)) is not None:
        yield from step(f"{command}{at}", "let the gate decide")
    is_held = found is not None and found.verdict.outcome is Outcome.HOLD
    if run.state is RunState.COMPLETED and is_held and not run.settings.get("is_null"):
        yield from step(f"holdfast prove more {run.id}{at}", "add episodes to these")
    if run.settings.get("is_null"):
        yield from step(f"holdfast prove null {run.id}{at}", "how often it would have promoted")
    yield from step(f"holdfast run rollouts {run.id} --limit 5{at}", "every try with its reward")


def _decide(store: Store, run: RunRecord) -> str | None:
    """Returns the command that brings the candidate before the gate; None unless it was measured against live."""
    known = {
        release.id: release for policy in store.releases.policies() for release in store.releases.of_policy(policy)
    }
    old, new = (known.get(str(run.settings[arm]["name"])) for arm in ("baseline", "candidate"))
    if old is None or new is None or old.policy != new.policy:
        return None
    if old.stage is not Stage.LIVE or new.stage is not Stage.CANDIDATE:
        return None
    # What came with the package, or is a text, learnt from no run; of others the gate asks for what they learnt from.
    is_untrained = new.source.startswith(("shelf:", "resources:"))
    return f"holdfast release decide {new.id} --run {run.id}{' --untrained' if is_untrained else ''}"


def _cells(one: MetricComparison, adjusted: float) -> tuple[str, ...]:
    row = comparison_row(one)
    return row.metric, row.difference, row.corrected, row.sure, _p(one.p_value), _p(adjusted), row.candidate


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


COMPARE_EPILOG = """Without --tasks A and B are runs, and nothing is run again. With --tasks they are models, as in
local/sprout or gpt-4o-mini; and with --model, too, they are prompts for that model: texts, or files as in
@brief.txt."""
LOCAL = "local/"


def compare(
    a: Annotated[str, Argument(metavar="A", help="What was: a run, a model or a prompt.")],
    b: Annotated[str, Argument(metavar="B", help="What it became.")],
    at: StoreOptions,
    tasks: Annotated[Path | None, Option(metavar="FILE", help="Measure both on these: JSONL, CSV, ...")] = None,
    agent: Annotated[str | None, Option(metavar="MODULE:FUNCTION", help="An agent, or FILE.py:FUNCTION.")] = None,
    scorer: Annotated[
        list[str] | None, Option(metavar="NAME", help="exact, FILE.py:FUNCTION, ...; may be repeated.")
    ] = None,
    model: Annotated[str | None, Option(metavar="NAME", help="A and B are prompts for this model.")] = None,
    prompt: Annotated[str, Option(metavar="NAME", help="What the agent calls that prompt.")] = "system",
    base_url: Annotated[str | None, Option(metavar="URL", help="An OpenAI-compatible endpoint.")] = None,
    seeds: Annotated[int, Option(metavar="N", min=1, max=100, help="Tries at each task, by either.")] = 2,
    alpha: Annotated[float, Option(metavar="X", help="Chance of calling better what is not.")] = 0.05,
    max_safety_regression: Annotated[
        float | None, Option(metavar="X", min=0, help="How much safety cost B may add; 0.05 unless set.")
    ] = None,
    waive_safety: Annotated[
        str | None, Option(metavar="WHY", help="Compare without measuring safety; the ledger says why.")
    ] = None,
) -> Output:
    """Compare B with A, paired by task and seed; the verdict holds however often you look at it.

    Nothing is trained, and no release moves.
    """
    if tasks is not None and not tasks.exists():
        raise BadInput(f"--tasks {tasks}", why="there is no such file", remedy="check the path")
    with progress("loading", None):
        from holdfast.api.calls import compare as compared
        from holdfast.api.inputs import Waived

    options: dict[str, Any] = {"alpha": alpha, "store": at.store, "project": at.project}
    if max_safety_regression is not None:
        options["max_safety_regression"] = max_safety_regression
    if tasks is None:
        for name, value in (
            ("--agent", agent),
            ("--scorer", scorer),
            ("--model", model),
            ("--base-url", base_url),
            ("--waive-safety", waive_safety),
        ):
            if value:
                raise BadInput(name, why="is for what is measured now", remedy="give --tasks FILE, or two runs alone")
        comparison = compared(a, b, **options)
    else:
        if agent is None:
            raise BadInput("--agent", why="is missing", remedy="name the agent that is tried with A and with B")
        policies = [_policy(one, model, prompt) for one in (a, b)]
        given: dict[str, Any] = {"agent": agent, "scorers": scorer or ["exact"], "base_url": base_url, "seeds": seeds}
        if all(isinstance(policy, str) or hasattr(policy, "texts") for policy in policies):
            given["model"] = model
        if waive_safety is not None:
            given["safety"] = Waived(waive_safety)
        comparison = compared(policies[0], policies[1], str(tasks), **given, **options)
    return Output(comparison_record(comparison), str(comparison))


def _policy(given: str, model: str | None, name: str) -> Any:
    """A model of ours, the name of one elsewhere, or a prompt."""
    if model is not None:
        from holdfast.policies.prompt import Prompt

        return Prompt({name: _text(given)})
    if not given.startswith(LOCAL):
        return given

    with needing("learn"):
        from holdfast.policies.model import Model
    return Model(given.removeprefix(LOCAL))


def _text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise BadInput(f"prompt {given}", why=f"cannot be read: {why}", remedy="check the path") from None


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    return {
        "a": comparison.names[0],
        "b": comparison.names[1],
        "is_better": comparison.is_better,
        "metric": comparison.how.primary,
        "difference": comparison.difference,
        "verdict": comparison.verdict,
        "comparisons": comparison.comparisons,
        "left_out": comparison.left_out,
        "unfinished": comparison.unfinished,
        "run": None if comparison.run is None else comparison.run.id,
    }


def more(
    held: Annotated[str, Argument(metavar="VERSION|RUN", help="The candidate, or the run that measured it.")],
    at: StoreOptions,
    tasks: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Tasks that were not measured yet: JSONL, CSV, Parquet; of a suite, a suite or tooluse:COUNT[:SEED].",
        ),
    ] = None,
    seeds: Annotated[
        int | None, Option(metavar="N", min=1, max=100, help="The same tasks, N times more each; another test.")
    ] = None,
) -> Output:
    """Collect more evidence on the same two versions; ask the gate again.

    On further tasks the test goes on where it stood, with the same α. The same tasks with further seeds are another
    test, with the α that the policy's account leaves. Without either option: as many generated tasks again, or else as
    many seeds again.
    """
    from holdfast.cli.drive import drive
    from holdfast.cli.release import decision_view

    if tasks is not None and seeds is not None:
        why = "and --seeds were both given"
        raise BadInput("--tasks", why=why, remedy="add tasks, which are worth more, or measure the same ones again")
    with needing("learn"):
        from holdfast.pipeline.more import compared, request_again, stage_of
        from holdfast.pipeline.promote import promote
    with at.existing() as opened:
        release, evidence = _held(opened, held)
        _check(opened, release, evidence)
        spec = _spec(opened, _evaluation(opened, evidence, tasks, seeds))
        status, _, code = drive(opened, spec, None)
        run = opened.runs.get(status.run_id)
        if code or release is None or not _is_decided(opened, release, evidence):
            return view_of(opened, run, code)
        measured = compared(opened, run.id, None, _suites())
        about: dict[str, Any] = {"run": measured.run, "suite": measured.suite, "charge": measured.charge}
        to = stage_of(opened, measured.runs[0])
        request = request_again(opened, release, measured.measured, **about, to=to, now=time.time())
        decided = asyncio.run(promote(opened, request, clock=time.time, who=who()))
        return decision_view({"run": measured.run, **decided}, opened.releases.get(release.id), str(at))


def spec_of(store: Store, run: RunRecord) -> RunSpec:
    """Makes the spec that resumes a run of kind prove, whatever its tasks come from."""
    from holdfast.pipeline.more import evaluation_in

    return _spec(store, evaluation_in(store, run.settings, _suites()))


def _suites() -> Any:
    from holdfast.workloads.tooluse.suite import evaluation_from

    return evaluation_from


def _spec(store: Store, evaluation: PairedEvaluation) -> RunSpec:
    from holdfast.pipeline.more import spec_of_improve
    from holdfast.workloads.tooluse.suite import evaluation_spec

    if "root" not in evaluation.source:
        return evaluation_spec(store, evaluation)
    return spec_of_improve(store, evaluation)


def _held(store: Store, held: str) -> tuple[Release | None, CandidateEvidence]:
    """The candidate, where it is one, and all that is measured of it; by its last decision, or by a run."""
    from holdfast.pipeline.more import IMPROVE, compared, decided_in, last_of, proofs, samples_of
    from holdfast.store.store import find_release

    if "@" in held:
        release = find_release(store, held)
        kept = samples_of(store, release)
        by = [run_record.id for run_record in proofs(store) if run_record.settings["candidate"]["name"] == release.id]
        run = str(kept["run"]) if kept is not None else next(iter(by), None)
        if run is None:
            remedy = f"holdfast prove run SUITE --baseline LIVE --candidate {release.id}"
            raise BadInput(f"release {release.id}", why="nothing has measured it yet", remedy=remedy)
        return release, compared(store, last_of(store, run, release.id), release.id, _suites())
    first = store.runs.get(held)
    name = str(decided_in(store, first, None)["release"]) if first.kind == IMPROVE else None
    evidence = compared(store, last_of(store, first.id, name), name, _suites())
    try:
        return store.releases.get(evidence.candidate.name), evidence
    except NotFound:
        return None, evidence


def _check(store: Store, release: Release | None, found: CandidateEvidence) -> None:
    """Checks that the candidate can still be decided about."""
    from holdfast.pipeline.paired import KIND
    from holdfast.pipeline.versions import resolve

    last = found.runs[-1]
    if found.is_null:
        raise BadInput(f"run {last.id}", why="compares a version with itself: it has no candidate")
    if last.kind == KIND and last.state is not RunState.COMPLETED:
        why = f"is {last.state.replace('_', ' ')}"
        raise BadInput(f"run {last.id}", why=why, remedy=f"holdfast prove run --resume {last.id}")
    if release is None:
        return
    if release.stage is not Stage.CANDIDATE:
        raise BadInput(f"release {release.id}", why=f"is {release.stage}, not a candidate any more")
    live = store.releases.live(release.policy)
    if live is not None and resolve(store, live.id).behaviour != found.baseline.behaviour:
        why = f"it was measured against {found.baseline.name}, and {live.id} is live"
        raise BadInput(f"release {release.id}", why=why, remedy="measure it anew, with 'holdfast prove run'")


def _evaluation(store: Store, found: CandidateEvidence, tasks: str | None, seeds: int | None) -> PairedEvaluation:
    from holdfast.pipeline.more import IMPROVE, more_of_improve
    from holdfast.workloads.tooluse.suite import more_of_suite

    if found.runs[0].kind == IMPROVE:
        return more_of_improve(store, found, tasks, seeds)
    return more_of_suite(found, tasks, seeds)


def _is_decided(store: Store, release: Release, found: CandidateEvidence) -> bool:
    """Whether a gate has decided on this evidence before: what else it asks for is known then."""
    from holdfast.pipeline.more import samples_of

    kept = samples_of(store, release)
    return kept is not None and kept["run"] in [run_record.id for run_record in found.runs]


SEEDS = 2  # below, nobody can see whether a finding holds with other chance, and the gate stays closed
SEEDS_TOLD = f"{SEEDS}, or the suite's own if more"

app = CommandSet("Prove that a version is better than another, and measure how often such a proof is wrong.")
app.command("calibrate")(calibrate.calibrate)
app.command("null")(calibrate.null)
app.command("more")(more)
app.command("targets")(targets.targets)

Name = Annotated[
    str | None, Option(metavar="VERSION", help="sprout, sprout-weak, a folder, a checkpoint, or policy@number.")
]


@app.command("run")
def run(
    at: StoreOptions,
    suite: Annotated[
        str | None, Argument(metavar="SUITE", help="A file such as examples/suites/*.json, or tooluse:COUNT[:SEED].")
    ] = None,
    baseline: Name = None,
    candidate: Name = None,
    null: Annotated[bool, Option("--null", help="The baseline against itself, with other chance.")] = False,
    batch: Annotated[int, Option(metavar="N", min=1, max=100_000, help="Cases between two looks.")] = 250,
    seeds: Annotated[
        int | None, Option(metavar="N", min=1, max=100, help="Times that every case is done.", show_default=SEEDS_TOLD)
    ] = None,
    stop_early: Annotated[bool, Option("--stop-early", help="End at the first verdict.")] = False,
    primary: Annotated[str, Option(metavar="METRIC", help="What has to improve: success or reward.")] = "success",
    alpha: Annotated[float, Option(metavar="A", help="The chance of a false verdict.")] = 0.05,
    min_effect: Annotated[float, Option(metavar="X", help="By more than this it must improve.")] = 0.0,
    max_safety_regression: Annotated[float, Option(metavar="X", help="So much may be lost in safety.")] = 0.05,
    workers: Annotated[int, Option(metavar="N", min=1, max=1024, help="Cases at a time.")] = 64,
    seed: Annotated[int, Option(metavar="N", min=0, help="Other chance.")] = 0,
    resume: Annotated[str | None, Option(metavar="RUN", help="Take up a run that stopped.")] = None,
) -> Output:
    """Run two versions on the same cases and report what is proved.

    Both get the same seeds, and every batch is analysed. Looking as often as one likes does not make a false verdict
    likelier. Ctrl-C stops it; --resume RUN goes on.
    """
    _check_prove(suite, baseline, candidate, null=null, resume=resume)
    check_torch("this run")
    from holdfast.prove.comparison import ComparisonConfig
    from holdfast.workloads.tooluse.suite import evaluation_spec

    if resume is not None:
        with at.open(create=False) as opened:
            found = _of_kind(opened.runs.get(resume))
            return _drive(opened, spec_of(opened, found), found.id)
    how = ComparisonConfig(
        primary=primary, alpha=alpha, min_effect=min_effect, max_safety_regression=max_safety_regression
    )
    given = {"batch": batch, "stop_early": stop_early, "seed": seed, "workers": workers, "is_null": null, "how": how}
    given["is_charged"] = not null
    cases = _suite(str(suite), seeds)
    with at.open() as opened:
        made = _evaluation_prove(opened, cases, str(suite), str(baseline), candidate, given)
        if not null:
            _tell_forecast(opened, made)
        return _drive(opened, evaluation_spec(opened, made), None)


@app.command("plan")
def plan(
    at: StoreOptions,
    config: Annotated[
        Path | None, Argument(metavar="CONFIG", help="The settings of 'improve': its tasks, seeds, α and margin.")
    ] = None,
    tasks: Annotated[
        int | None, Option(metavar="N", min=1, max=1_000_000, help="Held-out tasks, in place of CONFIG.")
    ] = None,
    seeds: Annotated[int | None, Option(metavar="N", min=1, max=100, help="Tries at each task.")] = None,
    base_rate: Annotated[
        float | None, Option(metavar="P", help="Success now; else what the live version had, or 0.5.")
    ] = None,
    alpha: Annotated[
        float | None, Option(metavar="A", help="Of all candidates on these tasks; the account gives each a share.")
    ] = None,
    gain: Annotated[float | None, Option(metavar="X", help="How many tasks does this gain need? As in 0.05.")] = None,
    max_safety_regression: Annotated[float | None, Option(metavar="X", help="So much may be lost in safety.")] = None,
    waive_safety: Annotated[str | None, Option(metavar="WHY", help="Forecast without a proof of safety.")] = None,
) -> Output:
    """Forecast what a proof can show, before anything is run.

    It tells which gain the tasks can prove, and how many tasks a smaller gain needs. Exits 1 where the gate could not
    open with these tasks, however good the candidate is.
    """
    if (config is None) == (tasks is None):
        why = "and CONFIG were both given" if tasks is not None else "is missing"
        raise BadInput("--tasks", why=why, remedy="give the number of held-out tasks, or the file with the settings")
    how, count, tries, line, least = _planned(config, tasks, seeds)
    with progress("loading", None):
        from holdfast.pipeline.plan import UNKNOWN_RATE, charged_next
        from holdfast.pipeline.plan import base_rate as known_rate
        from holdfast.prove.plan import forecast
    changed: dict[str, Any] = {"alpha": alpha, "max_safety_regression": max_safety_regression}
    how = replace(how, **{name: value for name, value in changed.items() if value is not None})
    how = how if waive_safety is None else replace(how, max_safety_regression=None)
    rate = base_rate
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(at.existing()) if line is not None else None
        except NotFound:  # there is none yet: nothing was charged, and nothing is known
            opened = None
        if opened is not None and line is not None and rate is None:
            rate = known_rate(opened, line, how)
        how = charged_next(how, opened, line, count if isinstance(count, list) else None)
    found = forecast(
        how,
        tasks=count if isinstance(count, int) else len(count),
        seeds=tries,
        base_rate=UNKNOWN_RATE if rate is None else rate,
        gain=gain,
        least=least,
    )
    lines = [line for one in found.lines for line in folded(one)]
    return Output(found.record(), "\n".join(lines), int(not found.is_provable))


def _planned(
    config: Path | None, tasks: int | None, seeds: int | None
) -> tuple[ComparisonConfig, int | list[Any], int, str | None, int]:
    """Returns the comparison, the tasks or their number, seeds, the line of versions, and the gate's least tasks."""
    if config is None:
        from holdfast.promote.gate import Criteria
        from holdfast.prove.comparison import ComparisonConfig

        assert tasks is not None
        return ComparisonConfig(), tasks, seeds or SEEDS, None, Criteria().least
    from holdfast.contracts.settings import ImproveBlock, load_settings

    read = load_settings(config)
    with progress("loading", None):  # the file first: the rest takes seconds
        from holdfast.pipeline.spec import comparison_config, criteria, with_tasks
    settings = with_tasks(read)
    block = settings.improve or ImproveBlock()
    if not settings.val:
        raise BadInput(f"{config}: validate", why="is empty", remedy="improvement is proved on tasks that are held out")
    found = comparison_config(settings)
    return found, list(settings.val), seeds or block.prove.seeds, block.policy, criteria(block.prove).least


@app.command("anchor")
def anchor(
    at: StoreOptions,
    policy: Annotated[str | None, Argument(metavar="POLICY", help="Which line of versions; else the only one.")] = None,
    against: Annotated[
        str | None, Option(metavar="VERSION", help="The anchor; else the first version that was live.")
    ] = None,
) -> Output:
    """Measure the live version against its anchor on held-out tasks.

    Each promotion may lose a little that nobody can see; this sees the sum. Where live is proved worse, that is exit
    code 1 and an alert. The test has an α of its own, and no release moves.
    """
    from holdfast.cli.drive import drive
    from holdfast.cli.release import _policy as policy_named

    with needing("learn"):
        from holdfast.pipeline.more import anchor_evaluation, tell_anchor
    with at.existing() as opened:
        name = policy_named(opened, policy)
        whole = None if against is None else _whole(opened, against)
        made = anchor_evaluation(opened, name, whole, _suites())
        status, _, code = drive(opened, _spec(opened, made), None)
        output = view_of(opened, opened.runs.get(status.run_id), code)
        message = tell_anchor(opened, made, status.run_id, who=who(), now=time.time())
    if message is not None:
        say(message)
    return replace(output, code=code or int(message is not None))


@app.command("show")
def show_run(
    run: Annotated[str, Argument(metavar="RUN", help="A run of 'holdfast prove run'.")], at: StoreOptions
) -> Output:
    """Show what a run has proved so far, with every interim analysis."""
    with at.existing() as opened:
        return view_of(opened, _of_kind(opened.runs.get(run)))


def _tell_forecast(store: Store, made: PairedEvaluation) -> None:
    """Says before anything runs whether these tasks can decide at all."""
    from holdfast.pipeline.leaks import leak_finding
    from holdfast.pipeline.plan import UNKNOWN_RATE, base_rate, charged_next, tell
    from holdfast.prove.plan import forecast

    policy = made.candidate.name.rpartition("@")[0]
    how, rate = made.how, None
    if policy in store.releases.policies():
        leaked = leak_finding(
            store, store.releases.get(made.candidate.name), {task.id: task.input for task in made.tasks}
        )
        if leaked.count:
            why = f"{made.candidate.name} learnt from {leaked.count} of these tasks, and no gate will open for that"
            say(f"{why}: {leaked.detail}")
        how, rate = charged_next(how, store, policy, [task.input for task in made.tasks]), base_rate(store, policy, how)
    known = UNKNOWN_RATE if rate is None else rate
    told = forecast(how, tasks=len(made.tasks), seeds=len(made.seeds), base_rate=known, least=made.least)
    tell(told)


def _check_prove(
    suite: str | None, baseline: str | None, candidate: str | None, *, null: bool, resume: str | None
) -> None:
    if resume is not None:
        if suite is not None or baseline is not None or candidate is not None or null:
            why = "a run keeps the suite and the versions it began with"
            raise BadInput("--resume", why=why, remedy="leave them out, or start a new run")
        return
    if suite is None:
        raise BadInput("SUITE", why="is missing", remedy="give a file, or tooluse:COUNT, or --resume RUN")
    if baseline is None:
        raise BadInput("--baseline", why="is missing", remedy="name a version, for example sprout-weak")
    if null == (candidate is not None):
        why = "and --null were both given" if null else "is missing"
        raise BadInput(
            "--candidate", why=why, remedy="name a version, or measure the baseline against itself by --null"
        )


def _suite(source: str, seeds: int | None) -> Suite:
    from holdfast.workloads.tooluse.suite import suite_of

    suite = suite_of(source)
    if seeds is None and len(suite.seeds) >= SEEDS:
        return suite
    return replace(suite, seeds=tuple(range(1, (seeds or SEEDS) + 1)))


def _evaluation_prove(
    store: Store, cases: Suite, source: str, baseline: str, candidate: str | None, given: dict[str, Any]
) -> PairedEvaluation:
    from holdfast.pipeline.versions import resolve
    from holdfast.workloads.tooluse.suite import evaluation_of, is_generated

    old = resolve(store, _whole(store, baseline))
    new = old if candidate is None else resolve(store, _whole(store, candidate))
    kept = source if is_generated(source) else None
    return evaluation_of(cases, kept, baseline=old, candidate=new, **given)


def _whole(store: Store, name: str) -> str:
    """The name of a release written out, where its policy was cut short."""
    from holdfast.store.store import find_release

    return name if "@" not in name or Path(name).is_dir() else find_release(store, name).id


def _of_kind(run: RunRecord) -> RunRecord:
    from holdfast.pipeline.paired import of_kind

    return of_kind(run, "compares nothing")


def _drive(store: Store, spec: RunSpec, resume: str | None) -> Output:
    from holdfast.cli.drive import drive

    status, _, code = drive(store, spec, resume)
    return view_of(store, store.runs.get(status.run_id), code)
