"""The town as an environment of the loop, and the school in it: from scripts to residents that beat them.

Each seat of each town is a row of the vector environment, and all seats share one network. What is compared is a town:
the mean return of its residents over a day, in towns that nobody learnt in, town by town. Learning, proof and promotion
are those of every other policy (`learn.school`, `pipeline.control`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.collect.episodes import GROUPS
from holdfast.contracts.envs import Bools, Choose, Described, Observation, Spaces, State, StepResult
from holdfast.contracts.errors import BadInput, HoldfastError, NotFound
from holdfast.contracts.evidence import Acceptance, Finding
from holdfast.contracts.experience import ScoredRollout
from holdfast.contracts.policy import Act, files_of, policy_from
from holdfast.contracts.release import Release, Stage
from holdfast.learn.anneal import AnnealPlan
from holdfast.learn.imitate import Samples, audit, coverage
from holdfast.learn.school import DATA, PRACTISED, School
from holdfast.operate.briefs import happened
from holdfast.pipeline.context import Endpoints
from holdfast.pipeline.control import EnvProof, improve_env
from holdfast.pipeline.run import RunSpec
from holdfast.policies import weights
from holdfast.policies.inspect import explain, value_of
from holdfast.policies.nets import VectorActor
from holdfast.policies.network import DISCOUNT, VALUE_SCALE, Network, Scripted
from holdfast.promote.gate import KPIS, KpiBand
from holdfast.prove.estimate import difference, student
from holdfast.store.store import Store
from holdfast.workloads import towngate
from holdfast.workloads.towngate import SCRIPTS
from holdfast.workloads.townlife import (
    LIMITS,
    OBSERVED,
    Env,
    ObservationSpec,
    Rules,
    Seen,
    check_observation,
    contracts,
    explained,
    groups,
    measure_seats,
    read_rules,
)
from holdfast.workloads.townlife import TownState as Town

LINE = "town"  # the policy's name where none is given
RETURNS = (0.0, 8.0)  # of a resident and day: a town below the first has failed, and none came near the second
PARTS = 8  # of a day, by which the towns that are learnt in are staggered
HOURS = 24
MOVES = 5  # of the history of a line, the last so many are told
STRONGEST = 8  # of what made a choice, so many are named
Numbers = NDArray[np.float64]


class TownVectorEnv:
    """The seats of some towns as environments that begin anew by themselves; `contracts.envs` defines the protocol.

    A seat's episode ends when its resident has to leave. While nobody sits there, there is only waiting, worth nothing,
    in an episode of its own. When the days of a town are over, its seats are truncated, and the next town begins there.
    Staggered towns are at different hours, reached by the script: of many towns at one hour, a batch would hold that
    hour alone. Town k is the one that `seed + k` names."""

    def __init__(
        self,
        rules: Rules,
        *,
        towns: int,
        days: int | None = 1,
        staggered: bool = False,
        observation: str = OBSERVED,
    ) -> None:
        self.env = Env(rules, worlds=towns, days=days, variant=observation)
        self.count = towns * self.env.residents
        self.spaces = spaces_of(self.env)
        self.action_names = self.env.actions
        self._staggered, self._seed, self._begun = staggered, 0, 0
        self._here: Bools = np.ones(self.count, np.bool_)

    def reset(self, seed: int) -> Observation:
        self._seed, self._begun = seed, 0
        for town in range(self.env.worlds):
            self._begin(town)
        if self._staggered:
            self._stagger(seed)
        return self._first_view()

    def step(self, actions: NDArray[Any]) -> StepResult:
        with explained():
            seen = self.env.step(actions.reshape(self.env.worlds, self.env.residents))
        here = seen.alive.ravel()
        terminated = seen.terminated.ravel() | (here & ~self._here)
        truncated = seen.truncated.ravel() & ~terminated
        reward, view = seen.reward.ravel().astype(np.float64), self._view(seen)
        final, self._here = view.values, here
        if seen.truncated.any():
            final = final.copy()  # the next towns are written to the same place
            for town in np.flatnonzero(seen.truncated[:, 0]):
                self._begin(int(town))
            view = self._first_view()
        return StepResult(view, reward, terminated, truncated, final)

    def state(self) -> State:
        kept = {name: np.frombuffer(array.tobytes(), np.uint8).copy() for name, array in self._arrays().items()}
        return kept | {"here": self._here.copy(), "begun": np.array([self._seed, self._begun], np.int64)}

    def restore(self, state: State) -> Observation:
        arrays = {
            name: np.frombuffer(state[name].tobytes(), array.dtype).reshape(array.shape)
            for name, array in self._arrays().items()
        }
        self._seed, self._begun = (int(number) for number in state["begun"])
        self._here = state["here"].copy()
        return self._view(self.env.restore(Town(**arrays)))

    def labels(self, observations: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """What each row tells of: the hour, the lowest need and the nature of the resident."""
        names = self.env.senses.features
        rows = np.asarray(observations, np.float64)
        needs = tuple(self.env.rules["needs"])
        lowest = rows[:, [names.index(name) for name in needs]].argmin(axis=1)
        sine, cosine = rows[:, names.index("time_sin")], rows[:, names.index("time_cos")]
        hours = (np.arctan2(sine, cosine) / (2 * np.pi) % 1.0 * HOURS).astype(np.int64)
        natures = self.env.rules["profile"]
        traits = np.array([list(nature["traits"].values()) for nature in natures])
        at = names.index(next(iter(natures[0]["traits"])))
        apart = np.abs(rows[:, None, at : at + traits.shape[1]] - traits[None]).sum(axis=2)
        ids = np.array([nature["id"] for nature in natures])
        return {"hour": hours, "lowest_need": np.array(needs)[lowest], "nature": ids[apart.argmin(axis=1)]}

    def seat_groups(self) -> NDArray[Any]:
        """The nature of whoever has each seat now."""
        ids = np.array([one["id"] for one in self.env.rules["profile"]])
        return np.asarray(ids[self.env.state.people["profile"].ravel()])

    def _arrays(self) -> Mapping[str, NDArray[Any]]:
        return self.env.state.arrays

    def _begin(self, town: int) -> None:
        self.env.begin_world(town, self._seed + self._begun)
        self._begun += 1

    def _stagger(self, seed: int) -> None:
        """The first town is the furthest: each begins a part of a day after the one before."""
        towns, day = self.env.worlds, int(self.env.rules["ticks_per_day"])
        for town in range(towns):
            self.env.begin_world(town, seed + town)
            if town < towns - 1:
                for _ in range(day // max(PARTS, towns)):
                    self.env.step(self.env.scripted())

    def _first_view(self) -> Observation:
        seen = self.env.look()
        self._here = seen.alive.ravel()
        return self._view(seen)

    def _view(self, seen: Seen) -> Observation:
        rows, mask = seen.rows.reshape(self.count, -1), seen.mask.reshape(self.count, -1).view(np.bool_)
        return Observation(rows, mask, self.env.scripted().ravel())


def spaces_of(env: Env) -> Spaces:
    return Spaces(observation=env.senses.size, actions=len(env.actions))


@dataclass(frozen=True, kw_only=True)
class TownMaker:
    """Towns under given rules, as environments of the loop: `hf.improve(env="town")`, or `env=TownMaker(residents=12)`
    for towns of other rules."""

    rules_file: Path | None = None
    residents: int | None = None
    days: int = 1  # of a proof and of an episode
    profile: str | None = None  # the mix of natures, by its name in the rules; None: their own shares
    observation: str = OBSERVED  # what residents see: compact, recall, hybrid or full

    def __post_init__(self) -> None:
        check_observation(self.observation)
        if self.days < 1:
            raise BadInput(f"days = {self.days}", why="must be at least 1")

    @property
    def rules(self) -> Rules:
        return read_rules(self.rules_file, residents=self.residents, profile=self.profile)

    @property
    def name(self) -> str:
        """Other rules or another contract of observation, another environment: what was proved in one is not proved in
        others."""
        days, seen = f"-{self.days}" * (self.days > 1), f"-{self.observation}" * (self.observation != OBSERVED)
        return f"town-{self.rules.sha256[:12]}{days}{seen}"

    @property
    def ticks(self) -> int:
        return self.days * int(self.rules["ticks_per_day"])

    def describe(self) -> Described:
        env = Env(self.rules, variant=self.observation)
        low, high = (end * self.days for end in RETURNS)
        return Described(
            spaces=spaces_of(env),
            max_steps=self.ticks,
            threshold=None,
            returns=(low, high),
            seats=env.residents,
            is_clipped=True,
        )

    # What a town asks beside the return: `pipeline.improve` has the protocol.

    @property
    def bands(self) -> Mapping[str, KpiBand]:
        return towngate.bands(self)

    def check_signed(self, store: Store, *, line: str, who: str, now: float) -> None:
        towngate.check_signed(self, store, line, who=who, now=now)

    def accept(self, act: Act, store: Store, *, line: str, now: float, check: Callable[[], None]) -> Acceptance:
        kpis = towngate.kpis_of(towngate.windows_of(self, act, check=check))
        return Acceptance(kpis=kpis, golden=towngate.golden_findings(self, store, line, now=now))

    def vector_env(self, count: int) -> TownVectorEnv:
        return TownVectorEnv(self.rules, towns=count, days=None, observation=self.observation)

    def training_env(self, count: int) -> TownVectorEnv:
        return TownVectorEnv(self.rules, towns=count, days=self.days, staggered=True, observation=self.observation)


# The school ----------------------------------------------------------------------------------------------------------

QUICK = School(
    rounds=3,
    epochs=6,
    label_rate=0.6,
    practice=replace(PRACTISED, updates=6, step_updates=3, warmup=3, envs=4),
    anneal=AnnealPlan(shares=(0.5, 1.0), better=0.5, worse=1.0),
)
SEQUENCES = 4  # times as many samples in a gradient step
TOWNS = EnvProof(episodes=288, batch=96)  # so many for a first look: fewer prove no safety
QUICK_TOWNS = EnvProof(episodes=16, batch=16)


def school_spec(
    maker: TownMaker,
    *,
    seed: int,
    name: str = LINE,
    school: School | None = None,
    proof: EnvProof = TOWNS,
    stage: Stage | None = Stage.LIVE,
) -> RunSpec:
    """A run of the school: the script is the first version, and the network has to beat it to be promoted."""
    taught = replace(school or School(), seed=seed, day=int(maker.rules["ticks_per_day"]))
    taught = replace(taught, practice=replace(taught.practice, seed=seed))
    return improve_env(maker, Scripted(), name=name, algorithm=taught, proof=proof, stage=stage, seed=seed)


def school_run(
    maker: TownMaker,
    *,
    seed: int,
    name: str = LINE,
    quick: bool = False,
    memory: bool = False,
    stage: Stage | None = Stage.LIVE,
) -> RunSpec:
    """The usual course, or the short one; of a network with a memory where that is asked for."""
    school = QUICK if quick else School()
    if memory:  # of whole sequences a gradient step sees more at a time: their steps are computed one by one
        dials = school.practice.dials
        practice = replace(school.practice, settings=replace(dials, minibatch=SEQUENCES * dials.minibatch))
        school = replace(school, memory=True, practice=practice)
    return school_spec(maker, seed=seed, name=name, school=school, proof=QUICK_TOWNS if quick else TOWNS, stage=stage)


def check_line(store: Store, maker: TownMaker, name: str = LINE, memory: bool | None = None) -> None:
    """BadInput where what is live, and would be taught on, is a network of another kind or sees something else."""
    live = store.releases.live(name)
    policy = None if live is None else policy_from(live.manifest["policy"])
    if live is None or not isinstance(policy, Network):
        return
    contract_of(policy, maker.rules, maker.observation)
    if memory is not None and memory != policy.memory:
        kinds, remedy = {True: "recurrent", False: "feedforward"}, "leave out --network, or teach another line (--name)"
        why = f"{live.id} is {kinds[policy.memory]}, and what is live is taught on"
        raise BadInput(f"--network {kinds[memory]}", why=why, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class SchoolReport:
    """What a run of the school came to, from its steps; None where it has not come to it yet."""

    run: str
    seed: int
    bc_accuracy: float | None
    bc_macro_recall: float | None
    bc_recall: Mapping[str, float]  # by action
    demonstrations: int
    anneal: Mapping[str, Any] | None
    curve: Sequence[Mapping[str, Any]]  # of practice
    learning_s: float
    towns: int  # that it was proved in
    return_before: float | None  # of a resident and day, by what was live
    return_learnt: float | None
    gain: float | None
    gain_low: float | None  # of the 95 % interval, town by town
    gain_high: float | None
    by_nature: Mapping[str, Mapping[str, Any]]  # the same for the residents of each nature
    is_promoted: bool
    release: str | None
    decision: Mapping[str, Any] | None
    why: str | None  # nothing was learnt: the reason

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def school_report(store: Store, run: str) -> SchoolReport:
    record = store.runs.get(run)
    bodies = [dict(step.body) for step in store.steps.of_run(run)]
    judged = [body["agreement"] for body in bodies if "agreement" in body]
    practised = [body for body in bodies if "env_steps" in body]
    decided: Mapping[str, Any] = next((body for body in reversed(bodies) if "proposed" in body), {})
    before, after = proof_returns(store, run)
    gain = None
    if len(before) > 1:
        gain = difference(before[:, None], after[:, None], rng=np.random.default_rng(0))
    decision = decided.get("decision")
    return SchoolReport(
        run=run,
        seed=int(store.whole(record.settings)["seed"]),
        bc_accuracy=judged[-1]["accuracy"] if judged else None,
        bc_macro_recall=judged[-1]["macro_recall"] if judged else None,
        bc_recall=judged[-1]["recall"] if judged else {},
        demonstrations=max((body.get("samples", 0) for body in bodies), default=0),
        anneal=next((body["anneal"] for body in bodies if "anneal" in body), None),
        curve=[_point(body) for body in practised],
        learning_s=round(sum(body.get("learning_s", 0.0) for body in bodies), 1),
        towns=len(before),
        return_before=float(before.mean()) if len(before) else None,
        return_learnt=float(after.mean()) if len(after) else None,
        gain=None if gain is None else float((after - before).mean()),
        gain_low=None if gain is None else gain.low,
        gain_high=None if gain is None else gain.high,
        by_nature=by_nature(store, run),
        is_promoted=bool(decision and decision["open"]),
        release=decided.get("release"),
        decision=decision,
        why=decided.get("why"),
    )


def _point(body: Mapping[str, Any]) -> dict[str, Any]:
    update = body["update"]
    return {"steps": body["env_steps"], "reward": body["reward"], "entropy": update["entropy"], "kl": update["kl"]}


ARMS = ("baseline", "candidate")


def proof_returns(store: Store, run: str) -> tuple[Numbers, Numbers]:
    """What each proof town was worth by the baseline and by the candidate, in the same order."""
    return _paired(
        {arm: {seed: rollout.reward for seed, rollout in towns.items()} for arm, towns in _proved(store, run).items()}
    )


def by_nature(store: Store, run: str) -> dict[str, dict[str, Any]]:
    """What the residents of each nature were paid in the proof towns by the baseline and by the candidate, and the gain
    with its 95 % interval, town by town. Empty where the run proved nothing, or did so before natures were recorded."""
    proved, found = _proved(store, run), dict[str, dict[str, Any]]()
    grouped = {
        arm: {seed: (rollout.output or {}).get(GROUPS, {}) for seed, rollout in towns.items()}
        for arm, towns in proved.items()
    }
    for nature in dict.fromkeys(name for towns in grouped.values() for group in towns.values() for name in group):
        before, after = _paired(
            {arm: {seed: one[nature] for seed, one in towns.items() if nature in one} for arm, towns in grouped.items()}
        )
        if len(before):
            span = student(after - before) if len(before) > 2 else None  # an interval takes three towns
            found[nature] = {
                "towns": len(before),
                "before": float(before.mean()),
                "learnt": float(after.mean()),
                "gain": float((after - before).mean()),
                "gain_low": None if span is None else span.low,
                "gain_high": None if span is None else span.high,
            }
    return found


def _proved(store: Store, run: str) -> dict[str, dict[int, ScoredRollout]]:
    """The proof towns of each arm by their seeds."""
    arms: dict[str, dict[int, ScoredRollout]] = {arm: {} for arm in ARMS}
    last = None
    while page := store.experiences.scored(run, after=last):
        last = page[-1].rollout
        for rollout in page:
            arm = next((arm for arm in ARMS if f"-{arm}-" in rollout.rollout), None)
            if arm is not None and rollout.reward is not None:
                arms[arm][int(rollout.input["seed"])] = rollout
    return arms


def _paired(arms: Mapping[str, Mapping[int, float | None]]) -> tuple[Numbers, Numbers]:
    both = sorted(arms[ARMS[0]].keys() & arms[ARMS[1]].keys())
    before, after = (np.array([arms[arm][seed] for seed in both], np.float64) for arm in ARMS)
    return before, after


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The demonstrations of one round, as they are on disk now."""

    checkpoint: str
    phase: str
    coverage: Mapping[str, Any]  # rows, and how many of each action, hour, lowest need and nature
    findings: tuple[Finding, ...]


