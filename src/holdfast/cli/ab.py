"""`holdfast release experiment …`: versions side by side. Units get an arm and keep it, outcomes
come in, and a verdict may be asked for after every one of them.

An experiment about a flag has its variants as arms, and ends by itself: `experiment FEATURE --for 7d`. Tasks of runs
are its units and give its outcomes; units of a program's own flag come by OpenFeature, their outcomes by `record`.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from typer import Argument, Option

from holdfast.cli import flags, show
from holdfast.cli.options import CommandSet, Output, StoreOptions, Text, Why, who
from holdfast.cli.show import fold
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Experiment, ServedRequest
from holdfast.promote import experiment
from holdfast.promote.experiment import KIND, Design, ExperimentCall, arms_of, design_of, is_running, settings_of
from holdfast.promote.flags import SWITCHES, units_of

if TYPE_CHECKING:
    from holdfast.contracts.flag import Flag
    from holdfast.promote.experiment import Ruling
    from holdfast.promote.flags import Snapshot
    from holdfast.prove.guard import GuardLimits
    from holdfast.store.sql import Transaction
    from holdfast.store.store import Store

app = CommandSet("Experiments.")

BY_HAND = "by hand"  # where nobody gives a reason
Name = Annotated[str, Argument(metavar="NAME", help="The experiment's name.")]
Unit = Annotated[str, Argument(metavar="UNIT", help="A user, a conversation, a tenant.")]
Number = float | None


DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
Feature = Annotated[str, Argument(metavar="FEATURE", help="A feature, such as budgets, or the name of a flag.")]


@dataclass(frozen=True, slots=True)
class DesignOptions:
    """What decides an experiment."""

    metric: Annotated[str, Option(metavar="NAME", help="success or reward: what has to improve.")] = "success"
    reward_range: Annotated[str, Option("--range", metavar="LOW:HIGH", help="Of a reward.")] = "0:1"
    alpha: Annotated[float, Option(metavar="X", help="Chance of a wrong promotion, however often asked.")] = 0.05
    min_effect: Annotated[float, Option(metavar="X", help="The treatment must be better by more.")] = 0.0
    hoped_effect: Annotated[
        float, Option("--worthwhile", metavar="X", help="Told by 'needs' while no gain is seen.")
    ] = 0.05
    mature_after: Annotated[
        str,
        Option(metavar="TIME", help="A unit counts so long after it got its arm, as in 1h."),
    ] = "0s"
    limit: Annotated[
        list[str] | None, Option(metavar="NAME=X", help="A guardrail, such as errors=0.1 or latency=none.")
    ] = None

    def design(self, **more: Any) -> Design:
        made = Design(
            metric=self.metric,  # type: ignore[arg-type]  # it is checked there
            alpha=self.alpha,
            min_effect=self.min_effect,
            worthwhile=self.hoped_effect,
            reward_range=_range(self.reward_range),
            limits=_limits(self.limit or ()),
            mature_after=seconds_of(self.mature_after, "--mature-after", least=0.0),
            **more,
        )
        _guardrails(made, self.alpha)
        return made


@app.command()
def start(
    feature: Feature,
    at: StoreOptions,
    how: DesignOptions,
    for_: Annotated[str, Option("--for", metavar="TIME", help="How long, as in 7d, 12h or 30m.")],
    why: Why = BY_HAND,
    share: Annotated[str, Option(metavar="PERCENT", help="Of the units that get the feature.")] = "50%",
    apply: Annotated[bool, Option("--apply", help="The verdict changes the flag, and ends it.")] = False,
) -> Output:
    """Begin an experiment about a feature: 'holdfast release experiment FEATURE --for 7d' is the same.

    A share of the units gets the feature, the rest goes without; each unit keeps its arm. The units of holdfast's own
    features are the tasks of runs, or the users that tasks name; of learning, whole runs. When the time is over, the
    flag's own rules decide again, unless --apply lets the verdict change them. One experiment a flag at a time.
    """
    from holdfast.operate.switches import snapshot_of

    part, now = flags.percent_of(share) / 100.0, time.time()
    if not 0.0 < part < 1.0:
        raise BadInput(f"--share {share}", why="leaves one arm empty", remedy="give more than 0 and less than 100")
    of_flag = {"why": why, "until": now + seconds_of(for_), "apply": apply}
    with at.open(migrate=False) as opened:
        flag = _flag(snapshot_of(opened, clock=time.time, environment=os.environ), feature, at)
        design = how.design(**of_flag, flag=flag.name, live=_live(opened))
        number = 1 + sum(one.settings.get("flag") == flag.name for one in opened.trials.all(KIND))
        about: Any = {"name": f"{flag.name}-{number}", "kind": KIND, "salt": f"trial/{flag.name}-{number}"}
        trial = Experiment(**about, arms=arms_of(flag, part), created_at=now, settings=settings_of(design))
        begun = _begin(opened, trial)
    units = units_of(flag.name) or "keys that programs ask with"
    message = f"{begun.name}: begun, {_parts(begun)} of the {units}, until {show.local_time(design.until)}"
    return Output(begun, "\n".join((fold(message), *show.step(f"holdfast release experiment status {feature}{at}"))))


def _begin(store: Store, trial: Experiment) -> Experiment:
    """Begin it, and enter it into the α-account of every policy that answers meanwhile: both or neither."""
    from holdfast.pipeline.alpha_account import charge_experiment

    policies, alpha = list(_live(store)), design_of(trial).alpha
    how: dict[str, Any] = {"who": who(), "now": trial.created_at}

    def charge(tx: Transaction) -> None:
        charge_experiment(store, tx, policies, trial.name, alpha=alpha, **how)

    return store.trials.begin(trial, also=charge, **how).result()


def _live(store: Store) -> dict[str, str]:
    """Policy → the release that answers."""
    return {one: live.id for one in store.releases.policies() if (live := store.releases.live(one)) is not None}


@app.command()
def status(feature: Feature, at: StoreOptions) -> Output:
    """Show an experiment about a feature, the last where there were several: arms, sample ratio and verdict.

    Exits 1 when the arms were not filled as meant.
    """
    with at.existing() as opened:
        trial, live = _of_feature(opened, feature, at), _live(opened)
    trial, ruling, served = _ruling(at, trial.name)
    design, is_on = design_of(trial), is_running(trial, time.time())
    moved = {one: live.get(one) for one, was in design.live.items() if is_on and live.get(one) != was}
    data: dict[str, Any] = {"trial": trial, "state": "running" if is_on else "ended", "ruling": ruling}
    data |= {"flag": design.flag, "until": design.until, "apply": design.apply, "moved_releases": moved}
    data |= {"sample_ratio_p": ruling.ratio_p, "is_void": ruling.call is ExperimentCall.VOID}

    left = f"until {show.local_time(design.until)}" if is_on else "its time is over"
    lines = [fold(f"flag {design.flag}: {left}; {_next(design, ruling, at, is_on=is_on)}")]
    for policy, now_live in moved.items():
        lines.append(fold(f"{policy}: {design.live[policy]} was live when it began, {now_live} is now: both are in it"))
    lines.append(f"verdict: {_ruled(ruling)}{_reasons(ruling)}")
    return Output(data, [*_arm_lines(trial, ruling, served), *lines], int(ruling.call is ExperimentCall.VOID))


@app.command()
def stop(
    feature: Feature,
    at: StoreOptions,
    why: Why = "",
    apply: Annotated[bool, Option("--apply", help="Change the flag as the verdict wants it.")] = False,
) -> Output:
    """End an experiment about a feature now; the flag's own rules decide again, or with --apply the verdict."""
    from holdfast.operate.switches import end as ended
    from holdfast.operate.switches import ruling_of

    with at.existing() as opened:
        trial = _of_feature(opened, feature, at)
        if trial.ended_at is not None:
            raise BadInput(f"experiment {trial.name}", why=f"ended {show.local_time(trial.ended_at)}")
        ruling, settings = ruling_of(opened, trial, now=time.time()), dict(trial.settings)
        how: Any = {"who": who(), "now": time.time(), "environment": os.environ, "why": why}
        trial = replace(trial, settings={**settings, "apply": apply or settings["apply"]})
        over = ended(opened, trial, ruling, **how)
        flag = next((flag for flag in opened.flags.all() if flag.name == settings["flag"]), None)
    rules = "as before" if flag is None else "; ".join(map(flags.text_of, flag.rules)) or "no rules"
    message = f"{over.name}: ended; {ruling.call.replace('_', ' ')}; flag {settings['flag']}: {rules}"
    return Output({"trial": over, "ruling": ruling, "flag": flag}, fold(message))


