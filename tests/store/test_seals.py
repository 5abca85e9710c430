"""Whoever can write the store's files cannot rewrite what was decided unnoticed: each attack, and what notices it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.commands import Role
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import RunState
from holdfast.store.check import Sealed, check
from holdfast.store.ledger import NAME, SEALED_BY, read_key
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.store.scene import serving
from tests.store.tamper import damage, rewrite

HASH, SHA256 = "ab" * 32, hashlib.sha256(b"weights").hexdigest()


@pytest.fixture
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elsewhere") / "key"
    path.write_bytes(bytes(range(48)))
    return path


@pytest.fixture
def sealed(tmp_path: Path, files: Files, key: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in a folder of its own, all of whose ledger is sealed: a release, tokens, and a run that is over."""
    monkeypatch.setenv(SEALED_BY, str(key))
    store = open_store(shutil.copy(files.fresh(), tmp_path / "store.db"))
    serving(store)
    for number, role in enumerate((Role.VIEWER, Role.VIEWER, Role.ADMIN)):
        store.tokens.add("ann", role, f"{number}" * 64, 1.0, 100.0).result()
    store.tokens.revoke("tok-2", "ann", "lost", 2.0).result()
    store.tokens.rotate("tok-3", HASH, "ann", 3.0, grace_s=10.0).result()
    run = store.runs.begin(kind="k", model_ref="m", settings={}, salt="s", who="t", now=1.0).result().id
    store.queue.enqueue(run, [Task(name=f"t{n}", input={"n": n}) for n in range(3)], now=1.0).result()
    grown(store)
    store.runs.end(run, RunState.COMPLETED, who="t", now=2.0).result()
    store.ledger.append("note", {"n": 1}, who="ann", now=9.0).result()
    return store


def grown(store: Store) -> None:
    """A version with weights and one with texts; the trial is over."""
    about: dict[str, Any] = {"algorithm": "grpo", "policy_version": "c1", "global_step": 1, "created_at": 1.0}
    weights = store.folder / "c1"
    weights.mkdir()
    (weights / "w.safetensors").write_bytes(b"weights")
    artifact = Artifact(uri="c1", sha256=SHA256)
    made = Checkpoint(id="c1", episode_count=0, mean_reward=0.0, artifact=artifact, **about)
    store.checkpoints.add(made, now=1.0).result()
    texts = store.versions.publish({"a": 1}, now=1.0).result().version
    for source in ("checkpoint:c1", f"resources:{texts}"):
        store.releases.add(policy="grown", kind=PolicyKind.WEIGHTS, source=source, who="ann", now=1.0).result()
    store.trials.end("t", who="ann", why="over", now=2.0).result()


def found(store: Store, how: Sealed) -> list[str]:
    return [text for part in check(store, sealed=how) for text in part.problems]


def last(store: Store) -> int:
    return max(entry.seq for entry in store.ledger.entries())


def forge_anchors(store: Store) -> None:
    """The file beside the store, made to fit a ledger that was rewritten; without the key there are no seals."""
    lines = [f'{entry.seq} {entry.sha256} "{Path(store.url).name}"\n' for entry in store.ledger.entries()]
    (store.folder / NAME).write_text("".join(lines))


def rewrite_end(store: Store) -> None:
    rewrite(store, last(store), f"UPDATE ledger SET body = '{{\"n\":2}}' WHERE seq = {last(store)}")


def rewrite_all(store: Store) -> None:
    rewrite(store, 1, "UPDATE ledger SET who = 'mallory' WHERE seq = 2")
    forge_anchors(store)


def set_back(store: Store) -> None:
    """Both files, to how they were three entries ago: every seal that is left is a good one."""
    end = last(store)
    damage(store, f"DELETE FROM ledger WHERE seq > {end - 3}")
    lines = (store.folder / NAME).read_text().splitlines(keepends=True)
    (store.folder / NAME).write_text("".join(one for one in lines if int(one.split()[0]) <= end - 3))


