"""`holdfast ab …`: versions side by side. Units get an arm and keep it, outcomes come in, and a verdict may be asked
for after every one of them.

Here the statistics of `prove` are handed to `promote.experiment`, which decides in what order they are asked.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from typer import Argument, Option

from holdfast.cli import flags, show
from holdfast.cli.options import CommandSet, Output, StoreOptions, Why, who
from holdfast.cli.show import fold
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Experiment, ServedRequest
from holdfast.promote import experiment
from holdfast.promote.experiment import KIND, Design, ExperimentCall, design_of, settings_of

if TYPE_CHECKING:
    from holdfast.promote.experiment import Ruling
    from holdfast.prove.guard import GuardLimits
    from holdfast.store.store import Store

app = CommandSet("Experiments.")

BY_HAND = "by hand"  # where nobody gives a reason
Name = Annotated[str, Argument(metavar="NAME", help="The experiment's name.")]
Unit = Annotated[str, Argument(metavar="UNIT", help="A user, a conversation, a tenant.")]
Number = float | None


@app.command()
def create(
    name: Name,
    at: StoreOptions,
    why: Why = BY_HAND,
    arms: Annotated[str, Option(metavar="ARM:PART,…", help="The first is the control.")] = (
        "control:0.5,treatment:0.5"
    ),
    metric: Annotated[str, Option(metavar="NAME", help="success or reward: what has to improve.")] = "success",
    reward_range: Annotated[str, Option("--range", metavar="LOW:HIGH", help="Of a reward.")] = "0:1",
    alpha: Annotated[float, Option(metavar="X", help="Chance of a wrong promotion, however often asked.")] = 0.05,
    min_effect: Annotated[float, Option(metavar="X", help="The treatment must be better by more.")] = 0.0,
    worthwhile: Annotated[float, Option(metavar="X", help="Told by 'needs' while no gain is seen.")] = 0.05,
    limit: Annotated[
        list[str] | None, Option(metavar="NAME=X", help="A guardrail, such as errors=0.1 or latency=none.")
    ] = None,
) -> Output:
    """Start an experiment; its arms and metrics are fixed from now on."""
    design = Design(
        metric=metric,  # type: ignore[arg-type]  # it is checked there
        alpha=alpha,
        min_effect=min_effect,
        worthwhile=worthwhile,
        reward_range=_range(reward_range),
        limits=_limits(limit or ()),
        why=why,
    )
    _guardrails(design, alpha)
    now = time.time()
    trial = Experiment(
        name=name, kind=KIND, arms=_arms(arms), salt=f"trial/{name}", created_at=now, settings=settings_of(design)
    )
    with at.open(migrate=False) as opened:
        begun = opened.trials.begin(trial, who=who(), now=now).result()
    following = f"give units their arm with: holdfast ab assign {name} UNIT{at}"
    return Output(begun, f"{begun.name}: begun, {_parts(begun)}\n{following}")


@app.command()
def assign(name: Name, unit: Unit, at: StoreOptions) -> Output:
    """Assign a unit to an arm and print it; a unit keeps its first arm."""
    with at.existing() as opened:
        arm = experiment.assign(_experiment(opened, name), unit)
        exposure = opened.trials.expose(name, unit, arm, now=time.time()).result()
    return Output(exposure, exposure.arm)


@app.command()
def record(
    name: Name,
    unit: Unit,
    at: StoreOptions,
    success: Annotated[bool | None, Option("--success/--failure", help="Whether it was good.")] = None,
    reward: Annotated[Number, Option(metavar="X", help="What it was worth.")] = None,
    latency: Annotated[Number, Option(metavar="SECONDS", min=0, help="How long it took.")] = None,
    tokens: Annotated[int | None, Option(metavar="N", min=0, help="How many it took.")] = None,
    safety_cost: Annotated[Number, Option(metavar="X", min=0, help="What harm it did.")] = None,
    error: Annotated[bool, Option("--error", help="It failed: there was no answer.")] = False,
    request: Annotated[str | None, Option("--id", metavar="ID", help="Of the request: again is harmless.")] = None,
) -> Output:
    """Record the outcome of a request of an assigned unit."""
    if not error and all(told is None for told in (success, reward, latency, tokens, safety_cost)):
        raise BadInput("ab record", why="nothing is told", remedy="give --success, --failure, --reward, --error …")
    with at.existing() as opened:
        _experiment(opened, name)
        exposure = opened.trials.exposure(name, unit)
        if exposure is None:
            what = f"experiment {name}: unit {unit!r}"
            raise BadInput(what, why="has no arm yet", remedy="call 'holdfast ab assign' before it is served")
        served = ServedRequest(
            id=request or f"ab-{uuid4().hex}",
            trial=name,
            arm=exposure.arm,
            unit=unit,
            at=time.time(),
            error=error,
            latency_s=latency,
            tokens=tokens,
            success=None if success is None else float(success),
            reward=reward,
            safety_cost=safety_cost,
        )
        is_new = opened.trials.record([served]).result() == 1
    said = f"recorded for {served.arm}" if is_new else "was recorded before, and stays as it was"
    return Output({"recorded": is_new, "served": served}, f"{served.id}: {said}")


@app.command("list")
def list_(at: StoreOptions) -> Output:
    """List the experiments, newest first."""
    with at.existing() as opened:
        found = opened.trials.all(KIND)
        units = {trial.name: sum(opened.trials.exposed(trial.name).values()) for trial in found}
    if not found:
        return Output([], f"no experiments in project {at.project}; to begin one: holdfast ab create NAME{at}")
    rows = []
    for one in found:
        state, begun = "running" if one.ended_at is None else "ended", show.local_time(one.created_at)[:16]
        rows.append((one.name, state, begun, units[one.name], _parts(one), one.settings.get("why")))
    return Output(found, show.table(("experiment", "state", "begun", ">units", "~arms", "~why"), rows))


@app.command("show")
def show_(name: Name, at: StoreOptions) -> Output:
    """Show each arm's units and outcomes, and the state of each metric."""
    trial, ruling, served = _ruling(at, name)
    return Output({"trial": trial, "ruling": ruling}, lambda: _print(trial, ruling, served))


