"""Settings of a run: the documented config file, read once, checked whole before any work starts.

Keys are spelled as in the file. What is wrong is said in one line: file, key, value, reason, remedy. Flags of the
command line go over the file's values by `override`; functions further down take the values they use, not the settings.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from holdfast.contracts.errors import BadInput
from holdfast.contracts.shapes import DoubledKey, kind_of, unique_keys

ALIASES = {"train": "optimize", "val": "validate"}  # older names that stay accepted
DAY_MS = 86_400_000
DEEPEST = 200
COLUMN = 2**31 - 1  # what an Integer column of the store can hold
AGENT = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:\0]+\.py):[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # or a file's function
ADDRESS = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/[!-~]*)?")


def _rule(why: str, remedy: str, at: str = "") -> PydanticCustomError:
    return PydanticCustomError("rule", "{why}; {remedy}", {"why": why, "remedy": remedy, "at": at})


def _item(value: Any) -> Any:
    """A task: an object for the agent, or a prompt alone. Whether an object needs a prompt, the agent decides."""
    item = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(item, dict):
        raise _rule(f"is {kind_of(value)}, not an object", 'write {"prompt": "…"}')
    if "prompt" in item and not (isinstance(item["prompt"], str) and item["prompt"].strip()):
        raise _rule("its prompt is blank or not text", 'write "prompt": "…" with some text')
    return item


def _visible(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise _rule("is blank or has control characters", "give its name, or leave it out")
    return value


def _agent(value: str) -> str:
    if not AGENT.fullmatch(value):
        raise _rule("is not module:function", "write it as in holdfast.workloads.arithmetic:agent")
    return value


def _url(value: str, at: str = "base_url") -> str:
    if "@" in value.partition("://")[2].partition("/")[0]:
        why = "carries a user name or password, and settings are stored"
        raise _rule(why, "put the key into the environment", at=at)
    if not ADDRESS.fullmatch(value):
        raise _rule("is not an http or https address", "write it as in http://127.0.0.1:8000/v1")
    return value


Servers = Annotated[tuple[Annotated[str, AfterValidator(partial(_url, at="vllm"))], ...], Field(strict=False)]


def _scorers(value: Any, at: str = "scorers") -> Any:
    """One or several, each by its name alone or as an object with what it counts and its own options."""
    blocks = list(value) if isinstance(value, list | tuple) else [value]
    if not blocks:
        raise _rule("is empty", "name a scorer, or leave it out", at=at)
    return [_scorer(one, f"{at}[{place}]") for place, one in enumerate(blocks)]


def _scorer(value: Any, at: str) -> dict[str, Any]:
    block = {"scorer": value} if isinstance(value, str) else value
    if not isinstance(block, dict):
        why = f"is {kind_of(block)}, not a name or an object"
        raise _rule(why, 'write "exact", "module:function" or {"scorer": "exact"}', at=f"{at} = {_shown(block)}")
    for key, wanted, is_fit in SCORER:
        if not is_fit(block.get(key)):
            raise _rule(f"is not {wanted}", f"give {wanted}", at=f"{at}.{key} = {_shown(block.get(key))}")
    if isinstance(block.get("base_url"), str):
        _url(block["base_url"], at=f"{at}.base_url")
    return block


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


SCORER: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("scorer", 'a name such as "exact" or "module:function"', _is_text),
    ("name", "some text", lambda value: value is None or _is_text(value)),
    ("weight", "a finite number", lambda value: value is None or (type(value) in (int, float) and isfinite(value))),
    ("gate", "true or false", lambda value: value is None or isinstance(value, bool)),
)
Scorers = Annotated[tuple[dict[str, Any], ...], Field(strict=False), BeforeValidator(_scorers)]
Items = Annotated[tuple[Annotated[dict[str, Any], BeforeValidator(_item)], ...], Field(strict=False)]
Count = Annotated[int, Field(gt=0, le=10_000)]
Milliseconds = Annotated[int, Field(gt=0, le=DAY_MS)]
Seconds = Annotated[float, Field(gt=0, le=366 * DAY_MS // 1000)]
Name = Annotated[str, AfterValidator(_visible)]
Block = TypeVar("Block", bound=BaseModel)


Column = Name | Literal[False] | None  # False: no such column; None: the one of the usual name, if it is there
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


Aggregate = Literal["token", "sequence", "sequence_norm_constant"]  # what the mean of a loss is over


def _check_constant(block: str, aggregate: str, constant: float | None) -> None:
    if (constant is not None) != (aggregate == "sequence_norm_constant"):
        at = f"{block}.constant = {_shown(constant)}"
        raise _rule("goes with aggregate = sequence_norm_constant", "give both, or neither", at=at)


Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")]
Dtype = Literal["auto", "float32", "bfloat16"]


class GaeBlock(BaseModel):
    """How advantages are estimated from rewards and values, turn by turn."""

    model_config = STRICT

    gamma: Share = 0.99
    lam: Share = Field(default=0.95, alias="lambda")
    normalize_advantages: bool = True
    clip_advantages: Positive | None = None
    normalize_returns: bool = False
    clip_returns: Positive | None = None
    normalization_epsilon: Positive = 1e-8
    turn_credit: Share = 0.0  # how far what was measured of a turn moves its reward


class PpoBlock(BaseModel):
    """How the policy is moved along them."""

    model_config = STRICT

    clip_epsilon: Weight = 0.2
    value_loss_coefficient: Weight = 0.5
    entropy_coefficient: Weight = 0.01
    mini_batch_size: Annotated[int, Field(gt=0)] = 32
    gradient_accumulation_steps: Annotated[int, Field(gt=0)] = 1
    epochs: Annotated[int, Field(gt=0)] = 1
    kl_penalty_coefficient: Weight = 0.0
    target_kl: Weight | None = None  # no further epoch is begun above it
    max_kl: Weight | None = None  # the update stops at once above it
    learning_rate: Positive | None = None  # None: by the number of parameters
    max_grad_norm: Positive = 1.0
    clip_epsilon_high: Weight | None = None  # None: the same as clip_epsilon
    aggregate: Aggregate = "token"
    constant: Positive | None = None  # tokens, for sequence_norm_constant
    importance_cap: Annotated[float, Field(ge=1)] | None = None  # of sampler and trainer; None: they agree
    piece_tokens: Annotated[int, Field(ge=0)] = 0  # read at once; 0: what suits the machine

    @model_validator(mode="after")
    def _together(self) -> PpoBlock:
        _check_constant("rl_optimizer.ppo", self.aggregate, self.constant)
        if self.target_kl is not None and self.max_kl is not None and self.max_kl < self.target_kl:
            why = f"must not be below target_kl = {self.target_kl:g}"
            raise _rule(why, "raise the one or lower the other", at=f"rl_optimizer.ppo.max_kl = {self.max_kl:g}")
        return self


class CriticBlock(BaseModel):
    """How the critic learns: by itself from the model's states, or with the model, which its loss then moves."""

    model_config = STRICT

    mode: Literal["separate", "shared"] = "separate"
    learning_rate: Positive = 0.1  # divided by the root of the model's width
    epochs: Annotated[int, Field(gt=0)] = 32  # passes over a batch


