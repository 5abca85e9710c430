"""How often the whole gate opens, where it should and where it should not: outcomes are simulated, all else is real.

The order of the tasks, what counts as one, what is assumed of the missing, the looks, when they end, the evidence and
the decision are those of production. Experiments whose bets never cross are left out of the slow part: without a
verdict the gate is closed. How the bets alone err is `prove.calibrate`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.evidence import Decision, Episode, Evidence, Finding, Interval
from holdfast.contracts.task import TaskItem
from holdfast.pipeline.held_out import HeldOut, batches, shuffled, united
from holdfast.pipeline.promote import evidence_from
from holdfast.pipeline.prove import ARMS, InterimAnalysis, ProveConfig, is_enough, judged, missing
from holdfast.promote.gate import Criteria, decide, needs_drawn
from holdfast.prove.calibrate import LEVEL, verdicts
from holdfast.prove.comparison import ComparisonConfig, compare_versions
from holdfast.prove.estimate import is_alike, wilson

Rates = NDArray[np.float64]  # [experiments, tasks, seeds]: the chance of success
Lost = NDArray[np.bool_]  # the same: never came back
Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, int, int]], tuple[Rates, Rates]]

TASKS, SEEDS, GAIN, FAULTS = 400, 2, 0.1, 0.02
ATTACK_SHARE, POWER_SHARE = 5, 25  # one gate for so many experiments with the bets alone; those that open take time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Two versions on held-out tasks, and what goes wrong while they are measured."""

    name: str
    about: str
    rates: Draw
    effect: float | None = None  # a gain that the gate should find; None: an attack, which it should not fall for
    tasks: Callable[[], Sequence[HeldOut]] = field(default=lambda: plain(TASKS))
    faults: float = 0.0  # share of episodes of either version that never came back, whatever they were
    hides: float = 0.0  # share of the candidate's failures on hard tasks that never came back
    most: int = 1_000_000  # experiments; fewer where almost all cross, and are then looked at to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRate:
    """How often the gate opened, and what its headlines said then."""

    name: str
    about: str
    effect: float | None
    tasks: int
    units: int  # that count
    seeds: int
    experiments: int
    opened: int
    rate: float
    interval: Interval  # Wilson's, of the rate
    verdicts: float  # share with a verdict to promote: what the gate's other checks let through of it is the rate
    mean_episodes: float  # of both versions, until it ended
    seen: float  # mean gain that was seen, among those that opened it
    stated: float  # the same, corrected for the stop
    covered: float  # share of them whose interval holds the true gain
    is_within: bool  # an attack: not above α beyond simulation error


def plain(count: int) -> list[HeldOut]:
    return [_task(f"t{n}", f"question {n}") for n in range(count)]


def _task(name: str, asked: str, **given: str) -> HeldOut:
    return HeldOut(id=name, input=TaskItem(id=name, input=asked, metadata=given).row())


def copies(tasks: int, times: int) -> list[HeldOut]:
    """Copy after copy, with another number of marks at the end."""
    return [_task(f"t{n}", f"question {n % tasks}{'!' * (n // tasks)}") for n in range(tasks * times)]


def documents(count: int, questions: int) -> list[HeldOut]:
    return [_task(f"t{n}", f"question {n}", document=f"d{n % count}") for n in range(count * questions)]


def alike(gain: float) -> Draw:
    """Draws tasks that are all equally hard."""
    return lambda rng, size: (np.full(size, 0.5), np.full(size, 0.5 + gain))


def unlike(gain: float) -> Draw:
    """Tasks differ, half of them succeed on average: Beta(2, 2), narrowed so that the gain has room everywhere."""

    def draw(rng: Rng, size: tuple[int, int, int]) -> tuple[Rates, Rates]:
        base = 0.5 + (rng.beta(2.0, 2.0, (size[0], size[1], 1)) - 0.5) * (1.0 - 2.0 * gain)
        before = np.broadcast_to(base, size)
        return before, before + gain

    return draw


def blocks(*parts: tuple[int, float]) -> Draw:
    """So many tasks of one gain after another, as they lie in the file."""
    gains = np.concatenate([np.full(count, gain) for count, gain in parts])[None, :, None]
    return lambda rng, size: (np.full(size, 0.5), 0.5 + np.broadcast_to(gains, size))


