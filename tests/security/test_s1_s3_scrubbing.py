"""S1 and S3: what a service keeps is scrubbed, and scrubbing holds nobody else up."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from base64 import b64encode, encodebytes
from dataclasses import replace
from random import Random
from string import ascii_letters, digits

import pytest

from holdfast.contracts.trace import ModelCall
from holdfast.operate.service import Capture
from holdfast.privacy.scrub import LONGEST_PIECE, MOST_FOUND, MOST_JSON, PSEUDONYM, Scrub
from holdfast.store.store import Store

SECRETS = (
    "AK" + "IA" + "IOSFODNN7EXAMPL2",
    "sk-ant-api03-" + "aB3xY9" * 14 + "AA",
    "ghp_" + "a1B2c3D4e5" * 3 + "F6g7H8",
    "ann.lee@corp-mail.net",
    "4539 5787 6362 1486",
)


async def test_s1_of_five_secrets_none_is_in_the_store(file_store: Store) -> None:
    run = file_store.runs.begin(kind="served", model_ref="m", settings={}, salt="t", who="test", now=1.0).result().id
    capture = Capture(file_store, run, clock=lambda: 2.0, scrub=Scrub(b"k" * 32).call)
    said = " and ".join(SECRETS)
    messages = ({"role": "user", "content": said},)
    capture.heard("r1", "m@1", "ann", ModelCall(model="m@1", messages=messages, response={"content": said}))
    assert await capture.save_feedback("r1", {"reward": 1.0})
    file_store.close()
    written = b"".join(path.read_bytes() for path in file_store.folder.iterdir() if path.is_file())
    assert not [one for one in SECRETS if one.encode() in written]


@pytest.mark.parametrize("text", ["John ", "a@", "1-"])
async def test_s3_whoever_asks_meanwhile_is_answered(text: str) -> None:
    scrub, worst = Scrub(b"k" * 32), 0.0
    work = asyncio.create_task(asyncio.to_thread(scrub.text, text * (60_000 // len(text))))
    while not work.done():
        began = time.monotonic()
        await asyncio.sleep(0.01)
        worst = max(worst, time.monotonic() - began)
    assert worst < 2.0  # 159 s once, when it ran on the event loop


def test_a_secret_that_goes_on_in_the_next_part_of_a_message_is_kept_in_neither() -> None:
    parts = [SECRETS[1][:30], SECRETS[1][30:60], SECRETS[1][60:]]
    content = [{"type": "text", "text": one} for one in ("my key is " + parts[0], parts[1], parts[2] + " and no more")]
    said = ModelCall(model="m", messages=({"role": "user", "content": content},), response={"content": "Yes."})
    kept = str(Scrub(b"k" * 32).call(said).messages)
    assert not [one for one in parts if one in kept] and "and no more" in kept


HOSTILE = {  # and the megabytes that half a million letters of it may take; once it was 22 to 79
    "names": ("John ", 40),
    "addresses": ("ann@firm.de ", 15),
    "divided keys": ("sk-ant-\n", 15),
    "escapes": ("%41%42%43 ", 15),
    "letters apart": ("a b c d e f g h ", 15),
    "accents": ("e\u0301 ", 15),
    "digits": ("0301234567 ", 15),
    "hex": ("61", 15),
}


@pytest.mark.parametrize(("text", "most_mb"), HOSTILE.values(), ids=HOSTILE)
def test_s3_what_scrubbing_holds_in_memory_does_not_grow_with_the_text(text: str, most_mb: int) -> None:
    scrub, long = Scrub(b"k" * 32), text * (2**19 // len(text))
    scrub.text("ann@firm.de %41 aGVsbG8gd29ybGQgaGVsbG8= 0301234567")
    tracemalloc.start()
    try:
        scrub.text(long)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < most_mb * 1e6


@pytest.mark.parametrize("before", range(-80, 20, 7))
def test_what_lies_across_the_border_of_two_pieces_is_found(before: int) -> None:
    said = f"my key is {SECRETS[1]} and I am ann.lee@corp-mail.net"
    filler = "nothing to see here, " * LONGEST_PIECE
    kept = Scrub(b"k" * 32).text(filler[: LONGEST_PIECE + before] + " " + said + " " + filler[:LONGEST_PIECE])
    assert SECRETS[1][:24] not in kept and SECRETS[1][-24:] not in kept and "ann.lee" not in kept
    assert kept.count("<secret:") == kept.count("<email:") == 1


def test_a_token_that_is_longer_than_a_piece_is_replaced_to_its_end() -> None:
    token = "sk-ant-api03-" + "aB3xY9" * (LONGEST_PIECE // 5)
    assert Scrub(b"k" * 32).text(f"use {token} now").startswith("use <secret:")
    assert "aB3xY9" not in Scrub(b"k" * 32).text(f"use {token} now")


@pytest.mark.parametrize("filler", ["nothing to see here, ", "こんにちは、元気ですか。"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_secret_at_the_end_of_a_long_blob_is_found(filler: str, wrapped: bool) -> None:
    said = ("Hello! " + filler * (LONGEST_PIECE // len(filler)) + f" my key is {SECRETS[1]}").encode()
    blob = encodebytes(said).decode() if wrapped else b64encode(said).decode()
    assert Scrub(b"k" * 32).text(f"look:\n{blob}\nend").startswith("look:\n<secret:")


def test_the_last_row_of_a_long_table_is_read_by_its_head() -> None:
    rows = "".join(f"user{n},plainword{n % 7}x\n" for n in range(2 * LONGEST_PIECE // 18))
    kept = Scrub(b"k" * 32).text("user,password\n" + rows + "last,correcthorse\n")
    assert "correcthorse" not in kept and "last," in kept


MANY = "".join(f"a{n}@b{n % 97}.de\n" for n in range(MOST_FOUND + 10_000))


def test_a_text_with_more_to_replace_than_can_be_held_is_replaced_as_a_whole() -> None:
    kept = Scrub(b"k" * 32).text(MANY)
    assert PSEUDONYM.fullmatch(kept)
    assert Scrub(b"k" * 32).text(MANY) == kept != Scrub(b"k" * 32).text(MANY + "a")


@pytest.mark.parametrize(
    "text",
    [
        f"see <name:00000000> here\n{MANY}correcthorse77",  # a pseudonym, and what another message gives away
        "user,password\n" + "".join(f"u{n},horse{n}word\n" for n in range(MOST_FOUND + 1000)),
        " ".join(b64encode(f"u{n:05d}:horse{n}word".encode()).decode() for n in range(MOST_FOUND + 1000)),
        "sk-ant-api03-" + "-correcthorse77" * (MOST_FOUND + 1000) + "\nlater correcthorse77 was said",
    ],
    ids=["addresses", "table", "blobs", "one token"],
)
def test_with_too_much_in_one_text_no_other_text_of_the_call_keeps_a_mention(text: str) -> None:
    said = ["My password is correcthorse77.", text, "Bob said horse40100word to me"]
    messages = tuple({"role": "user", "content": one} for one in said)
    call = ModelCall(model="m", messages=messages, response={"role": "assistant", "content": "horse40100word"})
    call = replace(call, prompt_ids=tuple(text[:9].encode()), completion_ids=(97,), logprobs=(-1.0,))
    kept = Scrub(b"k" * 32, token_bytes=lambda token: bytes([token])).call(call)
    assert [PSEUDONYM.fullmatch(str(message["content"])) is not None for message in kept.messages] == [True] * 3
    assert "horse" not in str(kept.response) and [message["role"] for message in kept.messages] == ["user"] * 3
    assert kept.prompt_ids is None and kept.completion_ids is None


def test_many_texts_that_are_too_much_together_are_replaced_as_a_whole() -> None:
    lines = MANY.splitlines()
    kept = Scrub(b"k" * 32).value([" ".join(lines[n::10]) for n in range(10)])
    assert all(map(PSEUDONYM.fullmatch, kept))


LONG = "nothing to see here and so on " * 6000


@pytest.mark.parametrize("said", ["emVkQG\u200bxhc3RtYWlsLm9yZw==", "7a65644\u200b06c6173746d61696c2e6f7267"])
def test_blobs_in_another_spelling_are_found_in_a_long_text(said: str) -> None:
    assert Scrub(b"k" * 32).text(f"{LONG}look {said} end").endswith("> end")


@pytest.mark.parametrize("head", ["user，password", "user,pass\u00adword", "hello\n" * 30_000 + "user,password"])
def test_every_row_of_a_long_table_is_read_whatever_its_spelling(head: str) -> None:
    divider = "，" if "，" in head else ","
    rows = "".join(f"u{n}{divider}pw{n}word{n % 7}x\n" for n in range(12_000))
    assert Scrub(b"k" * 32).text(f"{head}\n{rows}").count("word") <= 1  # in the head


@pytest.mark.parametrize("lines", [500, 1200])
def test_a_private_key_that_is_longer_than_an_overlap_is_replaced_whole(lines: int) -> None:
    draw, letters = Random(1), ascii_letters + digits + "+/"
    key = ["".join(draw.choice(letters) for _ in range(64)) for _ in range(lines)]
    block = "\n".join(["-----BEGIN PGP PRIVATE KEY BLOCK-----", "", *key, "-----END PGP PRIVATE KEY BLOCK-----"])
    kept = Scrub(b"k" * 32).text(f"{LONG[: LONGEST_PIECE - len(block) // 2]}\n{block}\n{LONG}")
    assert not [line for line in key if line in kept]


def test_what_is_beside_a_hit_at_a_border_stays() -> None:
    mail = "ann.lee@corp-mail.net"
    before = "a=b&" * ((LONGEST_PIECE - len(mail)) // 4)
    text = before + "x" * (LONGEST_PIECE - len(mail) - 1 - len(before)) + f"={mail}&" + "c=d&" * 50_000
    kept = Scrub(b"k" * 32).text(text)
    assert PSEUDONYM.sub(mail, kept) == text and kept != text
    scrubbed = ("a=b&" * (LONGEST_PIECE // 4))[:-19] + "password=<secret:0123abcd>&" + "c=d&" * 50_000
    assert Scrub(b"k" * 32).text(scrubbed) == scrubbed


def test_literals_that_begin_alike_for_long_do_not_fill_the_memory() -> None:
    begins = [f"sk-ant-api{n:03d}-" + "-".join("abcdefgh1234" * 20) for n in range(300)]
    said = [f"{begin}-{end}{n}" for n, begin in enumerate(begins) for end in ("x9y8z7", "q6r5s4")]
    tracemalloc.start()
    try:
        kept = Scrub(b"k" * 32).text("\n".join(said))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 40e6 and "abcdefgh" not in kept


def test_json_of_more_values_than_can_be_read_is_replaced_as_a_whole() -> None:
    """As text, what only a key says of a value would be left."""
    text = json.dumps([{"pin": ["Wq7!grapeKx"], "last_name": "Quux"}, [0] * MOST_JSON])
    kept = Scrub(b"k" * 32).value({"role": "tool", "content": text, "Quux": "it is Wq7!grapeKx"})
    assert PSEUDONYM.fullmatch(kept["content"]) and not [one for one in ("Wq7", "Quux") if one in str(kept)]


def test_keys_of_objects_keep_nothing_either_where_there_is_too_much() -> None:
    function = {"name": "f", "arguments": {"Wq7!grapeKx": 1}}
    said = [{"role": "user", "content": MANY}, {"role": "user", "content": "my password is Wq7!grapeKx"}]
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    kept = Scrub(b"k" * 32).messages([*said, calls])
    assert "Wq7" not in str(kept) and kept[2]["tool_calls"][0]["id"] == "c1"


def test_a_table_of_passwords_behind_another_head_is_read_to_its_end() -> None:
    rows = "".join(f"u{n},wombat{n % 7}grape\n" for n in range(10_000))
    head = "first_name,city\n" + "the cat sat on the mat\n" * 6000 + "user,password\n"
    assert "wombat" not in Scrub(b"k" * 32).text(head + rows)


def test_letters_of_several_bytes_in_escapes_may_lie_across_a_border() -> None:
    def escaped(text: str) -> str:
        return "".join(f"%{byte:02X}" for byte in text.encode())

    said = "привет мир " * 900 + SECRETS[2] + " "
    assert escaped(SECRETS[2]) not in Scrub(b"k" * 32).text("q=x" + escaped(said * 4 + "привет " * 2000))


KIND = "SSH2 ENCRYPTED PRIVATE KEY"
LONG_THINGS = {
    "address": ("https://x.logic.azure.com:443/" + "a1b!c2$d3%" * 3000, "c2$d3%"),
    "four dashes": (
        f"---- BEGIN {KIND} ----\n" + "Qz7kLm\n" * 3500 + f"---- END {KIND} ----",
        "Qz7",
    ),
    "on the border": ("-----BEGIN RSA PRIVATE KEY-----" + "Qz7k\\n" * 3640 + "-----END RSA PRIVATE KEY-----", "Qz7k"),
}


@pytest.mark.parametrize(("thing", "part"), LONG_THINGS.values(), ids=LONG_THINGS)
@pytest.mark.parametrize("before", [LONGEST_PIECE - 22_000, LONGEST_PIECE - 21_900, LONGEST_PIECE - 21_872])
def test_what_is_longer_than_an_overlap_goes_to_its_end(thing: str, part: str, before: int) -> None:
    assert part not in Scrub(b"k" * 32).text(f"{LONG[:before]} {thing} tail {LONG}")
