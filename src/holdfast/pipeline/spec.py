"""From settings to a run: which tasks, which agent, which policy, at which pace. What can be wrong is found here."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from holdfast.collect import questions
from holdfast.collect.agent import Connect, OneModel, OwnScore, Score, load_agent, no_model
from holdfast.collect.allocation import FROM_OUTCOMES
from holdfast.collect.client import Client
from holdfast.collect.pool import PoolTiming
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.collect.tasks import load
from holdfast.contracts.algorithm import Algorithm, Batch, Work
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.budget import Mode
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import say
from holdfast.contracts.policy import Policy
from holdfast.contracts.release import Stage, check_name
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import Backoff, Split
from holdfast.contracts.settings import (
    ConstraintBlock,
    GrpoBlock,
    ImproveBlock,
    OptimizeSettings,
    PromptSearchBlock,
    ProveBlock,
    RlOptimizer,
    SafetyReward,
)
from holdfast.contracts.task import task_of
from holdfast.contracts.trace import Span
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import Endpoints, Runtime, StepContext
from holdfast.pipeline.held_out import HeldOut, check_cluster
from holdfast.pipeline.improve import Spec, improve
from holdfast.pipeline.leaks import refuse_leaks
from holdfast.pipeline.prove import ProveConfig
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.policies.prompt import Prompt
from holdfast.promote.gate import WAIVED, Criteria, SpreadLimits
from holdfast.prove.comparison import SAMPLE_P_VALUE_SPREAD, SEED_P_VALUE_SPREAD, ComparisonConfig
from holdfast.reward.safety import SafetyPolicy, close, find_events, judge, reported_events
from holdfast.reward.scorers import DEFAULT_SAFETY, WrappedScore, load_scorer, reward_range, score_from, with_safety
from holdfast.reward.turns import TurnRewards


@dataclass(frozen=True, slots=True)
class SafeguardedScorer(WrappedScore):
    """The score of another, closed by a policy. It travels to other processes with it."""

    score: Score
    policy: SafetyPolicy

    def __call__(
        self, task: Any, output: Any, spans: Sequence[Span]
    ) -> Sequence[RewardTerm] | Awaitable[Sequence[RewardTerm]]:
        return self.score(task, output, spans)

    def costs(self, task: Any, spans: Sequence[Span]) -> Sequence[RewardTerm]:
        terms: Sequence[RewardTerm] = getattr(self.score, "costs", lambda *_: ())(task, spans)
        return terms

    def close(
        self, signals: Sequence[RewardTerm], spans: Sequence[Span], output: Any
    ) -> tuple[tuple[RewardTerm, ...], str | None]:
        """Returns all signals of the attempt as they count, and why it is rejected, if it is.

        What was told while it ran counts, and so does what the agent itself said, its answer included. An attempt that
        nobody scored is not scored by having been safe."""
        finding = judge((*reported_events(spans), *find_events(spans, output=output)), self.policy)
        is_rejected = finding.is_gated and self.policy.reject_rollout_on_hard_gate
        return close(signals, finding, self.policy).signals, finding.error if is_rejected else None


def watched(score: Score, block: SafetyReward | None) -> Score:
    """Adds a safety policy to the scorer, where one is asked for."""
    return score if block is None else SafeguardedScorer(score, SafetyPolicy(**block.model_dump()))


if TYPE_CHECKING:
    from holdfast.learn.constrain import Constraint
    from holdfast.learn.turns import TurnPPO
    from holdfast.pipeline.paired import PairedEvaluation

LOCAL = "local"
OPTIMIZE = "optimize"
OPENAI = "https://api.openai.com/v1"
ASK_THE_MODEL = "holdfast.collect.questions:answer"
UNIT = (0.0, 1.0)  # what rewards go from and to, where a scorer says nothing else


def optimize_spec(settings: OptimizeSettings) -> RunSpec:
    """A run of the settings' tasks; with `rl_optimizer` the policy then learns from them, and with `prompt_search` a
    better prompt is searched for and proved."""
    if settings.prompt_search is not None:
        return improve_spec(settings, OPTIMIZE)
    settings, block = with_tasks(settings), settings.rl_optimizer
    if block is not None and block.enabled:
        needs_torch()
    policy = policy_for(settings)
    return _spec(settings, OPTIMIZE, partial(optimize, settings, policy), policy)


def improve_spec(settings: OptimizeSettings, kind: str = "improve") -> RunSpec:
    """Iterations of practice or search, proof and decision."""
    allows_leaks = settings.tasks is not None and settings.tasks.leaks == "allow"  # the audit still keeps them out
    settings = with_tasks(settings)
    block = settings.improve or ImproveBlock()
    check_name("improve.policy", block.policy)
    is_search = searches_prompts(settings)
    policy = Prompt(settings.resources, model=settings.model) if is_search else policy_for(settings)
    if isinstance(policy, Prompt) and not is_search:
        raise BadInput(
            f"improve.algorithm = {block.algorithm}",
            why=f"the weights of {settings.model or 'this agent'} are out of reach",
            remedy="leave it out to search for a better prompt, or name a local model, as in --model local/sprout",
        )
    if len(settings.val) < 2:
        why = "has one task" if settings.val else "is empty"
        raise BadInput(
            "validate", why=why, remedy="improvement is proved on tasks that are not learnt from, many of them"
        )
    if not (settings.train or block.follow):
        raise BadInput("optimize", why="is empty", remedy="give tasks to learn from, or a run to follow")
    held_out = held_out_of(settings)
    algorithm: Algorithm
    if isinstance(policy, Prompt):
        algorithm, held_out = _prompt_search(settings, block, policy, held_out)
    else:
        algorithm = _algorithm(settings, block)
    spec = Spec(
        line=block.policy,
        policy=policy,
        algorithm=with_importance_cap(algorithm) if settings.vllm else algorithm,
        tasks=settings.train,
        held_out=held_out,
        prove=prove_config(settings),
        criteria=criteria(block.prove, waived=settings.safety_waived),
        iterations=block.iterations,
        stage=None if block.stage is None else Stage(block.stage),
        timeout_s=settings.attempt_timeout_secs,
        manifest={} if settings.safety_waived is None else {WAIVED: settings.safety_waived},
    )
    if not allows_leaks:
        refuse_leaks(settings.train, spec.held_out, "optimize")
    run_spec = _spec(settings, kind, partial(improve, spec=spec), policy)
    _check_range(block.prove, settings)
    check_cluster(spec.held_out, block.prove.cluster)
    return replace(run_spec, policy=block.policy)


def searches_prompts(settings: OptimizeSettings) -> bool:
    """Whether `improve` searches for a prompt: where it is asked for, and where there are no weights to train."""
    algorithm = None if settings.improve is None else settings.improve.algorithm
    is_local = (settings.model or "").partition("/")[0] == LOCAL
    return algorithm == "prompt_search" or (algorithm is None and (not is_local or settings.prompt_search is not None))


def _prompt_search(
    settings: OptimizeSettings, block: ImproveBlock, policy: Prompt, held_out: list[HeldOut]
) -> tuple[Algorithm, list[HeldOut]]:
    """The search and the tasks to prove on, within the budget."""
    from holdfast.pipeline import prompts

    asked, seeds = settings.prompt_search or PromptSearchBlock(), block.prove.seeds
    algorithm = prompts.search_from(
        asked,
        policy,
        held_out=settings.val,
        seed=settings.seed,
        iterations=block.iterations,
        is_timed=not settings.deterministic,
    )
    if asked.rollouts is not None:
        kept = prompts.proof_part(asked.rollouts, len(held_out), seeds)
        learning = (asked.rollouts - kept) // block.iterations
        algorithm, held_out = (
            prompts.searching(algorithm, policy, asked.rollouts, learning),
            held_out[: kept // (2 * seeds)],
        )

    def connect(model: str, base_url: str | None) -> Complete:
        return _client(model, base_url or settings.base_url)()

    return prompts.connected(algorithm, connect), held_out


def with_tasks(settings: OptimizeSettings) -> OptimizeSettings:
    """Reads the task file into the two lists, so that a run keeps the tasks that it began with."""
    block = settings.tasks
    if block is None:
        return settings
    tasks = load(block.file, **block.model_dump(exclude={"file"}))
    for warning in tasks.report.warnings:
        say(f"{block.file}: {warning}")
    train, val = (tuple(item.row() for item in part) for part in (tasks.train, tasks.held_out))
    return settings.model_copy(update={"tasks": None, "train": train, "val": val})


def held_out_of(settings: OptimizeSettings) -> list[HeldOut]:
    return [HeldOut(id=f"val-{place}", input=item) for place, item in enumerate(settings.val, 1)]


def evaluation_spec(
    settings: OptimizeSettings,
    evaluation: PairedEvaluation,
    policies: tuple[Policy, Policy],
    *,
    files: Artifacts,
) -> RunSpec:
    """Two versions measured by the agent and the scorers of these settings; `files` are the store's."""
    from holdfast.pipeline.paired import KIND, compare

    asked = settings.model_copy(update={"train": (), "val": tuple(task.input for task in evaluation.tasks)})
    program = partial(compare, evaluation, policies)
    made = _spec(asked, KIND, program, *policies, files=files)
    model_ref = f"{evaluation.versions[1]} against {evaluation.versions[0]}"
    return replace(made, settings=evaluation.settings, model_ref=model_ref, seed=evaluation.seed)


