"""Experiments from the command line: units keep their arm, outcomes come in, a verdict is right when asked often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.records import decode
from holdfast.contracts.release import Experiment, Exposure, PolicyKind, ServedRequest, Stage
from holdfast.operate.release_views import Statistics
from holdfast.pipeline.alpha_account import account_of, charge_experiment
from holdfast.promote.experiment import Design, ExperimentCall, Ruling, assign, verdict
from holdfast.store.sql import Transaction
from holdfast.store.store import Store
from tests.cli.conftest import Answer, Cli, Group
from tests.operate.stage import POLICY, Line


@pytest.fixture
def ab(cli: Cli, url: str) -> Group:
    return Group(cli, "ab", url)


def serve(store: Store, name: str, rates: dict[str, float], n: int, lost: float = 0.0) -> None:
    """Units come, get their arm, and are served with the arm's rate of success; `lost`: treatments nobody notes."""
    rng = np.random.default_rng(5)
    trial = store.trials.get(name)
    served, pending = [], []
    for number in range(n):
        unit = f"user-{number}"
        arm = assign(trial, unit)
        if arm != "control" and rng.random() < lost:
            continue
        pending.append(store.trials.expose(name, unit, arm, now=float(number)))
        success = float(rng.random() < rates[arm])
        about: dict[str, Any] = {"trial": name, "arm": arm, "unit": unit, "at": float(number)}
        served.append(ServedRequest(id=f"{name}-{number}", success=success, **about))
    for one in pending:
        one.result()
    store.trials.record(served).result()


def test_a_unit_keeps_its_arm_and_its_outcome_is_counted(ab: Group, store: Store) -> None:
    said = ab.says("create", "exp", "--why", "is it better?")
    begun = "exp: begun, control 0.5, treatment 0.5\ngive units their arm with: "
    begun += "holdfast release experiment assign exp UNIT --store "
    assert said.startswith(begun)
    arm = ab.says("assign", "exp", "bob")
    assert arm in ("control", "treatment")
    assert ab.says("assign", "exp", "bob") == arm
    exposure = decode(Exposure, ab("assign", "exp", "bob", "--json").json)
    assert (exposure.unit, exposure.arm) == ("bob", arm)
    assert ab.says("record", "exp", "bob", "--success", "--latency", 0.5, "--id", "r1") == f"r1: recorded for {arm}"
    again = ab.says("record", "exp", "bob", "--failure", "--id", "r1")
    assert again == "r1: was recorded before, and stays as it was"
    assert [(one.success, one.latency_s) for one in store.trials.served("exp")] == [(1.0, 0.5)]
    assert store.trials.exposed("exp")[arm] == 1
    entry = next(store.ledger.entries())
    assert (entry.kind, entry.who, entry.body["settings"]["why"]) == ("trial", "ann", "is it better?")


def test_an_experiment_begins_and_is_charged_or_neither(ab: Group, store: Store) -> None:
    """Fault: it began in one transaction and was charged in the next, so that one killed between was in no account."""
    ab.says("create", "before", "--why", "nothing is live yet")
    made: dict[str, Any] = {"policy": "tools", "kind": PolicyKind.WEIGHTS, "source": "weights:one"}
    store.releases.add(**made, who="ann", now=1.0).result()
    move: dict[str, Any] = {"to": Stage.LIVE, "expect": Stage.CANDIDATE, "why": ""}
    store.releases.move("tools@1", **move, who="ann", now=1.0).result()
    ab.says("create", "exp", "--alpha", 0.02)
    assert ab("create", "before", "--why", "another one of this name").code == 5
    assert [(one.candidate, one.alpha) for one in account_of(store, "tools").experiments] == [("exp", 0.02)]

    def killed(tx: Transaction) -> None:
        charge_experiment(store, tx, ["tools"], "lost", alpha=0.05, who="ann", now=1.0)
        raise OSError("no room")

    lost = replace(store.trials.get("exp"), name="lost")
    with pytest.raises(OSError, match="no room"):
        store.trials.begin(lost, who="ann", now=1.0, also=killed).result()
    assert {one.name for one in store.trials.all()} == {"before", "exp"}
    assert len(account_of(store, "tools").experiments) == 1


