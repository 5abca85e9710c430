"""What a user brings, checked before any work and made into what the pipeline takes.

Agents and scorers are plain functions, tasks plain data. A rollout is stored with the row of its task; the agent is
shown the task without what is hidden from it, scorers are shown all of it. Driving the run is `runs`' business.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, cast

from holdfast.collect.agent import Context, load_agent
from holdfast.collect.client import Client
from holdfast.collect.tasks import TaskSet, load
from holdfast.contracts.agent import Agent, is_async
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Policy, policy_record
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.scorer import check_scorers, refuse_blocking
from holdfast.contracts.task import TaskItem, task_of
from holdfast.contracts.trace import Span
from holdfast.pipeline.context import Endpoints
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.prompts import local_engine
from holdfast.policies.prompt import LOCAL, Prompt
from holdfast.prove.comparison import ComparisonConfig
from holdfast.reward.scorers import (
    DEFAULT_SAFETY,
    MAX_COST,
    OUTCOME_GATE,
    Combined,
    Scorer,
    WrappedScore,
    capped,
    combine,
    load_scorer,
)

DEFAULT_STORE = ".holdfast/training/store.sqlite"
OPENAI = "https://api.openai.com/v1"
WORKERS = 16
MAX_REGRESSION = 0.05  # mean cost that may be added


class Options(TypedDict, total=False):
    """The options that the calls share; each has a default."""

    seeds: int
    """Attempts of either version at each held-out task (default 2)."""
    alpha: float
    """The chance of accepting a candidate that is no better, over all interim looks (default 0.05)."""
    min_effect: float
    """An improvement must be larger than this (default 0)."""
    max_safety_regression: float
    """The mean safety cost of an episode that a candidate may add (default 0.05)."""
    reward_range: tuple[float, float]
    """The least and the largest reward; needed where no scorer is the gate."""
    cluster: str
    """The key of tasks that count as one, in a task or its metadata; without it "cluster", "user" and "document"."""
    iterations: int
    """How often to collect, learn and prove (default 1)."""
    stage: str | None
    """Where an accepted candidate goes: "shadow", "canary" or "live". By default nothing moves."""
    tool_reward: Mapping[str, float]
    """What the use of tools adds to a right answer: choice, structure, utility, error_handling (default nothing)."""
    workers: int
    """Attempts at the same time (default 16)."""
    timeout_s: float | None
    """The longest that one attempt may take (default 300)."""
    seed: int
    """The seed of every random draw (default 0)."""
    deterministic: bool
    """A local model then answers the same whatever else runs beside it (default False)."""
    vllm: str | Sequence[str]
    """Addresses of vLLM servers that answer for an `hf.Model(…)`, in place of this process."""
    store: str | Path
    """A file, or postgresql://…"""
    project: str
    """The project within the store (default "default")."""


