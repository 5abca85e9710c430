"""Records in short, as plain JSON: what every panel shows of a run, a rollout, a release, an alert or an entry.

All texts are data, as they were stored: whoever shows them must not take them for anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, sqrt
from typing import Any

from holdfast.contracts.commands import Alert
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import decode
from holdfast.contracts.release import Release, Stage
from holdfast.contracts.rollout import DONE, Attempt, OutcomeKind, Rollout, RolloutState, outcome_kind
from holdfast.contracts.run import LedgerEntry, RunRecord, RunState
from holdfast.contracts.task import asked_of
from holdfast.promote.gate import ALLOWED
from holdfast.store.tally import Moments, Totals

Brief = dict[str, Any]
LEVEL = 0.95
SILENT_S = 60.0  # a process that drives or works beats far more often
ASKED = 240  # letters of what a rollout was asked
LONGEST = 400  # letters of a sentence
NO_RATE: Brief = {"value": None, "low": None, "high": None, "n": 0, "level": LEVEL}


def rate(successes: float, n: int) -> Brief:
    """A share with its Wilson interval: {"value", "low", "high", "n", "level"}; None where n is 0."""
    from holdfast.prove.estimate import wilson

    if n < 1:
        return dict(NO_RATE)
    found = wilson(min(successes, n), n, level=LEVEL)
    return {"value": successes / n, "low": found.low, "high": found.high, "n": n, "level": LEVEL}


def mean(paid: Moments) -> Brief:
    """A mean with Student's interval, as `rate`; both ends None where there are less than two."""
    from scipy import stats  # type: ignore[import-untyped]

    if paid.n < 1 or not (isfinite(paid.total) and isfinite(paid.squares)):
        return {**NO_RATE, "n": max(0, paid.n)}
    middle = paid.total / paid.n
    if paid.n < 2:
        return {**NO_RATE, "value": middle, "n": paid.n}
    variance = max(0.0, paid.squares - paid.n * middle * middle) / (paid.n - 1)
    reach = float(stats.t.isf((1.0 - LEVEL) / 2.0, paid.n - 1)) * sqrt(variance / paid.n)
    return {"value": middle, "low": middle - reach, "high": middle + reach, "n": paid.n, "level": LEVEL}


def success(totals: Totals) -> Brief:
    """Of the rollouts that came to an end by themselves, those that succeeded."""
    good = totals.counts[RolloutState.SUCCEEDED]
    return rate(good, good + totals.counts[RolloutState.FAILED] + totals.counts[RolloutState.DEAD])


def right(totals: Totals) -> Brief:
    """Of the rollouts that were checked or failed, those that were right; unknown where nothing was checked."""
    found = totals.outcomes
    checked = found[OutcomeKind.RIGHT] + found[OutcomeKind.WRONG]
    return rate(found[OutcomeKind.RIGHT], checked + found[OutcomeKind.FAILED]) if checked else dict(NO_RATE)


def reward(totals: Totals) -> Brief:
    return mean(sum(totals.rewards.values(), Moments()))


def run_brief(run: RunRecord, totals: Totals, now: float) -> Brief:
    """{"id", "kind", "state", "wanted", "model_ref", "created_at", "beat_at", "ended_at", "error", "driver",
    "is_silent", "took_s", "outcomes": {outcome: n}, "right", "counts": {status: n}, "total", "done", "success",
    "reward", "is_whole"}

    `outcomes`: of those that are over, "right", "wrong", "not_checked", "failed" or "no_answer"; `right`: the share of
    those that were checked or failed. `success`: of those that ended by themselves, the agent's own end, right or not.
    `is_silent`: it runs, and its driver has not been heard of. `is_whole`: False while it is still being counted.
    """
    counts = {str(state): n for state, n in totals.counts.items()}
    return {
        **{name: getattr(run, name) for name in ("id", "kind", "model_ref", "created_at", "beat_at", "ended_at")},
        "state": str(run.state),
        "wanted": str(run.wanted),
        "error": run.error,
        "driver": run.driver,
        "is_silent": run.state is RunState.RUNNING and now - run.beat_at > SILENT_S,
        "took_s": max(0.0, (run.ended_at or now) - run.created_at),
        "outcomes": {str(kind): n for kind, n in totals.outcomes.items()},
        "right": right(totals),
        "counts": counts,
        "total": sum(counts.values()),
        "done": sum(n for state, n in totals.counts.items() if state in DONE),
        "success": success(totals),
        "reward": reward(totals),
        "is_whole": totals.is_whole,
    }