async def optimize(settings: OptimizeSettings, policy: Policy, run: DurableRun) -> None:
    """Runs all tasks once, and then learns from them what the settings ask for."""
    splits = ((Split.TRAIN, settings.train), (Split.VAL, settings.val))
    work = [
        Work(name=f"{split}-{place}", input=item, policy=policy, group=f"{split}-{place}", split=split)
        for split, items in splits
        for place, item in enumerate(items, 1)
    ]
    run.planned = len(work)
    timeout_s = settings.attempt_timeout_secs
    block = settings.rl_optimizer
    learns = block is not None and block.enabled
    attempts = 1 if learns else settings.max_attempts  # raising must buy no new draw of chance
    batch = await run.step("collect", collect, work, attempts, timeout_s, title="rollouts")
    if block is not None and learns:
        algorithm = turn_ppo(settings, block)
        await run.step("rl_optimizer", partial(learn_turns, algorithm, policy), batch, title="rl_optimizer")


def learn_turns(algorithm: Any, policy: Policy, batch: Batch, *, ctx: StepContext) -> dict[str, Any]:
    """The step of `rl_optimizer`; its type hints are read when it is recorded, and TurnPPO may not be installed."""
    metrics: dict[str, Any] = algorithm.learn(ctx.experiences(batch), policy, None, ctx)[0]
    return metrics