ATTACKS: dict[str, tuple[Callable[[Store], None], str, str]] = {
    # what it needs to be noticed ("" nothing, "key", "copy"), and the words
    "end": (rewrite_end, "", "was written anew"),
    "no anchors": (lambda s: (s.folder / NAME).unlink(), "", "has no line about this store"),
    "all with anchors": (rewrite_all, "key", "are not sealed"),
    "no anchors with key": (lambda s: (s.folder / NAME).unlink(), "key", "are not sealed"),
    "set back": (set_back, "copy", "its end was cut off"),
    "upgraded": (lambda s: damage(s, "UPDATE tokens SET role = 'admin' WHERE key = 1"), "", "token tok-1: its role"),
    "of another": (lambda s: damage(s, f"UPDATE tokens SET sha256 = '{'cd' * 32}' WHERE key = 1"), "", "fingerprint"),
    "unrevoked": (lambda s: damage(s, "UPDATE tokens SET revoked_at = NULL WHERE key = 2"), "", "token tok-2: its rev"),
    "prolonged": (lambda s: damage(s, "UPDATE tokens SET expires_at = 1e9 WHERE key = 3"), "", "token tok-3: its exp"),
    "smuggled in": (
        lambda s: damage(
            s, f"INSERT INTO tokens VALUES (9, 'default', 'eve', 'admin', '{'ef' * 32}', 1, NULL, NULL, NULL)"
        ),
        "",
        "token tok-9: is not in the ledger",
    ),
    "token gone": (
        lambda s: damage(s, "DELETE FROM tokens WHERE key = 1"),
        "",
        "token tok-1: is in the ledger, and not",
    ),
    "weights": (
        lambda s: damage(s, f"UPDATE checkpoints SET sha256 = '{HASH}', body = replace(body, '{SHA256}', '{HASH}')"),
        "",
        "its source checkpoint:c1 is not what it was",
    ),
    "weights beside their record": (lambda s: damage(s, "UPDATE checkpoints SET uri = 'x'"), "", "is of another"),
    "texts": (
        lambda s: damage(s, "UPDATE resources SET body = '{\"a\":2}'"),
        "",
        "resources-1: are not what they were",
    ),
    "settings": (lambda s: damage(s, "UPDATE runs SET settings = '{\"a\":1}'"), "", "its settings is not what"),
    "end of a run": (
        lambda s: damage(s, "UPDATE runs SET state = 'failed'"),
        "",
        "its state is not what the ledger has",
    ),
    "kill switch": (
        lambda s: damage(s, "UPDATE flags SET body = replace(body, 'false', 'true')"),
        "",
        "flag beta: is not",
    ),
    "flag gone": (lambda s: damage(s, "DELETE FROM flags"), "", "flag beta: is in the ledger, and not in the store"),
    "trial": (
        lambda s: damage(s, "UPDATE trials SET settings = '{\"a\":1}'"),
        "",
        "trial t: is not what the ledger has",
    ),
    "trial open again": (
        lambda s: damage(s, "UPDATE trials SET ended_at = NULL"),
        "",
        "trial t: is not what the ledger",
    ),
    "task": (lambda s: damage(s, "UPDATE rollouts SET input = '{\"n\":7}' WHERE key = 2"), "", "a task was changed"),
    "task gone": (lambda s: damage(s, "DELETE FROM rollouts WHERE key = 2"), "", "has 2 of its 3 tasks"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_rewritten_on_disk_is_noticed(sealed: Store, key: Path, tmp_path: Path, attack: str) -> None:
    act, needs, says = ATTACKS[attack]
    copy = shutil.copy(sealed.folder / NAME, key.parent / "copy")
    whole = {
        "": Sealed(),
        "key": Sealed(read_key(key, apart_from=tmp_path)),
        "copy": Sealed(read_key(key, apart_from=tmp_path), Path(copy)),
    }
    try:
        assert all(found(sealed, how) == [] for how in whole.values())
        act(sealed)
        problems = found(sealed, whole[needs])
        assert any(says in text for text in problems), problems
    finally:
        sealed.close()


def test_another_key_seals_nothing(sealed: Store, key: Path) -> None:
    key.write_bytes(b"x" * 48)
    (problem,) = found(sealed, Sealed(read_key(key)))
    assert "was not sealed with this key" in problem
    sealed.close()


def test_a_key_is_changed_only_with_the_old_lines_kept_aside(sealed: Store, key: Path, tmp_path: Path) -> None:
    lines, aside, other = sealed.folder / NAME, key.with_name("anchors"), bytes(range(1, 60))
    with pytest.raises(BadInput, match="was not sealed with this key; give that key; to change it, keep"):
        sealed.ledger.seal(other)
    assert found(sealed, Sealed(read_key(key))) == []  # nothing was written
    lines.rename(aside)
    sealed.ledger.seal(other)
    assert found(sealed, Sealed(other)) == [] and found(sealed, Sealed(copy=aside)) == []


def test_a_ledger_is_sealed_later_and_at_a_witness(files: Files, key: Path) -> None:
    witness = key.parent / "witness"
    with open_store(files.fresh()) as store:
        store.ledger.append("note", {}, who="ann", now=1.0).result()
        (problem,) = found(store, Sealed(key.read_bytes()))
        assert problem.startswith("ledger: entries 1 to 1 are not sealed")
        line = store.ledger.seal(key.read_bytes(), witness)
        assert witness.read_text() == f"{line}\n"
        assert found(store, Sealed(key.read_bytes(), witness)) == []


@pytest.mark.parametrize("kind", ["short", "beside", "missing"])
def test_a_key_that_would_guard_nothing_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    if kind != "missing":
        path.write_bytes(b"x" * (31 if kind == "short" else 32))
    with pytest.raises(
        BadInput, match={"short": "has 31 bytes", "beside": "beside the store", "missing": "No such"}[kind]
    ):
        read_key(path, apart_from=tmp_path)
