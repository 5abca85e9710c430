"""Records in short, as plain JSON, and the ledger entries that explain a version: why it is live, what its gate
decided, what happened since.

All texts are data, exactly as stored; pages must never treat them as markup.
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
from holdfast.promote.alpha_account import Charge
from holdfast.promote.gate import ALLOWED, NO_GAIN
from holdfast.promote.release import rollback_target
from holdfast.store.dashboard_queries import Moments, Totals

Brief = dict[str, Any]
LEVEL = 0.95
SILENT_S = 60.0  # drivers and workers send heartbeats far more often
ASKED = 240  # letters of a rollout's question
LONGEST = 400  # letters of a sentence
NO_RATE: Brief = {"value": None, "low": None, "high": None, "n": 0, "level": LEVEL}
NAMED = ("move", "refuse", "accept", "roll_back", "restore", "to", "retired")
DECISIONS = NAMED[:5]


def pick(record: Any, names: str) -> Brief:
    """These attributes of a record."""
    return {name: getattr(record, name) for name in names.split()}


def rate(successes: float, n: int) -> Brief:
    """A share with its Wilson interval: {"value", "low", "high", "n", "level"}; None where n is 0."""
    from holdfast.prove.estimate import wilson

    if n < 1:
        return dict(NO_RATE)
    interval = wilson(min(successes, n), n, level=LEVEL)
    return {"value": successes / n, "low": interval.low, "high": interval.high, "n": n, "level": LEVEL}


def mean(paid: Moments) -> Brief:
    """A mean with Student's interval, as `rate`; no interval for fewer than two values."""
    from scipy import stats  # type: ignore[import-untyped]

    if paid.n < 1 or not (isfinite(paid.total) and isfinite(paid.squares)):
        return {**NO_RATE, "n": max(0, paid.n)}
    middle = paid.total / paid.n
    if paid.n < 2:
        return {**NO_RATE, "value": middle, "n": paid.n}
    variance = max(0.0, paid.squares - paid.n * middle * middle) / (paid.n - 1)
    reach = float(stats.t.isf((1.0 - LEVEL) / 2.0, paid.n - 1)) * sqrt(variance / paid.n)
    return {"value": middle, "low": middle - reach, "high": middle + reach, "n": paid.n, "level": LEVEL}


def run_brief(run: RunRecord, totals: Totals, now: float) -> Brief:
    """{"id", "kind", "state", "wanted", "model_ref", "created_at", "beat_at", "ended_at", "error", "driver",
    "is_silent", "took_s", "outcomes": {outcome: n}, "right", "counts": {status: n}, "total", "done", "success",
    "reward", "is_whole"}

    `outcomes`: of finished rollouts, "right", "wrong", "not_checked", "failed" or "no_answer"; `right`: share of right
    answers among those checked or failed. `success`: share of succeeded ones among those that ended by themselves.
    `is_silent`: it runs without heartbeats. `is_whole`: False while the count is in progress.
    """
    counts, outcomes = totals.counts, totals.outcomes
    checked = outcomes[OutcomeKind.RIGHT] + outcomes[OutcomeKind.WRONG]
    good, bad = counts[RolloutState.SUCCEEDED], counts[RolloutState.FAILED] + counts[RolloutState.DEAD]
    known = checked + outcomes[OutcomeKind.FAILED] if checked else 0
    return {
        **pick(run, "id kind model_ref created_at beat_at ended_at error driver"),
        "state": str(run.state),
        "wanted": str(run.wanted),
        "is_silent": run.state is RunState.RUNNING and now - run.beat_at > SILENT_S,
        "took_s": max(0.0, (run.ended_at or now) - run.created_at),
        "outcomes": {str(kind): n for kind, n in outcomes.items()},
        "right": rate(outcomes[OutcomeKind.RIGHT], known),
        "counts": {str(state): n for state, n in counts.items()},
        "total": sum(counts.values()),
        "done": sum(n for state, n in counts.items() if state in DONE),
        "success": rate(good, good + bad),
        "reward": mean(sum(totals.rewards.values(), Moments())),
        "is_whole": totals.is_whole,
    }