# The parts -----------------------------------------------------------------------------------------------------------


def policy_for(settings: OptimizeSettings) -> Policy:
    """A local model with its resources, or a prompt for a model behind an address, or for an agent without one."""
    provider, _, name = (settings.model or "").partition("/")
    if provider != LOCAL:
        return Prompt(settings.resources, model=settings.model)
    needs_torch()
    from holdfast.policies.model import Model

    return Model(name, lora=settings.lora, device=settings.device, dtype=settings.dtype, resources=settings.resources)


def _spec(
    settings: OptimizeSettings,
    kind: str,
    program: Any,
    *policies: Policy,
    files: Artifacts | None = None,  # the store's, where policies have checkpoints
) -> RunSpec:
    reference = settings.agent or ASK_THE_MODEL
    if settings.agent is None and settings.model is None:
        raise BadInput("these settings", why="name neither an agent nor a model", remedy="give --agent or --model")
    for split, items in (("optimize", settings.train), ("validate", settings.val)):
        for place, item in enumerate(items):
            is_text = settings.scorers is None  # a scorer may expect anything
            questions.check(item, f"{split}[{place}]", is_asked=settings.agent is None, is_text=is_text)
    agent = load_agent(reference)
    score = score_for(settings, agent, is_proof=kind != OPTIMIZE)
    engine, connect = _engine(settings, policies[0])
    executor, has_budgets = None, settings.thinking_budgets
    if settings.thinking_allocation == FROM_OUTCOMES and (
        settings.worker_kind == "processes" or not settings.thinking_budgets
    ):
        why = "workers that are processes go by the table" if settings.thinking_budgets else "there are no budgets"
        remedy = 'use worker_kind "tasks"' if settings.thinking_budgets else 'set "thinking_budgets": true'
        raise BadInput("thinking_allocation = learnt", why=why, remedy=remedy)
    if settings.worker_kind == "processes":
        recipe = ProcessRecipe(reference, score, connect, settings.proxy_url, has_budgets)
        executor = partial(ProcessExecutor, recipe)
    weights = {} if settings.tool_reward is None else settings.tool_reward.model_dump()
    turns = TurnRewards(weights=weights)
    how: dict[str, Any] = {"proxy_url": settings.proxy_url, "has_budgets": has_budgets, "turns": turns}
    runtime = Runtime(agent, score, engine, executor=executor, **how)
    if files is not None:
        runtime.attach(files)
    for policy in policies:
        runtime.open(policy)  # what cannot be opened is found here, not by a worker
    return RunSpec(
        kind=kind,
        program=program,
        model_ref=settings.model or f"agent/{settings.agent}",
        settings=settings.record(),
        runtime=runtime,
        workers=settings.worker_count,
        timing=PoolTiming(
            heartbeat_s=settings.heartbeat_interval_ms / 1000,
            lease_s=settings.lease_s,
            backoff=Backoff(initial_s=settings.retry_initial_ms / 1000, cap_s=settings.retry_max_ms / 1000),
        ),
        seed=settings.seed,
        queue_limit=settings.queue_limit,
        max_faults=settings.max_faults,
        timeout_s=settings.completion_timeout_secs,
        look_s=settings.completion_poll_interval_ms / 1000,
    )