def rollout_brief(rollout: Rollout, key: int | None = None) -> Brief:
    """{"id", "run", "name", "key", "group", "split", "outcome", "status", "attempts", "max_attempts", "reward",
    "enqueued_at", "started_at", "ended_at", "took_s", "asked", "reason"}

    `key` is the store's number: what comes after a page, and what is near in time. `asked` is cut.
    """
    end, begin = rollout.ended_at, rollout.started_at
    return {
        **{name: getattr(rollout, name) for name in ("id", "run", "name", "reward", "reason", "max_attempts")},
        **{name: getattr(rollout, name) for name in ("enqueued_at", "started_at", "ended_at")},
        "key": key,
        "group": str(rollout.metadata.get("group", rollout.name)),
        "split": None if rollout.split is None else str(rollout.split),
        "outcome": None if (kind := outcome_kind(rollout.status, rollout.outcome)) is None else str(kind),
        "status": str(rollout.status),
        "attempts": rollout.attempt_count,
        "took_s": None if end is None or begin is None else max(0.0, end - begin),
        "asked": cut(asked(rollout.input), ASKED),
    }


def attempt_brief(attempt: Attempt, now: float) -> Brief:
    """{"id", "rollout", "number", "worker", "status", "started_at", "ended_at", "took_s", "beat_at", "lease_until",
    "deadline", "error"}; of one that runs, `took_s` is until now."""
    names = ("id", "rollout", "number", "worker", "started_at", "ended_at", "beat_at", "lease_until", "deadline")
    return {
        **{name: getattr(attempt, name) for name in names},
        "status": str(attempt.status),
        "error": attempt.error,
        "took_s": max(0.0, (attempt.ended_at or now) - attempt.started_at),
    }


def release_brief(release: Release) -> Brief:
    """{"id", "policy", "number", "kind", "source", "parent", "stage", "share", "is_known_good", "evidence",
    "created_at", "changed_at"}"""
    names = ("id", "policy", "number", "source", "parent", "share", "is_known_good", "evidence")
    told = {name: getattr(release, name) for name in (*names, "created_at", "changed_at")}
    return {**told, "kind": str(release.kind), "stage": str(release.stage)}


def alert_brief(alert: Alert) -> Brief:
    """{"id", "code", "severity", "message", "at", "run", "cleared_at", "acknowledged_at", "acknowledged_by"}"""
    names = ("id", "code", "message", "at", "run", "cleared_at", "acknowledged_at", "acknowledged_by")
    return {**{name: getattr(alert, name) for name in names}, "severity": str(alert.severity)}


def entry_brief(entry: LedgerEntry) -> Brief:
    """{"seq", "at", "kind", "who", "run", "what", "why", "sha256", "body"}; `what` is one sentence."""
    what, why = happened(entry)
    told = {name: getattr(entry, name) for name in ("seq", "at", "kind", "who", "run", "sha256")}
    return {**told, "what": cut(what, LONGEST), "why": cut(why, LONGEST), "body": entry.body}


def happened(entry: LedgerEntry) -> tuple[str, str]:
    """What an entry of the ledger says, and why."""
    if entry.kind == "release":
        return _moved(entry.body)
    why = str(entry.body.get("why") or "")
    says = SAYS.get(entry.kind)
    if says is not None and (said := says(entry)):
        return said, why
    told = (f"{name} {_one_line(value)}" for name, value in entry.body.items() if name != "why" and value is not None)
    return f"{entry.kind}: {', '.join(told)}", why


DONE_SO = {  # what was ordered, once it is done
    "pause": "paused",
    "resume": "resumed",
    "drain": "drained",
    "cancel": "cancelled",
    "recover": "recovered",
    "requeue": "requeued",
    "cancel_rollout": "cancelled",
    "rollback": "rolled back",
    "acknowledge": "acknowledged",
    "kill": "killed",
}


