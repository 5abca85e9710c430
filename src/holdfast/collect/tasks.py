"""Tasks from files and lists: what each column means, which split a task is in, and what is wrong with the set.

Duplicates, tasks in both splits and answers in the agent's sight are reported before a run starts. `rows` reads files.
"""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, NoReturn

from holdfast.collect.rows import Origin, SourceRow, read_rows
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import TASK_NAME_RULE, Split, is_task_name
from holdfast.contracts.shapes import kind_of
from holdfast.contracts.task import TaskItem, canonical, leaked_tasks, task_texts

Column = str | Literal[False] | None  # a name; False: no such column; None: the usual name, if it is there
Digest = bytes

RESERVED = ("id", "expected", "split", "family", "metadata")
GOLD_NAMES = frozenset(
    {"answer", "answers", "gold", "target", "targets", "label", "labels", "output", "solution", "ground_truth"}
    | {f"{kind}_answer" for kind in ("gold", "expected", "correct", "reference", "final")}
    | {"expected", "expected_output", "gold_output"}
)
SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training"), Split.TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation", "test"), Split.VAL),
    **dict.fromkeys(("held_out", "held-out", "heldout", "holdout"), Split.VAL),
}
WIDTH = 80
SHOWN = 3  # examples of each finding in the printed report
LONGEST, LONGEST_TEXT = 40, 60  # characters of a name in it, and of a task
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_MADE = re.compile(r"task-[0-9a-f]{16}")  # the id of a task that has none of its own
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """Tasks with the same input: the first is kept, the others are dropped; of two splits, the held-out one is kept."""

    kept: str  # id
    dropped: tuple[str, ...]
    contradicts: bool  # their expected answers are not the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Tasks that are in both splits, with the same input or with nearly the same text."""

    train: tuple[str, ...]  # ids
    held_out: tuple[str, ...]
    texts: tuple[str, ...] = field(default=(), compare=False)  # of the first of each, shortened, for people


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """What was found about a set of tasks before they are run."""

    train: int
    held_out: int
    families: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # train, held out
    duplicates: tuple[Duplicate, ...] = ()
    leaks: tuple[Leak, ...] = ()  # the same input, or one that differs in nothing that counts; refused unless allowed
    near_leaks: tuple[Leak, ...] = ()  # the same but for case, spaces and digits
    without_expected: tuple[str, ...] = ()  # ids
    gold_in_sight: tuple[str, ...] = ()  # keys of the input that seem to hold the expected answer
    is_proof: bool = True  # one split teaches and the other proves; if not, sizes do not matter

    @property
    def dropped(self) -> int:
        return sum(len(duplicate.dropped) for duplicate in self.duplicates)

    @property
    def split_families(self) -> tuple[str, ...]:
        """Families with tasks in both splits."""
        return tuple(name for name, (train, held_out) in self.families.items() if train and held_out)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each thing that may spoil a run or a proof; the gravest first."""
        found = [
            f"THE AGENT SEES THE ANSWER? Its input holds {_show(name)!r}, which looks like the expected answer. "
            f"If it is, load with expected={_show(name)!r}, or take it out of the input."
            for name in self.gold_in_sight
        ]
        if self.leaks:
            found.append(
                f"LEAK: the same input is in train and held out, {len(self.leaks)} times: {_pairs(self.leaks)}."
            )
        if self.near_leaks:
            found.append(_near(self.near_leaks))
        if self.split_families:
            found.append(f"Families in both splits: {_some(self.split_families)}.")
        if self.duplicates:
            pairs = _some_pairs([(duplicate.dropped[0], duplicate.kept) for duplicate in self.duplicates])
            found.append(f"Dropped {self.dropped} duplicates (the first is kept): {pairs}.")
        if wrong := [duplicate.kept for duplicate in self.duplicates if duplicate.contradicts]:
            found.append(f"Duplicates with another expected answer than the one kept: {_some(wrong)}.")
        if self.without_expected:
            of = f"{len(self.without_expected)} of {self.train + self.held_out}"
            found.append(f"No expected answer in {of}: {_some(self.without_expected)}.")
        return (*found, *self._size_warnings())

    def _size_warnings(self) -> Iterator[str]:
        if self.is_proof and not self.held_out:
            yield "No held-out tasks: nothing can be proved. Give held_out, as in held_out=0.4, or a split column."
        if self.is_proof and not self.train:
            yield "No train tasks: there is nothing to learn from."

    def lines(self) -> tuple[str, ...]:
        """The report in at most 80 columns."""
        total = self.train + self.held_out
        found = [f"{total} tasks: {self.train} train, {self.held_out} held out"]
        if self.families:
            largest = sorted(self.families.items(), key=lambda family: (-sum(family[1]), family[0]))
            shown = ", ".join(f"{_show(name)} {train}+{held}" for name, (train, held) in largest[:SHOWN])
            more = f", {len(largest) - SHOWN} more" if len(largest) > SHOWN else ""
            found += _wrapped(f"{len(largest)} families (train+held out): {shown}{more}", "")
        for warning in self.warnings:
            found += _wrapped(warning, "! ")
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True)
class TaskSet:
    """Tasks to learn from, tasks to prove on, and what was found about them."""

    train: tuple[TaskItem, ...]
    held_out: tuple[TaskItem, ...]
    report: TaskReport

    def __len__(self) -> int:
        return len(self.train) + len(self.held_out)

    def __iter__(self) -> Iterator[TaskItem]:
        """All tasks: first train, then held out."""
        yield from self.train
        yield from self.held_out

    @cached_property
    def sha256(self) -> Mapping[str, str]:
        """By split ("train", "held_out"): the hash of its tasks in their order. The order of keys does not matter."""
        return {"train": _set_hash(self.train), "held_out": _set_hash(self.held_out)}

    def take(self, n: int) -> TaskSet:
        """The first n tasks of each split: for a quick trial."""
        if n < 1:
            raise BadInput(f"take({n})", why="must be at least 1")
        return _part(self.report, self.train[:n], self.held_out[:n])

    def select(
        self, *, ids: Collection[str] | None = None, families: Collection[str] | None = None, split: str | None = None
    ) -> TaskSet:
        """The tasks that fit all that is given; `split` is "train" or "held_out"."""
        wanted = None if split is None else _split_named(split, "select(split=...)")
        known = {task.id for task in self}
        for one in ids or ():
            if one not in known:
                raise BadInput(f"select: id {one!r}", why="no task has it", remedy="check the id")

        def fits(task: TaskItem) -> bool:
            return (
                (ids is None or task.id in ids)
                and (families is None or task.family in families)
                and (wanted is None or task.split is wanted)
            )

        return _part(self.report, filter(fits, self.train), filter(fits, self.held_out))

    def write(self, path: str | Path) -> None:
        """Writes JSONL that `load` reads back as the same set."""
        with Path(path).open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(canonical(task.row()) + "\n" for task in self)


def _part(whole: TaskReport, train: Iterable[TaskItem], held_out: Iterable[TaskItem]) -> TaskSet:
    """A part of a set, with the findings about the tasks that are left."""
    learnt, proved = tuple(train), tuple(held_out)
    ids = {task.id for part in (learnt, proved) for task in part}

    def left(leaks: Iterable[Leak]) -> tuple[Leak, ...]:
        narrowed = (
            Leak(
                train=tuple(filter(ids.__contains__, leak.train)),
                held_out=tuple(filter(ids.__contains__, leak.held_out)),
                texts=leak.texts,
            )
            for leak in leaks
        )
        return tuple(leak for leak in narrowed if leak.train and leak.held_out)

    duplicates = tuple(duplicate for duplicate in whole.duplicates if duplicate.kept in ids)
    leaks, near_leaks = left(whole.leaks), left(whole.near_leaks)
    found = {"duplicates": duplicates, "leaks": leaks, "near_leaks": near_leaks, "gold_in_sight": whole.gold_in_sight}
    return _task_set(learnt, proved, **found)


def _set_hash(tasks: Sequence[TaskItem]) -> str:
    total = sha256()
    for task in tasks:
        total.update(canonical(task.row()).encode() + b"\n")
    return total.hexdigest()


def load(
    source: Any,
    *,
    held_out: float | None = None,
    seed: int = 0,
    id: Column = None,
    input: str | Sequence[str] | None = None,
    expected: Column = None,
    split: Column = None,
    family: Column = None,
    leaks: Literal["refuse", "allow"] = "refuse",
) -> TaskSet:
    """Reads tasks, splits them, and reports what may spoil a run.

    `source` is a path (JSONL, JSON, CSV, Parquet, a `datasets` folder), a list of dicts or TaskItems, any iterable of
    them, or {"train": source, "held_out": source}.

    Columns: `id`, `expected`, `split`, `family` and `metadata` are taken from columns of these names, or from those
    named here; False uses none. `input` is the column of that name, the one named here, or an object of the columns
    listed here; what is left becomes metadata, which the agent does not see. Without any of these, all columns that
    have no other use are the input. Tasks without an id are named by a hash of their input.

    Splits come from the split column or the mapping. Where there is neither, a task is held out if
    hash(seed, family or input) < `held_out`: families and duplicates stay together, and no task changes its split
    when others are added or the order changes.
    """
    _check_options(held_out, seed, leaks)
    name = str(source) if isinstance(source, str | Path) else "tasks"
    columns = _Columns({"id": id, "expected": expected, "split": split, "family": family}, input)
    with _no_collections():
        drafts = [columns.draft(row, held_out, seed) for row in read_rows(source)]
    if not drafts:
        raise BadInput(name, why="has no tasks", remedy="give at least one")
    columns.check_named(name)
    _check_splits(drafts, held_out, seed, name)
    kept, duplicates = _without_duplicates(drafts)
    if held_out is not None and leaks == "refuse":  # nobody chose where they fall: the copy is not learnt from
        kept, copies = _without_copies(kept)
        duplicates += copies
    same, near = _leaks(kept)
    if same and leaks == "refuse":
        _refuse_leak(kept, same, by_share=held_out is not None)
    return _task_set(
        tuple(draft.task for draft in kept if draft.task.split is Split.TRAIN),
        tuple(draft.task for draft in kept if draft.task.split is not Split.TRAIN),
        duplicates=duplicates,
        leaks=same,
        near_leaks=near,
        gold_in_sight=columns.gold_in_sight(),
    )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pauses the garbage collector: a million new objects and no garbage would be walked again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_options(held_out: object, seed: object, leaks: object) -> None:
    if held_out is not None and not (isinstance(held_out, float) and 0.0 < held_out < 1.0):
        raise BadInput(
            f"held_out = {held_out!r}",
            why="must be a share between 0 and 1, both excluded",
            remedy="give one, as in held_out=0.4; to hold out nothing, leave it away",
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadInput(f"seed = {seed!r}", why="must be a whole number", remedy="give one, as in seed=0")
    if leaks not in ("refuse", "allow"):
        raise BadInput(f"leaks = {leaks!r}", why="is unknown", remedy='use "refuse" or "allow"')


@dataclass(slots=True)
class _Draft:
    """A task, and what is needed to check it against the others."""

    task: TaskItem
    digest: Digest  # of its input
    label: Split | None  # the split that its row or its file names
    origin: Origin
    number: int  # of its row

    @property
    def place(self) -> str:
        return self.origin.place(self.number)


class _Columns:
    """What each column means, from the options and the first row; and which columns were met."""

    def __init__(self, names: Mapping[str, Column], input: str | Sequence[str] | None) -> None:
        for option, name in {**names, "input": input}.items():
            _check_column(option, name)
        self._names = {role: role if name is None else name for role, name in names.items() if name is not False}
        self._names["metadata"] = "metadata"
        self._named = {name for name in names.values() if isinstance(name, str)}
        self._labels = names["split"] is not False  # whether the name of a split's file or folder counts
        self._input = input if input is None or isinstance(input, str) else tuple(input)
        self._input_is_known = input is not None
        self._first: dict[str, tuple[Origin, int]] = {}  # id → where it was met
        self._numbers: defaultdict[str, int] = defaultdict(lambda: 1)  # made id → how often it was made
        self._columns: dict[str, None] = {}  # all that were met, in their order
        self._keys: set[str] = set()  # of the inputs
        self._mirrors: set[str] | None = None  # keys of the input that equal the expected answer in every task so far
        self._answers: list[Any] = []  # up to two different ones

    def draft(self, row: SourceRow, share: float | None, seed: int) -> _Draft:
        rest = dict(row.data)
        if not rest.keys() <= self._columns.keys():
            self._columns.update(dict.fromkeys(rest))
        found: dict[str, Any] = {}
        for role, name in self._names.items():
            if name in rest:
                value = rest.pop(name)
                if value not in row.origin.absent:
                    found[role] = value
        aside = {name: rest.pop(name) for name in RESERVED if name in rest}
        value = self._input_of(rest, aside, row)
        if isinstance(value, dict):
            self._watch_for_gold(value, found)
        family = _family_of(found, row)
        try:
            digest = sha256(canonical(value).encode()).digest()
        except RecursionError as error:
            raise BadInput(row.place, why="is nested too deeply", remedy="make it flatter") from error
        label = _label_of(found, row.origin.split if self._labels else None, row)
        task = TaskItem(
            id=self._id_of(found, digest, row),
            input=value,
            expected=found.get("expected"),
            has_expected="expected" in found,
            split=(label or Split.TRAIN) if share is None else _hashed_split(digest, family, share, seed),
            family=family,
            metadata=_metadata_of(found, aside, row),
        )
        return _Draft(task, digest, label, row.origin, row.number)

    def _input_of(self, rest: dict[str, Any], aside: dict[str, Any], row: SourceRow) -> Any:
        """The input; columns that have no use go aside."""
        if not self._input_is_known:  # the first row decides for all: a row without its input must not pass
            self._input, self._input_is_known = "input" if "input" in rest else None, True
        if self._input is None:
            value: Any = rest
            if "input" in rest:
                remedy = 'give each row one, or name it: input="input"'
                raise BadInput(f"{row.place}: input", why="earlier rows have no such column", remedy=remedy)
        else:
            names = (self._input,) if isinstance(self._input, str) else self._input
            for name in names:
                if name not in rest:
                    why = f"is missing; there are {_some(list(row.data)) or 'no columns'}"
                    raise BadInput(f"{row.place}: column {name!r}", why=why, remedy="name the columns of the input")
            value = rest.pop(self._input) if isinstance(self._input, str) else {name: rest.pop(name) for name in names}
            aside |= rest
        _check_input(value, row)
        return value

    def _id_of(self, found: Mapping[str, Any], digest: Digest, row: SourceRow) -> str:
        value = found.get("id")
        if value is None:
            if self._names.get("id", "id") != "id":
                why, remedy = "is missing", "give each task an id, or leave id= away: ids are then made from the input"
                raise BadInput(f"{row.place}: column {self._names['id']!r}", why=why, remedy=remedy)
            return self._made_id(digest, row)
        name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(name, str) or not is_task_name(name) or _CONTROL.search(name):
            remedy = "change it, or load with id=False: ids are then made from the input"
            raise BadInput(f"{row.place}: id = {value!r:.60}", why=TASK_NAME_RULE, remedy=remedy)
        if name in self._first:
            origin, number = self._first[name]
            why = f"{origin.place(number)} has the same id"
            remedy = "give each task its own, or load with id=False: ids are then made from the input"
            raise BadInput(f"{row.place}: id = {name!r}", why=why, remedy=remedy)
        self._first[name] = (row.origin, row.number)
        return name

    def _made_id(self, digest: Digest, row: SourceRow) -> str:
        """An id that is the same in every file and order; a second task with the same input gets a number."""
        start = name = f"task-{digest.hex()[:16]}"
        while name in self._first:
            self._numbers[start] += 1
            name = f"{start}-{self._numbers[start]}"
        self._first[name] = (row.origin, row.number)
        return name

    def _watch_for_gold(self, value: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        if not value.keys() <= self._keys:
            self._keys.update(value)
        if "expected" in found and self._mirrors != set():
            answer = found["expected"]
            if len(self._answers) < 2 and answer not in self._answers:
                self._answers.append(answer)
            keys = value if self._mirrors is None else self._mirrors
            self._mirrors = {key for key in keys if key in value and value[key] == answer}

    def gold_in_sight(self) -> tuple[str, ...]:
        """Keys of the input that are called like an answer, or equal it in every task and are no constant."""
        mirrors = self._mirrors if self._mirrors and len(self._answers) > 1 else set()
        return tuple(sorted(mirrors | {key for key in self._keys if key.lower() in GOLD_NAMES}))

    def check_named(self, source: str) -> None:
        for name in sorted(self._named - self._columns.keys()):
            why = f"no row has it; there are {_some(list(self._columns))}"
            raise BadInput(f"{source}: column {name!r}", why=why, remedy="check the name")


def _check_column(option: str, name: object) -> None:
    is_list = (
        option == "input" and isinstance(name, list | tuple) and name and all(isinstance(one, str) for one in name)
    )
    if not (name is None or (isinstance(name, str) and name) or (name is False and option != "input") or is_list):
        remedy = "give the name of a column" + (", or a list of names" if option == "input" else ", or False for none")
        raise BadInput(f"{option} = {name!r}", why="names no column", remedy=remedy)


def _check_input(value: Any, row: SourceRow) -> None:
    if not isinstance(value, dict | str | list):
        why = f"is {kind_of(value)}, not an object, text or a list"
        raise BadInput(f"{row.place}: input = {value!r}", why=why, remedy='give an object, as in {"question": "..."}')
    if not value or (isinstance(value, str) and value.isspace()):
        raise BadInput(f"{row.place}: input", why="is empty", remedy="give the agent something to do")


def _family_of(found: Mapping[str, Any], row: SourceRow) -> str | None:
    value = found.get("family")
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise BadInput(f"{row.place}: family = {value!r:.60}", why="is not a name", remedy="give text, or leave it away")


def _metadata_of(found: Mapping[str, Any], aside: Mapping[str, Any], row: SourceRow) -> dict[str, Any]:
    value = found.get("metadata")
    if value is None:
        return dict(aside)
    if not isinstance(value, dict):
        why = f"is {kind_of(value)}, not an object"
        raise BadInput(f"{row.place}: metadata = {value!r:.60}", why=why, remedy="rename the column")
    for name in value.keys() & aside.keys():
        remedy = "rename one of them: a column that is not used goes into the metadata"
        raise BadInput(f"{row.place}: column {name!r}", why="the metadata have a key of that name", remedy=remedy)
    return {**aside, **value}


def _split_named(label: object, place: str) -> Split:
    split = SPLITS.get(label.strip().lower()) if isinstance(label, str) else None
    if split is None:
        remedy = "use train or held_out (also val, validation, dev, test), or load with split=False and held_out=0.4"
        raise BadInput(f"{place}: split = {label!r:.60}", why="is no known split", remedy=remedy)
    return split


def _label_of(found: Mapping[str, Any], label: str | None, row: SourceRow) -> Split | None:
    by_file = None if label is None else _split_named(label, row.origin.name)
    if found.get("split") is None:
        return by_file
    by_column = _split_named(found["split"], row.place)
    if by_file not in (None, by_column):
        why = f"but it is given as {label!r}"
        raise BadInput(f"{row.place}: split = {found['split']!r}", why=why, remedy="load with split=False, or move it")
    return by_column


def _hashed_split(digest: Digest, family: str | None, share: float, seed: int) -> Split:
    """Held out if hash(seed, key) < share; the key is the task's family, or else its input."""
    key = f"input {digest.hex()}" if family is None else f"family {canonical(family)}"
    point = int.from_bytes(sha256(f"{seed} {key}".encode()).digest()[:8]) / 2**64
    return Split.VAL if point < share else Split.TRAIN