def easy_first(rng: Rng, size: tuple[int, int, int]) -> tuple[Rates, Rates]:
    """The first half is easy and the candidate gains there; on the hard half it loses as much."""
    easy = (np.arange(size[1]) < size[1] // 2)[None, :, None]
    before = np.broadcast_to(np.where(easy, 0.8, 0.3), size)
    return before, before + np.where(easy, 0.15, -0.15)


def grouped(count: int) -> Draw:
    """Tasks of a group share what each version makes of them; neither is better on average."""

    def draw(rng: Rng, size: tuple[int, int, int]) -> tuple[Rates, Rates]:
        of = np.arange(size[1]) % count
        before, after = (rng.beta(0.5, 0.5, (size[0], count, 1))[:, of] for _ in range(2))
        return np.broadcast_to(before, size), np.broadcast_to(after, size)

    return draw


def by_seed(*gains: float) -> Draw:
    """Gains that depend on the seed."""
    return lambda rng, size: (np.full(size, 0.5), 0.5 + np.broadcast_to(np.array(gains), size))


ATTACKS = (
    Scenario(name="equal", about="the same version twice, tasks differ", rates=unlike(0.0)),
    Scenario(name="equal, tasks alike", about="the same version twice", rates=alike(0.0)),
    Scenario(
        name="gains first", about="100 tasks of +15 points, then 300 of −10", rates=blocks((100, 0.15), (300, -0.1))
    ),
    Scenario(
        name="easy tasks first", about="+15 points on the easy half, which comes first, −15 after", rates=easy_first
    ),
    Scenario(
        name="copies",
        about="15 tasks, 10 copies of each",
        rates=grouped(15),
        tasks=lambda: copies(15, 10),
    ),
    Scenario(
        name="more copies",
        about="100 tasks, 10 copies of each",
        rates=grouped(100),
        tasks=lambda: copies(100, 10),
    ),
    Scenario(
        name="documents",
        about="100 documents, 4 questions to each",
        rates=grouped(100),
        tasks=lambda: documents(100, 4),
    ),
    Scenario(
        name="hides failures",
        about="equal; half of what the candidate fails at on hard tasks never comes back",
        rates=unlike(0.0),
        hides=0.5,
    ),
    Scenario(
        name="hides a few failures",
        about="equal; 2 % of all episodes are lost, and a tenth of what the candidate fails at on hard tasks",
        rates=unlike(0.0),
        faults=FAULTS,
        hides=0.1,
    ),
    Scenario(name="faults", about="equal; 10 % of all episodes are lost", rates=unlike(0.0), faults=0.1),
    Scenario(
        name="one lucky seed",
        about="+45 points with one seed, −25 with the other",
        rates=by_seed(0.45, -0.25),
        most=100,
    ),
)
POWERS = (
    *(
        Scenario(name=f"{100 * gain:+.0f}", about="tasks differ", rates=unlike(gain), effect=gain)
        for gain in (0.03, 0.05, GAIN, 0.2, 0.3)
    ),
    Scenario(name="+10, tasks alike", about="every task as hard as any other", rates=alike(GAIN), effect=GAIN),
    Scenario(
        name="+10, faults",
        about="2 % of all episodes are lost, and again of those that are measured once more",
        rates=unlike(GAIN),
        effect=GAIN,
        faults=FAULTS,
    ),
    Scenario(
        name="+10, many faults",
        about="8 % of all episodes are lost, and again of those that are measured once more",
        rates=unlike(GAIN),
        effect=GAIN,
        faults=4 * FAULTS,
    ),
)
STEPS = len(ATTACKS) + len(POWERS)


def gate_row(place: int, *, experiments: int, alpha: float, seed: int) -> GateRate:
    """Measures one attack or gain by its place in the list; its random stream depends on that place alone."""
    scenario = (*ATTACKS, *POWERS)[place]
    share = ATTACK_SHARE if scenario.effect is None else POWER_SHARE
    count = min(scenario.most, max(1, experiments // share))
    return gate_rate(
        scenario, experiments=count, alpha=alpha, rng=np.random.default_rng([seed, 16]).spawn(STEPS)[place]
    )


def gate_rate(scenario: Scenario, *, experiments: int, alpha: float, rng: Rng) -> GateRate:
    """Simulates so many experiments; those whose bets cross go through the real looks, evidence and gate."""
    tasks = list(scenario.tasks())
    units = united(tasks)
    drawn = _Drawn.of(scenario, experiments, len(tasks), rng)
    orders = [shuffled(tasks, units, seed=f"{scenario.name}/{n}") for n in range(experiments)]
    place = {task.id: at for at, task in enumerate(tasks)}
    promote, reject = _crossings(drawn, orders, place, alpha)
    is_promoted = promote < reject
    if drawn.again is not None:  # what is measured in the end of those that were held
        late, worse = _crossings(drawn.again, orders, place, alpha)
        is_promoted |= (late < worse) & (reject > len(set(units)))
    config = ProveConfig(how=ComparisonConfig(alpha=alpha), criteria=Criteria(max_p_value=alpha, require_audit=False))
    counted, metrics = 2 * SEEDS * experiments * len(tasks), []
    for n in np.flatnonzero(is_promoted):
        ended, evidence, decision = _decided(drawn, int(n), orders[n], place, config, int(promote[n]))
        counted -= 2 * SEEDS * (len(tasks) - ended)
        if decision.open:
            metrics.append(evidence.comparisons["success"])
    # Those that are proved worse end early, too; their gate is closed, so only their length is of interest.
    for n in np.flatnonzero(reject < promote):
        counted -= 2 * SEEDS * (len(tasks) - _end(orders[n], config.batch, int(reject[n]))[0])
    interval, true = wilson(len(metrics), experiments, level=LEVEL), scenario.effect or 0.0
    inside = [metric.interval.low <= true <= metric.interval.high for metric in metrics]
    return GateRate(
        name=scenario.name,
        about=scenario.about,
        effect=scenario.effect,
        tasks=len(tasks),
        units=len(set(units)),
        seeds=SEEDS,
        experiments=experiments,
        opened=len(metrics),
        rate=len(metrics) / experiments,
        interval=interval,
        verdicts=float(is_promoted.mean()),
        mean_episodes=counted / experiments,
        seen=_mean([metric.difference for metric in metrics]),
        stated=_mean([nan if metric.corrected is None else metric.corrected for metric in metrics]),
        covered=_mean(inside),
        is_within=scenario.effect is not None or interval.low <= alpha,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Outcomes of both versions as [experiments, tasks, seeds], and which of them never came back."""

    success: tuple[Rates, Rates]
    lost: tuple[Lost, Lost]
    again: _Drawn | None = None  # the same, with what was lost measured once more where that is done

    @classmethod
    def of(cls, scenario: Scenario, experiments: int, tasks: int, rng: Rng) -> _Drawn:
        size = (experiments, tasks, SEEDS)
        rates = scenario.rates(rng, size)
        first = cls.measured(scenario, rates, rng)
        if not scenario.faults and not scenario.hides:
            return first
        counts = zip(*(one.sum(axis=(1, 2)) for one in first.lost), strict=True)
        is_tried = np.array([is_alike(both, [tasks * SEEDS] * 2) for both in counts])[:, None, None]
        # With a chance of its own, which is the worst that an agent whose chance nobody sets can make of it.
        second = cls.measured(scenario, rates, rng)
        sides = []
        for arm in (0, 1):
            is_new = first.lost[arm] & is_tried & ~second.lost[arm]
            sides.append((np.where(is_new, second.success[arm], first.success[arm]), first.lost[arm] & ~is_new))
        (before, gone), (after, hidden) = sides
        return replace(first, again=cls((before, after), (gone, hidden)))

    @classmethod
    def measured(cls, scenario: Scenario, rates: tuple[Rates, Rates], rng: Rng) -> _Drawn:
        size = rates[0].shape
        before, after = ((rng.random(size) < rate).astype(np.float64) for rate in rates)
        gone, hidden = (rng.random(size) < scenario.faults for _ in range(2))
        if scenario.hides:
            hidden = hidden | ((rates[0] < 0.4) & (after == 0.0) & (rng.random(size) < scenario.hides))
        return cls((before, after), (gone, hidden))

    @property
    def assumed(self) -> tuple[Rates, Rates]:
        """Fills in missing outcomes as production does: the worst for the candidate, the best for the baseline."""
        return np.where(self.lost[0], 1.0, self.success[0]), np.where(self.lost[1], 0.0, self.success[1])

    @property
    def at_best(self) -> tuple[Rates, Rates]:
        """The reverse, which a rejection rests on."""
        return np.where(self.lost[0], 0.0, self.success[0]), np.where(self.lost[1], 1.0, self.success[1])


def _crossings(
    drawn: _Drawn, orders: Sequence[Sequence[HeldOut]], place: dict[str, int], alpha: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    worst, best = (
        np.array([_unit_gains(sides, n, order, place) for n, order in enumerate(orders)])
        for sides in (drawn.assumed, drawn.at_best)
    )
    bets: dict[str, float] = {"low": -1.0, "high": 1.0, "mean": 0.0, "alpha": alpha}
    return verdicts(worst, **bets)[0], verdicts(best, **bets)[1]


def _unit_gains(assumed: tuple[Rates, Rates], n: int, order: Sequence[HeldOut], place: dict[str, int]) -> Rates:
    places = [place[task.id] for task in order]
    before, after = (side[n, places].mean(axis=1) for side in assumed)
    starts = [at for at, task in enumerate(order) if at == 0 or task.unit is None or task.unit != order[at - 1].unit]
    sizes = np.diff([*starts, len(order)])
    return np.asarray(np.add.reduceat(after - before, starts) / sizes)


def _end(order: Sequence[HeldOut], batch: int, crossing: int) -> tuple[int, list[int]]:
    """Returns after how many tasks the first look with so many units ends, and the ends of all later looks."""
    ends, tasks, seen = [], 0, set[str]()
    for part in batches(order, batch):
        tasks += len(part)
        seen |= {task.unit or task.id for task in part}
        if len(seen) >= crossing:
            ends.append(tasks)
    return (ends[0] if ends else tasks), ends or [tasks]


def _decided(
    drawn: _Drawn, n: int, order: Sequence[HeldOut], place: dict[str, int], config: ProveConfig, crossing: int
) -> tuple[int, Evidence, Decision]:
    """Look after look from the crossing on, as `prove` takes them, what was lost in the end, and then the gate."""
    assert config.criteria is not None
    ended, sides = 0, list[list[Episode]]()
    for ended in _end(order, config.batch, crossing)[1]:
        sides = [_episodes(drawn, n, order[:ended], place, config.how, arm) for arm in (0, 1)]
        payload = judged(sides[0], sides[1], config)
        look = InterimAnalysis(number=1, iteration=0, planned=SEEDS * ended, missing={}, episodes="", **payload)
        if is_enough(look, config):
            break
    else:
        drawn = drawn.again or drawn
        sides = [_episodes(drawn, n, order, place, config.how, arm) for arm in (0, 1)]
    rng = np.random.default_rng(config.how.resample_seed)
    drawing = needs_drawn(config.criteria)
    comparison = compare_versions(sides[0], sides[1], config.how, versions=ARMS, rng=rng, drawn=drawing)
    lost = {
        arm: int(drawn.lost[at][n, [place[held_out.id] for held_out in order[:ended]]].sum())
        for at, arm in enumerate(ARMS)
    }
    evidence = replace(
        evidence_from(comparison, config.how, policy="simulated", suite="simulated", versions=ARMS),
        missing={"planned": SEEDS * ended, **lost},
        audit=(Finding(name="no_secrets", severity="critical", count=0, of=1),),
        samples=64 * "0",
    )
    return ended, evidence, decide(evidence, config.criteria)


def _episodes(
    drawn: _Drawn, n: int, order: Sequence[HeldOut], place: dict[str, int], how: ComparisonConfig, arm: int
) -> list[Episode]:
    success, lost = drawn.success[arm][n], drawn.lost[arm][n]
    places = {f"{task.id}/{seed}": (task.id, seed) for task in order for seed in range(SEEDS)}
    episodes = [
        Episode(
            task=task, seed=seed, reward=(value := float(success[place[task], seed])), success=value, safety_cost=0.0
        )
        for task, seed in places.values()
        if not lost[place[task], seed]
    ]
    whole = {
        (episode.task, episode.seed): episode
        for episode in (*episodes, *missing(episodes, places, how, is_candidate=arm == 1))
    }
    units = {task.id: task.unit for task in order if task.unit is not None}
    counted = (whole[key] for key in places.values())
    return [replace(episode, unit=units[episode.task]) if episode.task in units else episode for episode in counted]
