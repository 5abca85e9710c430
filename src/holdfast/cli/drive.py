"""Driving a run from a terminal: progress, signals, `status.json`, the report at its end and its exit code."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from holdfast.cli.options import store_flags, who
from holdfast.cli.prompts import held_out_lines, reported, search_lines
from holdfast.cli.release import into_service
from holdfast.cli.show import near, step
from holdfast.contracts.algorithm import SWITCHED_OFF
from holdfast.contracts.errors import StoreError
from holdfast.contracts.flag import run_unit
from holdfast.contracts.lines import folded
from holdfast.contracts.records import encode
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.rollout import ANSWERED
from holdfast.contracts.run import DesiredState, RunState, Status
from holdfast.operate.lifecycle import write_status
from holdfast.operate.switches import flag_reader, snapshot_of
from holdfast.pipeline.run import Control, RunSpec
from holdfast.pipeline.run import drive as drive_run
from holdfast.promote.flags import SWITCHES, Off, Snapshot
from holdfast.store.store import Store


class Stoppable(Protocol):
    def drain(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class Caught:
    exit_code: int = 0
    count: int = 0
    is_stopping: bool = False  # one more ends it at once


@contextmanager
def obeying(control: Stoppable) -> Iterator[Caught]:
    """Turns SIGINT and SIGTERM into calls of the control while the event loop runs."""
    loop, caught = asyncio.get_running_loop(), Caught()

    def on_signal(number: int, frame: FrameType | None) -> None:
        """Called even while the loop waits for a store that does not answer."""
        caught.count += 1
        caught.exit_code = 128 + number
        if caught.is_stopping:
            os._exit(caught.exit_code)  # nothing is lost: what is unfinished is claimed again when its lease runs out
        caught.is_stopping = number != signal.SIGTERM or caught.count > 1
        loop.call_soon_threadsafe(obey, caught.is_stopping)

    def obey(is_stopping: bool) -> None:
        if not is_stopping:
            control.drain()  # before it is said: nobody may be there to hear it
            print("holdfast: finishing what runs (again to stop now)", file=sys.stderr, flush=True)
        else:
            control.stop()
            message = "stopping, running work is handed back (again to end at once)"
            print(f"holdfast: {message}", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LEARNING = "learning"
AGAIN = Off(
    feature=LEARNING, flag=SWITCHES[LEARNING], why="it was off while this run went on, and is on again", remedy=""
)


def switched_off(store: Store, run: str, spec: RunSpec, begun: Snapshot) -> list[Off]:
    """The features of the run that were off for everybody when it began; learning, where it was off before an
    iteration. What a share of the tasks went without is kept with their rollouts."""
    off = begun.off_for_all()
    switched = [off[feature] for feature in SWITCHES if feature in off and feature in spec.runtime.uses]
    if any(update.body.get("skipped") == SWITCHED_OFF for update in store.steps.of_run(run)):
        now = snapshot_of(store, clock=time.time, environment=os.environ).off(run_unit(run))
        switched.insert(0, now.get(LEARNING, AGAIN))
    return switched


def switched_off_lines(off: Sequence[Off], at: str) -> list[str]:
    """Says which features were off, why, and how to turn them on. `at` has the options that find the store."""
    lines = []
    for one in off:
        message = f"{one.feature.replace('_', ' ')}: switched off by flag {one.flag} ({one.why})"
        lines += folded(message if not one.remedy else f"{message}; turn it on with")
        lines += step(one.remedy + (at if one.remedy.startswith("holdfast ") else "")) if one.remedy else ()
    return lines


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
                counted = (
                    f"{done} of {status.total_rollouts} {rate} "
                    if status.total_rollouts
                    else f"{status.elapsed_s:.0f} s, "
                )
                print(f"{name}: {counted}{note}".rstrip(", "), file=sys.stderr)


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Sends to stderr what agents print while they run: stdout is for the report."""
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


