"""A service under change: requests end on the version they began with, and what fails is taken over by the live one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import torch

from holdfast.collect import endpoint
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Fault, NotFound, StoreFull
from holdfast.contracts.release import ServedRequest, Stage
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import ModelCall
from holdfast.learn.batch import SampleFilter
from holdfast.learn.turns import PpoSettings, RlSettings, optimize_turns
from holdfast.operate import service as service_module
from holdfast.operate.canary_controller import check_canary, run_controller
from holdfast.operate.learning_views import record
from holdfast.operate.service import KIND, Capture, Service, settled, trial_of
from holdfast.policies.engine import Local
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.privacy.scrub import Scrub
from holdfast.prove.estimate import wilson
from holdfast.prove.guard import GuardLimits
from holdfast.reward.tools import adoption_rates
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.operate.stage import HELLO, POLICY, REQUEST, House, Line, call, keys, over, take_back

BROKEN = Fault("model", why="its weights are broken")
BOTH = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


async def opened(line: Line, house: House) -> Service:
    service = house.service()
    await service.refresh()
    return service


async def compared(
    store: Store, *, stage: Stage = Stage.CANARY, share: int = 50, versions: int = 2
) -> tuple[Line, House, Service]:
    """A service of a line whose second version is beside the live one."""
    line, house = Line(store, versions), House(store)
    line.go(2, stage, share if stage is Stage.CANARY else None)
    return line, house, await opened(line, house)


async def served(service: Service, line: Line, number: int) -> list[ServedRequest]:
    await service.flush()
    return line.store.trials.served(line.trial(number))


async def test_without_a_live_version_nothing_is_served(file_store: Store) -> None:
    service = House(file_store).service()
    await service.refresh()
    with pytest.raises(NotFound, match="policy sprout: it has no live version"):
        service.choose_version("ann")


@BOTH
async def test_the_live_version_answers_and_nothing_is_noted_while_nothing_is_compared(
    file_store: Store, is_streamed: bool
) -> None:
    line, house = Line(file_store), House(file_store)
    service = await opened(line, house)
    assert await house.ask(service, "ann", is_streamed=is_streamed) == "sprout@1"
    await service.flush()
    assert file_store.trials.all() == []
    assert house.heard == [("r1-ann", "sprout@1")]


@BOTH
async def test_a_canary_answers_its_callers_and_each_answer_is_noted_with_what_it_took(
    file_store: Store, is_streamed: bool
) -> None:
    line, house, service = await compared(file_store, share=25)
    (ours,), (theirs,) = keys(service, 2), keys(service, 1)
    house.voice(2).may.clear()
    asking = asyncio.create_task(house.ask(service, ours, is_streamed=is_streamed))
    await until(lambda: house.voice(2).under_way)
    house.time += 0.5
    house.voice(2).may.set()
    assert await asking == "sprout@2"
    assert await house.ask(service, theirs, is_streamed=is_streamed) == "sprout@1"
    assert await served(service, line, 2) == [
        ServedRequest(id=name, trial=line.trial(2), arm=arm, unit=unit, at=100.5, latency_s=took, tokens=3)
        for name, arm, unit, took in ((f"r1-{ours}", "sprout@2", ours, 0.5), (f"r2-{theirs}", "sprout@1", theirs, 0.0))
    ]
    trial = file_store.trials.get(line.trial(2))
    assert trial.arms == {"sprout@1": 0.75, "sprout@2": 0.25} and trial.kind == "canary"


async def test_a_caller_keeps_its_version_while_the_share_grows(file_store: Store) -> None:
    line, house, service = await compared(file_store, share=5)
    among = set(keys(service, 2, 5))
    for share in (25, 50, 100):
        line.go(2, Stage.CANARY, share)
        await service.refresh()
        assert {await house.ask(service, key) for key in among} == {"sprout@2"}
    assert len(house.voices["sprout@2"]) == 1  # loaded once
    line.go(2, Stage.LIVE)
    await service.refresh()
    assert len(house.voices["sprout@2"]) == 1 and service.routing.live == "sprout@2"


async def test_swaps_under_load_interrupt_nobody_and_who_left_is_closed_once_after_its_last_request(
    file_store: Store,
) -> None:
    """Callers ask without a pause, whole and streamed, while versions come, go live and are taken back."""
    line, house = Line(file_store, 8), House(file_store)
    service = await opened(line, house)
    stop, answers = asyncio.Event(), list[tuple[str, str]]()

    async def caller(number: int) -> None:
        turn = 0
        while not stop.is_set():
            chosen = service.choose_version(f"{number}-{turn}")
            begun_on = chosen.version.release
            REQUEST.set(f"{number}-{turn}")
            await asyncio.sleep(0.001 * (number % 3))  # between being chosen and being asked
            gone = chosen.version.is_closed
            pieces = [piece async for piece in chosen.stream(HELLO)] if number % 2 else [await chosen(HELLO)]
            answered_by = pieces[-1].response["content"]
            assert gone or answered_by == begun_on
            answers.append((begun_on, answered_by))
            turn += 1

    running = asyncio.create_task(service.run())
    callers = [asyncio.create_task(caller(number)) for number in range(12)]
    for number in range(2, 8):
        line.go(number, Stage.CANARY, 50)
        await follows(service, line, number, answers)
        if number % 3:
            line.go(number, Stage.LIVE)
        else:
            line.back(number, line.live)
        await follows(service, line, None, answers)
    stop.set()
    await asyncio.gather(*callers)  # nobody failed
    await over(running)
    seats = service.table.loaded
    assert set(seats) == {"sprout@7", "sprout@5"}  # the one before stays warm
    for name, voices in house.voices.items():
        for voice in voices:
            assert voice.closed == (0 if name in seats else 1), name
            assert (voice.asked_when_closed, voice.closed_when_busy) == (0, 0)
    assert {name for name, _ in answers} >= {"sprout@1", "sprout@2", "sprout@3", "sprout@7"}
    await service.close()
    await service.close()
    assert [voice.closed for voices in house.voices.values() for voice in voices] == [1] * len(house.voices)


async def follows(service: Service, line: Line, canary: int | None, answers: list[tuple[str, str]]) -> None:
    """The service has seen the last move, and has answered with it."""
    wanted = (f"sprout@{line.live}", None if canary is None else f"sprout@{canary}")
    await until(lambda: (service.routing.live, service.routing.canary) == wanted)
    before = len(answers)
    await until(lambda: {name for name, _ in answers[before:]} >= set(wanted) - {None})


async def until(holds: Any, patience_s: float = 60.0) -> None:
    async with asyncio.timeout(patience_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@BOTH
async def test_a_long_request_ends_on_its_version_and_only_then_is_that_closed(
    file_store: Store, is_streamed: bool
) -> None:
    line, house = Line(file_store, 3), House(file_store)
    service = await opened(line, house)
    house.voice(1).may.clear()
    asking = [asyncio.create_task(house.ask(service, name, is_streamed=is_streamed)) for name in ("ann", "bob")]
    await until(lambda: house.voice(1).under_way == 2)
    for number in (2, 3):
        line.go(number, Stage.LIVE)
        await service.refresh()
    assert set(service.table.loaded) == {"sprout@2", "sprout@3"}
    first = house.voice(1)
    assert (first.under_way, first.closed) == (2, 0)
    first.may.set()
    assert await asyncio.gather(*asking) == ["sprout@1", "sprout@1"]
    assert (first.closed, first.closed_when_busy) == (1, 0)
    assert house.voice(2).closed == 0


async def test_a_caller_that_leaves_lets_its_version_go(file_store: Store) -> None:
    line, house, service = await compared(file_store)
    house.voice(2).may.clear()
    asking = asyncio.create_task(house.ask(service, keys(service, 2)[0], is_streamed=True))
    await until(lambda: house.voice(2).under_way)
    line.back(2, 1)
    await service.refresh()
    assert house.voice(2).closed == 0
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (house.voice(2).closed, house.voice(2).closed_when_busy) == (1, 0)


@BOTH
@pytest.mark.parametrize("number", [1, 2], ids=["live", "canary"])
async def test_a_caller_that_gives_up_waiting_is_a_failure_after_the_time_it_waited(
    file_store: Store, number: int, is_streamed: bool
) -> None:
    line, house, service = await compared(file_store)
    (key,) = keys(service, number)
    house.voice(number).may.clear()
    asking = asyncio.create_task(house.ask(service, key, is_streamed=is_streamed))
    await until(lambda: house.voice(number).under_way)
    house.time += 7.0
    await over(asking)
    (noted,) = await served(service, line, 2)
    assert (noted.id, noted.arm, noted.unit) == (f"r1-{key}~failed", f"sprout@{number}", key)
    assert (noted.error, noted.success, noted.latency_s) == (True, 0.0, 7.0)


async def test_a_caller_that_leaves_in_the_middle_of_a_stream_is_no_success_and_no_error(file_store: Store) -> None:
    """It may have read enough, or the version may have stopped in the middle: the latency tells them apart."""
    line, house, service = await compared(file_store)
    (key,) = keys(service, 2)
    REQUEST.set("r")
    stream = service.choose_version(key).stream(HELLO)
    await anext(stream)
    house.time += 3.0
    await stream.aclose()
    (noted,) = await served(service, line, 2)
    assert (noted.id, noted.error, noted.success, noted.latency_s) == ("r~failed", False, 0.0, 3.0)


async def asked_over_http(port: int, house: House, key: str, hangs: bool, number: int) -> None:
    """A caller that leaves without an answer where its version hangs."""
    body = json.dumps({"model": POLICY, "user": key, "messages": HELLO, "max_tokens": 4}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    house.voice(number).may.clear() if hangs else house.voice(number).may.set()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    if hangs:
        await until(lambda: house.voice(number).under_way)
        house.time += 30.0
    else:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await until(lambda: not house.voice(number).under_way)


async def test_a_canary_that_hangs_for_one_caller_in_five_is_taken_back(file_store: Store) -> None:
    """Through the real server: callers that leave are all that is ever seen of it."""
    line, house, service = await compared(file_store)
    service.request_id = endpoint.REQUEST.get
    with endpoint.listen("127.0.0.1", 0, token=None) as listening:
        application = endpoint.app(
            service.choose_version(""), name=POLICY, choose_version=service.choose_version, token=None, feedback=None
        )
        server = endpoint.server(application)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port, counts = listening.getsockname()[1], {1: 0, 2: 0}
        for key in map(str, range(120)):
            number = 1 + (service.choose_version(key).version.release == "sprout@2")
            counts[number] += 1
            await asked_over_http(port, house, key, number == 2 and counts[2] % 5 == 0, number)
        server.should_exit = True
        await serving
    await service.flush()
    noted = [one for one in settled(file_store.trials.served(line.trial(2))) if one.arm == "sprout@2"]
    assert len(noted) == counts[2] and sum(one.error for one in noted) == counts[2] // 5
    assert {one.latency_s for one in noted if one.error} == {30.0}
    looked = await check_canary(file_store, POLICY, GuardLimits(), clock=lambda: house.time)
    assert looked is not None and looked.response.action == "rollback"
    assert "canary_breach_errors" in {reason.code for reason in looked.response.reasons}


async def test_a_call_that_is_cut_off_because_the_service_ends_says_nothing(file_store: Store) -> None:
    line, house, service = await compared(file_store)
    (key,) = keys(service, 2)
    house.voice(2).may.clear()
    asking = asyncio.create_task(house.ask(service, key))
    await until(lambda: house.voice(2).under_way)
    service.is_ending = lambda: True
    await over(asking)
    assert await served(service, line, 2) == []


@BOTH
async def test_a_call_that_hangs_is_seen_before_it_ends_and_then_has_its_own_outcome(
    file_store: Store, is_streamed: bool
) -> None:
    line, house, service = await compared(file_store)
    (key,) = keys(service, 2)
    house.voice(2).may.clear()
    asking = asyncio.create_task(house.ask(service, key, is_streamed=is_streamed))
    await until(lambda: house.voice(2).under_way)
    seen = []
    for _ in range(5):
        house.time += 6.0
        seen.append([(one.arm, one.latency_s, one.error) for one in settled(await served(service, line, 2))])
    waiting = [[("sprout@2", waited, False)] for waited in (12.0, 12.0, 24.0, 24.0)]
    assert seen == [[], *waiting]
    house.voice(2).may.set()
    await asking
    (noted,) = settled(await served(service, line, 2))  # in the place of the one that was waiting
    assert (noted.id, noted.latency_s, noted.at, noted.tokens, noted.error) == (f"r1-{key}", 30.0, 130.0, 3, False)
    assert await service.feedback(noted.id, {"success": 1.0})


async def test_callers_without_a_key_are_answered_by_live_and_not_compared(file_store: Store) -> None:
    line, house, service = await compared(file_store)
    assert await house.ask(service, "  ") == "sprout@1"
    assert await served(service, line, 2) == []
    line.back(2, 1)
    line.go(2, Stage.CANDIDATE)
    line.go(2, Stage.SHADOW)
    await service.refresh()
    await house.ask(service, "")  # a shadow answers whatever the live one does
    await until(lambda: not service._shadows)
    assert len(await served(service, line, 2)) == 2


async def test_a_few_callers_stay_with_the_version_before_and_both_are_counted(file_store: Store) -> None:
    line, house, service = await compared(file_store, share=100)
    held = keys(service, 1, 3)  # at 100 %
    line.go(2, Stage.LIVE)
    await service.refresh()
    assert (service.routing.live, service.routing.holdback) == ("sprout@2", "sprout@1")
    assert {await house.ask(service, key) for key in held} == {"sprout@1"}
    for number in range(100):
        await house.ask(service, str(number))
    await service.flush()
    trial = file_store.trials.get(str(service.table.experiment))
    assert (trial.kind, trial.arms) == ("live", {"sprout@1": 0.25, "sprout@2": 0.75})
    counted = file_store.trials.served(trial.name)
    assert {one.arm for one in counted} == {"sprout@1", "sprout@2"} and len(counted) < 50
    without = Service(file_store, POLICY, house.load, REQUEST.get, lambda: house.time, keeps_holdback=False)
    await without.refresh()
    assert without.routing.holdback is None and without.table.experiment is None


@BOTH
async def test_a_request_whose_version_left_before_it_began_is_answered_by_who_is_there(
    file_store: Store, is_streamed: bool
) -> None:
    line, house, service = await compared(file_store)
    key = keys(service, 2)[0]
    REQUEST.set("r")
    chosen = service.choose_version(key)
    line.back(2, 1)
    await service.refresh()
    assert house.voice(2).closed == 1
    answer = [piece async for piece in chosen.stream(HELLO)][-1] if is_streamed else await chosen(HELLO)
    assert answer.response["content"] == "sprout@1"
    assert (house.voice(2).asked, house.voice(2).closed) == (0, 1)


@BOTH
@pytest.mark.parametrize("error", [BROKEN, RuntimeError("a bug")], ids=["fault", "bug"])
async def test_where_a_canary_fails_before_its_first_piece_the_live_one_answers(
    file_store: Store, is_streamed: bool, error: Exception
) -> None:
    line, house, service = await compared(file_store)
    house.voice(2).fails = error
    (key,) = keys(service, 2)
    assert await house.ask(service, key, is_streamed=is_streamed) == "sprout@1"
    (noted,) = await served(service, line, 2)  # the failure is the canary's, and the answer nobody's
    assert (noted.id, noted.arm, noted.error, noted.success) == (f"r1-{key}~failed", "sprout@2", True, 0.0)
    assert house.heard == [(f"r1-{key}", "sprout@1")]


async def test_once_the_first_piece_is_out_a_stream_that_breaks_is_broken_and_counted(file_store: Store) -> None:
    line, house, service = await compared(file_store)
    house.voice(2).breaks = BROKEN
    (key,) = keys(service, 2)
    with pytest.raises(Fault, match="its weights are broken"):
        await house.ask(service, key, is_streamed=True)
    assert house.voice(1).asked == 0
    house.voice(2).is_short = True  # it ends with nothing in it: nothing is out yet
    assert await house.ask(service, key, is_streamed=True) == "sprout@1"
    assert [(one.arm, one.error) for one in await served(service, line, 2)] == [("sprout@2", True)] * 2


@BOTH
async def test_where_the_live_one_fails_too_its_error_is_told_and_each_failure_is_its_own(
    file_store: Store, is_streamed: bool
) -> None:
    line, house, service = await compared(file_store)
    house.voice(1).fails, house.voice(2).fails = Fault("live", why="is down"), BROKEN
    ours, theirs = keys(service, 2)[0], keys(service, 1)[0]
    for key in (ours, theirs):
        with pytest.raises(Fault, match="live: is down"):
            await house.ask(service, key, is_streamed=is_streamed)
    noted = await served(service, line, 2)
    assert [(one.arm, one.unit, one.error) for one in noted] == [("sprout@2", ours, True), ("sprout@1", theirs, True)]


@BOTH
async def test_a_canary_that_fails_after_the_live_one_was_replaced_is_stood_in_for_by_the_new_one(
    file_store: Store, is_streamed: bool
) -> None:
    line, house, service = await compared(file_store, versions=4)
    house.voice(2).may.clear()
    house.voice(2).fails = BROKEN
    asking = asyncio.create_task(house.ask(service, keys(service, 2)[0], is_streamed=is_streamed))
    await until(lambda: house.voice(2).under_way)
    line.back(2, 1)
    for number in (3, 4):
        line.go(number, Stage.LIVE)
        await service.refresh()
    assert house.voice(1).closed == 1
    house.voice(2).may.set()
    assert await asking == "sprout@4"
    assert house.voice(1).asked == 0


@BOTH
async def test_a_bad_request_is_nobodys_failure(file_store: Store, is_streamed: bool) -> None:
    line, house, service = await compared(file_store)
    house.voice(1).fails = house.voice(2).fails = BadInput("messages", why="are too long")
    for number in (1, 2):
        with pytest.raises(BadInput, match="too long"):
            await house.ask(service, keys(service, number)[0], is_streamed=is_streamed)
    assert await served(service, line, 2) == []
    house.voice(1).fails = None  # only the canary finds it bad: answered, and the canary's failure
    assert await house.ask(service, keys(service, 2)[0], is_streamed=is_streamed) == "sprout@1"
    assert [(one.arm, one.error) for one in await served(service, line, 2)] == [("sprout@2", True)]


@BOTH
async def test_a_version_that_cannot_be_loaded_takes_nobody_down_and_is_counted_as_failing(
    file_store: Store, is_streamed: bool
) -> None:
    line, house = Line(file_store, 2), House(file_store)
    service = await opened(line, house)
    house.unloadable.add("sprout@2")
    line.go(2, Stage.CANARY, 50)
    await service.refresh()
    (key,) = keys(service, 2)
    assert await house.ask(service, key, is_streamed=is_streamed) == "sprout@1"
    assert [(one.arm, one.error) for one in await served(service, line, 2)] == [("sprout@2", True)]
    house.unloadable.clear()  # what was missing is there again
    line.go(2, Stage.CANARY, 100)
    await service.refresh()
    assert await house.ask(service, key, is_streamed=is_streamed) == "sprout@2"


async def test_a_new_live_version_that_cannot_be_loaded_leaves_the_old_one_serving(file_store: Store) -> None:
    line, house = Line(file_store, 2), House(file_store)
    service = await opened(line, house)
    house.unloadable.add("sprout@2")
    line.go(2, Stage.LIVE)
    with pytest.raises(OSError, match="no such weights"):
        await service.refresh()
    assert await house.ask(service, "ann") == "sprout@1"
    house.unloadable.clear()
    await service.refresh()
    assert await house.ask(service, "ann") == "sprout@2"


@BOTH
async def test_a_shadow_gets_a_copy_and_its_answer_reaches_nobody(file_store: Store, is_streamed: bool) -> None:
    line, house, service = await compared(file_store, stage=Stage.SHADOW)
    house.voice(2).may.clear()  # however slow it is …
    async with asyncio.timeout(5):
        assert await house.ask(service, "ann", is_streamed=is_streamed) == "sprout@1"  # … nobody waits for it
    house.voice(2).may.set()
    await until(lambda: house.voice(2).asked == 1 and not service._shadows)
    noted = await served(service, line, 2)
    assert [(one.id, one.arm) for one in noted] == [("r1-ann", "sprout@1"), ("r1-ann~shadow", "sprout@2")]
    assert house.heard == [("r1-ann", "sprout@1")]
    assert file_store.trials.get(line.trial(2)).kind == "shadow"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), BadRecord("logprobs", why="must be finite")])
async def test_a_shadow_that_fails_is_noted_and_nobody_notices(
    file_store: Store, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Also where an answer breaks its own contract, as of weights that are not numbers any more."""
    line, house, service = await compared(file_store, stage=Stage.SHADOW)
    house.voice(2).fails = error
    assert await house.ask(service, "ann") == "sprout@1"
    await until(lambda: not service._shadows)
    noted = {one.id: one.error for one in await served(service, line, 2)}
    assert noted == {"r1-ann": False, "r1-ann~shadow~failed": True}
    assert caplog.records == []  # asyncio tells of exceptions that nobody took


