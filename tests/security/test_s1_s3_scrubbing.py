"""S1 and S3: what a service keeps is scrubbed, and scrubbing holds nobody else up."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from base64 import b64encode, encodebytes

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
    "names": ("John ", 30),
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


def test_a_text_with_more_to_replace_than_can_be_held_is_replaced_as_a_whole() -> None:
    text = "".join(f"a{n}@b{n % 97}.de\n" for n in range(MOST_FOUND + 10_000))
    kept = Scrub(b"k" * 32).text(text)
    assert PSEUDONYM.fullmatch(kept) and kept.startswith("<email:")
    assert Scrub(b"k" * 32).text(text) == kept != Scrub(b"k" * 32).text(text + "a")


def test_json_of_very_many_values_is_searched_as_text() -> None:
    text = "[" + "[]," * MOST_JSON + f'{{"content": "my key is {SECRETS[1]}"}}]'
    kept = Scrub(b"k" * 32).text(text)
    assert SECRETS[1] not in kept and kept.count("<secret:") == 1