class GrpoBlock(BaseModel):
    """How attempts at a task are compared, and how the weights follow."""

    model_config = STRICT

    learning_rate: Positive | None = None  # at the first step, falling to a tenth; None: by the number of parameters
    turn_credit: Share = 0.0  # share of a turn's own reward in its credit
    scale: bool = True  # divide by the spread of the group
    clip_low: Share = 0.2
    clip_high: Weight = 0.28
    epochs: Annotated[int, Field(gt=0)] = 1
    minibatch: Annotated[int, Field(ge=0)] = 0  # conversations for one update; 0: all of a step
    aggregate: Aggregate = "token"
    constant: Positive | None = None  # tokens, for sequence_norm_constant
    reference_kl: Weight = 0.0  # to what the iteration began with
    behaviour_kl: Weight = 0.0  # to what sampled
    entropy: Weight = 0.0
    importance_cap: Annotated[float, Field(ge=1)] | None = None  # of sampler and trainer; None: they agree
    max_kl: Positive | None = None  # a step that goes beyond is taken back
    piece_tokens: Annotated[int, Field(ge=0)] = 0  # read at once; 0: what suits the machine

    @model_validator(mode="after")
    def _together(self) -> GrpoBlock:
        _check_constant("grpo", self.aggregate, self.constant)
        return self


class ConstraintBlock(BaseModel):
    """How much a policy may cost while it learns, and how hard it is held to that. The block alone means yes."""

    model_config = STRICT

    cost: Name = "safety_cost"  # the signal whose value is the cost, in the mean of the attempts
    budget: Weight = 0.05
    proportional: Weight = 1.0
    integral: Weight = 0.2
    derivative: Weight = 1.0
    smoothing: Annotated[float, Field(ge=0, lt=1.0)] = 0.5
    most: Positive = 10.0  # the multiplier never gets larger

    @model_validator(mode="after")
    def _together(self) -> ConstraintBlock:
        if not self.proportional and not self.integral:
            raise _rule("nothing would ever hold it", "raise one of them", at="constraint: proportional, integral = 0")
        return self


