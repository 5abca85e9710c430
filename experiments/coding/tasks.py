"""Tasks: a file with one mistake, the tests that came with it, and a hidden check that is known to notice.

A breakage becomes a task only if the sandbox has seen it fail: the hidden check, because else nothing is broken, and
one of the visible examples, because they are all that the one who repairs it is shown.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from experiments.coding.breakage import Breakage, breakages
from experiments.coding.functions import Function, hidden_calls, source, visible_tests
from experiments.coding.known import dates, graphs, lists, numbers, parsing, tables, text
from experiments.coding.sandbox import Calls, Sandbox, SandboxLimits
from holdfast.contracts.errors import BadInput
from holdfast.reward.diff.tamper import is_check

LIMITS = SandboxLimits(cpu_s=0.3)  # a right answer takes a hundredth of it; many a broken one never ends


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTask:
    """A broken file, and what its repair is judged by."""

    id: str
    function: str
    kind: str  # of breakage
    path: str  # the broken file
    tests_path: str
    files: dict[str, str]  # path → text, as the task is handed out
    gold: str = field(repr=False)  # the file, repaired with the fewest edits
    hidden: Calls = field(repr=False)

    @property
    def broken(self) -> str:
        return self.files[self.path]

    @property
    def tests(self) -> str:
        return self.files[self.tests_path]


@cache
def catalogue() -> tuple[Function, ...]:
    """All known functions, by name."""
    rooms = (text, lists, numbers, dates, parsing, graphs, tables)
    return tuple(sorted((one for room in rooms for one in room.FUNCTIONS), key=lambda one: one.name))


def make(count: int, *, seed: int, sandbox: Sandbox) -> tuple[RepairTask, ...]:
    """So many tasks, spread over all functions; the same seed gives the same ones."""
    if count < 1:
        raise BadInput(f"tasks = {count}", why="must be at least 1")
    waiting = [_of_function(one, seed, sandbox) for one in catalogue()]
    random.Random(f"tasks:{seed}").shuffle(waiting)
    found: list[RepairTask] = []
    while waiting and len(found) < count:
        for tasks in list(waiting):
            task = next(tasks, None) if len(found) < count else None
            if task is not None:
                found.append(task)
            elif len(found) < count:
                waiting.remove(tasks)
    if len(found) < count:
        raise BadInput(f"tasks = {count}", why=f"there are {len(found)} ways to break these functions")
    return tuple(found)


def is_repaired(task: RepairTask, files: dict[str, str], sandbox: Sandbox) -> bool:
    """The hidden check. Tests and their settings stay outside: only code is called."""
    code = {path: text for path, text in files.items() if not is_check(path)}
    return task.path in code and sandbox.judge(code, task.hidden).is_passed


def _of_function(function: Function, seed: int, sandbox: Sandbox) -> Iterator[RepairTask]:
    """Its tasks, one kind of breakage after the other, so that no kind crowds out the others."""
    rng = random.Random(f"{function.name}:{seed}")
    gold, tests = source(function), visible_tests(function)
    hidden = hidden_calls(function, rng=rng)
    kinds: dict[str, list[Breakage]] = {}
    for one in breakages(gold):
        kinds.setdefault(one.kind, []).append(one)
    for several in kinds.values():
        rng.shuffle(several)
    order = sorted(kinds)
    rng.shuffle(order)
    for place in range(max(map(len, kinds.values()))):
        for one in (kinds[kind][place] for kind in order if place < len(kinds[kind])):
            path, tests_path = f"{function.name}.py", f"test_{function.name}.py"
            task = RepairTask(
                id=f"{function.name}-{one.kind.replace(' ', '_')}-{one.line}-{place}",
                function=function.name,
                kind=one.kind,
                path=path,
                tests_path=tests_path,
                files={path: one.text, tests_path: tests},
                gold=gold,
                hidden=hidden,
            )
            wrong = sandbox.judge({path: one.text}, hidden).wrong
            if wrong and wrong[0] < len(function.examples):
                yield task
