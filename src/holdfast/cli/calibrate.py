"""How far a proof can be believed: its error rates, simulated and on a real run; and what a version does, as hashes.

What is counted is the business of `prove.calibrate` and `prove.golden`; the page is docs/calibration.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import CommandSet, Output, StoreOptions, Text, who, written_whole
from holdfast.cli.show import fold, local_time, near, table
from holdfast.contracts.errors import BadInput, HoldfastError

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Finding, Interval
    from holdfast.contracts.run import RunRecord
    from holdfast.operate.guard_attacks import AttackRate
    from holdfast.pipeline.calibrate import GateRate
    from holdfast.prove.calibrate import ErrorRate, ErrorRates, GuardRate, Null, Power
    from holdfast.prove.golden import Golden, GoldenChange
    from holdfast.prove.suite import Suite
    from holdfast.store.store import Store


EXPERIMENTS, QUICK, ALPHA = 10_000, 200, 0.05
PER_TRAFFIC, LEAST_TRAFFIC = 25, 80  # of so many experiments one is made of whole traffic; where that is few, none

NULL_COLUMNS = ("shape", ">tasks", ">seeds", ">false promotions", ">99 % interval", ">z-test, as often")
POWER_COLUMNS = ("shape", ">gain", ">tasks", ">power", ">mean tasks", ">fixed n", ">episodes saved")
ATTACK_COLUMNS = ("attack", ">tasks", ">units", ">opened", ">99 % interval", "≤ α", ">verdict")
TRAFFIC_COLUMNS = ("attack", "must", ">breach", ">clear", ">promoted", ">outcomes", "as it must")
GATE_COLUMNS = ("gain", ">tasks", ">opened", ">99 % interval", ">episodes", ">seen", ">stated", ">covered")
GUARD_COLUMNS = ("metric", ">false breach", ">false clear", ">cleared", ">after", ">2×", ">after", ">5×", ">after")

PAGE = """# How often a proof is wrong

Made by `{command}`; the same seed gives the same file.

A row of the first two tables is {experiments:,} simulated experiments. The test that judges real runs looks at each of
them after every task, at α = {alpha:g}. Intervals are Wilson's, at 99 %. The command exits 1 when one lies wholly above
its α.

## Nothing to promote

Both versions are equally good in the mean (under *safety* the candidate is worse by exactly what is allowed), so every
promotion is an error. The highest rate is {worst:.2%} ({worst_shape}). The z-test is a plain paired one, one-sided at
the same α, and is looked at after every task from the {z_from}th on.

{nulls}

## Something to promote

*Power* is the share that is promoted within the tasks that there are. *Fixed n* is how many tasks a z-test with one
look at the end needs for the same power. *Episodes saved* are against it, of both versions, with all seeds; below 0,
being allowed to look cost more than stopping early gave back.

{powers}

## The whole gate, under attack

The bets are not the whole of it: held-out tasks have an order, copies and families, episodes go missing, and the gate
asks for more than a verdict. Here outcomes are simulated and all else is production: order, units, what is assumed of
the missing, looks after every {batch} tasks, evidence and decision. None of these candidates is better in truth (the
last one is, with one seed alone), so every opening is an error. *Units* are what counts after copies and documents are
merged; *verdict* is the share whose bets alone would promote.

{attacks}

## The whole gate, with something to promote

Up to {gate_tasks} tasks with {gate_seeds} seeds, half of which succeed. *Episodes* are of both versions until it ended.
Among those that opened, *seen* is the mean gain that was measured, which is too high because a high one stops;
*stated* is the headline's, corrected for the stop: over all proofs, opened or not, the truth is above it with at least
even odds. Among those that opened it need not be, least of all where the gain is small: there it may still be too
high. *Covered* is how often the headline's 95 % confidence sequence holds the truth. Of the gains with a verdict, the
gate's other checks closed {vetoed:.2%}.