def _filled(entries: tuple[str, ...]) -> tuple[str, ...]:
    if any(not entry.strip() for entry in entries):
        raise _rule("has a blank entry, which would fit everything", "remove it")
    return entries


Entries = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_filled)]


class SafetyReward(BaseModel):
    """What unsafe events cost an attempt. Lists and tables take the place of the defaults: nothing is merged."""

    model_config = STRICT

    blocked_penalty: Weight = 1.0
    default_reason_code_penalty: Weight = 0.25
    prompt_injection_penalty: Weight = 1.0
    secret_leak_penalty: Weight = 1.5
    reason_code_penalties: dict[str, Weight] = Field(default_factory=dict)
    hard_gate_reason_codes: Entries = ("prompt_injection.system_prompt_exfiltration", "secret_leak.redaction_failed")
    hard_gate_reason_prefixes: Entries = ("secret_leak.",)
    hard_gate_reward_ceiling: Annotated[float, Field(le=0)] = 0.0
    hard_gate_penalty: Weight = 1.0
    blocked_event_triggers_hard_gate: bool = True
    reject_rollout_on_hard_gate: bool = False
    penalties: Literal["unique", "each"] = "unique"  # a reason is paid once for an attempt, or as often as it occurred


MOST_TOOL_REWARD = 0.5  # of what the hidden check counts: all shaping together moves no more


class ToolReward(BaseModel):
    """What the use of tools adds to a right answer, each as a share of what the hidden check counts."""

    model_config = STRICT

    choice: Weight = 0.04
    structure: Weight = 0.03
    utility: Weight = 0.02
    error_handling: Weight = 0.01

    @model_validator(mode="after")
    def _together(self) -> ToolReward:
        if (whole := self.choice + self.structure + self.utility + self.error_handling) > MOST_TOOL_REWARD:
            why = f"its weights add up to {whole:g}, and shaping may add {MOST_TOOL_REWARD:g} at most"
            raise _rule(why, "lower them", at="tool_reward")
        return self


class RlOptimizer(BaseModel):
    """Whether the policy learns from this run's train rollouts, and how. The block alone means yes."""

    model_config = STRICT

    enabled: bool = True
    gae: GaeBlock = GaeBlock()
    ppo: PpoBlock = PpoBlock()
    critic: CriticBlock = CriticBlock()
    channels: Annotated[tuple[str, ...], Field(strict=False)] | None = None  # names of signals to learn from; None: all
    constraint: ConstraintBlock | None = None  # None: that of the whole file, if it has one


class ProveBlock(BaseModel):
    """How a candidate is measured against what is live, and what it has to reach."""

    model_config = STRICT

    seeds: Annotated[int, Field(ge=1, le=100)] = 2  # tries at each task, by either version
    batch: Count = 50  # tasks between two looks at the evidence
    primary: Literal["success", "reward"] = "success"  # what has to improve
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # of promoting what is no better, however often one looks
    min_effect: Share = 0.0  # an improvement has to be larger
    min_reward_delta: Weight = 0.0
    max_safety_regression: Weight = 0.05
    max_seed_spread: Weight = 0.05  # of the reward's gain, between seeds; reported, it decides nothing
    max_sample_spread: Weight = 0.08  # between growing parts of the tasks; reported, too
    max_cost: Positive = 1.0  # the most that one episode's safety can cost
    reward_range: Annotated[tuple[float, float], Field(strict=False)] = (0.0, 1.0)  # all that a reward can be
    cluster: Name | None = None  # the key of tasks that count as one, as in "user"; None: usual names in the metadata
    reuse_live: bool = False  # earlier tries of live are pooled in
    confirm_live: bool = True  # and what they prove is proved by fresh ones; False: nothing live depends on can change

    @model_validator(mode="after")
    def _together(self) -> ProveBlock:
        low, high = self.reward_range
        if not low < high:
            at = f"improve.prove.reward_range = [{low:g}, {high:g}]"
            raise _rule("its ends are not in order", "write the lowest reward and then the highest", at=at)
        if self.max_safety_regression >= self.max_cost:
            why = f"must be below max_cost = {self.max_cost:g}"
            at = f"improve.prove.max_safety_regression = {self.max_safety_regression:g}"
            raise _rule(why, "lower the one or raise the other", at=at)
        most = 1.0 if self.primary == "success" else high - low
        if self.min_effect >= most:
            why = f"{self.primary} cannot differ by more than {most:g}"
            raise _rule(why, "lower it", at=f"improve.prove.min_effect = {self.min_effect:g}")
        return self


