"""Watching: lines where there is no terminal, Ctrl-C where there is one, and a page until it is told to end."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from holdfast.cli.townview import badges
from holdfast.contracts.errors import BadInput
from tests.cli.conftest import Cli

FEW = ("--residents", "12")


def test_watching_without_a_terminal_prints_what_happens(cli: Cli) -> None:
    told = cli("town", "watch", "--ticks", 300, *FEW)
    assert told.code == 0 and all(re.match(r"day 1, \d\d:\d\d  \w", line) for line in told.lines) and told.lines


def test_ctrl_c_ends_watching_and_leaves_the_terminal_as_it_was() -> None:
    child, screen = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="26")
        words = ["-m", "holdfast.cli", "town", "watch", "--residents", "12", "--speed", "30"]
        os.execv(sys.executable, [sys.executable, *words])
    seen, until, again = b"", time.monotonic() + 300, 0.0
    while time.monotonic() < until:
        if not select.select([screen], [], [], 0.5)[0]:
            continue
        try:
            seen += os.read(screen, 65536)
        except OSError:  # the other side is closed
            break
        if time.monotonic() > again and "▀".encode() in seen and b"harbour" in seen:
            again = time.monotonic() + 20  # a terminal that is just being set up may lose what is typed
            os.write(screen, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (
        seen.rstrip().endswith(b"the town goes on without you") and b"\x1b[?1049l" in seen and b"Traceback" not in seen
    )


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_it_is_told_to_end(with_signal: signal.Signals, tmp_path: Path) -> None:
    words = ["town", "watch", "--web", "--port", "0", "--residents", "12", "--audit", str(tmp_path / "audit.jsonl")]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    command, pipe = [sys.executable, "-m", "holdfast.cli", *words], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as served:
        assert served.stdout is not None and served.stderr is not None
        address = re.match(r"town at (http://127\.0\.0\.1:\d+/)", served.stdout.readline())
        assert address is not None and "#token=" in served.stdout.readline()
        with urllib.request.urlopen(f"{address[1]}status", timeout=60) as answer:
            assert json.load(answer)["role"] == "viewer"
        served.send_signal(with_signal)
        assert served.wait(60) in (130, 143, -with_signal, 0)
        assert "Traceback" not in served.stderr.read()
    assert not list(tmp_path.glob("town-*"))  # its recording went with it


def test_a_badge_is_made_up_where_none_is_given() -> None:
    none: dict[str, str | None] = {"viewer": None, "operator": None, "admin": None}
    found, link = badges(none)
    assert [(one.role, one.token) for one in found] == [("operator", link)] and len(link) >= 12
    found, link = badges(none | {"viewer": "viewer-token", "admin": "admin-token"})
    assert [one.role for one in found] == ["viewer", "admin"] and link == "admin-token"
    with pytest.raises(BadInput):
        badges(none | {"admin": "x"})