These rows have the whole of α. In a history of candidates the first on a set of tasks has α/4 and later ones less
(decision 0019). At +10, with 400 tasks and 2 seeds, the bets alone then prove 0.89 of the first at α = 0.05, 0.86 of
the second, 0.84 of the third, 0.69 of the tenth and 0.40 of the fiftieth.

{gates}

## The guard of a canary

A row is {canaries:,} canaries of up to {outcomes} outcomes, with three live outcomes beside each. *False breach* and
*false clear* are counted exactly at the limit: the first may happen to {each:.2%} of them (α over {metrics} metrics),
the second to {alpha:.2%}. *Cleared* is the share of canaries as good as live that is proved to be within the limit;
*2×* and *5×* are the shares caught when they are two and five times as far off as is allowed; *after* is the mean
number of the canary's outcomes until then. These three rest on a quarter as many canaries.

{guards}
"""

TRAFFIC = """
## The guard and experiments, under attack

A row is {experiments} simulated services, routed, counted and judged by the functions that do so in production.
*Must* says what has to happen: *breach* and *promotion* mostly; *no breach*, *no clear* and *no promotion* but for α.

{rows}
"""

Seed = Annotated[int, Option("--seed", metavar="N", min=0, help="Of the chance; the same seed, the same figures.")]


def calibrate(
    experiments: Annotated[int, Option(metavar="N", min=100, max=1_000_000, help="Of each shape.")] = EXPERIMENTS,
    quick: Annotated[bool, Option("--quick", help=f"{QUICK:,} experiments: rougher, in half a minute.")] = False,
    alpha: Annotated[float, Option(metavar="A", help="The rate that is promised.")] = ALPHA,
    seed: Seed = 0,
    output: Annotated[Path | None, Option(metavar="FILE", help="Write the page there too.")] = None,
    workers: Annotated[int, Option(metavar="N", min=1, help="Processes; the figures are the same.")] = 1,
) -> Output:
    """Measure how often the gate promotes an equal version, analysed after every task. Exits 1 if above α.

    The whole form also sends traffic at the guard and at experiments, which takes longest; --quick leaves that out.
    """
    from holdfast.operate.guard_attacks import ATTACKS, AttackRate, attack_row
    from holdfast.pipeline.calibrate import STEPS, GateRate, gate_row
    from holdfast.prove import calibrate as rates
    from holdfast.prove.comparison import ComparisonConfig

    if output is not None:
        _check_output(output)
    ComparisonConfig(alpha=alpha)  # what no proof could promise is refused before any work
    asked: dict[str, Any] = {"experiments": QUICK if quick else experiments, "alpha": alpha, "seed": seed}
    many = int(asked["experiments"]) // PER_TRAFFIC
    traffic = {**asked, "experiments": many}
    jobs: list[Any] = [partial(rates.rate_row, place, **asked) for place in range(rates.STEPS)]
    jobs += [partial(gate_row, place, **asked) for place in range(STEPS)]
    jobs += [partial(attack_row, place, **traffic) for place in range(len(ATTACKS) if many >= LEAST_TRAFFIC else 0)]
    made: list[Any] = []
    with show.progress("calibrating", len(jobs)) as advance:
        for row in rates.in_processes(jobs, workers):
            made.append(row)
            advance(now=next(str(told) for name in ("shape", "metric", "name") if (told := getattr(row, name, None))))
    gates = [row for row in made if isinstance(row, GateRate)]
    served = [row for row in made if isinstance(row, AttackRate)]
    rows = [row for row in made if not isinstance(row, GateRate | AttackRate)]
    found = rates.gathered(rows, **asked)
    if output is not None:
        with written_whole(output) as file:
            file.write(page(found, gates, served))
    is_within = found.is_within and all([*(row.is_within for row in gates), *(row.is_within for row in served)])
    return Output(_record(found, gates, served), _rate_lines(found, gates, served), int(not is_within))


def null(
    run: Annotated[str, Argument(metavar="RUN", help="A run of 'holdfast prove run --null'.")],
    at: StoreOptions,
    repetitions: Annotated[
        int, Option(metavar="N", min=1, max=100_000, help="Experiments drawn from its pairs.")
    ] = 200,
    tasks: Annotated[
        int | None, Option(metavar="N", min=10, help="Of each; without it, all pairs are dealt out once.")
    ] = None,
    alpha: Annotated[
        float | None, Option(metavar="A", help="The rate that is promised; the run's own if not given.")
    ] = None,
    seed: Seed = 0,
) -> Output:
    """Draw experiments from the pairs of a version against itself, and count promotions. Exits 1 if too many."""
    import numpy as np

    from holdfast.prove import calibrate as rates
    from holdfast.prove.comparison import ComparisonConfig, pairs, reach

    with at.existing() as opened:
        settings = _settings_of_null(opened.runs.get(run))
        from holdfast.pipeline.paired import episodes_of_run

        baseline, candidate = episodes_of_run(opened, run)
    how = ComparisonConfig(
        primary=settings["primary"],
        alpha=settings["alpha"] if alpha is None else alpha,
        reward_range=tuple(settings["reward_range"]),
        max_cost=settings["max_cost"],
        max_safety_regression=settings["max_safety_regression"],
    )
    pool, before, after = pairs(baseline, candidate, how.primary)
    most = reach(how, how.primary)
    counted = rates.null(
        (after - before).mean(axis=1) if pool else np.zeros(0),
        repetitions=repetitions,
        alpha=how.alpha,
        low=-most,
        high=most,
        tasks=tasks,
        rng=np.random.default_rng(seed),
    )
    return Output(counted, "\n".join(_null_lines(counted, before.size)), int(not counted.is_within))


def _record(found: ErrorRates, gates: Sequence[GateRate], served: Sequence[AttackRate]) -> dict[str, Any]:
    return {
        **asdict(found),
        "attacks": {row.name: asdict(row) for row in gates if row.effect is None},
        "gates": {row.name: asdict(row) for row in gates if row.effect is not None},
        "traffic": {row.name: asdict(row) for row in served},
    }


def page(rates: ErrorRates, gates: Sequence[GateRate], served: Sequence[AttackRate] = ()) -> str:
    """The published tables; nothing in them depends on when or where they were made."""
    from holdfast.pipeline.calibrate import SEEDS, TASKS
    from holdfast.pipeline.prove import ProveConfig
    from holdfast.prove.calibrate import Z_FROM

    attacks, gains = ([row for row in gates if (row.effect is None) is one] for one in (True, False))
    crossed = sum(row.verdicts * row.experiments for row in gains)

    given = (("experiments", EXPERIMENTS), ("alpha", ALPHA), ("seed", 0))
    words = [f"--{name} {getattr(rates, name):g}" for name, usual in given if getattr(rates, name) != usual]
    worst = max(rates.nulls, key=lambda row: row.rate)
    tables = PAGE.format(
        command=" ".join(["holdfast prove calibrate", *words, "--output docs/calibration.md"]),
        experiments=rates.experiments,
        alpha=rates.alpha,
        worst=worst.rate,
        worst_shape=worst.shape,
        z_from=Z_FROM,
        nulls=_markdown((*NULL_COLUMNS, "what it is"), [(*_null_cells(row), row.about) for row in rates.nulls]),
        powers=_markdown((*POWER_COLUMNS, "what it is"), [(*_power_cells(row), row.about) for row in rates.powers]),
        batch=ProveConfig().batch,
        attacks=_markdown((*ATTACK_COLUMNS, "what it is"), [(*_attack_cells(row), row.about) for row in attacks]),
        gate_tasks=TASKS,
        gate_seeds=SEEDS,
        vetoed=1.0 - sum(row.opened for row in gains) / crossed if crossed else 0.0,
        gates=_markdown((*GATE_COLUMNS, "what it is"), [(*_gate_cells(row), row.about) for row in gains]),
        canaries=rates.guards[0].experiments,
        outcomes=rates.guards[0].outcomes,
        each=rates.alpha / len(rates.guards),
        metrics=len(rates.guards),
        guards=_markdown(("limit", *GUARD_COLUMNS), [(f"{row.limit:g}", *_guard_cells(row)) for row in rates.guards]),
    )
    return tables + TRAFFIC.format(experiments=served[0].experiments, rows=traffic_table(served)) if served else tables


def _attack_cells(row: GateRate) -> tuple[str, ...]:
    rates = (f"{row.rate:.2%}", _interval(row.interval), "yes" if row.is_within else "NO", f"{row.verdicts:.1%}")
    return row.name, str(row.tasks), str(row.units), *rates


def _traffic_figures(row: AttackRate, form: str) -> list[str]:
    values = ((row.breached, form), (row.cleared, form), (row.promoted, form), (row.outcomes_until_breach, ".0f"))
    return ["" if value is None else format(value, how) for value, how in values]


def _traffic_cells(row: AttackRate) -> tuple[str, ...]:
    return row.name, row.must, *_traffic_figures(row, ".0%"), "yes" if row.is_within else "NO"


def traffic_table(rows: Sequence[AttackRate]) -> str:
    columns = (
        "attack",
        "what it is",
        "must",
        ">breach",
        ">clear",
        ">promoted",
        ">outcomes until breach",
        ">99 % interval",
    )
    ends = [f"{row.interval.low:.1%}–{row.interval.high:.1%}" for row in rows]
    cells = [
        (row.name, row.about, row.must, *_traffic_figures(row, ".1%"), end) for row, end in zip(rows, ends, strict=True)
    ]
    return _markdown(columns, cells)


def _gate_cells(row: GateRate) -> tuple[str, ...]:
    gains = (f"{100 * value:+.1f}" for value in (row.seen, row.stated))
    rates = (f"{row.rate:.1%}", _interval(row.interval), f"{row.mean_episodes:.0f}")
    return row.name, str(row.tasks), *rates, *gains, f"{row.covered:.1%}"


def _rate_lines(found: ErrorRates, gates: Sequence[GateRate], served: Sequence[AttackRate]) -> Iterator[Text]:
    yield (
        f"nothing to promote: {found.experiments:,} experiments each, looked at after every task, α = {found.alpha:g}"
    )
    yield show.table(NULL_COLUMNS, map(_null_cells, found.nulls))
    yield "\nsomething to promote; fixed n: tasks that one look needs for the same power"
    yield show.table(POWER_COLUMNS, map(_power_cells, found.powers))
    yield "\nthe whole gate, under attack; verdict: what the bets alone would promote"
    yield show.table(ATTACK_COLUMNS, [_attack_cells(row) for row in gates if row.effect is None])
    yield "\nthe whole gate, with something to promote; gains seen and stated, in points"
    yield show.table(GATE_COLUMNS, [_gate_cells(row) for row in gates if row.effect is not None])
    yield "\nthe guard: at its limit; as good as live; 2 and 5 times as far off as allowed"
    yield show.table(GUARD_COLUMNS, map(_guard_cells, found.guards))
    if served:
        yield "\nthe guard and experiments, under attack: shares of simulated services"
        yield show.table(TRAFFIC_COLUMNS, map(_traffic_cells, served))
    bad = [row.shape for row in found.nulls if not row.is_within]
    bad += [f"gate, {row.name}" for row in gates if not row.is_within]
    bad += [f"traffic, {row.name}" for row in served if not row.is_within]
    bad += [f"guard of {row.metric}" for row in found.guards if not row.is_within]
    yield (
        f"\n{', '.join(bad)}: above α beyond simulation error"
        if bad
        else "\nno rate is above its α beyond simulation error"
    )


def _null_lines(counted: Null, episodes: int) -> Iterator[str]:
    from holdfast.prove.calibrate import WANTED_PAIRS

    if episodes < WANTED_PAIRS:
        yield f"{episodes:,} paired episodes, and {WANTED_PAIRS:,} are wanted: a rate of this few is a rough one"
    if not counted.is_disjoint:
        enough = counted.tasks * counted.repetitions
        yield f"{counted.pool:,} tasks, and {enough:,} are needed: repetitions share some, and are not independent"
    yield f"{counted.repetitions} experiments of {counted.tasks} tasks, with a look after each"
    yield f"promoted  {counted.promoted} ({counted.rate:.1%}, 99 % interval {_interval(counted.interval)})"
    yield f"rejected  {counted.rejected}"
    says = "within" if counted.is_within else "above"
    yield f"{says} α = {counted.alpha:g}: chance explains up to {counted.most} promotions"


def _null_cells(row: ErrorRate) -> tuple[str, ...]:
    return (row.shape, str(row.tasks), str(row.seeds), f"{row.rate:.2%}", _interval(row.interval), f"{row.z_rate:.1%}")


def _power_cells(row: Power) -> tuple[str, ...]:
    saved = f"{row.saved_episodes:+.0f} ({row.saved_share:+.0%})"
    tasks = (str(row.tasks), f"{row.power:.1%}", f"{row.mean_tasks:.0f}", str(row.fixed_tasks))
    return row.shape, f"{row.effect:+g}", *tasks, saved


def _guard_cells(row: GuardRate) -> tuple[str, ...]:
    counts = (row.outcomes_until_clear, row.outcomes_until_caught, row.outcomes_until_caught_broken)
    shares = (row.cleared, row.caught, row.caught_broken)
    pairs = (cell for share, n in zip(shares, counts, strict=True) for cell in (f"{share:.0%}", f"{n:.0f}"))
    return row.metric, f"{row.false_breach:.2%}", f"{row.false_clear:.2%}", *pairs


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = [column.lstrip(">~") for column in columns]
    sides = ["--:" if column.startswith(">") else "---" for column in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, sides, *rows))


def _interval(interval: Interval) -> str:
    return f"{100 * interval.low:.2f}–{100 * interval.high:.2f}%"


def _settings_of_null(run: RunRecord) -> dict[str, Any]:
    """Returns how the run was judged; refuses one that did not compare a version with itself."""
    if not run.settings.get("is_null"):
        is_comparison = run.kind == "prove"
        why = "compares two versions: to promote one need not be an error" if is_comparison else f"is a {run.kind}"
        raise BadInput(f"run {run.id}", why=why, remedy="make one with 'holdfast prove run … --null'")
    how: dict[str, Any] = run.settings["how"]
    return how


def _check_output(output: Path) -> None:
    if output.is_dir() or not output.parent.is_dir():
        why = "is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        raise BadInput(f"--output {output}", why=why, remedy="name a file in a folder that is there")


SHOWN = 20  # cases of a difference

golden_app = CommandSet("Record what a version does on a suite and detect when it changes.")

SuiteAt = Annotated[str, Argument(metavar="SUITE", help="A file, or tooluse:COUNT[:SEED[:DIALS]].")]
VersionOf = Annotated[
    str, Option("--version", metavar="VERSION", help="sprout, a folder, a checkpoint, or policy@number.")
]
Called = Annotated[str | None, Option("--name", metavar="NAME", help="Of the golden; the suite's if not given.")]
Known = Annotated[
    str, Argument(metavar="NAME", help="A golden, as 'holdfast prove golden list' has it, or the suite it is of.")
]


@golden_app.command("record")
def record_golden(suite: SuiteAt, version: VersionOf, at: StoreOptions, name: Called = None) -> Output:
    """Run every case once, deterministically, and record observations, actions and rewards."""
    from holdfast.prove.golden import as_dict, write
    from holdfast.workloads.tooluse.suite import suite_of

    cases = suite_of(suite)
    called = _name(cases.suite_id if name is None else name)
    with at.open() as opened:
        path = _folder(opened) / f"{called}.json"
        if path.exists():
            remedy = (
                f"'holdfast prove golden replay {called} --version …' and '… sign {called}', or give another --name"
            )
            raise BadInput(f"golden {called}", why=f"is there already, in {near(path)}", remedy=remedy)
        made = replace(_replayed(opened, cases, version, called), suite_at=_whole(suite))
        write(path, made)
    about = fold(f"{made.name} {made.sha256[:12]}: {made.version} on {made.suite}, {len(made.cases)} cases")
    measured = fold(", ".join(f"{name} {value:.4g}" for name, value in made.kpis.items()), "  ")
    return Output(as_dict(made), f"{about}\n{measured}\n  {near(path)}")


@golden_app.command("replay")
def replay_golden(golden: Known, version: VersionOf, at: StoreOptions, name: Called = None) -> Output:
    """Run every case again and compare it with the golden. Exits 1 on a change that nobody has signed."""
    from holdfast.prove.golden import REPLAY, check, read, signed, write
    from holdfast.workloads.tooluse.suite import suite_of

    with at.open(create=False) as opened:
        called = _known(golden, _folder(opened)) if name is None else _name(name)
        kept = read(_folder(opened) / f"{called}.json")
        suite = kept.suite_at if golden == called else golden
        if not suite:
            remedy = f"give the suite: 'holdfast prove golden replay SUITE --name {called} --version {version}'"
            raise BadInput(f"golden {called}", why=f"does not say where its suite lies, {kept.suite}", remedy=remedy)
        if suite == "town":
            why, remedy = "is of a town, and its script lives it", "'holdfast town golden' lives it again"
            raise BadInput(f"golden {called}", why=why, remedy=remedy)
        cases = suite_of(suite)
        if kept.suite_sha256 != cases.fixture_sha256:
            why = f"is of another suite: {kept.suite}, not {cases.title}"
            raise BadInput(f"golden {called}", why=why, remedy="give that suite, or record this one by another --name")
        made = replace(_replayed(opened, cases, version, called), suite_at=_whole(suite))
        write(_folder(opened) / f"{called}{REPLAY}.json", made)
        findings = check(kept, made, signed=signed(opened))
    return compared(kept, made, findings)


@golden_app.command("diff")
def diff_golden(
    name: Known,
    at: StoreOptions,
    other: Annotated[str | None, Argument(metavar="OTHER", help="Another one; its last replay.")] = None,
) -> Output:
    """Show the differences between a golden and its last replay, or another golden. Exits 1 as replay does."""
    from holdfast.prove import golden as goldens

    with at.existing() as opened:
        folder = _folder(opened)
        called = _known(name, folder)
        one = goldens.read(folder / f"{called}.json")
        file = f"{called}{goldens.REPLAY}" if other is None else _known(other, folder)
        two = goldens.read(folder / f"{file}.json")
        findings = goldens.check(one, two, signed=goldens.signed(opened))
    return compared(one, two, findings)


@golden_app.command("sign")
def sign_golden(
    name: Known,
    why: Annotated[str, Option(metavar="TEXT", help="Why the change is wanted; kept in the ledger.")],
    at: StoreOptions,
) -> Output:
    """Accept the last replay as the new golden, with who and why in the ledger."""
    from holdfast.prove import golden as goldens

    with at.open(create=False) as opened:
        called = _known(name, _folder(opened))
        path = _folder(opened) / f"{called}.json"
        last = path.with_name(f"{called}{goldens.REPLAY}.json")
        kept, new = goldens.read(path), goldens.read(last)
        before = None if new.sha256 == kept.sha256 else kept.sha256
        goldens.sign(opened, new, who=who(), why=why, now=time.time(), before=before).result()
        last.replace(path)  # the ledger first: what is in place unsigned would be a change that nobody answers for
    data = {"golden": new.name, "sha256": new.sha256, "before": before, "version": new.version}
    message = fold(f"{new.name} {new.sha256[:12]} of {new.version} signed by {who()}")
    return Output({**data, "who": who(), "why": why}, message)


@golden_app.command("list")
def list_goldens(at: StoreOptions) -> Output:
    """List the goldens, and who signed them."""
    from holdfast.prove import golden as goldens

    with at.existing() as opened:
        folder, by = _folder(opened), goldens.signed(opened)
    found = [goldens.read(path) for path in sorted(folder.glob("*.json")) if not path.stem.endswith(goldens.REPLAY)]
    if not found:
        return Output([], f"no goldens; make one: holdfast prove golden record SUITE --version VERSION{at}")
    rows: list[tuple[object, ...]] = []
    for one in found:
        measured = (one.kpis.get("success"), local_time(one.recorded_at)[:16], by.get(one.sha256))
        rows.append((one.name, len(one.cases), one.suite, one.version, *measured))
    data = [{**goldens.as_dict(golden), "signed_by": by.get(golden.sha256)} for golden in found]
    return Output(data, table(("name", ">cases", "~suite", "~version", ">success", "recorded", "signed by"), rows))


def _name(name: str) -> str:
    from holdfast.prove.golden import is_name

    if not is_name(name):
        raise BadInput(f"golden {name!r}", why="must be letters, digits, - and _", remedy="give another --name")
    return name


def _known(what: str, folder: Path) -> str:
    """A golden by its name, or by the suite that it is of: the id, a file, or tooluse:COUNT[:SEED[:DIALS]]."""
    from holdfast.prove.golden import is_name
    from holdfast.workloads.tooluse.suite import is_generated, suite_of

    if is_name(what) and (folder / f"{what}.json").exists():
        return what
    if is_generated(what) or what.endswith(".json") or "/" in what:
        return _name(suite_of(what).suite_id)
    return _name(what)


def _whole(suite: str) -> str:
    """The suite's absolute path, so that it is found from any folder."""
    from holdfast.workloads.tooluse.suite import is_generated

    return suite if is_generated(suite) else str(Path(suite).absolute())