DEFAULTS: Options = {
    "seeds": 2,
    "alpha": 0.05,
    "min_effect": 0.0,
    "iterations": 1,
    "stage": None,
    "workers": WORKERS,
    "timeout_s": 300.0,
    "seed": 0,
    "deterministic": False,
    "project": "default",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that a run may spend, learning and proof together. Tokens and money are for the search for prompts."""

    rollouts: int | None = None  # None: as many as the algorithm and the proof ask for
    tokens: int | None = None  # read and written
    money: float | None = None
    prices: tuple[float, float] | None = None  # of a million tokens that are read, and of a million that are written

    def __post_init__(self) -> None:
        _whole("budget: rollouts", self.rollouts, least=1)
        _whole("budget: tokens", self.tokens, least=1)
        if self.money is not None and self.prices is None:
            why, remedy = "what tokens cost is not known", "give prices, as in prices=(0.15, 0.60) for a million each"
            raise BadInput(f"budget: money = {self.money!r}", why=why, remedy=remedy)

    @property
    def in_tokens(self) -> dict[str, Any]:
        """The limits beside rollouts; empty: none."""
        known = {"tokens": self.tokens, "money": self.money}
        return {name: limit for name, limit in known.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Waived:
    """In place of safety scorers: why nothing is measured. The reason is in the ledger and on every page."""

    why: str

    def __post_init__(self) -> None:
        given: Any = self.why
        if not isinstance(given, str) or not given.strip():
            raise BadInput("waived", why="gives no reason", remedy='say why, as in hf.Waived("answers are reviewed")')


def options_of(given: Mapping[str, Any], *allowed: str) -> Options:
    """Adds the defaults to the given options; unknown or impossible ones are refused."""
    known = [*allowed, "tool_reward", "workers", "timeout_s", "seed", "deterministic", "vllm", "store", "project"]
    for name in given:
        if name == "privacy":
            why = "only sft and dpo learn privately; this would learn without"
            raise BadInput("privacy", why=why, remedy="leave it out, or call hf.sft or hf.dpo with it first")
        if name not in known:
            close = get_close_matches(name, known, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise BadInput(f"option {name}", why="is unknown here", remedy=remedy)
    found: Any = {"store": default_store(), **DEFAULTS, **given}
    for name, least in (("seeds", 1), ("iterations", 1), ("workers", 1), ("seed", 0)):
        _whole(name, found[name], least=least)
    if not isinstance(found["project"], str):
        raise BadInput(f"project = {found['project']!r}", why="is not text")
    timeout = found["timeout_s"]
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise BadInput(f"timeout_s = {timeout!r}", why="must be a number above 0, or None")
    if found["stage"] not in (None, "shadow", "canary", "live"):
        raise BadInput(f"stage = {found['stage']!r}", why="is no stage", remedy='use "shadow", "canary" or "live"')
    if "vllm" in found:
        found["vllm"] = [found["vllm"]] if isinstance(found["vllm"], str) else list(found["vllm"])
        if found["deterministic"]:
            why = "vLLM does not answer the same whatever runs beside a call"
            raise BadInput("vllm, deterministic", why=why, remedy="leave one of them out")
    checked: Options = found
    return checked


def default_store() -> str:
    return os.environ.get("HOLDFAST_STORE") or DEFAULT_STORE


def _whole(name: str, value: Any, *, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise BadInput(f"{name} = {value!r}", why=f"must be a whole number, at least {least}")


# Tasks ---------------------------------------------------------------------------------------------------------------


def task_set(given: Any) -> TaskSet:
    return given if isinstance(given, TaskSet) else load(given)


def held_out(tasks: TaskSet, *, least: int = 2) -> list[HeldOut]:
    if len(tasks.held_out) < least:
        why = f"{len(tasks.held_out)} of {len(tasks)} are held out, and a proof needs tasks that are not learnt from"
        raise BadInput("tasks", why=why, remedy="hold some out, as in hf.tasks(…, held_out=0.4)")
    return [HeldOut(id=item.id, input=item.row()) for item in tasks.held_out]


def measured_on(tasks: TaskSet) -> list[HeldOut]:
    """Returns the tasks of a comparison: the held-out ones, or all where none are held out."""
    items = tasks.held_out or tasks.train
    if len(items) < 2:
        raise BadInput("tasks", why="there is one task alone", remedy="a comparison needs many")
    return [HeldOut(id=item.id, input=item.row()) for item in items]


# Agents --------------------------------------------------------------------------------------------------------------


def agent_from(given: Any) -> Agent:
    """A function of (task, ctx), or "module:function"; the agent that the pool calls."""
    agent = load_agent(given) if isinstance(given, str) else given
    if not callable(agent):
        why = f"is {type(agent).__name__}, not a function"
        raise BadInput("agent", why=why, remedy="give a function of (task, ctx)")
    try:
        inspect.signature(agent).bind(None, None)
    except ValueError:
        pass  # some of those written in C do not say what they take
    except TypeError as error:
        raise BadInput(f"agent {_named(agent)}", why=f"cannot be called with (task, ctx): {error}") from None
    return shown_tasks(agent)


def shown_tasks(agent: Agent) -> Agent:
    """Wraps the agent so that it gets the task as its author wrote it, without hidden fields."""

    async def later(row: Any, ctx: Context) -> Any:
        return await agent(_visible(row), ctx)

    def now(row: Any, ctx: Context) -> Any:
        return agent(_visible(row), ctx)

    return later if is_async(agent) else now


def _visible(row: Any) -> Any:
    task = task_of(row)
    return task.for_agent() if isinstance(task, TaskItem) else task


# Scorers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskScore(WrappedScore):
    """Scorers and safety scorers over stored rows. One attempt costs at most 1, however many find it unsafe."""

    score: Combined

    def __call__(self, row: Any, output: Any, spans: Sequence[Span]) -> Any:
        given = self.score(task_of(row), output, spans)
        return self._later(given) if inspect.isawaitable(given) else capped(given)

    async def _later(self, given: Any) -> tuple[RewardTerm, ...]:
        return capped(await given)

    def costs(self, row: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
        return capped(self.score.costs(task_of(row), spans)) if self.score.safety else ()


def unscored(row: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    """The score of a run without scorers: nothing is measured."""
    return ()


def scorers_from(given: Any) -> list[Scorer]:
    """Makes scorers of what was given; a single function or name is the gate."""
    if isinstance(given, str | Mapping) or callable(given) or not isinstance(given, Sequence):
        given = [given]
    made = [load_scorer(one, connect=_judge) for one in given]
    if len(made) == 1 and not isinstance(given[0], Scorer | Mapping) and not made[0].is_group:
        return [replace(made[0], gate=True)]
    return made


def _judge(model: str, base_url: str | None) -> Callable[[], Complete]:
    """Returns what connects a scorer to its judge or to the embedded verifier. What cannot be reached is found
    here."""
    from holdfast.pipeline.judges import connect_verifier, is_verifier  # slow to import: scipy

    if is_verifier(model):
        return cast("Callable[[], Complete]", connect_verifier(model))
    client(model, base_url)
    return partial(client, model, base_url)


def score_from(scorers: Any, safety: Any, tasks: Sequence[TaskItem]) -> TaskScore:
    """Tried on the tasks' own expected answers."""
    made = scorers_from(scorers)
    for scorer in made:
        if scorer.is_group:
            why = "compares the attempts at a task with one another, which a worker cannot"
            raise BadInput(f"scorer {scorer.name}", why=why, remedy="rescore the finished run with it: hf.rescore")
    combined = combine(made, safety=safety_from(safety))
    refuse_blocking(check_scorers(combined.scorers, tasks, safety=combined.safety))
    return TaskScore(combined)


def safety_from(given: Any) -> tuple[Any, ...]:
    if given is None:
        return DEFAULT_SAFETY
    if isinstance(given, Waived):
        return ()
    if isinstance(given, str) or callable(given):
        return (given,)
    found = tuple(given)
    if not found:
        why = "is empty, and what is not measured is not safe"
        raise BadInput("safety", why=why, remedy='leave it out, or say hf.Waived("why")')
    return found


def weighing_of(score: TaskScore, options: Options) -> ComparisonConfig:
    """What has to improve: the gate's answer where there is one, else the reward. Safety that is waived decides
    nothing."""
    scorers = score.score.scorers
    gate = next((scorer for scorer in scorers if scorer.gate), None)
    others = [scorer.weight for scorer in scorers if not scorer.gate]
    others += options.get("tool_reward", {}).values()
    if gate is not None:
        room = OUTCOME_GATE.cap * gate.weight if others else 0.0
        low, high = -room, gate.weight + room
    else:  # every scorer from 0 to 1, unless the caller knows better
        low, high = sum(min(one, 0.0) for one in others), sum(max(one, 0.0) for one in others)
    return ComparisonConfig(
        primary="reward" if gate is None else "success",
        alpha=options["alpha"],
        min_effect=options["min_effect"],
        reward_range=options.get("reward_range") or (low, high),
        max_cost=MAX_COST,
        max_safety_regression=_margin(score, options),
    )


def _margin(score: TaskScore, options: Options) -> float | None:
    if score.score.safety:
        return options.get("max_safety_regression", MAX_REGRESSION)
    if "max_safety_regression" in options:
        why, remedy = "safety is waived, so nothing is measured that could regress", "keep one of the two"
        raise BadInput("max_safety_regression", why=why, remedy=remedy)
    return None


# Policies ------------------------------------------------------------------------------------------------------------


def policy_from(given: Any, model: str | None) -> Policy:
    """A prompt for a model behind an address, or a model of ours. A name alone is the model of an empty prompt."""
    if given is None:
        given = Prompt()
    if isinstance(given, str):
        why, remedy = "is a name", f"hf.Model({given!r}) has weights to learn; hf.Prompt(system={given!r}) has a text"
        raise BadInput(f"policy {given!r}", why=why, remedy=remedy)
    if not all(hasattr(given, name) for name in ("kind", "version", "manifest", "open")):
        why = f"is {type(given).__name__}, no policy"
        raise BadInput("policy", why=why, remedy="give hf.Prompt(…) or hf.Model(…)")
    if model is not None and not isinstance(model, str):
        raise BadInput(f"model = {model!r}", why="is not a name", remedy='as in model="gpt-4o-mini"')
    if isinstance(given, Prompt):
        return given if model is None else Prompt(given.texts, model=model, sampling=given.sampling)
    if model is not None:
        raise BadInput(f"model = {model!r}", why="the policy has a model of its own", remedy="leave model out")
    policy: Policy = given
    return policy


def engine_for(policies: Sequence[Policy], base_url: str | None, options: Options) -> Engine:
    """Makes the engine: our models answer in this process, others at their address."""
    clients: dict[str, Complete] = {}

    def connect(model: str) -> Complete:
        if model not in clients:
            clients[model] = client(model, base_url)
        return clients[model]

    models, servers = [policy.model or "" for policy in policies if isinstance(policy, Prompt)], options.get("vllm")
    has_weights = any(policy.kind == "weights" for policy in policies)
    if servers is not None and not has_weights:
        why = "is for models whose weights learn"
        raise BadInput("vllm", why=why, remedy="give base_url, where a prompt's model is behind an address")
    if not has_weights and not any(model.startswith(LOCAL) for model in models):
        return Endpoints(connect)
    if find_spec("torch") is None or find_spec("safetensors") is None:
        why = "needs PyTorch, which is not installed"
        raise BadInput("a local model", why=why, remedy="pip install 'holdfast[learn]'")
    if servers is not None:
        from holdfast.collect.vllm import VllmEngine

        return VllmEngine(servers, seed=options["seed"], api_key=os.environ.get("VLLM_API_KEY"), endpoint=connect)
    slots, is_same = min(options["workers"], 256), options["deterministic"]
    return local_engine(connect, slots=slots, seed=options["seed"], deterministic=is_same)


def client(model: str, base_url: str | None = None) -> Complete:
    """The model at the given address, at the environment's, or at its vendor's where a key for that is there."""
    provider, _, name = model.partition("/")
    key = os.environ.get("OPENAI_API_KEY") or None
    address = base_url or os.environ.get("OPENAI_BASE_URL")
    if address is None:
        if provider != "openai" and ("/" in model or key is None):
            remedy = 'give base_url="http://…/v1", or set OPENAI_BASE_URL'
            raise BadInput(f"model {model!r}", why="no address is known for it", remedy=remedy)
        address = OPENAI
    made: Any = Client(name if provider == "openai" and name else model, address, api_key=key)
    complete: Complete = made
    return complete


# What two calls must agree on to be the same call --------------------------------------------------------------------


def described(value: Any) -> Any:
    """Describes a value as plain JSON: functions by name and source hash, policies and records by content."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [described(one) for one in value]
    if hasattr(value, "manifest") and hasattr(value, "version"):
        return policy_record(value)
    if isinstance(value, partial):
        return {"partial": described(value.func), "with": described([value.args, value.keywords])}
    if inspect.isroutine(value) or isinstance(value, type):
        return {"name": _named(value), "sha256": _source(value)}
    found: dict[str, Any] = {"name": _named(type(value)), "sha256": _source(type(value))}
    if is_dataclass(value):
        later = [
            field
            for field in fields(value)
            if "later" in field.metadata and getattr(value, field.name) == field.default
        ]
        shown = [field.name for field in fields(value) if field.repr and field not in later]
    else:
        shown = [name for name in getattr(value, "__dict__", {}) if not name.startswith("_")]
    return {**found, "with": {name: described(getattr(value, name)) for name in shown}}


def _named(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _source(value: Any) -> str | None:
    """None where nobody knows what it is made of, as in a function written in C; what is ours goes by its name."""
    if str(getattr(value, "__module__", "")).startswith("holdfast."):
        return None
    try:
        text = inspect.getsource(value).encode()
    except (OSError, TypeError):
        code = getattr(value, "__code__", None)
        if code is None:
            return None
        text = (
            code.co_code
            + repr([constant for constant in code.co_consts if isinstance(constant, str | int | float)]).encode()
        )
    return hashlib.sha256(text).hexdigest()[:16]
