"""Callers of a service: each answer is written down with its version, and so is what failed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.operate.drill.drills import Callers


class Service(BaseHTTPRequestHandler):
    """Answers every caller but the first."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps({"model": "local/p@2@5e5e"}).encode()
        self.send_response(500 if asked["user"] == "caller-0" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_who_answered_and_what_failed_is_written_down(address: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    end = time.monotonic() + 60.0
    with Callers(address=address, policy="p", path=path, clock=time.time, many=2) as callers:
        while not (callers.answered["p@2"] >= 3 and callers.answered[""] >= 3) and time.monotonic() < end:
            time.sleep(0.01)
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(one["caller"], one["version"], one["error"]) for one in told} == {
        (0, "", "HTTPError: HTTP Error 500: Internal Server Error"),
        (1, "p@2", None),
    }
    assert all(one["began"] <= one["ended"] for one in told)
    assert len(told) == callers.answered.total()