async def test_a_shadow_that_is_slow_gets_no_more_copies_than_it_may(file_store: Store) -> None:
    _, house, service = await compared(file_store, stage=Stage.SHADOW)
    house.voice(2).may.clear()
    for number in range(service_module.MOST_SHADOWS + 20):
        assert await house.ask(service, f"u{number}") == "sprout@1"
    await asyncio.sleep(0)
    assert house.voice(2).under_way == service_module.MOST_SHADOWS
    await service.close()
    assert (house.voice(2).under_way, house.voice(2).closed, house.voice(2).closed_when_busy) == (0, 1, 0)


async def test_what_was_served_is_written_on_close_to_the_last(file_store: Store) -> None:
    line, house, service = await compared(file_store)
    running = asyncio.create_task(service.run())
    for number in range(200):
        await house.ask(service, f"u{number}")
        if number % 20 == 0:
            await asyncio.sleep(service_module.FLUSH_S / 2)
    await over(running)  # perhaps in the middle of a write
    await service.close()
    noted = file_store.trials.served(line.trial(2))
    assert len(noted) == len({one.id for one in noted}) == 200


async def test_a_store_that_fails_loses_no_request_and_no_outcome(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, house, service = await compared(file_store)
    monkeypatch.setattr(service_module, "RETRY_S", 0.01)
    running = asyncio.create_task(service.run())
    full, write = StoreFull("store", why="the disk is full"), file_store.db.write

    def refuse(operation: Any) -> Any:
        raise full

    monkeypatch.setattr(file_store.db, "write", refuse)  # the disk, which cannot be filled here
    for number in range(20):
        assert (await house.ask(service, f"u{number}")).startswith("sprout@")
    await asyncio.sleep(3 * service_module.FLUSH_S)
    with pytest.raises(StoreFull):
        await service.feedback("r1-u0", {"success": 1.0})
    assert not running.done()
    monkeypatch.setattr(file_store.db, "write", write)
    await until(lambda: len(file_store.trials.served(line.trial(2))) == 20)
    assert await service.feedback("r1-u0", {"success": 1.0})
    await over(running)


async def test_feedback_finds_what_was_answered_a_moment_ago(file_store: Store) -> None:
    line, house, service = await compared(file_store, share=100)
    (key,) = keys(service, 1)
    assert await house.ask(service, key) == "sprout@1"
    assert await service.feedback(f"r1-{key}", {"success": 1.0, "reward": 0.5})
    assert not await service.feedback("r1-bob", {"success": 1.0})
    (noted,) = file_store.trials.served(line.trial(2))
    assert (noted.arm, noted.unit) == ("sprout@1", key)
    assert (noted.success, noted.reward, noted.safety_cost) == (1.0, 0.5, None)


async def test_each_step_and_each_try_and_each_live_version_has_a_comparison_of_its_own(file_store: Store) -> None:
    line, _, service = await compared(file_store, share=5, versions=3)
    names = [service.table.experiment]
    line.go(2, Stage.CANARY, 25)
    await service.refresh()
    names.append(service.table.experiment)
    line.back(2, 1)
    line.go(2, Stage.CANDIDATE)
    line.go(2, Stage.CANARY, 25)  # the same routing as before
    await service.refresh()
    names.append(service.table.experiment)
    line.go(3, Stage.LIVE)  # under the canary's feet
    await service.refresh()
    names.append(service.table.experiment)
    assert len(set(names)) == 4 and names[-1] == line.trial(2)
    assert list(file_store.trials.get(line.trial(2)).arms) == ["sprout@3", "sprout@2"]
    line.back(2, 3)
    await service.refresh()
    assert str(service.table.experiment).startswith("live:sprout@3:")  # with the version that it took the place of
    line.back(3, 1)
    await service.refresh()
    assert service.table.experiment is None


async def test_a_comparison_that_was_ended_by_hand_stops_nothing(file_store: Store) -> None:
    line, house = Line(file_store, 2), House(file_store)
    line.go(2, Stage.CANARY, 50)
    await (await opened(line, house)).close()
    file_store.trials.end(line.trial(2), who="ann", why="enough", now=1.0).result()
    service = await opened(line, house)  # started again
    await house.ask(service, "ann")
    assert len(await served(service, line, 2)) == 1


@pytest.mark.parametrize("at", [Stage.LIVE, Stage.CANARY])
async def test_a_rollback_that_a_person_orders_elsewhere_changes_who_answers_with_the_keeper_at_work(
    file_store: Store, at: Stage
) -> None:
    line, house = Line(file_store, 2), House(file_store)
    line.go(2, at, 100 if at is Stage.CANARY else None)
    service = await opened(line, house)
    assert await house.ask(service, "ann") == "sprout@2"
    keeping = run_controller(file_store, POLICY, GuardLimits(), clock=lambda: 1.0, observe=lambda looked: None)
    beside = [asyncio.create_task(work) for work in (service.run(), keeping)]
    with open_store(file_store.url) as operator:
        _, live = take_back(operator, None, "it is rude", 2.0)
    assert live.id == "sprout@1"
    await until(lambda: service.routing.live == "sprout@1" and service.routing.canary is None)
    assert await house.ask(service, "ann") == "sprout@1"
    assert not any(task.done() for task in beside)
    await over(*beside)


def test_only_a_shadow_or_a_canary_is_compared(file_store: Store) -> None:
    line = Line(file_store, 2)
    assert [trial_of(line.at(number), line.at(1)) for number in (1, 2)] == [None, None]
    trial = trial_of(line.go(2, Stage.SHADOW), line.at(1))
    assert trial is not None and trial.arms == {"sprout@1": 0.5, "sprout@2": 0.5}


@pytest.fixture
def run(file_store: Store) -> str:
    begun = file_store.runs.begin(kind=KIND, model_ref="sprout", settings={}, salt="a", who="test", now=1.0)
    return begun.result().id


@pytest.fixture
def capture(file_store: Store, run: str, clock: Clock) -> Capture:
    return Capture(file_store, run, clock=lambda: clock.now)


async def test_what_was_served_and_rewarded_can_be_learnt_from(
    file_store: Store, run: str, capture: Capture, clock: Clock
) -> None:
    model, calls = Transformer(ModelShape(width=16, layers=1, heads=2, context=256), seed=0), {}
    with Local(model, name="local/sprout@1", version="ab12", slots=2, seed=0) as local:
        for number in range(4):
            calls[f"r{number}"] = made = await local(HELLO, max_tokens=8, temperature=1.0, seed=number)
            capture.heard(f"r{number}", "sprout@1", "ann", made)
    clock.advance(3600)  # people take their time
    for number, identity in enumerate(calls):
        assert await capture.save_feedback(identity, {"reward": number % 2})
    rollouts = [file_store.views.rollout(f"{run}/{identity}") for identity in calls]
    assert {(one.status, one.split) for one in rollouts} == {(RolloutState.SUCCEEDED, Split.TRAIN)}
    found = file_store.experiences.of(one.id for one in rollouts)
    assert len({one.task for one in found}) == 1  # the same question: one group
    for one, made in zip(found, calls.values(), strict=True):
        (span,) = one.spans
        assert span.model == made and span.model.completion_ids and span.model.logprobs
        assert span.ended_at == 1_000_000.0  # when it was answered, not when it was told of
    trained = Transformer(model.shape, seed=0)
    settings = RlSettings(ppo=PpoSettings(learning_rate=1e-2))
    summary = optimize_turns(found, trained, settings, seed=0, intake=SampleFilter(run=run))
    assert summary.executed, summary
    assert (summary.trajectories, summary.samples) == (4, 4) and not summary.reasons
    assert any(
        not torch.equal(before, after) for before, after in zip(model.parameters(), trained.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("said", "total"),
    [
        ({"success": 1.0}, 1.0),
        ({"reward": 0.25, "success": 1.0}, 0.25),  # a reward is what counts
        ({"success": 0.0, "safety_cost": 3.0}, 0.0),  # a cost is never paid
        ({"reward": -2.0, "safety_cost": 1.0}, -2.0),
    ],
)
async def test_a_reward_counts_and_where_there_is_none_success_does(
    file_store: Store, run: str, capture: Capture, said: dict[str, float], total: float
) -> None:
    capture.heard("r1", "sprout@2", "ann", call("sprout@2"))
    assert await capture.save_feedback("r1", said)
    found = file_store.experiences.get(f"{run}/r1")
    assert found is not None and found.breakdown.total == total
    told = [signal for signal in found.breakdown.signals if signal.turn is None]
    assert {signal.name: signal.value for signal in told} == said
    assert {signal.source for signal in told} == {"feedback"}
    measured = {signal.name: signal.value for signal in found.breakdown.signals if signal.turn == 0}
    assert measured["format"] == 1.0 and measured["progress"] == said.get("success", 0.0)  # one call, one turn
    rollout = file_store.views.rollout(f"{run}/r1")
    assert (rollout.metadata["release"], rollout.metadata["user"]) == ("sprout@2", "ann")
    assert rollout.input == {"messages": HELLO}
    assert rollout.reward == total


def tool_turn(question: str, result: str, **more: Any) -> tuple[ModelCall, ModelCall]:
    """A request that is answered by a tool call, and the one that brings the result."""
    asked = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"key": "x"}'}}
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
    first = ModelCall(
        model="sprout@1",
        messages=({"role": "user", "content": question},),
        response={"role": "assistant", "content": None, "tool_calls": [asked], "reasoning_content": "hm"},
        sampling={"tools": tools},
        **more,
    )
    back = {"role": "assistant", "content": "", "tool_calls": [asked]}  # as clients send it: without the thinking
    told = (*first.messages, back, {"role": "tool", "tool_call_id": "c1", "content": result})
    response = {"role": "assistant", "content": f"It is {result}."}
    return first, ModelCall(model="sprout@1", messages=told, response=response, sampling={"tools": tools}, **more)


async def test_a_conversation_of_several_requests_is_one_rollout_with_its_tools(
    file_store: Store, run: str, capture: Capture
) -> None:
    first, second = tool_turn("What is x?", "7")
    capture.heard("r1", "sprout@1", "ann", first)
    capture.heard("other", "sprout@1", "ann", call("other"))
    capture.heard("r2", "sprout@1", "ann", second)
    assert await capture.save_feedback("r2", {"success": 1.0})
    found = file_store.experiences.get(f"{run}/r2")
    assert found is not None
    assert [span.model or (span.tool and span.tool.tool) for span in found.spans] == [first, "lookup", second]
    rollout = file_store.views.rollout(f"{run}/r2")
    assert rollout.input == {"messages": list(first.messages), "tools": first.sampling["tools"]}
    (rates,) = adoption_rates([record(rollout, found.spans)], wilson)
    assert (rates.tool, rates.used.share, rates.worked.share, rates.formed.share) == ("lookup", 1.0, 1.0, 1.0)
    assert not await capture.save_feedback("r1", {"success": 0.0})  # it is learnt from already
    assert await capture.save_feedback("other", {"success": 0.0})


@pytest.mark.parametrize("result", ["error: busy, try again", '{"error": "no such key"}'])
async def test_a_tool_that_failed_counts_as_failed(file_store: Store, run: str, capture: Capture, result: str) -> None:
    _, second = tool_turn("What is x?", result)
    capture.heard("r2", "sprout@1", "ann", second)  # the first request went to another process
    assert await capture.save_feedback("r2", {"success": 0.0})
    found = file_store.experiences.get(f"{run}/r2")
    assert found is not None and [span.model or (span.tool and bool(span.tool.error)) for span in found.spans] == [
        True,
        second,
    ]


async def test_secrets_and_people_are_not_written(file_store: Store, run: str, clock: Clock) -> None:
    scrub = Scrub(b"k" * 32)
    capture = Capture(file_store, run, clock=lambda: clock.now, scrub=scrub.call)
    first, second = tool_turn("I am ann.lee@corp-mail.net. What is x?", "sk-ant-api03-" + "aB3xY9" * 14 + "AA")
    for name, made in (("r1", first), ("r2", second)):
        capture.heard(name, "sprout@1", "ann", made)
    assert await capture.save_feedback("r2", {"reward": 1.0})
    found, rollout = file_store.experiences.get(f"{run}/r2"), file_store.views.rollout(f"{run}/r2")
    written = repr((found, rollout))
    assert "<email:" in written and "<secret:" in written
    assert "corp-mail" not in written and "aB3xY9" not in written


async def test_what_is_not_known_or_not_judged_is_not_kept(file_store: Store, run: str, capture: Capture) -> None:
    assert not await capture.save_feedback("r9", {"reward": 1.0})
    capture.heard("r1", "sprout@1", "ann", call("sprout@1"))
    assert not await capture.save_feedback("r1", {"safety_cost": 1.0})
    assert await capture.save_feedback("r1", {"reward": 1.0})  # it waited for it
    assert [one.name for one in file_store.views.rollouts(run)] == ["r1"]


async def test_the_same_again_is_harmless_and_another_value_a_conflict(
    file_store: Store, run: str, capture: Capture
) -> None:
    capture.heard("r1", "sprout@1", "ann", call("sprout@1"))
    assert await capture.save_feedback("r1", {"success": 1.0})
    assert await capture.save_feedback("r1", {"success": 1.0})
    with pytest.raises(Conflict, match="^answer r1: success was told before: 1, not 0$"):
        await capture.save_feedback("r1", {"success": 0.0})
    assert not await capture.save_feedback("r1", {"reward": 1.0})  # too late for this one
    found = file_store.experiences.get(f"{run}/r1")
    assert found is not None and found.breakdown.total == 1.0


async def test_many_at_once_each_get_their_own(file_store: Store, run: str, capture: Capture) -> None:
    names = [f"r{number}" for number in range(40)]
    for name in names:
        capture.heard(name, "sprout@1", "ann", call(name))
    told = [capture.save_feedback(name, {"reward": float(place)}) for place, name in enumerate(names)]
    again = [capture.save_feedback(name, {"reward": float(place)}) for place, name in enumerate(names)]
    assert all(await asyncio.gather(*reversed(told), *again))
    for place, name in enumerate(names):
        found = file_store.experiences.get(f"{run}/{name}")
        assert found is not None and found.breakdown.total == place
        assert [span.model.model for span in found.spans if span.model] == [name]


async def test_the_oldest_are_forgotten_first(file_store: Store, run: str, clock: Clock) -> None:
    capture = Capture(file_store, run, clock=lambda: clock.now, most=2)
    for name in ("a", "b", "c"):
        capture.heard(name, "sprout@1", "ann", call(name))
    assert [await capture.save_feedback(name, {"reward": 1.0}) for name in ("a", "b", "c")] == [False, True, True]


async def test_what_could_not_be_written_can_be_told_again(
    file_store: Store, run: str, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.heard("r1", "sprout@1", "ann", call("sprout@1"))

    def refuse(*_: Any, **__: Any) -> Any:
        raise StoreFull("store", why="the disk is full")

    with monkeypatch.context() as full:
        full.setattr(file_store.db, "write", refuse)  # the disk, which cannot be filled here
        with pytest.raises(StoreFull):
            await capture.save_feedback("r1", {"reward": 1.0})
    assert await capture.save_feedback("r1", {"reward": 1.0})
    assert file_store.experiences.get(f"{run}/r1") is not None


async def test_a_telling_that_broke_off_does_not_mix_with_the_next(
    file_store: Store, run: str, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("r1", "r2"):
        capture.heard(name, "sprout@1", "ann", call(name))
    file_store.runs.want(run, DesiredState.PAUSED, who="ann", why="test", now=2.0).result()
    with pytest.raises(Fault, match="answer r1: .* takes nothing at the moment; tell it again later"):
        await capture.save_feedback("r1", {"reward": 1.0})
    file_store.runs.want(run, DesiredState.RUNNING, who="ann", why="test", now=3.0).result()
    assert await capture.save_feedback("r2", {"reward": 2.0})
    found = file_store.experiences.get(f"{run}/r2")
    assert found is not None and [span.model.model for span in found.spans if span.model] == ["r2"]
    assert file_store.experiences.get(f"{run}/r1") is None
    assert file_store.views.rollout(f"{run}/r1").status is RolloutState.DEAD  # reported as missing