def rollout_brief(rollout: Rollout, key: int | None = None) -> Brief:
    """{"id", "run", "name", "key", "group", "split", "outcome", "status", "attempts", "max_attempts", "reward",
    "enqueued_at", "started_at", "ended_at", "took_s", "asked", "reason"}

    `key` is the store's number, by which pages are ordered. `asked` is cut.
    """
    end, begin = rollout.ended_at, rollout.started_at
    return {
        **pick(rollout, "id run name reward reason max_attempts enqueued_at started_at ended_at"),
        "key": key,
        "group": str(rollout.metadata.get("group", rollout.name)),
        "split": None if rollout.split is None else str(rollout.split),
        "outcome": None if (kind := outcome_kind(rollout.status, rollout.outcome)) is None else str(kind),
        "status": str(rollout.status),
        "attempts": rollout.attempt_count,
        "took_s": None if end is None or begin is None else max(0.0, end - begin),
        "asked": cut(_one_line(asked_of(rollout.input)), ASKED),
    }


def attempt_brief(attempt: Attempt, now: float) -> Brief:
    """{"id", "rollout", "number", "worker", "status", "started_at", "ended_at", "took_s", "beat_at", "lease_until",
    "deadline", "error"}; `took_s` of a running one is until now."""
    names = "id rollout number worker started_at ended_at beat_at lease_until deadline error"
    took_s = max(0.0, (attempt.ended_at or now) - attempt.started_at)
    return {**pick(attempt, names), "status": str(attempt.status), "took_s": took_s}


def release_brief(release: Release) -> Brief:
    """{"id", "policy", "number", "kind", "source", "parent", "stage", "share", "is_known_good", "evidence",
    "created_at", "changed_at"}"""
    names = "id policy number source parent share is_known_good evidence created_at changed_at"
    return {**pick(release, names), "kind": str(release.kind), "stage": str(release.stage)}


def alert_brief(alert: Alert) -> Brief:
    """{"id", "code", "severity", "message", "at", "run", "cleared_at", "acknowledged_at", "acknowledged_by"}"""
    names = "id code message at run cleared_at acknowledged_at acknowledged_by"
    return {**pick(alert, names), "severity": str(alert.severity)}


def entry_brief(entry: LedgerEntry) -> Brief:
    """{"seq", "at", "kind", "who", "run", "what", "why", "sha256", "body"}; `what` is one sentence."""
    what, why = happened(entry)
    texts = {"what": cut(what, LONGEST), "why": cut(why, LONGEST)}
    return {**pick(entry, "seq at kind who run sha256 body"), **texts}


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _one_line(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text[: 4 * LONGEST].split())


# Ledger entries in words ---------------------------------------------------------------------------------------------


def happened(entry: LedgerEntry) -> tuple[str, str]:
    """Puts a ledger entry into words: what happened, and why."""
    if entry.kind == "release":
        return _moved(entry.body)
    why = str(entry.body.get("why") or "")
    says = SAYS.get(entry.kind)
    if says is not None and (sentence := says(entry)):
        return sentence, why
    told = (f"{name} {_one_line(value)}" for name, value in entry.body.items() if name != "why" and value is not None)
    return f"{entry.kind}: {', '.join(told)}", why