def _ordered(entry: LedgerEntry) -> str:
    action, subject = entry.body.get("action"), entry.body.get("subject")
    if not isinstance(action, str) or not isinstance(subject, str):
        return ""
    if entry.kind == "refusal":
        why = _one_line(entry.body.get("refused") or "no reason was given")
        return f"{action.replace('_', ' ')} {subject} was refused: {why}"
    args, answer = entry.body.get("args") or {}, entry.body.get("answer") or {}
    done = "froze" if args.get("mode") == "freeze" else DONE_SO.get(action, action.replace("_", " "))
    after = answer.get("after") if isinstance(answer, Mapping) else None
    live = after.get("live") if isinstance(after, Mapping) and action == "rollback" else None
    return f"{done} {subject}" + (f"; {live} is live" if live else "")


def _ran(entry: LedgerEntry) -> str:
    body, run = entry.body, entry.run or "a run"
    if "begin" in body:
        return f"{run} began: {body['begin']}, {_one_line(body.get('model_ref') or 'no model')}"
    error = f": {_one_line(body['error'])}" if body.get("error") else ""
    return f"{run} {body['end']}{error}" if "end" in body else ""


def _wanted(entry: LedgerEntry) -> str:
    body = entry.body
    before = f", was {body['before']}" if body.get("before") else ""
    return f"{entry.run or 'a run'} is to be {body['wanted']}{before}" if "wanted" in body else ""


def _tried(entry: LedgerEntry) -> str:
    """Names of canaries and shadows are made of their parts; the version is the second."""
    for word, told in (("begin", "began"), ("end", "ended")):
        if word in entry.body:
            kind, _, rest = str(entry.body[word]).partition(":")
            version = rest.split(":")[0]
            return f"the {kind} of {version} {told}" if "@" in version else f"the trial {entry.body[word]} {told}"
    return ""


SAYS: Mapping[str, Callable[[LedgerEntry], str]] = {
    "command": _ordered,
    "refusal": _ordered,
    "run": _ran,
    "order": _wanted,
    "trial": _tried,
}


def _moved(body: Mapping[str, Any]) -> tuple[str, str]:
    why = str(body.get("why") or "")
    if "add" in body:
        return f"{body['add']} was registered", str(body.get("source") or "")
    if "accept" in body:
        return f"{body['accept']} was accepted", reasons(decode(Decision, dict(body["decision"])).reasons)
    if "refuse" in body:
        decision = decode(Decision, dict(body["decision"]))
        return f"{body['refuse']} was {outcome(decision)}", reasons(decision.reasons)
    if "roll_back" in body:
        return f"{body['roll_back']} was taken back; {body['to']} is live", why
    if "restore" in body:
        return f"{body['restore']} is live again; {body['retired']} retired", why
    if body.get("to") == Stage.CANDIDATE:
        return f"{body.get('move')} gets a second try", why
    share = f" with {body['share']} %" if body.get("share") and body.get("to") == Stage.CANARY else ""
    why = why.partition("; next is ")[0]  # a guard names the step that it takes: this one
    return f"{body.get('move')} went from {body.get('from')} to {body.get('to')}{share}", why


def outcome(decision: Decision) -> str:
    """In one word: what may still come is held, what may not is refused."""
    if decision.open:
        return "promoted"
    return "held" if decision.needs is not None or decision.reasons[0].code == "guard_undecided" else "refused"


def decision_brief(entry: LedgerEntry) -> Brief:
    """{"sentence", "outcome", "at", "who", "seq", "codes", "reasons": [{"code", "text"}], "needs"}

    `outcome`: "accepted" (it stays where it is), "promoted", "held", "refused", "moved", "taken back", "restored" or
    "registered".
    """
    what, why = happened(entry)
    made = entry.body.get("decision")
    decision = None if made is None else decode(Decision, dict(made))
    found: list[Brief] = []
    if decision is not None:
        found = [{"code": one.code, "text": one.text} for one in decision.reasons]
        why = why or reasons(decision.reasons)
    elif isinstance(entry.body.get("reasons"), list):
        found = [dict(one) for one in entry.body["reasons"]]
    sentence = f"{what}: {cut(why, LONGEST)}" if why else what
    word = _word(entry.body) if decision is None or "accept" in entry.body else outcome(decision)
    return {
        "sentence": sentence if sentence.endswith((".", "…")) else f"{sentence}.",
        "outcome": word,
        "at": entry.at,
        "who": entry.who,
        "seq": entry.seq,
        "codes": [one["code"] for one in found],
        "reasons": found,
        "needs": None if decision is None else decision.needs,
    }


