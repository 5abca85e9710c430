"""What is kept holds no secret and names nobody: in its text, in its structure, and in its tokens."""

from __future__ import annotations

import json
import re
import stat
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.parts import canaries
from benchmarks.parts.planted import planted as planted_items
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.trace import NEUTRAL, ModelCall, Span, SpanEvent, SpanKind, ToolCall
from holdfast.policies import tokens
from holdfast.policies.chat_template import ByteTemplate
from holdfast.privacy.detect import Detection, personal, secrets
from holdfast.privacy.scrub import KEY_FILE, PSEUDONYM, Scrub, _Literals, count, key_in, merged
from tests.policies.small import show

SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"
MAIL = "ada@analytical-engine.org"
SCRUB = Scrub(b"k" * 32, token_bytes=ByteTemplate().token_bytes)


def chat(*said: str, answer: str = "Done.", **fields: Any) -> ModelCall:
    """A call with the ids that our own model would have had."""
    messages = tuple({"role": "user", "content": text} for text in said)
    response = {"role": "assistant", "content": answer, **fields.pop("response", {})}
    completion = tuple(tokens.answer(response))
    given: dict[str, Any] = {"model": "m", "messages": messages, "response": response}
    given |= {"prompt_ids": tuple(tokens.prompt(messages)), "completion_ids": completion}
    return ModelCall(**given | {"logprobs": (-0.5,) * len(completion)} | fields)


def shown(call: ModelCall) -> str:
    return show((*(call.prompt_ids or ()), *(call.completion_ids or ())))


# Recall and precision.


def test_of_planted_secrets_at_most_one_in_a_hundred_is_left_and_of_people_one_in_twenty() -> None:
    found, planted = Counter[str](), Counter[str]()
    for canary in canaries.canaries(seed=5, each=100):
        assert canaries.is_left(canary, canary.message)  # else nothing would be measured
        planted[canary.kind] += 1
        found[canary.kind] += not canaries.is_left(canary, SCRUB.value(canary.message))
    recall = {kind: found[kind] / planted[kind] for kind in planted}
    assert min(recall[kind] for kind in canaries.SECRETS) >= 0.99, recall
    assert min(recall[kind] for kind in canaries.PERSONAL) >= 0.95, recall


def test_forms_that_were_learnt_from_misses_stay_found_and_clean_talk_comes_through_as_it_was() -> None:
    """An, which is a word, is the one that is left."""
    left = [canary.planted for canary in canaries.KNOWN if canaries.is_left(canary, SCRUB.value(canary.message))]
    assert left == ["Nguyen Van An"]
    assert all(canaries.is_left(canary, canary.message) for canary in (*canaries.KNOWN, *canaries.UNSEEN))  # before
    assert not [text for text in (*canaries.TOOL_USE, *canaries.CODE) if SCRUB.text(text) != text]


# Pseudonyms.


def test_a_text_may_end_anywhere_in_a_secret_or_a_name() -> None:
    """A Korean name of three letters at the end of a text ended scrubbing itself."""
    for name in ("강민준", "김서연", "정하은"):
        assert name not in SCRUB.text(f"담당자: {name}")
    for item in planted_items(1500, 5):
        end = item.text.index(item.secret) + len(item.secret)
        for cut in (end - 1, end, end + 1):
            SCRUB.text(item.text[:cut])


def test_one_thing_has_one_pseudonym_in_every_spelling_and_none_without_the_key() -> None:
    one = SCRUB.text(f"{MAIL} or {MAIL.upper()}, +44 20 7946 0958 or +44-20-7946-0958, 4539 1488 0343 6467")
    first, second = (match.group() for match in PSEUDONYM.finditer(one) if match.group().startswith("<email"))
    assert first == second
    assert len({match.group() for match in PSEUDONYM.finditer(one)}) == 3
    assert Scrub(b"k" * 32).text(MAIL) == first
    assert Scrub(b"other" * 8).text(MAIL) != first
    said = SCRUB.text("Maria Lopez wrote. Ask Maria, or Mrs. Lopez.")  # whoever is meant stays the same
    assert said.count("<name:") == 4 and len(set(PSEUDONYM.findall(said))) == 2
    assert count(said) == {"name": 4}
    held = [SCRUB.text(f"passport number: {spelt}") for spelt in ("AB 1234567", "AB1234567", "AB 1234568")]
    assert held[0] == held[1] != held[2]