def _folder(store: Store) -> Path:
    return store.reports.parent / "golden"


def _replayed(store: Store, suite: Suite, version: str, name: str) -> Golden:
    """One pass over the suite as a run of the store."""
    from holdfast.cli.drive import drive
    from holdfast.pipeline.golden import golden_in
    from holdfast.pipeline.versions import resolve
    from holdfast.workloads.tooluse.suite import replay_of, replay_spec

    spec = replay_spec(store, replay_of(suite, resolve(store, version), name=name))
    status, _, code = drive(store, spec, None)
    golden = golden_in(store, store.steps.of_run(status.run_id))
    if golden is not None:
        return golden
    if code in (130, 143):
        raise typer.Exit(code)
    why = status.error or f"the run is {status.run_state}"
    raise HoldfastError(f"golden {name}", why=why, remedy=f"see 'holdfast run rollouts {status.run_id}'")


def compared(golden: Golden, replay: Golden, findings: tuple[Finding, ...]) -> Output:
    from holdfast.prove.golden import diff

    changes = diff(golden, replay)
    data = {"golden": golden.sha256, "replay": replay.sha256, "version": replay.version, "findings": findings}
    data["changes"] = [{"case_id": c.case_id, "what": c.what, "kpis": c.kpis} for c in changes]
    is_blocked = any(finding.count and finding.blocks for finding in findings)
    return Output(data, _change_lines(golden, replay, findings, changes, is_blocked), int(is_blocked))


def _change_lines(
    one: Golden, two: Golden, findings: tuple[Finding, ...], changes: tuple[GoldenChange, ...], is_blocked: bool
) -> Iterator[Text]:
    yield fold(f"{one.name}: {one.version} ({one.sha256[:12]}) against {two.version} ({two.sha256[:12]})") + "\n"
    yield show.table(
        ("check", ">changed", ">of", "", "~first"),
        [(f.name, f.count, f.of, "blocks" if f.count and f.blocks else "", f.detail) for f in findings],
    )
    if changes:
        yield ""
        rows = [(c.case_id, ", ".join(c.what), _moved(c)) for c in changes[:SHOWN]]
        yield show.table(("~case", "changed", "~from → to"), rows)
    if len(changes) > SHOWN:
        yield f"and {len(changes) - SHOWN} more: --json has them all"
    if is_blocked:
        yield f"\nif this is wanted: holdfast prove golden sign {one.name} --why '…'"


def _moved(change: GoldenChange) -> str:
    return ", ".join(f"{name} {before:g} → {after:g}" for name, (before, after) in change.kpis.items())