def _print(trial: Experiment, ruling: Ruling, served: list[ServedRequest]) -> None:
    state = "running" if trial.ended_at is None else f"ended {show.local_time(trial.ended_at)}"
    print(f"{trial.name}: {state}, begun {show.local_time(trial.created_at)}")
    print(fold(f"why: {show.one_line(trial.settings.get('why') or None)}", "  "))
    asked = Counter(one.arm for one in served)
    rows = [
        (arm, weight, ruling.exposed[arm], asked[arm], ruling.told[arm], ruling.means[arm])
        for arm, weight in trial.arms.items()
    ]
    metric = trial.settings.get("metric")
    show.print_table(("arm", ">part", ">units", ">requests", ">outcomes", f">mean {metric}"), rows)
    print(f"sample ratio: p {ruling.ratio_p:.3g}, looked at once")


@app.command()
def verdict(name: Name, at: StoreOptions) -> Output:
    """Print the verdict of now; ask as often as you like. Exits 1 when the sample ratio is off."""
    _, ruling, _ = _ruling(at, name)
    reasons = [f"\n  {reason.code}\n{fold(reason.text, '    ')}" for reason in ruling.reasons]
    return Output(ruling, f"{name}: {_ruled(ruling)}{''.join(reasons)}", int(ruling.call is ExperimentCall.VOID))


@app.command()
def end(name: Name, at: StoreOptions, why: Why = BY_HAND) -> Output:
    """End an experiment: no new assignments; outcomes under way may still be recorded."""
    with at.existing() as opened:
        was_over = _experiment(opened, name).ended_at is not None
        ended = opened.trials.end(name, who=who(), why=why, now=time.time()).result()
    return Output(ended, f"{name}: {'ended before' if was_over else 'ended'}, {show.local_time(ended.ended_at)}")


def _ruled(ruling: Ruling) -> str:
    """What to do now; of one that has ended, what it came to and stays."""
    whom = "" if ruling.arm is None else f" ({ruling.arm})"
    call = f"{ruling.call.replace('_', ' ')}{whom}"
    if ruling.ended_at is None:
        more = "" if ruling.needs is None else f", about {show.count(ruling.needs, 'more unit')}"
        return f"{call}{more}"
    stays = "it stays undecided" if ruling.call is ExperimentCall.CONTINUE else f"the verdict stays: {call}"
    return f"ended {show.local_time(ruling.ended_at)}; {stays}"


def _ruling(at: StoreOptions, name: str) -> tuple[Experiment, Ruling, list[ServedRequest]]:
    from holdfast.operate.release_views import Statistics

    with at.existing() as opened:
        trial = _experiment(opened, name)
        with show.progress("reading outcomes", None):
            exposed, served = opened.trials.exposed(name), opened.trials.served(name)
            design = experiment.design_of(trial)
            statistics = Statistics(design)
            ruling = experiment.verdict(trial, exposed, served, compare=statistics.compare, guard=statistics.breaches)
    return trial, ruling, served


def _guardrails(design: Design, alpha: float) -> GuardLimits:
    from holdfast.prove.guard import METRICS, GuardLimits

    limits: dict[str, Any] = dict(design.limits)
    for name in limits:
        if name not in METRICS:
            raise BadInput(f"--limit {name}", why="is not watched", remedy=f"use one of {', '.join(METRICS)}")
    return replace(GuardLimits(alpha=alpha, reward_range=design.reward_range), **limits)


def _experiment(store: Store, name: str) -> Experiment:
    trial = store.trials.get(name)
    design_of(trial)
    return trial


def _arms(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(","):
        arm, _, weight = part.strip().rpartition(":")
        try:
            found[arm.strip()] = float(weight)
        except ValueError:
            arm = ""
        if not arm.strip():
            raise BadInput(f"--arms {part!r}", why="must be ARM:PART", remedy="write control:0.5,treatment:0.5")
    if len(found) < len(text.split(",")):
        raise BadInput(f"--arms {text}", why="names an arm twice")
    total = sum(found.values())
    if not (all(weight > 0.0 for weight in found.values()) and abs(total - 1.0) <= 1e-6):
        raise BadInput(f"--arms {text}", why=f"the parts must be above 0 and add up to 1, not {total:g}")
    return {arm: weight / total for arm, weight in found.items()}  # 0.333333 three times is meant as thirds


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise BadInput(f"--range {text}", why="must be LOW:HIGH, such as 0:1") from None


def _limits(texts: Sequence[str]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for text in texts:
        name, value = flags.pair_of(text, "--limit")
        try:
            found[name] = None if value == "none" else float(value)
        except ValueError:
            raise BadInput(f"--limit {text}", why="must be a number, or none") from None
    return found


def _parts(trial: Experiment) -> str:
    return ", ".join(f"{arm} {weight:.4g}" for arm, weight in trial.arms.items())