def test_a_better_treatment_is_promoted_and_the_arms_are_shown(ab: Group, store: Store) -> None:
    ab.says("create", "exp", "--why", "is it better?")
    assert ab.says("verdict", "exp").startswith("exp: continue testing, about ")
    serve(store, "exp", {"control": 0.5, "treatment": 0.8}, 600)
    first, second, *rest = ab("verdict", "exp").lines
    assert (first, second) == ("exp: promote treatment (treatment)", "  experiment_treatment_better")
    assert rest[0].startswith("    mean success of treatment 0.") and max(map(len, rest)) <= 80
    ruling = decode(Ruling, ab("verdict", "exp", "--json").json)
    assert (ruling.call, ruling.arm, ruling.needs) == (ExperimentCall.PROMOTE, "treatment", None)
    assert sum(ruling.exposed.values()) == sum(ruling.told.values()) == 600
    shown = ab("show", "exp").page
    assert shown[0].startswith("exp: running, begun ") and shown[1] == "  why: is it better?"
    assert shown[2].split() == ["arm", "part", "units", "requests", "outcomes", "mean", "success"]
    assert shown[3].split()[:3] == ["control", "0.5", str(ruling.exposed["control"])]
    assert decode(Experiment, ab("show", "exp", "--json").json["trial"]) == store.trials.get("exp")
    ab.says("end", "exp")  # nobody has to say why, and what was proved stays
    assert ab("verdict", "exp").lines[0].endswith("; the verdict stays: promote treatment (treatment)")
    assert [entry.body.get("why") for entry in store.ledger.entries()][-1] == "by hand"


def test_a_worse_treatment_is_not_promoted_and_a_broken_guardrail_takes_even_a_better_one_back(
    ab: Group, store: Store
) -> None:
    ab.says("create", "worse", "--limit", "success=none")
    serve(store, "worse", {"control": 0.7, "treatment": 0.4}, 600)
    assert ab("verdict", "worse", "--json").json["call"] == "keep_control"
    ab.says("create", "exp", "--limit", "errors=0.1")
    serve(store, "exp", {"control": 0.5, "treatment": 0.8}, 300)
    about: dict[str, Any] = {"trial": "exp", "arm": "treatment", "error": True, "success": 1.0}
    harm = [ServedRequest(id=f"x{n}", unit=f"new-{n}", at=1000.0 + n, **about) for n in range(100)]
    store.trials.record(harm).result()
    assert ab("verdict", "exp").done().lines[:2] == ["exp: rollback (treatment)", "  canary_breach_errors"]


def test_units_that_get_lost_in_one_arm_void_the_experiment_and_exit_1(ab: Group, store: Store) -> None:
    ab.says("create", "exp", "--why", "w")
    serve(store, "exp", {"control": 0.5, "treatment": 0.8}, 1500, lost=0.3)
    ran = ab("verdict", "exp")
    assert (ran.code, ran.lines[0]) == (1, "exp: void")
    assert ran.lines[1] == "  experiment_sample_ratio_mismatch"
    assert ran.lines[2].startswith("    the arms were not filled as meant: control ")


def test_an_ended_experiment_takes_no_new_units_and_keeps_its_verdict(ab: Group) -> None:
    ab.says("create", "exp", "--why", "w")
    arm = ab.says("assign", "exp", "bob")
    assert ab.says("end", "exp", "--why", "enough").startswith("exp: ended, ")
    assert ab.says("end", "exp", "--why", "enough").startswith("exp: ended before, ")
    assert ab.says("assign", "exp", "bob") == arm
    ran = ab("assign", "exp", "eve")
    assert (ran.code, ran.err) == (5, "holdfast: error: trial exp: has ended; begin another\n")
    ab.says("record", "exp", "bob", "--success")  # it was under way
    said = ab("verdict", "exp")
    assert said.code == 0 and said.lines[0].startswith("exp: ended 2") and "it stays undecided" in said.lines[0]
    assert "continue" not in said.out and ab("verdict", "exp", "--json").json["ended_at"] is not None
    assert ab("list").lines[1].split()[:2] == ["exp", "ended"]
    assert ab("create", "exp", "--why", "again").code == 5