def _engine(settings: OptimizeSettings, policy: Policy) -> tuple[Engine, Connect]:
    """Makes the engine of this process, and what connects another process to the model."""
    provider = (settings.model or "").partition("/")[0]
    if isinstance(policy, Prompt) and settings.vllm:
        why = "is for local models whose weights learn"
        raise BadInput("vllm", why=why, remedy="give --base-url, where a model is behind an address")
    if isinstance(policy, Prompt) and provider != LOCAL:
        connect = connection(settings)
        return Endpoints(lambda model: connect(None)), connect
    if settings.worker_kind != "tasks":
        raise BadInput(
            f"worker_kind = {settings.worker_kind}",
            why="a local model answers within this process",
            remedy='use "tasks", or serve the model and give --base-url',
        )
    needs_torch()
    if settings.vllm:
        from holdfast.collect.vllm import VllmEngine

        return VllmEngine(settings.vllm, seed=settings.seed, api_key=os.environ.get("VLLM_API_KEY")), no_model
    from holdfast.pipeline.prompts import local_engine

    # A few more slots than one worker needs: a prompt that begins like an earlier one leaves that one in its slot.
    slots, is_same = min(settings.worker_count, 256), settings.deterministic
    return local_engine(connect_to, slots=slots, seed=settings.seed, deterministic=is_same), no_model


def connection(settings: OptimizeSettings) -> Connect:
    """Returns what connects this process or another one to the model behind an address."""
    if settings.model is None:
        return no_model
    return OneModel(_client(settings.model, settings.base_url, settings.thinking_mode))


