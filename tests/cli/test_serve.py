"""`holdfast serve` as a program: the first token, closed from elsewhere, and an end by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import requests

from holdfast.collect import endpoint
from holdfast.store.store import open_store
from tests.cli.conftest import Cli
from tests.operate.room import PATIENCE_S


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--port", "0", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def made(path: Path) -> Path:
    """An empty store."""
    open_store(path).close()
    return path


def test_the_first_start_makes_a_token_shows_it_once_and_watches(tmp_path: Path) -> None:
    store, alerts = made(tmp_path / "store.sqlite"), tmp_path / "alerts.jsonl"
    with started("--store", store, "--alert-file", alerts) as process:
        assert process.stdout is not None
        try:
            url, said = process.stdout.readline().split()[2].rstrip("/"), process.stdout.readline().split()[-1]
            assert said.startswith("hf_") and requests.get(f"{url}/healthz", timeout=PATIENCE_S).json() == {
                "status": "ok"
            }
            assert requests.get(f"{url}/api/overview", timeout=PATIENCE_S).status_code == 401
            how = {"headers": {"Authorization": f"Bearer {said}"}, "timeout": PATIENCE_S}
            assert requests.get(f"{url}/api/me", **how).json()["role"] == "admin"  # type: ignore[arg-type]
            assert requests.get(f"{url}/town/", **how).status_code == 404  # type: ignore[arg-type]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) in (0, 143, -signal.SIGTERM)
        finally:
            process.kill()
    with open_store(store) as opened:
        assert [one.role for one in opened.tokens.all()] == ["admin"]
        assert said not in json.dumps([dict(one.body) for one in opened.ledger.entries()])
    with started("--store", store, "--no-watch", "--tls-proxy") as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[2].rstrip("/")
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}  # which anybody may ask for, and nobody gets
            assert requests.get(f"{url}/town/live", headers=upgrade, timeout=PATIENCE_S).status_code == 401
            login = requests.post(f"{url}/login", json={"token": said}, timeout=PATIENCE_S)
            assert "; Secure" in login.headers["set-cookie"]
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=PATIENCE_S)
            assert "hf_" not in rest and not errors
        finally:
            process.kill()


def test_it_does_not_open_to_others_without_a_token_or_begin_with_what_makes_no_sense(cli: Cli, tmp_path: Path) -> None:
    store = made(tmp_path / "store.sqlite")
    far = cli("serve", "--host", "0.0.0.0", "--port", "0", "--store", store)
    assert far.code == 2 and "others could reach it" in far.err and "holdfast tokens add" in far.err
    assert cli("serve", "--port", "87900", "--store", store).code == 2
    with endpoint.listen("127.0.0.1", 0, token=None) as other:  # who cannot listen makes no token that nobody is shown
        assert cli("serve", "--port", other.getsockname()[1], "--store", store).code == 2
    with open_store(store) as opened:
        assert opened.tokens.all() == []
    wrong = cli("serve", "--alert-webhook", "example.org", "--store", tmp_path / "other.sqlite")
    assert wrong.code == 2 and "is not an address" in wrong.err and not (tmp_path / "other.sqlite").exists()


def test_a_store_that_is_not_there_is_refused_and_not_made(cli: Cli, tmp_path: Path) -> None:
    mistyped, nothing = tmp_path / "mistyped" / "store.sqlite", tmp_path / "nothing.sqlite"
    nothing.touch()
    for store in (mistyped, nothing):
        ran = cli("serve", "--host", "0.0.0.0", "--port", "0", "--store", store)
        assert ran.code == 2 and "there is none" in ran.err and "holdfast quickstart" in ran.err
    with started("--store", mistyped) as process:
        try:
            said, error = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 2 and not said and "'holdfast quickstart' or 'holdfast optimize' makes one" in error
    assert [(one.name, one.stat().st_size) for one in tmp_path.iterdir()] == [("nothing.sqlite", 0)]
