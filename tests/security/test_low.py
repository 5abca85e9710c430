"""The review's low findings: each attack, and what is left of it."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import requests

from holdfast.collect.gym import vector_env
from holdfast.collect.rows import read_rows
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import say
from holdfast.contracts.settings import load_settings
from holdfast.operate import app as control_room
from holdfast.policies import causal_lm
from holdfast.privacy.scrub import Scrub
from holdfast.store.store import Store
from holdfast.town import record, rules
from holdfast.workloads import townpage
from tests.operate.room import listening, serving

SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"
MARK = "<secret:00000000>"


@pytest.mark.parametrize(
    "text",
    [
        f"{SECRET}{MARK}",
        f"{MARK}{SECRET}",
        f"key={SECRET}{MARK} and more",
        f"password=hunter2-{SECRET}{MARK}",
        json.dumps({"password": f"{SECRET}{MARK}"}),
    ],
)
def test_a_pseudonym_that_somebody_wrote_beside_a_secret_keeps_nothing(text: str) -> None:
    scrub = Scrub(b"k" * 32)
    once = scrub.text(text)
    assert SECRET not in once
    assert scrub.text(once) == once
    kept = scrub.value({"password": f"{SECRET}{MARK}", "note": text})
    assert SECRET not in json.dumps(kept)


def test_a_forged_state_of_environments_runs_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "was-here"
    envs = vector_env("MountainCar-v0", 2)
    envs.reset(1)
    before = envs.state()
    payload = b"cposix\nsystem\n(S'touch " + str(gone).encode() + b"'\ntR."
    with pytest.raises(BadInput, match="posix.system is no part of the environments"):
        envs.restore({"pickled": np.frombuffer(payload, np.uint8)})
    assert not gone.exists()
    first = envs.step(np.zeros(2, np.int64))
    envs.restore(before)
    again = envs.step(np.zeros(2, np.int64))
    assert np.array_equal(first.final, again.final)
    envs.close()


BOMBS = {
    "names": "a." * 50_000 + "a = 1",
    "quoted names": '"a".' * 50_000 + "a = 1",
    "tables": "[" + "a." * 50_000 + "a]",
    "lists": "a = " + "[" * 100_000,
    "size": "# " + "x" * 2**21,
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_of_toml_is_refused_at_once(what: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BOMBS[what])
    began = time.process_time()
    with pytest.raises(BadInput, match=r"config\.toml"):
        load_settings(path)
    with pytest.raises(rules.BadRules):
        rules.load(path)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("shape", [(2**31,), (10**15,)])
def test_a_bomb_of_npz_is_refused_before_it_is_unpacked(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "town.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("people.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.write(bytes(1000))
    with pytest.raises(record.BadFile, match="unpacks to more than"):
        record.inspect(path)


@pytest.mark.parametrize("path", ["/healthz", "/login", "/", "/api/overview"])
def test_a_page_that_gave_this_machine_its_own_name_gets_nothing(file_store: Store, path: str) -> None:
    with serving(file_store) as room:
        assert room.ask(path, role="viewer", Host="evil.example").status_code == 403
        for name in ("localhost", "127.0.0.1:1234", "[::1]"):
            assert room.ask("/healthz", Host=name).status_code == 200


def test_behind_a_proxy_with_tls_the_public_name_is_taken(file_store: Store) -> None:
    from holdfast.collect import endpoint

    with listening(endpoint.server(control_room.app(file_store, is_behind_tls=True))) as url:
        assert requests.get(f"{url}/healthz", headers={"Host": "holdfast.example"}, timeout=30).status_code == 200


def test_no_page_is_shown_within_another() -> None:
    for policy in (townpage.CSP, control_room.auth_middleware.CSP):
        assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    assert townpage.SAFE["X-Frame-Options"] == "DENY"


def test_an_error_does_nothing_to_a_terminal_but_appear(capsys: pytest.CaptureFixture[str]) -> None:
    """It may name what an agent or a file said."""
    say("task \x1b]0;owned\x07: fails\x9b31m")
    assert capsys.readouterr().err == "task �]0;owned�: fails�31m\n"


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/dev/zero", "deeper/model.safetensors"])
def test_an_index_of_weights_names_only_what_lies_beside_it(name: str, tmp_path: Path) -> None:
    (tmp_path / causal_lm.INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(BadInput, match="does not lie beside it"):
        list(causal_lm.tensors_of(tmp_path))


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_a_task_with_5000_digits_is_one_error_of_ours(kind: str, tmp_path: Path) -> None:
    path, item = tmp_path / f"tasks.{kind}", f'{{"a": {"1" * 5000}}}'
    path.write_text(f"[{item}]" if kind == "json" else item)
    with pytest.raises(BadInput, match="has a number of 5000 digits; write it as text"):
        list(read_rows(path))


def test_a_csv_of_very_many_columns_is_read_at_once(tmp_path: Path) -> None:
    path, many = tmp_path / "tasks.csv", range(30_000)
    path.write_text(f"{','.join(f'c{n}' for n in many)}\n{','.join('1' for _ in many)}\n")
    began = time.monotonic()
    assert len(next(iter(read_rows(path))).data) == 30_000
    assert time.monotonic() - began < 2.0