def _check_splits(drafts: Sequence[_Draft], share: float | None, seed: int, source: str) -> None:
    labels = {draft.label for draft in drafts}
    if None in labels and len(labels) > 1:
        missing = next(draft for draft in drafts if draft.label is None)
        remedy = "give every task a split, or load with split=False and held_out=0.4"
        raise BadInput(missing.place, why="has no split, and other tasks have one", remedy=remedy)
    if share is None:
        return
    if Split.VAL in labels:  # a source that is all train may be split
        remedy = "leave held_out away, or load with split=False to split anew"
        raise BadInput(f"held_out = {share}", why=f"the splits of {source} are given already", remedy=remedy)
    if len({draft.task.split for draft in drafts}) == 1:
        why = f"all tasks fall into the same split ({len(drafts)} tasks of {source})"
        remedy = "take another seed, give more tasks or families, or a split column"
        raise BadInput(f"held_out = {share}, seed = {seed}", why=why, remedy=remedy)


def _without_duplicates(drafts: Sequence[_Draft]) -> tuple[list[_Draft], tuple[Duplicate, ...]]:
    first: dict[tuple[Split | None, Digest], _Draft] = {}
    again: defaultdict[tuple[Split | None, Digest], list[_Draft]] = defaultdict(list)
    for draft in drafts:
        key = (draft.task.split, draft.digest)
        if first.setdefault(key, draft) is not draft:
            again[key].append(draft)
    duplicates = (
        Duplicate(
            kept=first[key].task.id,
            dropped=tuple(draft.task.id for draft in dropped),
            contradicts=any(_answer(draft) != _answer(first[key]) for draft in dropped),
        )
        for key, dropped in again.items()
    )
    return list(first.values()), tuple(duplicates)