def data_sets(maker: TownMaker, store: Store, run: str) -> list[DataSet]:
    """What a run's clone learnt from, read and counted anew: files that changed, and counts that are not those that
    were recorded, are found."""
    known = store.whole(store.runs.get(run).settings).get("env")
    if known != maker.name:
        why = f"learnt in {known}, and these rules make {maker.name}"
        raise BadInput(f"run {run}", why=why, remedy="give the --rules and --residents that it learnt with")
    envs = maker.vector_env(1)
    sets = [_data_set(envs, store, step.body) for step in store.steps.of_run(run) if "coverage" in step.body]
    if not sets:
        raise BadInput(
            f"run {run}", why="has no demonstrations", remedy="'holdfast run list' names those of the school"
        )
    return sets


def last_school(store: Store) -> str:
    """The newest run that has demonstrations."""
    for record in store.runs.newest():
        if "school" in store.whole(record.settings).get("algorithm", {}) and any(
            "coverage" in step.body for step in store.steps.of_run(record.id)
        ):
            return record.id
    raise NotFound("school", why="there is none with demonstrations", remedy="'holdfast town school' records some")


def _data_set(envs: TownVectorEnv, store: Store, body: Mapping[str, Any]) -> DataSet:
    checkpoint, phase, recorded = str(body["checkpoint"]), str(body["phase"]), dict(body["coverage"])
    whole: dict[str, Any] = {"name": "demonstrations_whole", "severity": "error", "of": 1}
    try:
        samples = Samples.load(files_of(checkpoint, store.files) / DATA)
    except HoldfastError as error:
        lost = Finding(**whole, count=1, detail=str(error))
        return DataSet(checkpoint=checkpoint, phase=phase, coverage=recorded, findings=(lost,))
    counted = coverage(samples, envs.action_names, envs.labels(samples.observations))
    changed = counted != recorded
    kept = Finding(**whole, count=int(changed), detail="it is not what was recorded" if changed else "")
    return DataSet(checkpoint=checkpoint, phase=phase, coverage=counted, findings=(kept, *audit(samples, counted)))


