"""Supervised fine-tuning: a user's rows and recorded attempts as a model's own tokens, learnt in resumable pieces.

The loss sees the assistant's tokens only, each answer after the prompt that the model's template makes of what stands
before it. Every call of `learn` is a piece between two checkpoints and a function of what is recorded before it: a
killed run comes to the same bytes. Where rows come from, and how pieces become a run, is the pipeline's business.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import takewhile
from math import ceil
from operator import eq
from secrets import token_hex
from typing import Any, ClassVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, LearnContext
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall
from holdfast.learn.batch import (
    SampleFilter,
    Samples,
    SkipReason,
    read,
    reward,
    trained_mask,
)
from holdfast.learn.checkpoints import Learner
from holdfast.learn.distributed import refuse, trainer_of
from holdfast.learn.dp import Privacy, PrivacyBudget, PrivateTrainer, SecretNoise, Unit
from holdfast.learn.train import OptimizerConfig, Settings, Trainer, Update
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate
from holdfast.policies.lm import Transformer
from holdfast.policies.model import Model
from holdfast.privacy.scrub import key_in


def sequences(pairs: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> Samples:
    """Packs token ids and the marks of those that are learnt."""
    kept = [(np.asarray(ids, dtype=np.int32), np.asarray(marks, dtype=np.bool_)) for ids, marks in pairs]
    if not kept:
        raise BadInput("no sequence", why="there is none")
    for number, (ids, marks) in enumerate(kept):
        if len(ids) != len(marks):
            raise BadInput(f"sequence {number}", why=f"{len(ids)} ids, {len(marks)} marks")
    is_decided = np.concatenate([marks for _, marks in kept])
    return Samples(
        bounds=np.cumsum([0, *(len(ids) for ids, _ in kept)]),
        ids=np.concatenate([ids for ids, _ in kept]),
        action_mask=is_decided,
        weights=is_decided.astype(np.float32),
    )


def portions(samples: Samples, size: int, *, seed: int, start: int = 0) -> Iterator[Samples]:
    """Yields portions from number `start` on, in endless shuffled passes; the numbering makes it resumable."""
    if size < 1:
        raise BadInput(f"portions of {size}", why="must be at least 1")
    a_pass = max(1, len(samples) // size)
    number = start
    while True:
        order = np.random.default_rng((seed, number // a_pass)).permutation(len(samples))
        for place in range(number % a_pass, a_pass):
            yield samples.pick(order[place * size : (place + 1) * size])
            number += 1


ROLES = ("system", "developer", "user", "assistant", "tool")
PAIRS = (("prompt", "completion"), ("question", "answer"))  # columns that are known without a mapping
FORMS = '{"messages": [...], "tools": [...]}, {"prompt": ..., "completion": ...} or {"question": ..., "answer": ...}'
PREFERENCES = '{"prompt": ..., "chosen": ..., "rejected": ...}, or two conversations that begin alike'
COLUMNS = ("messages", "tools", "system", "prompt", "completion", "chosen", "rejected", "user")  # that can be mapped
HELD_OUT = "held_out"
NO_ANSWER = "there is nothing of the assistant's to learn"

Message = Mapping[str, Any]
Tokens = tuple[list[int], list[bool]]  # ids, and which of them are to be learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One conversation. What its messages hold beyond roles is checked by whoever renders them."""

    place: str  # "examples.jsonl line 3"
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    split: str | None = None  # where the rows say it: all but "train" is held out
    user: str | None = None  # whose conversation it is, where the rows say it
    rejected: Sequence[Message] = ()  # of a pair, the conversation with the worse answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRows:
    """What was left out, and why: how many of each reason, and the first of each."""

    counts: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, str] = field(default_factory=dict)  # the place of the first, by reason

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def summary(self) -> str:
        """ "3: it has no reward; 1: …", the commonest first."""
        return "; ".join(f"{count}: {reason}" for reason, count in Counter(self.counts).most_common())

    def and_also(self, other: SkippedRows) -> SkippedRows:
        counts = Counter(self.counts) + Counter(other.counts)
        return SkippedRows(counts=dict(counts), first={**other.first, **self.first})

    def check(self, of: int, allowed: float, *, what: str) -> None:
        """BadInput with the first and the commonest reason, where too many rows or all were skipped."""
        if not self.total or (self.total <= allowed * of and self.total < of):
            return
        reason = max(self.counts, key=lambda name: self.counts[name])
        others = f" and {self.total - self.counts[reason]} for other reasons" if len(self.counts) > 1 else ""
        counted = f"{self.counts[reason]} of {of} {what} cannot be used for this reason{others}"
        remedy = f"mend them, or allow more to be left out: skip = {allowed:g}"
        raise BadInput(self.first[reason], why=f"{reason}; {counted}", remedy=remedy)


