"""From recorded attempts to token sequences, and from those to padded tensors.

An experience is one attempt as the store knows it. Its model calls become samples: as long as each prompt begins with
all that was read and said before it, the calls are one sequence (`Thread`); where a prompt was rewritten, a new one
begins and the break is counted by its kind. Ids and log-probs are those that were sampled, never derived from text.
`grpo`, `examples` and `turns` put advantages, imitation weights and value targets on the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile
from operator import eq
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.experience import AdvantageBatch, Experience, Trajectory
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import TAG, ModelCall


class Break(StrEnum):
    """Why a prompt does not begin with the ids of the conversation that it goes on with."""

    TEMPLATE = "template"  # same messages; what the endpoint writes around them has changed
    RETOKENISED = "retokenised"  # same messages; what was sampled came back as other ids
    EDITED = "edited"  # the agent sent other messages, or other tools
    SCRUBBED = "scrubbed"  # the ids are not kept, so nobody can tell that they are the same


class Thread:
    """One conversation so far."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pieces: list[tuple[int, int, ModelCall]] = []  # turn, where its completion begins, the call
        self.scrubbed: int | None = None  # the first place whose id is not kept

    def leads_to(self, call: ModelCall) -> bool:
        """Whether the call's prompt begins with all ids of this thread."""
        return not self._is_veiled(call) and list((call.prompt_ids or ())[: len(self.ids)]) == self.ids

    def add(self, turn: int, call: ModelCall) -> None:
        if self.scrubbed is None and call.scrubbed:
            self.scrubbed = call.scrubbed[0][0]
        self.ids += (call.prompt_ids or ())[len(self.ids) :]
        self.pieces.append((turn, len(self.ids), call))
        self.ids += call.completion_ids or ()

    def is_meant_by(self, call: ModelCall) -> bool:
        """Whether the call's messages begin with this thread's messages, whatever the ids."""
        last = self.pieces[-1][2]
        before = [*last.messages, last.response]
        same = len(call.messages) >= len(before) and all(map(_is_same, before, call.messages))
        return same and (last.sampling.get("tools") or None) == (call.sampling.get("tools") or None)

    def parting(self, call: ModelCall) -> Break:
        """Why a call with the same messages does not have the same ids.

        Only what was sampled can come back in other ids: the rest is written by the endpoint, each time from the same
        text. At the ends of an answer, too, it is the template that decides what stands there."""
        place = sum(1 for _ in takewhile(bool, map(eq, self.ids, call.prompt_ids or ())))
        hidden = min((at for at in (self.scrubbed, *_first(call)) if at is not None), default=None)
        if hidden is not None and place >= hidden:
            return Break.SCRUBBED
        for _, start, model_call in self.pieces:
            end = (
                start + len(model_call.completion_ids or ()) - (model_call.finish_reason != "length")
            )  # its last id is a mark
            if start < place < end:
                return Break.RETOKENISED
        return Break.TEMPLATE

    def _is_veiled(self, call: ModelCall) -> bool:
        return self.scrubbed is not None or any(at < len(self.ids) for at in _first(call))


def broken(call: ModelCall, threads: Sequence[Thread]) -> Break | None:
    """Why the call continues none of the threads; None where it begins a new conversation.

    Without messages there are only the ids to go by, and those differ."""
    if not threads or (call.messages and not any(message.get("role") == "assistant" for message in call.messages)):
        return None
    meant = next((thread for thread in reversed(threads) if thread.is_meant_by(call)), None) if call.messages else None
    return Break.EDITED if meant is None else meant.parting(call)


def _first(call: ModelCall) -> list[int]:
    return [call.scrubbed[0][0]] if call.scrubbed else []


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one == other or _said(one) == _said(other)