PARTS = [MAIL, SECRET, "Maria Lopez", "hello", "<email:", ":3f2a>", " ", "\n", '"', "é"]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_scrubbing_is_final_and_leaves_nothing_to_be_found(parts: list[str]) -> None:
    once = SCRUB.text(" ".join(parts))
    assert SCRUB.text(once) == once
    assert not secrets(once) | personal(once)
    value = SCRUB.value({"password": "hunter2", "full_name": "Ada Lovelace", "note": f"{MAIL} at 12 Maple Street"})
    assert SCRUB.value(value) == value
    call = SCRUB.call(chat(f"write to {MAIL}"))
    assert SCRUB.call(call) == call


def test_overlapping_finds_are_one_of_the_kind_that_counts_more() -> None:
    places = [Detection("name", 0, 4), Detection("email", 2, 9), Detection("phone", 9, 12)]
    assert merged("x" * 12, places) == (Detection("email", 0, 9), Detection("phone", 9, 12))


# Structure.


def test_messages_and_arguments_keep_their_structure() -> None:
    deep = {"password": "abc", MAIL: None}
    arguments = json.dumps({"to": [MAIL], "text": f"hi\nMaria, {MAIL}", "n": 3, "deep": deep})
    function = {"name": "send", "arguments": arguments}
    call = {"id": "call_a7B3k9Zq81LmNo2PqRs5TuVw8XyZa1Bc", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"card":4539148803436467,"ok":true}'}
    scrubbed = Scrub(b"k" * 32).call(
        ModelCall(model="m", messages=(result,), response={"role": "assistant", "content": None, "tool_calls": [call]})
    )
    mail, name = SCRUB.text(MAIL), SCRUB.text("Maria")
    (sent,) = scrubbed.response["tool_calls"]
    assert (sent["id"], sent["type"], sent["function"]["name"]) == (call["id"], "function", "send")
    read = json.loads(sent["function"]["arguments"])
    assert read["deep"].pop("password").startswith("<secret:")
    assert read == {"to": [mail], "text": f"hi\n{name}, {mail}", "n": 3, "deep": {mail: None}}
    (got,) = scrubbed.messages
    assert got["tool_call_id"] == call["id"]
    card = SCRUB.text("4539148803436467")
    assert got["content"] == f'{{"card":"{card}","ok":true}}'  # as narrow as it was


def test_json_in_which_nothing_is_found_is_left_letter_by_letter() -> None:
    text = '{ "a" :1.50,\n"b": [1e3] }'
    assert SCRUB.value({"arguments": text, "other": "[not json"}) == {"arguments": text, "other": "[not json"}


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("password", "abc", "secret"),
        ("clientSecret", "abcdef", "secret"),
        ("x-api-key", "abcdef", "secret"),
        ("refresh_token", "abcdef", "secret"),
        ("Authorization", "Custom abc", "secret"),
        ("phone", "5552671", "phone"),
        ("mobileNumber", "555 2671", "phone"),
        ("lastName", "Xylander", "name"),
        ("shipping_address", "Flat 3 above the shop", "address"),
    ],
)
def test_a_key_may_say_what_its_value_is(key: str, value: str, word: str) -> None:
    scrubbed = SCRUB.value({key: value, "n": 1})
    assert count(scrubbed) == {word: 1} and scrubbed.keys() == {key, "n"}
    assert SCRUB.value({"note": value}) == {"note": value}


