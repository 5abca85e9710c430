"""status.json: whole at every moment, and read back as it was written."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contracts.errors import BadRecord, StoreFull
from holdfast.contracts.records import loads
from holdfast.contracts.run import RunState, SplitRewards, Status
from holdfast.operate.lifecycle import write_status

STATUS = Status(
    updated_unix_ms=1_700_000_000_000,
    run_state=RunState.RUNNING,
    run_id="run-1-abcd",
    project="default",
    model_ref="openai/tiny",
    store_path="store.sqlite",
    resources_id="resources-1",
    total_rollouts=3,
    succeeded=1,
    failed=1,
    cancelled=0,
    dead=1,
    running=1,
    waiting=0,
    rewards={"train": SplitRewards(total=2, rewarded=1, mean_reward=0.5)},
    elapsed_s=1.25,
)


@pytest.mark.parametrize("state", RunState)
def test_a_status_is_read_as_it_was_written(tmp_path: Path, state: RunState) -> None:
    path, status = tmp_path / "deep" / "status.json", replace(STATUS, run_state=state, error="é")
    write_status(path, status)
    assert loads(Status, path.read_bytes()) == status
    assert json.loads(path.read_text())["run_state"] == state
    assert [file.name for file in path.parent.iterdir()] == ["status.json"]


def test_a_reader_never_finds_half_a_status(tmp_path: Path) -> None:
    path, over = tmp_path / "status.json", threading.Event()
    write_status(path, STATUS)
    seen: set[int] = set()
    broken: list[Exception] = []

    def read() -> None:
        while not over.is_set():
            try:
                seen.add(loads(Status, path.read_bytes()).succeeded)
            except Exception as error:
                broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(100):
        write_status(path, replace(STATUS, succeeded=n, error="x" * (n * 100)))
    over.set()
    reader.join()
    assert broken == []
    assert len(seen) > 5


def test_what_is_not_finite_is_not_written(tmp_path: Path) -> None:
    rewards = {"train": SplitRewards(total=1, rewarded=1, mean_reward=float("inf"))}
    with pytest.raises(BadRecord):
        write_status(tmp_path / "status.json", replace(STATUS, rewards=rewards))
    assert not (tmp_path / "status.json").exists()


def test_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull, match="make room, or choose another place"):
        write_status(tmp_path / "file" / "status.json", STATUS)