class ImproveBlock(BaseModel):
    """One iteration of `holdfast improve`: practise on `optimize` tasks, prove on `validate` tasks, promote."""

    model_config = STRICT

    policy: Name = "default"  # the line of versions that is improved
    iterations: Count = 1
    steps: Count = 8  # of learning, in each iteration
    step_tasks: Count = 16  # in each step, in the order of the file
    samples: Annotated[int, Field(ge=2, le=1000)] = 8  # attempts at each task
    algorithm: Literal["grpo", "ppo", "prompt_search"] | None = None  # None: prompt_search where the weights are out of
    # reach, ppo where a run is followed, else grpo
    learning_rate: Positive | None = None  # older name of grpo.learning_rate
    budget_s: Seconds | None = None  # of learning, over all iterations; None: as much as it takes
    follow: Name | None = None  # learn from the finished rollouts of this run, as they arrive, instead of practising
    follow_least: Count = 128  # of them, for one step
    stage: Literal["shadow", "canary", "live"] | None = None  # where an open gate leads; None: it accepts, no more
    prove: ProveBlock = ProveBlock()
    constraint: ConstraintBlock | None = None  # None: that of the whole file, if it has one

    @model_validator(mode="after")
    def _together(self) -> ImproveBlock:
        if self.follow is not None and self.algorithm in ("grpo", "prompt_search"):
            why = "conversations that are followed have none beside them to be compared with"
            raise _rule(why, "use ppo, or leave it out", at=f'improve.algorithm = "{self.algorithm}"')
        if self.algorithm == "ppo" and self.learning_rate is not None:
            at = f"improve.learning_rate = {self.learning_rate:g}"
            raise _rule("is GRPO's", "set rl_optimizer.ppo.learning_rate", at=at)
        return self


class ReflectionBlock(BaseModel):
    """The chat model that reads what went wrong and writes prompts."""

    model_config = STRICT

    model: Name
    base_url: Annotated[str, AfterValidator(partial(_url, at="prompt_search.reflection.base_url"))] | None = None


class PromptSearchBlock(BaseModel):
    """How a better prompt is searched for. The block alone makes `optimize` search."""

    model_config = STRICT

    candidates: Annotated[tuple[str | dict[str, Any], ...], Field(strict=False)] = ()  # yours, to begin with
    proposers: Annotated[tuple[Name, ...], Field(strict=False)] | None = None  # names, or FILE.py:CLASS; None: by rule
    phrases: Entries | None = None  # the bank of sentences of those that go by rule; None: ours
    rollouts: Annotated[int, Field(ge=1, le=COLUMN)] | None = None  # of search and proof together, never passed
    tokens: Annotated[int, Field(ge=1)] | None = None  # the same in tokens, read and written
    money: Weight | None = None  # the same in money
    prices: Annotated[tuple[Weight, Weight], Field(strict=False)] | None = None  # of a million tokens read, written
    token_price: Weight = 0.0  # reward that a thousand tokens of an answer cost
    second_price: Weight = 0.0  # reward that a second of a rollout costs
    forbidden: Entries = ()  # strings that no proposed prompt may contain
    allowed: Entries = ()  # expected answers that it may name all the same, as labels
    reflection: ReflectionBlock | None = None

    @model_validator(mode="after")
    def _together(self) -> PromptSearchBlock:
        if self.money is not None and self.prices is None:
            at = f"prompt_search.money = {self.money:g}"
            raise _rule("what tokens cost is not known", "give prices, as in [0.15, 0.60] for a million each", at=at)
        return self


class TasksBlock(BaseModel):
    """A file of tasks, and how it is read: `collect.tasks.load` takes the same options."""

    model_config = STRICT

    file: Name  # JSONL, JSON, CSV, Parquet or a `datasets` folder
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # share to prove on; None: as the file says
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of what is held out
    id: Column = None
    input: Name | Annotated[tuple[Name, ...], Field(strict=False)] | None = None
    expected: Column = None
    split: Column = None
    family: Column = None
    leaks: Literal["refuse", "allow"] = "refuse"


class PrivacyBlock(BaseModel):
    """How much the weights may give away of one conversation or user. The block alone asks for privacy."""

    model_config = STRICT

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1.0)] | None = None  # None: N^-1.1 for N units, at most 1e-5
    unit: Literal["conversation", "user"] = "conversation"
    clip: Positive = 0.1  # longest gradient of one unit
    deterministic: bool = False  # noise from the seed: private only while that is secret


class SftBlock(BaseModel):
    """What a model learns by `holdfast policy train`, and how. Left out: the learner's own default."""

    model_config = STRICT

    examples: Name | None = None  # a file of rows, or a `datasets` folder
    run: Name | None = None  # in place of it, a run of the store
    least: float | None = None  # of its rollouts, the reward from which on they are learnt
    columns: dict[str, str] = Field(default_factory=dict)
    system: str | None = None
    lora: Annotated[int, Field(ge=0)] | None = None
    lr: float | None = None
    epochs: int | None = None
    batch: int | None = None
    max_tokens: int | None = None
    held_out: float | None = None
    warm_up: float | None = None
    save_every: int | None = None
    skip: float | None = None


