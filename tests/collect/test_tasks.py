"""Tasks are split so that nothing leaks, and what may spoil a run is reported before it starts."""

from __future__ import annotations

import gc
import json
import random
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.collect.tasks import Duplicate, Leak, TaskReport, TaskSet, load
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Split
from holdfast.contracts.task import TaskItem

DATASETS = Path(__file__).parent / "datasets"


def questions(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"question": f"What is {word(number)}?", **more} for number in range(count)]


def word(number: int) -> str:
    """A word without digits: they are of no account among near duplicates."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refused(source: Any, **options: Any) -> str:
    with pytest.raises(BadInput) as refusal:
        load(source, **options)
    assert refusal.value.why and refusal.value.remedy
    return str(refusal.value)


def split_of(tasks: TaskSet) -> dict[str, str]:
    return {json.dumps(task.input, sort_keys=True): str(task.split) for task in tasks}


# Columns


def test_without_an_input_column_all_that_is_not_reserved_is_the_input() -> None:
    row = {"id": 7, "question": "a?", "lang": "en", "expected": "A", "family": "f", "metadata": {"page": 3}}
    task = load([row]).train[0]
    assert task == TaskItem(
        id="7",
        input={"question": "a?", "lang": "en"},
        expected="A",
        split=Split.TRAIN,
        family="f",
        metadata={"page": 3},
    )
    assert task.for_agent().expected is None


def test_what_stands_beside_the_input_is_metadata() -> None:
    row = {"input": {"question": "a?"}, "answer": "A", "level": 2, "metadata": {"page": 3}}
    task = load([row]).train[0]
    assert task.input == {"question": "a?"} and task.metadata == {"answer": "A", "level": 2, "page": 3}


def test_columns_are_named() -> None:
    row = {"key": "k1", "question": "a?", "gold": [1], "part": "test", "kind": 3, "expected": "old"}
    tasks = load([row], id="key", input="question", expected="gold", split="part", family="kind")
    assert tasks.held_out == (
        TaskItem(id="k1", input="a?", expected=[1], split=Split.VAL, family="3", metadata={"expected": "old"}),
    )
    picked = load([row], input=["question", "kind"], split=False, expected=False)
    assert picked.train[0].input == {"question": "a?", "kind": 3}
    assert picked.train[0].metadata == {"key": "k1", "gold": [1], "part": "test", "expected": "old"}
    assert not picked.train[0].has_expected


def test_false_ignores_a_column() -> None:
    rows = [{"id": "same", "question": word(number), "split": "nonsense"} for number in range(20)]
    tasks = load(rows, id=False, split=False, held_out=0.5)
    assert len(tasks) == 20 and len({task.id for task in tasks}) == 20
    assert {task.metadata["id"] for task in tasks} == {"same"}


def test_expected_null_is_an_answer_in_jsonl_and_none_in_tables(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"q": "a", "expected": None}, {"q": "b"}, {"q": "c", "expected": False}])
    tasks = load(path)
    assert [task.has_expected for task in tasks] == [True, False, True]
    assert tasks.report.without_expected == (tasks.train[1].id,)
    (tmp_path / "a.csv").write_text("q,expected,id,family\na,,,\nb,B,x,f\n", encoding="utf-8")
    first, second = load(tmp_path / "a.csv").train
    assert not first.has_expected and first.family is None and first.id.startswith("task-")
    assert (second.expected, second.family, second.id) == ("B", "f", "x")
    assert [task.has_expected for task in load(DATASETS / "splits").train] == [False, True, False]


def test_made_ids_follow_the_input_alone() -> None:
    rows = questions(5)
    ids = {task.input["question"]: task.id for task in load(rows)}
    again = load([{**row, "expected": "x"} for row in reversed(rows)])
    assert {task.input["question"]: task.id for task in again} == ids
    assert load([{"a": 1, "b": 2}]).train[0].id == load([{"b": 2, "a": 1}]).train[0].id


def test_a_set_is_read_as_it_is() -> None:
    tasks = load(questions(40, expected="x"), held_out=0.4)
    again = load(tasks)
    assert (again.train, again.held_out) == (tasks.train, tasks.held_out) and again.sha256 == tasks.sha256


@pytest.mark.parametrize(
    ("rows", "options", "error"),
    [
        ([], {}, "tasks: has no tasks"),
        ([{"id": "a/b", "q": 1}], {}, "tasks item 1: id = 'a/b': must be 1 to 200 characters without '/'"),
        ([{"id": "x" * 201, "q": 1}], {}, "must be 1 to 200 characters"),
        ([{"id": "", "q": 1}], {}, "item 1: id = '': must be"),
        ([{"id": "a\nb", "q": 1}], {}, "item 1: id = "),
        ([{"id": 1.5, "q": 1}], {}, "item 1: id = 1.5: must be"),
        ([{"id": True, "q": 1}], {}, "item 1: id = True: must be"),
        ([{"id": 1, "q": 1}, {"q": 2}, {"id": "1", "q": 3}], {}, "item 3: id = '1': tasks item 1 has the same id"),
        ([{"q": 1}], {"id": "key"}, "item 1: column 'key': is missing"),
        ([{"q": 1}], {"expected": "answer"}, "tasks: column 'answer': no row has it; there are q"),
        ([{"q": 1}], {"family": "kind"}, "tasks: column 'kind': no row has it"),
        ([{"q": 1}], {"split": "part"}, "tasks: column 'part': no row has it"),
        ([{"q": "a"}, {"r": 1}], {"input": "q"}, "item 2: column 'q': is missing; there are r"),
        ([{"q": 1}], {"input": ["q", "r"]}, "item 1: column 'r': is missing"),
        ([{"input": {"q": 1}}, {"q": 2}], {}, "item 2: column 'input': is missing"),
        ([{"q": 1}, {"input": {"q": 2}}], {}, "item 2: input: earlier rows have no such column"),
        ([{"input": None}], {}, "item 1: input = None: is null, not an object"),
        ([{"input": 5}], {}, "item 1: input = 5: is a whole number, not an object"),
        ([{"input": " "}], {}, "item 1: input: is empty"),
        ([{"expected": 1}], {}, "item 1: input: is empty"),
        ([{"q": 1, "family": ""}], {}, "item 1: family = '': is not a name"),
        ([{"q": 1, "family": [1]}], {}, r"item 1: family = \[1\]: is not a name"),
        ([{"q": 1, "metadata": "x"}], {}, "item 1: metadata = 'x': is text, not an object"),
        (
            [{"input": "q", "a": 1, "metadata": {"a": 2}}],
            {},
            "item 1: column 'a': the metadata have a key of that name",
        ),
        ([{"q": 1, "split": "tset"}], {}, "item 1: split = 'tset': is no known split"),
        ([{"q": 1, "split": 3}], {}, "item 1: split = 3: is no known split"),
        ([{"q": 1, "split": "train"}, {"q": 2}], {}, "item 2: has no split, and other tasks have one"),
        ({"tset": [{"q": 1}]}, {}, "split = 'tset': is no known split"),
        ({"train": [{"q": 1, "split": "test"}]}, {}, "split = 'test': but it is given as 'train'"),
        ([{"q": 1, "split": "test"}], {"held_out": 0.5}, "held_out = 0.5: the splits of tasks are given already"),
        ([{"q": 1}], {"held_out": 0.5}, "held_out = 0.5, seed = 0: all tasks fall into the same split"),
        ([{"q": 1}], {"held_out": 0.0}, "held_out = 0.0: must be a share between 0 and 1"),
        ([{"q": 1}], {"held_out": 1.0}, "held_out = 1.0: must be a share"),
        ([{"q": 1}], {"held_out": 40}, "held_out = 40: must be a share"),
        ([{"q": 1}], {"held_out": float("nan")}, "held_out = nan: must be a share"),
        ([{"q": 1}], {"held_out": 0.5, "seed": 0.5}, "seed = 0.5: must be a whole number"),
        ([{"q": 1}], {"leaks": "ok"}, "leaks = 'ok': is unknown"),
        ([{"q": 1}], {"input": False}, "input = False: names no column"),
        ([{"q": 1}], {"input": []}, r"input = \[\]: names no column"),
        ([{"q": 1}], {"id": True}, "id = True: names no column"),
    ],
)
def test_what_cannot_be_used_is_named(rows: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises(BadInput, match=error) as refusal:
        load(rows, **options)
    assert refusal.value.remedy


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"id": "a", "q": 1}, {"id": "b/c", "q": 2}])
    assert refused(path).startswith(f"{path} line 2: id = 'b/c'")
    path.write_text("\n\n", encoding="utf-8")
    assert refused(path) == f"{path}: has no tasks; give at least one"


# Splits


@pytest.mark.parametrize(
    ("label", "split"),
    [
        *((name, "train") for name in ("train", "Training")),
        *((name, "val") for name in ("val", "validation", "dev", "test", " Held_Out ", "holdout")),
    ],
)
def test_a_split_column_has_the_fields_words(label: str, split: str) -> None:
    assert [task.split for task in load([{"q": "a", "split": label}])] == [Split(split)]


def test_splits_may_be_files_or_folders(tmp_path: Path) -> None:
    train, held = jsonl(tmp_path / "a.jsonl", questions(3)), jsonl(tmp_path / "b.jsonl", [{"question": "z"}])
    tasks = load({"train": train, "held_out": held})
    assert (len(tasks.train), len(tasks.held_out)) == (3, 1)
    tasks = load(DATASETS / "splits")
    assert [task.id for task in tasks.train] == ["train-0", "train-1", "train-2"]
    assert [task.id for task in tasks.held_out] == ["held-0", "held-1"]
    assert load(DATASETS / "single", held_out=0.4, seed=1).report.held_out in range(1, 5)


def test_a_source_that_is_all_train_may_be_split() -> None:
    tasks = load({"train": questions(50)}, held_out=0.5)
    assert tasks.train and tasks.held_out


def test_without_splits_or_share_all_are_train_and_the_report_says_so() -> None:
    tasks = load(questions(3, expected="x"))
    assert len(tasks.train) == 3 and not tasks.held_out
    assert any("No held-out tasks" in warning for warning in tasks.report.warnings)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_the_share_is_kept(share: float) -> None:
    tasks = load(questions(4000), held_out=share)
    assert abs(len(tasks.held_out) / 4000 - share) < 0.03  # more than three standard deviations


def test_another_seed_splits_otherwise() -> None:
    rows = questions(200)
    assert split_of(load(rows, held_out=0.5, seed=0)) != split_of(load(rows, held_out=0.5, seed=1))
    assert split_of(load(rows, held_out=0.5, seed=1)) == split_of(load(rows, held_out=0.5, seed=1))


def test_the_split_is_the_same_in_every_version() -> None:
    """Stored proofs name held-out tasks: another hash would move tasks that were learnt from."""
    tasks = load([*questions(8), {"question": "z", "family": "ä"}], held_out=0.5, seed=3)
    assert [task.input["question"] for task in tasks.held_out] == ["What is b?", "What is f?", "What is g?", "z"]
    assert tasks.held_out[0].id == "task-dbef38353c448c19"


text = st.text(max_size=8)
leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=4
)
keys = st.text(min_size=1, max_size=8)
inputs = st.dictionaries(keys, values, min_size=1, max_size=3) | text.filter(lambda t: t.strip())
rows_of = st.lists(
    st.fixed_dictionaries(
        {"input": inputs}, optional={"expected": values, "family": st.sampled_from(["a", "b", "c", "d"])}
    ),
    min_size=1,
    max_size=6,
)


SIDES = 20


def loaded(rows: list[dict[str, Any]], seed: int) -> TaskSet:
    """With some tasks more, so that no side is empty whatever the rows are."""
    both = [{"input": f"\0 {number}", "family": f"\0 {number}"} for number in range(SIDES)]
    return load([*rows, *both], held_out=0.5, seed=seed, leaks="allow")


@given(rows_of, rows_of, st.integers(), st.randoms(use_true_random=False))
def test_no_task_changes_its_split_when_others_come_or_the_order_changes(
    rows: list[dict[str, Any]], more: list[dict[str, Any]], seed: int, rng: random.Random
) -> None:
    def splits(tasks: TaskSet) -> set[tuple[str, str | None, str]]:
        return {(json.dumps(task.input, sort_keys=True), task.family, str(task.split)) for task in tasks}

    keys = {(json.dumps(row["input"], sort_keys=True), row.get("family")) for row in rows}
    assume(len({text for text, _ in keys}) == len(keys))  # one input in two families: which is kept is another matter
    alone = splits(loaded(rows, seed))
    assert alone <= splits(loaded(rows + [row for row in more if clear_of(row, rows)], seed))
    shuffled = rng.sample(rows, len(rows))
    assert splits(loaded(shuffled, seed)) == alone


def clear_of(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    return all(json.dumps(row["input"], sort_keys=True) != json.dumps(other["input"], sort_keys=True) for other in rows)


@given(rows_of, st.integers())
def test_families_and_equal_inputs_never_straddle(rows: list[dict[str, Any]], seed: int) -> None:
    tasks = loaded(rows, seed)
    assert not tasks.report.split_families
    without = loaded([{"input": row["input"]} for row in rows], seed)
    sides = [{json.dumps(task.input, sort_keys=True) for task in some} for some in (without.train, without.held_out)]
    assert not sides[0] & sides[1]
    assert len({json.dumps(task.input, sort_keys=True) for task in without}) == len(without)


@given(rows_of, st.integers())
def test_ids_are_unique_and_every_row_is_kept_or_reported(rows: list[dict[str, Any]], seed: int) -> None:
    tasks = loaded(rows, seed)
    assert len({task.id for task in tasks}) == len(tasks)
    assert len(tasks) + tasks.report.dropped == len(rows) + SIDES


@given(rows=rows_of, seed=st.integers())
def test_a_set_is_written_and_read_without_loss(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], seed: int
) -> None:
    path = tmp_path_factory.mktemp("tasks") / "a.jsonl"
    tasks = loaded([{**row, "metadata": {"n": number}} for number, row in enumerate(rows)], seed)
    tasks.write(path)
    again = load(path, leaks="allow")
    assert (again.train, again.held_out) == (tasks.train, tasks.held_out)
    text = path.read_bytes()
    again.write(path)
    assert path.read_bytes() == text


# Duplicates and leaks


def test_a_file_of_one_input_is_one_task_and_soon_read() -> None:
    begun = process_time()
    tasks = load([{"question": "same"}] * 20_000)
    assert process_time() - begun < 30.0  # naming the dropped ones by trial would take minutes
    assert len(tasks) == 1 and tasks.report.dropped == len(set(tasks.report.duplicates[0].dropped)) == 19_999
    assert gc.isenabled()


def test_the_first_of_equal_inputs_is_kept_and_the_others_are_reported() -> None:
    rows = [
        {"id": "a", "input": {"x": 1, "y": 2}, "expected": 1},
        {"id": "b", "input": {"y": 2, "x": 1}, "expected": 1},
        {"id": "c", "input": {"x": 2}, "expected": 1},
        {"id": "d", "input": {"x": 2}, "expected": 2},
        {"id": "e", "input": {"x": 2}},
    ]
    tasks = load(rows)
    assert [task.id for task in tasks] == ["a", "c"]
    assert tasks.report.duplicates == (
        Duplicate(kept="a", dropped=("b",), contradicts=False),
        Duplicate(kept="c", dropped=("d", "e"), contradicts=True),
    )
    assert tasks.report.dropped == 3
    text = " ".join(tasks.report.lines())
    assert "Dropped 3 duplicates" in text and "another expected answer" in text


def test_an_input_in_both_splits_is_refused_with_both_lines(tmp_path: Path) -> None:
    rows = [*questions(3, split="train"), {"split": "test", "question": "What is b?"}, *questions(2, split="test")[:1]]
    path = jsonl(tmp_path / "a.jsonl", rows)
    message = refused(path)
    assert message.startswith(f"{path} line 2 and {path} line 4: the same input, or nearly, is in train")
    assert "1 more inputs are in both" in message and message.endswith('or load with leaks="allow"')
    tasks = load(path, leaks="allow")
    assert len(tasks) == 5 and len({task.id for task in tasks}) == 5
    assert [(len(leak.train), len(leak.held_out)) for leak in tasks.report.leaks] == [(1, 1), (1, 1)]
    assert tasks.report.near_leaks == ()
    assert any(warning.startswith("LEAK") for warning in tasks.report.warnings)


def test_an_input_in_two_families_is_refused_where_they_are_parted() -> None:
    rows = [{"id": f"{name}", "question": "same", "family": name} for name in "abcdefgh"]
    message = refused(rows, held_out=0.5)
    assert "the same input, or nearly, is in train" in message and "give both the same family" in message


@pytest.mark.parametrize(
    ("left", "right", "near"),
    [
        ("What is 12 + 7?", "what  is 3 +\n4?", True),
        ({"q": "A b", "n": 1}, {"n": 22.5, "q": "a  B "}, True),
        ("What is that?", "What was that?", False),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}, False),
        ({"a": True}, {"a": False}, False),
    ],
)
def test_near_duplicates_in_both_splits_are_reported(left: Any, right: Any, near: bool) -> None:
    tasks = load([{"id": "l", "input": left, "split": "train"}, {"id": "r", "input": right, "split": "val"}])
    assert tasks.report.near_leaks == ((Leak(train=("l",), held_out=("r",)),) if near else ())
    assert any("Near duplicates" in warning for warning in tasks.report.warnings) is near


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("STRASSE", "straße"),
        ({"q": ["x", {"y": "Z"}]}, {"q": ["X", {"y": "z"}]}),
        ("Who wrote the letter of 3 May, and to whom?", "who wrote the letter of 3 May and to whom"),
    ],
)
def test_one_mark_does_not_hide_a_leak(left: Any, right: Any) -> None:
    """Where splits are given it is refused; where they are drawn, the copy is not learnt from."""
    rows = [{"id": "l", "input": left, "split": "train"}, {"id": "r", "input": right, "split": "val"}]
    assert "the same input, or nearly, is in train (l) and held out (r)" in refused(rows)
    (leak,) = load(rows, leaks="allow").report.leaks
    assert leak == Leak(train=("l",), held_out=("r",))
    many = [{"id": f"{n}", "input": f"{'abcdefghij'[n % 10] * 5} is what?" + "!" * (n // 10)} for n in range(60)]
    drawn = load(many, held_out=0.4)
    held = {one.input.strip("!") for one in drawn.held_out}
    assert drawn.report.dropped and not held & {one.input.strip("!") for one in drawn.train}


def test_many_near_duplicates_are_one_group() -> None:
    rows = [{"question": f"{number} + {number}", "split": ("train", "val")[number % 2]} for number in range(1000)]
    (leak,) = load(rows).report.near_leaks
    assert (len(leak.train), len(leak.held_out)) == (500, 500)


def test_families_in_both_splits_are_reported() -> None:
    rows = [{"q": word(number), "family": "f", "split": ("train", "val")[number % 2]} for number in range(4)]
    report = load(rows).report
    assert report.families == {"f": (2, 2)} and report.split_families == ("f",)
    assert any("Families in both splits: f" in warning for warning in report.warnings)


# Answers in sight


def test_an_answer_that_the_agent_would_see_is_reported_first() -> None:
    rows = [{"question": word(number), "answer": word(number * 7)} for number in range(5)]
    report = load(rows).report
    assert report.gold_in_sight == ("answer",) and "THE AGENT SEES THE ANSWER" in report.warnings[0]
    assert "expected='answer'" in report.warnings[0]
    assert load(rows, expected="answer").report.gold_in_sight == ()
    assert load([{"input": {"q": "a", "Gold": 1}}]).report.gold_in_sight == ("Gold",)
    assert load([{"input": {"q": "a"}, "gold": 1}]).report.gold_in_sight == ()


def test_a_copy_of_the_answer_under_another_name_is_reported() -> None:
    rows = [{"q": word(number), "hint": number % 3, "expected": number % 3} for number in range(6)]
    assert load(rows).report.gold_in_sight == ("hint",)
    rows[3] = {"q": "other", "hint": 9, "expected": 0}
    assert load(rows).report.gold_in_sight == ()
    assert load([{"q": word(number), "lang": "en", "expected": "en"} for number in range(6)]).report.gold_in_sight == ()


# The set and its report


def test_a_clean_set_has_no_warnings() -> None:
    rows = [{"question": word(number), "expected": word(number)} for number in range(200)]
    tasks = load(rows, held_out=0.5)
    assert tasks.report.gold_in_sight == ("question",)  # the question is its own answer
    rows = [{"question": word(number), "expected": number} for number in range(200)]
    report = load(rows, held_out=0.5).report
    assert report.warnings == () and report.lines() == (f"200 tasks: {report.train} train, {report.held_out} held out",)


def test_near_duplicates_are_shown_as_they_read_and_counted() -> None:
    rows = [{"question": f"What is {n} plus four, please?", "split": "train" if n % 2 else "val"} for n in range(8)]
    report = load([*rows, {"question": "Quite another one", "split": "train"}]).report
    assert report.warnings[0] == (
        "Near duplicates: 4 train and 4 held-out tasks are the same but for case, spaces and digits, such as "
        "'What is 1 plus four, please?' and 'What is 0 plus four, please?'."
    )


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200)), min_size=1, max_size=9),
    st.text(min_size=1),
)
def test_the_report_fits_into_80_columns(names: list[tuple[str, str]], gold: str) -> None:
    leaks = tuple(Leak(train=(left,), held_out=(right,)) for left, right in names)
    report = TaskReport(
        train=10**6,
        held_out=1,
        families=dict.fromkeys([left for left, _ in names], (1, 1)),
        duplicates=tuple(Duplicate(kept=left, dropped=(right,), contradicts=True) for left, right in names),
        leaks=leaks,
        near_leaks=leaks,
        without_expected=tuple(left for left, _ in names),
        gold_in_sight=(gold,),
    )
    lines = report.lines()
    assert all(len(line) <= 80 and "\n" not in line for line in lines)
    assert len(lines) > len(report.warnings) and str(report) == "\n".join(lines)


def test_hashes_follow_content_and_order_and_not_the_order_of_keys() -> None:
    rows = [{"id": str(number), "input": {"a": 1, "b": number}, "expected": 1} for number in range(3)]
    turned = [{"expected": 1, "input": {"b": number, "a": 1}, "id": str(number)} for number in range(3)]
    hashes = load(rows).sha256
    assert load(turned).sha256 == hashes and set(hashes) == {"train", "held_out"}
    assert load(rows[::-1]).sha256 != hashes
    for change in ({"expected": 2}, {"id": "x"}, {"family": "f"}, {"metadata": {"a": 1}}, {"input": {"a": 2}}):
        assert load([{**rows[0], **change}, *rows[1:]]).sha256["train"] != hashes["train"], change
    assert load(rows).sha256["held_out"] == hashes["held_out"]


def test_parts_keep_what_was_found_about_them() -> None:
    rows = [
        *({"id": f"t{n}", "question": word(n), "family": "f", "split": "train"} for n in range(10)),
        {"id": "again", "question": "a", "split": "train"},
        {"id": "h0", "question": "A", "split": "val"},
        {"id": "h1", "question": "else", "split": "val", "expected": 1},
    ]
    tasks = load(rows, leaks="allow")
    few = tasks.take(2)
    assert [task.id for task in few] == ["t0", "t1", "h0", "h1"] and len(few) == 4
    assert few.report.families == {"f": (2, 0)} and few.report.dropped == 1 and len(few.report.leaks) == 1
    other = tasks.select(ids=["t3", "t4", "h1"])
    assert [task.id for task in other] == ["t3", "t4", "h1"]
    assert (other.report.dropped, other.report.leaks) == (0, ())
    assert other.report.without_expected == ("t3", "t4")
    assert len(tasks.select(split="held_out")) == 2 and len(tasks.select(families={"f"}, split="val")) == 0
    assert len(tasks.select(families={"f"})) == 10


@pytest.mark.parametrize(
    "wrong", [lambda t: t.take(0), lambda t: t.select(ids=["nope"]), lambda t: t.select(split="tset")]
)
def test_parts_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(BadInput):
        wrong(load(questions(3)))


def test_time_grows_with_the_number_of_rows(tmp_path: Path) -> None:
    """Against Python's own reader on the same rows: a quadratic search would be thousands of times slower."""
    path = jsonl(tmp_path / "a.jsonl", [{"question": f"same {number}", "expected": number} for number in range(20_000)])
    begun = process_time()
    for line in path.read_text(encoding="utf-8").splitlines():
        json.loads(line)
    plain = process_time() - begun
    begun = process_time()
    report = load(path, held_out=0.4).report
    assert process_time() - begun < 300 * plain  # a tenth of it without tracing
    assert report.train + report.held_out == 20_000 and len(report.near_leaks) == 1