def _word(body: Mapping[str, Any]) -> str:
    words = {"add": "registered", "accept": "accepted", "roll_back": "taken back", "restore": "restored"}
    return next((word for name, word in words.items() if name in body), "moved")


def reasons(found: Iterable[Reason]) -> str:
    """Of an open gate what sums it up; else all that keeps it closed."""
    listed = list(found)
    if listed and listed[0].code == ALLOWED:
        return listed[0].text
    return "; ".join(one.text for one in listed)


def asked(given: Any) -> str:
    """What a task asks, in one line: its prompt, or all of its input."""
    return _one_line(asked_of(given))


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _one_line(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text[: 4 * LONGEST].split())


NAMED = ("move", "refuse", "accept", "roll_back", "restore", "to", "retired")
OPENED = ("promoted", "accepted")  # what an open gate comes to


def last_decision(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The last that was decided about it."""
    return next((decision_brief(entry) for entry in reversed(history) if _names(entry, release_id)), None)


def gate_decision(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """What the gate said of it last, on evidence: neither a guard's move nor a person's is its verdict."""
    entry = _gate(release_id, history)
    return None if entry is None else decision_brief(entry)


def decisions_since_gate(release_id: str, history: Sequence[LedgerEntry], most: int = 20) -> list[Brief]:
    """What happened to it after the gate had spoken, the newest first."""
    entry = _gate(release_id, history)
    after = -1 if entry is None else entry.seq
    return [decision_brief(one) for one in reversed(history) if one.seq > after and _names(one, release_id)][:most]


def live_decision(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The decision that put the version where it is, live: its sentence is about this version and no other."""
    entry = _put_live(release_id, history)
    return None if entry is None else {**decision_brief(entry), "sentence": _sentence(release_id, entry, history)}


def newest_other_decision(release_id: str, under_way: Release | None, history: Sequence[LedgerEntry]) -> Brief | None:
    """decision + "release": the newest that was decided about another version since this one went live; of what is
    under way, before anything else."""
    put = _put_live(release_id, history)
    after = -1 if put is None else put.seq
    for entry in reversed(history):
        other = _about(entry)
        if entry.seq <= after:
            return None
        if other is None or other == release_id or (under_way is not None and other != under_way.id):
            continue
        return {**decision_brief(entry), "release": other}
    return None


def _names(entry: LedgerEntry, release_id: str) -> bool:
    return release_id in [entry.body.get(name) for name in NAMED]


def _about(entry: LedgerEntry) -> str | None:
    """The version that it decides about; one that was only registered was not decided about."""
    body = entry.body
    names = ("move", "refuse", "accept", "roll_back", "restore")
    return next((str(body[name]) for name in names if name in body), None)


def _gate(release_id: str, history: Sequence[LedgerEntry]) -> LedgerEntry | None:
    for entry in reversed(history):
        if entry.body.get("decision") and entry.body.get("evidence") and _about(entry) == release_id:
            return entry
    return None


def _put_live(release_id: str, history: Sequence[LedgerEntry]) -> LedgerEntry | None:
    return next((entry for entry in reversed(history) if _puts_live(entry.body, release_id)), None)


def _puts_live(body: Mapping[str, Any], release_id: str) -> bool:
    if body.get("roll_back") is not None:
        return body.get("to") == release_id and body.get("from") == Stage.LIVE
    return body.get("restore") == release_id or (body.get("move") == release_id and body.get("to") == Stage.LIVE)


def _sentence(release_id: str, entry: LedgerEntry, history: Sequence[LedgerEntry]) -> str:
    body, why = entry.body, cut(str(entry.body.get("why") or "no reason was given"), LONGEST)
    if "roll_back" in body:
        return _ended(f"{release_id} is live again since {entry.who} took {body['roll_back']} back: {why}")
    if "restore" in body:
        return _ended(f"{release_id} was restored by {entry.who} in place of {body['retired']}: {why}")
    opened = gate_decision(release_id, [one for one in history if one.seq < entry.seq])
    told = str(decision_brief(entry)["sentence"])
    if body.get("decision") or opened is None or opened["outcome"] not in OPENED:
        return told
    proved = opened["sentence"].partition(": ")[2]
    return f"{told} The gate had opened on {proved}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…")) else f"{sentence}."