class DpoBlock(SftBlock):
    """The same for preferences."""

    beta: float | None = None


TAUGHT = ("sft", "dpo", "reward_model")  # what `holdfast policy train` can do


class TrainSettings(BaseModel):
    """One `holdfast policy train`: a model, what it learns from, and how private that is."""

    model_config = STRICT

    model: Name | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    sft: SftBlock | None = None
    dpo: DpoBlock | None = None
    reward_model: SftBlock | None = None
    privacy: PrivacyBlock | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @model_validator(mode="after")
    def _together(self) -> TrainSettings:
        if len(there := [name for name in TAUGHT if getattr(self, name) is not None]) != 1:
            why = "are missing" if not there else f"are there together ({' and '.join(there)})"
            raise _rule(why, "say in one of them what is learnt and how", at=", ".join(TAUGHT))
        return self

    @property
    def taught(self) -> str:
        """The name of the block that is there."""
        return next(name for name in TAUGHT if getattr(self, name) is not None)


def _tasks(value: Any) -> Any:
    """A file's name alone, or an object with how it is read."""
    return {"file": value} if isinstance(value, str) else value


class OptimizeSettings(BaseModel):
    """One `holdfast run start` run: what it works on, with what, and at which pace."""

    model_config = STRICT

    train: Items = Field(default=(), validation_alias=AliasChoices("optimize", "train"), serialization_alias="optimize")
    val: Items = Field(default=(), validation_alias=AliasChoices("validate", "val"), serialization_alias="validate")
    tasks: Annotated[TasksBlock, BeforeValidator(_tasks)] | None = None  # in place of the two lists
    resources: dict[str, Any] = Field(default_factory=dict)  # versioned before execution
    agent: Annotated[str, AfterValidator(_agent)] | None = None
    scorers: Scorers | None = Field(default=None, validation_alias=AliasChoices("scorers", "scorer"))  # None: the usual
    model: Name | None = None
    lora: Annotated[int, Field(ge=0)] = 0  # of a local model: rank of the adapters that learn; 0: all weights do
    device: Device = "auto"  # of a local model: auto is the first GPU, or the CPU
    dtype: Dtype = "auto"  # auto is bfloat16 on a GPU
    vllm: Servers = ()  # vLLM servers that sample for a local model; none: this process does
    base_url: Annotated[str, AfterValidator(_url)] | None = None
    proxy_url: Annotated[str, AfterValidator(partial(_url, at="proxy_url"))] | None = None  # agents' calls go there
    worker_count: Count = 2
    worker_kind: Literal["tasks", "processes"] = "tasks"
    max_attempts: Count = 3  # of the agent's own failures; where something is learnt or proved there is one
    max_faults: Annotated[int, Field(ge=0, le=10_000)] = 5  # of infrastructure: they use up no attempt
    attempt_timeout_secs: Seconds | None = 300.0  # wall-clock limit of one attempt; None: none
    retry_initial_ms: Milliseconds = 500
    retry_max_ms: Milliseconds = 30_000
    queue_limit: Annotated[int, Field(gt=0, le=COLUMN)] | None = None  # at most so many wait; None: all
    poll_interval_ms: Milliseconds = 50
    heartbeat_interval_ms: Milliseconds = 1000
    lease_secs: Seconds | None = None  # None: five heartbeats
    completion_poll_interval_ms: Milliseconds = 60
    completion_timeout_secs: Seconds | None = None  # of the whole run; None: it may take as long as it takes
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    deterministic: bool = False  # a whole run is the same bytes by its seed; slower, and for local models
    thinking_budgets: bool = False  # every attempt gets a number of thinking tokens, by how hard its task is
    thinking_mode: Literal["auto", "parameter", "forcing", "hint"] = "auto"  # how an endpoint is held to it
    thinking_allocation: Literal["table", "learnt"] = "table"  # learnt: from the outcomes in the store
    rl_optimizer: RlOptimizer | None = None
    grpo: GrpoBlock | None = None
    prompt_search: PromptSearchBlock | None = None
    improve: ImproveBlock | None = None
    constraint: ConstraintBlock | None = None  # of whatever learns in this run, unless its block has one of its own
    leave: Annotated[tuple[Name, ...], Field(strict=False)] = ()  # classes that scrubbing leaves, of imported logs
    train_on: Name | None = None  # a model's name or a tag: only such calls; None: those of the policy that learns
    safety_reward: SafetyReward | None = None
    tool_reward: ToolReward | None = None
    safety: Annotated[Scorers, BeforeValidator(partial(_scorers, at="safety"))] | None = None  # costs; None: the usual
    safety_waived: Name | None = None  # why no safety is measured; in the ledger and on every page

    @property
    def lease_s(self) -> float:
        return self.lease_secs if self.lease_secs is not None else 5 * self.heartbeat_interval_ms / 1000

    def record(self) -> dict[str, Any]:
        """As JSON-ready data in the file's own spelling; runs of older versions are known by what they kept of it, so
        that later keys are left out where they have their defaults."""
        payload = self.model_dump(mode="json", by_alias=True)
        for path, block in LATER.items():
            *outer, key = path.split(".")
            place: Any = payload
            for name in outer:
                place = place.get(name) if isinstance(place, dict) else None
            if isinstance(place, dict) and place.get(key) == block:
                del place[key]
        return payload

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        for old, new in ALIASES.items():
            if old in data and new in data:
                raise _rule(f"is the older name of {new}, which is there too", "keep one of the two", at=old)
        if "privacy" in data:
            why = "only sft and dpo learn privately; what practises or follows a run would learn without"
            raise _rule(why, "leave it out, or learn by 'holdfast policy train --config'", at="privacy")
        if "scorer" in data and "scorers" in data:
            raise _rule("is the same as scorers, which is there too", "keep one of the two", at="scorer")
        return data

    @model_validator(mode="after")
    def _together(self) -> OptimizeSettings:
        if self.safety is not None and self.safety_waived is not None:
            raise _rule("safety is measured by scorers, too", "keep one of the two", at="safety_waived")
        if self.tasks is not None and (self.train or self.val):
            raise _rule("is given beside tasks in this file", "keep one of the two", at="tasks")
        if self.tasks is None and not self.train and not self.val:
            remedy = "put at least one task into one of them, or name a file: tasks"
            raise _rule("there is nothing to run", remedy, at="optimize, validate")
        if self.retry_max_ms < self.retry_initial_ms:
            why = f"must not be below retry_initial_ms = {self.retry_initial_ms}"
            raise _rule(why, "raise the one or lower the other", at=f"retry_max_ms = {self.retry_max_ms}")
        if None not in (getattr(block, "learning_rate", None) for block in (self.grpo, self.improve)):
            why = "is the older name of grpo.learning_rate, which is there too"
            raise _rule(why, "keep one of the two", at="improve.learning_rate")
        two_beats = 2 * self.heartbeat_interval_ms / 1000
        if self.lease_s < two_beats:
            why = f"must be at least two heartbeats, {two_beats:g} s"
            raise _rule(why, "raise it, or lower heartbeat_interval_ms", at=f"lease_secs = {self.lease_s:g}")
        return self


