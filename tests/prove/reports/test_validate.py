"""Every leaf of every published file is changed, and the change is found and named."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.reports import document
from holdfast.prove.reports.document import KINDS, PROOF, SAFETY, Problem
from holdfast.prove.reports.report import Published
from holdfast.prove.reports.validate import validate
from tests.prove.reports.publication import AFTER, at, episodes, leaves, other, published, put, read, reports_in, write


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return published(tmp_path_factory.mktemp("original"))


@pytest.fixture
def copy(original: Published, tmp_path: Path) -> dict[str, Path]:
    """A publication that a test may change."""
    shutil.copytree(original.paths[PROOF].parents[2], reports_in(tmp_path))
    return {kind: reports_in(tmp_path) / document.active_path(kind, "m24-small") for kind in KINDS}


def wheres(problems: list[Problem]) -> list[str]:
    return [problem.where for problem in problems]


def names(problems: list[Problem], place: str) -> bool:
    """Whether a problem is said of this place, of the group it is in, or tells it in so many words."""
    return any(
        place == problem.where
        or (place.startswith((f"{problem.where}.", f"{problem.where}[")) and problem.where != "$")
        or any(
            word.rstrip(":,") and place.startswith(word.rstrip(":,")) for word in problem.why.split() if "$." in word
        )
        for problem in problems
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_single_leaf_that_is_changed_is_named(copy: dict[str, Path], kind: str) -> None:
    path, data = copy[kind], read(copy[kind])
    silent = []
    for where, keys in list(leaves(data)):
        before = at(data, keys)
        put(data, keys, other(before))
        write(path, data)
        put(data, keys, before)
        if not names(validate(path), where):
            silent.append(where)
    assert silent == []


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_makes_a_new_seal_as_well_is_found_by_the_proof(copy: dict[str, Path], kind: str) -> None:
    path, data = copy[kind], read(copy[kind])
    del data["seal"]
    silent = []
    for where, keys in list(leaves(data)):
        before = at(data, keys)
        put(data, keys, other(before))
        write(path, data, resealed=True)
        put(data, keys, before)
        problems = validate(copy[PROOF])
        of_file = any(problem.where.startswith(path.name) for problem in problems)
        by_hash = f"$.sha256.{kind.replace('-', '_')}_report" in wheres(problems)
        is_found = names(problems, where) if kind == PROOF else of_file or by_hash
        if not is_found:
            silent.append(where)
    assert silent == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != PROOF])
def test_a_resealed_file_is_found_when_it_is_asked_about_itself(copy: dict[str, Path], kind: str) -> None:
    data = read(copy[kind])
    data["benchmark_suite"]["version"] = "2"
    del data["seal"]
    write(copy[kind], data, resealed=True)
    assert "$" in wheres(validate(copy[kind]))  # the proof knows it by its bytes


@pytest.mark.parametrize("kind", KINDS)
def test_any_leaf_that_is_missing_or_added_is_named(copy: dict[str, Path], kind: str) -> None:
    path, data = copy[kind], read(copy[kind])
    for where, keys in list(leaves(data)):
        without = json.loads(json.dumps(data))
        holder = at(without, keys[:-1])
        del holder[keys[-1]]
        write(path, without)
        said = validate(path)
        group = where.rpartition(".")[0] if not isinstance(keys[-1], int) else where.rpartition("[")[0]
        assert names(said, where) or names(said, group), where
    for group in [key for key, value in data.items() if isinstance(value, dict)]:
        more = json.loads(json.dumps(data))
        more[group]["extra"] = 1
        write(path, more)
        assert f"$.{group}.extra" in wheres(validate(path))


# A forger's wish, where it is made, and the place that has to be named; the seal is made anew each time.
LIES: list[tuple[str, str, Any]] = [
    ("baseline", "$.metrics.mean_reward", math.nan),
    ("baseline", "$.metrics.mean_reward", math.inf),
    ("baseline", "$.metrics.mean_reward", True),
    ("baseline", "$.metrics.mean_reward", "0.4"),
    ("baseline", "$.metrics.mean_reward", None),
    ("baseline", "$.metrics.mean_reward", 10**400),
    ("baseline", "$.metrics.episodes", 5.0),
    ("baseline", "$.metrics.episodes", 5.5),
    ("baseline", "$.metrics.episodes", True),
    ("baseline", "$.metrics.episodes", 6),
    ("baseline", "$.metrics.mean_safety_penalty", False),
    ("baseline", "$.samples[2].reward", math.nan),
    ("baseline", "$.samples[2].reward", True),
    ("baseline", "$.samples[2].seed", 0.5),
    ("baseline", "$.samples[2].safety_penalty", -0.1),
    ("baseline", "$.samples[2].success", 1.5),
    ("baseline", "$.schema_version", 2),
    ("baseline", "$.schema_version", True),
    ("baseline", "$.schema_version", "1"),
    ("baseline", "$.report_kind", "proof"),
    ("baseline", "$.run_id", "M24-SMALL"),
    ("baseline", "$.run_id", "m24-../../etc"),
    ("baseline", "$.generated_at", "yesterday"),
    ("baseline", "$.generated_at", "2026-07-01"),
    ("baseline", "$.generated_at", "2026-02-30T00:00:00Z"),
    ("baseline", "$.generated_at", "2026-7-1T12:00:00Z"),
    ("baseline", "$.generated_at", "2026-07-01T12:00:00+02:00"),
    ("baseline", "$.benchmark_suite.name", " "),
    ("baseline", "$.publication.report_path", ".holdfast/reports/m24/m24-other/m24-benchmark-report-baseline.json"),
    (
        "baseline",
        "$.publication.archive_path",  # there is no month 99
        ".holdfast/reports/archive/m24/2026/99/m24-benchmark-report-m24-small-baseline.json",
    ),
    ("baseline", "$.retention.policy", "forget"),
    ("baseline", "$.retention.retain_days", 0),
    ("baseline", "$.retention.retain_days", 0.5),
    ("baseline", "$.retention.archive_after_days", -1),
    ("baseline", "$.retention.purge_after", "2026-07-02T12:00:00Z"),
    ("baseline", "$.retention.purge_after", "some day"),
    ("significance", "$.significance.pass", False),
    ("significance", "$.significance.p_value", 1e-27),
    ("significance", "$.significance.confidence_level", 1.0),
    ("significance", "$.significance.alpha", 0.0),
    ("significance", "$.criteria.min_confidence_level", 0.5),
    ("significance", "$.reports.baseline.sha256", "0" * 64),
    (SAFETY, "$.promotion_allowed", False),
    (SAFETY, "$.test.p_value", 0.5),
    ("summary", "$.outcome.status", "fail"),
    ("summary", "$.decision.open", 1),
    (PROOF, "$.proof_status", "fail"),
    (PROOF, "$.trained.episodes", 50),
    (PROOF, "$.significance.p_value", 0.9),
    (PROOF, "$.criteria.max_p_value", 0.5),
    (PROOF, "$.artifacts.baseline_report", "m24-benchmark-report-other.json"),
]


@pytest.mark.parametrize(("kind", "where", "lie"), LIES, ids=[f"{k} {w} {str(v)[:30]}" for k, w, v in LIES])
def test_a_lie_is_named_where_it_is(copy: dict[str, Path], kind: str, where: str, lie: Any) -> None:
    data = read(copy[kind])
    del data["seal"]
    put(data, dict(leaves(data))[where], lie)
    copy[kind].write_text(json.dumps({**data, "seal": document.seal(data)}))
    assert where in wheres(validate(copy[kind]))


def test_more_days_until_the_archive_than_days_at_all_are_refused(copy: dict[str, Path]) -> None:
    data = read(copy["baseline"])
    data["retention"]["archive_after_days"] = 366
    write(copy["baseline"], data)
    said = [problem.why for problem in validate(copy["baseline"]) if problem.where == "$.retention"]
    assert any("must not be above retain_days" in why for why in said)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "is not JSON"),
        (b'{"schema_version": 1', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "must be an object"),
        (b'{"a": 1, "a": 2}', "is there twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_what_is_no_report_at_all_is_one_problem(copy: dict[str, Path], raw: bytes, why: str) -> None:
    copy["baseline"].write_bytes(raw)
    problems = validate(copy["baseline"])
    assert len(problems) == 1 and why in problems[0].why
    assert any(problem.where == "$" and "rests on" in problem.why for problem in validate(copy[PROOF]))


def test_a_report_without_samples_or_with_them_in_another_order_is_not_believed(copy: dict[str, Path]) -> None:
    data = read(copy["trained"])
    del data["seal"]
    write(copy["trained"], data | {"samples": data["samples"][::-1]}, resealed=True)
    assert f"{copy['trained'].name}: $.samples" in wheres(validate(copy[PROOF]))
    write(copy["trained"], data | {"samples": []}, resealed=True)
    assert "$.samples" in wheres(validate(copy["trained"]))


@pytest.mark.parametrize("missing", ["baseline", "trained", "significance", SAFETY, "summary"])
def test_a_proof_without_one_of_its_reports_says_which(copy: dict[str, Path], missing: str) -> None:
    copy[missing].unlink()
    said = [problem.why for problem in validate(copy[PROOF]) if problem.where == "$"]
    assert said == [f"rests on {copy[missing].name}, which is neither beside it nor in the archive"]


def test_a_proof_that_is_all_alone_must_still_follow_from_its_own_figures(copy: dict[str, Path]) -> None:
    for kind in KINDS[:-1]:
        copy[kind].unlink()
    data = read(copy[PROOF])
    assert "$.significance.pass" not in wheres(validate(copy[PROOF]))
    data["significance"] |= {"p_value": 0.9, "confidence_level": 0.1}
    data["trained"]["mean_reward"] = 0.1
    data["trained"]["mean_safety_penalty"] = 1.0
    del data["seal"]
    write(copy[PROOF], data, resealed=True)
    [why] = [problem.why for problem in validate(copy[PROOF]) if problem.where == "$.significance.pass"]
    assert why == (
        "is true, and by the figures beside it: reward_gain_below_threshold, "
        "checkpoint_promotion_blocked_safety_regression, p_value_above_threshold, confidence_below_threshold"
    )


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (slice(0, 4), "trained episodes: have no task 'task-4' with seed 0, which the other side has"),
        (slice(0, 1), "baseline episodes: are of 1 tasks"),
    ],
)
def test_unequal_episodes_are_named(copy: dict[str, Path], rows: slice, why: str) -> None:
    data = read(copy["trained"])
    data["samples"] = data["samples"][rows]
    write(copy["trained"], data)
    said = [problem.why for problem in validate(copy[PROOF]) if problem.where == f"{copy['trained'].name}: $.samples"]
    assert any(line.startswith(why) for line in said)


def test_a_report_that_lies_elsewhere_is_told_so_and_a_folder_copied_whole_is_true(
    copy: dict[str, Path], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "m24-benchmark-report-baseline.json"
    shutil.copy(copy["baseline"], elsewhere)
    assert wheres(validate(elsewhere)) == ["$.publication"]
    shutil.copytree(tmp_path / ".holdfast", tmp_path / "backup")
    for kind in KINDS:
        assert validate(tmp_path / "backup" / "reports" / document.active_path(kind, "m24-small")) == []
    elsewhere.write_text("{}")
    assert validate(elsewhere.rename(tmp_path / "notes.json")) == [
        Problem(where="$", why="is neither a report, nor a safety report, nor a proof")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_published_is_true_and_with_a_new_line_it_is_another_file(copy: dict[str, Path], kind: str) -> None:
    assert validate(copy[kind]) == []
    copy[kind].write_bytes(copy[kind].read_bytes() + b"\n")
    assert bool(validate(copy[PROOF])) == (kind != PROOF)  # nothing knows the proof by its bytes; it says the same


@given(data=st.data())
def test_whatever_was_measured_is_published_so_that_it_is_true(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tasks = data.draw(st.integers(2, 6))
    reward = st.lists(st.floats(-1e6, 1e6), min_size=tasks, max_size=tasks)
    cost = st.lists(st.floats(0, 1e3), min_size=tasks, max_size=tasks)
    seeds = data.draw(st.integers(1, 2))
    before, after = (episodes(data.draw(reward), data.draw(cost), seeds=seeds) for _ in range(2))
    done = published(tmp_path_factory.mktemp("any"), baseline=before, trained=after, seed=data.draw(st.integers(0, 99)))
    assert validate(done.paths[PROOF]) == []


def test_the_versions_that_were_compared_are_in_the_report(tmp_path: Path) -> None:
    done = published(tmp_path, config=ComparisonConfig(primary="reward").record(), versions=("sprout@1", "sprout@2"))
    assert read(done.paths[PROOF])["versions"] == {"baseline": "sprout@1", "trained": "sprout@2"}
    assert validate(done.paths[PROOF]) == []


def test_what_never_came_back_is_told_and_read_again(tmp_path: Path) -> None:
    gone = [replace(one, is_missing=one.task == "task-1") for one in AFTER]
    done = published(tmp_path, trained=gone, config=ComparisonConfig(primary="reward").record())
    assert validate(done.paths[PROOF]) == []
    told = read(done.paths["trained"])
    assert [one.get("is_missing") for one in told["samples"]] == [None, True, None, None, None]
    del told["samples"][1]["is_missing"]
    write(done.paths["trained"], told, resealed=True)
    assert validate(done.paths[PROOF])


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 1e308, -1e308, 5e-324, math.nan, math.inf, "", "\ud800", "$", "0" * 64])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def nodes(value: Any) -> list[list[Any]]:
    """The keys to every node of a document, inner ones too."""
    found: list[list[Any]] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += [[key], *([key, *keys] for keys in nodes(item))]
    return found


def is_the_same_number(one: Any, other: Any) -> bool:
    """0.0 and 0, and what differs in the last digits."""
    are_numbers = isinstance(one, float) and type(other) in (int, float) and abs(other) < 1e300
    return are_numbers and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


@given(data=st.data())
def test_whatever_stands_there_instead_is_a_problem_and_never_a_crash(
    data: st.DataObject, original: Published, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = reports_in(tmp_path_factory.mktemp("fuzz"))
    shutil.copytree(original.paths[PROOF].parents[2], folder)
    kind, asked = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([PROOF, "itself"]))
    path = folder / document.active_path(kind, "m24-small")
    content = read(path)
    keys, instead = data.draw(st.sampled_from(nodes(content))), data.draw(ANYTHING)
    before, whole = at(content, keys), json.dumps(content)
    put(content, keys, instead)
    if data.draw(st.booleans()):
        content["seal"] = document.seal(content)
    write(path, content)
    problems = validate(folder / document.active_path(PROOF, "m24-small") if asked == PROOF else path)
    assert problems or json.dumps(content) == whole or is_the_same_number(before, instead)
    assert all(json.dumps([problem.where, problem.why]).isprintable() for problem in problems)
    "".join(problem.where + problem.why for problem in problems).encode()  # what is said can be printed
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["folder", "unreadable", "missing"])
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m24-benchmark-report-baseline.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "unreadable":
        path.symlink_to(path)  # round and round, whoever asks
    assert [problem.why.startswith("cannot be read: ") for problem in validate(path)] == [True]


def test_the_seeds_of_chance_are_in_the_report(tmp_path: Path) -> None:
    before, after = (episodes([0.1 * (n % cycle) for n in range(20)]) for cycle in (7, 5))
    one, two = (published(tmp_path, run_id=f"m24-{seed}", baseline=before, trained=after, seed=seed) for seed in (1, 2))
    assert one.proof["significance"] != two.proof["significance"]  # the same samples, drawn from otherwise
    assert validate(one.paths[PROOF]) == validate(two.paths[PROOF]) == []
