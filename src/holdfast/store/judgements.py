"""Judgements, labels, doubts, calibrations and appointments: kept once, never changed, found again by their content.

A judgement's id follows from what was asked of whom, so the table is the judges' cache as well; only answers are ever
kept in it, never failures. How judges are asked, and what labels make of them, is `reward`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unicodedata import normalize

from sqlalchemy import exists, func, select

from holdfast.contracts.errors import Conflict
from holdfast.contracts.judgement import (
    Calibration,
    EvalItem,
    JudgeAssignment,
    Judgement,
    Label,
    Maker,
    ReviewRequest,
    Role,
)
from holdfast.contracts.records import encode
from holdfast.store import ledger, rows, schema
from holdfast.store.ledger import OfProject
from holdfast.store.sql import AT_MOST, Transaction, given, into, plain_text, to_json
from holdfast.store.writer import WriteFuture

_f, _j, _d = schema.artefacts.c, schema.judgements.c, schema.doubts.c
_l, _c, _p = schema.labels.c, schema.calibrations.c, schema.appointments.c


SAVE = into(schema.artefacts, "project", "sha256")
ITEM = select(_f.body).where(given(schema.artefacts, "project", "sha256"))
RECORD = into(schema.judgements, "project", "id")
JUDGEMENT = select(*rows.JUDGEMENT).where(given(schema.judgements, "project", "id"))
_of_criterion = select(*rows.JUDGEMENT).where(given(schema.judgements, "project", "criterion"))
OF_CRITERION = _of_criterion.order_by(_j.artefact, _j.at, _j.id)
_question = (_j.judge, _j.criterion, _j.prompt)
_criteria = select(*_question, func.count(), func.sum(_j.cost), func.max(_j.at))
CRITERIA = _criteria.where(given(schema.judgements, "project")).group_by(*_question).order_by(*_question)
REVIEW = into(schema.doubts, "project", "artefact", "criterion")
_same = (_l.project == _d.project, _l.artefact == _d.artefact, _l.criterion == _d.criterion)
_is_open = given(schema.doubts, "project") & ~exists().where(*_same, given(_l, "maker"))
OPEN = select(*rows.REVIEW_REQUEST).where(_is_open).order_by(_d.at, _d.artefact, _d.criterion).limit(AT_MOST)
COUNT = select(func.count()).select_from(schema.doubts).where(_is_open)
_by_maker = given(schema.labels, "project", "artefact", "criterion", "maker", "who")
LAST = select(*rows.LABEL).where(_by_maker).order_by(_l.version.desc()).limit(1)
LABEL = into(schema.labels)
_labels = select(*rows.LABEL).where(given(schema.labels, "project", "criterion"))
LABELS = _labels.order_by(_l.artefact, _l.maker, _l.who, _l.version)
ADD = into(schema.calibrations)
CALIBRATIONS = select(_c.body).where(given(schema.calibrations, "project")).order_by(_c.key.desc())
NEWEST = CALIBRATIONS.where(given(schema.calibrations, "judge", "criterion", "prompt")).limit(1)
APPOINT = into(schema.appointments, "project", "policy", "judge")
ROLE = select(*rows.JUDGE_ASSIGNMENT).where(given(schema.appointments, "project", "policy", "judge"))
APPOINTED = select(*rows.JUDGE_ASSIGNMENT).where(given(schema.appointments, "project")).order_by(_p.policy, _p.judge)
MOST = 2**31 - 1


def plain_name(name: str) -> str:
    """A judge's name without what makes no other judge of it: case, spaces, letters that look alike."""
    return " ".join(normalize("NFKC", name).casefold().split())


def _is_same(one: JudgeAssignment, other: JudgeAssignment) -> bool:
    return all(plain_name(a) == plain_name(b) for a, b in ((one.policy, other.policy), (one.judge, other.judge)))