def _said(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parts of a message that a template can show; clients add and leave out empty fields."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    thought = message.get("reasoning_content") or message.get("reasoning")
    calls = [_called(call) for call in message.get("tool_calls") or ()]
    return message.get("role"), content or "", thought or "", calls, message.get("tool_call_id") or ""


def _called(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return call.get("id"), function.get("name"), function.get("arguments") or ""


Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]

STREAMS = {"logprobs": np.nan, "advantages": 0.0, "weights": 0.0, "returns": np.nan}  # and blanks

LARGEST = 1e18  # reward: the critic's error is squared in 32 bits
MOST_TOKENS = 2**31  # that ids can tell apart


DATA_GATE = "gate:"  # before the name of the data gate that put a rollout aside


class SkipReason(StrEnum):
    """Why a rollout gave no gradient. What was never measured is missing, not zero."""

    OTHER_RUN = "other_run"
    WRONG_SPLIT = "wrong_split"
    NOT_FINAL = "not_final_attempt"
    FAULT = "fault_or_unfinished"  # given up, cancelled or still open
    NO_REWARD = "missing_reward"
    NO_TRAJECTORY = "no_trajectory"  # no model call among its spans
    NO_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    ALL_FORCED = "all_forced"  # nothing in it was sampled after something else
    SCRUBBED = "scrubbed"  # all of it was decided after something that is not kept
    GREEDY = "greedy"  # temperature 0: the choice has no gradient
    TOO_LONG = "too_long"
    FOREIGN = "foreign_tokens"  # ids that the model does not have
    BAD_TURN = "bad_turn"  # a signal for a turn that is not there
    BAD_REWARD = "bad_reward"  # not finite, or too large to be squared
    BAD_RECORD = "bad_record"  # it makes no trajectory
    STALE = "stale_policy"  # other weights than those that learn answered
    OTHER_MODEL = "other_model"  # of a call: another model answered it, so it is context only
    NOT_CHOSEN = "not_chosen"  # neither of the model nor with the tag that is to be trained on
    MIN_P = "min_p"  # this and what follows: the token was drawn from another distribution than the recorded one
    PENALTIES = "penalties"
    LOGIT_BIAS = "logit_bias"
    GUIDED = "guided_decoding"
    TRUNCATED = "top_k_top_p"  # asked of a server whose log-probs may be those before it
    TEMPERATURE = "foreign_temperature"  # neither 0 nor 1, asked of such a server
    DEFAULTS = "server_defaults"  # no temperature was asked for, and the server has its own
    UNKNOWN = "unknown_sampling"  # a parameter that may change what is drawn
    ALONE = "group_of_one"
    ZERO_SPREAD = "zero_variance_group"
    ZERO_WEIGHT = "zero_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """What may be learnt from."""

    run: str | None = None  # None: any
    split: Split = Split.TRAIN
    channels: tuple[str, ...] | None = None  # names of the signals that count; None: all
    versions: tuple[str, ...] | None = None  # policies that are not stale; None: any
    model: str | None = None  # without versions: whose calls count where several models answered
    train_on: str | None = None  # a model's name or a tag: only such calls; None: those that the policy answered
    max_tokens: int | None = None  # of one sequence: at most the model's context
    vocabulary: int | None = None  # tokens that the model has
    is_scored: bool = True  # False: demonstrations, which need no reward
    is_sampled: bool = True  # False: log-probs are not needed
    is_exact: bool = True  # False: recorded log-probs are taken for those of the sampling, whoever sampled
    defaults: Mapping[str, Any] = field(default_factory=dict)  # that other servers draw the model by


def fitted(intake: SampleFilter, model: object) -> SampleFilter:
    """Restricts a filter to the model's vocabulary and context; its folder may also say how other servers sample it."""
    shape = getattr(model, "shape", model)  # a foreign model says both itself
    vocabulary, context = getattr(shape, "vocabulary", None), getattr(shape, "context", None)
    limits = [limit for limit in (intake.max_tokens, context) if limit is not None]
    most, defaults = min(limits, default=None), getattr(model, "sampling_defaults", intake.defaults)
    return replace(intake, vocabulary=intake.vocabulary or vocabulary, max_tokens=most, defaults=defaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRule:
    """The sampling in force while a turn was decided."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    banned: tuple[int, ...] = ()  # tokens that could not be chosen


PLAIN = SamplingRule()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One conversation as tokens; every array has one entry a token."""

    rollout: str
    task: str
    ids: Ints
    action_mask: Bools  # sampled by the policy: not prompts, not tool results, not forced tokens
    turns: Ints  # which model call decided it; -1 outside
    rules: tuple[SamplingRule, ...] = (PLAIN,)  # by turn; the last one holds for all turns after it
    starts: tuple[tuple[int, int], ...] = ()  # (turn, where its completion begins)
    logprobs: Floats | None = None  # as sampled; nan where unknown
    advantages: Floats | None = None  # weight of the surrogate
    weights: Floats | None = None  # weight of -log p
    returns: Floats | None = None  # what the critic should say after reading this token; nan: nothing

    def __post_init__(self) -> None:
        for name in ("action_mask", "turns", *STREAMS):
            stream = getattr(self, name)
            if stream is not None and len(stream) != len(self.ids):
                raise BadInput(f"sample {self.rollout}: {name}", why=f"{len(stream)} entries, {len(self.ids)} ids")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Many samples end to end: sample i is ids[bounds[i] : bounds[i + 1]]. A stream that no sample has is None."""

    FLAT: ClassVar[tuple[str, ...]] = ("ids", "action_mask", "rule", *STREAMS, "trainer", "reference")

    bounds: NDArray[np.int64]
    ids: Ints
    action_mask: Bools
    rules: tuple[SamplingRule, ...] = (PLAIN,)
    rule: Ints | None = None  # index into rules; None: the first one everywhere
    logprobs: Floats | None = None
    advantages: Floats | None = None
    weights: Floats | None = None
    returns: Floats | None = None
    trainer: Floats | None = None  # log-probs of the model as it stood before the update
    reference: Floats | None = None  # log-probs of the reference
    rollouts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def tokens(self) -> int:
        """How many tokens are decided."""
        return int(self.action_mask.sum())

    def pick(self, places: NDArray[np.int64]) -> Samples:
        """Selects samples by place, in that order."""
        lengths = self.bounds[places + 1] - self.bounds[places]
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        flat = np.arange(bounds[-1]) + np.repeat(self.bounds[places] - bounds[:-1], lengths)
        streams: dict[str, Any] = {
            name: stream[flat] for name in self.FLAT if (stream := getattr(self, name)) is not None
        }
        named = tuple(self.rollouts[i] for i in places) if self.rollouts else ()
        return Samples(bounds=bounds, rules=self.rules, rollouts=named, **streams)


def refusal(experience: Experience, intake: SampleFilter) -> SkipReason | None:
    """Why the experience may not be learnt from, judged without its tokens; None where it may."""
    if intake.run is not None and experience.run != intake.run:
        return SkipReason.OTHER_RUN
    if experience.split is not intake.split:
        return SkipReason.WRONG_SPLIT
    if experience.state not in (RolloutState.SUCCEEDED, RolloutState.FAILED):
        return SkipReason.FAULT
    if not experience.is_final:
        return SkipReason.NOT_FINAL
    if experience.calls and not trained_turns(experience, intake):
        is_meant = intake.train_on is None or trained_turns(experience, replace(intake, versions=None))
        return SkipReason.STALE if is_meant else SkipReason.NOT_CHOSEN
    if intake.is_scored and reward(experience, intake.channels) is None:
        return SkipReason.NO_REWARD
    return None


def trained_turns(experience: Experience, intake: SampleFilter) -> list[int]:
    """The turns whose tokens are trained on; all others are only read, where later prompts hold them.

    By default they are those that the policy answered. A tag chooses among these; a model's name may choose another
    model, but never an older version of the policy."""
    versions = [experience.version or call.model for call in experience.calls]
    lines = [_line(version) for version in versions]
    if intake.versions is not None:
        policy, is_own = {*map(_line, intake.versions)}, [version in intake.versions for version in versions]
    else:
        policy, is_own = {intake.model or ""}, [len({*lines}) == 1 or intake.model in (None, line) for line in lines]
    wanted = intake.train_on
    if wanted is None:
        return [turn for turn, own in enumerate(is_own) if own]
    tags = [span.attributes.get(TAG) for span in experience.decisions]
    is_named = [wanted in (*both, both[1].removeprefix("local/")) for both in zip(versions, lines, strict=True)]
    return [
        turn
        for turn, own in enumerate(is_own)
        if (is_named[turn] and (own or lines[turn] not in policy)) or (own and tags[turn] == wanted)
    ]


def _line(version: str) -> str:
    """The name of a model without its version."""
    return version.rpartition("@")[0] or version


def counted(attempt: Experience | Trajectory, channels: tuple[str, ...] | None) -> tuple[RewardTerm, ...]:
    """The signals that count."""
    return tuple(signal for signal in attempt.signals if channels is None or signal.name in channels)


def reward(attempt: Experience | Trajectory, channels: tuple[str, ...] | None = None) -> float | None:
    """The weighted sum of the signals that count; None where there is none."""
    return RewardBreakdown(signals=counted(attempt, channels)).total


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesOrReason:
    """The samples of one experience, or why there is none."""

    samples: tuple[Sample, ...] = ()
    trajectory: Trajectory | None = None  # None: it was not scored
    breaks: Mapping[Break, int] = field(default_factory=dict)  # prompts that did not go on from what was there
    left_out: Mapping[SkipReason, int] = field(default_factory=dict)  # calls that are not trained on
    reason: SkipReason | None = None

    @property
    def scored(self) -> Trajectory:
        """Its trajectory, where it has one."""
        if self.trajectory is None:
            raise BadInput("an attempt without a reward", why="has no trajectory", remedy="score it")
        return self.trajectory


def advantage_batch(
    trajectory: Trajectory, advantages: Iterable[float], is_normalised: bool, returns: Iterable[float] | None = None
) -> AdvantageBatch:
    """What the turns of a trajectory weigh, as it is published; without a critic, returns are what was to come."""
    rewards = [after.reward or 0.0 for _, after in trajectory.transitions]
    targets = () if returns is None else tuple(map(float, returns))
    return AdvantageBatch(
        id=f"{trajectory.id}::advantages",
        trajectory=trajectory.id,
        advantages=tuple(map(float, advantages)),
        returns=targets or tuple(np.cumsum(rewards[::-1])[::-1].tolist()),
        value_targets=targets,
        normalized=is_normalised,
        created_at=trajectory.created_at,
        metadata={"group": trajectory.task},
    )


def read(experience: Experience, intake: SampleFilter) -> SamplesOrReason:
    """Turns the model calls of an experience into one sample for each conversation, and into its trajectory."""
    if (reason := refusal(experience, intake)) is not None:
        return SamplesOrReason(reason=reason)
    calls = experience.calls
    if not calls:
        return SamplesOrReason(reason=SkipReason.NO_TRAJECTORY)
    trained = {turn: calls[turn] for turn in trained_turns(experience, intake)}
    if (reason := _oddity(experience, tuple(trained.values()), intake)) is not None:
        return SamplesOrReason(reason=reason)
    try:
        trajectory = experience.trajectory(intake.channels) if intake.is_scored else None
    except BadRecord:
        return SamplesOrReason(reason=SkipReason.BAD_RECORD)
    unfit = {turn: why for turn, call in trained.items() if (why := _unfit(call, intake)) is not None}
    rules = tuple(
        rule_of(call) if turn in trained and unfit.get(turn) in (None, SkipReason.GREEDY) else PLAIN
        for turn, call in enumerate(calls)
    )
    threads, breaks = _threads(trained)
    samples = [_sample(thread, experience, rules, unfit, is_sampled=intake.is_sampled) for thread in threads]
    short = [sample for sample in samples if intake.max_tokens is None or len(sample.ids) <= intake.max_tokens]
    kept = tuple(sample for sample in short if sample.action_mask[1:].any())
    if kept:
        left_out, others = Counter(unfit.values()), len(calls) - len(trained)
        left_out[SkipReason.OTHER_MODEL if intake.train_on is None else SkipReason.NOT_CHOSEN] += others
        return SamplesOrReason(samples=kept, trajectory=trajectory, breaks=breaks, left_out=+left_out)
    is_scrubbed = intake.is_sampled and any(thread.scrubbed is not None for thread in threads)
    none = SkipReason.SCRUBBED if is_scrubbed else SkipReason.ALL_FORCED
    if len(unfit) == len(trained):
        none = Counter(unfit.values()).most_common(1)[0][0]
    return SamplesOrReason(breaks=breaks, reason=none if short else SkipReason.TOO_LONG)


def _threads(calls: Mapping[int, ModelCall]) -> tuple[list[Thread], Counter[Break]]:
    """Groups the calls into conversations, and counts why conversations broke."""
    threads: list[Thread] = []
    breaks: Counter[Break] = Counter()
    for turn, call in calls.items():
        thread = next((thread for thread in reversed(threads) if thread.leads_to(call)), None)
        if thread is None:
            if (kind := broken(call, threads)) is not None:
                breaks[kind] += 1
            threads.append(thread := Thread())
        thread.add(turn, call)
    return threads, breaks


def _oddity(experience: Experience, calls: Sequence[ModelCall], intake: SampleFilter) -> SkipReason | None:
    """Why the numbers of an experience cannot be computed with; None where they can. An answer may be empty: it is all
    that some models say of a prompt that fills their context."""
    if any(None in (call.prompt_ids, call.completion_ids) for call in calls):
        return SkipReason.NO_IDS
    if not any(call.completion_ids for call in calls):
        return SkipReason.NO_IDS
    if intake.is_sampled and any(call.logprobs is None for call in calls):
        return SkipReason.NO_LOGPROBS
    limit = MOST_TOKENS if intake.vocabulary is None else intake.vocabulary
    for call in calls:
        if max((*(call.prompt_ids or ()), *(call.completion_ids or ())), default=0) >= limit:
            return SkipReason.FOREIGN
    if not intake.is_scored:
        return None
    signals, turns = counted(experience, intake.channels), len(experience.calls)
    if any(signal.turn is not None and signal.turn >= turns for signal in signals):
        return SkipReason.BAD_TURN
    if not sum(abs(signal.value * signal.weight) for signal in signals) <= LARGEST:
        return SkipReason.BAD_REWARD
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The attempts that can be learnt from, and the reason for each of the others."""

    kept: tuple[tuple[Experience, SamplesOrReason], ...]
    reasons: Mapping[str, SkipReason | None]  # by rollout; None: it is kept

    @property
    def breaks(self) -> Mapping[Break, int]:
        return sum((Counter(reading.breaks) for _, reading in self.kept), Counter[Break]())

    @property
    def left_out(self) -> Mapping[SkipReason, int]:
        """Calls of the attempts that are kept, which are not trained on."""
        return sum((Counter(reading.left_out) for _, reading in self.kept), Counter[SkipReason]())


def gather(experiences: Iterable[Experience], intake: SampleFilter) -> Gathered:
    """Reads all experiences. Where the final attempt of a rollout is given, its reason is the one that counts."""
    kept: list[tuple[Experience, SamplesOrReason]] = []
    reasons: dict[str, SkipReason | None] = {}
    for experience in experiences:
        reading = read(experience, intake)
        if reading.reason is None:
            kept.append((experience, reading))
        if experience.is_final or experience.rollout not in reasons:
            reasons[experience.rollout] = reading.reason
    return Gathered(kept=tuple(kept), reasons=reasons)


def rule_of(call: ModelCall) -> SamplingRule:
    """The sampling in force as it was recorded; what was not asked for is off."""
    asked = call.sampling
    temperature, top_p = asked.get("temperature"), asked.get("top_p")
    return SamplingRule(
        temperature=1.0 if temperature is None else float(temperature),
        top_k=int(asked.get("top_k") or 0),
        top_p=1.0 if top_p is None else float(top_p),
        banned=tuple(int(token) for token in asked.get("banned") or ()),
    )


FULL = frozenset({"temperature", "top_p", "top_k", "max_tokens", "stop", "thinking", "seed"})  # our engine writes all
OFF: Mapping[str, tuple[SkipReason, tuple[Any, ...]]] = {  # what a parameter breaks, unless it has one of these values
    "min_p": (SkipReason.MIN_P, (0,)),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (SkipReason.PENALTIES, (0,))),
    **dict.fromkeys(("repetition_penalty", "repeat_penalty"), (SkipReason.PENALTIES, (1,))),
    **dict.fromkeys(("no_repeat_ngram_size", "dry_multiplier"), (SkipReason.PENALTIES, (0,))),
    **dict.fromkeys(("logit_bias", "bad_words", "allowed_token_ids"), (SkipReason.LOGIT_BIAS, ({}, []))),
    **dict.fromkeys(("min_tokens", "ignore_eos"), (SkipReason.LOGIT_BIAS, (0,))),  # both forbid the end
    "response_format": (SkipReason.GUIDED, ({"type": "text"},)),
    "tool_choice": (SkipReason.GUIDED, ("auto", "none")),
    **dict.fromkeys(
        (
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "structural_tag"),
            *("grammar", "json_schema", "regex", "ebnf", "format"),
        ),
        (SkipReason.GUIDED, ()),
    ),
    **dict.fromkeys(("typical_p", "tfs_z", "best_of", "n"), (SkipReason.UNKNOWN, (1,))),
}
HARMLESS = FULL | {  # the prompt's ids and the places that were forced are recorded: nothing else follows from these
    "max_completion_tokens", "max_output_tokens", "stop_token_ids", "include_stop_str_in_output", "tools",
    "parallel_tool_calls", "thinking_mode", "banned", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids",
    "return_tokens_as_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "add_generation_prompt",
    "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs", "documents", "echo",
    "reasoning", "reasoning_effort", "include_reasoning", "verbosity", "modalities", "user", "metadata", "store",
    "service_tier", "safety_identifier", "prompt_cache_key", "cache_salt", "priority", "request_id", "stream",
    "stream_options", "truncate_prompt_tokens",
}  # fmt: skip