@pytest.mark.parametrize(
    "harmless",
    [
        {"password": "", "token": "hello", "api_key": None, "secret": "<secret>"},
        {"properties": {"password": {"type": "string"}, "email": {"type": "string"}}},
        {"address": "localhost:8080", "phone": "ring", "name": "search", "seed": 9007199254740993},
        {"max_tokens": 100, "tokens": 5, "key": "Enter"},
    ],
)
def test_a_key_that_says_nothing_of_a_person_changes_nothing(harmless: dict[str, Any]) -> None:
    assert SCRUB.value(harmless) == harmless
    mail = SCRUB.text(MAIL)
    assert SCRUB.value({MAIL: 1, MAIL.upper(): 2}) == {mail: 1, f"{mail}'": 2}  # two spellings of a key stay two


def test_what_is_given_away_once_is_found_wherever_it_is_said() -> None:
    answer = "I log in with blue!77 for Lovelace."
    call = chat("my password is blue!77", answer=answer, response={"name": "Ada Lovelace"})
    scrubbed = SCRUB.call(replace(call, sampling={"stop": ["blue!77"], "seed": 4539148803436467}))
    assert "blue!77" not in str(scrubbed) and "Lovelace" not in str(scrubbed)
    assert scrubbed.sampling["seed"] == 4539148803436467  # a setting, nobody's number
    assert scrubbed.response["content"].count("<secret:") == 1


def span(kind: SpanKind = SpanKind.TOOL, name: str = "t", **parts: Any) -> Span:
    return Span(seq=1, kind=kind, name=name, started_at=1.0, **parts)


def test_a_span_is_scrubbed_in_all_its_parts() -> None:
    tool = ToolCall(tool="send", arguments={"to": MAIL, "password": "blue!77"}, result=["blue!77"], error=f"no {MAIL}")
    event = SpanEvent(name="e", at=1.0, attributes={"who": "Maria Lopez"})
    scrubbed = SCRUB.span(span(name=f"send {MAIL}", tool=tool, attributes={"k": SECRET}, events=(event,)))
    assert not [word for word in (MAIL, "blue!77", "Maria", "Lopez", SECRET) if word in str(scrubbed)]
    assert (scrubbed.seq, scrubbed.kind, scrubbed.events[0].at) == (1, SpanKind.TOOL, 1.0)
    assert MAIL not in str(SCRUB.span(span(SpanKind.MODEL, "chat", model=chat(MAIL))))


def test_names_are_looked_at_too_and_stay_where_they_only_look_random() -> None:
    call = SCRUB.call(ModelCall(model=f"m-{SECRET}", messages=(), response={}, finish_reason=MAIL))
    assert SECRET not in call.model and call.finish_reason == SCRUB.text(MAIL)
    tool = ToolCall(tool=f"t {SECRET}", arguments={}, call_id=SECRET)
    event = SpanEvent(name=f"e {MAIL}", at=1.0)
    scrubbed = str(SCRUB.span(span(tool=tool, events=(event,), trace_id=SECRET, span_id=SECRET)))
    assert SECRET not in scrubbed and MAIL not in scrubbed
    plain = ModelCall(model="mistralai/Mixtral-8x22B-Instruct-v012", messages=(), response={}, finish_reason="stop")
    assert SCRUB.call(plain) is plain
    number = span(SpanKind.TELEMETRY, trace_id="4539148803436467")
    assert SCRUB.span(number) == number


@pytest.mark.parametrize("calls", [5, "abc", {"a": 1}, [5], [{"function": "x"}], [{"function": {"name": 5}}]])
def test_calls_of_tools_that_are_none_are_scrubbed_as_anything_else(calls: Any) -> None:
    call = chat(f"write to {MAIL}")
    kept = SCRUB.call(replace(call, response={**call.response, "tool_calls": calls}))
    assert kept.response["tool_calls"] == calls and len(kept.scrubbed) == 1