def _keys(block: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.serialization_alias or field.alias or name for name, field in block.model_fields.items())


LATER: Mapping[str, Any] = {  # keys that came later, and their defaults
    "tasks": None,
    "leave": [],
    "train_on": None,
    "grpo": None,
    "prompt_search": None,
    "tool_reward": None,
    "safety": None,
    "safety_waived": None,
    "thinking_allocation": "table",
    "lora": 0,
    "device": "auto",
    "dtype": "auto",
    "vllm": [],
    "prompt_search.second_price": 0.0,
    "improve.algorithm": None,
    "improve.prove.cluster": None,
    "improve.prove.reuse_live": False,
    "improve.prove.confirm_live": True,
    "rl_optimizer.critic": CriticBlock().model_dump(),
    "rl_optimizer.gae.turn_credit": 0.0,
    **{
        f"rl_optimizer.ppo.{name}": PpoBlock.model_fields[name].default
        for name in ("clip_epsilon_high", "aggregate", "constant", "importance_cap", "piece_tokens")
    },
}
KEYS = _keys(OptimizeSettings)
BLOCKS = {
    "grpo": _keys(GrpoBlock),
    "prompt_search": _keys(PromptSearchBlock),
    "prompt_search.reflection": _keys(ReflectionBlock),
    "rl_optimizer": _keys(RlOptimizer),
    "rl_optimizer.critic": _keys(CriticBlock),
    "rl_optimizer.gae": _keys(GaeBlock),
    "rl_optimizer.ppo": _keys(PpoBlock),
    "improve": _keys(ImproveBlock),
    "improve.prove": _keys(ProveBlock),
    "tasks": _keys(TasksBlock),
    "safety_reward": _keys(SafetyReward),
    "tool_reward": _keys(ToolReward),
    "sft": _keys(SftBlock),
    "dpo": _keys(DpoBlock),
    "reward_model": _keys(SftBlock),
    "privacy": _keys(PrivacyBlock),
    **dict.fromkeys(("constraint", "improve.constraint", "rl_optimizer.constraint"), _keys(ConstraintBlock)),
}