def seconds_of(text: str, option: str = "--for", *, least: float = 1e-9) -> float:
    """7d, 12h, 1.5h, 30m, 90s."""
    match = DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) < least:
        raise BadInput(f"{option} {text!r}", why="is not a time", remedy="write 7d, 12h, 30m or 90s")
    return float(match[1]) * SECONDS[match[2]]


def _flag(known: Snapshot, feature: str, at: StoreOptions) -> Flag:
    """The flag of a feature, or that of this name: one that may give its variants away."""
    name = SWITCHES.get(feature.replace("-", "_"), feature)
    if name not in known.flags:
        features = ", ".join(SWITCHES)
        raise BadInput(f"feature {feature!r}", why="there is none, and no flag", remedy=f"use a flag, or {features}")
    flag = known.flags[name]
    if name in known.trials:
        remedy = f"holdfast release experiment stop {feature}{at}"
        raise BadInput(f"flag {name}", why=f"is in experiment {known.trials[name].name}", remedy=remedy)
    off = {flag.name: flag for flag in known.flags.values()}
    for one in (flag, *(off[other] for other in flag.requires if other in off)):
        if one.killed or not one.enabled or (one.expires_at is not None and one.expires_at <= known.now):
            why = "is off for everybody, so no unit could get it" if one is flag else f"needs {one.name}, which is off"
            remedy = f"holdfast release flags {'revive' if one.killed else 'enable'} {one.name}{at}"
            raise BadInput(f"flag {name}", why=why, remedy=remedy)
    return flag


