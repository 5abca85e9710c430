"""Answers with a known outcome: the embedded verifier learns from them, and judges are calibrated on them.

The models in the package answer tasks, and the hidden check says which answers are right. Two kinds of wrong answers
that fool judges are added: the right value with padding around it, and another value in the right shape.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import EvalItem, Label, Maker
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span
from holdfast.policies import verifier
from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from holdfast.policies.verifier import Conversation
from holdfast.policies.weights import Manifest
from holdfast.workloads.tooluse.agent import attempt_all
from holdfast.workloads.tooluse.score import SOURCE, is_same, score, value_in
from holdfast.workloads.tooluse.tasks import STYLES, generate
from holdfast.workloads.tooluse.tools import specs

MODELS = ("sprout", "sprout-weak")  # whose answers are learnt from: their tokens are the verifier's own
PADDINGS = {  # those of the one are never learnt from by who is measured on the other
    "train": (
        "I am sure of it. {}",
        "{} This was checked twice.",
        "{} {}",
        "After careful thought: {} I hope that helps.",
        "{} Please note that this is correct.",
    ),
    "test": (
        "{} It is beyond doubt, as every step was verified with great care and attention to detail.",
        "Certainly! {} Let me know if you need anything else.",
        "To answer the question fully and faithfully: {}",
        "{} {} {}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer and what the hidden check says of it."""

    task: Mapping[str, Any]  # what to_input gave
    messages: tuple[Mapping[str, Any], ...]  # the whole conversation, the answer last
    author: str  # "sprout", "sprout-weak"
    kind: str = "own"  # or "padded", "swapped": made from an answer by a program
    is_right: bool

    @property
    def output(self) -> str:
        return str(self.messages[-1].get("content") or "")

    @property
    def conversation(self) -> Conversation:
        return self.messages, specs(self.task["tools"])


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierRecipe:
    """Everything that decides what the verifier becomes."""

    tasks: int = 1500  # of each of the two splits, for each of the two models
    splits: tuple[str, ...] = ("train", "val")
    temperature: float = 1.0
    made: float = 0.35  # chance that an answer gets a padded, and a swapped, twin
    first: int = 77  # seed of the tasks
    seed: int = 0  # of the head


def answered(
    split: str,
    n: int,
    *,
    first: int,
    made: float = 0.35,
    temperature: float = 1.0,
    models: Sequence[str] = MODELS,
    done: Callable[[int], None] = lambda n: None,
) -> list[Answered]:
    """Lets each model answer the first n tasks of a seed, and adds the twins that are made of the answers."""
    answers: list[Answered] = []
    tasks = generate(split, first, n)
    for name in models:
        net, manifest = load_transformer(name)
        with Local(net, name=name, version=manifest.sha256[:12]) as local:
            attempts = asyncio.run(attempt_all(local, tasks, {"temperature": temperature, "max_tokens": 120}))
        for given, output, spans in attempts:
            talk, right = conversation(given, output, spans), is_right(score(given, output, spans))
            answers.append(Answered(task=given, messages=talk, author=name, is_right=right))
            done(1)
    chance = Random(f"{split} {first} {n}")
    return [*answers, *twins(answers, chance, PADDINGS["test" if split == "test" else "train"], made)]


def is_right(signals: Sequence[RewardTerm]) -> bool:
    """The verdict of the hidden check."""
    return any(signal.name == "success" and signal.value == 1.0 for signal in signals)


def conversation(task: Mapping[str, Any], output: str, spans: Sequence[Span]) -> tuple[Mapping[str, Any], ...]:
    """Returns the messages up to the answer, the answer last; without spans, the question and the answer."""
    calls = [span.model for span in spans if span.model is not None]
    if calls and not calls[-1].response.get("tool_calls"):
        return *calls[-1].messages, {**calls[-1].response, "role": "assistant", "content": output}
    asked = calls[-1].messages if calls else (_says("system", task["system"]), _says("user", task["prompt"]))
    return *asked, _says("assistant", output)