def load_settings(path: str | Path) -> OptimizeSettings:
    """From a .toml file, or from JSON under any other name; BadInput for the first thing that is wrong.

    Files that it names are looked for beside it: the tasks always, agents and scorers where they are there."""
    return _beside(settings_from(_parse(Path(path)), str(path)), Path(path).parent)


def left_by(path: Path) -> tuple[str, ...]:
    """What a project's config says that scrubbing leaves as it is; nothing where there is no such file."""
    data = _parse(path) if path.is_file() else {}
    given = data.get("leave", ()) if isinstance(data, Mapping) else ()
    if isinstance(given, str) or not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise BadInput(f"{path}: leave = {given!r}", why="is no list of names", remedy='give one, as in ["ip", "mac"]')
    return tuple(given)


def _beside(settings: OptimizeSettings, folder: Path) -> OptimizeSettings:
    """The same with paths that mean the same file wherever the run is taken up from."""

    def function(reference: str) -> str:
        file, _, name = reference.rpartition(":")
        path = (folder / file).resolve()
        return f"{path}:{name}" if file.endswith(".py") and path.is_file() else reference

    moved: dict[str, Any] = {}
    if settings.tasks is not None:
        moved["tasks"] = settings.tasks.model_copy(update={"file": str((folder / settings.tasks.file).resolve())})
    if settings.agent is not None:
        moved["agent"] = function(settings.agent)
    if settings.scorers is not None:
        moved["scorers"] = tuple({**scorer, "scorer": function(scorer["scorer"])} for scorer in settings.scorers)
    if settings.prompt_search is not None and settings.prompt_search.proposers is not None:
        own = tuple(function(proposer) for proposer in settings.prompt_search.proposers)
        moved["prompt_search"] = settings.prompt_search.model_copy(update={"proposers": own})
    return settings.model_copy(update=moved)


def load_train(path: str | Path) -> TrainSettings:
    """The config of `holdfast policy train`. Its examples, where they are a file, are looked for beside it."""
    settings = _validated(TrainSettings, _parse(Path(path)), str(path))
    block = getattr(settings, name := settings.taught)
    if block.examples is None:
        return settings
    found = block.model_copy(update={"examples": str((Path(path).parent / block.examples).resolve())})
    return settings.model_copy(update={name: found})


def settings_from(data: Any, where: str) -> OptimizeSettings:
    """From data that was read somewhere: a file, or a run in the store."""
    if isinstance(data, dict) and "api" in data:
        raise BadInput(where, why="are those of a call in Python", remedy="the same call of hf.… goes on with it")
    return _validated(OptimizeSettings, data, where)


def _validated(kind: type[Block], data: Any, where: str) -> Block:
    if not isinstance(data, dict):
        if isinstance(data, list):
            _bad(where, "", "is a list, as files of tasks are, and no settings", NAME_TASKS)
        _bad(where, "", f"is {kind_of(data)} at the top, not an object", "wrap it in { … }")
    _refuse_strange(data, "", partial(_bad, where))
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        _bad(where, *_explain(error.errors()[0], _keys(kind)))


def override(settings: OptimizeSettings, **flags: Any) -> OptimizeSettings:
    """The settings with the given values (None: not given) in place of the file's; errors name the flag."""
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return OptimizeSettings.model_validate(settings.record() | given)
    except ValidationError as error:
        what, why, remedy = _explain(error.errors()[0])
        key = what.removeprefix("improve.").removeprefix("prove.").removeprefix("prompt_search.")
        key, _, value = key.replace("budget_s", "budget").partition(" = ")
        raise BadInput(f"--{key.replace('_', '-')} {value}", why=why, remedy=remedy) from None


def _bad(where: str, what: str, why: str, remedy: str) -> NoReturn:
    raise BadInput(f"{where}: {what}" if what else where, why=why, remedy=remedy) from None


NAME_TASKS = "settings name their tasks, by [tasks] file = …; 'holdfast init NAME' writes an example"
ROWS = {".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"}  # of a file of tasks
LONGEST_TOML = 2**20  # characters of what a person writes
# The parser keeps every beginning of a name: a line of 100 kB takes all memory.
LONG_NAME = re.compile(r"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")


def parse_toml(text: str) -> dict[str, Any]:
    """TOML; one that could fill the memory is refused before it is parsed."""
    if len(text) > LONGEST_TOML:
        raise tomllib.TOMLDecodeError(f"it has more than {LONGEST_TOML} characters; give long lists as JSON")
    if LONG_NAME.search(text) is not None:
        raise tomllib.TOMLDecodeError("a name in it has more than 32 parts")
    return tomllib.loads(text)