def test_the_list_has_experiments_only_and_says_how_to_begin(ab: Group, store: Store) -> None:
    assert "to begin one: holdfast release experiment create NAME" in ab.says("list")
    canary = Experiment(name="c", kind="canary", arms={"live": 0.9, "canary": 0.1}, salt="s", created_at=1.0)
    store.trials.begin(canary, who="t", now=1.0).result()
    ab.says("create", "three", "--why", "w", "--arms", "a:0.333333,b:0.333333,c:0.333334", "--metric", "reward")
    assert [one["name"] for one in ab("list", "--json").json] == ["three"]
    assert max(map(len, ab("list").lines)) <= 80
    ran = ab("verdict", "c")
    assert (ran.code, "trial c: is a canary, not an experiment" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--arms", "control"], "--arms 'control': must be ARM:PART; write control:0.5,treatment:0.5"),
        (["--arms", "a:0.5,b:0.4"], "--arms a:0.5,b:0.4: the parts must be above 0 and add up to 1, not 0.9"),
        (["--arms", "a:1.5,b:-0.5"], "the parts must be above 0 and add up to 1"),
        (["--arms", "a:0.5,a:0.5"], "--arms a:0.5,a:0.5: names an arm twice"),
        (["--arms", "a:nan,b:0.5"], "--arms a:nan,b:0.5: the parts must be above 0"),
        (["--arms", "a:1"], "two or more are needed"),
        (["--metric", "latency"], "metric 'latency': cannot decide an experiment; use success or reward"),
        (["--range", "1"], "--range 1: must be LOW:HIGH, such as 0:1"),
        (["--alpha", "1.5"], "alpha = 1.5: must be above 0 and below 1"),
        (["--limit", "mood=1"], "--limit mood: is not watched; use one of success, latency"),
        (["--limit", "errors=many"], "--limit errors=many: must be a number, or none"),
        (["--limit", "errors=2"], "limits: errors = 2.0: must be above 0 and below 1"),
    ],
)
def test_an_impossible_experiment_is_refused_in_one_line(
    ab: Group, store: Store, words: list[str], expected: str
) -> None:
    assert expected in ab("create", "exp", *words).refusal
    assert store.trials.all() == []


def test_an_outcome_needs_an_arm_and_something_told(ab: Group, store: Store) -> None:
    ab.says("create", "exp")
    assert store.trials.get("exp").settings["why"] == "by hand"
    for words, said in (
        (
            ("record", "exp", "bob", "--success"),
            "unit 'bob': has no arm yet; call 'holdfast release experiment assign' before it is",
        ),
        (("record", "exp", "bob"), "nothing is told"),
        (("verdict", "gone"), "trial 'gone': there is none"),
    ):
        assert said in ab(*words).refusal


def test_an_outcome_counts_when_its_time_has_come(ab: Group, store: Store) -> None:
    ab.says("create", "slow", "--why", "late news", "--mature-after", "1h")
    assert store.trials.get("slow").settings["mature_after"] == 3600.0
    ab.says("assign", "slow", "user-1")
    ab.says("record", "slow", "user-1", "--success")
    ruling = ab("show", "slow", "--json").json["ruling"]
    assert (sum(ruling["exposed"].values()), sum(ruling["told"].values())) == (1, 0)
    assert "told alike: p 1, looked at once" in ab.says("show", "slow")
    refused = ab("create", "other", "--why", "x", "--mature-after", "soon")
    assert "--mature-after 'soon': is not a time; write 7d, 12h, 30m or 90s" in " ".join(refused.err.split())