@pytest.mark.parametrize("number", [4539148803436467, 4539148803436467.0])
def test_a_card_number_is_found_as_a_number_of_any_kind(number: float) -> None:
    assert count(SCRUB.value({"n": number})) == {"card": 1}
    assert count(SCRUB.text(f'{{"n": {number}}}')) == {"card": 1}
    harmless = {"n": 1234567890.5, "t": 1.7e18, "big": 10**5000, "inf": float("inf"), "no": 12.0}
    assert SCRUB.value(harmless) == harmless


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f'{{"k":"{SECRET}","k":1}}', '{"k":1}'),
        ('{"password": "Xy7!hunterzzz", "password": ""}', '{"password": ""}'),
        (f'[{{"a": {{"k": "\\u0041{SECRET[1:]}", "b": [2], "k": 1}}}}]', '[{"a": {"k": 1, "b": [2]}}]'),
        (f'{{"k":{{"x":"{SECRET}","x":1}},"k":2}}', '{"k":2}'),
        ('{"k": 1,"k": 2}', '{"k": 1,"k": 2}'),  # nothing to hide
    ],
)
def test_a_key_that_is_there_twice_hides_nothing(text: str, kept: str) -> None:
    assert SCRUB.text(text) == kept


@given(
    st.lists(st.text(alphabet="ab_ +-é", min_size=1, max_size=5), max_size=6), st.text(alphabet="ab_ +-é", max_size=40)
)
def test_literals_are_found_as_one_pattern_of_all_of_them_would_find_them(wanted: list[str], text: str) -> None:
    longest = sorted(set(wanted), key=len, reverse=True)
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)" if wanted else "(?!)"
    assert list(_Literals(wanted).within(text)) == [match.span() for match in re.finditer(pattern, text)]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "u v, " * 10 * n + " ".join(f"{'uv'[i % 2]}{i}@corp{i}.org" for i in range(n)),
        lambda n: "<email:0123abcd>," * 4 * n + " ".join(f"u{i}@mail{i}.org" for i in range(n)),
        lambda n: json.dumps({_spelt(i): i for i in range(n)}),
    ],
)
def test_four_times_the_people_take_about_four_times_as_long(make: Any) -> None:
    def once(n: int) -> float:
        call = ModelCall(model="m", messages=({"role": "user", "content": make(n)},), response={})
        began = time.process_time()
        Scrub(b"k" * 32).call(call)
        return time.process_time() - began

    def cost(n: int) -> float:
        return min(once(n) for _ in range(2))  # whatever else the machine does

    assert cost(2000) < 8 * cost(500) + 0.1  # 16 times, were it quadratic


def _spelt(n: int) -> str:
    """One address in as many ways as there are numbers."""
    letters = "abcdefghijkl@corp.org"
    return "".join(letter.upper() if n >> place & 1 else letter for place, letter in enumerate(letters))


def test_a_message_that_is_only_a_text_is_looked_through_as_any_other_is() -> None:
    """Its text may be JSON, whose keys tell what a value is, though the same letters elsewhere told nothing."""
    scrub, told = Scrub(b"k" * 32), '{"password": "hunter two"}'
    assert not scrub.detections(told)
    for text in (told, f"write to {MAIL}"):
        for message in ({"role": "user", "content": text}, {"role": "user", "content": text, "name": None}):
            call = ModelCall(model="m", messages=(message,), response={})
            assert scrub.call(call).messages == tuple(scrub.messages([message])) != call.messages
    clean = ModelCall(
        model="m", messages=({"role": "user", "content": "hello"},), response={"role": MAIL, "content": "x"}
    )
    assert MAIL not in str(scrub.call(clean))


def test_what_was_clean_a_turn_ago_is_found_once_a_later_turn_gives_it_away() -> None:
    scrub = Scrub(b"k" * 32)
    first, later = "Did you mean hunter22x?", "Yes: the password is hunter22x"
    asked = ModelCall(model="m", messages=({"role": "user", "content": first},), response={})
    assert scrub.call(asked) is asked
    told = replace(asked, response={"role": "assistant", "content": later})
    kept = scrub.call(told)
    assert "hunter22x" not in json.dumps([kept.messages, kept.response])
    assert kept == Scrub(b"k" * 32).call(told)
    assert scrub.call(asked) is asked


