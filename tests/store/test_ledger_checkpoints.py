"""The places of the ledger that are noted outside of it: a ledger that was cut or written anew is found out."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from holdfast.contracts.errors import StoreCorrupt, StoreError
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.store.check import check
from holdfast.store.ledger import NAME
from holdfast.store.store import Store, open_store
from tests.conftest import Databases, Files
from tests.store.tamper import damage, rewrite
from tests.store.test_recompute import CLOSED, back, served

REMEDY = (
    "compare with an exported copy; decisions after that place are not proven; "
    "where an older copy was put back on purpose, move that file away"
)


def lines(store: Store) -> list[list[str]]:
    return [line.split(" ", 2) for line in (store.folder / NAME).read_text().splitlines()]


def test_every_decision_about_a_release_is_noted_with_its_place(store: Store) -> None:
    served(store)
    back(store, 2, 1, "breach")
    store.releases.note("tools@3", CLOSED, evidence=None, who="gate", now=7.0).result()
    store.ledger.append("note", {}, who="ann", now=8.0).result()
    entries = [one for one in store.ledger.entries() if one.kind == "release"]
    assert len(entries) == 8
    assert [(int(seq), sha256) for seq, sha256, _ in lines(store)] == [(one.seq, one.sha256) for one in entries]
    assert store.ledger.verify() == 9
    assert stat.S_IMODE((store.folder / NAME).stat().st_mode) & 0o022 == 0


def why(store: Store) -> str:
    with pytest.raises(StoreCorrupt) as found:
        store.ledger.verify()
    part = {part.name: list(part.problems) for part in check(store)}["ledger"]
    assert part == [str(found.value)]
    assert str(found.value).endswith(f"; {REMEDY}") and str(found.value).startswith("ledger: ")
    return str(found.value)[len("ledger: ") : -len(REMEDY) - 2]


def test_an_end_that_was_cut_off_is_found(store: Store) -> None:
    served(store)
    damage(store, "DELETE FROM ledger WHERE seq = 6")
    assert why(store) == f"ends with entry 5, and {NAME} noted entry 6: its end was cut off"


def test_an_entry_that_was_changed_with_the_chain_made_to_fit_is_found(store: Store) -> None:
    served(store)
    rewrite(store, 6, "UPDATE ledger SET who = 'mallory' WHERE seq = 6")
    assert why(store) == f"entry 6 is not the one that {NAME} noted: it, or one before it, was written anew"


def test_an_entry_that_was_taken_out_with_the_chain_made_to_fit_is_found(store: Store) -> None:
    served(store)
    rewrite(store, 5, "DELETE FROM ledger WHERE seq = 5", "UPDATE ledger SET seq = 5 WHERE seq = 6")
    assert why(store) == f"entry 5 is not the one that {NAME} noted: it, or one before it, was written anew"


def test_an_older_entry_that_is_not_noted_is_found_by_the_next_that_is(store: Store) -> None:
    store.ledger.append("note", {"n": 1}, who="ann", now=1.0).result()
    served(store)
    rewrite(store, 1, "UPDATE ledger SET who = 'mallory' WHERE seq = 1")
    assert why(store).startswith("entry 2 is not the one")


def test_a_line_that_was_torn_by_a_crash_says_nothing_and_the_next_stands_alone(store: Store) -> None:
    served(store)
    path = store.folder / NAME
    path.write_bytes(path.read_bytes()[:-20])
    assert store.ledger.verify() == 6
    back(store, 2, 1, "breach")
    assert [line[0] for line in lines(store)][-1] == "7"
    damage(store, "DELETE FROM ledger WHERE seq = 7")
    assert why(store).startswith("ends with entry 6, and")


def test_a_file_that_cannot_be_written_holds_up_no_decision(store: Store) -> None:
    (store.folder / NAME).mkdir()
    served(store)
    with pytest.raises(StoreError, match=f"{NAME}: Is a directory; make it readable, or move it away"):
        store.ledger.verify()
    shutil.rmtree(store.folder / NAME)
    assert store.ledger.verify() == 6


def test_what_was_not_committed_is_not_noted(store: Store) -> None:
    served(store)
    before = lines(store)
    with pytest.raises(Exception, match="there is no such blob"):
        store.releases.note("tools@3", CLOSED, evidence="ef" * 32, who="gate", now=7.0).result()
    assert lines(store) == before


def test_a_copy_without_the_file_verifies_and_one_with_it_does_too(files: Files, tmp_path: Path) -> None:
    path = Path(files.fresh())
    with open_store(path) as store:
        served(store)
    (tmp_path / "copy").mkdir()
    copy = shutil.copy(path, tmp_path / "copy")
    with open_store(copy) as store:
        assert store.ledger.verify() == 6
        shutil.copy(path.parent / NAME, store.folder)
        assert store.ledger.verify() == 6
        damage(store, "DELETE FROM ledger WHERE seq = 6")
        assert why(store).startswith("ends with entry 5")


def test_stores_in_one_folder_are_told_apart(places: Files | Databases, tmp_path: Path) -> None:
    for actor in ("shelf:x", "shelf:y"):
        with open_store(places.fresh(), state_folder=tmp_path) as store:
            add = {"policy": "p", "kind": PolicyKind.WEIGHTS, "source": actor, "who": actor, "now": 1.0}
            store.releases.add(**add).result()  # type: ignore[arg-type]
            store.releases.move("p@1", Stage.LIVE, expect=Stage.CANDIDATE, who=actor, why="w", now=2.0).result()
            assert store.ledger.verify() == 2
    assert len((tmp_path / NAME).read_text().splitlines()) == 4