HALVES = {"control": 0.5, "treatment": 0.5}


def looked_at_after_every_unit(rates: dict[str, float], n: int, seed: int) -> Ruling:
    """A verdict stays once it is there, so the last look tells of all of them."""
    rng = np.random.default_rng(seed)
    design = Design()
    trial = Experiment(name="t", kind="experiment", arms=HALVES, salt=f"trial/{seed}", created_at=0.0)
    served: list[ServedRequest] = []
    exposures: list[Exposure] = []
    for number in range(n):
        arm = assign(trial, str(number))
        exposures.append(Exposure(trial="t", unit=str(number), arm=arm, at=float(number)))
        success = float(rng.random() < rates[arm])
        about: dict[str, Any] = {"id": str(number), "unit": str(number), "at": float(number)}
        served.append(ServedRequest(trial="t", arm=arm, success=success, **about))
    statistics = Statistics(design)

    def no_guard(control: Sequence[ServedRequest], treatment: Sequence[ServedRequest], alpha: float) -> tuple[()]:
        return ()

    return verdict(trial, exposures, served, compare=statistics.compare, guard=no_guard)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_of_two_hundred_experiments_with_the_same_thing_twice_hardly_one_is_promoted(rate: float) -> None:
    calls = [looked_at_after_every_unit(dict.fromkeys(HALVES, rate), 300, seed).call for seed in range(200)]
    assert calls.count(ExperimentCall.PROMOTE) <= 16  # α 0.05 of 200 is 10; more than 16 of them would be one in forty
    assert calls.count(ExperimentCall.VOID) <= 1


def test_a_real_gain_is_found_and_the_forecast_is_of_the_right_size() -> None:
    rates = {"control": 0.5, "treatment": 0.65}
    calls = [looked_at_after_every_unit(rates, 1200, seed).call for seed in range(40)]
    assert calls.count(ExperimentCall.PROMOTE) >= 32
    needs = [looked_at_after_every_unit(rates, 200, seed).needs for seed in range(40)]
    assert 100 < float(np.median([one for one in needs if one is not None])) < 2000


# Experiments about features


@pytest.fixture
def experiment(cli: Cli, url: str) -> Callable[..., Answer]:
    """`holdfast release experiment …`, in the words of the guide."""
    return lambda *words: cli("release", "experiment", *words, "--store", url)


BUDGETS = "extendedThinking.budgetManagement"


def served_by_flag(store: Store, name: str, n: int = 300) -> None:
    """Units that are better with the feature."""
    serve(store, name, {"off": 0.1, "on": 0.9}, n)


def test_an_experiment_about_a_feature_has_the_flags_variants_as_arms_and_an_end(
    experiment: Callable[..., Answer], store: Store
) -> None:
    said = experiment("budgets", "--for", "7d", "--why", "does thinking help?").done()
    assert said.lines[0].startswith(f"{BUDGETS}-1: begun, off 0.5, on 0.5 of the tasks, until")
    trial = store.trials.get(f"{BUDGETS}-1")
    assert trial.settings["until"] == pytest.approx(trial.created_at + 7 * 86_400.0)
    found = experiment("status", "budgets", "--json").done().json
    assert (found["state"], found["flag"], found["apply"], found["is_void"]) == ("running", BUDGETS, False, False)
    assert found["ruling"]["call"] == "continue_testing" and found["sample_ratio_p"] == 1.0
    again = experiment("budgets", "--for", "1h")
    assert f"flag {BUDGETS}: is in experiment {BUDGETS}-1; holdfast release experiment stop budgets" in again.refusal