def report(
    status: Status,
    path: Path,
    *,
    as_json: bool,
    off: Sequence[Off] = (),
    searched: Sequence[tuple[Mapping[str, Any], Path]] = (),
) -> None:
    """`off` are the features that flags kept from it, `searched` its searches for a prompt with their pages."""
    if as_json:
        payload = encode(status)
        payload |= {"switched_off": [asdict(one) for one in off]} if off else {}
        payload |= {"prompt_optimization": reported(*searched[-1])} if searched else {}
        print(json.dumps(payload, indent=2, default=str))
        return
    cut = f", {status.cancelled} cancelled" if status.cancelled else ""
    dead = f" ({status.dead} given up without an answer)" if status.dead else ""
    open_ = f", {status.running + status.waiting} still to do" if status.running + status.waiting else ""
    rows = {"outcome": _outcomes(status)} if status.outcomes else {}
    rows |= {
        "rollouts": f"{status.total_rollouts}: {status.succeeded} succeeded, {status.failed} failed{dead}{cut}{open_}",
        "rewards": ", ".join(
            f"{split} {'missing' if of.mean_reward is None else f'{of.mean_reward:.3f}'} ({of.rewarded} of {of.total})"
            for split, of in status.rewards.items()
        ),
        "model": status.model_ref,
        "resources": status.resources_id or "none",
        "store": status.store_path,
        "status": str(path),
    }
    if status.rl_optimizer is not None:
        rows |= _learnt(status.rl_optimizer)
    why = f" ({status.error})" if status.error else ""
    run, at = status.run_id, store_flags(status.store_path, status.project)
    ended = f"{run} {status.run_state.replace('_', ' ')} in {status.elapsed_s:.1f} s{why}"
    print("\n".join(folded(ended, hanging="  ")))
    for name, text in rows.items():
        print("\n".join(folded(f"  {name:<10} {text}", hanging=" " * 13)))
    if off:
        print("\n".join(switched_off_lines(off, at)))
    for one in searched:
        print("\n".join(search_lines(*one)))
        print("\n".join(held_out_lines(one[0])))
    print("next:")
    ways = [(f"run rollouts {run}", "every task with its reward")]
    first = "train-1" if "train" in status.rewards else "val-1"
    ways += [(f"run spans {run}/{first}", "what one agent did, step by step")]
    if status.run_state is not RunState.COMPLETED and open_:
        ways.insert(0, (f"run start --resume {run}", "go on where it stopped"))
    if searched:
        held_out = searched[-1][0]["held_out"]
        ways[-1:] = [] if held_out is None else [(f"release explain {held_out['release']}", "why, from the ledger")]
        if held_out is not None and held_out["is_accepted"]:
            print("\n".join(into_service(held_out["release"], PolicyKind.PROMPT, at)))
    for command, about in ways:
        print("\n".join(step(f"holdfast {command}{at}", about)))


def _outcomes(status: Status) -> str:
    """Counts the outcomes of finished rollouts; a wrong answer is no success."""
    came = [f"{status.outcomes.get(kind, 0)} {kind.replace('_', ' ')}" for kind in ANSWERED]
    return ", ".join([*came[:2], *(came[2:] if status.outcomes.get("not_checked") else ()), f"{status.failed} failed"])


def _learnt(told: Mapping[str, Any]) -> dict[str, str]:
    """Describes what the optimizer did, and why it did no more."""
    seen = f"{told['trajectories']} trajectories, {told['samples']} turns"
    if told.get("restored"):
        rows = {"learnt": f"nothing: taken back, {told['restored']} ({seen})"}
    elif told["executed"]:
        early = ", stopped early by max_kl" if told["early_stop_triggered"] else ""
        numbers = f"mean loss {told['mean_total_loss']:.4f}, KL {told['observed_approx_kl']:.4f}{early}"
        moved = f"parameters moved by {told['parameter_delta_norm']:.3g} in {told['updates']} updates"
        rows = {"learnt": f"{seen}; {moved}", "": numbers, "weights": near(told.get("weights", "none"))}
        if told.get("explained_variance") is not None:
            rows["critic"] = f"explained {told['explained_variance']:.2f} of the variance of the returns"
    else:
        rows = {"learnt": f"nothing: {told['skipped_reason'].replace('_', ' ')} ({seen})"}
    if told.get("no_gradient"):
        silent = (f"{n} by {why.replace('_', ' ')}" for why, n in told["no_gradient"].items())
        rows["unused"] = f"rollouts without a gradient: {', '.join(silent)}"
    return rows


def _show_warning(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **how: Any) -> None:
    """Ours without the line of source that gave it."""
    is_ours = Path(filename).is_relative_to(Path(__file__).parents[1])
    lines = folded(f"holdfast: {message}", hanging="  ")
    told = "\n".join(lines) if is_ours else warnings.formatwarning(message, category, filename, *rest[:1]).rstrip()
    print(told, file=sys.stderr, flush=True)


def drive(store: Store, spec: RunSpec, resume: str | None) -> tuple[Status, Path, int]:
    """Run the program to its end: how it ended, where its status lies, and the exit code."""
    path = store.folder / "status.json"
    here = Path.cwd()  # before an agent can change it
    shown = path.relative_to(here) if path.is_relative_to(here) else path

    said = ""

    def observe(status: Status) -> None:
        nonlocal said
        try:
            write_status(path, status)
        except StoreError as error:  # a file for others to read: the run itself does not need it
            if (why := str(error.why)) != said:
                said = why
                print(f"holdfast: {shown}: cannot be written ({why}); the run goes on", file=sys.stderr, flush=True)
        progress.show(status, store.runs.get(status.run_id).wanted)

    async def main() -> tuple[Status, int]:
        control = Control()
        with obeying(control) as caught:
            status = await drive_run(
                store,
                spec,
                control,
                clock=store.clock,
                observe=observe,
                who=who(),
                salt=secrets.token_hex(2),
                resume=resume,
                features=flag_reader(store, clock=time.time, environment=os.environ),
            )
        return status, caught.exit_code

    with Progress() as progress, stdout_kept_clean(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        status, signalled = asyncio.run(main())
    codes = {RunState.COMPLETED: 0, RunState.FAILED: 3, RunState.TIMED_OUT: 4, RunState.CANCELLED: signalled or 130}
    return status, shown, codes[status.run_state]
