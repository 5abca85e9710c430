"""`python -m experiments turns`: does credit by turn help? The same warm model practises with it and without.

All arms of a seed begin with the same weights, get the same tasks and as many rollouts, and are measured on the same
held-out tasks; only the credit differs. The seeds are what is drawn: an interval over five of them is wide, as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.trials import carry_out, check
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt

if TYPE_CHECKING:
    from holdfast.contracts.experience import Experience
    from holdfast.contracts.run import StepRecord
    from holdfast.pipeline.run import DurableRun, RunSpec

KIND = "turns"
OFF = "off"
ARMS = (OFF, "turn_reward", "progress")  # and which measure of a turn its credit is read from
BEFORE = "before"
FAMILIES = ("two", "three", "flaky")  # two and three steps, and a tool that is busy at first
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrial:
    """One seed, all arms."""

    seed: int = 0
    model: str = "sprout-weak"
    turn_credit: float = 0.5  # half of it is the outcome's
    test_tasks: int = 120  # held out; the same for every seed
    warm_up_target: float = 0.35
    warm_up_rounds: int = 12
    probe_tasks: int = 48
    steps: int = 10
    tasks: int = 8  # a step
    samples: int = 8  # attempts at each
    rate: float = 3e-4
    workers: int = 64


def quick(trial: TurnTrial) -> TurnTrial:
    """Shows that everything runs, and proves little."""
    return replace(trial, test_tasks=12, probe_tasks=12, warm_up_rounds=1, steps=1, tasks=3, samples=4)


def spec_for(trial: TurnTrial) -> RunSpec:
    from holdfast.workloads.tooluse.quickstart import training_spec
    from holdfast.workloads.tooluse.score import score

    return training_spec(KIND, trial, score, partial(experiment, trial))


async def experiment(trial: TurnTrial, run: DurableRun) -> None:
    from experiments.practice import measure, practise
    from holdfast.learn.grpo import GRPO, Grpo
    from holdfast.policies.model import Model
    from holdfast.workloads.tooluse.quickstart import Quickstart, WarmUp, given
    from holdfast.workloads.tooluse.tasks import Dials, generate

    dials = Dials(families=FAMILIES)
    held_out = [given(task) for task in generate("test", 0, trial.test_tasks, dials)]
    tasks = [
        given(task)
        for step in range(trial.steps)
        for task in generate("train", trial.seed * 1000 + 1 + step, trial.tasks, dials)
    ]
    run.planned = len(ARMS) * trial.steps * trial.tasks * trial.samples + (1 + len(ARMS)) * len(held_out)
    warm: dict[str, Any] = {name: getattr(trial, name) for name in ("warm_up_rounds", "warm_up_target", "probe_tasks")}
    warm_up = WarmUp(settings=Quickstart(model=trial.model, seed=trial.seed, **warm))
    base = (await practise(run, warm_up, Model(trial.model), held_out, at="warm")).policy
    await measure(run, BEFORE, base, held_out, solved, title="before practice")
    for arm in ARMS:
        algorithm = GRPO(
            lr=trial.rate,
            steps=trial.steps,
            tasks=trial.tasks,
            samples=trial.samples,
            compare=Grpo() if arm == OFF else Grpo(mix=trial.turn_credit, turn_term=arm),
            seed=trial.seed,
            phase=f"practice-{arm}",
        )
        state = await practise(run, algorithm, base, tasks, at=arm)
        await measure(run, arm, state.policy, held_out, solved, title=f"turn credit {arm}")


def solved(experiences: Sequence[Experience | None]) -> dict[str, Any]:
    """1 for each held-out task that was solved, else 0; None where a fault of ours left it without an answer."""
    found: list[float | None] = []
    for one in experiences:
        signals = () if one is None or one.breakdown is None else one.breakdown.signals
        found.append(next((signal.value for signal in signals if signal.name == "success"), None))
    return {"solved": found}


Scores = Mapping[str, Sequence[float | None]]  # of each held-out task, by phase


def outcome(trial: TurnTrial, steps: Sequence[StepRecord]) -> tuple[TurnTrial, Scores] | None:
    """None while its last measurement is missing."""
    bodies = {str(step.body.get("phase")): step.body for step in steps}
    phases = (BEFORE, *ARMS)
    return (trial, {name: bodies[name]["solved"] for name in phases}) if set(phases) <= bodies.keys() else None


def weigh(found: Sequence[tuple[TurnTrial, Scores]]) -> dict[str, Any]:
    """The rates of each phase, and what turn credit gained, paired by seed and task; a task that any phase of any seed
    has no answer to is left out of all."""
    import numpy as np

    from holdfast.prove.estimate import difference, interval

    phases = (BEFORE, *ARMS)
    table = np.asarray([[scores[name] for name in phases] for _, scores in found], float)  # [seeds, phases, tasks]
    table = table[:, :, np.isfinite(table).all(axis=(0, 1))]
    rng = np.random.default_rng(SEED)
    rates: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(phases):
        reach = interval(table[:, place], rng=rng) if len(table) > 1 else None
        rates[name] = {"rate": float(table[:, place].mean()), "by_seed": table[:, place].mean(axis=1).tolist()}
        rates[name] |= {"low": reach and reach.low, "high": reach and reach.high}
    gains: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(ARMS[1:], 2):
        reach = difference(table[:, 1], table[:, place], rng=rng) if len(table) > 1 else None
        gains[name] = {"gain": float((table[:, place] - table[:, 1]).mean()), "helps": bool(reach and reach.low > 0.0)}
        gains[name] |= {"low": reach and reach.low, "high": reach and reach.high}
    return {"experiment": KIND, "tasks": table.shape[2], "seeds": len(table), "rates": rates, "gains": gains}


def turns(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="All arms are run with each.")] = 5,
    quick_form: Annotated[bool, typer.Option("--quick", help="A minute; proves little.")] = False,
    turn_credit: Annotated[float, typer.Option(metavar="X", min=0, max=1, help="Of the arms with it.")] = 0.5,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Let the weak embedded model practise tasks of several steps, with and without credit by turn.

    Each seed is a run of its own: Ctrl-C stops, a second call goes on.
    """
    check(KIND, None)
    from holdfast.cli.show import print_json
    from holdfast.workloads.trials import TrialKind

    trials = [TurnTrial(seed=seed, turn_credit=turn_credit) for seed in range(seeds)]
    trials = [quick(trial) for trial in trials] if quick_form else trials
    kind = TrialKind(kind=KIND, spec_for=spec_for, outcome=outcome, title=lambda trial: f"seed {trial.seed}")
    options = {"seeds": seeds, "quick": quick_form, "turn-credit": turn_credit}
    found, _ = carry_out(trials, kind, (store, project), options)
    weighed = weigh(found) | {"trials": [asdict(trial) for trial in trials]}
    if json:
        print_json(weighed)
    else:
        _tell(weighed, quick_form)