def test_a_value_that_may_stand_in_one_place_may_not_in_another_and_nothing_found_is_the_same_call() -> None:
    scrub, number = Scrub(b"k" * 32), {"to": 4111111111111111}  # a card's number, and a seed
    seeded = ModelCall(model="m", messages=(), response={}, sampling=number)
    assert scrub.call(seeded) is seeded
    assert count([scrub.call(replace(seeded, sampling={}, messages=(number,))).messages]) == {"card": 1}
    call = chat("What is 417 * 23?", answer="9591")
    assert SCRUB.call(call) is call and scrub.call(call) is call  # its ids too


def test_what_is_remembered_changes_nothing_that_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.privacy.scrub.MOST_KEPT", 3000)
    monkeypatch.setattr("holdfast.privacy.scrub.MOST_CLEAN", 20)
    scrub, said = Scrub(b"k" * 32), list[Any]()
    for canary in canaries.canaries(seed=6, each=4):
        said = [*said[-6:], {"role": "user", "content": "cut: \ud83d"}, {"role": "user", "content": canary.message}]
        call = ModelCall(model="m", messages=tuple(said), response={"role": "assistant", "content": "Fine."})
        assert scrub.call(call) == Scrub(b"k" * 32).call(call)
    assert scrub._seen._kept <= 3000 and len(scrub._clean._known) <= 20


def test_what_is_nested_without_end_is_refused_by_name() -> None:
    deep: Any = MAIL
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadRecord, match="^model call: is nested too deeply to be scrubbed; flatten it$"):
        SCRUB.call(ModelCall(model="m", messages=({"role": "user", "content": deep},), response={}))


# Tokens.


def test_ids_over_what_was_replaced_go_and_the_rest_stay() -> None:
    call = chat(f"é {MAIL}!", answer=f"I wrote to {MAIL}.")
    scrubbed = SCRUB.call(call)
    before = len(call.prompt_ids or ())
    assert shown(scrubbed).replace("\0" * len(MAIL), "~") == "<|user|>é ~!<|end|><|assistant|>I wrote to ~.<|end|>"
    (one, two), (three, four) = scrubbed.scrubbed
    assert (two - one, four - three) == (len(MAIL), len(MAIL)) and two <= before <= three
    assert scrubbed.forced == tuple(range(three - before, four - before))
    assert scrubbed.logprobs is not None
    assert {place for place, value in enumerate(scrubbed.logprobs) if value == 0.0} == set(scrubbed.forced)
    assert scrubbed.completion_tokens == call.completion_tokens


def test_no_stored_id_sequence_spells_what_was_planted() -> None:
    """In the text, in arguments with their escapes, in results; what no rule can know is not asked for."""
    scrubbed = 0
    for canary in canaries.canaries(seed=11, each=25):
        if canary.kind == canaries.UNLISTED:
            continue
        is_answer = canary.message["role"] == "assistant"
        messages = () if is_answer else (canary.message,)
        response = canary.message if is_answer else {"role": "assistant", "content": "Noted."}
        ids = {"prompt_ids": tuple(tokens.prompt(messages)), "completion_ids": tuple(tokens.answer(response))}
        kept = SCRUB.call(ModelCall(model="m", messages=messages, response=response, **ids))
        text = shown(kept)
        words = canary.planted.split() if canary.kind == "name" else [canary.planted]
        assert not [word for word in words if word in text], (canary.kind, text)
        assert not canaries.is_left(canary, [kept.messages, kept.response])
        scrubbed += bool(kept.scrubbed)
    assert scrubbed > 300  # most are cut out, not thrown away whole