class _Count:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, place: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, place)

    def close(self) -> SkippedRows:
        return SkippedRows(counts=dict(self.counts), first=self.first)


# Rows ----------------------------------------------------------------------------------------------------------------


def check_columns(columns: Mapping[str, str]) -> None:
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise BadInput(f"columns: {unknown[0]!r}", why="is unknown", remedy=f"use {', '.join(COLUMNS)}")


def read_examples(
    rows: Iterable[tuple[str, str | None, Mapping[str, Any]]],  # place, split, what stands there
    *,
    columns: Mapping[str, str] | None = None,
    system: str | None = None,
    is_pairs: bool = False,
) -> tuple[list[Example], SkippedRows]:
    """Reads rows as conversations, or as pairs of them; gives those, and what was skipped."""
    columns = columns or {}
    check_columns(columns)
    examples: list[Example] = []
    skipped = _Count()
    for place, split, row in rows:
        try:
            chosen, *rejected = _pair(row, columns) if is_pairs else (row,)
            messages, tools = _conversation(chosen, columns, system)
            other = _conversation(rejected[0], columns, system)[0] if rejected else []
        except _Unfit as unfit:
            skipped.add(str(unfit), place)
            continue
        whose = row.get(columns.get("user", "user"))
        user = None if whose in (None, "") else str(whose)
        examples.append(Example(place=place, messages=messages, tools=tools, split=split, user=user, rejected=other))
    return examples, skipped.close()


class _Unfit(ValueError):
    """Why a row is no example."""


def _conversation(
    row: Mapping[str, Any], columns: Mapping[str, str], system: str | None
) -> tuple[list[Message], list[Mapping[str, Any]]]:
    def cell(name: str) -> Any:
        return row.get(columns.get(name, name))

    messages = _parsed(cell("messages"), "messages")
    if messages is None:
        pair = next((pair for pair in PAIRS if columns.get(pair[0], pair[0]) in row), PAIRS[0])
        before, after = _said(cell(pair[0]), "user", pair[0]), _said(cell(pair[1]), "assistant", pair[1])
        if not before or not after:
            raise _Unfit(f"it is none of {FORMS}")
        messages = [*before, *after]
    opening = system if cell("system") is None else cell("system")
    if opening and not (messages and _role(messages[0]) in ("system", "developer")):
        messages = [{"role": "system", "content": str(opening)}, *messages]
    _check(messages)
    tools = _parsed(cell("tools"), "tools") or []
    if any(not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping) for tool in tools):
        raise _Unfit('tools are not of the form {"type": "function", "function": {"name": ...}}')
    return messages, tools