def _tell(weighed: Mapping[str, Any], is_quick: bool) -> None:
    """At most 80 columns."""
    from holdfast.cli.show import count, print_table

    print(f"{count(weighed['seeds'], 'seed')}, {weighed['tasks']} held-out tasks each, 95 % intervals over seeds\n")
    names = {BEFORE: "before practice", OFF: "credit by outcome"} | {name: f"by {name}, too" for name in ARMS[1:]}
    rows = []
    for name, title in names.items():
        rate = weighed["rates"][name]
        by_seed = " ".join(f"{one:.3f}" for one in rate["by_seed"])
        rows.append((title, f"{rate['rate']:.3f}{_reach(rate)}", by_seed))
    print_table(("", "tasks solved", "by seed"), rows)
    print("\nwhat credit by turn gained, paired by seed and task:")
    for name, told in weighed["gains"].items():
        verdict = "it helps" if told["helps"] else "not shown to help"
        print(f"  {name:<12} {told['gain']:+.3f}{_reach(told, '+')}: {verdict}")
    if is_quick:
        print("(so little practice shows that everything runs, not what is learnt)")


def _reach(told: Mapping[str, Any], sign: str = "") -> str:
    return "" if told["low"] is None else f" ({told['low']:{sign}.3f} to {told['high']:{sign}.3f})"
