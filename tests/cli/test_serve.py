"""`holdfast serve` as a program: the first token, closed from elsewhere, and an end by a signal."""

from __future__ import annotations

import json
import signal
import stat
from pathlib import Path
from typing import Any

import requests

from holdfast.collect import endpoint
from holdfast.store.store import open_store
from tests.cli.conftest import PATIENCE_S, Cli, ended, first_line, running


def made(path: Path) -> Path:
    """An empty store."""
    open_store(path).close()
    return path


def test_the_first_start_makes_a_token_shows_it_once_and_watches(tmp_path: Path) -> None:
    store, alerts = made(tmp_path / "store.sqlite"), tmp_path / "alerts.jsonl"
    with running("serve", "--port", 0, "--store", store, "--alert-file", alerts) as process:
        url, told = first_line(process).split()[2].rstrip("/"), first_line(process)
        said = (tmp_path / "first-token").read_text().strip()  # what is printed may become a log
        assert said not in told and stat.S_IMODE((tmp_path / "first-token").stat().st_mode) == 0o600
        assert said.startswith("hf_")
        assert requests.get(f"{url}/healthz", timeout=PATIENCE_S).json() == {"status": "ok"}
        assert requests.get(f"{url}/api/overview", timeout=PATIENCE_S).status_code == 401
        how: Any = {"headers": {"Authorization": f"Bearer {said}"}, "timeout": PATIENCE_S}
        assert requests.get(f"{url}/api/me", **how).json()["role"] == "admin"
        assert requests.get(f"{url}/town/", **how).status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) in (0, 143, -signal.SIGTERM)
    with open_store(store) as opened:
        assert [one.role for one in opened.tokens.all()] == ["admin"]
        assert said not in json.dumps([dict(one.body) for one in opened.ledger.entries()])
    with running("serve", "--port", 0, "--store", store, "--no-watch", "--tls-proxy") as process:
        url = first_line(process).split()[2].rstrip("/")
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}  # which anybody may ask for, and nobody gets
        assert requests.get(f"{url}/town/live", headers=upgrade, timeout=PATIENCE_S).status_code == 401
        login = requests.post(f"{url}/login", json={"token": said}, timeout=PATIENCE_S)
        assert "; Secure" in login.headers["set-cookie"]
        process.send_signal(signal.SIGTERM)
        ran = ended(process)
        assert "hf_" not in ran.out and not ran.err


def test_it_does_not_open_to_others_without_a_token_or_begin_with_what_makes_no_sense(cli: Cli, tmp_path: Path) -> None:
    store = made(tmp_path / "store.sqlite")
    far = cli("serve", "--host", "0.0.0.0", "--port", "0", "--store", store).refusal
    assert "others could reach it" in far and "holdfast control tokens add" in far
    assert cli("serve", "--port", "87900", "--store", store).code == 2
    with endpoint.listen("127.0.0.1", 0, token=None) as other:  # who cannot listen makes no token that nobody is shown
        assert cli("serve", "--port", other.getsockname()[1], "--store", store).code == 2
    with open_store(store) as opened:
        assert opened.tokens.all() == []
    wrong = cli("serve", "--alert-webhook", "example.org", "--store", tmp_path / "other.sqlite").refusal
    assert "is not an address" in wrong and not (tmp_path / "other.sqlite").exists()


def test_a_store_that_is_not_there_is_refused_and_not_made(cli: Cli, tmp_path: Path) -> None:
    mistyped, nothing = tmp_path / "mistyped" / "store.sqlite", tmp_path / "nothing.sqlite"
    nothing.touch()
    for store in (mistyped, nothing):
        said = cli("serve", "--host", "0.0.0.0", "--port", "0", "--store", store).refusal
        assert "there is none" in said and "'holdfast quickstart' or 'holdfast run start' makes one" in said
    assert [(one.name, one.stat().st_size) for one in tmp_path.iterdir()] == [("nothing.sqlite", 0)]
