"""What a person sees of a run: a bar while it goes, a short report at its end. The bar goes to stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from holdfast.cli import switched
from holdfast.cli.onward import near
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import ANSWERED
from holdfast.contracts.run import DesiredState, RunState, Status
from holdfast.promote.flags import Off

LINE_EVERY_S = 10.0


class Progress:
    """A bar on a terminal; elsewhere a line now and then, so that logs stay readable."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, rate="", note="")
        self._lock = threading.Lock()
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, status: Status, wanted: DesiredState = DesiredState.RUNNING) -> None:
        name = status.run_id
        if status.run_state is RunState.RUNNING and wanted is not DesiredState.RUNNING:
            name += f" {wanted}"  # beside its name, where no narrow terminal cuts it off
        done = status.succeeded + status.failed + status.cancelled
        rate = f"{done / status.elapsed_s:.1f}/s" if status.elapsed_s > 0 else ""
        right, wrong = (status.outcomes.get(kind, 0) for kind in ("right", "wrong"))
        checked = f"{right} right, {wrong} wrong" if right or wrong else ""
        note = ", ".join(filter(None, (checked, f"{status.failed} failed" if status.failed else "", status.lesson)))
        with self._lock:
            self._bar.update(
                self._task, description=name, total=status.total_rollouts, completed=done, rate=rate, note=note
            )
            if not self._console.is_terminal and time.monotonic() - self._said > LINE_EVERY_S:
                self._said = time.monotonic()
                counted = f"{done} of {status.total_rollouts} {rate} " if status.total_rollouts else ""
                print(f"{name}: {counted}{note}".rstrip(), file=sys.stderr)


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Stdout is the report's: what agents print while they run, in this process or another, goes to stderr."""
    if sys.stdout is None:  # closed by our caller; its number may be any file's by now
        yield
        return
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)


def report(status: Status, path: Path, *, as_json: bool, off: Sequence[Off] = ()) -> None:
    """`off` are the features that flags kept from it."""
    if as_json:
        told = encode(status)
        print(json.dumps({**told, "switched_off": switched.records(off)} if off else told, indent=2))
        return
    cut = f", {status.cancelled} cancelled" if status.cancelled else ""
    dead = f" ({status.dead} given up without an answer)" if status.dead else ""
    open_ = f", {status.running + status.waiting} still to do" if status.running + status.waiting else ""
    rows = {"outcome": _outcomes(status)} if status.outcomes else {}
    rows |= {
        "rollouts": f"{status.total_rollouts}: {status.succeeded} succeeded, {status.failed} failed{dead}{cut}{open_}",
        "rewards": ", ".join(
            _mean(split, of.mean_reward, of.rewarded, of.total) for split, of in status.rewards.items()
        ),
        "model": status.model_ref,
        "resources": status.resources_id or "none",
        "store": status.store_path,
        "status": str(path),
    }
    if status.rl_optimizer is not None:
        rows |= _learnt(status.rl_optimizer)
    why = f" ({status.error})" if status.error else ""
    print(f"{status.run_id} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.1f} s{why}")
    for name, text in rows.items():
        print(f"  {name:<10} {text}")
    if off:
        print("\n".join(switched.lines(off, elsewhere(status))))
    print("next:")
    if status.run_state is not RunState.COMPLETED and open_:
        print(f"  holdfast optimize --resume {status.run_id}{elsewhere(status)}   # go on where it stopped")
    print(f"  holdfast rollouts {status.run_id}{elsewhere(status)}   # every task with its reward")
    print(
        f"  holdfast spans {status.run_id}/{_some_task(status)}{elsewhere(status)}   # what one agent did, step by step"
    )


def _outcomes(status: Status) -> str:
    """What came of those that are over; a wrong answer is no success."""
    came = [f"{status.outcomes.get(kind, 0)} {kind.replace('_', ' ')}" for kind in ANSWERED]
    return ", ".join([*came[:2], *(came[2:] if status.outcomes.get("not_checked") else ()), f"{status.failed} failed"])


def _learnt(told: Mapping[str, Any]) -> dict[str, str]:
    """What the optimizer did, and why not more."""
    seen = f"{told['trajectories']} trajectories, {told['samples']} turns"
    if told.get("restored"):
        rows = {"learnt": f"nothing: taken back, {told['restored']} ({seen})"}
    elif told["executed"]:
        moved = f"parameters moved by {told['parameter_delta_norm']:.3g} in {told['updates']} updates"
        rows = {"learnt": f"{seen}; {moved}", "": _numbers(told), "weights": near(told.get("weights", "none"))}
    else:
        rows = {"learnt": f"nothing: {told['skipped_reason'].replace('_', ' ')} ({seen})"}
    if told.get("no_gradient"):
        silent = (f"{n} by {why.replace('_', ' ')}" for why, n in told["no_gradient"].items())
        rows["unused"] = f"rollouts without a gradient: {', '.join(silent)}"
    return rows


def _numbers(told: Mapping[str, Any]) -> str:
    early = ", stopped early by max_kl" if told["early_stop_triggered"] else ""
    return f"mean loss {told['mean_total_loss']:.4f}, KL {told['observed_approx_kl']:.4f}{early}"


def _mean(split: str, mean: float | None, rewarded: int, total: int) -> str:
    return f"{split} {'missing' if mean is None else f'{mean:.3f}'} ({rewarded} of {total})"


def elsewhere(status: Status) -> str:
    """What finds the run again from another place than the usual one."""
    from holdfast.cli.options import DEFAULT_STORE

    store = "" if status.store_path == DEFAULT_STORE else f" --store {shlex.quote(status.store_path)}"
    return store + ("" if status.project == "default" else f" --project {shlex.quote(status.project)}")


def _some_task(status: Status) -> str:
    return "train-1" if "train" in status.rewards else "val-1"
