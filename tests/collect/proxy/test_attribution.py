"""The attribution log."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

from holdfast.collect.proxy.attribution import AttributionLog
from tests.collect.scene import until


async def test_lines_are_appended_without_anybody_waiting(tmp_path: Path) -> None:
    log, other = AttributionLog(tmp_path), AttributionLog(tmp_path)
    for number in range(50):
        log.add({"rollout_id": f"r/{number}", "status_code": None})
        other.add({"rollout_id": f"o/{number}"})
    await until(log.path.exists)
    await log.close()
    await other.close()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert len(lines) == 100 and all(line["schema_version"] == 1 for line in lines)
    assert [line["rollout_id"] for line in lines if line["rollout_id"][0] == "r"] == [f"r/{n}" for n in range(50)]
    assert "status_code" not in lines[0]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


async def test_a_line_that_was_cut_short_stays_alone(tmp_path: Path) -> None:
    log = AttributionLog(tmp_path)
    log.path.parent.mkdir()
    log.path.write_text('{"half":')
    log.add({"a": 1})
    await log.close()
    assert log.path.read_text() == '{"half":\n{"schema_version":1,"a":1}\n'


async def test_a_folder_that_vanished_is_made_again_and_one_that_cannot_be_is_counted(tmp_path: Path) -> None:
    log = AttributionLog(tmp_path / "s")
    log.add({"a": 1})
    await log.close()
    shutil.rmtree(tmp_path / "s")
    log.add({"a": 2})
    await log.close()
    assert log.path.is_file() and log.failures == 0
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "s").touch()
    log.add({"a": 3})
    await log.close()
    assert log.failures == 1
