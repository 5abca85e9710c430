"""The keeper: what is proved bad goes back, what is proved good goes on, step by step, and the ledger has it all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast.contracts.release import SHARES, Stage
from holdfast.operate import canary_controller
from holdfast.operate.canary_controller import Looked, judge, keep, look, under_way
from holdfast.prove.guard import GuardLimits
from holdfast.store.store import Store, open_store
from tests.operate.stage import POLICY, Line

GOOD = {"latency_s": 0.1, "success": 1.0, "reward": 1.0, "safety_cost": 0.0}
LIMITS = GuardLimits()
ENOUGH = 300  # outcomes that prove either, at these limits


def play(line: Line, ours: dict[str, Any], theirs: dict[str, Any] = GOOD, n: int = ENOUGH, number: int = 2) -> None:
    """Requests of both in turn; where the canary has them all, only its own."""
    release = line.at(number)
    if not (release.stage is Stage.CANARY and release.share == 100):
        line.serve(number, [theirs] * n, line.live)
    line.serve(number, [ours] * n, number, start=0.5)


async def seen(line: Line, limits: GuardLimits = LIMITS) -> Looked:
    found = await look(line.store, POLICY, limits, clock=lambda: line.now)
    assert found is not None
    return found


async def test_without_a_version_under_way_there_is_nothing_to_do(file_store: Store) -> None:
    assert await look(file_store, POLICY, LIMITS, clock=lambda: 1.0) is None
    Line(file_store, 2)
    assert await look(file_store, POLICY, LIMITS, clock=lambda: 1.0) is None


async def test_a_good_version_goes_every_step_and_is_live_and_known_to_be_good(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.SHADOW)
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
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 5)
    play(line, {**GOOD, **wrong})
    looked = await seen(line)
    assert (looked.response.action, [one.code for one in looked.response.reasons]) == ("rollback", [code])
    assert (line.at(2).stage, line.at(2).share, line.at(2).is_known_good) == (Stage.ROLLED_BACK, 0, False)
    assert line.at(1).stage is Stage.LIVE
    entry = file_store.releases.history(POLICY)[-1]
    assert (entry.who, entry.body["roll_back"], entry.body["to"]) == ("keeper", "sprout@2", "sprout@1")
    assert [one["code"] for one in entry.body["reasons"]] == [code]
    assert await look(file_store, POLICY, LIMITS, clock=lambda: line.now) is None


@pytest.mark.parametrize("share", SHARES)
async def test_a_breach_takes_it_back_at_every_step(file_store: Store, share: int) -> None:
    line = Line(file_store, 2)
    if share == 100:  # what the live one did is known from the step before
        line.go(2, Stage.CANARY, 50)
        play(line, GOOD)
    line.go(2, Stage.CANARY, share)
    play(line, {**GOOD, "success": 0.2})
    assert (await seen(line)).response.action == "rollback"
    assert [line.at(number).stage for number in (1, 2)] == [Stage.LIVE, Stage.ROLLED_BACK]


async def test_a_shadow_in_breach_is_refused_and_never_answered_anybody(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.SHADOW)
    told = {"latency_s": 0.1}
    play(line, {"latency_s": 0.1, "error": True}, told)
    looked = await seen(line)
    assert [one.code for one in looked.response.reasons] == ["canary_breach_errors"]
    assert [line.at(number).stage for number in (1, 2)] == [Stage.LIVE, Stage.REJECTED]


async def test_a_shadow_is_clear_without_what_nobody_can_tell_of_it(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.SHADOW)
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1})
    looked = await seen(line)
    assert sorted(looked.watch.readings) == ["errors", "latency"]
    assert (line.at(2).stage, line.at(2).share) == (Stage.CANARY, 5)


async def test_a_canary_of_which_nobody_tells_stays_where_it_is(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 5)
    play(line, {"latency_s": 0.1}, {"latency_s": 0.1})
    looked = await seen(line)
    assert (looked.response.action, looked.response.reasons[0].code) == ("hold", "guard_undecided")
    assert line.at(2).share == 5


async def test_with_all_the_requests_it_is_measured_with_what_live_did_at_every_step_before(file_store: Store) -> None:
    """Few live requests are left at 50 %: those of the earlier steps count too, or it would wait for ever."""
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 5)
    play(line, GOOD, n=ENOUGH)
    line.go(2, Stage.CANARY, 50)
    play(line, GOOD, n=25)
    line.go(2, Stage.CANARY, 100)
    play(line, GOOD, n=ENOUGH)
    found = judge(file_store, line.at(2), line.at(1), LIMITS)
    assert found.is_clear and found.readings["success"].n >= 300
    assert (await seen(line)).response.action == "advance"
    assert line.at(2).stage is Stage.LIVE


async def test_one_that_was_given_all_requests_at_once_is_never_clear_but_its_errors_are_seen(
    file_store: Store,
) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 100)
    play(line, GOOD)
    assert (await seen(line)).response.action == "hold"
    play(line, {**GOOD, "error": True})
    assert (await seen(line)).response.action == "rollback"
    assert line.at(1).stage is Stage.LIVE


async def test_only_the_current_step_and_try_count(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 5)
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
                *(look(one, POLICY, LIMITS, clock=lambda: 50.0) for one in (file_store, other, file_store))
            )
            assert sorted(one.response.action for one in answers if one is not None) == ["advance", "hold", "hold"]
    assert line.at(2).stage is Stage.LIVE
    assert len([one for one in file_store.releases.history(POLICY) if one.who == canary_controller.WHO]) == 4
    file_store.ledger.verify()


async def test_two_keepers_take_one_back_once(file_store: Store) -> None:
    line = Line(file_store, 2)
    line.go(2, Stage.CANARY, 25)
    play(line, {**GOOD, "success": 0.0})
    with open_store(file_store.url, poll_s=0.01) as other:
        await asyncio.gather(*(look(one, POLICY, LIMITS, clock=lambda: 50.0) for one in (file_store, other)))
    assert [line.at(number).stage for number in (1, 2)] == [Stage.LIVE, Stage.ROLLED_BACK]
    assert sum("roll_back" in one.body for one in file_store.releases.history(POLICY)) == 1


async def test_a_keeper_that_is_stopped_goes_on_where_it_was(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_controller, "LOOK_S", 0.01)
    line, said = Line(file_store, 2), list[Looked]()

    async def keeping(until: Any) -> None:
        task = asyncio.create_task(keep(file_store, POLICY, LIMITS, clock=lambda: line.now * 1e-6, observe=said.append))
        async with asyncio.timeout(60):
            while not until():
                assert not task.done()
                await asyncio.sleep(0.005)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    await keeping(lambda: True)  # nothing under way: it waits, and can be ended
    line.go(2, Stage.CANARY, 5)
    play(line, GOOD)
    await keeping(lambda: line.at(2).share == 25)
    play(line, GOOD, n=ENOUGH // 2)  # half of it before the stop …
    await keeping(lambda: bool(said))
    play(line, GOOD, n=ENOUGH // 2)  # … the other half after it
    await keeping(lambda: line.at(2).share == 50)
    assert said[-1].release.id == "sprout@2"


async def test_it_wakes_up_when_a_version_sets_out(file_store: Store) -> None:
    line, said = Line(file_store, 2), asyncio.Event()
    task = asyncio.create_task(keep(file_store, POLICY, LIMITS, clock=lambda: 1.0, observe=lambda looked: said.set()))
    await asyncio.sleep(0.05)
    assert not said.is_set()
    line.go(2, Stage.CANARY, 5)
    async with asyncio.timeout(60):
        await said.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
