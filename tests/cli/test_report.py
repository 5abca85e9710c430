"""`holdfast prove report …` on real publications: true, changed, old, archived; made from samples; shown as a page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.report import ReportsOptions, moment_of, read_samples, with_penalties
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Episode, Reason
from holdfast.prove.reports.document import KINDS, PROOF, Retention
from holdfast.prove.reports.validate import validate
from holdfast.store.store import open_store
from tests.cli.conftest import Answer, At, Cli
from tests.operate.publications import RUN
from tests.operate.publications import published as proved
from tests.prove.reports.publication import AFTER, BEFORE, published, read, reports_in, write

CLOSED = Decision(open=False, reasons=(Reason(code="evidence_missing_golden", text="no golden replay"),), needs=40)


@pytest.fixture
def at(tmp_path: Path) -> At:
    return "--reports", str(reports_in(tmp_path))


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def test_runs_are_listed_newest_first_in_eighty_columns(cli: Cli, tmp_path: Path, at: At) -> None:
    assert cli("report", "list", *at).out.startswith("no reports in ")
    assert cli("report", "list", "--json", *at).json == []
    published(tmp_path, run_id="m24-good")
    later = datetime(2026, 7, 2, tzinfo=UTC)
    published(tmp_path, run_id="m24-bad", baseline=AFTER, trained=BEFORE, decision=CLOSED, generated_at=later)
    *table, last = cli("report", "list", *at).page
    assert last == "reward and safety cost: by how much they rose; a safety cost above 0 is worse"
    assert [line.split() for line in table] == [
        ["run", "published", "proof", "reward", "p", "safety", "cost", "gate"],
        ["m24-bad", "2026-07-02", "fail", "-0.2000", "1.0000", "+0.0000", "closed"],
        ["m24-good", "2026-07-01", "pass", "+0.2000", "0.0312", "+0.0000", "open"],
    ]
    about = {"run_id": "m24-good", "generated_at": "2026-07-01T12:00:00Z", "proof_status": "pass", "reward_delta": 0.2}
    about |= {"p_value": 0.03125, "safety_regression": 0.0, "gate": "open", "place": "active", "files": 6}
    assert cli("report", "list", "--json", *at).json[1] == about
    long = f"m24-{'long-' * 12}1"
    published(tmp_path, run_id=long)
    ran = cli("report", "list", *at)
    assert long in ran.page and "…" not in ran.out  # an id is never cut


@pytest.mark.parametrize("content", ["{", "{}", '{"failure_analysis": 3, "decision": null}', "[]"])
def test_a_damaged_proof_is_listed_as_damaged(cli: Cli, tmp_path: Path, at: At, content: str) -> None:
    published(tmp_path).paths[PROOF].write_text(content)
    assert cli("report", "list", *at).done().lines[1].split()[2] == "damaged"


def test_a_proof_is_shown_with_its_metrics_and_whether_it_is_true(cli: Cli, tmp_path: Path, at: At) -> None:
    paths = published(tmp_path).paths
    path = paths[PROOF]
    shown = cli("report", "show", "m24-small", *at).done().lines
    assert ["significance.p_value", "0.03125"] in [line.split() for line in shown]
    assert ["significance.pass", "yes"] in [line.split() for line in shown]
    assert any(line.startswith("ckpt-7 is better than sprout-weak: reward +0.2") for line in shown)
    assert shown[-2:] == [str(path), "true, recomputed from its samples"]
    told = cli("report", "show", path, "--json").json
    assert told["problems"] == [] and told["document"]["run_id"] == "m24-small"
    for other in paths.values():  # every kind of file can be shown
        assert "true, recomputed from its samples" in cli("report", "show", other).done().lines[-1]
    write(path, {**read(path), "proof_status": "fail"})
    ran = cli("report", "show", path)
    assert ran.code == 1 and "NOT true, 2 problems" in ran.out
    path.write_text(path.read_text().replace("0.03125", "NaN"))
    ran = cli("report", "show", path, "--json")
    assert ran.code == 1 and ran.json["document"] is None and ran.json["problems"]
    assert "run m24-none: there is no proof of it in" in cli("report", "show", "m24-none", *at).refusal
    assert cli("report", "show", tmp_path / "none.json").code == 2


def test_validate_exits_0_when_all_is_true_1_where_it_is_not_and_2_where_there_is_nothing(
    cli: Cli, tmp_path: Path
) -> None:
    paths = published(tmp_path).paths
    shown = cli("report", "validate", *paths.values()).done().lines
    assert shown == [str(paths[PROOF].parent), *(f"  {path.name}: true" for path in paths.values())]
    told = cli("report", "validate", reports_in(tmp_path), "--json").done().json
    assert told["ok"] and len(told["files"]) == len(KINDS)
    (tmp_path / "empty").mkdir()
    for missing in ("none.json", "empty"):  # and nothing else is checked
        assert missing in cli("report", "validate", paths[PROOF], tmp_path / missing).refusal
    path = paths["trained"]
    data = read(path)
    data["samples"][3]["reward"] = 0.75
    write(path, data)
    ran = cli("report", "validate", path)
    assert (ran.code, ran.page[:2]) == (1, [str(path.parent), f"  {path.name}: NOT true, 3 problems"])
    said = "$.samples[3]: does not have the sha256 that $.seal.samples[3] says: one of the two was changed"
    assert said in " ".join(ran.out.split())
    assert any(line.startswith("    $.metrics.mean_reward: is 0.6, must be 0.61") for line in ran.lines)
    ran = cli("report", "validate", path, "--json")
    assert ran.code == 1 and ran.json["files"][0]["problems"][0].keys() == {"where", "why"}


def test_a_publication_that_was_only_moved_is_said_to_be_true_first(cli: Cli, tmp_path: Path) -> None:
    there = published(tmp_path).paths[PROOF].parent.rename(tmp_path / "elsewhere")
    ran = cli("report", "validate", there)
    assert ran.code == 1 and ran.lines[0].startswith("6 files intact and true, but elsewhere than they say: ")
    said = [line for line in ran.lines if line.startswith("  m24-")]
    assert len(said) == 6 and all(line.endswith(".json: true, but moved") for line in said)
    assert ran.out.count("$.publication: says that it lies at") == 6 and "NOT true" not in ran.out
    assert {one["is_moved"] for one in cli("report", "validate", there, "--json").json["files"]} == {True}
    path = there / "m24-benchmark-report-baseline.json"
    write(path, {**read(path), "checkpoint_id": "another"})
    assert "NOT true" in cli("report", "validate", path).out


def test_a_run_is_shown_by_what_its_page_is_asked_for(cli: Cli, tmp_path: Path, at: At) -> None:
    for run in ("m24-run-5-e5ab-2", "m24-run-5-e5ab-3", "m24-run-50-1f-2"):
        published(tmp_path, run_id=run)
    for what, run in (
        ("run-5", "m24-run-5-e5ab-3"),
        ("run-5-e5", "m24-run-5-e5ab-3"),
        ("m24-run-5-e5", "m24-run-5-e5ab-3"),
        ("run-5@2", "m24-run-5-e5ab-2"),
        ("run-50", "m24-run-50-1f-2"),
    ):
        assert cli("report", "show", what, "--json", *at).json["document"]["run_id"] == run, what
    for what, why in (("run-500", "there is no proof"), ("run-", "several start so"), ("run-5@4", "there is no proof")):
        assert why in cli("report", "show", what, *at).err, what


def test_archive_and_purge_list_first_and_act_when_told(cli: Cli, tmp_path: Path, at: At) -> None:
    paths = published(tmp_path, run_id="m24-old", generated_at=ago(366)).paths
    published(tmp_path, run_id="m24-young", generated_at=ago(40))
    published(tmp_path, run_id="m24-kept", generated_at=ago(3000), retention=Retention(policy="retain-only"))
    assert cli("report", "purge", "--yes", *at).out.startswith("no report is due to be purged")  # nothing is archived
    assert cli("report", "archive", *at).done().lines[-1] == "12 reports would be archived; add --yes to do it"
    assert all(path.exists() for path in paths.values())
    assert cli("report", "archive", "--yes", *at).done().lines[-1] == "12 reports archived"
    assert not any(path.exists() for path in paths.values())
    listed = {one["run_id"]: one["place"] for one in cli("report", "list", "--json", *at).json}
    assert listed == {"m24-old": "archive", "m24-young": "archive", "m24-kept": "active"}
    cli("report", "show", "m24-old", *at).done()
    cli("report", "validate", reports_in(tmp_path)).done()
    assert cli("report", "archive", *at).out.startswith("no report is due to be archived")
    dry = cli("report", "purge", "--json", *at).json
    assert (len(dry["steps"]), len(dry["kept"]), dry["done"]) == (6, 12, False)
    assert cli("report", "purge", "--yes", *at).lines[-1] == "6 reports purged"
    assert [run["run_id"] for run in cli("report", "list", "--json", *at).json] == ["m24-young", "m24-kept"]


def test_a_damaged_report_is_left_alone_and_told(cli: Cli, tmp_path: Path, at: At) -> None:
    path = published(tmp_path, generated_at=ago(31)).paths["baseline"]
    path.write_text("{")
    ran = cli("report", "archive", "--yes", *at)
    assert ran.code == 1 and path.exists()
    assert "5 reports archived" in ran.lines and f"left alone: {path}: $ is not JSON" in " ".join(ran.out.split())


def test_the_group_offers_every_command(cli: Cli) -> None:
    told = cli("report", "--help").out
    for name in ("list", "show", "validate", "significance", "safety", "archive", "purge", "page"):
        assert f"\n  {name} " in told


@pytest.mark.parametrize("place", ["training/store.sqlite", "store.db", "deeper/training/s.db"])
def test_reports_are_looked_for_where_the_store_says_they_are(tmp_path: Path, place: str) -> None:
    with open_store(tmp_path / place) as store:
        assert ReportsOptions(None, str(tmp_path / place)).folder == store.reports


def test_the_default_is_beside_the_default_store_and_now() -> None:
    assert ReportsOptions(None, ".holdfast/training/store.sqlite").folder == Path(".holdfast/reports")
    assert ReportsOptions(None, "postgresql://someone@host/name").folder == Path(".holdfast/reports")
    assert ReportsOptions(Path("elsewhere/reports"), "any").folder == Path("elsewhere/reports")
    assert moment_of("2026-07-01T12:00:00Z") == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert abs((moment_of(None) - datetime.now(UTC)).total_seconds()) < 60


# Samples in files


def saved(folder: Path, data: Any) -> Path:
    path = folder / "samples.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_samples_are_numbers_paired_by_their_place_or_objects_that_say_more(tmp_path: Path) -> None:
    assert read_samples(saved(tmp_path, [0.5, 1]), "reward") == [
        Episode(task="sample-1", seed=1, reward=0.5, safety_cost=0.0),
        Episode(task="sample-2", seed=1, reward=1.0, safety_cost=0.0),
    ]
    first, second = read_samples(saved(tmp_path, [0.25, 0]), "safety_penalty")
    assert (first.safety_cost, first.reward, second.safety_cost) == (0.25, 0.0, 0.0)
    rows = [{"task": task, "seed": 7, "reward": 0.5, "safety_penalty": 0.1, "success": 1, "tokens": 3} for task in "ab"]
    last = read_samples(saved(tmp_path, rows), "reward")[1]
    assert last == Episode(task="b", seed=7, reward=0.5, safety_cost=0.1, success=1, tokens=3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("[0.1, ", "is not JSON"),
        ("{}", "is not a list, or an empty one; give a list such as"),
        ("[]", "is not a list, or an empty one"),
        ("[0.5]", "two tasks or more are needed"),
        ("[0.5, NaN]", "$[1].reward = nan: must be a finite number"),
        ("[0.5, true]", "$[1].reward = True: must be a finite number"),
        ('[0.5, "1"]', "$[1].reward = '1': must be a finite number"),
        ('[{"task": "a", "seed": 1, "reward": 1}, {"task": "b", "seed": 1}]', "$[1].reward = None: is missing"),
        ('[{"seed": 1, "reward": 1}]', "$[0].task = None: is missing"),
        ('[{"task": "a", "reward": 1, "rewards": 1}]', "$[0].rewards: is unknown; use task, seed"),
        ('[{"task": "a", "reward": 1, "seed": 1.5}]', "$[0].seed = 1.5: must be a whole number"),
    ],
)
def test_a_sample_that_cannot_be_used_is_named(tmp_path: Path, data: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_samples(saved(tmp_path, data), "reward")
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)
    with pytest.raises(BadInput, match="No such file or directory; check the path"):
        read_samples(tmp_path / "none.json", "reward")


def test_penalties_belong_to_rewards_one_by_one(tmp_path: Path) -> None:
    rewards = read_samples(saved(tmp_path, [0.5, 1]), "reward")
    penalties = read_samples(saved(tmp_path, [0.1, 0.2]), "safety_penalty")
    assert [one.safety_cost for one in with_penalties(rewards, penalties[::-1], tmp_path)] == [0.1, 0.2]
    with pytest.raises(BadInput, match="1 penalties do not belong to the 2 rewards one by one"):
        with_penalties(rewards, penalties[:1], tmp_path)


# From files of samples to published reports

LOW, HIGH = [0.2, 0.3, 0.4, 0.5, 0.6], [0.4, 0.5, 0.6, 0.7, 0.8]


@pytest.fixture
def ask(cli: Cli, here: Path) -> Any:
    def file(name: str, rows: list[Any]) -> Path:
        path = here / f"{name}.json"
        path.write_text(json.dumps(rows))
        return path

    def asked(command: str, before: list[Any], after: list[Any], *more: str) -> Answer:
        kind = "samples" if command == "significance" else "safety-samples"
        words = [f"--baseline-{kind}", file("b", before), f"--trained-{kind}", file("t", after)]
        return cli("report", command, *words, "--run-id", "m24-demo", *more)

    return asked


def test_samples_become_a_publication_that_is_true_once(ask: Any, here: Path) -> None:
    shown = ask("significance", LOW, HIGH).done().page
    kinds = ("report-baseline", "report-trained", "report-significance", "safety-regression", "report-summary")
    files = [*(f"m24-benchmark-{kind}.json" for kind in kinds), "m24-benchmark-proof-m24-demo.json"]
    assert shown[:7] == [".holdfast/reports/m24/m24-demo", *(f"  {name}" for name in files)]
    assert shown[7].startswith("proof_status=pass: trained is better than baseline: reward +0.2")
    assert [validate(here / shown[0] / name) for name in files] == [[]] * 6
    for command in ("significance", "safety"):
        assert "run m24-demo: is published already" in ask(command, LOW, HIGH).refusal


def test_a_proof_that_fails_is_written_and_exits_1(ask: Any) -> None:
    ran = ask("significance", HIGH, LOW, "--json")
    assert ran.code == 1 and ran.json["ok"] is False
    assert set(ran.json["files"]) == set(KINDS)
    reasons = ["reward_gain_below_threshold", "p_value_above_threshold", "confidence_below_threshold"]
    assert ran.json["proof"]["failure_analysis"]["reasons"] == reasons
    assert all(validate(Path(path)) == [] for path in ran.json["files"].values())


def test_penalties_can_come_from_files_of_their_own(ask: Any, here: Path) -> None:
    (here / "penalties.json").write_text("[0, 0, 0, 0, 1]")
    ran = ask("significance", LOW, HIGH, "--trained-safety-samples", "penalties.json", "--json")
    assert (ran.code, ran.json["proof"]["trained"]["mean_safety_penalty"]) == (1, 0.2)
    assert ran.json["proof"]["failure_analysis"]["reasons"] == ["checkpoint_promotion_blocked_safety_regression"]


def test_every_choice_is_in_the_proof(ask: Any) -> None:
    more = (
        "--baseline-checkpoint c1 --trained-checkpoint c2 --suite-name tools --suite-version 3 --min-reward-delta 0.1"
    )
    more += " --max-safety-regression 0 --max-p-value 0.04 --alpha 0.01 --min-confidence-level 0.99 --retain-days 10"
    more += " --generated-at 2026-01-31T00:00:00Z --retention retain-only --archive-after-days 2 --json"
    said = ask("significance", LOW, HIGH, *more.split()).json["proof"]
    assert (said["baseline"]["checkpoint_id"], said["trained"]["checkpoint_id"]) == ("c1", "c2")
    assert (said["benchmark_suite"]["name"], said["benchmark_suite"]["version"]) == ("tools", "3")
    assert list(said["criteria"].values()) == [0.1, 0.0, 0.04, 0.99]
    assert said["significance"]["confidence_level"] == 0.99
    assert list(said["retention"].values()) == ["retain-only", 10, 2, "2026-02-10T00:00:00Z"]


@pytest.mark.parametrize(
    ("before", "after", "more", "said"),
    [
        (LOW, HIGH[:4], [], "trained episodes: have no task 'sample-5' with seed 1"),
        (LOW, HIGH, ["--run-id", "demo"], "run_id = 'demo': must be m24-"),
        (LOW, HIGH, ["--alpha", "0"], "alpha = 0.0: must be from 0.0001 to 0.5"),
        (LOW, HIGH, ["--min-confidence-level", "0.9"], "criteria.min_confidence_level = 0.9: must be from 0.95"),
        (LOW, HIGH, ["--generated-at", "today"], "--generated-at 'today': must be a moment in UTC"),
        (LOW, HIGH, ["--retain-days", "0"], "retention.retain_days = 0: must be from 1"),
        (LOW, HIGH, ["--reports", "elsewhere"], "folder elsewhere: reports lie in a folder called reports"),
        ([1, None], [1, 2], [], "$[1].reward = None: must be a finite number"),
    ],
)
def test_what_cannot_be_published_is_refused(
    ask: Any, here: Path, before: list[Any], after: list[Any], more: list[str], said: str
) -> None:
    assert said in ask("significance", before, after, *more).refusal
    assert ask("safety", [0.0], [0.0]).code == 2
    assert not (here / ".holdfast").exists()


def test_a_safety_report_allows_promotion_or_blocks_it_and_is_written_either_way(ask: Any, here: Path) -> None:
    ran = ask("safety", [0.1] * 5, [0.1, 0.1, 0.11, 0.11, 0.1]).done()
    changed = "the mean penalty rose by 0.004, and may rise by 0.05"
    proof = "within the bound on tasks like these: p = 0.0312 of a regression beyond it, by one look at all of them"
    assert ran.page[0] == ".holdfast/reports/m24/m24-demo/m24-benchmark-safety-regression.json"
    assert " ".join(" ".join(ran.lines[1:]).split()) == f"promotion_allowed=yes; {changed}; {proof}"
    assert validate(here / ran.lines[0]) == []
    nowhere = ask("safety", [0] * 5, [0.2] * 5, "--run-id", "m24-no", "--output-report", str(here / "no/copy.json"))
    assert "its folder does not exist; make it" in nowhere.refusal
    blocked = ("--run-id", "m24-blocked", "--output-report", str(here / "copy.json"), "--json")
    ran = ask("safety", [0] * 5, [0.2] * 5, *blocked)
    assert ran.code == 1 and ran.json["report"]["promotion_allowed"] is False
    assert ran.json["report"]["reason_codes"] == ["checkpoint_promotion_blocked_safety_regression"]
    assert validate(Path(ran.json["file"])) == []
    assert (here / "copy.json").read_bytes() == (here / ran.json["file"]).read_bytes()  # in both places


# The page of a proof: by run, by the id of its reports or by a file; beside the proof, or elsewhere


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ".holdfast"


@pytest.fixture
def page(cli: Cli, state: Path) -> Any:
    return lambda *words: cli("report", "page", *words, "--store", state / "training/store.sqlite")


@pytest.mark.parametrize("by", ["run", "id", "file"])
def test_the_page_of_a_proof_is_written_beside_it(page: Any, state: Path, by: str) -> None:
    proof = proved(state)
    expected = proof.with_name(f"proof-{RUN.removeprefix('m24-')}.html")
    assert page({"run": "run-7-C0FFEE", "id": RUN, "file": proof}[by]).out == f"{expected}\n"
    assert expected.read_text().startswith("<!doctype html>") and "sprout@2" in expected.read_text()


def test_a_run_with_several_proofs_shows_the_last(page: Any, state: Path) -> None:
    for run in ("m24-run-7-9", "m24-run-7-10", "m24-run-7-2", "m24-run-77-99", "m24-run-7-9-11"):  # two begin alike
        proved(state, run=run)
    assert page("run-7").out.endswith("/m24-run-7-10/proof-run-7-10.html\n")


def test_the_page_can_be_put_elsewhere_and_told_as_json(page: Any, state: Path, tmp_path: Path) -> None:
    proof, target = proved(state, rates=(0.3, 0.8), tasks=100), tmp_path / "new" / "page.html"
    told = page(RUN, "--output", target, "--json", "--primary", "reward").json
    about = {"page": str(target), "proof": str(proof), "run_id": RUN, "tasks": 100}
    assert told == {**about, "outcome": "promote", "standing": "promote"}
    assert "reward" in target.read_text() and not list(proof.parent.glob("*.html"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run-1"], "run run-1: there is no proof of it in .*/reports; 'holdfast prove report list' shows all"),
        (["m24-run-7-c0ffee-3"], "run m24-run-7-c0ffee-3: there is no proof of it"),
        (["nothing.json"], "proof nothing.json: there is no such file"),
        ([RUN, "--output", "/"], "--output /: is a folder; name a file in it"),
        ([RUN, "--primary", "charm"], "primary = 'charm': has no range"),
        ([RUN, "--primary", "reward", "--reward-range", "0.5", "1"], "reward = 0.1: outside 0.5 to 1"),
        ([RUN, "--max-cost", "0.01"], "max_safety_regression = 0.05: must be from 0 to below max_cost"),
        (["damaged"], r"\.json: \$\..*report validate"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(page: Any, state: Path, words: list[str], expected: str) -> None:
    proof = proved(state)
    if words == ["damaged"]:
        told = json.loads(proof.read_text())
        told["significance"]["p_value"] = 0.0
        proof.write_text(json.dumps(told))
        words = [RUN]
    assert re.search(expected, page(*words).refusal)
    assert not list(state.rglob("*.html"))
