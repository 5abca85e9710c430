"""What people have already, as agents, tasks and scorers: TRL reward functions, verifiers environments, DSPy modules.

None of these packages is needed here: an object is taken by what it can do, and its package is imported when it is run.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import isnan
from typing import Any

from holdfast.collect.agent import Context
from holdfast.collect.tasks import TaskSet, load
from holdfast.contracts.agent import Agent
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.reward import Reward
from holdfast.contracts.scorer import Trace, prompt_of
from holdfast.policies.prompt import Prompt
from holdfast.reward.scorers import Scorer

SYSTEM = "system"
HELD_OUT = 0.4


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """What `hf.improve`, `hf.collect` and `hf.compare` take, made from one object."""

    agent: Agent
    scorers: tuple[Scorer, ...]
    tasks: TaskSet | None = None  # None: the object brings none
    policy: Prompt | None = None  # the texts that it brings; None: there are none, or its tasks do not share one


# TRL -----------------------------------------------------------------------------------------------------------------


def trl(
    reward_func: Any, *, weight: float = 1.0, gate: bool = False, name: str | None = None, expected: str | None = None
) -> Scorer:
    """A reward function as TRL's GRPOTrainer takes it, as a scorer. It is called with one completion at a time.

    Keys of the task's input and metadata are its columns. `expected` is the column of the expected answer; left out,
    it is the one argument that the function requires and no column has.
    """
    if isinstance(reward_func, str) or hasattr(reward_func, "named_parameters"):
        what = repr(reward_func) if isinstance(reward_func, str) else type(reward_func).__name__
        raise BadInput(f"reward_func {what}", why="is a model", remedy="give a function that asks it")
    if not callable(reward_func):
        raise BadInput("reward_func", why=f"is {type(reward_func).__name__}, not a function")
    title = name or str(getattr(_inner(reward_func), "__name__", type(reward_func).__name__))
    return Scorer(TrlReward(reward_func, expected), name=title, weight=weight, gate=gate)


@dataclass(frozen=True)
class TrlReward:
    """Calls a TRL reward function for one attempt, with lists of length 1."""

    function: Callable[..., Any]
    expected: str | None = None

    @property
    def gold_is_answer(self) -> bool:
        return bool(getattr(_inner(self.function), "gold_is_answer", True))

    def __call__(self, task: Any, answer: Any, trace: Trace) -> Any:
        prompt = _prompt(task)
        logged: dict[str, float] = {}
        notes: list[str] = []
        given = {
            **{key: [value] for key, value in self._columns(task).items()},
            "prompts": [prompt],
            "completions": [_completion(prompt, answer, trace)],
            "completion_ids": [[token for call in trace.calls for token in call.completion_ids or ()]],
            "trainer_state": None,
            "log_metric": lambda name, value: logged.update({name: float(value)}),
            "log_extra": lambda name, values: notes.append(f"{name}: {values[0]}"),
        }
        said = self.function(**_accepted(self.function, given))
        if inspect.isawaitable(said):
            return self._later(said, logged, notes)
        return self._reward(said, logged, notes)

    async def _later(self, said: Any, logged: Mapping[str, float], notes: Sequence[str]) -> Reward | None:
        return self._reward(await said, logged, notes)

    def _reward(self, said: Any, logged: Mapping[str, float], notes: Sequence[str]) -> Reward | None:
        """None: the function does not apply to this task."""
        values = list(said)
        if len(values) != 1:
            raise BadRecord("reward function", why=f"gives {len(values)} rewards for 1 completion")
        if values[0] is None or isnan(float(values[0])):
            return None
        return Reward(float(values[0]), logged, feedback="; ".join(notes))

    def _columns(self, task: Any) -> dict[str, Any]:
        asked = task.input if isinstance(task.input, Mapping) else {}
        found = {**task.metadata, **asked}
        if task.expected is not None:
            found[self.expected or _missing(self.function, found)] = task.expected
        return {key: value for key, value in found.items() if key not in ("prompt", "completion", "completion_ids")}


SUPPLIED = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra"})


def _missing(function: Callable[..., Any], columns: Mapping[str, Any]) -> str:
    """The argument that must be the expected answer."""
    required = [
        parameter.name
        for parameter in _parameters(function)
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    lacking = [name for name in required if name not in SUPPLIED and name not in columns]
    return lacking[0] if len(lacking) == 1 else "expected"


def _accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = _parameters(function)
    if not parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(given)
    names = {parameter.name for parameter in parameters}
    return {key: value for key, value in given.items() if key in names}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some of those written in C do not say what they take
        return []


def _inner(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _prompt(task: Any) -> Any:
    asked = task.input
    if isinstance(asked, Mapping):
        asked = asked.get("prompt")
    return asked if isinstance(asked, str | list) else prompt_of(task) or ""


def _completion(prompt: Any, answer: Any, trace: Trace) -> Any:
    """Text for a prompt that is text, messages for messages: the whole exchange where the answer ended it."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    if isinstance(prompt, str):
        return text
    messages = [dict(message) for message in trace.messages]
    if trace.calls and messages[-1].get("content") == text:
        return messages[len(trace.calls[0].messages) :]
    return [{"role": "assistant", "content": text}]


