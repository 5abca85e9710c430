"""Our own model answers calls from anywhere, together: nothing hangs, nothing mixes, and a swap disturbs nobody."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.contracts.errors import BadInput, Fault, Lost
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens
from holdfast.policies.decoder import Decoder, DecodeRequest
from holdfast.policies.engine import Local, LocalEngine
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import Model
from holdfast.policies.sampling import Sampling
from holdfast.store.artifacts import FolderArtifacts
from tests.policies.small import generate, recomputed, small
from tests.workloads.scene import tiny


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def answers(local: Local, count: int, **sampling: Any) -> list[ModelCall]:
    calls = [local(ask(f"question {n}"), seed=n, max_tokens=12, **sampling) for n in range(count)]
    return list(await asyncio.gather(*calls))


async def test_a_call_records_what_was_sampled() -> None:
    model = small()
    with Local(model, name="tiny", version="7") as local:
        call = await local(ask("hello"), temperature=0.8, top_p=0.9, top_k=50, max_tokens=9, thinking=0, seed=3)
    how = Sampling(temperature=0.8, top_p=0.9, top_k=50, max_tokens=9, thinking=0)
    (expected,) = generate(model, [tokens.prompt(ask("hello"))], how, [3])
    assert call.model == "tiny@7"
    assert call.prompt_ids == tuple(tokens.prompt(ask("hello"))) and call.prompt_tokens == len(call.prompt_ids)
    assert call.completion_ids == expected.ids and call.completion_tokens == len(expected.ids)
    assert call.finish_reason == expected.finish
    assert call.response == tokens.read(expected.ids)
    assert call.sampling == {
        "temperature": 0.8, "top_p": 0.9, "top_k": 50, "max_tokens": 9, "stop": [], "thinking": 0, "seed": 3,
        "banned": [tokens.THINK], "thinking_mode": "hard",
    }  # fmt: skip
    found = recomputed(model, call.prompt_ids, expected, how)
    torch.testing.assert_close(found, torch.tensor(call.logprobs), atol=1e-4, rtol=0)


async def test_concurrent_calls_do_not_mix() -> None:
    model = small()
    with Local(model, slots=8) as local:
        calls = await answers(local, 30)
    prompts = [tokens.prompt(ask(f"question {n}")) for n in range(30)]
    expected = generate(model, prompts, Sampling(max_tokens=12), range(30))
    assert [call.completion_ids for call in calls] == [completion.ids for completion in expected]


def test_several_event_loops_and_threads_share_one_model() -> None:
    with Local(small(), slots=6) as local:
        found: dict[int, list[ModelCall]] = {}

        def caller(number: int) -> None:
            found[number] = asyncio.run(answers(local, 10))

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({tuple(call.completion_ids or () for call in calls) for calls in found.values()}) == 1


async def test_without_a_seed_calls_differ_and_can_be_repeated() -> None:
    with Local(small(), seed=5) as local:
        one, two = await local(ask("x")), await local(ask("x"))
        again = await local(ask("x"), seed=one.sampling["seed"])
    assert one.completion_ids == again.completion_ids != two.completion_ids
    with Local(small(), seed=5) as local:
        assert (await local(ask("x"))).completion_ids == one.completion_ids
    with Local(small(), seed=6) as local:
        assert (await local(ask("x"))).completion_ids != one.completion_ids


async def test_calls_of_tools_are_told_with_ids_of_their_own() -> None:
    model = small(favour={tokens.CALL: 3.0, tokens.END: 3.0})
    with Local(model) as local:
        calls = await answers(local, 20)
    with_calls = [call for call in calls if call.response.get("tool_calls")]
    assert with_calls
    for call in with_calls:
        assert call.finish_reason == ("tool_calls" if (call.completion_ids or ())[-1] == tokens.END else "length")
    ids = [each["id"] for call in with_calls for each in call.response["tool_calls"]]
    assert len(ids) == len(set(ids))


async def test_the_text_is_cut_before_a_stop_string_and_the_ids_are_not() -> None:
    with Local(small(favour={ord("a"): 3.0})) as local:
        calls = await answers(local, 20, stop="a")
    stopped = [call for call in calls if (call.completion_ids or ())[-1] == ord("a")]
    assert stopped
    assert all(call.finish_reason == "stop" and "a" not in call.response["content"] for call in stopped)


async def test_calls_under_way_finish_on_the_old_weights() -> None:
    old, new = small(1, favour={tokens.END: -20.0}), small(2)
    with Local(old, version="1", slots=2) as local:
        before = [asyncio.ensure_future(local(ask(str(n)), seed=n, max_tokens=40)) for n in range(5)]  # some still wait
        await asyncio.sleep(0.005)
        local.swap(new, "2")
        after = await local(ask("0"), seed=0, max_tokens=40)
        earlier = await asyncio.gather(*before)
        for version in ("3", "4", "5"):  # decoders that are done serve again
            local.swap(old, version)
        last = await local(ask("0"), seed=0, max_tokens=40)
    assert [call.model for call in earlier] == ["local@1"] * 5 and after.model == "local@2" and last.model == "local@5"
    prompts = [tokens.prompt(ask(str(n))) for n in range(5)]
    how = Sampling(max_tokens=40)
    assert [call.completion_ids for call in earlier] == [c.ids for c in generate(old, prompts, how, range(5))]
    assert after.completion_ids == generate(new, prompts[:1], how, [0])[0].ids
    assert last.completion_ids == earlier[0].completion_ids


async def test_a_cancelled_call_leaves_its_slot() -> None:
    with Local(small(favour={tokens.END: -20.0}), slots=1) as local:
        tasks = [asyncio.ensure_future(local(ask("x"), max_tokens=100)) for _ in range(3)]
        await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))
        assert (await asyncio.wait_for(local(ask("y"), max_tokens=3), 60)).completion_tokens == 3


async def test_a_step_that_fails_fails_those_under_way_and_nobody_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with Local(small(), slots=2) as local:
        expected = await answers(local, 8)
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.policies.cpu.Cpu.step", lambda *_: 1 / 0)
            outcomes = await asyncio.gather(*(local(ask(f"question {n}")) for n in range(5)), return_exceptions=True)
        assert all("ZeroDivisionError" in str(outcome) and isinstance(outcome, Fault) for outcome in outcomes)
        found = await answers(local, 8)  # nothing that was half computed is leant on
        assert [call.completion_ids for call in found] == [call.completion_ids for call in expected]


async def test_a_call_that_cannot_begin_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Decoder._begin

    def some_begin(decoder: Decoder, slot: int, request: DecodeRequest) -> None:
        begin(decoder, slot, request)
        if request.key in (2, 5):
            raise OverflowError("too much")

    with Local(small(), slots=4) as local:
        expected = await answers(local, 8)
        monkeypatch.setattr(Decoder, "_begin", some_begin)
        calls = [local(ask(f"question {n}"), seed=n, max_tokens=12) for n in range(8)]
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    for n, outcome in enumerate(outcomes):
        if n in (2, 5):
            assert str(outcome) == "local model: OverflowError: too much; ask for something else"
        else:
            assert isinstance(outcome, ModelCall) and outcome.completion_ids == expected[n].completion_ids


async def test_a_prompt_that_no_longer_fits_after_a_swap_fails_alone() -> None:
    narrow = Transformer(ModelShape(width=16, layers=1, heads=2, context=16), seed=0)
    with Local(small(), slots=4) as local:
        request = local._request(ask("x" * 50), None, {})
        local.swap(narrow, "2")
        late = asyncio.wrap_future(local._desk.submit(request))
        with pytest.raises(BadInput, match="a prompt of 53 tokens: the context is 16"):
            await late
        assert (await local(ask("x"), max_tokens=3)).model == "local@2"


async def test_a_thread_that_ends_fails_everyone_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object) -> None:
        raise SystemExit("enough")

    local = Local(small(), slots=2)
    monkeypatch.setattr("holdfast.policies.cpu.Cpu.step", ends)
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(local(ask(str(n))) for n in range(5)), return_exceptions=True), 60
    )
    assert all(isinstance(outcome, Fault) and "SystemExit: enough" in str(outcome) for outcome in outcomes)
    with pytest.raises(Fault, match="SystemExit"):
        await local(ask("later"))
    with pytest.raises(Fault, match="SystemExit"):
        local.swap(small(), "2")
    local.close()


async def test_closing_fails_what_is_under_way_and_what_comes_later() -> None:
    local = Local(small(favour={tokens.END: -20.0}))
    task = asyncio.ensure_future(local(ask("x"), max_tokens=120))
    await asyncio.sleep(0.001)
    await asyncio.to_thread(local.close)
    local.close()
    for late in (task, local(ask("y"))):
        with pytest.raises(Fault, match="local model: it was closed; open another one"):
            await late


async def test_what_cannot_be_asked_is_refused_before_anything_is_queued() -> None:
    with Local(small()) as local:
        with pytest.raises(BadInput, match=r"sampling.beams: is unknown .* use tools, seed, temperature"):
            await local(ask("x"), beams=4)
        with pytest.raises(BadInput, match="a prompt of 203 tokens: the context is 160"):
            await local(ask("x" * 200))
        with pytest.raises(BadInput, match="sampling.top_p = 7"):
            await local(ask("x"), top_p=7)
        for wrong in (
            {"seed": -1}, {"seed": "x"}, {"seed": True}, {"seed": 2**64}, {"seed": 10**5000}, {"max_tokens": 2.5},
            {"max_tokens": True}, {"thinking": 2**63}, {"thinking": "much"}, {"top_k": 10**400}, {"temperature": 1e-40},
            {"stop": [7]}, {"stop": 7}, {"stop": "\ud800"},
        ):  # fmt: skip
            with pytest.raises(BadInput, match=next(iter(wrong))):
                await local(ask("x"), **wrong)
        assert (await local(ask("x"), max_tokens=2, stop=None, temperature=None)).completion_tokens == 2


async def test_deterministic_calls_give_the_same_bits_in_any_order_and_at_any_time() -> None:
    async def later(local: Local, number: int, delay_s: float) -> ModelCall:
        await asyncio.sleep(delay_s)
        return await local(ask(f"question {number}" * (number % 4 + 1)), seed=number, max_tokens=15)

    rng, runs = random.Random(0), []
    with Local(small(), slots=8, deterministic=True) as local:
        for _ in range(3):
            order = rng.sample(range(40), 40)
            calls = await asyncio.gather(*(later(local, n, rng.random() * 0.02) for n in order))
            runs.append([call for _, call in sorted(zip(order, calls, strict=True), key=lambda pair: pair[0])])
    assert runs[0] == runs[1] == runs[2]  # the log-probs too, to the last bit


async def test_a_thinking_budget_is_kept_and_what_was_put_there_is_told() -> None:
    model = small(favour={tokens.THINK: 4.0})
    with Local(model, slots=8) as local:
        calls = [await local(ask(f"q{n}"), seed=n, max_tokens=30, thinking=4) for n in range(8)]
        free = await local(ask("q0"), seed=0, max_tokens=30)
        assert local.limits_thinking
    assert any(call.forced for call in calls)
    for call in calls:
        assert call.completion_ids is not None and call.logprobs is not None
        assert 0 <= (call.thinking_tokens or 0) <= 4
        assert {call.completion_ids[place] for place in call.forced} <= {tokens.UNTHINK}
        assert {call.logprobs[place] for place in call.forced} <= {0.0}
        assert call.sampling["thinking_mode"] == "hard"
    assert free.forced == () and "thinking_mode" not in free.sampling


HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=128), seed=1)
    with Local(model, name="tiny", slots=4, deterministic=True) as local:
        yield local


async def heard(local: Local, **sampling: Any) -> tuple[list[Mapping[str, Any]], ModelCall]:
    *pieces, call = [piece async for piece in local.stream(HELLO, **sampling)]
    assert isinstance(call, ModelCall)
    return [piece for piece in pieces if not isinstance(piece, ModelCall)], call


async def test_a_streamed_answer_is_the_answer(local: Local) -> None:
    pieces, call = await heard(local, seed=3, max_tokens=40)
    assert call == await local(HELLO, seed=3, max_tokens=40)
    assert len(pieces) > 5
    ids = [token for piece in pieces for token in piece["token_ids"]]
    logprobs = [logprob for piece in pieces for logprob in piece["logprobs"]]
    assert call.completion_ids is not None and call.logprobs is not None
    assert (tuple(ids), tuple(logprobs)) == (call.completion_ids[: len(ids)], call.logprobs[: len(ids)])
    for name in ("content", "reasoning_content"):
        said = "".join(piece.get(name, "") for piece in pieces)
        assert (call.response.get(name) or "").startswith(said)


async def test_streams_and_calls_share_the_decoder(local: Local) -> None:
    alone = [await local(HELLO, seed=seed, max_tokens=12) for seed in range(6)]
    streams = (heard(local, seed=seed, max_tokens=12) for seed in range(6))
    calls = (local(HELLO, seed=seed, max_tokens=12) for seed in range(6))
    together = await asyncio.gather(*streams, *calls)
    assert [made[1] if isinstance(made, tuple) else made for made in together] == alone * 2


async def test_the_string_that_ends_an_answer_is_never_shown(local: Local) -> None:
    _, free = await heard(local, seed=3, max_tokens=60)
    text = str(free.response["content"])
    stop = next(
        text[n : n + 2] for n in range(8, len(text)) if text[n : n + 2].isascii() and text[n : n + 2].isprintable()
    )
    pieces, call = await heard(local, seed=3, max_tokens=60, stop=[stop])
    said = "".join(piece.get("content", "") for piece in pieces)
    assert call.finish_reason == "stop" and stop not in said
    assert str(call.response["content"]).startswith(said)


async def test_a_listener_that_leaves_frees_its_place(local: Local) -> None:
    for _ in range(8):  # twice as many as there are places
        stream = local.stream(HELLO, seed=3, max_tokens=100)
        assert not isinstance(await anext(stream), ModelCall)
        await stream.aclose()
    assert (await asyncio.wait_for(local(HELLO, max_tokens=3), 40)).completion_tokens is not None


def test_a_closed_model_ends_its_streams() -> None:
    async def main() -> None:
        local = Local(Transformer(ModelShape(width=16, layers=1, heads=2, context=65536), seed=1), slots=1)
        stream = local.stream(HELLO, max_tokens=65000, temperature=0)
        await anext(stream)
        await asyncio.to_thread(local.close)
        with pytest.raises(Fault, match="it was closed"):
            async for _ in stream:
                pass

    asyncio.run(main())


ASKED: list[dict[str, str]] = [{"role": "user", "content": "1?"}]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    for seed in range(3):
        tiny(tmp_path / "checkpoints" / f"c-{seed}", seed)
    made = LocalEngine(slots=4, deterministic=True, files=FolderArtifacts(tmp_path))
    yield made
    made.close()


@pytest.fixture
def base(tmp_path: Path) -> Model:
    return Model(tiny(tmp_path / "base", 9))


def answer(local: Any) -> tuple[int, ...]:
    call = asyncio.run(local(ASKED, seed=5, max_tokens=8))
    return tuple(call.completion_ids)


def test_a_version_is_loaded_once_and_versions_answer_side_by_side(engine: LocalEngine, base: Model) -> None:
    first, second = engine.open_model(base), engine.open_model(base.at("c-0"))
    assert first is not second and engine.open_endpoint("gpt") is None
    assert answer(first) != answer(second)
    assert asyncio.run(second(ASKED, seed=5, max_tokens=8)).model == base.at("c-0").version


NAMES = ("c-0", "c-1", "c-2")


def test_each_of_many_versions_that_are_open_answers_with_its_own_weights(engine: LocalEngine, base: Model) -> None:
    alone = {name: answer(engine.open_model(base.at(name))) for name in NAMES}
    opened = {name: engine.open_model(base.at(name)) for name in NAMES}  # as a batch of three versions does
    for name in (*NAMES, *reversed(NAMES)):
        call = asyncio.run(opened[name](ASKED, seed=5, max_tokens=8))
        assert (call.model, call.completion_ids) == (base.at(name).version, alone[name])


async def test_versions_that_are_asked_at_the_same_time_do_not_mix(engine: LocalEngine, base: Model) -> None:
    opened = {name: engine.open_model(base.at(name)) for name in NAMES}
    order = NAMES * 8
    calls = await asyncio.gather(*(opened[name](ASKED, seed=5, max_tokens=8) for name in order))
    assert [call.model for call in calls] == [base.at(name).version for name in order]
    said = {name: {call.completion_ids for call, at in zip(calls, order, strict=True) if at == name} for name in NAMES}
    assert [len(one) for one in said.values()] == [1, 1, 1] and len(set.union(*said.values())) == 3


async def test_a_stream_of_a_version_that_was_let_go_is_its_own(engine: LocalEngine, base: Model) -> None:
    opened = [engine.open_model(base.at(name)) for name in NAMES]
    async with aclosing(opened[0].stream(ASKED, seed=5, max_tokens=8)) as news:
        *_, call = [new async for new in news]
    assert isinstance(call, ModelCall) and call.model == base.at("c-0").version


def test_no_more_versions_stay_loaded_than_two_once_nobody_asks(engine: LocalEngine, base: Model) -> None:
    asyncio.run(test_versions_that_are_asked_at_the_same_time_do_not_mix(engine, base))
    before = threading.active_count()
    engine.open_model(base)
    assert threading.active_count() < before  # each has a thread of its own


def test_a_version_that_cannot_be_loaded_again_is_a_fault_of_ours(
    engine: LocalEngine, base: Model, tmp_path: Path
) -> None:
    opened = [engine.open_model(base.at(name)) for name in NAMES]
    shutil.rmtree(tmp_path / "checkpoints" / "c-0")
    with pytest.raises(Fault, match="checkpoint c-0"):  # the agent that asked did nothing wrong
        answer(opened[0])


def test_a_checkpoint_that_is_gone_is_lost_by_its_name(engine: LocalEngine, base: Model, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "checkpoints" / "c-1")
    with pytest.raises(Lost, match="checkpoint c-1"):
        engine.open_model(base.at("c-1"))
