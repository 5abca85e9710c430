"""Steps by hand: what is not proved stays where it is, and every refusal is in the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, IllegalMove, StoreCorrupt
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import decode
from holdfast.contracts.release import Release, Stage
from holdfast.operate.canary_controller import Refusal, advance, try_again, way_back
from holdfast.operate.publication import recompute_decision
from holdfast.store.store import Store
from tests.operate.stage import POLICY, Line, proposed, take_back
from tests.operate.test_canary_controller import ENOUGH, GOOD, play


def step(line: Line, number: int, to: Stage | None = None, share: int | None = None) -> Release | Refusal:
    return advance(line.store, line.at(number), to=to, share=share, who="ann", why="it is time", now=line.now)


def codes(found: Release | Refusal) -> list[str]:
    assert isinstance(found, Refusal) and not found.decision.open
    return [reason.code for reason in found.decision.reasons]


def last(line: Line) -> dict[str, Any]:
    return dict(line.store.releases.history(POLICY)[-1].body)


def test_the_first_version_is_live_without_a_proof(file_store: Store) -> None:
    from holdfast.contracts.release import PolicyKind

    first = file_store.releases.add(
        policy=POLICY, kind=PolicyKind.WEIGHTS, source="shelf:1", who="ann", now=1.0
    ).result()
    found = advance(file_store, first, to=None, share=None, who="ann", why="go", now=2.0)
    assert isinstance(found, Release) and (found.stage, found.is_known_good) == (Stage.LIVE, True)
    assert file_store.releases.history(POLICY)[-1].body["why"].endswith("; go")


@pytest.mark.parametrize("to", [None, Stage.SHADOW, Stage.CANARY, Stage.LIVE])
def test_a_candidate_that_no_gate_decided_about_is_refused_and_the_ledger_knows(
    file_store: Store, to: Stage | None
) -> None:
    line = Line(file_store, 2)
    assert codes(step(line, 2, to)) == ["evidence_missing_all"]
    assert line.at(2).stage is Stage.CANDIDATE
    entry = file_store.releases.history(POLICY)[-1]
    assert (entry.who, entry.body["refuse"]) == ("ann", "sprout@2")
    kept = decode(Decision, dict(entry.body["decision"]))
    assert "no gate has decided about sprout@2 yet" in kept.reasons[0].text
    file_store.ledger.verify()


async def test_a_closed_gate_stays_closed_for_people_too(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, rate=0.1)
    refused = step(line, 2)
    assert isinstance(refused, Refusal)
    assert refused.decision == decode(Decision, made["decision"])
    assert line.at(2).evidence == made["evidence"]


async def open_candidate(line: Line) -> None:
    """One whose gate is open, and that waits for a person: it was taken back from its first step by hand."""
    found = await proposed(line.store, to=Stage.SHADOW)
    assert found["decision"]["open"], found


async def test_what_a_gate_let_in_goes_on_when_its_guard_is_clear_and_not_before(file_store: Store) -> None:
    line = Line(file_store, 2)
    await open_candidate(line)
    assert line.at(2).stage is Stage.SHADOW
    changed = line.at(2).changed_at
    for _ in range(2):  # asking twice is no other answer
        assert set(codes(step(line, 2))) == {"guard_undecided"}
    assert last(line)["refuse"] == "sprout@2"
    assert line.at(2).changed_at == changed  # the comparison that it is in goes on
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1}, n=ENOUGH)
    found = step(line, 2)
    assert isinstance(found, Release) and (found.stage, found.share) == (Stage.CANARY, 5)
    assert set(codes(step(line, 2))) == {"guard_undecided"}
    play(line, GOOD)
    found = step(line, 2, share=40)
    assert isinstance(found, Release) and (found.stage, found.share) == (Stage.CANARY, 40)
    play(line, GOOD)
    found = step(line, 2, to=Stage.LIVE)
    assert isinstance(found, Release) and (found.stage, found.is_known_good) == (Stage.LIVE, True)
    assert last(line)["retired"] == "sprout@1" and last(line)["decision"]["open"]
    file_store.ledger.verify()


async def test_what_a_gate_accepted_without_moving_it_goes_by_hand_and_is_explained(file_store: Store) -> None:
    line = Line(file_store, 2)
    found = await proposed(file_store, to=None)
    assert found["decision"]["open"] and last(line)["accept"] == "sprout@2"
    assert line.at(2).stage is Stage.CANDIDATE
    told = recompute_decision(file_store, line.at(2))
    assert [next(iter(one.body)) for one in told.history] == ["add", "accept"]
    assert told.decision is not None and told.decision.open
    moved = step(line, 2)
    assert isinstance(moved, Release) and moved.stage is Stage.SHADOW


async def test_a_canary_in_breach_goes_nowhere_by_hand(file_store: Store) -> None:
    line = Line(file_store, 2)
    found = await proposed(file_store, to=Stage.CANARY)
    assert found["decision"]["open"]
    play(line, {**GOOD, "success": 0.0})
    assert codes(step(line, 2)) == ["canary_breach_success"]
    assert line.at(2).stage is Stage.CANARY


async def test_a_canary_that_bypassed_the_gate_is_not_taken_further(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 5)
    play(line, GOOD)
    assert codes(step(line, 2)) == ["evidence_missing_all"]


async def test_a_second_try_begins_with_nothing(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.CANARY)
    line.back(2, 1)
    line.go(2, Stage.CANDIDATE)
    assert codes(step(line, 2)) == ["evidence_missing_all"]


async def test_a_proof_against_what_is_not_live_any_more_proves_nothing(file_store: Store) -> None:
    line = Line(file_store, 3)
    await proposed(file_store, to=Stage.CANARY)
    entry = last(line)
    line.back(2, 1)
    line.go(2, Stage.CANDIDATE)
    decision = decode(Decision, dict(entry["decision"]))
    line.go(2, Stage.CANARY, 5, evidence=entry["evidence"], decision=decision)
    line.go(3, Stage.LIVE)
    play(line, GOOD)
    assert isinstance(step(line, 2), Release)  # as a canary it was beside the new one
    line.back(2, 3)
    line.go(2, Stage.CANDIDATE, evidence=entry["evidence"], decision=decision)
    assert codes(step(line, 2)) == ["baseline_is_not_live"]


async def test_evidence_that_was_changed_opens_nothing(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, to=Stage.CANARY)
    path = file_store.blobs.path(made["evidence"])
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"sprout@1", b"sprout@9"))
    play(line, GOOD)
    with pytest.raises(StoreCorrupt, match=str(path)):
        step(line, 2)
    assert line.at(2).share == 5


@pytest.mark.parametrize("end", [Stage.LIVE, Stage.REJECTED])
def test_where_no_step_is_ahead_that_is_said(file_store: Store, end: Stage) -> None:
    line = Line(file_store, 2)
    line.go(2, end)
    with pytest.raises(BadInput, match=f"release sprout@2: is {end}: there is no step ahead"):
        step(line, 2)


async def test_a_step_that_is_none_is_refused_by_the_table(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 5)
    with pytest.raises(IllegalMove, match="cannot go from canary to shadow"):
        step(line, 2, to=Stage.SHADOW)


def test_a_canary_is_taken_back_and_the_live_one_never_stopped(file_store: Store) -> None:
    line = Line(file_store, 3)
    line.go(2, Stage.LIVE)
    line.go(3, Stage.CANARY, 25)
    failing, live = take_back(file_store, None, "odd answers", line.now)
    assert (failing.id, live.id) == ("sprout@3", "sprout@2")
    assert [line.at(number).stage for number in (1, 2, 3)] == [Stage.RETIRED, Stage.LIVE, Stage.ROLLED_BACK]
    assert last(line)["reasons"] == [{"code": "rollback_by_hand", "text": "odd answers"}]


def test_a_live_one_goes_back_to_the_last_that_was_good_or_to_whom_is_named(file_store: Store) -> None:
    line = Line(file_store, 4)
    for number in (2, 3, 4):
        line.go(number, Stage.LIVE)
    failing, live = take_back(file_store, None, "bad", line.now)
    assert (failing.id, live.id) == ("sprout@4", "sprout@3")
    failing, live = take_back(file_store, "sprout@1", "bad too", line.now)
    assert (failing.id, live.id) == ("sprout@3", "sprout@1")
    failing, live = take_back(file_store, None, "bad again", line.now)
    assert (failing.id, live.id) == ("sprout@1", "sprout@2")  # never to one that was taken back
    with pytest.raises(
        BadInput, match="release sprout@2: no other version of it is known to be good; 'holdfast release rollback"
    ):
        take_back(file_store, None, "all bad", line.now)
    with pytest.raises(BadInput, match="cannot be rolled back to itself"):
        take_back(file_store, "sprout@2", "all bad", line.now)
    assert line.live == 2


def test_a_slip_of_the_hand_is_undone(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.LIVE)
    take_back(file_store, None, "a slip", line.now)
    with pytest.raises(
        BadInput, match="'holdfast release rollback sprout --to sprout@2' undoes the rollback of sprout@2"
    ):
        take_back(file_store, None, "a second slip", line.now)
    gone, live = take_back(file_store, "spr@2", "undo", line.now)
    assert (gone.id, gone.stage, live.id, live.stage) == ("sprout@1", Stage.RETIRED, "sprout@2", Stage.LIVE)
    gone, live = take_back(file_store, None, "meant", line.now)
    assert (gone.id, live.id) == ("sprout@2", "sprout@1")


async def test_another_try_is_for_what_fell_and_needs_a_proof_of_its_own(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.CANARY)
    with pytest.raises(BadInput, match="release sprout@2: is canary; only what was rolled back or rejected"):
        try_again(file_store, line.at(2), who="ann", why="again", now=line.now)
    line.back(2, 1)
    again = try_again(file_store, line.at(2), who="ann", why="the data was at fault", now=line.now)
    assert (again.stage, again.evidence) == (Stage.CANDIDATE, None)
    assert last(line)["why"] == "the data was at fault"
    assert codes(step(line, 2)) == ["evidence_missing_all"]
    line.go(2, Stage.REJECTED)
    assert try_again(file_store, line.at(2), who="ann", why="again", now=line.now).stage is Stage.CANDIDATE


async def test_a_guard_that_is_undecided_says_what_each_metric_waits_for(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.CANARY)
    told = {reason.text for reason in told_by(step(line, 2))}
    assert "success: nobody has told what came of its answers yet; send feedback to /v1/feedback" in told
    assert {"latency (s): no answers yet", "errors: no answers yet"} <= told
    line.serve(2, [{"latency_s": 0.1}] * 8, 1)
    line.serve(2, [{"latency_s": 0.1, "success": 1.0}] * 8, 2)
    told = {reason.text for reason in told_by(step(line, 2))}
    assert "success: nobody has told what came of the live version's yet; send feedback to /v1/feedback" in told
    assert "latency (s): the first 20 answers of the live version set the scale" in told
    (errors,) = [text for text in told if text.startswith("errors: ")]
    assert errors.startswith("errors: 8 answers so far, about ") and errors.endswith(" more")


def told_by(found: Release | Refusal) -> tuple[Reason, ...]:
    assert isinstance(found, Refusal)
    return found.decision.reasons


def test_a_shadow_is_not_what_is_taken_back(file_store: Store) -> None:
    line = Line(file_store, 3)
    line.go(2, Stage.LIVE)
    line.go(3, Stage.SHADOW)
    assert take_back(file_store, None, "bad", line.now)[0].id == "sprout@2"
    with pytest.raises(BadInput, match="policy other: nothing of it is in service"):
        way_back(file_store, "other", None)