class Pairs:
    """Two bytes a token, wherever letters begin."""

    @staticmethod
    def ids(text: str) -> tuple[int, ...]:
        data = text.encode() + b" " * (len(text.encode()) % 2)
        return tuple(256 * a + b for a, b in zip(data[::2], data[1::2], strict=True))

    @staticmethod
    def spell(token: int) -> bytes:
        return bytes(divmod(token, 256))


@pytest.mark.parametrize("before", ["", "x", "é", "ééx", "日本"])
def test_a_token_that_holds_a_part_of_it_goes_whole(before: str) -> None:
    text = f"{before} {MAIL} ü"
    call = ModelCall(model="m", messages=(), response={"content": text}, completion_ids=Pairs.ids(text))
    kept = Scrub(b"k" * 32, token_bytes=Pairs.spell).call(call)
    left = b"".join(Pairs.spell(token) for token in kept.completion_ids or ()).decode(errors="replace")
    assert not any(MAIL[n : n + 2] in left for n in range(len(MAIL) - 1))
    ((start, end),) = kept.scrubbed
    assert len(MAIL) // 2 <= end - start <= len(MAIL) // 2 + 1
    assert all(token == NEUTRAL for token in (kept.completion_ids or ())[start:end])


def test_ids_that_nobody_can_read_are_dropped_with_all_that_belongs_to_them() -> None:
    call = chat(f"write to {MAIL}")
    for scrub, given_call in (
        (Scrub(b"k" * 32), call),  # nobody says how tokens are spelled
        (SCRUB, replace(call, completion_ids=(900, 901), logprobs=None)),  # another model's
        (SCRUB, replace(call, completion_ids=tuple(b"something else"), logprobs=None)),  # of another answer
    ):
        kept = scrub.call(given_call)
        assert (kept.prompt_ids, kept.completion_ids, kept.logprobs) == (None, None, None)
        assert (kept.forced, kept.scrubbed) == ((), ())
        assert kept.messages[0]["content"].startswith("write to <email:")


def test_ids_are_looked_at_where_the_text_is_clean_and_dropped_where_they_say_it_in_another_way() -> None:
    """What a template puts in is in the tokens alone; with a space in it, it has no place there."""
    call = chat("hello")
    kept = SCRUB.call(replace(call, prompt_ids=(*SECRET.encode(), tokens.END, *(call.prompt_ids or ()))))
    assert kept.scrubbed == ((0, len(SECRET)),) and SECRET not in shown(kept)
    spaced = tuple("\n".join("blue!77green").encode())
    assert SCRUB.call(replace(chat("password: blue!77green"), prompt_ids=spaced)).prompt_ids is None


def test_what_was_forced_or_scrubbed_before_stays_so() -> None:
    call = replace(chat("hi", answer=f"to {MAIL}"), forced=(0,))
    once = SCRUB.call(call)
    assert once.forced[0] == 0
    again = Scrub(b"k" * 32, token_bytes=ByteTemplate().token_bytes).call(
        replace(once, messages=({"role": "user", "content": MAIL},))
    )
    assert again.scrubbed == once.scrubbed


