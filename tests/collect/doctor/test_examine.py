"""A sound endpoint passes; each wrong one is rejected, for what is wrong with it and for nothing else."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from holdfast.collect.chat_format import spell_byte
from holdfast.collect.doctor import (
    OPENERS,
    DrawnStats,
    Meaning,
    assay,
    drawn,
    examine,
    parting,
    spread,
    surprise,
    tolerance,
    under_temperature,
    under_top_k,
    under_top_p,
)
from holdfast.collect.endpoint_probe import (
    CHECKS,
    DoctorFinding,
    EndpointProbe,
    EndpointRefused,
    EndpointSession,
    FindingState,
    ProbeAnswer,
    failed,
    joined,
    skipped,
    unknown,
    verdict,
    whole,
)
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.trace import ModelCall
from tests.collect.doctor import toys
from tests.collect.doctor.toys import Toy, chances, serving
from tests.endpoint import Endpoint, Scripted, completion
from tests.endpoint import serving as endpoint_serving


def found(toy: toys.Toy, *, spell: Any = spell_byte, **how: Any) -> dict[str, DoctorFinding]:
    async def asking(url: str) -> tuple[DoctorFinding, ...]:
        async with EndpointProbe(url) as probe:
            return await examine(probe, "toy", **{"samples": 12, **how})

    with toys.serving(toy, spell=spell) as url:
        findings = asyncio.run(asking(url))
    assert [one.check for one in findings] == list(CHECKS)
    return {one.check: one for one in findings}


def codes(findings: dict[str, DoctorFinding]) -> list[str]:
    decision = verdict(list(findings.values()))
    assert decision.open is ([reason.code for reason in decision.reasons] == ["endpoint_fit"])
    return [reason.code for reason in decision.reasons]


def test_a_sound_endpoint_passes_every_check() -> None:
    findings = found(toys.Toy(), trainer=lambda calls: [call.logprobs or () for call in calls])
    assert {check: one.state for check, one in findings.items()} == dict.fromkeys(CHECKS, FindingState.OK)
    assert codes(findings) == ["endpoint_fit"]


@pytest.mark.parametrize(
    ("toy", "reasons"),
    [
        (toys.NoIds(), ["no_token_ids", "no_logprobs"]),
        (toys.Raw(), ["logprobs_raw_under_temperature", "logprobs_raw_under_top_k", "logprobs_raw_under_top_p"]),
        (toys.Unfiltered(), ["logprobs_raw_under_top_k", "logprobs_raw_under_top_p"]),
        (toys.Dated(), ["template_rewrites", "tool_calls_rewritten"]),
        (toys.Forgetful(), ["template_rewrites", "tool_calls_rewritten"]),
        (toys.Merging(), ["retokenised"]),
        (toys.Elsewhere(), ["ids_of_other_text"]),
        (toys.Mute(), ["tool_calls_lost"]),
        (toys.Toolless(), ["tools_unseen"]),
        (toys.Inattentive(), ["tool_results_lost"]),
        (toys.Deaf(), ["logprobs_ignored_under_top_k", "logprobs_ignored_under_top_p"]),
        (toys.Stammering(), ["stream_differs"]),
        (toys.Chatty(), ["no_tool_call"]),
        (toys.Miscounting(), ["usage_differs"]),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_wrong_endpoint_is_rejected_for_what_is_wrong_with_it(toy: toys.Toy, reasons: list[str]) -> None:
    assert codes(found(toy)) == reasons


@pytest.mark.parametrize(
    ("toy", "reason"), [(toys.Twice(), "logprobs_neither_under_temperature"), (toys.Shifted(), "draws_differ")]
)
def test_log_probs_that_fit_nothing_are_among_the_reasons(toy: toys.Toy, reason: str) -> None:
    assert reason in codes(found(toy))


@pytest.mark.parametrize(
    ("toy", "reason"),
    [(toys.Toy(), "endpoint_fit"), (toys.Elsewhere(), "ids_of_other_text"), (toys.Mute(), "tool_calls_lost")],
)
def test_what_is_wrong_is_found_without_the_spelling_of_tokens(toy: toys.Toy, reason: str) -> None:
    assert codes(found(toy, spell=None)) == [reason]


def test_what_an_endpoint_does_not_offer_is_left_out() -> None:
    findings = found(toys.Plain())
    assert findings["top_k"].state is FindingState.SKIPPED and "top_k: is not known here" in findings["top_k"].detail
    assert findings["top_p"].state is FindingState.OK
    assert findings["temperature"].state is FindingState.UNKNOWN  # one temperature says nothing of another
    assert codes(findings) == ["logprobs_unknown_under_temperature"]


def test_an_answer_that_differs_at_temperature_0_is_worth_a_warning() -> None:
    findings = found(toys.Fickle(), with_tools=False)
    assert (findings["repeatable"].state, findings["repeatable"].code) == (FindingState.WARNING, "not_repeatable")
    assert findings["stream"].state is not FindingState.FAILED  # it differs as two whole answers do


def test_a_trainer_that_finds_other_log_probs_is_told_with_the_distance() -> None:
    findings = found(toys.Toy(), trainer=lambda calls: [[p - 0.25 for p in call.logprobs or ()] for call in calls])
    gap = findings["trainer_gap"]
    assert (gap.state, gap.code) == (FindingState.FAILED, "trainer_gap")
    assert gap.figures["mean"] == pytest.approx(0.25) and gap.figures["kl"] == pytest.approx(0.0288, abs=1e-4)
    short = found(toys.Toy(), trainer=lambda calls: [], with_tools=False, samples=2)["trainer_gap"]
    assert short.state is FindingState.FAILED and "gave 0 log-probs" in short.detail


def test_a_model_that_says_bytes_which_are_no_text_is_not_failed_for_it() -> None:
    findings = found(toys.Toy(saying=toys.beyond_text), trainer=lambda calls: [call.logprobs or () for call in calls])
    for check in ("ids_of_text", "template"):
        assert findings[check].state is FindingState.SKIPPED and "no UTF-8" in findings[check].detail
    assert codes(findings) == ["endpoint_fit"]


def test_tools_need_not_be_asked_for() -> None:
    findings = found(toys.Mute(), with_tools=False)
    assert findings["tool_calls"].state is FindingState.SKIPPED and codes(findings) == ["endpoint_fit"]


def test_an_endpoint_that_refuses_everything_has_one_reason() -> None:
    async def asking(url: str) -> tuple[DoctorFinding, ...]:
        async with EndpointProbe(url) as probe:
            return await examine(probe, "another")

    with toys.serving(toys.Toy()) as url:
        findings = asyncio.run(asking(url))
    assert [one.state for one in findings] == [FindingState.FAILED, *[FindingState.SKIPPED] * (len(CHECKS) - 1)]
    assert "HTTP 404: model 'another': is not served here" in findings[0].detail


def answer(prompt: list[int], ids: list[int], finish: str = "stop") -> ProbeAnswer:
    return ProbeAnswer(asked={}, message={}, finish=finish, prompt_ids=tuple(prompt), ids=tuple(ids))


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ([1, 2, 3, 4, 5, 9], None),
        ([1, 9, 3, 4, 5], "the opening is written differently a turn later, from token 1 on"),
        ([1, 2, 9, 4, 5], "what was answered is written differently a turn later, from its first token on"),
        ([1, 2, 3, 9, 5], "the answer comes back in other ids, from token 1 of 3 on"),
        ([1, 2, 3, 4, 9], "the answer's end is marked differently a turn later"),
        ([1, 2, 3], "the answer comes back in other ids, from token 1 of 3 on"),  # it is cut
    ],
)
def test_where_a_later_prompt_parts_is_told(later: list[int], says: str | None) -> None:
    why = parting(answer([1, 2], [3, 4, 5]), answer(later, [7]))
    assert (why and why[1]) == says


class Counting(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[tuple[float, int, float]] = Counter()

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        self.asked[sampling["temperature"], sampling.get("top_k", 0), sampling.get("top_p", 1.0)] += 1
        assert sampling["max_tokens"] == 4
        return await super().__call__(messages, **sampling)


class Cold(Toy):
    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        raise BadInput("temperature", why="only 0 is known here")


def assayed(toy: Toy, samples: int, heard: list[str]) -> list[DoctorFinding]:
    async def asking(url: str) -> list[DoctorFinding]:
        async with EndpointProbe(url) as probe:
            return await assay(EndpointSession(probe, "toy", heard.append), samples, None)

    with serving(toy) as url:
        return asyncio.run(asking(url))


def test_every_way_of_drawing_is_asked_as_often() -> None:
    toy, heard = Counting(), list[str]()
    found = assayed(toy, 8, heard)
    ways = [
        (1.0, 0, 1.0),
        (1.5, 0, 1.0),
        (2.0, 0, 1.0),
        *((t, 2, 1.0) for t in (1.0, 2.0)),
        (1.0, 0, 0.6),
        (2.0, 0, 0.6),
    ]
    assert toy.asked == dict.fromkeys(ways, 8 * len(OPENERS))
    checks = ["temperature", "top_k", "top_p", "draws", "trainer_gap"]
    assert [one.check for one in found] == heard == checks
    assert found[0].figures["comparisons"] >= 3 and found[0].figures["error"] < 1e-6


def test_an_endpoint_that_does_not_sample_is_not_told_to_be_right() -> None:
    found = assayed(Cold(), 8, [])
    assert [one.state for one in found] == [FindingState.UNKNOWN] * 4 + [FindingState.SKIPPED]
    assert "only 0 is known here" in found[0].detail


FINE = DoctorFinding(check="usage", detail="as many as there are ids")


def test_what_passed_is_fit_and_where_nothing_was_looked_at_the_answer_is_no() -> None:
    decision = verdict([FINE, FINE])
    assert decision.open and [(one.code, one.text) for one in decision.reasons] == [("endpoint_fit", "2 checks passed")]
    for findings in ([], [skipped("usage", "no reason")]):
        decision = verdict(findings)
        assert not decision.open and decision.reasons[0].code == "nothing_examined"


@pytest.mark.parametrize(
    ("finding", "is_open"),
    [
        (failed("usage", "usage_differs", "3 and 4"), False),
        (unknown("top_k", "no_samples", "nothing came"), False),
        (skipped("tool_calls", "not asked for"), True),
        (DoctorFinding(check="repeatable", state=FindingState.WARNING, code="not_repeatable", detail="2 of 3"), True),
    ],
    ids=lambda given: given.state.value if isinstance(given, DoctorFinding) else "",
)
def test_each_reason_is_named(finding: DoctorFinding, is_open: bool) -> None:
    decision = verdict([FINE, finding])
    assert decision.open is is_open
    assert is_open or [(one.code, one.text) for one in decision.reasons] == [(finding.code, finding.detail)]


HELLO: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}


def test_an_answer_is_kept_as_it_came() -> None:
    answer = whole(HELLO, completion("yes"))
    assert (answer.text, answer.ids, answer.prompt_ids) == ("yes", (5, 6, 7), (1, 2, 3, 4))
    assert (answer.logprobs, answer.spelled) == ((-0.5, -0.25, 0.0), (b"a", b"b", b"c"))
    assert answer.call().completion_ids == (5, 6, 7) and answer.call().messages == tuple(HELLO["messages"])


@pytest.mark.parametrize(
    ("choice", "ids", "logprobs"),
    [
        ({"token_ids": [5, 6]}, (5, 6), (-0.5, -0.25, 0.0)),  # as many as there are, though they do not fit
        ({"token_ids": None, "logprobs": None}, None, None),
        ({"token_ids": None, "logprobs": {"content": [{"token": "token_id:17", "logprob": -1}]}}, (17,), (-1.0,)),
        ({"logprobs": {"content": [{"token": "x", "logprob": 7.5}]}}, (5, 6, 7), (7.5,)),
    ],
)
def test_what_does_not_fit_together_is_kept_too(choice: Any, ids: Any, logprobs: Any) -> None:
    answer = whole(HELLO, completion("yes", choice=choice))
    assert (answer.ids, answer.logprobs) == (ids, logprobs)


@pytest.mark.parametrize(
    "body", [[], None, {"choices": []}, {"error": {"message": "no"}}, completion("x", choice={"token_ids": ["a"]})]
)
def test_what_is_no_completion_is_refused(body: Any) -> None:
    with pytest.raises(EndpointRefused, match="not a chat completion"):
        whole(HELLO, body)


def test_a_stream_put_together_is_the_whole_answer() -> None:
    async def both(url: str) -> tuple[ProbeAnswer, ProbeAnswer]:
        async with EndpointProbe(url) as probe:
            body = HELLO | {"temperature": 0.0, "logprobs": True, "return_token_ids": True, "tools": [TOOL]}
            return await probe.ask(body), await probe.hear(body)

    with serving(Toy()) as url:
        asked, heard = asyncio.run(both(url))
    assert heard.message == asked.message and heard.calls[0]["id"] == "call_1"
    for name in ("ids", "prompt_ids", "logprobs", "spelled", "usage", "finish", "model"):
        assert getattr(heard, name) == getattr(asked, name), name


TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: {\n\n", "an event that is not JSON"),
        ("data: 7\n\n", "an event that is not JSON, or no chunk"),
        ("data: [DONE]\n\n", "a stream without a choice"),
        ('data: {"error": {"message": "broke off"}}\n\n', "broke off"),
        ('data: {"choices": [{"delta": {}, "token_ids": ["a"]}]}\n\n', "not a chat completion"),
    ],
)
def test_a_broken_stream_says_so(text: str, says: str) -> None:
    with pytest.raises(EndpointRefused, match=says):
        joined(HELLO, text)


@given(st.text())
def test_no_text_breaks_the_events(text: str) -> None:
    data = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    assert joined(HELLO, f": a comment\r\nevent: x\ndata: {data}\r\n\r\ndata: [DONE]\n\n").text == text


@given(st.text())
def test_no_stream_does_more_than_be_refused(text: str) -> None:
    with suppress(EndpointRefused):
        joined(HELLO, text)


# Over a socket


def ask(endpoint: Endpoint, **how: Any) -> ProbeAnswer:
    async def asking() -> ProbeAnswer:
        async with EndpointProbe(endpoint.url, **how) as probe:
            return await EndpointSession(probe, "toy", lambda check: None).ask(["hello"])

    return asyncio.run(asking())


def test_what_the_endpoint_refuses_by_name_is_left_out() -> None:
    with endpoint_serving() as endpoint:
        endpoint.script.append(Scripted(400, {"error": {"message": "unknown argument: return_token_ids"}}))
        assert ask(endpoint).text == "echo: hello"
        sent = [set(asked.body) & {"logprobs", "return_token_ids"} for asked in endpoint.asked]
        assert sent == [{"logprobs", "return_token_ids"}, {"logprobs"}]


def test_a_refusal_keeps_its_status_and_its_words() -> None:
    with endpoint_serving() as endpoint:
        endpoint.script.append(Scripted(429, {"error": {"message": "later\nplease"}}))
        with pytest.raises(EndpointRefused) as caught:
            ask(endpoint)
        assert (caught.value.status, caught.value.says) == (429, "later please")


def test_a_key_that_is_said_back_is_not_told() -> None:
    with endpoint_serving() as endpoint:
        endpoint.script.append(Scripted(401, {"error": {"message": "no: Bearer tell-nobody"}}))
        with pytest.raises(EndpointRefused, match="HTTP 401: no: Bearer …") as caught:
            ask(endpoint, api_key="tell-nobody")
        assert endpoint.asked[0].headers["Authorization"] == "Bearer tell-nobody"
        assert "tell-nobody" not in str(caught.value)
        endpoint.script.append(Scripted(200, completion("you are tell-nobody")))
        assert ask(endpoint, api_key="tell-nobody").text == "you are …"


def test_nobody_there_is_a_fault_and_no_address_is_bad_input() -> None:
    with pytest.raises(Fault, match="is it running and reachable"):
        ask(Endpoint(url="http://127.0.0.1:9/v1"))
    with pytest.raises(BadInput, match="is not http:// or https://"):
        EndpointProbe("localhost:8377")


WORDS = ["Alpha", "Beta", "Gamma", "Delta"]
SHARP = tolerance(0.0)
Telling = Callable[..., dict[str, float]]


def in_force(temperature: float = 1.0, **filters: float) -> dict[str, float]:
    return chances(temperature, **filters)  # type: ignore[arg-type]


def raw(temperature: float = 1.0, **filters: float) -> dict[str, float]:
    return {word: chances()[word] for word in chances(temperature, **filters)}  # type: ignore[arg-type]


def unfiltered(temperature: float = 1.0, **filters: float) -> dict[str, float]:
    return {word: chances(temperature)[word] for word in chances(temperature, **filters)}  # type: ignore[arg-type]


def told(p: dict[str, float], prompts: int = 3) -> DrawnStats:
    """Every token once, after each of some prompts."""
    return drawn((n, [WORDS.index(word)], [math.log(p[word])]) for n in range(prompts) for word in p)


@pytest.mark.parametrize(
    ("telling", "heat", "filters"),
    [(in_force, "in force", "in force"), (raw, "raw", "raw"), (unfiltered, "in force", "raw")],
)
def test_each_meaning_is_recognised(telling: Telling, heat: str, filters: str) -> None:
    plain = {at: told(telling(at)) for at in (1.0, 1.5, 2.0)}
    assert under_temperature(plain, SHARP).meaning == heat
    assert under_top_k([(plain[1.0], told(telling(1.0, top_k=2)))], SHARP, 2).meaning == filters
    assert under_top_p([(plain[1.0], told(telling(1.0, top_p=0.6)))], SHARP, 0.6).meaning == filters


def test_a_filter_that_is_not_applied_is_seen_by_what_is_drawn() -> None:
    plain = told(chances())
    assert under_top_k([(plain, plain)], SHARP, 2).meaning is Meaning.IGNORED
    assert under_top_p([(plain, plain)], SHARP, 0.6).meaning is Meaning.IGNORED


def test_a_constant_that_is_added_is_no_meaning() -> None:
    plain, kept = chances(), chances(top_k=2)
    off = {word: p * 0.8 for word, p in kept.items()}
    assert under_top_k([(told(plain), told(off))], SHARP, 2).meaning is Meaning.OTHER


@pytest.mark.parametrize("words", [["Alpha"], ["Beta", "Gamma"]])
def test_what_too_few_draws_do_not_tell_is_not_guessed(words: list[str]) -> None:
    seen = told({word: chances()[word] for word in words})  # something likelier may not have been seen
    assert under_top_p([(seen, seen)], SHARP, 0.6).meaning is Meaning.UNKNOWN
    assert under_temperature({1.0: told({"Alpha": 0.5})}, SHARP).meaning is Meaning.UNKNOWN


def test_noise_widens_what_is_called_the_same() -> None:
    noisy = drawn([(0, [1], [-1.0]), (0, [1], [-1.05]), (1, [1], [-1.0])])
    assert spread([noisy]) == pytest.approx(0.05) and tolerance(spread([noisy])) == pytest.approx(0.15)
    assert noisy.known((0, ())) == {1: pytest.approx(-1.025)}
    assert spread([]) == 0.0


def draws(hits: int, count: int, p: float) -> DrawnStats:
    """The likeliest token so often, the other for the rest."""
    tokens = [0] * hits + [1] * (count - hits)
    return drawn((0, [token], [math.log(p if token == 0 else 1.0 - p)]) for token in tokens)


@pytest.mark.parametrize("hits", [5, 12, 13, 15, 24])
@pytest.mark.parametrize("p", [0.55, 0.9, 1.0 - 1e-9])
def test_draws_are_held_against_their_log_probs(hits: int, p: float) -> None:
    """As often as Binomial(24, p) says, by scipy's tails; certainty that fails is as good as impossible."""
    p_value, states = surprise(draws(hits, 24, p))
    tails = (binom.cdf(hits, 24, p), binom.sf(hits - 1, 24, p))
    assert states == 1 and p_value == pytest.approx(min(1.0, 2.0 * min(tails)), rel=1e-6, abs=1e-12)


def test_probabilities_that_add_up_to_more_than_one_are_impossible() -> None:
    assert surprise(drawn((0, [token], [math.log(0.6)]) for token in (0, 1) * 5)) == (0.0, 1)
    assert surprise(drawn([(0, [1], [-1.0])])) == (1.0, 0)  # too few to say anything


logits = st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=8, unique_by=lambda x: round(x, 1))


@settings(max_examples=60, deadline=None)
@given(logits, st.floats(0.3, 0.9), st.floats(1.2, 2.0))
def test_in_force_is_never_taken_for_raw_nor_raw_for_in_force(x: list[float], cold: float, hot: float) -> None:
    def at(heat: float) -> list[float]:
        total = math.log(sum(math.exp(one / heat) for one in x))
        return [one / heat - total for one in x]

    def state(values: list[float]) -> DrawnStats:
        return drawn((0, [token], [value]) for token, value in enumerate(values))

    true = under_temperature({cold: state(at(cold)), hot: state(at(hot))}, SHARP).meaning
    false = under_temperature({cold: state(at(1.0)), hot: state(at(1.0))}, SHARP).meaning
    assert true in (Meaning.IN_FORCE, Meaning.UNKNOWN) and false in (Meaning.RAW, Meaning.UNKNOWN)
