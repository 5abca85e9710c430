"""Small stand-ins for packages that are not installed here, with the shapes that their documentation gives.

The packages themselves are run by `tests/peers`.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import openai

# verifiers, with a dataset and a rubric


class Rubric:
    def __init__(self, funcs: list[Callable[..., Any]], weights: list[float]) -> None:
        self.funcs, self.weights = funcs, weights
        self.cleaned = 0

    async def score_rollout(self, state: dict[str, Any]) -> None:
        given = {"completion": state["completion"], "answer": state["input"].get("answer", ""), "state": state}
        state["metrics"] = {one.__name__: float(one(**given)) for one in self.funcs}
        pairs = zip(state["metrics"].values(), self.weights, strict=True)
        state["reward"] = sum(value * weight for value, weight in pairs)

    async def cleanup(self, state: dict[str, Any]) -> None:
        self.cleaned += 1


def correct(completion: Any, answer: str, **_: Any) -> float:
    return float(completion[-1]["content"] == answer)


def brief(completion: Any, **_: Any) -> float:
    return float(len(completion[-1]["content"]) < 10)


class DatasetEnv:
    """As SingleTurnEnv: asks once."""

    def __init__(self, rows: list[dict[str, Any]], *, evaluation: list[dict[str, Any]] | None = None) -> None:
        self.system_prompt = "You answer briefly."
        self.rubric = Rubric([correct, brief], [1.0, 0.1])
        self.dataset, self.eval_dataset = rows, evaluation
        self.fails_with: Exception | None = None

    def get_dataset(self, n: int = -1) -> list[dict[str, Any]]:
        return self.dataset if n < 0 else self.dataset[:n]

    def get_eval_dataset(self, n: int = -1) -> list[dict[str, Any]]:
        assert self.eval_dataset is not None
        return self.eval_dataset if n < 0 else self.eval_dataset[:n]

    async def rollout(
        self, input: dict[str, Any], client: openai.AsyncOpenAI, model: str, sampling_args: dict[str, Any]
    ) -> dict[str, Any]:
        reply = await client.chat.completions.create(model=model, messages=input["prompt"], **sampling_args)
        said = {"role": "assistant", "content": reply.choices[0].message.content}
        return {"input": input, "completion": [said], "error": self.fails_with}


# verifiers.v1


@dataclass(frozen=True)
class TaskData:
    idx: int
    prompt: str
    answer: str
    system_prompt: str | None = "You answer briefly."

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {"idx": self.idx, "prompt": self.prompt, "answer": self.answer, "system_prompt": self.system_prompt}


@dataclass(frozen=True)
class Task:
    data: TaskData

    def hooks(self, kind: str) -> list[Callable[..., Any]]:
        assert kind == "reward"
        return [self.exact]

    def exact(self, trace: Any) -> float:
        return float(trace.last_reply == self.data.answer)

    def with_system_prompt(self, text: str) -> Task:
        return Task(replace(self.data, system_prompt=text))


@dataclass
class Taskset:
    tasks: list[Task]
    bounded: bool = True

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def take(self, n: int) -> Taskset:
        return Taskset(self.tasks[:n])

    @staticmethod
    def task_type() -> type:
        return Task


@dataclass
class TasksetEnv:
    taskset: Taskset
    config: dict[str, Any] = field(default_factory=lambda: {"agent": SimpleNamespace(harness=None), "timeout": None})
    opened: int = 0
    closed: int = 0
    fails: bool = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.opened += 1
        yield
        await asyncio.sleep(0.01)
        self.closed += 1

    async def run_episode(self, task: Task, ctx: Any) -> Any:
        assert self.opened == self.closed + 1
        key = os.environ[ctx.client.api_key_var]
        messages: Any = [
            {"role": "system", "content": task.data.system_prompt},
            {"role": "user", "content": task.data.prompt},
        ]
        async with openai.AsyncOpenAI(base_url=ctx.client.base_url, api_key=key) as client:
            reply = await client.chat.completions.create(model=ctx.model, messages=messages)
        text = str(reply.choices[0].message.content)
        said = [*messages, {"role": "assistant", "content": text}]
        trace = SimpleNamespace(last_reply=text, branches=[SimpleNamespace(nodes=[_node(one) for one in said])])
        trace.rewards = {"exact": SimpleNamespace(score=task.exact(trace), weight=1.0), "unscored": None}
        trace.reward = trace.rewards["exact"].score
        trace.ok, trace.errors = not self.fails, []
        if self.fails:
            trace.errors = [SimpleNamespace(type="TaskError", message="no such box")]
        return SimpleNamespace(traces=[trace], errors=[])


def _node(message: dict[str, Any]) -> Any:
    return SimpleNamespace(message=message)


def verifiers_modules() -> dict[str, ModuleType]:
    v1, types = ModuleType("verifiers.v1"), ModuleType("verifiers.v1.types")
    v1.EvalClientConfig = v1.ModelContext = types.SamplingConfig = SimpleNamespace  # type: ignore[attr-defined]
    return {"verifiers.v1": v1, "verifiers.v1.types": types}


# dspy


class Example(dict[str, Any]):
    """Also a prediction: fields are attributes."""

    keys_of_inputs: tuple[str, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def with_inputs(self, *names: str) -> Example:
        made = Example(self)
        made.__dict__["keys_of_inputs"] = names
        return made

    def inputs(self) -> Example:
        if self.keys_of_inputs is None:
            raise ValueError("Inputs have not been set for this example.")
        return Example({key: self[key] for key in self.keys_of_inputs})

    def labels(self) -> Example:
        return Example({key: value for key, value in self.items() if key not in (self.keys_of_inputs or ())})

    def toDict(self) -> dict[str, Any]:
        return dict(self)


@dataclass(frozen=True)
class Signature:
    instructions: str

    def with_instructions(self, text: str) -> Signature:
        return Signature(text)

    @property
    def input_fields(self) -> dict[str, None]:
        return {"question": None}


class Predict:
    def __init__(self, instructions: str) -> None:
        self.signature = Signature(instructions)
        self.lm: Any = None

    def named_predictors(self) -> list[tuple[str, Predict]]:
        return [("self", self)]

    def predictors(self) -> list[Predict]:
        return [self]

    def set_lm(self, lm: Any) -> None:
        self.lm = lm

    def deepcopy(self) -> Predict:
        return copy.deepcopy(self)

    def __call__(self, *, question: str) -> Example:
        return Example(answer=self.lm(self.signature.instructions, question))


class LM:
    def __init__(self, model: str, *, api_base: str, api_key: str, **options: Any) -> None:
        assert options.pop("cache") is False and options.pop("num_retries") == 0
        self.model, self.client, self.options = model, openai.OpenAI(base_url=api_base, api_key=api_key), options

    def __call__(self, system: str, question: str) -> str:
        messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        name = self.model.removeprefix("openai/")
        with self.client as client:
            reply = client.chat.completions.create(model=name, messages=messages, **self.options)
        return str(reply.choices[0].message.content)


def dspy_module() -> ModuleType:
    @contextmanager
    def context(**_: Any) -> Iterator[None]:
        yield

    made: Any = ModuleType("dspy")
    made.LM, made.Example, made.Prediction, made.context = LM, Example, Example, context
    module: ModuleType = made
    return module