# The key.


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    key = key_in(folder)
    assert len(key) == 32 and key_in(folder) == key
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == [KEY_FILE]
    assert key_in(tmp_path / "other") != key


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    key_in(tmp_path)
    path = tmp_path / KEY_FILE
    path.chmod(0o644)
    with pytest.raises(BadInput, match=r"others can read it; chmod 600"):
        key_in(tmp_path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(BadInput, match=r"is not 32 bytes in hex; restore it from a copy"):
        key_in(tmp_path)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("password for user bob2 on web-03 is Kx9!fgh2", "Kx9!fgh2"),  # not the first word with a digit
        ("I set Rainbow!2019 as my password", "Rainbow!2019"),
        ("the passphrase is blau#77", "blau#77"),
        ("the password is kQzRtWvBxN now", "kQzRtWvBxN"),
        ("*Passwort*\n> slOUi@FAy*fwWq!", "slOUi@FAy*fwWq!"),
        ("wczoraj ustawiłem hasło used-shaft-crazy-favorite", "used-shaft-crazy-favorite"),
        ("vaihdoin salasanaksi Muumi#12", "Muumi#12"),
        ("我的密码是Panda2020，但是登录不了", "Panda2020"),
        ("С токеном 72fac08ffa12e828f0b1fcd0e380d1ab для Datadog получаю 401", "72fac08ffa12e828f0b1fcd0e380d1ab"),
        ('variable "x_pat" {\n  default = "tvjlj6ciaqprv25bey3p25zkzse6zhy4"\n}', "tvjlj6ciaqprv25bey3p25zkzse6zhy4"),
        ("el código que me llegó por SMS es 503827", "503827"),
        ("Код подтверждения: E0HI5O", "E0HI5O"),
        ("Ovikoodi on 7531", "7531"),
        ('Hello, {"label": "Mot de passe", "value": "1K6jESMuPgTL"}', "1K6jESMuPgTL"),
        ("Hi, see below. title,username,password,url\nIntranet,admin,tiger166,https://x.dev", "tiger166"),
        (
            "restore wallet with\nappear report actor mutual theme adjust vote jacket lunar catalog online dream",
            "jacket",
        ),
        ("netflix: bob@gmail.com / Popcorn!1", "Popcorn!1"),
        ("pass is r8AN3GA349 btw", "r8AN3GA349"),
        ("Is Coffee765! a strong enough password?", "Coffee765!"),
        ("use tPtAWjNdiAR9 to unlock the pdf", "tPtAWjNdiAR9"),
        ("my password is Pi=N$4wrVU35DiUk+2 and it won't let me in", "Pi=N$4wrVU35DiUk+2"),
        ("minha senha é coffee_pancake6 e não consigo entrar", "coffee_pancake6"),
        ("mon mot de passe est monkey-bella-monkey-dragon mais", "monkey-bella-monkey-dragon"),  # no key
        ("WLAN-Passwort: 85575393025113150428", "85575393025113150428"),
        ("Wi-Fi code for the airbnb: Sunny059$", "Sunny059$"),
        ("Telefonkennwort: Tokyo07", "Tokyo07"),
        ("the answer to my security question (first pet) is Tiger", "Tiger"),
        ("Security question: name of your first school? Answer: Hund16", "Hund16"),
        ("requirepass Ciao18$", "Ciao18$"),
        ("djangoSecretKey = 'j#p-fmni!c9%!v87hc3(arq3s4&qk)z+*zo+o585+pgu0ly7yz';", "qk)z"),
        ("$pdo = new PDO($dsn, 'dbadmin', 'Marble77*');", "Marble77*"),
        ('mysql_real_connect(con, "10.8.50.189", "root", "elk-viking81", "crm", 0);', "elk-viking81"),
        ('req.SetBasicAuth("worker", "schnee-pizza0")', "schnee-pizza0"),
        ('.basic_auth("ci", Some("AADVLbkCj2"))', "AADVLbkCj2"),
        ("DEBUG AuthService - authenticate(ci, Castle50!) returned false", "Castle50!"),
        ("Wiederherstellungscode: lxgjk7ei7d", "lxgjk7ei7d"),
        ("backup codes: 5985 8661 (used the others)", "5985 8661"),
        ('totp = pyotp.TOTP("NBZFTW3FAPNYYCVY")', "NBZFTW3FAPNYYCVY"),
        ("Votre code de vérification est 004357", "004357"),
        ("the three digits on the back are 391", "391"),
        (
            "seed phrase? I entered guitar bridge arrow ocean river lizard camera wolf falcon mimic lemon pioneer",
            "falcon",
        ),
        (
            'I entered d76cbfe0fd8d273b43379bcf914dc8a2e5f2f0d8 under "Datadog API key"',
            "d76cbfe0fd8d273b43379bcf914dc8a2e5f2f0d8",
        ),
    ],
)
def test_a_secret_is_found_by_the_words_around_it(text: str, secret: str) -> None:
    assert secret not in Scrub(b"k" * 32).text(text)


