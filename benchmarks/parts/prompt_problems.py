"""Problems for searches of prompts, on the embedded model, and what it does with each prompt, kept on disk.

A problem is a kind of task, what counts as success, and one prompt to begin with; the sentences that may be put into a
prompt are the same for all. Sprout decodes greedily, so a prompt and a task have one outcome: whoever asks for it again
gets it from the table. On a null problem each prompt is dealt the outcomes of the first one anew: none is better.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from holdfast.contracts.errors import HoldfastError
from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from holdfast.workloads.tooluse.agent import ExamMark, examine
from holdfast.workloads.tooluse.tasks import STYLES, Dials, ToolTask, generate
from holdfast.workloads.tooluse.wordings import TEST_INSTRUCTIONS
from parts.prompt_worlds import World
from parts.report import ROOT, progress

MODEL, BASE = "sprout", "You are a helpful assistant."
TRAIN, HELD_OUT = 60, 80  # tasks of a problem
SEEDS = {"train": 17_001, "held_out": 17_002}  # of the tasks, all in wordings of the split "val"
AT_ONCE = 128
GREEDY = {"temperature": 0.0, "max_tokens": 120}
TURNS = 5
KEPT = ROOT / "build" / "prompt_outcomes.jsonl"

# Two sentences for each thing that instructions may ask for, none of them in the model's training, and the styles.
BANK = (*(one for aspect in TEST_INSTRUCTIONS.values() for one in aspect[:2]), *STYLES.values())

Cell = tuple[str, str, int]  # prompt, part ("train", "held_out"), place of the task
Search = Generator[list[Cell], list[float], Any]  # asks for outcomes, and is given them


@dataclass(frozen=True)
class Problem:
    name: str
    families: tuple[str, ...]
    reached: Callable[[ExamMark], bool]
    styles: tuple[str, ...] = tuple(STYLES)
    is_told: bool = True  # the task itself says the style
    null_of: str | None = None  # the problem whose outcomes are dealt anew
    world: World | None = None  # drawn by chance: no model is asked

    @cached_property
    def tasks(self) -> dict[str, list[ToolTask]]:
        dials = Dials(families=self.families, styles=self.styles, prompts="bare")
        return {part: generate("val", SEEDS[part], n, dials) for part, n in (("train", TRAIN), ("held_out", HELD_OUT))}

    def asked(self, prompt: str, part: str, place: int) -> ToolTask:
        task = self.tasks[part][place]
        return replace(task, system=f"{prompt} {task.system}".strip() if self.is_told else prompt)

    def cell(self, cell: Cell) -> Cell:
        """Which outcome it is: on a null problem that of the first prompt on a task drawn by a hash."""
        prompt, part, place = cell
        if self.null_of is None:
            return cell
        drawn = int.from_bytes(sha256(f"{prompt}/{part}/{place}".encode()).digest()[:8])
        return BASE, part, drawn % len(self.tasks[part])


def _success(mark: ExamMark) -> bool:
    return mark.success


def _styled(mark: ExamMark) -> bool:
    return mark.success and mark.format


def _routed(mark: ExamMark) -> bool:
    return bool(mark.adoption)


PROBLEMS = (
    Problem("tool use", ("calc", "lookup", "convert", "calendar", "two", "flaky", "missing"), _success),
    Problem("style", ("calc", "lookup", "trivial", "chat"), _styled, styles=("json",), is_told=False),
    Problem("extraction", ("lookup", "missing", "unoffered"), _success),
    Problem("routing", ("calc", "convert", "calendar", "lookup"), _routed),
    Problem("arithmetic format", ("calc", "trivial", "steps"), _styled, styles=("full",), is_told=False),
)
WORLDS = tuple(replace(PROBLEMS[0], name=f"world {seed}", world=World.of(seed, BANK)) for seed in range(1000, 1010))
NULLS = tuple(replace(one, name=f"{one.name}, null", null_of=one.name) for one in PROBLEMS)


@dataclass
class Outcomes:
    """The table: what is not in it is asked of the model, many at a time."""

    path: Path = KEPT
    known: dict[str, dict[str, float]] = field(default_factory=dict)  # problem and prompt → part and place → outcome
    asked: int = 0  # rollouts of the model in this process

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        model, manifest = load_transformer(MODEL)
        about = [MODEL, manifest.sha256, TRAIN, HELD_OUT, SEEDS, TURNS, GREEDY]
        self._about = sha256(json.dumps(about).encode()).hexdigest()[:12]
        self._local = Local(model, slots=AT_ONCE)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                about, key, cells = json.loads(line)
            except ValueError:
                continue  # cut off by a kill: it is asked for again
            if about == self._about:
                self.known.setdefault(key, {}).update(cells)

    def close(self) -> None:
        self._local.close()

    def of(self, problem: Problem, cells: Sequence[Cell]) -> list[float]:
        (found,) = self.of_many([(problem, cells)])
        return found

    def of_many(self, asked: Iterable[tuple[Problem, Sequence[Cell]]]) -> list[list[float]]:
        wanted = [(problem, [problem.cell(cell) for cell in cells]) for problem, cells in asked]
        lacking = {
            (problem, cell): None for problem, cells in wanted for cell in cells if self._get(problem, cell) is None
        }
        if lacking:
            self._run(list(lacking))
        return [[self._value(problem, cell) for cell in cells] for problem, cells in wanted]

    def _get(self, problem: Problem, cell: Cell) -> float | None:
        prompt, part, place = cell
        if problem.world is not None:
            return problem.world.outcome(prompt, part, place)
        return self.known.get(f"{problem.null_of or problem.name}|{prompt}", {}).get(f"{part} {place}")

    def _value(self, problem: Problem, cell: Cell) -> float:
        found = self._get(problem, cell)
        assert found is not None
        return found

    def _run(self, lacking: list[tuple[Problem, Cell]]) -> None:
        values = asyncio.run(self._answered(lacking))
        self.asked += len(lacking)
        new: dict[str, dict[str, float]] = {}
        for (problem, (prompt, part, place)), value in zip(lacking, values, strict=True):
            new.setdefault(f"{problem.null_of or problem.name}|{prompt}", {})[f"{part} {place}"] = value
        for key, cells in new.items():
            self.known.setdefault(key, {}).update(cells)
        lines = "".join(json.dumps([self._about, key, cells]) + "\n" for key, cells in new.items())
        with self.path.open("ab", buffering=0) as file:  # one write: others may write, too
            file.write(lines.encode())

    async def _answered(self, lacking: list[tuple[Problem, Cell]]) -> list[float]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def answered(problem: Problem, cell: Cell) -> float:
            prompt, part, place = cell
            async with gate:
                try:
                    task = problem.asked(prompt, part, place)
                    marks = await examine(self._local, [task], sampling=GREEDY, max_turns=TURNS)
                except HoldfastError:
                    return 0.0  # the prompt is too long for the model
            return float(problem.reached(marks[0]))

        return list(await asyncio.gather(*(answered(*one) for one in lacking)))


def drive(searches: Sequence[tuple[Problem, Search]], outcomes: Outcomes, *, at_once: int, what: str) -> list[Any]:
    """Runs searches side by side, so that the model is asked for many rollouts at once; what each returned."""
    ended: dict[int, Any] = {}
    waiting: dict[int, list[Cell]] = {}
    answers: dict[int, list[float] | None] = {}
    begun = 0
    while len(ended) < len(searches):
        while len(answers) + len(waiting) < at_once and begun < len(searches):
            answers[begun] = None
            begun += 1
        for number, answer in answers.items():
            search = searches[number][1]
            try:
                waiting[number] = next(search) if answer is None else search.send(answer)
            except StopIteration as end:
                ended[number] = end.value
                if len(ended) % 10 == 0 or len(ended) == len(searches):
                    progress(f"{what}: {len(ended)} of {len(searches)}, {outcomes.asked:,} rollouts asked of the model")
        told = outcomes.of_many([(searches[number][0], cells) for number, cells in waiting.items()])
        answers, waiting = dict(zip(waiting, told, strict=True)), {}
    return [ended[number] for number in range(len(searches))]
