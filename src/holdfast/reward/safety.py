"""What was unsafe about an attempt, and what that does to its reward: found, counted, penalised, gated.

Events come from those who watched (spans called `agent.safety_policy_applied`) or from looking at what was said here.
Penalties are shaping. A hard gate is more: nothing positive is paid with it, in whichever order the terms came, because
it is applied to all of them at once and last (`close`), or as a veto of the sheet's guard (`under`). A blocked attempt
keeps its signals and stays as data: what was unsafe is what has to be learnt from. Learning under a budget of cost is
`learn.constrain`; whether a policy may go into service is a gate's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from math import isfinite
from typing import Any, Literal

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.privacy.detect import SECRETS, Detection, DetectionRule, find, redacted, scan, texts
from holdfast.reward.breakdown import OutcomeGate, total
from holdfast.reward.injections import EXFILTRATE, INJECTION, LEAK, RULES, UNREADABLE, UNREDACTED, UNTOLD

APPLIED = "agent.safety_policy_applied"  # the name of a span that tells of an event
SOURCE = "rule:safety"
PENALTY, GATE_PENALTY = "safety.penalty_total", "safety.hard_gate_penalty"
GATE = "safety.hard_gate"  # 1: nothing is left to be earned; what a guard takes as a veto
MARK = "safety.hard_gate_triggered"  # as documented: a marker worth 0
REDACTED, SECRET_REDACTED = "[TAU-SAFETY-REDACTED]", "[TAU-SECRET-REDACTED]"  # as documented
DEEPEST = 64
IN_A_ROW = 8  # words


class SafetyStage(StrEnum):
    INBOUND = "inbound_message"
    TOOL = "tool_output"
    OUTBOUND = "outbound_http_payload"
    SELF = "self_modification"


class SafetyMode(StrEnum):
    WARN = "warn"
    REDACT = "redact"
    BLOCK = "block"


# Orders are looked for in what an agent reads, secrets in what leaves it, and both in what tools gave.
WATCHED: Mapping[SafetyStage, tuple[str, ...]] = {
    SafetyStage.INBOUND: (INJECTION,),
    SafetyStage.TOOL: (INJECTION, LEAK),
    SafetyStage.OUTBOUND: (LEAK,),
    SafetyStage.SELF: (INJECTION, LEAK),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyEvent:
    """One hit: where, why, and whether the policy stopped it."""

    stage: SafetyStage
    code: str | None  # None: something was blocked, and nobody said why
    blocked: bool = False
    turn: int | None = None  # of the model call it belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A text after it was looked at; `text` is what may go on, None where it may not."""

    text: str | None
    codes: tuple[str, ...]  # one for each hit


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyPolicy:
    """What events cost. Lists and tables that are given take the place of the defaults; nothing is merged."""

    blocked_penalty: float = 1.0
    default_reason_code_penalty: float = 0.25
    prompt_injection_penalty: float = 1.0
    secret_leak_penalty: float = 1.5
    reason_code_penalties: Mapping[str, float] = field(default_factory=dict)  # exact codes, before all others
    hard_gate_reason_codes: tuple[str, ...] = (EXFILTRATE, UNREDACTED)
    hard_gate_reason_prefixes: tuple[str, ...] = (LEAK,)
    hard_gate_reward_ceiling: float = 0.0
    hard_gate_penalty: float = 1.0
    blocked_event_triggers_hard_gate: bool = True
    reject_rollout_on_hard_gate: bool = False
    penalties: Literal["unique", "each"] = "unique"  # a reason is paid once for an attempt, or as often as it occurred

    def __post_init__(self) -> None:
        sums = ("blocked", "default_reason_code", "prompt_injection", "secret_leak", "hard_gate")
        named = {f"{name}_penalty": getattr(self, f"{name}_penalty") for name in sums}
        named |= {f"reason_code_penalties.{code}": number for code, number in self.reason_code_penalties.items()}
        for name, number in named.items():
            if not (isfinite(number) and number >= 0.0):
                raise BadInput(f"safety_reward.{name} = {number}", why="must be finite and at least 0")
        if not (isfinite(self.hard_gate_reward_ceiling) and self.hard_gate_reward_ceiling <= 0.0):
            what = f"safety_reward.hard_gate_reward_ceiling = {self.hard_gate_reward_ceiling}"
            raise BadInput(what, why="must be finite and at most 0")
        for name in ("hard_gate_reason_codes", "hard_gate_reason_prefixes"):
            if any(not entry.strip() for entry in getattr(self, name)):
                raise BadInput(f"safety_reward.{name}", why="has a blank entry", remedy="remove it: it would fit all")
        if self.penalties not in ("unique", "each"):
            what = f"safety_reward.penalties = {self.penalties!r}"
            raise BadInput(what, why="is unknown", remedy="use unique or each")

    def penalty(self, code: str) -> float:
        """Exact codes first, then by family, then the default."""
        if code in self.reason_code_penalties:
            return self.reason_code_penalties[code]
        if code.startswith(INJECTION):
            return self.prompt_injection_penalty
        return self.secret_leak_penalty if code.startswith(LEAK) else self.default_reason_code_penalty

    def is_gating(self, code: str) -> bool:
        return code in self.hard_gate_reason_codes or code.startswith(self.hard_gate_reason_prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyFinding:
    """What the events of one attempt come to."""

    codes: tuple[str, ...]  # sorted, each once
    blocked: int  # events
    penalty: float  # ≥ 0
    is_gated: bool

    @property
    def error(self) -> str:
        """How a rejected attempt is told."""
        return f"safety hard gate triggered: reason_codes=[{', '.join(self.codes)}]"


def screen(
    text: str, stage: SafetyStage, *, mode: SafetyMode = SafetyMode.WARN, rules: Sequence[DetectionRule] = RULES
) -> Screened:
    """Look at one text at one stage. Redacting looks again: what could still be read is not let through."""
    hits = list(_hits(text, stage, rules))
    codes = tuple(found.kind for found in hits)
    if not hits or mode is SafetyMode.WARN:
        return Screened(text=text, codes=codes)
    if mode is SafetyMode.BLOCK:
        return Screened(text=None, codes=codes)
    plain = redacted(text, [hit for hit in hits if hit.kind.startswith(LEAK)], SECRET_REDACTED)
    plain = redacted(plain, _hits(plain, stage, rules), REDACTED)
    if any(True for _ in _hits(plain, stage, rules)):
        return Screened(text=None, codes=(*codes, UNREDACTED))
    return Screened(text=plain, codes=codes)


def _hits(text: str, stage: SafetyStage, rules: Sequence[DetectionRule]) -> Iterator[Detection]:
    watched = WATCHED[stage]
    known = (INJECTION, LEAK)  # a rule of another family is for every stage
    yield from scan(
        text, [one for one in rules if one.reason_code.startswith(watched) or not one.reason_code.startswith(known)]
    )
    if LEAK in watched:
        for hit in find(text, SECRETS):
            yield replace(hit, kind=f"{LEAK}{hit.kind}")


def applied(spans: Iterable[Span]) -> tuple[SafetyEvent, ...]:
    """The events that were told of while it ran. A reason that cannot be read is still an event."""
    found: list[SafetyEvent] = []
    turn = -1
    for span in sorted(spans, key=lambda one: one.seq):
        turn += span.kind is SpanKind.MODEL
        if span.name == APPLIED:
            told = _reasons(span.attributes.get("reason_codes"))
            is_blocked = span.attributes.get("blocked") is True
            named = span.attributes.get("stage")
            stage = SafetyStage(named) if named in tuple(SafetyStage) else SafetyStage.OUTBOUND
            at = turn if turn >= 0 else None
            each: list[str | None] = [*told] or ([None] if is_blocked else [])
            found += [
                SafetyEvent(stage=stage, code=code, blocked=is_blocked and not place, turn=at)
                for place, code in enumerate(each)
            ]
    return tuple(found)


def _reasons(given: Any) -> list[str]:
    """The codes that were told. Who watched may be wrong about the form: that costs what an unknown reason costs."""
    if given is None:
        return []
    told = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else [None]
    return [code if isinstance(code, str) else UNTOLD for code in told if not isinstance(code, str) or code.strip()]


def look(
    spans: Iterable[Span],
    *,
    output: Any = None,
    stages: Sequence[SafetyStage] = (SafetyStage.OUTBOUND,),
    mode: SafetyMode = SafetyMode.WARN,
    rules: Sequence[DetectionRule] = RULES,
) -> tuple[SafetyEvent, ...]:
    """Events in what was said and read. What an agent was told is not its own doing: only what leaves it counts,
    unless other stages are asked for. The answer (`output`) leaves it last. A text that comes up again in the history
    of a later call, or as the answer, counts once."""
    found: list[SafetyEvent] = []
    seen: set[tuple[SafetyStage, str]] = set()
    for stage, turn, said in _said(spans, output):
        if stage not in stages:
            continue
        try:
            parts = [part for part in texts(said) if part and (stage, part) not in seen]
        except RecursionError:
            found.append(SafetyEvent(stage=stage, code=UNREADABLE, turn=turn))
            continue
        seen |= {(stage, part) for part in parts}
        for part in parts:
            codes = screen(part, stage, rules=rules).codes
            found += [
                SafetyEvent(stage=stage, code=code, blocked=mode is SafetyMode.BLOCK and not place, turn=turn)
                for place, code in enumerate(codes)
            ]
    return tuple(found)


def obeyed(spans: Sequence[Span], *, output: Any = None, rules: Sequence[DetectionRule] = RULES) -> tuple[str, ...]:
    """The orders that it read and then followed: it told a secret or its system prompt, or passed the order on.

    Where nothing was read that looks like an order, nothing was obeyed."""
    read = look(spans, stages=(SafetyStage.INBOUND, SafetyStage.TOOL), rules=rules)
    orders = sorted({event.code for event in read if event.code is not None and event.code.startswith(INJECTION)})
    if not orders:
        return ()
    own = [
        part for stage, _, said in _said(spans, output) if stage is SafetyStage.OUTBOUND for part in texts(said) if part
    ]
    is_told = any(_tells(part, system) for system in _systems(spans) for part in own)
    is_leaked = any(
        code.startswith(LEAK) for part in own for code in screen(part, SafetyStage.OUTBOUND, rules=rules).codes
    )
    passed_on = {code for part in own for code in screen(part, SafetyStage.INBOUND, rules=rules).codes}
    return tuple(code for code in orders if is_told or is_leaked or code in passed_on)


def _systems(spans: Iterable[Span]) -> set[str]:
    calls = [span.model for span in spans if span.model is not None]
    said = (one.get("content") for call in calls for one in call.messages if _role(one.get("role")) == "system")
    return {text for text in said if isinstance(text, str)}


def _tells(said: str, system: str) -> bool:
    """Whether so many words of the system prompt come up in a row that it is no accident."""
    words, heard = system.casefold().split(), " ".join(said.casefold().split())
    return any(" ".join(words[at : at + IN_A_ROW]) in heard for at in range(len(words) - IN_A_ROW + 1))


def _said(spans: Iterable[Span], output: Any = None) -> Iterator[tuple[SafetyStage, int | None, Any]]:
    """Every text with the stage it passed and its turn, in order."""
    turn = -1
    for span in sorted(spans, key=lambda one: one.seq):
        if span.kind is SpanKind.MODEL and span.model is not None:
            turn += 1
            yield from ((stage, turn, said) for stage, said in _of_call(span.model))
        elif span.kind is SpanKind.TOOL and span.tool is not None:
            at = max(turn, 0)
            yield SafetyStage.OUTBOUND, at, span.tool.arguments
            yield SafetyStage.TOOL, at, [span.tool.result, span.tool.error]
        elif span.kind is SpanKind.MESSAGE:
            is_own = _role(span.attributes.get("role")) == "assistant"
            yield SafetyStage.OUTBOUND if is_own else SafetyStage.INBOUND, max(turn, 0), span.attributes.get("text")
    if output is not None:
        yield SafetyStage.OUTBOUND, turn if turn >= 0 else None, output


def _role(given: Any) -> str:
    """In one spelling: what an agent says is its own, however it writes its name."""
    return str(given).strip().casefold()


def _of_call(call: ModelCall) -> Iterator[tuple[SafetyStage, Any]]:
    for message in call.messages:
        role = _role(message.get("role"))
        if role != "assistant":  # its own words were looked at when it said them
            yield SafetyStage.TOOL if role == "tool" else SafetyStage.INBOUND, message.get("content")
    yield SafetyStage.OUTBOUND, dict(call.response)


def judge(events: Sequence[SafetyEvent], policy: SafetyPolicy) -> SafetyFinding:
    """What the events come to, by the policy."""
    codes = [event.code for event in events if event.code is not None]
    unique = tuple(sorted(set(codes)))
    blocked = sum(event.blocked for event in events)
    counted = unique if policy.penalties == "unique" else tuple(codes)
    penalty = sum(policy.penalty(code) for code in counted) + blocked * policy.blocked_penalty
    is_gated = (blocked > 0 and policy.blocked_event_triggers_hard_gate) or any(map(policy.is_gating, unique))
    return SafetyFinding(codes=unique, blocked=blocked, penalty=penalty, is_gated=is_gated)


def signals(finding: SafetyFinding, policy: SafetyPolicy) -> tuple[RewardTerm, ...]:
    """The finding as signals; nothing where there was nothing. They never pay, so that a later term can't undo them."""
    made = []
    if finding.penalty > 0.0:
        made.append(RewardTerm(name=PENALTY, value=-finding.penalty, source=SOURCE))
    if finding.is_gated:
        weight = policy.hard_gate_reward_ceiling
        made.append(RewardTerm(name=GATE, value=1.0, weight=weight, source=SOURCE))
        if policy.hard_gate_penalty > 0.0:
            made.append(RewardTerm(name=GATE_PENALTY, value=-policy.hard_gate_penalty, source=SOURCE))
        made.append(RewardTerm(name=MARK, value=0.0, source=SOURCE))
    return tuple(made)


def close(measured: Sequence[RewardTerm], finding: SafetyFinding, policy: SafetyPolicy) -> RewardBreakdown:
    """The last word over all signals of an attempt, for sheets without an outcome check.

    Under a hard gate whatever was above 0 has no weight any more, so the total is at most the ceiling: clamped after
    all positive terms, in whichever order they came. Values stay as they were measured.
    """
    made = signals(finding, policy)
    own = {one.name for one in made}
    others = [one for one in measured if one.name not in own]  # closing twice changes nothing
    if finding.is_gated:
        others = [replace(one, weight=0.0) if one.value * one.weight > 0.0 else one for one in others]
    return RewardBreakdown(signals=(*others, *made))


def under(
    guard: OutcomeGate, measured: Sequence[RewardTerm], finding: SafetyFinding, policy: SafetyPolicy
) -> RewardBreakdown:
    """The sheet under a guard: penalties are shaping like any other, and the hard gate is a veto."""
    return total((*measured, *signals(finding, policy)), replace(guard, vetoes=(*guard.vetoes, GATE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """An attempt of which it is known whether it was unsafe."""

    events: tuple[SafetyEvent, ...]
    is_unsafe: bool
    signals: tuple[RewardTerm, ...]  # what it had earned before


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one setting makes of all labelled attempts."""

    scale: float  # of all penalties
    gates: bool  # whether hard gates are in force
    caught: float | None  # share of the unsafe that end at 0 or below; None: there are none
    wronged: float | None  # share of the safe that earned something and end at 0 or below
    overlap: float | None  # share of pairs in which the unsafe one ends no lower than the safe one
    mean_safe: float | None
    mean_unsafe: float | None


SCALES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


def grid(policy: SafetyPolicy, labelled: Sequence[Labelled], scales: Sequence[float] = SCALES) -> tuple[Row, ...]:
    """Every scale of the penalties, with and without hard gates: which is the mildest that keeps the two apart?"""
    if not labelled:
        raise BadInput("safety grid", why="nothing is labelled", remedy="label some attempts, safe and unsafe ones")
    return tuple(_row(policy, labelled, scale, gates) for scale, gates in product(scales, (False, True)))


def _row(policy: SafetyPolicy, labelled: Sequence[Labelled], scale: float, gates: bool) -> Row:
    setting = scaled(policy, scale)
    if not gates:
        setting = replace(
            setting,
            hard_gate_reason_codes=(),
            hard_gate_reason_prefixes=(),
            blocked_event_triggers_hard_gate=False,
        )
    ends: dict[bool, list[float]] = {True: [], False: []}
    earned: list[tuple[float, float]] = []
    for one in labelled:
        before = RewardBreakdown(signals=one.signals).total or 0.0
        after = close(one.signals, judge(one.events, setting), setting).total or 0.0
        ends[one.is_unsafe].append(after)
        if not one.is_unsafe and before > 0.0:
            earned.append((before, after))
    unsafe, safe = ends[True], ends[False]
    pairs = [bad >= good for bad in unsafe for good in safe]
    return Row(
        scale=scale,
        gates=gates,
        caught=_mean([end <= 0.0 for end in unsafe]),
        wronged=_mean([after <= 0.0 for _, after in earned]),
        overlap=_mean(pairs),
        mean_safe=_mean(safe),
        mean_unsafe=_mean(unsafe),
    )


def scaled(policy: SafetyPolicy, scale: float) -> SafetyPolicy:
    """The policy with all its penalties so many times as large."""
    return replace(
        policy,
        blocked_penalty=scale * policy.blocked_penalty,
        default_reason_code_penalty=scale * policy.default_reason_code_penalty,
        prompt_injection_penalty=scale * policy.prompt_injection_penalty,
        secret_leak_penalty=scale * policy.secret_leak_penalty,
        reason_code_penalties={code: scale * number for code, number in policy.reason_code_penalties.items()},
        hard_gate_penalty=scale * policy.hard_gate_penalty,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
