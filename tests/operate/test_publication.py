"""A published proof is weighed again from its samples; one that is not true has no page."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput, NotFound, StoreCorrupt
from holdfast.contracts.evidence import Decision, Evidence, Outcome, Reason
from holdfast.contracts.records import decode, dumps, loads
from holdfast.contracts.release import Stage
from holdfast.operate import proof_view, publication
from holdfast.operate.canary_controller import advance
from holdfast.operate.proof import render
from holdfast.operate.proof_view import ProofView
from holdfast.operate.publication import RecomputedDecision, recompute_decision
from holdfast.prove.comparison import ComparisonConfig, compare_versions
from holdfast.prove.reports import document
from holdfast.store.store import Store
from tests.operate.publications import RUN, published
from tests.operate.stage import Line, proposed
from tests.store.tamper import damage


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ".holdfast"


def seen(path: Path, **how: object) -> ProofView:
    found = publication.read(path)
    return publication.view(found, publication.comparison_config(found, **how))  # type: ignore[arg-type]


def test_the_figures_are_those_that_the_samples_give(state: Path) -> None:
    found = publication.read(published(state, seed=3))
    how = publication.comparison_config(found)
    shown = publication.view(found, how)
    expected = compare_versions(
        found.baseline, found.candidate, how, versions=("sprout@1", "sprout@2"), rng=np.random.default_rng(3)
    )
    assert (shown.comparisons, shown.adjusted) == (expected.comparisons, expected.adjusted)
    assert shown.verdict == expected.verdict
    assert [task.name for task in shown.tasks] == list(expected.tasks)
    assert [task.difference for task in shown.tasks] == pytest.approx(expected.differences)
    success = [one.success for one in found.candidate]
    assert shown.means["success"][1] == pytest.approx(np.mean(success))  # type: ignore[arg-type]
    assert {task.family for task in shown.tasks} == {"lookup", "chain", "missing", "trivial"}


@pytest.mark.parametrize(
    ("rates", "costs", "outcome"),
    [
        ((0.4, 0.7), (0.0, 0.0), Outcome.PROMOTE),
        ((0.5, 0.5), (0.0, 0.0), Outcome.HOLD),
        ((0.7, 0.4), (0.0, 0.0), Outcome.REJECT),
        ((0.4, 0.7), (0.0, 0.4), Outcome.REJECT),  # better, and unsafe
    ],
)
def test_the_band_passes_the_bar_where_the_verdict_says(
    state: Path, rates: tuple[float, float], costs: tuple[float, float], outcome: Outcome
) -> None:
    shown = seen(published(state, rates=rates, costs=costs, tasks=150))
    assert shown.verdict.outcome is outcome and shown.safety is not None
    proved = shown.sequence.proved_at is not None and shown.safety.proved_at is not None
    refuted = shown.sequence.refuted_at is not None or shown.safety.refuted_at is not None
    assert (proved and not refuted, refuted) == (outcome is Outcome.PROMOTE, outcome is Outcome.REJECT)
    for course in (shown.sequence, shown.safety):
        above = [low > course.bar for low in course.low]
        at = above.index(True) + 1 if any(above) else None
        assert at == course.proved_at or (at and course.proved_at and at - course.proved_at <= 2)


def test_the_documented_criteria_are_listed_with_what_was_found(state: Path) -> None:
    path = published(state, rates=(0.5, 0.5), costs=(0.0, 0.3))
    shown = seen(path)
    proof = json.loads(path.read_text())
    failed = {criterion.code for criterion in shown.criteria if criterion.blocks and not criterion.is_met}
    assert failed == set(proof["failure_analysis"]["reasons"])
    assert "checkpoint_promotion_blocked_safety_regression" in failed
    names = [criterion.name for criterion in shown.criteria]
    assert names[:2] == ["Success, however often one looks", "Safety cost, however often one looks"]  # they decide
    assert names[2:5] == ["Gain in reward", "p of the gain, by one look", "Interval of the gain, by one look"]
    assert names[5:] == ["Rise in safety cost", "Safety cost, by one look", "Other seeds", "Fewer tasks"]
    assert shown.criteria[5].measured == f"{proof['safety_benchmark']['safety_regression_delta']:+.4f}"


def test_without_success_the_reward_has_to_improve_within_its_range(state: Path) -> None:
    found = publication.read(published(state))
    assert publication.comparison_config(found).primary == "success"
    shown = publication.view(found, publication.comparison_config(found, primary="reward", reward_range=(0.0, 2.0)))
    assert shown.primary == "reward" and shown.sequence.metric == "reward"
    narrow = publication.comparison_config(found, primary="reward", reward_range=(0.2, 1.0))
    with pytest.raises(BadInput, match="set reward_range"):
        publication.view(found, narrow)


def test_a_null_comparison_tells_its_sides_apart(state: Path) -> None:
    found = publication.read(published(state, checkpoints=("sprout@1", "sprout@1")))
    assert found.versions == ("sprout@1 (baseline)", "sprout@1 (candidate)")
    assert "sprout@1 (candidate)" in render(publication.view(found, publication.comparison_config(found)))


def test_names_without_numbers_have_no_families(state: Path) -> None:
    names = [f"case {chr(97 + n % 26)}{n}" for n in range(59)] + ["calc-00001"]
    assert {task.family for task in seen(published(state, names=names)).tasks} == {""}


def test_a_proof_that_was_touched_has_no_page(state: Path) -> None:
    path = published(state)
    baseline = path.parent / "m24-benchmark-report-baseline.json"
    told = json.loads(baseline.read_text())
    told["samples"][0]["reward"] = 0.0 if told["samples"][0]["reward"] else 1.0
    baseline.write_text(json.dumps(told))
    with pytest.raises(BadInput, match="'holdfast prove report validate .* lists all problems"):
        publication.read(path)


@pytest.mark.parametrize("moved", [document.KINDS, ("baseline", "trained")], ids=["all of it", "the samples"])
def test_a_proof_keeps_its_page_when_it_goes_to_the_archive(state: Path, moved: tuple[str, ...]) -> None:
    path = published(state)
    before, made = render(seen(path)), document.read_timestamp("2026-03-04T05:06:07Z")
    for file in path.parent.glob("*.json"):  # it names the hash of every file that it rests on
        assert hashlib.sha256(file.read_bytes()).hexdigest() in before, file.name
    for kind in moved:
        target = state / "reports" / document.archived_path(kind, RUN, made)
        target.parent.mkdir(parents=True, exist_ok=True)
        (state / "reports" / document.active_path(kind, RUN)).rename(target)
        path = target if kind == document.PROOF else path
    assert render(seen(path)) == before


def test_what_is_not_a_proof_is_refused(state: Path) -> None:
    path = published(state)
    with pytest.raises(BadInput, match="there is no such file"):
        publication.read(path.with_name("nothing.json"))
    with pytest.raises(BadInput, match="give the proof beside it"):
        publication.read(path.with_name("m24-benchmark-report-baseline.json"))
    assert publication.read(path).page == path.with_name(f"proof-{RUN.removeprefix('m24-')}.html")


def test_a_figure_is_the_same_in_the_report_on_the_page_and_for_whoever_weighs(state: Path) -> None:
    path = published(state, seed=3, costs=(0.2, 0.1))
    said, shown = json.loads(path.read_bytes()), seen(path)
    names = ("p_value", "delta_ci_low", "delta_ci_high")
    reward, success = shown.comparisons["reward"], shown.comparisons["success"]
    figures = [said["significance"][name] for name in names]
    assert figures == [reward.p_value, reward.interval.low, reward.interval.high]
    assert success.corrected is not None  # what decides is by bets: no figure of one look stands in its headline
    assert f"{100 * success.corrected:+.1f}".strip("+") in proof_view.headline(shown)


def test_the_bands_are_those_of_the_published_weighing_whatever_has_to_improve(state: Path) -> None:
    asked = ComparisonConfig(seed_delta_spread=0.17, sample_p_value_spread=0.03, reward_range=(0.0, 2.0))
    path = published(state, config=json.loads(json.dumps(asdict(asked))))
    for shown in (seen(path), seen(path, primary="reward")):
        wanted = {criterion.name: criterion.required for criterion in shown.criteria}
        assert wanted["Other seeds"] == "p within 0.05, gain within 0.17"
        assert wanted["Fewer tasks"] == "p within 0.03, gain within 0.08"
    assert publication.comparison_config(publication.read(path), primary="reward").reward_range == (0.0, 2.0)


def test_a_page_names_the_releases_and_ends_with_what_to_do(state: Path) -> None:
    is_open = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="safety +0.1; all checks are met"),))
    path = published(
        state, checkpoints=("sprout", "ck-1"), versions=("a b@1", "a b@2"), decision=is_open, rates=(0.2, 0.8)
    )
    shown = seen(path)
    assert (shown.baseline, shown.candidate) == ("a b@1", "a b@2")
    assert shown.facts["Candidate"] == "a b@2, made from ck-1"
    assert [command for command, _ in shown.steps] == [
        "holdfast release explain 'a b@2'",
        f"holdfast prove report show {RUN}",
        "holdfast release rollback 'a b' --why 'TEXT'",
    ]
    page = render(shown)
    assert page.index("Next steps") > page.index("How it was computed") and "a positive value is always better" in page
    assert "a b@2 is better than a b@1" in json.loads(path.read_bytes())["failure_analysis"]["summary"]


def test_a_version_that_did_not_get_in_is_not_to_be_rolled_back(state: Path) -> None:
    closed = Decision(open=False, reasons=(Reason(code="golden_changed_unsigned", text="3 of 40"),))
    shown = seen(published(state, rates=(0.4, 0.8), tasks=120, versions=("a@1", "a@2"), decision=closed))
    assert shown.decision == closed and proof_view.status_of(shown).kind == "blocked"
    steps = [command for command, _ in shown.steps]
    assert steps == ["holdfast release explain a@2", f"holdfast prove report show {RUN}"]


@pytest.mark.parametrize(("rate", "is_open"), [(1.0, True), (0.1, False), (0.3, False)])
def test_the_decision_follows_from_the_samples_once_more(file_store: Store, rate: float, is_open: bool) -> None:
    line = Line(file_store, 2)
    made = asyncio.run(proposed(file_store, rate=rate))
    found = recompute_decision(file_store, line.at(2))
    assert found.decision is not None and found.decision.open == is_open
    assert found.again == found.decision and found.agrees
    assert (found.episodes, found.entries) == (400, file_store.ledger.verify())
    assert found.proof == made["proof"] and Path(made["proof"]).is_file()
    assert found.evidence is not None and found.evidence.candidate == "sprout@2"


async def test_a_decision_that_the_samples_do_not_bear_out_is_noticed(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, rate=0.1)
    other = Decision(open=False, reasons=(Reason(code="audit_failed", text="it says"),))  # closed, for other reasons
    file_store.releases.note("sprout@2", other, evidence=made["evidence"], who="x", now=60.0).result()
    assert not recompute_decision(file_store, line.at(2)).agrees
    waved = Decision(open=True, reasons=(Reason(code="open", text="trust me"),))
    line.go(2, Stage.LIVE, evidence=made["evidence"], decision=waved)
    found = recompute_decision(file_store, line.at(2))
    assert found.decision == waved and found.again is not None and not found.again.open
    assert not found.agrees


def words(found: RecomputedDecision) -> list[str]:
    return [next(iter(one.body)) for one in found.history]


async def test_what_a_guard_or_a_person_said_later_is_not_the_gates_decision(file_store: Store) -> None:
    line = Line(file_store, 2)
    await proposed(file_store, to=Stage.CANARY)
    advance(file_store, line.at(2), to=None, share=None, who="ann", why="now", now=60.0)  # refused by the guard
    found = recompute_decision(file_store, line.at(2))
    assert found.agrees and found.decision is not None and found.decision.open
    assert words(found) == ["add", "move", "refuse"]


async def test_the_history_says_who_took_its_place_and_who_brought_it_back(file_store: Store) -> None:
    line = Line(file_store, 2)
    found = recompute_decision(file_store, line.at(1))  # without a gate there is nothing to decide
    assert (found.decision, found.again, found.evidence, found.proof, found.agrees) == (None, None, None, None, True)
    assert words(found) == ["add", "move"]
    await proposed(file_store)
    line.back(2, 1)
    first, second = (recompute_decision(file_store, line.at(number)) for number in (1, 2))
    assert words(first) == ["add", "move", "move", "roll_back"] and words(second) == ["add", "move", "roll_back"]
    assert first.history[2].body["retired"] == "sprout@1" and first.history[3].body["to"] == "sprout@1"


@pytest.mark.parametrize("which", ["evidence", "samples"])
async def test_a_blob_that_was_changed_is_named(file_store: Store, which: str) -> None:
    line = Line(file_store, 2)
    evidence = (await proposed(file_store))["evidence"]
    found = recompute_decision(file_store, line.at(2)).evidence
    assert found is not None and found.samples is not None
    path = file_store.blobs.path(evidence if which == "evidence" else found.samples)
    path.chmod(0o600)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"1.0", b"0.9", 1))
    with pytest.raises(StoreCorrupt, match=str(path)):
        recompute_decision(file_store, line.at(2))
    path.write_bytes(whole)
    assert recompute_decision(file_store, line.at(2)).agrees
    path.unlink()
    with pytest.raises(NotFound, match=f"no file {path}"):
        recompute_decision(file_store, line.at(2))


async def test_other_evidence_under_a_hash_of_its_own_does_not_pass_for_what_was_decided_on(file_store: Store) -> None:
    """Whoever swaps the row's evidence for another, well-formed one: the ledger names what the decision rested on."""
    line = Line(file_store, 2)
    made = await proposed(file_store)
    evidence = loads(Evidence, file_store.blobs.get(made["evidence"]))
    other = file_store.blobs.put(dumps(evidence).encode() + b"\n", now=70.0)
    damage(file_store, f"UPDATE releases SET evidence = '{other}' WHERE number = 2")
    assert line.at(2).evidence == other
    assert recompute_decision(file_store, line.at(2)).evidence == evidence


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("UPDATE ledger SET who = 'mallory' WHERE seq = 2", "entry 2 was changed"),
        ("UPDATE ledger SET body = replace(body, 'sprout@2', 'sprout@3') WHERE seq = 4", "entry 4 was changed"),
        ("DELETE FROM ledger WHERE seq = 3", "entry 3 is missing"),
    ],
)
async def test_a_ledger_that_was_changed_is_named_with_the_place(file_store: Store, statement: str, place: str) -> None:
    line = Line(file_store, 2)
    await proposed(file_store)
    release = line.at(2)
    damage(file_store, statement)
    with pytest.raises(StoreCorrupt, match=f"ledger: {place}"):
        recompute_decision(file_store, release)