def _pair(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The row with the chosen answer as its messages, and with the rejected one; only the answers are to be learnt."""

    def said(name: str, role: str) -> list[Message]:
        value = row.get(columns.get(name, name))
        is_json = isinstance(value, str) and value.lstrip().startswith("[{")
        return (_parsed(value, name) or []) if is_json else _said(value, role, name)

    before = said("prompt", "user") or said("messages", "user")
    ends = [said(name, "assistant") for name in ("chosen", "rejected")]
    if not all(ends):
        raise _Unfit(f"it is none of {PREFERENCES}")
    if not before or all(_role(end[0]) != "assistant" for end in ends):  # both are whole conversations
        alike = sum(1 for _ in takewhile(bool, map(eq, *ends)))
        before, ends = ends[0][:alike], [end[alike:] for end in ends]
    if ends[0] == ends[1]:
        raise _Unfit("its two answers are the same")
    context = [{**one, "weight": 0} if _role(one) == "assistant" else one for one in before]
    return [{**row, columns.get("messages", "messages"): [*context, *end]} for end in ends]


def _parsed(value: Any, name: str) -> list[Any] | None:
    """A list; in a table of texts it is written as JSON."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise _Unfit(f"{name} is text that is not JSON") from None
    if not isinstance(value, list):
        raise _Unfit(f"{name} is not a list")
    return value


def _said(value: Any, role: str, name: str) -> list[Message]:
    """A text as a message of that role; a list of messages as it is."""
    if isinstance(value, list):
        return value
    if value is not None and not isinstance(value, str):
        raise _Unfit(f"{name} is neither text nor a list of messages")
    return [{"role": role, "content": value}] if value else []


def _role(message: Any) -> str:
    return str(message.get("role")) if isinstance(message, Mapping) else ""


def _check(messages: Sequence[Any]) -> None:
    for place, message in enumerate(messages):
        if _role(message) not in ROLES:
            named = repr(message.get("role")) if isinstance(message, Mapping) else "none: it is no object"
            raise _Unfit(f"messages[{place}] has the role {named}, which is none of {', '.join(ROLES)}")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise _Unfit(f"messages[{place}].content is not text")
        for call in message.get("tool_calls") or ():
            if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
                raise _Unfit(f"messages[{place}].tool_calls has no function")
            if not isinstance(call["function"].get("name"), str):
                raise _Unfit(f"messages[{place}].tool_calls names no function")
    if not any(_is_learnt(message) for message in messages[1:]):
        raise _Unfit(NO_ANSWER)


def _is_learnt(message: Message) -> bool:
    """Whether a message is a non-empty answer; `"weight": 0` marks it as context only."""
    has_text = bool(message.get("content") or message.get("tool_calls") or message.get("reasoning_content"))
    return message.get("role") == "assistant" and has_text and message.get("weight") != 0


# Tokens --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Turn:
    """One answer: what stands before it, what it is, and whether it is to be learnt."""

    before: Sequence[Message]
    answer: Message
    tools: Sequence[Mapping[str, Any]]
    is_learnt: bool = True


def tokens_of(template: ChatTemplate, example: Example) -> list[Tokens]:
    """The conversation in a model's tokens: one sequence as long as each prompt begins with all that was said before.

    A template that renders earlier turns otherwise (some leave old thoughts out) makes it several."""
    messages = example.messages
    turns = [
        _Turn(messages[:place], message, example.tools, _is_learnt(message))
        for place, message in enumerate(messages)
        if place and message.get("role") == "assistant"
    ]
    last = max(place for place, turn in enumerate(turns) if turn.is_learnt)
    return _joined(template, turns[: last + 1])


def _joined(template: ChatTemplate, turns: Iterable[_Turn]) -> list[Tokens]:
    found: list[Tokens] = []
    for turn in turns:
        prompt = template.prompt(turn.before, turn.tools)
        answer = template.answer([*turn.before, turn.answer], turn.tools)
        known = next((one for one in reversed(found) if prompt[: len(one[0])] == one[0]), None)
        if known is None:
            found.append(known := ([], []))
        ids, decided = known
        decided += [False] * (len(prompt) - len(ids)) + [turn.is_learnt] * len(answer)
        ids += [*prompt[len(ids) :], *answer]
    return [one for one in found if any(one[1])]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Sequences to learn from and sequences to measure by."""

    train: Samples
    held_out: Samples | None  # None: there were too few examples to keep any back
    owners: NDArray[np.int64] | None = None  # of each sequence to learn from, the unit that it belongs to; None: itself

    @property
    def units(self) -> int:
        """How many there are to draw from."""
        return len(self.train) if self.owners is None else len(np.unique(self.owners))

    def places(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the sequences of these units are."""
        return units if self.owners is None else np.flatnonzero(np.isin(self.owners, units))

    def pick(self, places: NDArray[np.int64]) -> Samples:
        """Sequences to learn from, each with the name of its unit."""
        chosen = self.train.pick(places)
        return chosen if self.owners is None else replace(chosen, rollouts=tuple(map(str, self.owners[places])))

    def to_bytes(self) -> bytes:
        parts = {"train": self.train, **({HELD_OUT: self.held_out} if self.held_out is not None else {})}
        arrays: dict[str, NDArray[Any]] = {} if self.owners is None else {"owners": self.owners}
        for name, some in parts.items():
            arrays |= {f"{name}.bounds": some.bounds, f"{name}.ids": some.ids, f"{name}.decided": some.action_mask}
        return safetensors.numpy.save(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Dataset:
        arrays = safetensors.numpy.load(data)

        def part(name: str) -> Samples:
            decided = arrays[f"{name}.decided"]
            return Samples(
                bounds=arrays[f"{name}.bounds"],
                ids=arrays[f"{name}.ids"],
                action_mask=decided,
                weights=decided.astype(np.float32),
            )

        held_out = part(HELD_OUT) if f"{HELD_OUT}.ids" in arrays else None
        return cls(train=part("train"), held_out=held_out, owners=arrays.get("owners"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenised:
    """One example, or one recorded attempt, in tokens."""

    sequences: Sequence[Tokens]
    split: str | None = None
    user: str | None = None

    @property
    def key(self) -> bytes:
        """Equal where they are the same tokens: copies go to the same side of the split, and are one unit."""
        digest = hashlib.sha256()
        for ids, decided in self.sequences:
            digest.update(np.asarray(ids, np.int64).tobytes() + np.asarray(decided, np.bool_).tobytes() + b"|")
        return digest.digest()


def tokenise(
    template: ChatTemplate, examples: Iterable[Example], *, longest: int, pause_point: Callable[[], None] = lambda: None
) -> tuple[list[Tokenised], SkippedRows]:
    """The examples in tokens; those that do not fit, or that the template cannot render, are left out whole."""
    found: list[Tokenised] = []
    skipped = _Count()
    for example in examples:
        pause_point()
        try:
            made = tokens_of(template, example)
            other = tokens_of(template, replace(example, messages=example.rejected)) if example.rejected else []
        except BadInput as error:
            skipped.add(f"{error.what} {error.why}", example.place)
            continue
        if other and len(made) + len(other) > 2:
            skipped.add("its answer is more than one sequence of tokens", example.place)
            continue
        made += other
        if max(len(ids) for ids, _ in made) > longest:
            skipped.add(f"it is longer than {longest} tokens", example.place)
        else:
            found.append(Tokenised(sequences=made, split=example.split, user=example.user))
    return found, skipped.close()


def divide(
    examples: Sequence[Tokenised], share: float, *, seed: int, unit: Unit | None = None, is_whole: bool = False
) -> Dataset:
    """Holds out a random share; where the rows have splits, everything but "train".

    With a unit each is held out by itself, whoever else is there: one more example must not change who the others are.
    `is_whole` keeps the sequences of one example together."""
    keys = [
        example.user.encode() if unit == "user" and example.user is not None else example.key for example in examples
    ]
    if any(example.split is not None for example in examples):
        is_kept = [example.split not in (None, "train") for example in examples]
    elif unit is not None:
        is_kept = [_chance(key, seed) < share for key in keys]
    else:
        distinct = sorted(set(keys))
        chosen = np.random.default_rng((seed, 1)).permutation(len(distinct))[: int(share * len(distinct))]
        back = {distinct[place] for place in chosen}
        is_kept = [key in back for key in keys]
    train = [place for place, is_back in enumerate(is_kept) if not is_back]
    kept = [
        pair for tokenised, is_back in zip(examples, is_kept, strict=True) if is_back for pair in tokenised.sequences
    ]
    if not train:
        raise BadInput("examples", why="none is left to learn from", remedy="give more, or hold fewer out")
    owners = None
    if unit is not None or is_whole:
        number: dict[bytes | int, int] = {}
        each = [number.setdefault(place if unit is None else keys[place], len(number)) for place in train]
        owners = np.repeat(np.asarray(each, np.int64), [len(examples[place].sequences) for place in train])
    return Dataset(
        train=sequences(pair for place in train for pair in examples[place].sequences),
        held_out=sequences(kept) if kept else None,
        owners=owners,
    )


def _chance(key: bytes, seed: int) -> float:
    """A number from 0 to 1 that is this key's own."""
    return int.from_bytes(hashlib.sha256(f"{seed}:".encode() + key).digest()[:6]) / 2**48


# Recorded attempts ---------------------------------------------------------------------------------------------------


def recorded(
    template: ChatTemplate,
    experiences: Iterable[Experience],
    *,
    least: float | None,
    longest: int,
    vocabulary: int,
    users: Mapping[str, str] | None = None,
    pause_point: Callable[[], None] = lambda: None,
) -> tuple[list[Tokenised], SkippedRows]:
    """Good attempts as examples: in the ids that were sampled where they are this model's own, else from their text.

    What is only of a split for measuring, or was rewarded below `least`, is left out."""
    intake = SampleFilter(max_tokens=longest, vocabulary=vocabulary, is_scored=least is not None, is_sampled=False)
    found: list[Tokenised] = []
    skipped = _Count()
    for experience in experiences:
        pause_point()
        made = _recorded(template, experience, least, intake)
        if isinstance(made, str):
            skipped.add(made, experience.rollout)
        else:
            found.append(Tokenised(sequences=made, user=(users or {}).get(experience.rollout)))
    return found, skipped.close()


def _recorded(template: ChatTemplate, one: Experience, least: float | None, intake: SampleFilter) -> list[Tokens] | str:
    if one.split is not Split.TRAIN:
        return f"it is of the split {one.split}, which is not learnt from"
    if one.state is not RolloutState.SUCCEEDED:
        return "it did not succeed"
    worth = reward(one)
    if least is not None and (worth is None or worth < least):
        return "it has no reward" if worth is None else f"its reward is below {least:g}"
    if one.calls and all(_is_own(template, call) for call in one.calls):
        reading = read(one, intake)
        if reading.reason is not None:
            return str(reading.reason).replace("_", " ")
        return [(sample.ids.tolist(), sample.action_mask.tolist()) for sample in reading.samples]
    return _from_text(template, one.calls, intake.max_tokens or 0)


def _is_own(template: ChatTemplate, call: ModelCall) -> bool:
    """Whether the recorded ids are this model's: its template renders the prompt to the same ids."""
    if call.prompt_ids is None or not call.completion_ids:
        return False
    try:
        return tuple(template.prompt(call.messages, call.sampling.get("tools") or ())) == call.prompt_ids
    except BadInput:
        return False


def _from_text(template: ChatTemplate, calls: Sequence[ModelCall], longest: int) -> list[Tokens] | str:
    turns = [
        _Turn(call.messages, call.response, call.sampling.get("tools") or ())
        for call in calls
        if _is_learnt(call.response) and call.messages
    ]
    if not turns:
        return str(SkipReason.NO_TRAJECTORY).replace("_", " ")
    try:
        made = _joined(template, turns)
    except BadInput as error:
        return f"{error.what} {error.why}"
    return made if max(len(ids) for ids, _ in made) <= longest else f"it is longer than {longest} tokens"


PIECES = 10  # checkpoints that a run leaves where nothing else is said
FEWEST = 10  # updates between two of them
TAKEN_BACK = 3  # updates in a row that were taken back: it diverges
RECENT = 5  # updates whose loss is the loss now
TOO_FAR = (2.0, 1.0)  # so is a loss above the first one times this, plus this
Private = tuple[PrivacyBudget, SecretNoise]


@dataclass(frozen=True, kw_only=True)
class SFT:
    """How a model learns from examples. A batch counts sequences; the loss is the mean over the assistant's tokens.

    With `privacy` a batch counts units, and each is drawn by itself: see `learn.dp`."""

    phase: ClassVar[str] = "sft"  # what its runs, trainers and checkpoints are called
    is_pairs: ClassVar[bool] = False  # an example is two sequences, the better one first

    lr: float = 1e-4
    epochs: int = 3
    batch: int = 16
    max_tokens: int | None = None  # of one example; None: what the model can read
    held_out: float = 0.1  # share of the examples that only measure
    warm_up: float = 0.05  # share of the updates; afterwards the rate falls to a tenth, by a cosine
    save_every: int | None = None  # updates between two checkpoints; None: ten of them in a run
    skip: float = 0.1  # share of the examples that may be left out because they cannot be used
    seed: int = 0
    privacy: Privacy | None = None
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.privacy, Mapping):  # from a record
            object.__setattr__(self, "privacy", Privacy(**self.privacy))
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise BadInput(f"privacy = {self.privacy!r}", why="is no budget", remedy="give hf.Privacy(epsilon=8)")
        for name in ("epochs", "batch", "max_tokens", "save_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{self.phase}.{name} = {value}", why="must be at least 1")
        for name in ("held_out", "warm_up", "skip"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise BadInput(f"{self.phase}.{name} = {getattr(self, name)}", why="is a share: at least 0 and below 1")
        if not 0.0 < self.lr < float("inf"):
            raise BadInput(f"{self.phase}.lr = {self.lr}", why="must be finite and above 0")

    def record(self) -> dict[str, Any]:
        """All that decides what is learnt; plain JSON, and `SFT(**record)` is an equal one."""
        names = [one.name for one in fields(self) if one.name not in ("learner", "privacy")]
        known = {name: getattr(self, name) for name in names}
        return known if self.privacy is None else {**known, "privacy": self.privacy.record()}

    @property
    def unit(self) -> Unit | None:
        return None if self.privacy is None else self.privacy.unit

    # How far it is ---------------------------------------------------------------------------------------------------

    def updates(self, units: int) -> int:
        return self.epochs * ceil(units / self.batch)

    def pieces(self, units: int) -> int:
        """How many calls of `learn` there are, each with a checkpoint at its end."""
        return ceil(self.updates(units) / self._every(units))

    def _every(self, units: int) -> int:
        return self.save_every or max(FEWEST, ceil(self.updates(units) / PIECES))

    # The pieces ------------------------------------------------------------------------------------------------------

    def template(self, policy: Model, ctx: LearnContext) -> tuple[ChatTemplate, int, int]:
        """How the model writes a conversation, and how many tokens it can read and has."""
        model = self.learner.load(policy, ctx.files)
        shape = model.shape if isinstance(model, Transformer) else model
        template = ByteTemplate() if isinstance(model, Transformer) else model.template
        return template, min(self.max_tokens or shape.context, shape.context), shape.vocabulary

    def begin(
        self, policy: Model, data: Dataset, ctx: LearnContext, earlier: Sequence[Mapping[str, Any]] = ()
    ) -> AlgorithmState:
        """Before anything is learnt: the loss on what is held out, and how much noise the budget asks for.

        `earlier` are the reports of private runs that led to this policy."""
        reader = self._reader(self.learner.load(policy, ctx.files))
        reader.pause_point = ctx.check
        notes = self._notes(reader, data, ctx)
        metrics: dict[str, Any] = {"phase": self.phase, HELD_OUT_LOSS: self._held_out(reader, data, notes)}
        kept: dict[str, Any] = {} if notes is None else {"notes": ctx.save(notes)}
        if self.privacy is not None:
            steps = self.updates(data.units)
            budget = PrivacyBudget.of(self.privacy, units=data.units, batch=self.batch, steps=steps)
            nonce = f"seed {self.seed}" if self.privacy.deterministic else token_hex(16)
            kept |= {"budget": budget.record(), "nonce": nonce, "earlier": list(earlier)}
            metrics["privacy"] = budget.spent(0, earlier)
        return AlgorithmState(base=policy, data=kept, metrics=metrics)

    def learn(self, state: AlgorithmState, data: Dataset, ctx: LearnContext) -> AlgorithmState:
        """The updates up to the next checkpoint."""
        if not ctx.features.learning:
            return state.next(metrics={"phase": self.phase, "skipped": SWITCHED_OFF})
        with self.learner.undone_on_failure():
            return self._learn(state, data, ctx)

    def _learn(self, state: AlgorithmState, data: Dataset, ctx: LearnContext) -> AlgorithmState:
        every, total = self._every(data.units), self.updates(data.units)
        assert isinstance(state.policy, Model)
        self.learner.load(state.policy, ctx.files)
        is_new = state.data.get("trainer") != self.phase
        private = self._private(state, ctx)
        make = partial(self._trainer, total=total, private=private)
        trainer = self.learner.train(self.phase, make, ctx.files, is_new=is_new)
        trainer.pause_point = ctx.check
        notes = ctx.read(state.data["notes"]) if "notes" in state.data else None
        first = state.step * every
        last = min(first + every, total)
        account = _Account()
        for number in range(first, last):
            places = data.places(self._batch(number, data.units, private))
            account.add(*self._step(trainer, data.pick(places), notes, places))
            if account.in_a_row == TAKEN_BACK:
                raise self._diverged(f"{TAKEN_BACK} updates in a row were taken back: {account.why}")
        began = self._check_loss(state.data.get("first_loss"), account.losses)
        metrics = {
            "phase": self.phase,
            "updates": last,
            "of": total,
            "loss": float(np.mean(account.losses)) if account.losses else None,
            HELD_OUT_LOSS: self._held_out(trainer, data, notes),
            "tokens": account.tokens if private is None else None,
            "taken_back": account.taken_back,
        }
        if private is not None:
            metrics["privacy"] = private[0].spent(last, state.data["earlier"])
        kept = {"privacy": metrics["privacy"]} if private is not None else {}
        candidate = self.learner.save(ctx, algorithm=self.phase, metadata=kept)
        metrics["checkpoint"] = candidate.checkpoint
        return state.next(candidate=candidate, metrics=metrics, trainer=self.phase, first_loss=began)

    # What preference optimisation does otherwise ----------------------------------------------------------------------

    def _notes(self, reader: Trainer, data: Dataset, ctx: LearnContext) -> Any:
        """What is measured once at the beginning and needed in every update; plain JSON."""
        return None

    def _step(
        self, trainer: Trainer, batch: Samples, notes: Any, places: NDArray[np.int64]
    ) -> tuple[Update, float | None]:
        update = trainer.step(batch)
        return update, update.loss

    def _held_out(self, trainer: Trainer, data: Dataset, notes: Any) -> float | None:
        return None if data.held_out is None else _mean_loss(trainer, data.held_out)

    def _reader(self, model: nn.Module) -> Trainer:
        """What measures before anything is learnt."""
        return trainer_of(model, self._settings(1), seed=self.seed)

    def _settings(self, total: int) -> Settings:
        warm_up = min(int(self.warm_up * total), total - 1)
        optimizer = OptimizerConfig(learning_rate=self.lr, schedule="cosine", warm_up=warm_up, total=total)
        return Settings(optimizer=optimizer)

    # The parts -------------------------------------------------------------------------------------------------------

    def _private(self, state: AlgorithmState, ctx: LearnContext) -> Private | None:
        """The recorded budget, and the source of its noise: the store's own key and what this run drew once."""
        if self.privacy is None:
            return None
        key = b"" if self.privacy.deterministic else key_in(ctx.folder)
        budget = PrivacyBudget(privacy=self.privacy, **state.data["budget"])
        return budget, SecretNoise(key + state.data["nonce"].encode())

    def _check_loss(self, began: float | None, losses: list[float]) -> float | None:
        """The loss that it all began with; BadInput where the last ones are far above it."""
        if not losses:
            return began
        began, now = losses[0] if began is None else began, float(np.mean(losses[-RECENT:]))
        if now > TOO_FAR[0] * began + TOO_FAR[1]:
            raise self._diverged(f"the loss went from {began:.3g} to {now:.3g} nats a token")
        return began

    def _batch(self, number: int, count: int, private: Private | None = None) -> NDArray[np.int64]:
        """Which units an update learns from: a part of a shuffled pass over all of them, or a Poisson sample."""
        if private is not None:
            return private[1].sample(number, count, private[0].rate)
        a_pass = ceil(count / self.batch)
        order = np.random.default_rng((self.seed, 2, number // a_pass)).permutation(count)
        place = number % a_pass * self.batch
        return order[place : place + self.batch]

    def _trainer(self, model: nn.Module, *, total: int, private: Private | None = None) -> Trainer:
        settings = self._settings(total)
        if private is None:
            return trainer_of(model, settings, seed=self.seed)
        refuse("privacy")
        return PrivateTrainer(model, settings, *private, seed=self.seed)

    def _diverged(self, why: str) -> BadInput:
        return BadInput(
            f"{self.phase}.lr = {self.lr:g}", why=f"it diverges: {why}", remedy="begin anew with a smaller rate"
        )


class _Account:
    """The updates of one piece, as they come in."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.tokens = self.taken_back = self.in_a_row = 0
        self.why: str | None = None

    def add(self, update: Update, loss: float | None) -> None:
        self.tokens += update.tokens
        self.taken_back += bool(update.restored)
        self.in_a_row = self.in_a_row + 1 if update.restored else 0
        self.why = update.restored
        if loss is not None:
            self.losses.append(loss)


HELD_OUT_LOSS = "held_out_loss"  # nats a token of the assistant's


def _mean_loss(trainer: Trainer, samples: Samples) -> float:
    marks = trained_mask(samples)
    return float(-trainer.logprobs(samples)[marks].mean(dtype=np.float64))