# verifiers -----------------------------------------------------------------------------------------------------------


def verifiers(
    env: Any,
    *,
    gate: str | None = None,
    held_out: float = HELD_OUT,
    seed: int = 0,
    limit: int | None = None,
    sampling: Mapping[str, Any] | None = None,
) -> Adapted:
    """An environment of the verifiers package: its data as tasks, its rollouts as the agent, its rewards as scorers.

    Both kinds are taken: `SingleTurnEnv`, `MultiTurnEnv`, `ToolEnv` and what is made of them (a dataset and a rubric),
    and environments of `verifiers.v1` with one agent (a task set).

    gate      the reward that says whether an answer is right; left out, the sum of all rewards has to improve
    held_out  the share of tasks to prove on, where the environment has no data for evaluation
    limit     the most tasks that are taken of each split
    sampling  passed on with every call of the model

    The environment scores its attempts itself while they end, because a reward may need what is alive only then. An
    answer has the keys reply, completion, reward and rewards. With a prompt as policy, `ctx.prompt("system")` takes
    the place of the environment's system prompt.
    """
    play = _play(env, dict(sampling or {}))
    names = play.rewards()
    if gate is not None and names and gate not in names:
        raise BadInput(f"gate {gate!r}", why="the environment has no such reward", remedy=f"it has {', '.join(names)}")
    rows = play.rows(limit)
    has_split = any("split" in row for row in rows)
    system = play.system
    return Adapted(
        agent=play,
        tasks=load(rows, held_out=None if has_split else held_out, seed=seed),
        scorers=_verifiers_scorers(gate, names, play.weights()),
        policy=None if system is None else Prompt(system=system),
    )


def _play(env: Any, sampling: dict[str, Any]) -> DatasetPlay | TasksetPlay:
    if hasattr(env, "rubric") and callable(getattr(env, "rollout", None)):
        if getattr(env.rubric, "has_group_rewards", False):
            why = "compares the attempts at a task with one another, which a worker cannot"
            raise BadInput("rubric", why=why, remedy="leave out its group rewards")
        return DatasetPlay(env, sampling, _identity(env, env.rubric, *_functions(env.rubric)))
    if hasattr(env, "taskset") and callable(getattr(env, "run_episode", None)):
        seats = [name for name, value in dict(env.config).items() if hasattr(value, "harness")]
        if len(seats) > 1:
            why = f"has several agents: {', '.join(seats)}"
            raise BadInput(f"environment {type(env).__name__}", why=why, remedy="give one with a single agent")
        return TasksetPlay(env, sampling, _identity(env, env.taskset, env.taskset.task_type()))
    remedy = "give a SingleTurnEnv, MultiTurnEnv or ToolEnv, or an environment of verifiers.v1"
    raise BadInput(f"environment {type(env).__name__}", why="is none of the verifiers package", remedy=remedy)