# Side by side in the same towns --------------------------------------------------------------------------------------

LEAGUE = 5 * 2**29  # first seed of the towns of a league: none is learnt in, none proves
BALANCED = 0.10  # by how much of the mean the return of a nature may differ from it


@dataclass(frozen=True, kw_only=True)
class Lived:
    """What residents were paid for their days, [towns, residents], of which nature each was at first, and how they
    fared."""

    returns: Numbers  # a day
    natures: NDArray[np.int64]
    days: float = 1.0
    fared: Mapping[str, Numbers] = field(default_factory=dict)  # sums over ticks, as `measure_seats` names them


def lived(
    maker: TownMaker, act: Act | None, *, towns: int, each: Callable[[], None] = lambda: None, seed: int = LEAGUE
) -> Lived:
    """Lives the days of so many towns, by a policy; by chance where there is none."""
    envs = maker.vector_env(towns)
    view, total = envs.reset(seed), np.zeros(envs.count)
    natures = envs.env.state.people["profile"].astype(np.int64)
    choose = by_chance(np.random.default_rng(seed)) if act is None else act.many(envs.count)
    first, fared = np.ones(envs.count, np.bool_), dict[str, Numbers]()
    for _ in range(maker.ticks):
        result = envs.step(choose(view, first))
        view, first = result.observation, result.terminated | result.truncated
        total += result.reward
        for name, values in measure_seats(envs.env).items():
            fared[name] = fared.get(name, 0.0) + values
        each()
    returns = total.reshape(towns, -1) / maker.days
    return Lived(returns=returns, natures=natures, days=float(maker.days), fared=fared)