def _unfit(call: ModelCall, intake: SampleFilter) -> SkipReason | None:
    """Why the tokens of a call cannot be trained on as they were sampled; None where they can."""
    if not intake.is_sampled:
        return None
    if call.sampling.get("temperature") == 0:
        return SkipReason.GREEDY  # the most likely token was not drawn: there is no chance that could be raised
    is_ours = call.sampling.keys() >= FULL
    asked = call.sampling if is_ours else {**intake.defaults, **call.sampling}
    return _foreign_sampling(asked, is_ours) if intake.is_exact else None


def _foreign_sampling(asked: Mapping[str, Any], is_ours: bool) -> SkipReason | None:
    """Why log-probs are not those that the tokens were drawn with, as far as the record tells.

    Our engine writes down every parameter in force, and log-probs under it. Of any other server it is known what it was
    asked for, and what the model's folder asks of it: its log-probs may be those before temperature, top-k and top-p,
    and its other defaults are its own."""
    for name, value in asked.items():
        reason, neutral = OFF.get(name, (SkipReason.UNKNOWN, ()))
        if name not in HARMLESS and value not in (None, False, *neutral):
            return reason
    temperature, top_k, top_p = (asked.get(name) for name in ("temperature", "top_k", "top_p"))
    if is_ours:
        return None
    if temperature is None:
        return SkipReason.DEFAULTS
    if top_k not in (None, 0, -1) or top_p not in (None, 1):
        return SkipReason.TRUNCATED
    return None if temperature == 1 else SkipReason.TEMPERATURE