def _answer(draft: _Draft) -> str | None:
    return canonical(draft.task.expected) if draft.task.has_expected else None


def _leaks(drafts: Sequence[_Draft]) -> tuple[tuple[Leak, ...], tuple[Leak, ...]]:
    """Groups with the same input, and with nearly the same text, in both splits."""
    train = [draft for draft in drafts if draft.task.split is Split.TRAIN]
    held_out = [draft for draft in drafts if draft.task.split is not Split.TRAIN]
    if not (train and held_out):
        return (), ()
    same = _groups(train, held_out, lambda draft: draft.digest)
    same += [([*some], [one]) for one, some in _copied(train, held_out)]
    known = {draft.task.id for _, proved in same for draft in proved}
    near = _groups(train, held_out, lambda draft: _normal(draft.task.input))
    # A group of one input is a leak, and is in `same` already.
    near = [group for group in near if not {draft.task.id for draft in group[1]} <= known]
    return _as_leaks(same), _as_leaks(near)


def _copied(train: Sequence[_Draft], held_out: Sequence[_Draft]) -> list[tuple[_Draft, list[_Draft]]]:
    """Held-out tasks with the train tasks that say the same in other letters; the very same inputs are not among
    them."""
    found = leaked_tasks([draft.task.input for draft in train], [draft.task.input for draft in held_out])
    pairs = [(held_out[place], [train[at] for at in sorted(some)]) for place, some in found.items()]
    others = [(one, [draft for draft in some if draft.digest != one.digest]) for one, some in pairs]
    return [(one, some) for one, some in others if some]