def _of_feature(store: Store, feature: str, at: StoreOptions) -> Experiment:
    """The newest experiment about a feature or flag, or the one of this name."""
    name = SWITCHES.get(feature.replace("-", "_"), feature)
    for trial in store.trials.all(KIND):
        if trial.settings.get("flag") and name in (trial.settings["flag"], trial.name):
            return trial
    remedy = f"holdfast release experiment {feature} --for 7d{at}"
    raise BadInput(f"feature {feature!r}", why="there was no experiment about it", remedy=remedy)


def _next(design: Design, ruling: Ruling, at: StoreOptions, *, is_on: bool) -> str:
    """Says what happens to the flag next."""
    if design.apply:
        return "the verdict changes the flag"
    percent = {ExperimentCall.PROMOTE: 100, ExperimentCall.KEEP: 0, ExperimentCall.ROLLBACK: 0}.get(ruling.call)
    if percent is None:
        return "then its own rules decide again" if is_on else "nothing is proved: its own rules decide"
    return f"to follow the verdict: holdfast release flags rollout {design.flag} {percent}{at}"


@app.command()
def create(
    name: Name,
    at: StoreOptions,
    how: DesignOptions,
    why: Why = BY_HAND,
    arms: Annotated[str, Option(metavar="ARM:PART,…", help="The first is the control.")] = (
        "control:0.5,treatment:0.5"
    ),
) -> Output:
    """Start an experiment; its arms and metrics are fixed from now on."""
    design = how.design(why=why)
    now = time.time()
    trial = Experiment(
        name=name, kind=KIND, arms=_arms(arms), salt=f"trial/{name}", created_at=now, settings=settings_of(design)
    )
    with at.open(migrate=False) as opened:
        begun = _begin(opened, trial)
    following = f"give units their arm with: holdfast release experiment assign {name} UNIT{at}"
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
            raise BadInput(
                what, why="has no arm yet", remedy="call 'holdfast release experiment assign' before it is served"
            )
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
    message = f"recorded for {served.arm}" if is_new else "was recorded before, and stays as it was"
    return Output({"recorded": is_new, "served": served}, f"{served.id}: {message}")