DONE_SO = {  # past tense of the commands
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
    if "resume" in body:
        changed = f"; {_one_line(', '.join(body['changed']))} changed since it began" if body.get("changed") else ""
        return f"{run} was taken up again, it was {body['resume']}{changed}"
    error = f": {_one_line(body['error'])}" if body.get("error") else ""
    return f"{run} {body['end']}{error}" if "end" in body else ""


def _wanted(entry: LedgerEntry) -> str:
    body = entry.body
    before = f", was {body['before']}" if body.get("before") else ""
    return f"{entry.run or 'a run'} is to be {body['wanted']}{before}" if "wanted" in body else ""


def _tried(entry: LedgerEntry) -> str:
    """The name of a canary or shadow is KIND:VERSION:…"""
    for word, verb in (("begin", "began"), ("end", "ended")):
        if word in entry.body:
            kind, _, rest = str(entry.body[word]).partition(":")
            version = rest.split(":")[0]
            return f"the {kind} of {version} {verb}" if "@" in version else f"the trial {entry.body[word]} {verb}"
    return ""


def _charged(entry: LedgerEntry) -> str:
    if "charge" not in entry.body:
        return ""
    charge = Charge.from_record(entry.body)
    return f"{charge.candidate} is tested against {charge.baseline}; {charge.text}"


def _recorded(entry: LedgerEntry) -> str:
    return f"{entry.run or 'a run'} recorded its step {entry.body['name']}" if "name" in entry.body else ""


def _token(entry: LedgerEntry) -> str:
    body = entry.body
    if "revoke" in body:
        return f"token {body['revoke']} was revoked"
    instead = f", in place of {body['rotate']}" if "rotate" in body else ""
    return f"token {body['add']} was made for {body.get('label')}, {body.get('role')}{instead}" if "add" in body else ""


SAYS: Mapping[str, Callable[[LedgerEntry], str]] = {
    "command": _ordered,
    "refusal": _ordered,
    "run": _ran,
    "order": _wanted,
    "trial": _tried,
    "account": _charged,
    "step": _recorded,
    "token": _token,
}


def _moved(body: Mapping[str, Any]) -> tuple[str, str]:
    why = str(body.get("why") or "")
    if "add" in body:
        return f"{body['add']} was registered", str(body.get("source") or "")
    if "accept" in body:
        return f"{body['accept']} was accepted", reasons(decode(Decision, dict(body["decision"])).reasons)
    if "refuse" in body:
        decision = decode(Decision, dict(body["decision"]))
        return f"{body['refuse']} was {_outcome(decision)}", reasons(decision.reasons)
    if "roll_back" in body:
        return f"{body['roll_back']} was taken back; {body['to']} is live", why
    if "restore" in body:
        return f"{body['restore']} is live again; {body['retired']} retired", why
    if body.get("to") == Stage.CANDIDATE:
        return f"{body.get('move')} gets a second try", why
    share = f" with {body['share']} %" if body.get("share") and body.get("to") == Stage.CANARY else ""
    why = why.partition("; next is ")[0]  # the guard's reason names the step that it takes: this one
    return f"{body.get('move')} went from {body.get('from')} to {body.get('to')}{share}", why


def _outcome(decision: Decision) -> str:
    """A closed gate holds what more evidence may change, and refuses the rest."""
    if decision.open:
        return "promoted"
    is_open = any(reason.code in ("guard_undecided", NO_GAIN) for reason in decision.reasons)
    return "held" if decision.needs is not None or is_open else "refused"


def reasons(found: Iterable[Reason]) -> str:
    """The summary of an open gate; all reasons of a closed one."""
    listed = list(found)
    if listed and listed[0].code == ALLOWED:
        return listed[0].text
    return "; ".join(reason.text for reason in listed)


# Decisions about versions --------------------------------------------------------------------------------------------


def decision_brief(entry: LedgerEntry) -> Brief:
    """{"sentence", "outcome", "at", "who", "seq", "codes", "reasons": [{"code", "text"}], "needs"}

    `outcome`: "accepted" (it stays where it is), "promoted", "held", "refused", "moved", "taken back", "restored" or
    "registered".
    """
    what, why = happened(entry)
    body = entry.body
    decision = None if body.get("decision") is None else decode(Decision, dict(body["decision"]))
    found: list[Brief] = []
    if decision is not None:
        found = [{"code": reason.code, "text": reason.text} for reason in decision.reasons]
        why = why or reasons(decision.reasons)
    elif isinstance(body.get("reasons"), list):
        found = [dict(one) for one in body["reasons"]]
    words = {"add": "registered", "accept": "accepted", "roll_back": "taken back", "restore": "restored"}
    word = next((word for name, word in words.items() if name in body), "moved")
    return {
        "sentence": _ended(f"{what}: {cut(why, LONGEST)}" if why else what),
        "outcome": word if decision is None or "accept" in body else _outcome(decision),
        **pick(entry, "at who seq"),
        "codes": [one["code"] for one in found],
        "reasons": found,
        "needs": None if decision is None else decision.needs,
    }


def last_decision(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The last decision about a version."""
    return next((decision_brief(entry) for entry in reversed(history) if _names(entry, release_id)), None)


def gate_decision(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The last gate decision on evidence; moves of a guard or a person do not count."""
    entry = _gate(release_id, history)
    return None if entry is None else decision_brief(entry)


def decisions_since_gate(release_id: str, history: Sequence[LedgerEntry]) -> list[Brief]:
    """The last 20 decisions about the version since its gate, newest first."""
    entry = _gate(release_id, history)
    after = -1 if entry is None else entry.seq
    return [decision_brief(entry) for entry in reversed(history) if entry.seq > after and _names(entry, release_id)][
        :20
    ]


def live_decision(release_id: str, history: Sequence[LedgerEntry]) -> Brief | None:
    """The decision that made the version live; its sentence is about this version only."""
    entry = _put_live(release_id, history)
    return None if entry is None else {**decision_brief(entry), "sentence": _sentence(release_id, entry, history)}


def live_brief(every: Sequence[Release], live: Release | None, history: Sequence[LedgerEntry]) -> Brief:
    """{"live": release|None, "way_back": id|None, "decision": decision|None}: what serves, and what would instead."""
    if live is None:
        return dict.fromkeys(("live", "way_back", "decision"))
    back, decision = rollback_target(every, live), live_decision(live.id, history)
    return {"live": release_brief(live), "way_back": None if back is None else back.id, "decision": decision}


def newest_other_decision(release_id: str, under_way: Release | None, history: Sequence[LedgerEntry]) -> Brief | None:
    """decision + "release": the newest decision about another version since this one went live; only about the version
    under way, if there is one. A canary that is taken back is not the reason why this one is live."""
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
    """The version that an entry decides about; a registration decides nothing."""
    return next((str(entry.body[name]) for name in DECISIONS if name in entry.body), None)


def _gate(release_id: str, history: Sequence[LedgerEntry]) -> LedgerEntry | None:
    found = (entry for entry in reversed(history) if entry.body.get("decision") and entry.body.get("evidence"))
    return next((entry for entry in found if _about(entry) == release_id), None)


def _put_live(release_id: str, history: Sequence[LedgerEntry]) -> LedgerEntry | None:
    for entry in reversed(history):
        body = entry.body
        if body.get("roll_back") is not None:
            is_put = body.get("to") == release_id and body.get("from") == Stage.LIVE
        else:
            is_moved = body.get("move") == release_id and body.get("to") == Stage.LIVE
            is_put = body.get("restore") == release_id or is_moved
        if is_put:
            return entry
    return None


def _sentence(release_id: str, entry: LedgerEntry, history: Sequence[LedgerEntry]) -> str:
    body, why = entry.body, cut(str(entry.body.get("why") or "no reason was given"), LONGEST)
    if "roll_back" in body:
        return _ended(f"{release_id} is live again since {entry.who} took {body['roll_back']} back: {why}")
    if "restore" in body:
        return _ended(f"{release_id} was restored by {entry.who} in place of {body['retired']}: {why}")
    opened = gate_decision(release_id, [ledger_entry for ledger_entry in history if ledger_entry.seq < entry.seq])
    message = str(decision_brief(entry)["sentence"])
    if body.get("decision") or opened is None or opened["outcome"] not in ("promoted", "accepted"):
        return message
    return f"{message} The gate had opened on {opened['sentence'].partition(': ')[2]}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…")) else f"{sentence}."