def _identity(*parts: Any) -> str:
    """Hashes the source of an environment's parts, to tell two of the same name apart."""
    digest = hashlib.sha256()
    for part in parts:
        kind = part if inspect.isroutine(part) or isinstance(part, type) else type(part)
        digest.update(f"{kind.__module__}.{kind.__qualname__}\n".encode())
        try:
            digest.update(inspect.getsource(kind).encode())
        except (OSError, TypeError):
            continue
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class DatasetPlay:
    """One rollout of an environment with a dataset and a rubric."""

    env: Any = field(repr=False)
    sampling: dict[str, Any]
    identity: str
    by_id: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def system(self) -> str | None:
        found = getattr(self.env, "system_prompt", None)
        return found if isinstance(found, str) else None

    def rewards(self) -> list[str]:
        return [str(getattr(one, "__name__", one)) for one in _functions(self.env.rubric)]

    def weights(self) -> dict[str, float]:
        return dict(zip(self.rewards(), _weights(self.env.rubric), strict=True))

    def rows(self, limit: int | None) -> list[dict[str, Any]]:
        most = -1 if limit is None else limit
        sources = {"train": self.env.get_dataset(most)}
        if getattr(self.env, "eval_dataset", None) is not None or getattr(self.env, "eval_dataset_source", None):
            sources["held_out"] = self.env.get_eval_dataset(most)
        made = []
        for split, source in sources.items():
            for place, row in enumerate(source):
                task = self._row(f"{split}-{place}", dict(row))
                made.append({**task, "split": split} if len(sources) > 1 else task)
        return made

    def _row(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        row.setdefault("example_id", len(self.by_id))
        self.by_id[name] = row
        hidden = {key: value for key, value in row.items() if key not in ("prompt", "answer") and value is not None}
        expected = {"expected": row["answer"]} if row.get("answer") not in (None, "") else {}
        return {"id": name, "input": {"prompt": _plain(row["prompt"])}, "metadata": _plain(hidden), **expected}

    async def __call__(self, task: Any, ctx: Context) -> dict[str, Any]:
        row = dict(_found(self.by_id, task.id))
        if SYSTEM in ctx.resources:
            row["prompt"] = _with_system(row["prompt"], ctx.prompt(SYSTEM))
        openai = import_module("openai")
        # Retries are the pool's business: it knows a fault of the endpoint from one of the agent.
        async with openai.AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.api_key, max_retries=0) as client:
            state = await self.env.rollout(row, _client(client), ctx.model, {"n": 1, **self.sampling})
            if (error := state.get("error")) is not None:
                raise RuntimeError(f"{type(error).__name__}: {error}")
            await self.env.rubric.score_rollout(state)
            if callable(cleanup := getattr(self.env.rubric, "cleanup", None)):
                await cleanup(state)
        completion = _plain(state["completion"])
        rewards = {str(key): float(value) for key, value in (state.get("metrics") or {}).items()}
        return _record(_reply(completion), completion, float(state["reward"]), rewards)


def _rubrics(rubric: Any) -> Iterator[Any]:
    """The rubric, or those of a group."""
    inner = getattr(rubric, "rubrics", None)
    if inner is None:
        yield rubric
    for one in inner or ():
        yield from _rubrics(one)


def _functions(rubric: Any) -> list[Any]:
    return [func for part in _rubrics(rubric) for func in part.funcs]


def _weights(rubric: Any) -> list[float]:
    return [float(one) for part in _rubrics(rubric) for one in part.weights]


def _client(client: Any) -> Any:
    """Newer releases wrap the client of OpenAI's package, older ones take it as it is."""
    try:
        return import_module("verifiers.clients").OpenAIChatCompletionsClient(client)
    except (ModuleNotFoundError, AttributeError):
        return client