def connect_to(model: str) -> Complete | None:
    """A model behind an address that the environment names."""
    return _client(model)()


def _client(model: str, base_url: str | None = None, thinking_mode: str = "auto") -> Callable[[], Complete]:
    provider, _, name = model.partition("/")
    base_url = base_url or os.environ.get("OPENAI_BASE_URL")
    if base_url is None:
        if provider != "openai":
            remedy = f"give --base-url URL, or name it openai/{model} if it is OpenAI's"
            raise BadInput(f"--model {model}", why="no endpoint is known for it", remedy=remedy)
        base_url = OPENAI
    # Only "openai/" is a mere prefix: names such as "org/model" belong to their endpoints as they are.
    made: Any = partial(
        Client,
        name if provider == "openai" else model,
        base_url,
        api_key=os.environ.get("OPENAI_API_KEY"),
        thinking=None if thinking_mode == "auto" else Mode(thinking_mode),
    )
    return cast("Callable[[], Complete]", made)


def score_for(settings: OptimizeSettings, agent: Any, *, is_proof: bool = False) -> Score:
    """The scorers of the settings, tried on their tasks; without any, the one that an agent brings along; else what
    was expected is compared with what was answered. A proof measures safety beside it, unless that is waived."""
    beside = getattr(agent, "scorer", None)
    score: Score = questions.exact_match
    if settings.scorers is not None:
        items = [task_of(item) for item in (*settings.train, *settings.val)]
        score = score_from(settings.scorers, items, connect=partial(_judge, settings))
    elif beside is not None:
        score = OwnScore(beside)
    if settings.safety is not None or (is_proof and settings.safety_waived is None):
        most = (settings.improve or ImproveBlock()).prove.max_cost
        named = [load_scorer(one, connect=partial(_judge, settings)) for one in settings.safety or DEFAULT_SAFETY]
        score = with_safety(score, named, max_cost=most)
    return watched(score, settings.safety_reward)


def _judge(settings: OptimizeSettings, model: str, base_url: str | None) -> Callable[[], Complete]:
    """Returns what connects a scorer to its judge or to the embedded verifier."""
    from holdfast.pipeline.judges import connect_verifier, is_verifier  # slow to import: scipy

    if is_verifier(model):
        return cast("Callable[[], Complete]", connect_verifier(model))
    try:
        connect = connection(settings.model_copy(update={"model": model, "base_url": base_url}))
        connect(None)  # an address that cannot be used is found here
    except BadInput as error:
        raise BadInput(f"scorer: model {model}", why=error.why, remedy="give its base_url") from None
    return cast("Callable[[], Complete]", connect)


def needs_torch() -> None:
    """Refuses a run that needs PyTorch where it is not installed, before anything runs."""
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise BadInput("this run", why="needs PyTorch, which is not installed", remedy="pip install 'holdfast[learn]'")


def _check_range(how: ProveBlock, settings: OptimizeSettings) -> None:
    low, high = how.reward_range
    least, most = getattr(load_agent(settings.agent or ASK_THE_MODEL), "rewards", UNIT)
    if settings.scorers is not None:
        least, most = reward_range(settings.scorers) or UNIT
    if settings.tool_reward is not None:
        weight = max((float(scorer.get("weight") or 1.0) for scorer in settings.scorers or ()), default=1.0)
        most += weight * sum(settings.tool_reward.model_dump().values())
    if how.primary == "reward" and not (low <= least and most <= high):
        raise BadInput(
            f"improve.prove.reward_range = [{low:g}, {high:g}]",
            why=f"the agent's rewards go from {least:g} to {most:g}",
            remedy="a proof by reward needs all of them in it",
        )


def constraint_of(*blocks: ConstraintBlock | None) -> Constraint | None:
    """The first that is there, as the learner takes it."""
    from holdfast.learn.constrain import Constraint

    block = next((block for block in blocks if block is not None), None)
    return None if block is None else Constraint(**block.model_dump())