def _without_copies(drafts: Sequence[_Draft]) -> tuple[list[_Draft], tuple[Duplicate, ...]]:
    train = [draft for draft in drafts if draft.task.split is Split.TRAIN]
    dropped: dict[str, str] = {}
    duplicates = []
    for one, some in _copied(train, [draft for draft in drafts if draft.task.split is not Split.TRAIN]):
        new = [draft for draft in some if dropped.setdefault(draft.task.id, one.task.id) == one.task.id]
        if new:
            wrong = any(_answer(draft) != _answer(one) for draft in new)
            names = tuple(draft.task.id for draft in new)
            duplicates.append(Duplicate(kept=one.task.id, dropped=names, contradicts=wrong))
    return [draft for draft in drafts if draft.task.id not in dropped], tuple(duplicates)


_Group = tuple[list[_Draft], list[_Draft]]  # train, held out


def _groups(train: list[_Draft], held_out: list[_Draft], key: Callable[[_Draft], Hashable]) -> list[_Group]:
    groups: dict[Hashable, _Group] = {}
    for draft in held_out:
        groups.setdefault(key(draft), ([], []))[1].append(draft)
    for draft in train:
        group = groups.get(key(draft))
        if group is not None:
            group[0].append(draft)
    return [group for group in groups.values() if group[0]]