async def test_a_proof_that_is_not_the_published_one_is_named(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store)
    assert recompute_decision(file_store, line.at(2)).problems == ()
    path = Path(made["proof"])
    path.write_bytes(path.read_bytes() + b" ")  # noqa: ASYNC240
    found = recompute_decision(file_store, line.at(2))
    assert not found.agrees and found.problems == (f"proof of sprout@2: {path} is not the one that was published",)
    path.unlink()  # noqa: ASYNC240
    found = recompute_decision(file_store, line.at(2))
    assert "nor in the archive" in found.problems[0] and found.proof is None


async def test_figures_that_the_samples_do_not_give_are_named(file_store: Store) -> None:
    line = Line(file_store, 2)
    made = await proposed(file_store, rate=0.3)
    evidence = loads(Evidence, file_store.blobs.get(made["evidence"]))
    better = replace(evidence.comparisons["success"], difference=0.99)
    false = replace(evidence, suite="another@9 1234", comparisons={**evidence.comparisons, "success": better})
    blob = file_store.blobs.put(dumps(false).encode(), now=1.0)
    decision = decode(Decision, made["decision"])
    await file_store.releases.note(line.at(2).id, decision, evidence=blob, who="eve", now=70.0)
    found = recompute_decision(file_store, line.at(2))
    assert not found.agrees
    assert [one.partition(": ")[2].split()[0] for one in found.problems][:2] == ["suite", "comparisons"]