def _with_system(prompt: Any, text: str) -> list[Any]:
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    kept = [one for one in said if _plain(one).get("role") != SYSTEM]
    return [{"role": SYSTEM, "content": text}, *kept] if text else kept


def _reply(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    told = [one.get("content") for one in completion or () if one.get("role") == "assistant"]
    return str(told[-1] or "") if told else ""


@dataclass(frozen=True)
class TasksetPlay:
    """One episode of an environment of `verifiers.v1`."""

    env: Any = field(repr=False)
    sampling: dict[str, Any]
    identity: str
    by_id: dict[str, Any] = field(default_factory=dict, repr=False)
    serving: Serving = field(default_factory=lambda: Serving(), repr=False)

    @property
    def system(self) -> str | None:
        """The one that all tasks share."""
        found = {task.data.system_prompt for task in self.by_id.values()}
        return next(iter(found)) if len(found) == 1 else None

    def rewards(self) -> list[str]:
        task = next(iter(self.by_id.values()), None) or next(iter(self.env.taskset))
        return [one.__name__ for one in task.hooks("reward")]

    def weights(self) -> dict[str, float]:
        task = next(iter(self.by_id.values()))
        return {one.__name__: float(getattr(one, "_vf_weight", 1.0)) for one in task.hooks("reward")}

    def rows(self, limit: int | None) -> list[dict[str, Any]]:
        tasks = self.env.taskset
        if limit is None and not getattr(tasks, "bounded", True):
            raise BadInput("environment", why="its task set does not end", remedy="give a limit, as in limit=1000")
        made = []
        for place, task in enumerate(tasks if limit is None else tasks.take(limit)):
            name = f"task-{place}"
            self.by_id[name] = task
            data = task.data.model_dump(mode="json", exclude_none=True)
            shown = {key: data.pop(key) for key in ("prompt", "system_prompt") if key in data}
            expected = {"expected": data["answer"]} if data.get("answer") not in (None, "") else {}
            made.append({"id": name, "input": shown, "metadata": data, **expected})
        return made

    async def __call__(self, task: Any, ctx: Context) -> dict[str, Any]:
        chosen = _found(self.by_id, task.id)
        if SYSTEM in ctx.resources:
            chosen = chosen.with_system_prompt(ctx.prompt(SYSTEM))
        async with self.serving.of(self.env):
            with _key_in_environment(ctx) as variable:
                episode = await self.env.run_episode(chosen, self._context(ctx, variable))
        errors = [*episode.errors, *(error for trace in episode.traces if not trace.ok for error in trace.errors)]
        if errors:
            raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}")
        trace = episode.traces[-1]
        rewards = {name: float(one.score) for name, one in trace.rewards.items() if one is not None}
        said = [_plain(node.message) for node in trace.branches[-1].nodes]
        first = next((place for place, one in enumerate(said) if one.get("role") == "assistant"), len(said))
        return _record(trace.last_reply, said[first:], float(trace.reward), rewards)

    def _context(self, ctx: Context, variable: str) -> Any:
        v1 = import_module("verifiers.v1")
        client = v1.EvalClientConfig(base_url=ctx.base_url, api_key_var=variable)
        config = import_module("verifiers.v1.types").SamplingConfig
        return v1.ModelContext(model=ctx.model, client=client, sampling=config(**self.sampling))


