"""From an environment and a network to a run that improves it: what can be wrong is found here, before any work.

Held-out episodes have seeds of their own, never one that is learnt in. Both versions play them with the same seeds, by
what they take for best, and the returns are compared pair by pair. The test allows looking after every batch, which
needs to know the least and the most that an episode can return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeGuard

from holdfast.collect.episodes import EpisodePlayer
from holdfast.collect.questions import exact_match
from holdfast.contracts.agent import load_named
from holdfast.contracts.errors import BadInput, boundary
from holdfast.contracts.policy import policy_from, policy_record
from holdfast.contracts.release import Stage, check_name
from holdfast.pipeline.context import Endpoints, Runtime, no_agent
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.improve import Spec, improve
from holdfast.pipeline.prove import ProveConfig
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.spec import needs_torch
from holdfast.policies.network import Network, Scripted
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import SAMPLE_DELTA_SPREAD, SAMPLE_P_VALUE_SPREAD, SEED_DELTA_SPREAD, ComparisonConfig

if TYPE_CHECKING:
    from holdfast.contracts.envs import Described, EnvMaker, VectorEnv
    from holdfast.learn.control import EnvPPO
    from holdfast.learn.school import School

KIND = "improve"
HELD_OUT = 3 * 2**29  # seeds of held-out episodes begin here, above all that are learnt in
MOST_EPISODES = 2**12
BLOCKS = 2**16  # of held-out seeds, one for each seed of a run
GIVE_RANGE = "give reward_range=(low, high) of an episode's return"
LONGEST = 10_000  # steps of an episode, where the environment names no limit
MINIMUM_EFFECT = 0.05  # of the range of returns: a gain worth waiting for
KNOWN = {"town": "holdfast.workloads.townschool:TownMaker"}  # environments of our own, by their short names
MARGIN = 0.05  # of safety cost
Env = Any  # Gymnasium's name of it, module:function, what makes one (PettingZoo's, too), or an EnvMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvProof:
    """How two networks are measured against one another in an environment."""

    episodes: int = 200  # at most, of each
    batch: int = 50  # between two looks
    reward_range: tuple[float, float] | None = None  # of an episode's return; None: as the environment is known
    max_steps: int | None = None  # of an episode; None: as the environment says
    success_at: float | None = None  # a return from which an episode counts as solved; None: as the environment says
    alpha: float = 0.05
    min_effect: float = 0.0  # the mean return must improve by more than this
    max_safety_regression: float = MARGIN  # how much more an episode may cost than one of the baseline

    def __post_init__(self) -> None:
        for name, most in (("episodes", MOST_EPISODES), ("batch", MOST_EPISODES), ("max_steps", 10**9)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise BadInput(f"proof.{name} = {value}", why=f"must be from 1 to {most}")
        if self.episodes < 2:
            raise BadInput(f"proof.episodes = {self.episodes}", why="a proof needs two at least, and usually many")

    def record(self) -> dict[str, Any]:
        """All of it as plain JSON; the margin only where it is another: earlier runs have none."""
        kept = asdict(self)
        if self.max_safety_regression == MARGIN:
            del kept["max_safety_regression"]
        return kept

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EnvProof:
        ends = record["reward_range"]
        return cls(**{**record, "reward_range": None if ends is None else tuple(ends)})


def improve_env(
    env: Env,
    policy: Network | Scripted | None = None,
    *,
    name: str | None = None,
    algorithm: EnvPPO | School | None = None,
    proof: EnvProof | None = None,
    iterations: int = 1,
    stage: Stage | None = None,
    seed: int = 0,
) -> RunSpec:
    """Iterations of play, proof and decision in an environment of Gymnasium or PettingZoo (parallel), or of an
    `EnvMaker`. `name` is the line of versions.

    A callable that makes the environment should have a name that can be imported: a run is resumed by it."""
    called, make = _named(env)
    make = _many_agents(called, make)
    described = _described(called, make)
    from holdfast.learn.control import EnvPPO

    proof, algorithm, line = proof or EnvProof(), algorithm or EnvPPO(seed=seed), name or called.replace("@", " ")
    check_name("policy", line)
    if iterations < 1:
        raise BadInput(f"iterations = {iterations}", why="must be at least 1")
    if not isinstance(policy or Network(), Network | Scripted):
        raise BadInput(f"policy {policy!r:.80}", why="acts in no environment", remedy="give hf.Network()")
    network = (policy or Network(seed=seed)).fitted(called, described.spaces)
    player = _player(called, _vector_env(make), described, proof)
    seeds = held_out_seeds(seed, proof.episodes)
    spec = Spec(
        line=line,
        policy=network,
        algorithm=algorithm.within(called, make.training_env if _is_maker(make) else player.make, seeds),
        tasks=(),
        held_out=[HeldOut(id=f"seed-{seed}", input={"env": called, "seed": seed}) for seed in seeds],
        prove=_prove(proof, player.reward_range),
        criteria=_criteria(proof, player.reward_range, make),
        iterations=iterations,
        stage=stage,
        suite=(called, "1"),
        accept=make if _accepts(make) else None,
    )
    return _run_spec(spec, player, algorithm, proof, seed)


def _run_spec(spec: Spec, player: EpisodePlayer, algorithm: EnvPPO | School, proof: EnvProof, seed: int) -> RunSpec:
    settings = {
        "env": player.env,
        "name": spec.line,
        "policy": _policy_settings(spec.policy),
        "algorithm": algorithm.record(),
        "proof": proof.record(),
        "iterations": spec.iterations,
        "stage": None if spec.stage is None else str(spec.stage),
        "seed": seed,
    }
    return RunSpec(
        kind=KIND,
        program=partial(improve, spec=spec),
        model_ref=f"network/{player.env}",
        settings=settings,
        runtime=Runtime(no_agent, exact_match, Endpoints(), player=player),
        workers=0,  # episodes are played by the steps themselves
        policy=spec.line,
        seed=seed,
    )


def _policy_settings(policy: Any) -> dict[str, Any]:
    """A network by its manifest alone, as it always was; anything else says what it is."""
    return dict(policy.manifest) if isinstance(policy, Network) else policy_record(policy)


def held_out_seeds(seed: int, episodes: int) -> range:
    """Returns the held-out seeds of a run; two runs share none if their seeds differ by less than BLOCKS."""
    first = HELD_OUT + (seed % BLOCKS) * MOST_EPISODES
    return range(first, first + episodes)


def is_env_run(settings: Mapping[str, Any]) -> bool:
    """Whether these are the settings of such a run."""
    return "env" in settings and "algorithm" in settings


def env_spec_from(settings: Mapping[str, Any], env: Env | None = None) -> RunSpec:
    """Rebuilds the spec of a run to resume it; `env` is needed where the maker has no name that can be imported."""
    needs_torch()
    from holdfast.learn.control import EnvPPO
    from holdfast.learn.school import School

    kept, learns = settings["policy"], settings["algorithm"]
    policy: Any = policy_from(kept) if "type" in kept else Network.from_manifest(kept)
    return improve_env(
        settings["env"] if env is None else env,
        policy,
        name=settings["name"],
        algorithm=School.from_record(learns) if "school" in learns else EnvPPO.from_record(learns),
        proof=EnvProof.from_record(settings["proof"]),
        iterations=settings["iterations"],
        stage=None if settings["stage"] is None else Stage(settings["stage"]),
        seed=settings["seed"],
    )


def env_comparison_config(proof: EnvProof, reward_range: tuple[float, float]) -> ComparisonConfig:
    """Limits that are shares of a reward from 0 to 1 are here the same shares of the range of returns."""
    span = reward_range[1] - reward_range[0]
    return ComparisonConfig(
        primary="reward",
        max_safety_regression=proof.max_safety_regression,
        alpha=proof.alpha,
        min_effect=proof.min_effect,
        worthwhile=MINIMUM_EFFECT * span,
        reward_range=reward_range,
        seed_delta_spread=SEED_DELTA_SPREAD * span,
        sample_delta_spread=SAMPLE_DELTA_SPREAD * span,
    )


# The parts -----------------------------------------------------------------------------------------------------------


def _named(env: Env) -> tuple[str, Env]:
    """Returns the environment's name in records and its maker. `module:function` is imported, Gymnasium's name not."""
    if _is_maker(env):
        return env.name, env
    if not isinstance(env, str):
        if not callable(env):
            raise BadInput(f"env {env!r:.80}", why="is neither a name nor makes an environment when called")
        name = getattr(env, "__qualname__", type(env).__qualname__)
        return f"{getattr(env, '__module__', type(env).__module__)}:{name}", env
    if (short := env.partition("-")[0]) in KNOWN:
        made = load_named(KNOWN[short], "env")()
        if env not in (short, made.name):
            why = f"has other rules or sizes than the usual {made.name}"
            raise BadInput(f"environment {env}", why=why, remedy="use the command that began the run")
        return made.name, made
    source, _, name = env.rpartition(":")
    if source and all(part.isidentifier() for part in name.split(".")):
        return env, load_named(env, "env")
    return env, env


def _is_maker(env: Any) -> TypeGuard[EnvMaker]:
    return hasattr(env, "vector_env") and hasattr(env, "describe")


def _many_agents(called: str, make: Env) -> Env:
    """Wraps what makes a PettingZoo environment; anything else stays as it is."""
    if _is_maker(make) or not callable(make) or find_spec("gymnasium") is None:
        return make
    from holdfast.collect.zoo import ZooMaker, is_zoo

    with boundary(BadInput, f"environment {called}"):
        one = make()
    if (close := getattr(one, "close", None)) is not None:
        close()
    return ZooMaker(called, make) if is_zoo(one) else make


def _vector_env(make: Env) -> Callable[[int], VectorEnv]:
    if _is_maker(make):
        return make.vector_env
    from holdfast.collect.gym import vector_env

    return partial(vector_env, make)


def _described(called: str, make: Env) -> Described:
    if _is_maker(make):
        needs_torch()
        return make.describe()
    if find_spec("gymnasium") is None:
        why, remedy = "Gymnasium is not installed", "pip install 'holdfast[learn]'"
        raise BadInput(f"environment {called}", why=why, remedy=remedy)
    needs_torch()
    from holdfast.collect.gym import describe

    try:
        return describe(make)
    except BadInput as error:
        raise BadInput(f"environment {called}", why=error.why, remedy=error.remedy or "check its name") from error


def _player(called: str, make: Callable[[int], Any], described: Described, proof: EnvProof) -> EpisodePlayer:
    ends = proof.reward_range or described.returns
    if ends is None:
        why = "nobody knows the least and the most that an episode can return, and without them nothing can be proved"
        raise BadInput(f"environment {called}", why=why, remedy=GIVE_RANGE)
    return EpisodePlayer(
        env=called,
        make=make,
        most_steps=proof.max_steps or described.max_steps or LONGEST,
        reward_range=ends,
        success_at=described.threshold if proof.success_at is None else proof.success_at,
        seats=described.seats,
        is_clipped=described.is_clipped,
    )


def _prove(proof: EnvProof, reward_range: tuple[float, float]) -> ProveConfig:
    """Tries each seed once: the best action of a network in an environment with the same seed is always the same."""
    how, least = env_comparison_config(proof, reward_range), _criteria(proof, reward_range).least
    return ProveConfig(how=how, seeds=(0,), batch=proof.batch, least=least, timeout_s=None)


def _accepts(make: Env) -> bool:
    """Whether the environment asks for figures of its own, and keeps a record of what it shows and pays."""
    return hasattr(make, "accept") and hasattr(make, "check_signed")


def _criteria(proof: EnvProof, reward_range: tuple[float, float], make: Env = None) -> Criteria:
    span = reward_range[1] - reward_range[0]
    return Criteria(
        kpis=dict(make.bands) if _accepts(make) else {},
        require_golden=_accepts(make),
        max_p_value=proof.alpha,
        max_safety_regression=proof.max_safety_regression,
        max_sample_spread=SpreadLimits(p_value=SAMPLE_P_VALUE_SPREAD, delta=SAMPLE_DELTA_SPREAD * span),
    )