def _algorithm(settings: OptimizeSettings, block: ImproveBlock) -> Algorithm:
    """GRPO compares attempts at one task with one another; PPO judges each by a critic, as conversations must be that
    are followed and have nothing beside them."""
    if block.follow is not None or block.algorithm == "ppo":
        return replace(
            turn_ppo(settings, settings.rl_optimizer or RlOptimizer(), block.constraint),
            steps=block.steps,
            tasks=block.step_tasks,
            samples=block.samples,
            follow=block.follow,
            follow_least=block.follow_least,
            budget_s=block.budget_s,
            held_out=settings.val,
        )
    from holdfast.learn.grpo import GRPO

    dials = (settings.grpo or GrpoBlock()).model_dump()
    return GRPO(
        lr=dials.pop("learning_rate") or block.learning_rate,
        **dials,
        steps=block.steps,
        tasks=block.step_tasks,
        samples=block.samples,
        budget_s=block.budget_s,
        constraint=constraint_of(block.constraint, settings.constraint),
        held_out=settings.val,
        seed=settings.seed,
        train_on=settings.train_on,
    )


IMPORTANCE_CAP = 2.0


def with_importance_cap(algorithm: Any) -> Any:
    """Adds a cap where another program samples: its log-probs differ from the trainer's a little, so the ratio is from
    the trainer's own, weighed by trainer over sampler up to a cap. One that was given stays."""
    if getattr(algorithm, "importance_cap", algorithm) is None:
        return replace(algorithm, importance_cap=IMPORTANCE_CAP)
    if getattr(getattr(algorithm, "ppo", None), "importance_cap", algorithm) is None:
        return replace(algorithm, ppo=replace(algorithm.ppo, importance_cap=IMPORTANCE_CAP))
    return algorithm


def turn_ppo(settings: OptimizeSettings, block: RlOptimizer, constraint: ConstraintBlock | None = None) -> TurnPPO:
    from holdfast.learn.turns import TurnPPO

    return TurnPPO(
        gae=block.gae.model_dump(),
        ppo=block.ppo.model_dump(),
        critic=block.critic.model_dump(),
        channels=block.channels,
        constraint=constraint_of(constraint, block.constraint, settings.constraint),
        train_on=settings.train_on,
        seed=settings.seed,
    )


def prove_config(settings: OptimizeSettings) -> ProveConfig:
    how = (settings.improve or ImproveBlock()).prove
    return ProveConfig(
        how=comparison_config(settings),
        seeds=tuple(range(how.seeds)),
        batch=how.batch,
        least=criteria(how).least,
        cluster=how.cluster,
        reuse_live=how.reuse_live,
        confirm_live=how.confirm_live,
        timeout_s=settings.attempt_timeout_secs,
        is_timed=not settings.deterministic,
    )


def comparison_config(settings: OptimizeSettings) -> ComparisonConfig:
    how = (settings.improve or ImproveBlock()).prove
    return ComparisonConfig(
        primary=how.primary,
        alpha=how.alpha,
        min_effect=how.min_effect,
        max_safety_regression=how.max_safety_regression if settings.safety_waived is None else None,
        reward_range=how.reward_range,
        max_cost=how.max_cost,
        seed_delta_spread=how.max_seed_spread,
        sample_delta_spread=how.max_sample_spread,
    )


def criteria(how: ProveBlock, *, waived: str | None = None) -> Criteria:
    return Criteria(
        max_safety_regression=how.max_safety_regression if waived is None else None,
        min_reward_delta=how.min_reward_delta,
        max_p_value=how.alpha,
        max_seed_spread=SpreadLimits(p_value=SEED_P_VALUE_SPREAD, delta=how.max_seed_spread),
        max_sample_spread=SpreadLimits(p_value=SAMPLE_P_VALUE_SPREAD, delta=how.max_sample_spread),
    )