def _sample(
    thread: Thread,
    experience: Experience,
    rules: tuple[SamplingRule, ...],
    unfit: Mapping[int, SkipReason],
    *,
    is_sampled: bool,
) -> Sample:
    count = len(thread.ids)
    decided, turns = np.zeros(count, dtype=np.bool_), np.full(count, -1, dtype=np.int32)
    logprobs = np.full(count, np.nan, dtype=np.float32)
    for turn, start, call in thread.pieces:
        end = start + len(call.completion_ids or ())
        turns[start:end] = turn
        decided[start:end] = turn not in unfit
        decided[[start + place for place in call.forced]] = False
        if call.logprobs is not None:
            logprobs[start:end] = call.logprobs
    if is_sampled and thread.scrubbed is not None:
        decided[thread.scrubbed :] = False  # their log-probs are those after a text that is no longer there
    return Sample(
        rollout=experience.rollout,
        task=experience.task,
        ids=np.asarray(thread.ids, dtype=np.int32),
        action_mask=decided,
        turns=turns,
        rules=rules,
        starts=tuple((turn, start) for turn, start, _ in thread.pieces),
        logprobs=logprobs if is_sampled else None,
    )


def pack(samples: Sequence[Sample]) -> Samples:
    """The samples end to end, in the order given."""
    if not samples:
        raise BadInput("no samples", why="there is nothing to learn from")
    rules: dict[SamplingRule, int] = {}
    index = []
    for sample in samples:
        by_turn = np.asarray([rules.setdefault(rule, len(rules)) for rule in sample.rules], dtype=np.int32)
        index.append(by_turn[np.clip(sample.turns, 0, len(by_turn) - 1)])
    streams: dict[str, Any] = {}
    for name, blank in STREAMS.items():
        parts = [getattr(sample, name) for sample in samples]
        if any(part is not None for part in parts):
            streams[name] = np.concatenate(
                [
                    np.full(len(sample.ids), blank, dtype=np.float32) if part is None else part
                    for sample, part in zip(samples, parts, strict=True)
                ]
            ).astype(np.float32)
    return Samples(
        bounds=np.concatenate(([0], np.cumsum([len(sample.ids) for sample in samples]))),
        ids=np.concatenate([sample.ids for sample in samples]),
        action_mask=np.concatenate([sample.action_mask for sample in samples]),
        rules=tuple(rules),
        rule=None if len(rules) == 1 else np.concatenate(index),
        rollouts=tuple(sample.rollout for sample in samples),
        **streams,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Padded:
    """Some samples padded to a rectangle, or end to end in one row, and the places in it that are learnt from.

    Only what lies before a decided token has to be read, so each row ends there. `places` are flat, row × width +
    column of the state that the token was decided in; the arrays after it have one entry for each of them."""

    ids: NDArray[np.int64]  # [rows, width], or [1, tokens]
    places: NDArray[np.int64]
    targets: NDArray[np.int64]  # the token that was decided
    flat: NDArray[np.int64]  # where it stands in the samples' streams
    value_places: NDArray[np.int64]  # where the critic has a target
    value_flat: NDArray[np.int64]
    beginnings: NDArray[np.int64] | None = None  # what rows share, [families, width]: see `shared`
    group: NDArray[np.int64] | None = None  # by row, its family
    own: NDArray[np.int64] | None = None  # by family, tokens of its beginning
    lengths: list[int] | None = None  # of samples that lie end to end; None: a rectangle


def reach(samples: Samples) -> NDArray[np.int64]:
    """How many tokens of each sample must be read: all before its last decided one, or up to its last value target."""
    needed = np.flatnonzero(trained_mask(samples))
    last = np.zeros(len(samples), dtype=np.int64)
    last[np.searchsorted(samples.bounds, needed, side="right") - 1] = needed  # the last one of a sample stays
    lengths: NDArray[np.int64] = np.maximum(last - samples.bounds[:-1], 0)
    if samples.returns is not None:
        valued = np.flatnonzero(~np.isnan(samples.returns))
        owner = np.searchsorted(samples.bounds, valued, side="right") - 1
        np.maximum.at(lengths, owner, valued - samples.bounds[owner] + 1)
    return lengths


def trained_mask(samples: Samples) -> Bools:
    """Marks the decided tokens, except the first of each sequence, which has no state before it."""
    marks = samples.action_mask.copy()
    marks[samples.bounds[:-1][np.diff(samples.bounds) > 0]] = False
    return marks


def cut(lengths: NDArray[np.int64], limit: int) -> Iterator[NDArray[np.int64]]:
    """Positions of samples of like length, longest first, so many that rows × width stays within the limit."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        rows = max(1, limit // int(lengths[order[start]]))
        yield order[start : start + rows]
        start += rows


def fill(lengths: NDArray[np.int64], limit: int) -> Iterator[NDArray[np.int64]]:
    """Positions of samples, longest first, so many that their tokens, end to end, stay within the limit."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        rows = max(1, int(np.searchsorted(np.cumsum(lengths[order[start:]]), limit, side="right")))
        yield order[start : start + rows]
        start += rows


def pad(samples: Samples, rows: NDArray[np.int64], lengths: NDArray[np.int64], *, is_packed: bool = False) -> Padded:
    """The samples at `rows`, padded to a rectangle or end to end."""
    width = int(lengths[rows].max())
    starts, counts = samples.bounds[rows], samples.bounds[rows + 1] - samples.bounds[rows]
    each = np.minimum(counts, lengths[rows])
    begins = np.cumsum(each) - each if is_packed else np.arange(len(rows)) * width
    ids = np.zeros(int(each.sum()) if is_packed else len(rows) * width, dtype=np.int64)
    read, owner = ragged(starts, each)
    ids[begins[owner] + read - starts[owner]] = samples.ids[read]
    flat, row = ragged(starts, counts)
    is_learnt = samples.action_mask[flat] & (flat != starts[row])
    is_valued = np.zeros(len(flat), np.bool_) if samples.returns is None else ~np.isnan(samples.returns[flat])
    at = begins[row] + flat - starts[row]  # the state after reading the token
    return Padded(
        ids=ids.reshape(1, -1) if is_packed else ids.reshape(len(rows), width),
        lengths=each.tolist() if is_packed else None,
        places=at[is_learnt] - 1,
        targets=samples.ids[flat[is_learnt]].astype(np.int64),
        flat=flat[is_learnt],
        value_places=at[is_valued],
        value_flat=flat[is_valued],
    )


def ragged(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All flat places of the ranges, and which range each is of."""
    row = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) + (starts - before)[row], row