def by_chance(rng: np.random.Generator) -> Choose:
    """A uniformly random possible action."""

    def choose(view: Observation, _: Bools, /) -> NDArray[np.int64]:
        assert view.mask is not None
        upto = view.mask.cumsum(axis=1)
        pick = (rng.random(len(upto)) * upto[:, -1]).astype(np.int64)
        return np.asarray((upto > pick[:, None]).argmax(axis=1), np.int64)

    return choose


def check_natures(maker: TownMaker) -> None:
    """Refuses towns that are too small for every nature: who lives in one of them is the same in all."""
    envs = maker.vector_env(1)
    envs.reset(LEAGUE)
    here = set(envs.env.state.people["profile"].ravel().tolist())
    natures = enumerate(maker.rules["profile"])
    absent = [nature["id"] for k, nature in natures if k not in here and nature["share"] > 0]
    if absent:
        why = f"too few for every nature: nobody would be {', '.join(absent)}"
        raise BadInput(f"residents = {envs.count}", why=why, remedy="let more live there (--residents)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatureTarget:
    """What every nature has to reach: the limit of the alert of the same figure, for its residents alone."""

    kpi: str
    title: str
    least: float | None = None  # one of the two
    most: float | None = None

    def is_met(self, value: float | None) -> bool:
        return value is not None and (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )  # fmt: skip


TITLES = {"needs_met": "needs met", "starving": "starving", "attendance": "at work", "exits": "left"}
TARGETS = tuple(
    NatureTarget(kpi=limit.kpi, title=TITLES[limit.kpi], least=limit.below, most=limit.above)
    for limit in LIMITS
    if limit.kpi in TITLES
)


def figures_of(found: Lived, is_one: NDArray[np.bool_]) -> dict[str, float | None]:
    """The figures of some of the residents: shares of their time, and exits a resident and day."""
    sums = {name: float(values[is_one].sum()) for name, values in found.fared.items()}
    if not sums.get("alive"):
        return dict.fromkeys((target.kpi for target in TARGETS), None)
    return {
        "needs_met": sums["met"] / sums["alive"],
        "starving": sums["starving"] / sums["alive"],
        "attendance": sums["working"] / sums["due"] if sums["due"] else None,
        "exits": sums["left"] / (float(is_one.sum()) * found.days),
    }


def missed_targets(natures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which nature misses which target, for people; nobody due at work misses nothing."""
    return [
        f"{name}: {target.title} {one['kpis'][target.kpi]:.3g}"
        for name, one in natures.items()
        for target in TARGETS
        if one["kpis"][target.kpi] is not None and not target.is_met(one["kpis"][target.kpi])
    ]


def natures_of(found: Lived, rules: Rules) -> dict[str, dict[str, Any]]:
    """The return of each nature with a 95 % interval over towns, by how much of the mean it differs from it, and how
    its residents fared. A nature that nobody has is left out."""
    mean, payload = float(found.returns.mean()), {}
    for k, nature in enumerate(rules["profile"]):
        is_one = found.natures == k
        if not is_one.any():
            continue
        towns = [row[own].mean() for row, own in zip(found.returns, is_one, strict=True) if own.any()]
        span = student(towns)
        value = float(found.returns[is_one].mean())
        payload[nature["id"]] = {
            "residents": int(is_one.sum()),
            "return": value,
            "low": span.low,
            "high": span.high,
            "from_mean": (value - mean) / max(abs(mean), 1e-9),
            "kpis": figures_of(found, is_one),
        }
    return payload


def standings(paid: Mapping[str, Lived]) -> list[dict[str, Any]]:
    """Who was paid what, the best first; the gain over the first entrant is of the same towns, compared."""
    first = next(iter(paid.values())).returns.mean(axis=1)
    rows = []
    for name, found in paid.items():
        towns = found.returns.mean(axis=1)
        span, gain = student(towns), student(towns - first)
        payload = {"return": float(towns.mean()), "low": span.low, "high": span.high}
        rows.append({"who": name, **payload, "gain": float((towns - first).mean())} | {
            "gain_low": gain.low, "gain_high": gain.high,
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["return"])


# Versions of the store in a town -------------------------------------------------------------------------------------


def policy_in(store: Store, version: str | None, line: str = LINE) -> tuple[Release | None, Network | Scripted]:
    """A release by its name, or what is live; the script where nothing is."""
    if version is not None and "@" not in version:
        made = [release.id for release in store.releases.of_policy(version)]
        known = f"{', '.join(made[:4])} or live" if made else f"{line}@N, or live"
        raise BadInput(f"version {version}", why="is not the name of a release", remedy=f"give {known}")
    release = store.releases.live(line) if version is None else store.releases.get(version)
    if release is None:
        return None, Scripted(env="town")
    policy = policy_from(release.manifest["policy"])
    if not isinstance(policy, Network | Scripted):
        raise BadInput(f"version {release.id}", why=f"is a {release.kind}, and drives no residents")
    return release, policy


def entrants(store: Store, versions: Sequence[str] | None, line: str = LINE) -> dict[str, Network | Scripted]:
    """Releases by their names, `live` or checkpoints of the school by theirs; without names, all networks of the
    line."""
    lines = store.releases.policies()
    if line not in (*lines, LINE):
        raise BadInput(f"--name {line}", why="there is no such line", remedy=f"there are {', '.join(lines) or 'none'}")
    if versions is None:
        found = {release.id: policy_in(store, release.id)[1] for release in store.releases.of_policy(line)}
        return {name: policy for name, policy in found.items() if isinstance(policy, Network)}
    made: dict[str, Network | Scripted] = {}
    for name in versions:
        if "@" in name or name == "live" or name in lines:
            release, policy = policy_in(store, None if name == "live" else name, line)
            made[name if release is None else release.id] = policy
            continue
        shape = weights.read(files_of(name, store.files)).shape
        spaces = Spaces(observation=shape["observation"], actions=shape["actions"])
        size = {"width": shape["width"], "memory": shape["memory"]}
        made[name] = Network(**size, env=line, spaces=spaces, checkpoint=name, sampled=True)
    return made


def act_of(store: Store, policy: Network | Scripted) -> Act:
    engine = Endpoints()
    engine.files = store.files
    act = policy.open(engine).act
    assert act is not None
    return act


def lineage(store: Store, release: Release, line: str = LINE) -> dict[str, Any]:
    """How a version came to drive residents: the anneal and the proof of the run that made it, what the gate said, and
    what happened to the line last. Without who did it: every viewer of a page reads this."""
    payload: dict[str, Any] = {"version": release.id, "stage": str(release.stage), "anneal": None, "gate": None}
    run = release.manifest.get("run")
    if run is not None:
        report = school_report(store, str(run))
        payload["anneal"] = report.anneal and {
            "share": report.anneal["share"],
            "windows": [{name: one[name] for name in ("share", "loss", "action")} for one in report.anneal["windows"]],
        }
        payload |= {name: getattr(report, name) for name in ("return_before", "return_learnt", "towns", "bc_accuracy")}
        payload |= {name: getattr(report, name) for name in ("gain", "gain_low", "gain_high", "curve")}
        if report.decision is not None and report.release == release.id:
            reasons = [one["text"] for one in report.decision["reasons"]]
            payload["gate"] = {"open": report.decision["open"], "reasons": reasons}
    payload["kpis"] = dict(release.manifest.get(KPIS, {}))
    moves = [entry for entry in store.releases.history(line) if {"move", "roll_back", "restore"} & set(entry.body)]
    payload["history"] = [{"at": move.at, "what": happened(move)[0]} for move in moves[-MOVES:]]
    return payload


class TownMind:
    """A version as what drives a running town: called with it, it says what the residents do next. `look` shows what
    its network makes of one resident; nothing is worked out for whoever is not looked at."""

    def __init__(
        self,
        store: Store,
        policy: Network | Scripted,
        rules: Rules,
        *,
        version: str,
        lineage: Mapping[str, Any] | None = None,  # how it came to drive them, for people
        observation: str = OBSERVED,  # the variant that the town has to show
    ) -> None:
        count = int(rules["residents"])
        self.lineage, self.observation = lineage, observation
        self.version, self._first = version, np.ones(count, np.bool_)
        self._choose = act_of(store, policy).many(count)
        self._net = policy.load(store.files) if isinstance(policy, Network) else None
        checkpoint = policy.checkpoint if isinstance(policy, Network) else None
        notes = {} if checkpoint is None else weights.read(files_of(checkpoint, store.files)).notes
        self._scale = (*notes[VALUE_SCALE], notes[DISCOUNT]) if VALUE_SCALE in notes else None  # mean, spread, γ
        self._last: tuple[int, NDArray[np.float32], Any] | None = None  # the tick, what was seen and remembered then

    def __call__(self, env: Env) -> NDArray[np.int64]:
        seen, rows = env.look(), env.residents
        values, mask = seen.rows.reshape(rows, -1), seen.mask.reshape(rows, -1).view(np.bool_)
        if self._scale is not None:
            self._last = (int(env.state.town["tick"][0]), values.copy(), getattr(self._choose, "hidden", None))
        chosen = self._choose(Observation(values, mask, env.scripted().ravel()), self._first)
        self._first = seen.terminated.ravel().copy()
        return np.asarray(chosen, np.int64).reshape(1, rows)

    def look(self, env: Env, seat: int) -> dict[str, Any]:
        """What is seen by group, what is possible and how likely, what it is worth, why, and what the script would do.
        The seat's `identity` is left out: it would undo a pseudonym."""
        names, actions = env.senses.names, env.actions
        seen, mask = env.look(), env.look().mask[0, seat].view(np.bool_)
        values, features = seen.rows[0, seat].copy(), len(env.senses.features)
        shown = {
            group: {names[k]: round(float(values[k]), 3) for k in places if values[k] and names[k] != "identity"}
            for group, places in groups(env.senses).items()
            if places.stop <= features  # a map is no list of numbers: its channels are told by what they weighed
        }
        payload: dict[str, Any] = {"version": self.version, "tick": int(env.state.town["tick"][0]), "seen": shown}
        payload["scripted"] = actions[int(env.scripted()[0, seat])]
        payload["actions"] = [{"name": actions[k], "p": None} for k in np.flatnonzero(mask)]
        if self._net is None:
            return payload
        hidden = self._choose.hidden[seat] if isinstance(self._choose, VectorActor) and not self._first[seat] else None
        found = explain(self._net, values, mask, hidden=hidden)
        order = np.flatnonzero(mask)[np.argsort(-found.probabilities[mask], kind="stable")]
        payload["actions"] = [{"name": actions[k], "p": round(float(found.probabilities[k]), 4)} for k in order]
        payload |= {"likeliest": actions[found.action], "value": round(found.value, 3), "gap": round(found.gap, 4)}
        payload |= self._expected(env, seat, found.value, float(seen.reward[0, seat]))
        payload["why"] = {
            group: round(float(found.saliency[places.start : places.stop].sum()), 3)
            for group, places in groups(env.senses).items()
        }
        strongest = np.argsort(-np.abs(found.saliency), kind="stable")[:STRONGEST]
        payload["strongest"] = [
            {"name": names[k], "share": round(float(found.saliency[k]), 3)} for k in strongest if found.saliency[k]
        ]
        return payload

    def _expected(self, env: Env, seat: int, value: float, reward: float) -> dict[str, float]:
        """The return that is expected, and by how much the last tick was better than what was expected before it:
        A = r + γ V(s′) − V(s). Empty for a network whose critic learnt nothing, and before the second tick."""
        if self._scale is None or self._net is None:
            return {}
        mean, spread, gamma = self._scale
        payload = {"expected": round(mean + spread * value, 4)}
        if self._last is None or self._first[seat] or self._last[0] != int(env.state.town["tick"][0]) - 1:
            return payload
        _, before, hidden = self._last
        worth = value_of(self._net, before[seat], None if hidden is None else hidden[seat])
        advantage = reward + gamma * (mean + spread * value) - (mean + spread * worth)
        return payload | {"advantage": round(advantage, 4)}


def contract_of(policy: Network | Scripted, rules: Rules, wanted: str | None = None) -> ObservationSpec:
    """The contract of observation that a policy was trained on; a script reads none. BadInput where this town has none
    of that size, or where another was asked for."""
    known = {spec.variant: spec for spec in contracts(rules)}
    usual = known[OBSERVED if wanted is None else check_observation(wanted)]
    if isinstance(policy, Scripted) or policy.spaces is None:
        return usual
    fitting = [spec for spec in known.values() if spec.size == policy.spaces.observation]
    if not fitting:
        policy.fitted(policy.env, spaces_of(Env(rules, variant=usual.variant)))  # refuses it, and says how they differ
    if wanted is not None and usual not in fitting:
        why = f"{policy.version} was trained on {fitting[0].id}, and this town would show {usual.id}"
        raise BadInput(f"observation {wanted}", why=why, remedy=f"give {fitting[0].variant}, or another version")
    return fitting[0]


def made_for(maker: TownMaker, policy: Network | Scripted) -> TownMaker:
    """The same towns, as this policy was trained to see them."""
    return replace(maker, observation=contract_of(policy, maker.rules).variant)


def mind_of(
    store: Store, version: str | None, rules: Rules, line: str = LINE, *, observation: str | None = None
) -> TownMind:
    """What drives a town: a release by its name, or what is live. It sees what it was trained on."""
    release, policy = policy_in(store, version, line)
    contract = contract_of(policy, rules, observation)
    if isinstance(policy, Network):
        policy.fitted(policy.env, spaces_of(Env(rules, variant=contract.variant)))
    if release is None:
        return TownMind(store, policy, rules, version=SCRIPTS, observation=contract.variant)
    payload = lineage(store, release, release.policy)
    return TownMind(store, policy, rules, version=release.id, lineage=payload, observation=contract.variant)