def test_the_verdict_is_told_and_the_flag_stays_the_operators(
    experiment: Callable[..., Answer], cli: Cli, store: Store, url: str
) -> None:
    experiment("budgets", "--for", "12h", "--share", "40").done()
    assert store.trials.get(f"{BUDGETS}-1").arms == {"off": 0.6, "on": 0.4}
    refused = cli("flags", "set", BUDGETS, "--rule", "on 10%", "--store", url)
    assert f"experiment {BUDGETS}-1 decides who gets what" in refused.refusal
    served_by_flag(store, f"{BUDGETS}-1")
    page = experiment("status", "budgets").done()
    assert page.page and "verdict: promote treatment (on)" in page.lines
    assert f"holdfast release flags rollout {BUDGETS} 100" in " ".join(page.out.split())
    over = experiment("stop", "budgets", "--why", "seen enough").done()
    assert "ended; promote treatment" in " ".join(over.out.split()) and store.flags.all() == []
    assert experiment("status", "budgets", "--json").json["state"] == "ended"
    assert "ended" in experiment("stop", "budgets").refusal


def test_stop_with_apply_follows_the_verdict(experiment: Callable[..., Answer], store: Store) -> None:
    experiment("budgets", "--for", "30m").done()
    served_by_flag(store, f"{BUDGETS}-1")
    experiment("stop", "budgets", "--apply").done()
    assert [(one.variant, one.percent) for one in store.flags.get(BUDGETS).rules] == [("on", 100.0)]
    experiment("budgets", "--for", "30m").done()
    serve(store, f"{BUDGETS}-2", {"off": 0.9, "on": 0.1}, 300)
    experiment("stop", "budgets", "--apply").done()
    assert [(one.variant, one.percent) for one in store.flags.get(BUDGETS).rules] == [("on", 0.0)]


def test_arms_that_were_not_filled_as_meant_void_it(experiment: Callable[..., Answer], store: Store) -> None:
    experiment("budgets", "--for", "1h").done()
    trial = store.trials.get(f"{BUDGETS}-1")
    for number in range(200):
        unit = f"user-{number}"
        if (arm := assign(trial, unit)) == "off" or number % 5 == 0:  # units with the feature get lost
            store.trials.expose(trial.name, unit, arm, now=1.0).result()
    found = experiment("status", "budgets", "--json")
    assert found.code == 1 and found.json["is_void"] and found.json["sample_ratio_p"] < 1e-6
    assert "void" in experiment("status", "budgets").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing", "--for", "7d"), "feature 'nothing': there is none, and no flag"),
        (("budgets", "--for", "soon"), "--for 'soon': is not a time; write 7d, 12h, 30m or 90s"),
        (("budgets", "--for", "0d"), "--for '0d': is not a time"),
        (("budgets", "--for", "7d", "--share", "100"), "--share 100: leaves one arm empty"),
        (("budgets", "--for", "7d", "--metric", "luck"), "metric 'luck': cannot decide an experiment"),
        (("status", "budgets"), "feature 'budgets': there was no experiment about it; holdfast release experiment"),
    ],
)
def test_a_bad_experiment_is_refused_before_anything_begins(
    experiment: Callable[..., Answer], store: Store, words: tuple[str, ...], message: str
) -> None:
    assert message in experiment(*words).refusal
    assert store.trials.all() == []


def test_a_feature_that_is_off_cannot_be_tried(experiment: Callable[..., Answer], cli: Cli, url: str) -> None:
    cli("flags", "init", "--store", url).done()
    cli("flags", "disable", "extendedThinking.enabled", "--store", url).done()
    said = experiment("budgets", "--for", "1d").refusal
    assert f"flag {BUDGETS}: needs extendedThinking.enabled, which is off; holdfast release flags enable" in said


def test_a_release_that_moves_while_it_runs_is_told(experiment: Callable[..., Answer], store: Store) -> None:
    line = Line(store, 2)
    experiment("budgets", "--for", "1h").done()
    assert experiment("status", "budgets", "--json").json["moved_releases"] == {}
    line.go(2, Stage.CANARY, 10)
    line.go(2, Stage.LIVE)
    assert experiment("status", "budgets", "--json").json["moved_releases"] == {POLICY: f"{POLICY}@2"}
    assert f"{POLICY}@1 was live when it began" in " ".join(experiment("status", "budgets").out.split())