class Serving:
    """What an environment of `verifiers.v1` serves (tools, interception), held while any attempt runs.

    It is opened and closed in one task of its own: some of it may not be closed from another task.
    """

    def __init__(self) -> None:
        self._users = 0
        self._holder: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None  # the one before
        self._done = asyncio.Event()

    @asynccontextmanager
    async def of(self, env: Any) -> AsyncIterator[None]:
        self._users += 1
        try:
            if self._holder is None:
                self._done, self._ready = asyncio.Event(), asyncio.get_running_loop().create_future()
                self._holder = asyncio.create_task(self._hold(env, self._closing, self._ready, self._done))
            await asyncio.shield(self._ready)
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._holder is not None:
                self._closing, self._holder = self._holder, None
                self._done.set()
                await asyncio.shield(self._closing)

    @staticmethod
    async def _hold(
        env: Any, before: asyncio.Task[None] | None, ready: asyncio.Future[None], done: asyncio.Event
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        try:
            async with env.serving():
                ready.set_result(None)
                await done.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


@contextmanager
def _key_in_environment(ctx: Context) -> Iterator[str]:
    """The attempt's key under a variable of its own: these clients read keys from nowhere else."""
    name = f"HOLDFAST_KEY_{hashlib.sha256(ctx.api_key.encode()).hexdigest()[:16]}"
    os.environ[name] = ctx.api_key
    try:
        yield name
    finally:
        os.environ.pop(name, None)


def _found(by_id: Mapping[str, Any], name: str) -> Any:
    if name not in by_id:
        raise BadInput(f"task {name}", why="is none of the environment's", remedy="use the tasks that came with it")
    return by_id[name]


def _record(reply: str, completion: Any, reward: float, rewards: Mapping[str, float]) -> dict[str, Any]:
    return {"reply": reply, "completion": completion, "reward": reward, "rewards": dict(rewards)}


def _verifiers_scorers(gate: str | None, names: Sequence[str], weights: Mapping[str, float]) -> tuple[Scorer, ...]:
    if gate is None:
        return (Scorer(RecordedReward(), name="reward"),)
    decides = Scorer(RecordedReward(name=gate), name=gate, gate=True)
    if set(names) == {gate}:
        return (decides,)
    return decides, Scorer(RecordedReward(less=gate, weight=weights.get(gate, 1.0)), name="other_rewards")


@dataclass(frozen=True)
class RecordedReward:
    """What an environment said of its own attempt: one reward by name, or their sum, less that of the gate."""

    name: str | None = None
    less: str | None = None
    weight: float = 1.0  # of `less`, in the sum
    gold_is_answer = False  # an answer of the task's own is no record of an attempt

    def __call__(self, task: Any, answer: Any) -> Reward | None:
        if not answer:
            return Reward(0.0)
        if not isinstance(answer, Mapping) or "rewards" not in answer:
            return None
        rewards = answer["rewards"]
        if self.name is not None:
            value = rewards.get(self.name)
            return None if value is None else Reward(value)
        taken = self.weight * rewards.get(self.less, 0.0) if self.less is not None else 0.0
        return Reward(answer["reward"] - taken, {key: value for key, value in rewards.items() if key != self.less})


# DSPy ----------------------------------------------------------------------------------------------------------------


def dspy(
    module: Any,
    *,
    metric: Callable[..., Any] | None = None,
    examples: Any = None,
    gate: bool = True,
    expected: str = "answer",
    held_out: float = HELD_OUT,
    seed: int = 0,
    lm: Mapping[str, Any] | None = None,
) -> Adapted:
    """A DSPy module as an agent, its metric as a scorer, its predictors' instructions as the texts of a prompt.

    metric    a function of (example, prediction, trace=None), as DSPy's optimisers take it; gate=False where 1 does
              not mean right
    examples  a list of `dspy.Example` with inputs, or {"train": …, "held_out": …}
    expected  for tasks of your own that expect no object: the field that their expected answer is
    lm        options of `dspy.LM`, as in {"temperature": 0.7}

    An answer is the prediction's fields. A module that is taken into service is loaded with the texts in force.
    """
    if not callable(getattr(module, "named_predictors", None)) or not callable(module):
        raise BadInput(
            f"module {type(module).__name__}", why="is no dspy.Module", remedy="give one, as dspy.Predict(…)"
        )
    texts = {name: str(one.signature.instructions) for name, one in module.named_predictors()}
    if not texts:
        raise BadInput(f"module {type(module).__name__}", why="has no predictors, so nothing in it asks a model")
    agent = DspyAgent(module, _identity(module), texts, dict(lm or {}))
    title = None if metric is None else str(getattr(_inner(metric), "__name__", type(metric).__name__))
    scorers = () if metric is None else (Scorer(DspyMetric(metric, expected), name=title, gate=gate),)
    tasks = None
    if isinstance(examples, Mapping):
        tasks = load({split: list(_example_rows(some, f"{split}-")) for split, some in examples.items()})
    elif examples is not None:
        tasks = load(list(_example_rows(examples)), held_out=held_out, seed=seed)
    return Adapted(agent=agent, scorers=scorers, tasks=tasks, policy=Prompt(texts))


def _example_rows(examples: Iterable[Any], prefix: str = "example-") -> Iterator[dict[str, Any]]:
    for place, one in enumerate(examples):
        try:
            asked, labels = one.inputs().toDict(), one.labels().toDict()
        except (AttributeError, ValueError) as error:
            remedy = 'give dspy.Example(…).with_inputs("question")'
            raise BadInput(f"example {place + 1}", why=f"has no inputs: {error}", remedy=remedy) from None
        row = {"id": f"{prefix}{place}", "input": _plain(asked)}
        yield {**row, "expected": _plain(labels)} if labels else row


@dataclass(frozen=True)
class DspyAgent:
    """One call of a module; its language model is the version in force."""

    module: Any = field(repr=False)
    identity: str
    texts: Mapping[str, str]
    lm: Mapping[str, Any]

    def __call__(self, task: Any, ctx: Context) -> dict[str, Any]:
        package = import_module("dspy")
        program = self.module.deepcopy()
        for name, predictor in program.named_predictors():
            if isinstance(ctx.resources.get(name), str):
                predictor.signature = predictor.signature.with_instructions(ctx.prompt(name))
        # A cached answer would be no attempt of its own, and retries are the pool's business.
        fixed = {"cache": False, "num_retries": 0, "api_base": ctx.base_url, "api_key": ctx.api_key}
        model = package.LM(f"openai/{ctx.model}", **{**self.lm, **fixed})
        program.set_lm(model)
        with package.context(lm=model):
            prediction = program(**_inputs(task.input, program))
        answer: dict[str, Any] = _plain(prediction.toDict())
        return answer


def _inputs(asked: Any, program: Any) -> dict[str, Any]:
    if isinstance(asked, Mapping):
        return dict(asked)
    names = list(program.predictors()[0].signature.input_fields)
    return {names[0]: asked}


@dataclass(frozen=True)
class DspyMetric:
    """A metric on one attempt: example and prediction are put together again from what is stored."""

    metric: Callable[..., Any]
    expected: str

    def __call__(self, task: Any, answer: Any) -> Any:
        package = import_module("dspy")
        asked = dict(task.input) if isinstance(task.input, Mapping) else {"input": task.input}
        labels = task.expected if isinstance(task.expected, Mapping) else {self.expected: task.expected}
        example = package.Example(**asked, **labels).with_inputs(*asked)
        fields = answer if isinstance(answer, Mapping) else dict.fromkeys(labels, answer)
        given = {"pred_name": None, "pred_trace": None}
        extra = {
            key: value
            for key, value in given.items()
            if key in {parameter.name for parameter in _parameters(self.metric)}
        }
        said = self.metric(example, package.Prediction(**fields), None, **extra)
        if hasattr(said, "score"):
            return Reward(float(said.score), feedback=str(getattr(said, "feedback", None) or ""))
        return float(said)


def _plain(value: Any) -> Any:
    """Converts a value to JSON: pydantic records by their fields, other objects by their text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if callable(dump := getattr(value, "model_dump", None)):
        return _plain(dump(mode="json", exclude_none=True))
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return str(value)
