from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import decode
from holdfast.operate.watchers import Lines, Webhook
from tests.store.filled import SCRIPT

ALERT = Alert(code="backlog", severity=Severity.WARNING, message=f"line\nbreak {SCRIPT} \ud800", at=1.0, run="run-1")


async def no_pause(seconds: float) -> None:
    assert seconds > 0


async def test_a_file_gets_one_line_for_each(tmp_path: Path) -> None:
    sink = Lines(path=tmp_path / "new" / "alerts.jsonl")
    await sink(ALERT)
    await sink(ALERT)
    lines = sink.path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert decode(Alert, json.loads(lines[0])).message == f"line\nbreak {SCRIPT} ?"


async def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        await Lines(path=tmp_path / "file" / "alerts.jsonl")(ALERT)


@pytest.mark.parametrize(
    ("answers", "is_delivered", "asked"),
    [([200], True, 1), ([503, 500, 204], True, 3), ([503, 503, 503, 200], False, 3), ([302, 302, 302], False, 3)],
    ids=["at once", "the third time", "never", "elsewhere"],
)
async def test_a_webhook_is_tried_a_few_times(answers: list[int], is_delivered: bool, asked: int) -> None:
    heard = []

    async def hear(request: web.Request) -> web.Response:
        heard.append(await request.json())
        return web.Response(status=answers[len(heard) - 1], headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_post("/hook", hear)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        sink = Webhook(url=f"http://127.0.0.1:{port}/hook", pause=no_pause, timeout_s=60.0)
        alert = Alert(code="backlog", severity=Severity.WARNING, message=SCRIPT, at=1.0)
        if is_delivered:
            await sink(alert)
        else:
            with pytest.raises(OSError, match="after 3 tries"):
                await sink(alert)
        assert len(heard) == asked and decode(Alert, heard[0]) == alert
    finally:
        await runner.cleanup()


async def test_nobody_there_is_an_os_error() -> None:
    with pytest.raises(OSError, match="ClientConnectorError"):
        await Webhook(url="http://127.0.0.1:9/hook", pause=no_pause)(ALERT)


def test_what_is_no_address_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(BadInput, match="is not an address"):
        Webhook(url="file:///etc/passwd")