def _as_leaks(groups: Iterable[_Group]) -> tuple[Leak, ...]:
    return tuple(
        Leak(
            train=tuple(draft.task.id for draft in train),
            held_out=tuple(draft.task.id for draft in held_out),
            texts=tuple(task_texts(some[0].task.row())[0][: 2 * LONGEST_TEXT] for some in (train, held_out)),
        )
        for train, held_out in groups
    )


def _normal(value: Any) -> str:
    """The value as text without case, digits and the number of spaces."""
    parts: list[str] = []
    ahead = [value]
    while ahead:
        part = ahead.pop()
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            parts.append("{")
            ahead.append("}")
            for key in sorted(part, reverse=True):
                ahead += (part[key], key)
        elif isinstance(part, list):
            parts.append("[")
            ahead.append("]")
            ahead += reversed(part)
        else:
            parts.append("0" if isinstance(part, int | float) and not isinstance(part, bool) else str(part))
    return " ".join(_DIGITS.sub("0", " \0 ".join(parts).casefold()).split())


def _refuse_leak(drafts: Sequence[_Draft], leaks: Sequence[Leak], *, by_share: bool) -> NoReturn:
    at = {draft.task.id: draft for draft in drafts}
    learnt, proved = leaks[0].train[0], leaks[0].held_out[0]
    more = f"; {len(leaks) - 1} more inputs are in both" if len(leaks) > 1 else ""
    why = f"the same input, or nearly, is in train ({_show(learnt)}) and held out ({_show(proved)}){more}"
    mend = "give both the same family" if by_share else "remove one of them"
    raise BadInput(f"{at[learnt].place} and {at[proved].place}", why=why, remedy=f'{mend}, or load with leaks="allow"')