@pytest.mark.parametrize(
    "text",
    [
        "user jdoe42 reset the password for account team-backend-7 at 14:32",
        "password: ${DB_PASSWORD}\npip install numpy==1.26.4",
        "commit 9e1c7b3a5d2f8046c8b7a2e9f3d1c0b49e1c7b3a adds token refresh",
        "error code 40312 received from the upstream",
        "The promo code SUMMER24 was sent by mail",
        "el código postal es 28013",
        "密码长度必须为8-20位",
        "My code returns 4096 instead of 2048",
        "id,token_count,status\n1,4821,ok",
        "git clone git@github.com:rust-lang/rust.git",
        'see {"required": ["user", "password"], "properties": {"password": {"type": "string"}}}',
        "postgres://user:password@localhost:5432/mydb is the format that the docs show",
        'PASSWORD_REGEX = r"^(?=.*[A-Z])(?=.*\\d).{8,}$"',
        'private_key_path = "~/.ssh/id_ed25519"',
        "is it taller than Big Ben?",
        "ERROR LoginService - NullPointerException at line 846",
        "GET /api/v2/login?page=2&limit=50 200 734ms",
        "var n=e.login||{};n.v=39}(window,document);",
        'see {"service": "login", "sha": "b747657ca0fdff385e974ff6245b74199f2ccb2f"}',
        "commit aba5a9b16da1dd20df0edfb205d2ae2880b7c8ef",  # no ABA number
        "commit 59e7c5bacb3b9af18f385d5c8cd8d96774e982fa\nDate:   2021-12-06 18:38:07 +0200",  # no 2FA
        "Hello support, it is an LM317T at pin 7",
        "INFO [login] correlationId=24a1d954-c7b7-4625-8b53-eb36e29d04e5 handled in 95 ms",
        "authenticate(request, username=username, password=password)",
        "The answer to the security question is wrong",
        "the password column is hashed_pw1 in table users_v2",
    ],
)
def test_what_only_speaks_of_secrets_stays(text: str) -> None:
    assert Scrub(b"k" * 32).text(text) == text


@pytest.mark.parametrize(
    "value",
    [
        {"name": "DB_PASSWORD", "value": "orchidee55"},
        {"label": "Hasło", "value": "4WcvtnEPdeJa"},
        {"question": "Wie lautet dein WLAN-Passwort?", "answer": "Gartenzwerg12"},
        {"selector": "#password", "text": "Blume99!x"},
        {"element": "Password field", "text": "MangoMonkey75"},
        {"license_plate": "WC43 AKV"},
    ],
)
def test_a_value_is_read_behind_its_key_or_the_label_beside_it(value: dict[str, str]) -> None:
    told = list(value)[-1]
    assert value[told] not in str(Scrub(b"k" * 32).value(value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("door_4111_code", "unit 12"),
        ("birth_phone_4111_gate", "1234"),
        ("4111: birth", "1234"),
        ("ip_1111", "221B otp"),
    ],
)
def test_what_a_key_holds_is_not_put_before_its_value(key: str, value: str) -> None:
    [shown] = SCRUB.value({key: value}).values()
    assert shown == value or PSEUDONYM.fullmatch(shown)


@pytest.mark.parametrize(
    "piece", ["密码", "my password is ", "kod 12345 ", "key a1b2c3d4e5f6g7h8 ", ",password,\n", "abc "]
)
def test_words_for_secrets_again_and_again_take_linear_time(piece: str) -> None:
    def cost(n: int) -> float:
        text = piece * (n // len(piece))
        began = time.process_time()
        Scrub(b"k" * 32).text(text)
        return time.process_time() - began

    assert cost(32_000) < 8 * cost(8_000) + 0.1  # 16 times, were it quadratic
