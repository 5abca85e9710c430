"""What must hold after every fault: the journals of all processes against one picture of the store.

Nothing acknowledged is gone, nothing is finished twice, nothing of a lost attempt was accepted, nothing is half there.
This is a function of two values and knows no store, so that a test can show that it finds what is planted.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.drills.journal import Account, Call
from tests.drills.picture import Picture, Row, chain

BY_AGENT = {"failed", "timeout"}  # attempt states that use up a try
BY_US = {"fault", "unresponsive"}  # and those that use up none
KILLS = 3  # workers that one task may take down; then it has failed
FENCED = {"beat", "add", "score", "finish"}
SECOND_NET = "illegal move"  # what the schema says
TABLE_OF = {"add": "spans", "score": "signals"}


@dataclass(slots=True)
class Findings:
    """Counts, and a sentence for each thing that is wrong."""

    rollouts: int = 0
    chain: int = 0  # ledger entries that follow from one another
    written_off: int = 0  # attempts whose worker fell silent
    unanswered: int = 0  # calls whose process died before the answer
    tried_stale: int = 0  # writes begun after their attempt was lost
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        kinds = (("lost", self.lost), ("twice", self.twice), ("stale", self.stale), ("", self.other))
        return [f"{kind}: {text}".removeprefix(": ") for kind, found in kinds for text in found]


def examine(account: Account, picture: Picture, *, is_over: bool = True) -> Findings:
    """`is_over` when the run was worked off: then every rollout must have succeeded."""
    findings = Findings(
        rollouts=len(picture.rollouts),
        written_off=sum(row["status"] == "unresponsive" for row in picture.tables["attempts"]),
        unanswered=sum(call.ok is None for call in account.calls),
    )
    findings.lost += _lost(account, picture)
    findings.twice += _twice(account, picture)
    findings.other += _half(account, picture)
    findings.other += _gaps(account, picture)
    findings.other += _history(picture)
    if is_over:
        findings.lost += _open(picture)
    _stale(account, picture, findings)
    findings.chain, broken = chain(picture.tables["ledger"])
    findings.other += [*broken, *(f"the database says: {text}" for text in picture.damage)]
    findings.other += [f"{note['who']} crashed: {note['crash']}" for note in account.notes if "crash" in note]
    return findings


def _lost(account: Account, picture: Picture) -> Iterator[str]:
    """Whatever was acknowledged must be there."""
    rollouts, attempts, kept = picture.rollouts, picture.attempts, _kept(picture)
    ledger = {_note(row["body"]) for row in picture.tables["ledger"]}
    for call in account.calls:
        if not call.ok:
            continue
        if call.name == "enqueue":
            yield from (f"{i}, enqueued by {call.who}" for i in call.facts["ids"][: call.answer] if i not in rollouts)
        elif call.name == "claim":
            for token, rollout, number in call.answer:
                if token not in attempts or attempts[token]["number"] != number:
                    yield f"attempt {number} of {rollout}, claimed by {call.who}"
        elif call.name in TABLE_OF:
            missing = [seq for seq in call.facts["seqs"] if (call.name, call.facts["token"], seq) not in kept]
            if missing:
                yield f"{TABLE_OF[call.name]} {missing} of attempt {call.facts['token']}, written by {call.who}"
        elif call.name == "append" and _note(json.dumps(call.facts["body"])) not in ledger:
            yield f"ledger entry {call.facts['body']}, appended by {call.who}"
        elif call.name == "finish":
            yield from _finish_gone(call, rollouts, attempts)


def _finish_gone(call: Call, rollouts: dict[str, Row], attempts: dict[int, Row]) -> Iterator[str]:
    token, state = call.facts["token"], call.facts["state"]
    status = attempts[token]["status"] if token in attempts else "not there"
    if status != state:
        yield f"end of attempt {token}: acknowledged to {call.who} as {state}, now {status}"
    elif state == "succeeded":
        rollout = rollouts.get(call.facts["rollout"], {})
        now = tuple(rollout.get(name) for name in ("status", "final", "reward"))
        if now != ("succeeded", token, call.facts["reward"]):
            yield f"success of {call.facts['rollout']}: acknowledged for attempt {token}, now {now}"


def _open(picture: Picture) -> Iterator[str]:
    tries = _by_rollout(picture)
    for name, row in picture.rollouts.items():
        if row["status"] != "succeeded" and not _is_killer(row, tries[row["key"]]):
            yield f"{name} is {row['status']} ({row['reason']}) after everything was worked off"


def _is_killer(row: Row, tries: list[Row]) -> bool:
    """Whether it has failed by the rule: so many workers fell silent while they had it."""
    lost = sum(attempt["status"] == "unresponsive" for attempt in tries)
    return row["status"] == "failed" and lost >= KILLS and tries[-1]["status"] == "unresponsive"


def _twice(account: Account, picture: Picture) -> Iterator[str]:
    """One attempt decides a rollout, and it is the last one."""
    told = Counter(
        call.facts["rollout"]
        for call in account.calls
        if call.ok and call.name == "finish" and call.facts["state"] == "succeeded"
    )
    yield from (f"{name}: success acknowledged {n} times" for name, n in told.items() if n > 1)
    tries = _by_rollout(picture)
    for name, row in picture.rollouts.items():
        mine = tries[row["key"]]
        won = [attempt for attempt in mine if attempt["status"] == "succeeded"]
        if len(won) > 1:
            yield f"{name}: {len(won)} attempts succeeded"
        if row["status"] == "succeeded" and (not won or row["final"] != won[0]["key"]):
            yield f"{name}: succeeded by attempt {row['final']}, which is not one that succeeded"
        if won and (row["status"] != "succeeded" or mine[-1] is not won[-1]):
            yield f"{name}: is {row['status']} with {len(mine)} attempts, but number {won[0]['number']} succeeded"


def _history(picture: Picture) -> Iterator[str]:
    tries = _by_rollout(picture)
    for name, row in picture.rollouts.items():
        mine = tries[row["key"]]
        numbers = [attempt["number"] for attempt in mine]
        if numbers != list(range(1, row["attempt_count"] + 1)):
            yield f"{name}: attempts are numbered {numbers}, the rollout counts {row['attempt_count']}"
        if sorted(attempt["key"] for attempt in mine) != [attempt["key"] for attempt in mine]:
            yield f"{name}: tokens do not grow with the attempts"
        running = [attempt for attempt in mine if attempt["status"] == "running"]
        if len(running) != (row["status"] == "running"):
            yield f"{name}: is {row['status']} with {len(running)} running attempts"
        failed, ours = (sum(one["status"] in states for one in mine) for states in (BY_AGENT, BY_US))
        counted = (failed + 1, ours - 1) if _is_killer(row, mine) else (failed, ours)
        if counted != (row["faults"], row["interruptions"]):
            kept = f"{row['faults']} and {row['interruptions']}"
            yield f"{name}: {counted[0]} tries and {counted[1]} faults of ours, the rollout says {kept}"


def _half(account: Account, picture: Picture) -> Iterator[str]:
    """A call without an answer left all of it or nothing; a refused one left nothing."""
    rollouts, kept = picture.rollouts, _kept(picture)
    good = [call for call in account.calls if call.ok]
    sure = {name for call in good if call.name == "enqueue" for name in call.facts["ids"]}
    kept -= {
        (call.name, call.facts["token"], seq) for call in good if call.name in TABLE_OF for seq in call.facts["seqs"]
    }
    for call in account.calls:
        if call.name == "enqueue" and not call.ok:
            mine = [name in rollouts for name in call.facts["ids"] if name not in sure]
            if any(mine) and (call.ok is False or not (all(mine) or call.facts["up_to"])):
                yield f"some of an enqueue of {len(mine)} by {call.who} is there: {call.error or 'no answer'}"
        elif call.name in TABLE_OF and not call.ok:
            there = [(call.name, call.facts["token"], seq) in kept for seq in call.facts["seqs"]]
            if any(there) and (call.ok is False or not all(there)):
                what = f"{TABLE_OF[call.name]} of attempt {call.facts['token']}"
                yield f"some {what} are there: {call.error or 'no answer'}"


def _gaps(account: Account, picture: Picture) -> Iterator[str]:
    """Who succeeded has all its spans and rewards, also any that was refused; but for one that says it insisted."""
    kept, tries = _kept(picture), picture.tables["attempts"]
    whole = {row["key"] for row in tries if row["status"] == "succeeded" and row["error"] is None}
    for call in account.calls:
        token = call.facts.get("token")
        if call.name in TABLE_OF and token in whole:
            missing = [seq for seq in call.facts["seqs"] if (call.name, token, seq) not in kept]
            if missing:
                what = f"{TABLE_OF[call.name]} {missing} of attempt {token}"
                yield f"{what} are missing, and yet it succeeded: {call.error} {call.why}"


def _stale(account: Account, picture: Picture, findings: Findings) -> None:
    """A write begun after its attempt was surely lost is refused, and by the fence: the schema's own rules, which let
    no attempt move backwards, are there in case it fails. A lease that ran out is no loss by itself."""
    lost = _lost_at(account, picture)
    for call in account.calls:
        if call.name not in FENCED:
            continue
        for token in call.facts.get("tokens", [call.facts.get("token")]):
            accepted = bool(call.ok) and (call.name != "beat" or token in call.answer)
            if call.begun_ns > lost.get(token, call.begun_ns):
                findings.tried_stale += 1
                if accepted:
                    findings.stale.append(f"{call.name} of attempt {token} by {call.who}, begun after it was lost")
                elif SECOND_NET in call.why:
                    findings.stale.append(f"{call.name} of attempt {token} by {call.who}: no fence, but {call.why}")
    for row in picture.tables["spans"]:
        begun = _begun(row)
        if begun is not None and begun > lost.get(row["attempt"], begun):
            findings.stale.append(f"span {row['seq']} of attempt {row['attempt']} is there, made after it was lost")


def _lost_at(account: Account, picture: Picture) -> dict[int, int]:
    """Token → when it was certain that the attempt no longer holds its rollout.

    Certain is the answer to the next claim of the rollout, to the attempt's own end, to a refusal that names its state;
    and to the sweep that wrote the attempt off, which is known by the time that it wrote."""
    claims: dict[str, list[tuple[int, int]]] = defaultdict(list)
    swept = {call.facts["now"]: call.ended_ns for call in account.calls if call.name == "sweep" and call.ok}
    lost = {
        row["key"]: swept[row["ended_at"]]
        for row in picture.tables["attempts"]
        if row["status"] in ("unresponsive", "timeout") and row["ended_at"] in swept
    }
    for call in account.calls:
        at = call.ended_ns or 0
        if call.name == "claim" and call.ok:
            for token, rollout, _ in call.answer:
                claims[rollout].append((token, at))
        if (call.name == "finish" and call.ok) or (call.error == "StaleLease" and call.why.startswith("it is ")):
            lost[call.facts["token"]] = min(lost.get(call.facts["token"], at), at)
    for taken in claims.values():
        taken.sort()
        for (token, _), (_, at) in pairwise(taken):
            lost[token] = min(lost.get(token, at), at)
    return lost


def _kept(picture: Picture) -> set[tuple[str, int, int]]:
    return {(call, row["attempt"], row["seq"]) for call, table in TABLE_OF.items() for row in picture.tables[table]}


def _by_rollout(picture: Picture) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for attempt in sorted(picture.tables["attempts"], key=lambda row: row["number"]):
        found[attempt["rollout"]].append(attempt)
    return found


def _note(body: str) -> object:
    return json.loads(body).get("note")


def _begun(span: Row) -> int | None:
    """Drill agents write into a span when they made it."""
    attributes = json.loads(span["body"]).get("attributes", {}) if span["body"] else {}
    begun: int | None = attributes.get("made_ns")
    return begun