def _task_set(train: tuple[TaskItem, ...], held_out: tuple[TaskItem, ...], **found: Any) -> TaskSet:
    """The set with its report; `found` are the report's other fields."""
    families: dict[str, tuple[int, int]] = {}
    for place, tasks in enumerate((train, held_out)):
        for task in tasks:
            if task.family is not None:
                learnt, proved = families.get(task.family, (0, 0))
                families[task.family] = (learnt, proved + 1) if place else (learnt + 1, proved)
    report = TaskReport(
        train=len(train),
        held_out=len(held_out),
        families=families,
        without_expected=tuple(task.id for tasks in (train, held_out) for task in tasks if not task.has_expected),
        **found,
    )
    return TaskSet(train, held_out, report)


def _show(text: str, longest: int = LONGEST) -> str:
    plain = text if text.isprintable() else ascii(text)[1:-1]
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(_show, names[:SHOWN])) + more


def _near(leaks: Sequence[Leak]) -> str:
    """How many tasks are nearly alike, and the first two as they read."""
    train, held_out = (len({one for leak in leaks for one in getattr(leak, name)}) for name in ("train", "held_out"))
    first, of = leaks[0], f"{train} train and {held_out} held-out task{'s' if max(train, held_out) > 1 else ''}"
    shown = " and ".join(f"{_show(text, LONGEST_TEXT)!r}" for text in first.texts)
    ids = [_show(one) for one in (first.train[0], first.held_out[0]) if not _MADE.fullmatch(one)]  # a hash says nothing
    named = f" ({', '.join(ids)})" if ids else ""
    like = f", such as {shown}{named}" if first.texts else ""
    among = f" in {len(leaks)} groups" if len(leaks) > 1 else ""
    return f"Near duplicates: {of}{among} are the same but for case, spaces and digits{like}."


def _pairs(leaks: Sequence[Leak]) -> str:
    return _some_pairs([(leak.train[0], leak.held_out[0]) for leak in leaks])


def _some_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    return ", ".join(f"{_show(left)} = {_show(right)}" for left, right in pairs[:SHOWN]) + more


def _wrapped(text: str, mark: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=mark, subsequent_indent="  ", break_on_hyphens=False)