class Judgements(OfProject):
    def save(self, artefacts: Iterable[EvalItem], *, now: float) -> WriteFuture[int]:
        """Keep what is judged; how many of it are new."""
        params = [self._artefact(artefact, now) for artefact in artefacts]
        return self._db.write(lambda tx: tx.many(SAVE, params) if params else 0)

    def item(self, sha256: str) -> EvalItem:
        row = self._db.one(ITEM, self._of(sha256=sha256))
        if row is None:
            raise self._none(f"artefact {sha256[:12]}")
        return rows.eval_item(row)

    def record(self, artefact: EvalItem, judgement: Judgement) -> WriteFuture[Judgement]:
        """Keep it with what it is about; of two on the same question the first stays, and is the answer."""
        values, about = self._judgement(judgement), self._artefact(artefact, judgement.at)

        def operation(tx: Transaction) -> Judgement:
            tx.run(SAVE, about)
            tx.run(RECORD, values)
            return rows.judgement(tx.one(JUDGEMENT, self._of(id=judgement.id)))

        return self._db.write(operation)

    def get(self, identity: str) -> Judgement | None:
        row = self._db.one(JUDGEMENT, self._of(id=identity))
        return None if row is None else rows.judgement(row)

    def of(self, criterion: str, *, judge: str | None = None, prompt: str | None = None) -> list[Judgement]:
        judgements = [rows.judgement(row) for row in self._db.all(OF_CRITERION, self._of(criterion=criterion))]
        return [
            judgement
            for judgement in judgements
            if judge in (None, judgement.judge) and prompt in (None, judgement.prompt)
        ]

    def asked(self) -> list[tuple[str, str, str, int, float, float]]:
        """Judge, criterion, prompt; how many judgements, what they cost, and when the last was given."""
        found = self._db.all(CRITERIA, self._of())
        return [(judge, on, prompt, int(n), float(cost), float(at)) for judge, on, prompt, n, cost, at in found]

    def request_review(self, artefact: EvalItem, doubt: ReviewRequest) -> WriteFuture[bool]:
        """Somebody should look at it; False when it waits, or has waited, already."""
        about = self._artefact(artefact, doubt.at)
        values = self._of(artefact=doubt.artefact, criterion=doubt.criterion, reason=doubt.reason.value, at=doubt.at)
        values["why"] = plain_text(doubt.why)

        def operation(tx: Transaction) -> bool:
            tx.run(SAVE, about)
            return bool(tx.run(REVIEW, values).rowcount == 1)

        return self._db.write(operation)

    def doubts(self, *, most: int = MOST) -> list[ReviewRequest]:
        """Those that no person has labelled, the oldest first."""
        found = self._db.all(OPEN, self._of(maker=Maker.PERSON.value, most=most))
        return [rows.review_request(row) for row in found]

    def waiting(self) -> int:
        n: int = self._db.one(COUNT, self._of(maker=Maker.PERSON.value))[0]
        return n

    def label(self, labels: Sequence[Label]) -> WriteFuture[int]:
        """Add them, each as the next version of its maker; how many are new. The same again is no new version."""
        params = [self._label(label) for label in labels]

        def operation(tx: Transaction) -> int:
            added = 0
            for values in params:
                last = tx.one(LAST, values)
                before = None if last is None else rows.label(last)
                if before is not None and (before.holds, before.why) == (_flag(values["holds"]), values["why"]):
                    continue
                tx.run(LABEL, {**values, "version": 1 if before is None else before.version + 1})
                added += 1
            return added

        return self._db.write(operation)

    def labels(self, criterion: str, *, history: bool = False) -> list[Label]:
        """The last of each maker on each artefact, or all of them."""
        found = [rows.label(row) for row in self._db.all(LABELS, self._of(criterion=criterion))]
        if history:
            return found
        return list({(label.artefact, label.maker, label.who): label for label in found}.values())

    def calibrate(self, calibration: Calibration, *, who: str) -> WriteFuture[None]:
        """Keep it; the ledger notes whether the judge is trusted, and why it is not."""
        values = self._of(body=to_json(encode(calibration)), at=calibration.at)
        values |= {name: getattr(calibration, name) for name in ("judge", "criterion", "prompt", "labels")}
        body = {name: values[name] for name in ("judge", "criterion", "prompt", "labels")}
        body |= {"standing": calibration.standing.value, "reasons": list(calibration.reasons)}

        def operation(tx: Transaction) -> None:
            tx.run(ADD, values)
            ledger.append(tx, self._project, None, "calibration", who, body, calibration.at)

        return self._db.write(operation)

    def calibrations(self) -> list[Calibration]:
        """The newest of each judge, criterion and prompt."""
        found: dict[tuple[str, str, str], Calibration] = {}
        for row in self._db.all(CALIBRATIONS, self._of()):
            calibration = rows.calibration(row)
            found.setdefault((calibration.judge, calibration.criterion, calibration.prompt), calibration)
        return list(found.values())

    def calibration(self, judge: str, criterion: str, prompt: str) -> Calibration | None:
        """The newest that is bound to exactly these: a judge that is asked otherwise is not calibrated."""
        row = self._db.one(NEWEST, self._of(judge=judge, criterion=criterion, prompt=prompt))
        return None if row is None else rows.calibration(row)

    def appoint(self, policy: str, judge: str, role: Role, *, who: str, now: float) -> WriteFuture[JudgeAssignment]:
        """The judge has this role for the policy, for good: who trains it never evaluates it."""
        wanted = JudgeAssignment(policy=plain_text(policy), judge=plain_text(judge), role=role, at=now)
        values = self._of(policy=wanted.policy, judge=wanted.judge, role=role.value, at=now)

        def operation(tx: Transaction) -> JudgeAssignment:
            is_new = tx.run(APPOINT, values).rowcount == 1
            assignment = rows.judge_assignment(tx.one(ROLE, values))
            known = (rows.judge_assignment(row) for row in tx.all(APPOINTED, values))
            if other := next(
                (assignment for assignment in known if assignment.role is not role and _is_same(assignment, wanted)),
                None,
            ):
                why = f"is the {other.role} judge of policy {policy}, and cannot be its {role} judge"
                raise Conflict(f"judge {judge}", why=why, remedy="take another model for that")
            if is_new:
                body = {"policy": policy, "judge": judge, "role": role.value}
                ledger.append(tx, self._project, None, "judge", who, body, now)
            return assignment

        return self._db.write(operation)

    def appointments(self) -> list[JudgeAssignment]:
        return [rows.judge_assignment(row) for row in self._db.all(APPOINTED, self._of())]

    def _artefact(self, one: EvalItem, now: float) -> dict[str, Any]:
        return self._of(sha256=one.sha256, body=to_json(encode(one)), at=now)

    def _judgement(self, one: Judgement) -> dict[str, Any]:
        names = ("id", "criterion", "prompt", "artefact", "score", "tokens", "cost", "latency_s", "at")
        values = {name: getattr(one, name) for name in names}
        grade = None if one.grade is None else one.grade.value
        return self._of(**values, judge=plain_text(one.judge), grade=grade, why=plain_text(one.why))

    def _label(self, one: Label) -> dict[str, Any]:
        values = {"artefact": one.artefact, "criterion": one.criterion, "maker": one.maker.value, "at": one.at}
        holds = None if one.holds is None else int(one.holds)
        return self._of(**values, who=plain_text(one.who), holds=holds, why=plain_text(one.why))


def _flag(holds: int | None) -> bool | None:
    return None if holds is None else bool(holds)