def _parse(path: Path) -> Any:
    if path.suffix.lower() == ".py":
        _bad(
            str(path), "", "is a Python file, not one of settings", "'holdfast init NAME' writes an example of settings"
        )
    if path.suffix.lower() in ROWS and path.exists():
        _bad(str(path), "", "is a file of tasks, not of settings", NAME_TASKS)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if not text.strip():
            _bad(str(path), "", "is an empty config", "'holdfast init NAME' writes one to begin with")
        if path.suffix.lower() == ".toml":
            return parse_toml(text)
        return json.loads(text, object_pairs_hook=unique_keys)
    except FileNotFoundError:
        _bad(str(path), "", "there is no such file", "check the path")
    except IsADirectoryError:
        _bad(str(path), "", "is a folder", "give the path of a JSON or TOML file")
    except OSError as error:
        _bad(str(path), "", f"cannot be read: {error.strerror}", "check the path and its permissions")
    except UnicodeDecodeError as error:
        why = f"is not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}"
        _bad(str(path), "", why, "save it as UTF-8")
    except json.JSONDecodeError as error:
        _bad(str(path), f"line {error.lineno}, column {error.colno}", f"is not JSON: {error.msg}", "correct it there")
    except tomllib.TOMLDecodeError as error:
        _bad(str(path), "", f"is not TOML: {error}", "correct it there")
    except DoubledKey as error:
        _bad(str(path), str(error), "is there twice", "keep one of the two")
    except RecursionError:
        _bad(str(path), "", "is nested too deeply", "flatten it")
    except ValueError as error:  # a whole number of thousands of digits
        _bad(str(path), "", f"has a number that cannot be read: {error}", "shorten it")


def _refuse_strange(value: Any, at: str, refuse: Callable[[str, str, str], NoReturn], depth: int = 0) -> None:
    """Values that the parsers let through and that no store could keep: NaN, half characters, TOML's dates."""
    if depth > DEEPEST:
        refuse(at[:60] + "…", f"is nested more than {DEEPEST} deep", "flatten it")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_strange(key, f"{at} key".lstrip(), refuse)
            _refuse_strange(item, f"{at}.{key}".lstrip("."), refuse, depth + 1)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _refuse_strange(item, f"{at}[{place}]", refuse, depth + 1)
    elif isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            refuse(f"{at} = {_shown(value)}", "has half of a surrogate pair", "write the whole character")
    elif isinstance(value, float):
        if not isfinite(value):
            refuse(f"{at} = {_shown(value)}", "is not a finite number", "give a finite number, or leave it out")
    elif value is not None and not isinstance(value, bool | int):
        refuse(f"{at} = {value}", "is a date or time, which JSON does not have", "write it in quotes")


def _explain(error: ErrorDetails, keys: tuple[str, ...] = KEYS) -> tuple[str, str, str]:
    """What, why and the remedy, from pydantic's finding."""
    kind, found, context = error["type"], error["input"], error.get("ctx", {})
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).removeprefix(".")
    if kind == "rule":
        return str(context["at"] or f"{key} = {_shown(found)}"), str(context["why"]), str(context["remedy"])
    what = f"{key} = {_shown(found)}"
    if kind == "extra_forbidden":
        block, _, name = key.rpartition(".")
        known = BLOCKS.get(block, keys)
        close = difflib.get_close_matches(name, [*known, *ALIASES] if not block else known, n=1, cutoff=0.5)
        if close:
            return what, "unknown key", f"did you mean {close[0]}? docs/config.md has all of them"
        return what, "unknown key", f"the keys are {', '.join(known)}"
    if kind == "greater_than":
        least = "more than 0" if isinstance(context["gt"], float) else "1 or more"
        return what, "must be above 0", f"set it to {least}"
    if kind == "greater_than_equal":
        return what, f"must be at least {context['ge']}", f"set it to {context['ge']} or more"
    if kind == "less_than" and isinstance(context["lt"], float):
        return what, f"must be below {context['lt']:g}", f"set it to less than {context['lt']:g}"
    if kind in ("less_than_equal", "less_than"):
        most = context["le"] if "le" in context else context["lt"] - 1
        return what, f"must be at most {most}", f"set it to {most} or less"
    if kind in ("too_long", "missing"):  # of the pairs
        whole = key if kind == "too_long" else key.rpartition("[")[0]
        return whole, "is not a pair", "give two numbers, as in [0, 1]"
    if kind == "literal_error":
        return what, "is not one of its values", f"use {context['expected'].replace(chr(39), '')}"
    wanted = EXPECTED[kind]
    return what, f"is {kind_of(found)}, not {wanted}", f"give {wanted}"


EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}…"
