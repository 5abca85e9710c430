"""The rules that come with it: orders that have no business in what an agent reads, by the reason codes they give.

A rule wants an order and what it is about within one sentence: that somebody mentions a system prompt is no attack.
Words spelt with signs between their letters are read as words. An attack that is worded otherwise is not found: rules
are the first look and never the last. Secrets are told by `privacy.detect`; what a hit leads to is `safety`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.privacy.detect import SECRETS, DetectionRule

IGNORE = "prompt_injection.ignore_instructions"
EXFILTRATE = "prompt_injection.system_prompt_exfiltration"
MARKER = "prompt_injection.explicit_marker"
SPOOF = "prompt_injection.role_spoofing"
SECRET = "prompt_injection.secret_exfiltration"
INJECTION, LEAK = "prompt_injection.", "secret_leak."
UNREADABLE, UNREDACTED = f"{LEAK}payload_serialization_failed", f"{LEAK}redaction_failed"
UNTOLD = "safety.unreadable_reason"  # somebody told of an event, and not in words
CODES = (IGNORE, EXFILTRATE, MARKER, SPOOF, SECRET, *(f"{LEAK}{name}" for name in SECRETS), UNREADABLE, UNREDACTED)

NOT = r"\b(?:do not|don't|don’t|never|must not|cannot|can't|refuse to|refused to|not to)\s+(?:\w+\s+){0,2}"
REST = r"[^.!?\n]{0,60}?"  # of one sentence


def _spaced(word: str) -> str:
    """The word with a sign or a space between its letters: i g n o r e, i-g-n-o-r-e, i.g.n.o.r.e."""
    return r"[\s._*-]{1,3}".join(word)


def _order(rule_id: str, code: str, pattern: str, *hints: str) -> DetectionRule:
    """What is no order where somebody says not to do it."""
    return DetectionRule(rule_id=rule_id, reason_code=code, pattern=pattern, matcher="regex", hints=hints, unless=NOT)


def _shape(rule_id: str, code: str, pattern: str, *hints: str) -> DetectionRule:
    return DetectionRule(rule_id=rule_id, reason_code=code, pattern=pattern, matcher="regex", hints=hints)


_OLD = r"(?:previous|prior|above|earlier|preceding|foregoing|original|system|initial)"
_RULES = r"(?:instructions?|prompts?|rules|directions?|directives?|guidelines|guardrails|constraints|messages?)"
_DROP = r"(?:ignore|disregard|forget|override|bypass|discard|do not follow|stop following)"
_TELL = r"(?:reveal|print|show|repeat|output|display|disclose|leak|recite|dump|tell me|give me|write out|send)"
_INNER = r"(?:(?:system|developer|hidden|initial|secret|internal) (?:prompt|message|instructions?))"
_SECRETS = (
    r"(?:\bapi[ _-]?keys?|\bpasswords?|\bcredentials?|\bsecrets?\b|\baccess[ _-]?tokens?|\bprivate[ _-]?keys?"
    r"|\benv(?:ironment)? (?:vars?|variables?)|\.env\b)"
)
_ABOUT = ("instruction", "prompt", "rules", "direct", "guid", "guard", "constraint", "message", "told", "before this")
_HELD = ("key", "password", "credential", "secret", "token", "env")
RULES: tuple[DetectionRule, ...] = (
    _order("ignore.order", IGNORE, rf"\b{_DROP}\b{REST}\b{_OLD}\b[^.!?\n]{{0,20}}?\b{_RULES}\b", *_ABOUT),
    _order("ignore.above", IGNORE, rf"\b{_DROP}\b[^.!?\n]{{0,30}}?\b{_RULES}\s+(?:above|before)\b", *_ABOUT),
    _order(
        "ignore.all",
        IGNORE,
        rf"\b{_DROP}\s+(?:all|any|everything)\b{REST}\b(?:{_RULES}|you were told|before this)\b",
        *_ABOUT,
    ),
    _shape("ignore.spaced", IGNORE, rf"\b{_spaced('ignore')}\W{{1,5}}(?:{_spaced('all')}\W{{1,5}})?{_spaced('prev')}"),
    _order("inner.order", EXFILTRATE, rf"\b{_TELL}\b{REST}\b(?:your|the|its)\b[^.!?\n]{{0,20}}?\b{_INNER}\b", *_ABOUT),
    _shape("inner.verbatim", EXFILTRATE, rf"\b{_INNER}\b{REST}\b(?:verbatim|word for word|in full)\b", *_ABOUT),
    _shape("inner.asked", EXFILTRATE, rf"\bwhat (?:is|are|was|were) your\b{REST}\b{_INNER}\b", *_ABOUT),
    _shape("inner.spaced", EXFILTRATE, rf"\b{_spaced('system')}\W{{1,5}}{_spaced('prompt')}\b"),
    DetectionRule(rule_id="marker.begin", reason_code=MARKER, pattern="BEGIN PROMPT INJECTION"),
    DetectionRule(rule_id="marker.end", reason_code=MARKER, pattern="END PROMPT INJECTION"),
    _shape("marker.mode", MARKER, r"\byou are now (?:in )?(?:DAN|developer mode|jailbroken)\b", "you are now"),
    _shape("role.tag", SPOOF, r"<\|?/?(?:system|developer|im_start|im_end|start_header_id)\b[^>]{0,20}>", "<"),
    _shape(
        "role.header",
        SPOOF,
        r"(?:^|\n)\s{0,3}#{0,3}\s?"
        r"(?:\[(?:system|developer)\]|(?:system|developer) message\s?:|system\s?:(?=\s*(?:you|ignore|new)\b))",
        "system",
        "developer",
    ),
    _shape("role.inst", SPOOF, r"\[/?INST\]|<</?SYS>>", "inst]", "sys>"),
    _order(
        "secret.order", SECRET, rf"\b(?:{_TELL}|exfiltrate|upload|post|email|forward|steal)\b{REST}{_SECRETS}", *_HELD
    ),
)
KEYS = ("rule_id", "reason_code", "pattern", "matcher", "enabled")  # of a rule in a file


def rules_from(data: Any, where: str) -> tuple[DetectionRule, ...]:
    """Rules as a file has them: a list of objects. They take the place of those that come with it."""
    if not isinstance(data, list):
        raise BadInput(
            where, why="is not a list of rules", remedy='write [{"rule_id": …, "reason_code": …, "pattern": …}]'
        )
    found = []
    for place, one in enumerate(data):
        at = f"{where}[{place}]"
        if not isinstance(one, Mapping):
            raise BadInput(at, why="is not an object")
        if strange := [name for name in one if name not in KEYS]:
            raise BadInput(f"{at}.{strange[0]}", why="unknown key", remedy=f"the keys are {', '.join(KEYS)}")
        if missing := [name for name in ("rule_id", "reason_code", "pattern") if not isinstance(one.get(name), str)]:
            raise BadInput(f"{at}.{missing[0]}", why="is missing, or not text")
        if not isinstance(one.get("enabled", True), bool) or not isinstance(one.get("matcher", ""), str):
            raise BadInput(at, why="matcher must be text, and enabled true or false")
        found.append(DetectionRule(**one))
    return unique(found)


def unique(rules: Iterable[DetectionRule]) -> tuple[DetectionRule, ...]:
    """The rules, if no two have one name: who switches one off must know which."""
    kept: dict[str, DetectionRule] = {}
    for rule in rules:
        if rule.rule_id in kept:
            raise BadInput(f"safety rule {rule.rule_id}", why="is there twice", remedy="name each rule differently")
        kept[rule.rule_id] = rule
    return tuple(kept.values())