@app.command("list")
def list_(at: StoreOptions) -> Output:
    """List the experiments, newest first."""
    with at.existing() as opened:
        experiments = opened.trials.all(KIND)
        units = {trial.name: sum(opened.trials.exposed(trial.name).values()) for trial in experiments}
    if not experiments:
        return Output(
            [], f"no experiments in project {at.project}; to begin one: holdfast release experiment create NAME{at}"
        )
    rows = []
    for one in experiments:
        state, begun = "running" if is_running(one, time.time()) else "ended", show.local_time(one.created_at)[:16]
        rows.append((one.name, state, begun, units[one.name], _parts(one), one.settings.get("why")))
    return Output(experiments, show.table(("experiment", "state", "begun", ">units", "~arms", "~why"), rows))


@app.command("show")
def show_(name: Name, at: StoreOptions) -> Output:
    """Show each arm's units and outcomes, and the state of each metric."""
    trial, ruling, served = _ruling(at, name)
    return Output({"trial": trial, "ruling": ruling}, _arm_lines(trial, ruling, served))


def _arm_lines(trial: Experiment, ruling: Ruling, served: list[ServedRequest]) -> Iterator[Text]:
    over = trial.ended_at or (None if is_running(trial, time.time()) else trial.settings["until"])
    state = "running" if over is None else f"ended {show.local_time(over)}"
    yield f"{trial.name}: {state}, begun {show.local_time(trial.created_at)}"
    yield fold(f"why: {show.one_line(trial.settings.get('why') or None)}", "  ")
    asked = Counter(request.arm for request in served)
    rows = [
        (arm, weight, ruling.exposed[arm], asked[arm], ruling.told[arm], ruling.means[arm])
        for arm, weight in trial.arms.items()
    ]
    metric = trial.settings.get("metric")
    yield show.table(("arm", ">part", ">units", ">requests", ">outcomes", f">mean {metric}"), rows)
    yield f"sample ratio: p {ruling.ratio_p:.3g}, told alike: p {ruling.told_p:.3g}, looked at once"


@app.command()
def verdict(name: Name, at: StoreOptions) -> Output:
    """Print the verdict of now; ask as often as you like. Exits 1 when the sample ratio is off."""
    _, ruling, _ = _ruling(at, name)
    return Output(ruling, f"{name}: {_ruled(ruling)}{_reasons(ruling)}", int(ruling.call is ExperimentCall.VOID))


def _reasons(ruling: Ruling) -> str:
    return "".join(f"\n  {reason.code}\n{fold(reason.text, '    ')}" for reason in ruling.reasons)


@app.command()
def end(name: Name, at: StoreOptions, why: Why = BY_HAND) -> Output:
    """End an experiment: no new assignments; outcomes under way may still be recorded."""
    with at.existing() as opened:
        was_over = _experiment(opened, name).ended_at is not None
        ended = opened.trials.end(name, who=who(), why=why, now=time.time()).result()
    return Output(ended, f"{name}: {'ended before' if was_over else 'ended'}, {show.local_time(ended.ended_at)}")


def _ruled(ruling: Ruling) -> str:
    """Says what to do now, or the final verdict of an experiment that has ended."""
    whom = "" if ruling.arm is None else f" ({ruling.arm})"
    call = f"{ruling.call.replace('_', ' ')}{whom}"
    if ruling.ended_at is None:
        more = "" if ruling.needs is None else f", about {show.count(ruling.needs, 'more unit')}"
        return f"{call}{more}"
    stays = "it stays undecided" if ruling.call is ExperimentCall.CONTINUE else f"the verdict stays: {call}"
    return f"ended {show.local_time(ruling.ended_at)}; {stays}"


def _ruling(at: StoreOptions, name: str) -> tuple[Experiment, Ruling, list[ServedRequest]]:
    from holdfast.operate.switches import ruling_of

    with at.existing() as opened:
        trial = _experiment(opened, name)
        with show.progress("reading outcomes", None):
            ruling, served = ruling_of(opened, trial, now=time.time()), opened.trials.served(name)
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
