"""The keeper: what is proved bad goes back, what is proved good goes on, step by step, and the ledger has it all."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput, IllegalMove, StoreCorrupt
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import decode
from holdfast.contracts.release import SHARES, PolicyKind, Release, Stage
from holdfast.operate import canary_controller
from holdfast.operate.canary_controller import (
    Looked,
    Refusal,
    advance,
    check_canary,
    judge,
    run_controller,
    try_again,
    under_way,
    way_back,
)
from holdfast.operate.publication import recompute_decision
from holdfast.operate.service import trial_of
from holdfast.prove.guard import GuardLimits
from holdfast.store.store import Store, open_store
from tests.operate.stage import LONG_AGO, POLICY, Line, over, proposed, take_back

GOOD = {"latency_s": 0.1, "success": 1.0, "reward": 1.0, "safety_cost": 0.0}
LIMITS = GuardLimits()
ENOUGH = 300  # outcomes that prove either, at these limits


def play(line: Line, ours: dict[str, Any], theirs: dict[str, Any] = GOOD, n: int = ENOUGH, number: int = 2) -> None:
    """So many requests of the one that has fewer callers, as many as its share makes of the other, side by side."""
    release, beside = line.at(number), line.beside(number)
    trial = trial_of(release, line.at(beside))
    assert trial is not None
    part = trial.arms[release.id]
    few = n / min(part, 1.0 - part)
    for arm, outcome, share in ((beside, theirs, 1.0 - part), (number, ours, part)):
        count = round(few * share)
        served = [{**outcome, "at": LONG_AGO + few * (place + 0.5) / count} for place in range(count)]
        line.serve(number, served, arm)


def canary(store: Store, stage: Stage = Stage.CANARY, share: int = 5) -> Line:
    """Two versions: the first live, the second beside it."""
    line = Line(store, 2)
    line.go(2, stage, share if stage is Stage.CANARY else None)
    return line


async def seen(line: Line, limits: GuardLimits = LIMITS) -> Looked:
    found = await check_canary(line.store, POLICY, limits, clock=lambda: line.now)
    assert found is not None
    return found


async def test_without_a_version_under_way_there_is_nothing_to_do(file_store: Store) -> None:
    assert await check_canary(file_store, POLICY, LIMITS, clock=lambda: 1.0) is None
    Line(file_store, 2)
    assert await check_canary(file_store, POLICY, LIMITS, clock=lambda: 1.0) is None


async def test_a_good_version_goes_every_step_and_is_live_and_known_to_be_good(file_store: Store) -> None:
    line = canary(file_store, Stage.SHADOW)
    way = []
    while line.at(2).stage is not Stage.LIVE:
        before = line.at(2)
        assert (await seen(line)).response.action == "hold"  # nothing is known yet
        assert line.at(2) == before
        play(line, GOOD)
        looked = await seen(line)
        assert (looked.response.action, looked.release, looked.watch.is_clear) == ("advance", before, True)
        way.append((line.at(2).stage, line.at(2).share))
    assert way == [*((Stage.CANARY, share) for share in SHARES), (Stage.LIVE, 100)]
    assert line.at(2).is_known_good
    assert line.at(1).stage is Stage.RETIRED
    assert all(trial.ended_at is not None for trial in file_store.trials.all())
    moves = [one for one in file_store.releases.history(POLICY) if one.who == canary_controller.WHO]
    assert len(moves) == 5 and all("proved to be within every limit" in one.body["why"] for one in moves)


BAD = [
    ({"success": 0.0}, "canary_breach_success"),
    ({"latency_s": 0.5}, "canary_breach_latency"),
    ({"error": True}, "canary_breach_errors"),
    ({"reward": 0.2}, "canary_breach_reward"),
    ({"safety_cost": 1.0}, "canary_breach_safety"),
]


@pytest.mark.parametrize(("wrong", "code"), BAD, ids=[code for _, code in BAD])
async def test_a_breach_of_any_kind_takes_a_canary_back_to_the_live_one(
    file_store: Store, wrong: dict[str, Any], code: str
) -> None:
    line = canary(file_store)
    play(line, {**GOOD, **wrong})
    looked = await seen(line)
    assert (looked.response.action, [one.code for one in looked.response.reasons]) == ("rollback", [code])
    assert (line.at(2).stage, line.at(2).share, line.at(2).is_known_good) == (Stage.ROLLED_BACK, 0, False)
    assert line.at(1).stage is Stage.LIVE
    entry = file_store.releases.history(POLICY)[-1]
    assert (entry.who, entry.body["roll_back"], entry.body["to"]) == ("keeper", "sprout@2", "sprout@1")
    assert [one["code"] for one in entry.body["reasons"]] == [code]
    assert await check_canary(file_store, POLICY, LIMITS, clock=lambda: line.now) is None


@pytest.mark.parametrize("share", SHARES)
async def test_a_breach_takes_it_back_at_every_step(file_store: Store, share: int) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, share)
    play(line, {**GOOD, "success": 0.2})
    assert (await seen(line)).response.action == "rollback"
    assert [line.at(number).stage for number in (1, 2)] == [Stage.LIVE, Stage.ROLLED_BACK]


async def test_a_shadow_in_breach_is_refused_and_never_answered_anybody(file_store: Store) -> None:
    line = canary(file_store, Stage.SHADOW)
    told = {"latency_s": 0.1}
    play(line, {"latency_s": 0.1, "error": True}, told)
    looked = await seen(line)
    assert [one.code for one in looked.response.reasons] == ["canary_breach_errors"]
    assert [line.at(number).stage for number in (1, 2)] == [Stage.LIVE, Stage.REJECTED]


async def test_of_what_nobody_tells_a_shadow_is_clear_and_a_canary_stays_where_it_is(file_store: Store) -> None:
    line = canary(file_store, Stage.SHADOW)
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1})
    looked = await seen(line)
    assert sorted(looked.watch.readings) == ["errors", "latency"]
    assert (line.at(2).stage, line.at(2).share) == (Stage.CANARY, 5)
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1})
    looked = await seen(line)
    assert (looked.response.action, looked.response.reasons[0].code) == ("hold", "guard_undecided")
    assert line.at(2).share == 5


@pytest.mark.parametrize(("change", "ours", "action"), [(-0.5, 1.0, "advance"), (0.5, 0.8, "rollback")])
async def test_at_100_percent_it_is_compared_with_callers_of_the_same_hour(
    file_store: Store, change: float, ours: float, action: str
) -> None:
    """Hours that get harder take no good version back, and hours that get easier hide no bad one."""
    line = canary(file_store, share=100)
    rng, n = np.random.default_rng(1), 6000
    for arm, part, factor in ((1, 0.05, 1.0), (2, 0.95, ours)):
        at = np.sort(rng.random(round(n * part)))
        rates = factor * (0.7 + change * (at - 0.5))
        told = [{**GOOD, "reward": None, "success": float(rng.random() < rate)} for rate in rates]
        line.serve(2, [{**one, "at": LONG_AGO + 1e4 * when} for one, when in zip(told, at, strict=True)], arm)
    looked = await seen(line, GuardLimits(reward=None, latency=None, errors=None, safety=None))
    assert looked.response.action == action


async def test_callers_that_were_not_divided_as_meant_clear_nothing(file_store: Store) -> None:
    line = canary(file_store, share=50)
    line.serve(2, [GOOD] * 400, 1)
    line.serve(2, [GOOD] * 250, 2, start=0.5)
    looked = await seen(line)
    assert {one.state for one in looked.watch.readings.values()} == {"clear"} and not looked.watch.is_clear
    assert looked.response.action == "hold" and line.at(2).share == 50
    assert any("the callers were not divided as meant: sprout@1 400" in one.text for one in looked.response.reasons)


async def test_a_live_version_that_decays_is_taken_back_to_the_version_before(file_store: Store) -> None:
    line = canary(file_store, share=100)
    line.go(2, Stage.LIVE)
    play(line, GOOD)
    looked = await seen(line)
    assert (looked.release.id, looked.response.action) == ("sprout@2", "hold") and looked.watch.is_clear
    play(line, {**GOOD, "success": 0.5})
    looked = await seen(line)
    assert [one.code for one in looked.response.reasons] == ["canary_breach_success"]
    assert [line.at(number).stage for number in (1, 2)] == [Stage.LIVE, Stage.ROLLED_BACK]
    assert await check_canary(file_store, POLICY, LIMITS, clock=lambda: 1.0) is None  # nothing is held back of it
    file_store.ledger.verify()


async def test_each_epoch_of_a_live_version_has_its_part_of_alpha(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_controller, "EPOCH", 1000)
    line = canary(file_store, share=100)
    line.go(2, Stage.LIVE)
    for _ in range(3):
        play(line, GOOD, n=250)  # an epoch
    play(line, {**GOOD, "error": True}, n=3)
    found = judge(file_store, line.at(2), line.at(1), LIMITS, 1.0)
    assert found.readings["errors"].n == 9  # those of the epoch alone
    assert "needed 2e+03" in found.breaches[0].text  # 5 metrics / (0.05 / (4 · 5))


async def test_only_the_current_step_and_try_count(file_store: Store) -> None:
    line = canary(file_store)
    play(line, {**GOOD, "success": 0.0})
    line.back(2, 1)
    line.go(2, Stage.CANDIDATE)
    line.go(2, Stage.CANARY, 5)
    assert (await seen(line)).response.action == "hold"


async def test_of_a_shadow_and_a_canary_the_canary_is_watched(file_store: Store) -> None:
    line = Line(file_store, 3)
    line.go(3, Stage.SHADOW)
    line.go(2, Stage.CANARY, 5)
    found = under_way(file_store.releases.of_policy(POLICY))
    assert found is not None and found.id == "sprout@2"
    assert under_way([line.at(1)]) is None


@pytest.mark.parametrize("what", ["taken back", "live", "another live", "share"])
@pytest.mark.parametrize("ours", [GOOD, {**GOOD, "success": 0.0}], ids=["clear", "breach"])
async def test_a_person_who_is_faster_wins_and_nothing_breaks(
    file_store: Store, monkeypatch: pytest.MonkeyPatch, what: str, ours: dict[str, Any]
) -> None:
    line = Line(file_store, 3)
    line.go(2, Stage.CANARY, 5)
    play(line, ours)

    def meanwhile(*given: Any) -> Any:
        found = judge(*given)
        if what == "taken back":
            line.back(2, 1)
        elif what == "live":
            line.go(2, Stage.LIVE)
        elif what == "another live":
            line.go(3, Stage.LIVE)
        else:
            line.go(2, Stage.CANARY, 25)
        return found

    monkeypatch.setattr(canary_controller, "judge", meanwhile)
    looked = await seen(line)
    stages = [line.at(number).stage for number in (1, 2, 3)]
    if what == "taken back":
        assert looked.response.action == "hold" and stages[:2] == [Stage.LIVE, Stage.ROLLED_BACK]
    elif what == "another live":
        assert stages[2] is Stage.LIVE
        assert looked.response.action == ("advance" if ours is GOOD else "hold")
    elif what == "live":  # it is clear, and live it is; or it is in breach, and goes back to who was live
        wanted = [Stage.RETIRED, Stage.LIVE] if ours is GOOD else [Stage.LIVE, Stage.ROLLED_BACK]
        assert stages[:2] == wanted
    else:
        assert stages[1] is (Stage.CANARY if ours is GOOD else Stage.ROLLED_BACK)


async def test_two_keepers_at_once_do_what_one_does(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, SHARES[0])
    with open_store(file_store.url, poll_s=0.01) as other:
        for share in SHARES:
            assert line.at(2).share == share
            play(line, GOOD)
            answers = await asyncio.gather(
                *(check_canary(one, POLICY, LIMITS, clock=lambda: 50.0) for one in (file_store, other, file_store))
            )
            assert sorted(one.response.action for one in answers if one is not None) == ["advance", "hold", "hold"]
        assert line.at(2).stage is Stage.LIVE
        assert len([one for one in file_store.releases.history(POLICY) if one.who == canary_controller.WHO]) == 4
        line.add()
        line.go(3, Stage.CANARY, 25)
        play(line, {**GOOD, "success": 0.0}, number=3)
        await asyncio.gather(*(check_canary(one, POLICY, LIMITS, clock=lambda: 60.0) for one in (file_store, other)))
    assert [line.at(number).stage for number in (2, 3)] == [Stage.LIVE, Stage.ROLLED_BACK]
    assert sum("roll_back" in one.body for one in file_store.releases.history(POLICY)) == 1
    file_store.ledger.verify()


async def test_a_keeper_that_is_stopped_goes_on_where_it_was(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_controller, "LOOK_S", 0.01)
    line, said = Line(file_store, 2), list[Looked]()

    async def keeping(until: Any) -> None:
        task = asyncio.create_task(
            run_controller(file_store, POLICY, LIMITS, clock=lambda: line.now * 1e-6, observe=said.append)
        )
        async with asyncio.timeout(60):
            while not until():
                assert not task.done()
                await asyncio.sleep(0.005)
        await over(task)

    await keeping(lambda: True)  # nothing under way: it waits, and can be ended
    line.go(2, Stage.CANARY, 5)
    play(line, GOOD)
    await keeping(lambda: line.at(2).share == 25)
    play(line, GOOD, n=ENOUGH // 2)  # half of it before the stop …
    await keeping(lambda: bool(said))
    play(line, GOOD, n=ENOUGH // 2)  # … the other half after it
    await keeping(lambda: line.at(2).share == 50)
    assert said[-1].release.id == "sprout@2"


async def test_a_clock_that_is_set_while_it_looks_does_not_send_it_to_sleep(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_controller, "LOOK_S", 0.01)
    line, said, hours = Line(file_store, 2), list[Looked](), itertools.count()
    line.go(2, Stage.CANARY, 5)
    clock: Any = lambda: line.now * 1e-6 + 3600.0 * next(hours)  # noqa: E731  an hour later each time it is asked
    task = asyncio.create_task(run_controller(file_store, POLICY, LIMITS, clock=clock, observe=said.append))
    async with asyncio.timeout(60):
        while len(said) < 3:
            assert not task.done()
            await asyncio.sleep(0.005)
    await over(task)


async def test_it_wakes_up_when_a_version_sets_out(file_store: Store) -> None:
    line, said = Line(file_store, 2), asyncio.Event()
    task = asyncio.create_task(
        run_controller(file_store, POLICY, LIMITS, clock=lambda: 1.0, observe=lambda looked: said.set())
    )
    await asyncio.sleep(0.05)
    assert not said.is_set()
    line.go(2, Stage.CANARY, 5)
    async with asyncio.timeout(60):
        await said.wait()
    await over(task)


def step(line: Line, number: int, to: Stage | None = None, share: int | None = None) -> Release | Refusal:
    return advance(line.store, line.at(number), to=to, share=share, who="ann", why="it is time", now=line.now)


def codes(found: Release | Refusal) -> list[str]:
    assert isinstance(found, Refusal) and not found.decision.open
    return [reason.code for reason in found.decision.reasons]


def last(line: Line) -> dict[str, Any]:
    return dict(line.store.releases.history(POLICY)[-1].body)


def test_the_first_version_is_live_without_a_proof(file_store: Store) -> None:
    how: dict[str, Any] = {"kind": PolicyKind.WEIGHTS, "source": "shelf:1", "who": "ann", "now": 1.0}
    first = file_store.releases.add(policy=POLICY, **how).result()
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


async def test_what_a_gate_let_in_goes_on_when_its_guard_is_clear_and_not_before(file_store: Store) -> None:
    line = Line(file_store, 2)
    found = await proposed(file_store, to=Stage.SHADOW)
    assert found["decision"]["open"] and line.at(2).stage is Stage.SHADOW
    changed = line.at(2).changed_at
    for _ in range(2):  # asking twice is no other answer
        assert set(codes(step(line, 2))) == {"guard_undecided"}
    assert last(line)["refuse"] == "sprout@2"
    assert line.at(2).changed_at == changed  # the comparison that it is in goes on
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1}, n=ENOUGH)
    moved = step(line, 2)
    assert isinstance(moved, Release) and (moved.stage, moved.share) == (Stage.CANARY, 5)
    assert set(codes(step(line, 2))) == {"guard_undecided"}
    play(line, GOOD)
    moved = step(line, 2, share=40)
    assert isinstance(moved, Release) and (moved.stage, moved.share) == (Stage.CANARY, 40)
    play(line, GOOD)
    moved = step(line, 2, to=Stage.LIVE)
    assert isinstance(moved, Release) and (moved.stage, moved.is_known_good) == (Stage.LIVE, True)
    assert last(line)["retired"] == "sprout@1" and last(line)["decision"]["open"]
    file_store.ledger.verify()


async def test_a_shadow_that_no_request_has_reached_goes_live_on_its_proof_as_a_candidate_does(
    file_store: Store,
) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.SHADOW)
    assert set(codes(step(line, 2, to=Stage.CANARY))) == {"guard_undecided"}
    moved = step(line, 2, to=Stage.LIVE)
    assert isinstance(moved, Release) and moved.stage is Stage.LIVE


async def test_a_shadow_that_has_answers_waits_for_its_guard_also_on_the_way_to_live(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.SHADOW)
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1}, n=2)
    assert set(codes(step(line, 2, to=Stage.LIVE))) == {"guard_undecided"}


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


async def test_a_canary_in_breach_or_past_the_gate_goes_nowhere_by_hand(file_store: Store) -> None:
    line = Line(file_store, 3)
    assert (await proposed(file_store, to=Stage.CANARY))["decision"]["open"]
    play(line, {**GOOD, "success": 0.0})
    assert codes(step(line, 2)) == ["canary_breach_success"] and line.at(2).stage is Stage.CANARY
    line.back(2, 1)
    line.go(3, Stage.CANARY, 5)
    play(line, GOOD, number=3)
    assert codes(step(line, 3)) == ["evidence_missing_all"]


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


def test_where_no_step_is_ahead_and_what_is_no_step_is_said(file_store: Store) -> None:
    line = canary(file_store)
    with pytest.raises(IllegalMove, match="cannot go from canary to shadow"):
        step(line, 2, to=Stage.SHADOW)
    line.go(2, Stage.LIVE)
    line.add()
    line.go(3, Stage.REJECTED)
    for number, end in ((2, "live"), (3, "rejected")):
        with pytest.raises(BadInput, match=f"release sprout@{number}: is {end}: there is no step ahead"):
            step(line, number)


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
    with pytest.raises(BadInput, match="no other version of it is known to be good; 'holdfast release rollback"):
        take_back(file_store, None, "all bad", line.now)
    with pytest.raises(BadInput, match="cannot be rolled back to itself"):
        take_back(file_store, "sprout@2", "all bad", line.now)
    assert line.live == 2


def test_a_slip_of_the_hand_is_undone(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.LIVE)
    take_back(file_store, None, "a slip", line.now)
    with pytest.raises(BadInput, match="rollback sprout --to sprout@2' undoes the rollback of sprout@2"):
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
    line.go(3, Stage.SHADOW)
    line.go(2, Stage.LIVE)
    assert take_back(file_store, None, "bad", line.now)[0].id == "sprout@2"
    with pytest.raises(BadInput, match="policy other: nothing of it is in service"):
        way_back(file_store, "other", None)
