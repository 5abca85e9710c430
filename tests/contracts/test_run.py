"""The words for runs: what they are in, and what an operator may want of them."""

from __future__ import annotations

from holdfast.contracts.records import decode, encode
from holdfast.contracts.run import Run, RunState, Wanted


def test_the_states_are_the_documented_ones() -> None:
    assert list(RunState) == ["running", "completed", "failed", "cancelled", "timed_out"]
    assert list(Wanted) == ["running", "paused", "draining", "cancelled"]


def test_a_run_keeps_what_it_is_in_apart_from_what_is_wanted() -> None:
    run = Run(
        id="run-1",
        project="p",
        kind="optimize",
        state=RunState.RUNNING,
        wanted=Wanted.DRAINING,
        model_ref="m",
        settings={"a": 1},
        queue_limit=None,
        created_at=1.0,
        beat_at=2.0,
        ended_at=None,
        error=None,
    )
    written = encode(run)
    assert (written["state"], written["wanted"]) == ("running", "draining")
    assert decode(Run, written) == run
