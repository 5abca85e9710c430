"""The audit file of a town: sealed line by line, written by several, and shortened where entries have become old."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from holdfast.contracts.errors import BadRecord, StoreError
from holdfast.workloads.townaudit import AuditFile, is_audit, read_audit

TORN = b'{"n": 1, "what": "b", "se'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "log.jsonl"


@pytest.mark.parametrize("harm", ["change", "remove", "swap", "junk"])
def test_a_log_that_was_tampered_with_is_refused(harm: str, log: Path) -> None:
    audit = AuditFile(log)
    for number in range(4):
        audit.add({"what": "order", "value": number})
    lines = log.read_text().splitlines()
    if harm == "change":
        lines[1] = lines[1].replace('"value": 1', '"value": 7')
    elif harm == "remove":
        del lines[1]
    elif harm == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[1] = "{}"
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadRecord, match="line 2: its seal is broken"):
        AuditFile(log)


def test_several_that_write_to_one_log_go_on_from_one_another(log: Path) -> None:
    first, second = AuditFile(log), AuditFile(log)
    for audit in (first, second, first, second, AuditFile(log)):
        audit.add({"what": "a"})
    assert [entry["n"] for entry in read_audit(log)] == [0, 1, 2, 3, 4]


def test_who_writes_waits_for_whoever_has_the_log(log: Path, tmp_path: Path) -> None:
    audit, other = AuditFile(log), AuditFile(tmp_path / "other.jsonl")
    for one in (audit, other):
        one.add({"what": "a"})
    other.add({"what": "b"})
    with ThreadPoolExecutor() as pool, log.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = pool.submit(audit.add, {"what": "c"})
        wait([waiting], timeout=0.3)  # long enough to go wrong; to go right it need not even have begun
        file.write((tmp_path / "other.jsonl").read_bytes().splitlines(keepends=True)[1])
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)
        assert waiting.result(60)["n"] == 2
    assert [entry["what"] for entry in read_audit(log)] == ["a", "b", "c"]


@pytest.mark.parametrize("was_open", [True, False], ids=["open", "closed"])
def test_a_line_that_was_never_ended_is_kept_aside_and_told_of(was_open: bool, log: Path) -> None:
    audit = AuditFile(log)
    audit.add({"what": "a"})
    with log.open("ab") as file:
        file.write(TORN)
    assert [entry["what"] for entry in read_audit(log)] == ["a"]
    (audit if was_open else AuditFile(log)).add({"what": "c"})
    entries = read_audit(log)
    assert [entry["what"] for entry in entries] == ["a", "torn", "c"]
    assert log.with_name(entries[1]["kept"]).read_bytes() == TORN + b"\n" and entries[1]["bytes"] == len(TORN)


def test_an_entry_that_lacks_its_end_alone_stays_where_it_is(log: Path) -> None:
    AuditFile(log).add({"what": "a"})
    log.write_bytes(log.read_bytes().rstrip())
    AuditFile(log).add({"what": "b"})
    assert [entry["what"] for entry in read_audit(log)] == ["a", "b"]


def test_a_log_that_others_shorten_or_that_cannot_be_written_is_one_line(log: Path) -> None:
    audit = AuditFile(log)
    audit.add({"what": "a"})
    log.write_bytes(b"")
    with pytest.raises(BadRecord, match="is shorter than it was"):
        audit.add({"what": "b"})
    log.unlink()
    log.mkdir()
    for write in (lambda: audit.add({"what": "b"}), lambda: AuditFile(log)):
        with pytest.raises(StoreError, match="audit .*: IsADirectoryError"):
            write()


def test_old_entries_go_and_that_they_went_is_an_entry_of_the_chain(log: Path) -> None:
    audit = AuditFile(log)
    for number in range(5):
        audit.add({"what": "order" if number % 2 else "window", "at": float(number)})
    before = read_audit(log)
    assert AuditFile(log).forget(lambda entry: entry["what"] == "order" and entry["at"] < 3, who="ann", at=9.0) == 1
    first, *rest = read_audit(log)
    assert (first["what"], first["removed"], first["who"], first["at"]) == ("forgotten", 1, "ann", 9.0)
    assert first["last_seal"] == before[-1]["seal"] and [entry["at"] for entry in rest] == [0.0, 2.0, 3.0, 4.0]
    assert audit.add({"what": "order", "at": 5.0})["n"] == 5  # whoever had it open goes on
    assert audit.forget(lambda entry: False, who="ann", at=9.0) == 0
    assert [entry["n"] for entry in read_audit(log)] == list(range(6)) and is_audit(read_audit(log)[0])


def test_who_waits_for_a_log_that_is_replaced_writes_to_the_new_one(log: Path) -> None:
    audit = AuditFile(log)
    audit.add({"what": "order", "at": 1.0})
    other = AuditFile(log)
    with ThreadPoolExecutor() as pool, log.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = pool.submit(other.add, {"what": "order", "at": 2.0})
        wait([waiting], timeout=0.3)
        new = log.with_name("new")
        new.write_bytes(log.read_bytes())
        new.replace(log)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert waiting.result(60)["n"] == 1
    assert [entry["at"] for entry in read_audit(log)] == [1.0, 2.0]
