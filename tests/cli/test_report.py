"""`holdfast report …` on real publications: true, changed, old and archived."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.contracts.evidence import Decision, Reason
from holdfast.prove.reports.document import KINDS, PROOF, Retention
from tests.cli.conftest import Cli
from tests.prove.reports.publication import AFTER, BEFORE, published, read, reports_in, write

CLOSED = Decision(open=False, reasons=(Reason(code="evidence_missing_golden", text="no golden replay"),), needs=40)


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    return "--reports", str(reports_in(tmp_path))


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def test_an_empty_folder_is_said_to_be_so(cli: Cli, at: tuple[str, str]) -> None:
    assert cli("report", "list", *at).out.startswith("no reports in ")
    assert cli("report", "list", "--json", *at).json == []


def test_runs_are_listed_newest_first_in_eighty_columns(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    published(tmp_path, run_id="m24-good")
    later = datetime(2026, 7, 2, tzinfo=UTC)
    published(tmp_path, run_id="m24-bad", baseline=AFTER, trained=BEFORE, decision=CLOSED, generated_at=later)
    ran = cli("report", "list", *at)
    assert ran.lines[-1] == "reward and safety cost: by how much they rose; a safety cost above 0 is worse"
    assert [line.split() for line in ran.lines[:-1]] == [
        ["run", "published", "proof", "reward", "p", "safety", "cost", "gate"],
        ["m24-bad", "2026-07-02", "fail", "-0.2000", "1.0000", "+0.0000", "closed"],
        ["m24-good", "2026-07-01", "pass", "+0.2000", "0.0312", "+0.0000", "open"],
    ]
    assert max(map(len, ran.lines)) <= 80
    assert cli("report", "list", "--json", *at).json[1] == {
        "run_id": "m24-good",
        "generated_at": "2026-07-01T12:00:00Z",
        "proof_status": "pass",
        "reward_delta": 0.2,
        "p_value": 0.03125,
        "safety_regression": 0.0,
        "gate": "open",
        "place": "active",
        "files": 6,
    }


@pytest.mark.parametrize("content", ["{", "{}", '{"failure_analysis": 3, "decision": null}', "[]"])
def test_a_damaged_proof_is_listed_as_damaged(cli: Cli, tmp_path: Path, at: tuple[str, str], content: str) -> None:
    published(tmp_path).paths[PROOF].write_text(content)
    ran = cli("report", "list", *at)
    assert ran.code == 0 and ran.lines[1].split()[2] == "damaged"


def test_a_proof_is_shown_with_its_figures_and_that_it_is_true(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    path = published(tmp_path).paths[PROOF]
    ran = cli("report", "show", "m24-small", *at)
    assert ran.code == 0
    assert ["significance.p_value", "0.03125"] in [line.split() for line in ran.lines]
    assert ["significance.pass", "yes"] in [line.split() for line in ran.lines]
    assert any(line.startswith("ckpt-7 is better than sprout-weak: reward +0.2") for line in ran.lines)
    assert ran.lines[-2:] == [str(path), "true, recomputed from its samples"]
    told = cli("report", "show", path, "--json").json
    assert told["problems"] == [] and told["document"]["run_id"] == "m24-small"


def test_every_kind_of_file_can_be_shown(cli: Cli, tmp_path: Path) -> None:
    for path in published(tmp_path).paths.values():
        ran = cli("report", "show", path)
        assert ran.code == 0 and "true, recomputed from its samples" in ran.lines[-1]


def test_a_proof_that_is_not_true_is_shown_as_such(cli: Cli, tmp_path: Path) -> None:
    path = published(tmp_path).paths[PROOF]
    write(path, {**read(path), "proof_status": "fail"})
    ran = cli("report", "show", path)
    assert ran.code == 1 and "NOT true, 2 problems" in ran.out
    path.write_text(path.read_text().replace("0.03125", "NaN"))
    ran = cli("report", "show", path, "--json")
    assert ran.code == 1 and ran.json["document"] is None and ran.json["problems"]


def test_what_is_not_there_cannot_be_shown(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    assert "run m24-none: there is no proof of it in" in cli("report", "show", "m24-none", *at).err
    assert cli("report", "show", tmp_path / "none.json").code == 2


def test_validate_exits_0_when_all_is_true(cli: Cli, tmp_path: Path) -> None:
    paths = published(tmp_path).paths
    ran = cli("report", "validate", *paths.values())
    assert ran.code == 0
    assert ran.lines == [str(paths[PROOF].parent), *(f"  {path.name}: true" for path in paths.values())]
    told = cli("report", "validate", reports_in(tmp_path), "--json")
    assert told.code == 0 and told.json["ok"] and len(told.json["files"]) == len(KINDS)


def test_validate_exits_1_and_names_the_place(cli: Cli, tmp_path: Path) -> None:
    path = published(tmp_path).paths["trained"]
    data = read(path)
    data["samples"][3]["reward"] = 0.75
    write(path, data)
    ran = cli("report", "validate", path)
    assert ran.code == 1
    assert ran.lines[:2] == [str(path.parent), f"  {path.name}: NOT true, 3 problems"]
    said = "$.samples[3]: does not have the sha256 that $.seal.samples[3] says: one of the two was changed"
    assert said in " ".join(ran.out.split()) and max(map(len, ran.lines[1:])) <= 80
    assert any(line.startswith("    $.metrics.mean_reward: is 0.6, must be 0.61") for line in ran.lines)
    told = cli("report", "validate", path, "--json")
    assert told.code == 1 and told.json["files"][0]["problems"][0].keys() == {"where", "why"}


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


def test_a_run_is_shown_by_what_its_page_is_asked_for(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
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


def test_an_id_is_never_cut(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    run = f"m24-{'long-' * 12}1"
    published(tmp_path, run_id=run)
    ran = cli("report", "list", *at)
    assert run in ran.lines and "…" not in ran.out and max(map(len, ran.lines)) <= 80


@pytest.mark.parametrize("missing", ["none.json", "empty"])
def test_validate_exits_2_when_there_is_nothing_and_checks_nothing(cli: Cli, tmp_path: Path, missing: str) -> None:
    (tmp_path / "empty").mkdir()
    path = published(tmp_path).paths[PROOF]
    ran = cli("report", "validate", path, tmp_path / missing)
    assert ran.code == 2 and ran.out == "" and missing in ran.err


def test_archive_lists_first_and_moves_when_told(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    paths = published(tmp_path, generated_at=ago(31)).paths
    dry = cli("report", "archive", *at)
    assert dry.code == 0 and dry.lines[-1] == "6 reports would be archived; add --yes to do it"
    assert all(path.exists() for path in paths.values())
    ran = cli("report", "archive", "--yes", *at)
    assert ran.code == 0 and ran.lines[-1] == "6 reports archived"
    assert not any(path.exists() for path in paths.values())
    assert cli("report", "list", "--json", *at).json[0]["place"] == "archive"
    assert cli("report", "show", "m24-small", *at).code == 0
    assert cli("report", "validate", reports_in(tmp_path)).code == 0
    assert cli("report", "archive", *at).out.startswith("no report is due to be archived")


def test_purge_removes_only_what_is_archived_and_past_its_time(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    published(tmp_path, run_id="m24-old", generated_at=ago(366))
    published(tmp_path, run_id="m24-young", generated_at=ago(40))
    published(tmp_path, run_id="m24-kept", generated_at=ago(3000), retention=Retention(policy="retain-only"))
    assert cli("report", "purge", "--yes", *at).out.startswith("no report is due to be purged")
    assert cli("report", "archive", "--yes", *at).lines[-1] == "12 reports archived"
    dry = cli("report", "purge", "--json", *at).json
    assert (len(dry["steps"]), len(dry["kept"]), dry["done"]) == (6, 12, False)
    assert cli("report", "purge", "--yes", *at).lines[-1] == "6 reports purged"
    assert [run["run_id"] for run in cli("report", "list", "--json", *at).json] == ["m24-young", "m24-kept"]


def test_a_damaged_report_is_left_alone_and_told(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    path = published(tmp_path, generated_at=ago(31)).paths["baseline"]
    path.write_text("{")
    ran = cli("report", "archive", "--yes", *at)
    assert ran.code == 1 and path.exists()
    assert "5 reports archived" in ran.lines and f"left alone: {path}: $ is not JSON" in " ".join(ran.out.split())


def test_the_group_offers_every_command(cli: Cli) -> None:
    told = cli("report", "--help").out
    for name in ("list", "show", "validate", "significance", "safety", "archive", "purge", "page"):
        assert f"\n  {name} " in told