def _says(role: str, text: Any) -> dict[str, Any]:
    return {"role": role, "content": str(text)}


def twins(answers: Sequence[Answered], chance: Random, paddings: Sequence[str], share: float) -> list[Answered]:
    """Right answers with padding, and answers whose value was changed: each as the hidden check finds it."""
    made: list[Answered] = []
    values = [value for answer in answers if (value := value_in(answer.output)) is not None]
    for answer in answers:
        value = value_in(answer.output)
        if answer.is_right and chance.random() < share:
            text = chance.choice(paddings)
            made.append(_twin(answer, text.replace("{}", answer.output), "padded"))
        if value is not None and chance.random() < share:
            other = chance.choice(values)
            if not is_same(other, value):
                made.append(_twin(answer, styled(other, str(answer.task["style"])), "swapped"))
    return made


def _twin(one: Answered, text: str, kind: str) -> Answered:
    messages = (*one.messages[:-1], {**one.messages[-1], "content": text})
    return replace(one, messages=messages, kind=kind, is_right=is_right(score(one.task, text, ())))


def styled(value: str, style: str) -> str:
    """The value as an answer of this style."""
    return STYLES[style].removeprefix("Reply: ").replace("X", value)


def eval_item(answer: Answered) -> EvalItem:
    """Makes the item that a judge is shown: question, tool results and answer, without hidden fields."""
    said = [m for m in answer.messages[2:-1] if m.get("role") == "tool" or m.get("tool_calls")]
    lines = []
    for message in said:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        lines += [f"call {call['name']} {call.get('arguments') or ''}" for call in calls]
        if message.get("role") == "tool":
            lines.append(f"result {message.get('content')}")
    messages, tools = answer.conversation
    return EvalItem(
        task=f"{answer.task['system']}\n{answer.task['prompt']}",
        output=answer.output,
        context="\n".join(lines),
        author=answer.author,
        detail={"messages": list(messages), "tools": [dict(tool) for tool in tools], "kind": answer.kind},
    )


def labels(answers: Sequence[Answered], criterion: str, *, now: float) -> list[Label]:
    """The labels by the hidden check."""
    about: dict[str, Any] = {"criterion": criterion, "maker": Maker.PROGRAM, "who": SOURCE, "at": now}
    return [Label(artefact=eval_item(answer).sha256, holds=answer.is_right, **about) for answer in answers]


def gathered(recipe: VerifierRecipe, *, done: Callable[[int], None] = lambda n: None) -> list[Answered]:
    """The training data of the recipe."""
    how: dict[str, Any] = {"first": recipe.first, "made": recipe.made, "temperature": recipe.temperature, "done": done}
    return [answer for split in recipe.splits for answer in answered(split, recipe.tasks, **how)]


def plant(
    answers: Sequence[Answered], folder: Path, recipe: VerifierRecipe, *, created_at: float, model: str = "sprout"
) -> Manifest:
    """Trains the head on the answers and saves it with its provenance."""
    net, below = load_transformer(model)
    read, kept = verifier.features(net, [answer.conversation for answer in answers])
    right = [answers[place].is_right for place in kept]
    head = verifier.fit(read, right, groups=[answers[place].author for place in kept], seed=recipe.seed)
    manifest = Manifest(
        kind=verifier.KIND,
        shape={},
        parent=below.sha256,
        data=data_sha256(answers),
        seeds={"head": recipe.seed, "tasks": recipe.first},
        created_at=created_at,
        notes={"recipe": asdict(recipe), "answers": len(kept), "right": sum(right), "labels": "program"},
    )
    return verifier.save(folder, head, manifest)


def data_sha256(answers: Sequence[Answered]) -> str:
    if not answers:
        raise BadInput("answers", why="there are none")
    told = (f"{answer.author}\0{answer.kind}\0{answer.messages!r}\0{answer.is_right}" for answer in answers)
    return hashlib.sha256("\n".join(told).encode(errors="replace")).hexdigest()
