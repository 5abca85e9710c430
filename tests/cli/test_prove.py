"""`holdfast prove` and `release decide`: a comparison as a user calls it, more of it, and what the gate makes of it."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.release import _strict
from holdfast.contracts.evidence import Evidence
from holdfast.contracts.records import loads
from holdfast.contracts.run import RunState
from holdfast.pipeline.paired import episodes_of_run, shown_looks
from holdfast.policies.model import folder_of
from holdfast.promote.alpha_account import level
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Answer, At, Cli, ended, running, until
from tests.cli.test_improve import config, items

SUITE = Path(__file__).resolve().parents[2] / "examples/suites/tool-use-suite.json"
BOTH = ("--baseline", "tools@1", "--candidate", "tools@2")
DECIDE = ("release", "decide", "tools@2", "--run")


def of_tools(cli: Cli, at: At, live: str, candidate: str) -> At:
    """A line of two versions: one is live, the other a candidate."""
    for source in (live, candidate):
        cli("release", "add", source, "--policy", "tools", *at).done()
        if source == live:
            cli("release", "promote", "tools@1", *at).done()
    return at


def compared(cli: Cli, at: At, suite: object = "tooluse:4", *words: object) -> str:
    return cli("prove", "run", suite, *(words or BOTH), *at).done().lines[0].split()[0]


@pytest.fixture
def sprouts(cli: Cli, at: At) -> At:
    """Sprout-weak is live, and sprout a candidate."""
    return of_tools(cli, at, "sprout-weak", "sprout")


def joined(ran: Answer) -> str:
    """What was printed, without its line breaks."""
    return " ".join(ran.out.replace("\\\n", " ").split())


def test_a_better_version_is_proved_shown_again_and_decided_about(cli: Cli, sprouts: At) -> None:
    words = ("--baseline", "too@1", "--candidate", "tools@2", "--batch", 30, "--max-safety-regression", 0.9)
    ran = cli("prove", "run", "tooluse:60", *words, *sprouts).done()
    run, state = ran.lines[0].split()[:2]
    assert state.startswith("completed") and ran.lines[1] == "  tools@2 against tools@1"
    assert ran.page[3] == "PROMOTE: 60 tasks measured, 2 looks"
    rows = {line.rpartition("  ")[0].strip().partition("  ")[0]: line for line in ran.page}
    assert all(name in rows for name in ("success", "reward", "safety cost", "latency (s)", "tokens"))
    assert rows["success"].endswith("  better") and "below +0.9 " in rows["safety cost"]
    assert rows["safety cost"].endswith("  no worse")
    assert cli("prove", "show", run, *sprouts).done().lines == ran.lines
    told = cli("prove", "show", run, *sprouts, "--json").json
    assert told["proof"]["verdict"]["outcome"] == "promote" and told["proof"]["tasks"] == 60
    assert told["proof"]["comparisons"]["success"]["difference"] > 0.2
    assert [(look["look"], look["tasks"], "episodes" in look) for look in told["looks"]] == [
        (1, 30, False), (2, 60, False)
    ]  # fmt: skip
    following = [line for line in ran.out.partition("next:\n")[2].replace(" \\\n", " ").splitlines() if "#" not in line]
    decide, rollouts = (" ".join(shlex.split(line)) for line in following)
    assert decide == f"holdfast {' '.join(DECIDE)} {run} --untrained {' '.join(sprouts)}"
    cli(*shlex.split(rollouts)[1:]).done()

    closed = cli(*DECIDE, run, *sprouts)
    assert closed.code == 1 and "evidence_missing_audit" in closed.out  # what it learnt from was never looked at
    assert closed.lines[0].startswith("tools@2: refused; it stays candidate")
    assert "decide with --audit RUN, or --untrained" in joined(closed)
    decided = cli(*shlex.split(decide)[1:], "--json")
    codes = {reason["code"] for reason in decided.json["decision"]["reasons"]}
    blocked = {"checkpoint_promotion_blocked_seed_reproducibility", "checkpoint_promotion_blocked_sample_sensitivity"}
    assert codes == {"promotion_allowed"} or codes <= blocked  # 60 tasks are few for the documented bands
    assert decided.code == (0 if codes == {"promotion_allowed"} else 1)
    assert Path(decided.json["page"]).is_file() and Path(decided.json["proof"]).is_file()
    explained = cli("release", "explain", "tools@2", "--json", *sprouts).json
    assert explained["agrees"] and explained["decision"] == decided.json["decision"]


def test_a_version_against_itself_says_how_to_count_its_false_promotions(cli: Cli, at: At, weights: list[str]) -> None:
    ran = cli("prove", "run", "tooluse:4", "--baseline", weights[0], "--null", "--stop-early", *at).done()
    assert any("holdfast prove null run-1" in line for line in ran.lines)
    assert any("with other seeds the finding" in line for line in ran.lines)
    with open_store(at[1]) as store:
        (run,) = store.runs.newest(most=1)
        assert (run.settings["is_null"], run.settings["stop_early"]) == (True, True)
        assert [len(some) for some in episodes_of_run(store, run.id)] == [8, 8]
    assert "compares a version with itself" in cli("prove", "more", run.id, *at).refusal


def looks(store: Store) -> int:
    return sum(len(shown_looks(store, run.id)) for run in store.runs.newest(most=1))


def test_ctrl_c_stops_it_and_resume_goes_on(cli: Cli, at: At, store: Store, weights: list[str]) -> None:
    words = ("--baseline", weights[0], "--candidate", weights[1], "--batch", "4", "--workers", "2")
    with running("prove", "run", "tooluse:24", *words, *at) as child:
        until(lambda: looks(store), child)
        child.send_signal(signal.SIGINT)
        stopped = ended(child)
    assert stopped.code == 130 and "Traceback" not in stopped.err
    (run,) = store.runs.newest(most=1)
    assert run.state is RunState.CANCELLED
    written = f"  # go on where it stopped\n  holdfast prove run --resume {run.id} --store {at[1]}"
    assert written in stopped.out.replace(" \\\n   ", "")
    before = looks(store)
    told = cli("prove", "run", "--resume", run.id, *at, "--json").done().json
    assert 0 < before < len(told["looks"]) == 6 and told["proof"]["tasks"] == 24


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "SUITE: is missing"),
        (["tooluse:5"], "--baseline: is missing"),
        (["tooluse:5", "--baseline", "sprout"], "--candidate: is missing"),
        (["tooluse:5", "--baseline", "sprout", "--candidate", "sprout-weak", "--null"], "and --null were both given"),
        (["tooluse:5", "--resume", "run-1"], "--resume: a run keeps the suite"),
        (["tooluse:none", "--baseline", "sprout", "--null"], "is not tooluse:COUNT"),
        (["none.json", "--baseline", "sprout", "--null"], "suite none.json: cannot be read"),
        (["tooluse:5", "--baseline", "sprout", "--null", "--primary", "latency"], "primary = 'latency': has no range"),
        (["tooluse:5", "--baseline", "sprout", "--null", "--alpha", "2"], "alpha = 2.0: must be above 0"),
    ],
)
def test_what_is_missing_or_too_much_is_said_before_anything_runs(
    cli: Cli, nowhere: At, words: list[str], said: str
) -> None:
    assert said in cli("prove", "run", *words, *nowhere).refusal
    assert not Path(nowhere[1]).exists()


def test_versions_and_runs_that_cannot_be_compared_are_refused(cli: Cli, at: At, store: Store) -> None:
    for words, said in (
        (["--baseline", "oak", "--null"], "version 'oak': is no model of the package"),
        (["--baseline", "sprout", "--candidate", "sprout"], "is the same as baseline sprout"),
        (["--baseline", "sprout@7", "--null"], "sprout@7"),
    ):
        assert said in cli("prove", "run", "tooluse:5", *words, *at).refusal
    assert store.runs.newest() == []
    other = store.runs.begin(kind="quickstart", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result()
    for words in (["show", other.id], ["run", "--resume", other.id]):
        assert "is of the kind quickstart, and compares nothing" in cli("prove", *words, *at).refusal
    assert "run-9" in cli("prove", "show", "run-9", *at).refusal
    assert all(f"  {name} " in cli("prove", "--help").out for name in ("run", "show", "more", "calibrate", "null"))


# What the gate decides about


def test_what_was_measured_of_other_versions_decides_nothing(
    cli: Cli, sprouts: At, tmp_path: Path, weights: Any
) -> None:
    run = compared(cli, sprouts, "tooluse:4", "--baseline", weights[0], "--candidate", "sprout")
    told = cli(*DECIDE, run, *sprouts).refusal
    assert "measured" in told and "is not tools@1" in told and "prove run" in told
    copy = shutil.copytree(folder_of("sprout-weak"), tmp_path / "copy")
    cli("release", "add", copy, "--policy", "tools", *sprouts).done()
    null = compared(cli, sprouts, "tooluse:4", "--baseline", "sprout-weak", "--null")
    said = cli("release", "decide", "tools@3", "--run", null, "--untrained", *sprouts).refusal
    assert "is the same as tools@1" in said
    with open_store(sprouts[1]) as store:
        assert [entry.body.get("refuse") for entry in store.releases.history("tools")].count("tools@2") == 0


def test_a_test_is_charged_to_the_policy_of_its_candidate_and_decides_about_no_other(cli: Cli, sprouts: At) -> None:
    """Fault: where two policies had the same version live, the first by name paid, and either was decided about."""
    for source in ("sprout-weak", "sprout"):
        cli("release", "add", source, "--policy", "alike", *sprouts).done()
    cli("release", "promote", "alike@1", *sprouts).done()
    run = compared(cli, sprouts)
    with open_store(sprouts[1]) as store:
        assert [len(store.releases.charges(name)) for name in ("alike", "tools")] == [0, 1]
    said = cli("release", "decide", "alike@2", "--run", run, "--untrained", *sprouts).refusal
    assert "the α-account of policy tools, not to that of alike" in said and "measure it again" in said


def test_a_run_against_what_was_not_live_is_charged_after_all_that_were_measured_beside_it(cli: Cli, at: At) -> None:
    """Fault: of many runs before their baseline went live, the best one was decided about as the first candidate."""
    words = ("--baseline", "sprout-weak", "--candidate", "sprout")
    runs = [compared(cli, at, suite, *words) for suite in ("tooluse:2", "tooluse:2", "tooluse:2:7")]
    of_tools(cli, at, "sprout-weak", "sprout")
    assert cli(*DECIDE, runs[1], "--untrained", *at).code == 1
    with open_store(at[1]) as store:
        (entry,) = store.releases.charges("tools")
    assert (entry.body["run"], entry.body["number"]) == (runs[1], 2)  # the third has other tasks


def test_a_golden_of_another_version_or_a_rewritten_run_decides_nothing(cli: Cli, sprouts: At) -> None:
    run = compared(cli, sprouts)
    cli("golden", "record", "tooluse:2", "--version", "tools@1", "--name", "g", *sprouts).done()
    cli("golden", "replay", "g", "--version", "tools@1", *sprouts).done()
    told = cli(*DECIDE, run, "--untrained", "--golden", "g", *sprouts).refusal
    assert "its last replay is of tools@1" in told and "golden replay g --version tools@2" in told
    for words, said in (
        ((*DECIDE, run, "--golden", "../g"), "is no name"),
        (("release", "decide", "tools@1", "--run", "run-1"), "is live, not a candidate"),
        ((*DECIDE, "run-9"), "there is none"),
        ((*DECIDE, "r", "--to", "moon"), "is no stage ahead"),
    ):
        assert said in cli(*words, *sprouts).refusal
    with sqlite3.connect(sprouts[1]) as raw:
        raw.execute("DROP TRIGGER steps_update")
        raw.execute("UPDATE steps SET body = replace(body, '\"tasks\":4', '\"tasks\":5')")
    raw.close()
    ran = cli(*DECIDE, run, "--untrained", *sprouts)
    assert ran.code == 5 and f"step 3 of {run}" in ran.err


def test_a_run_that_was_weighed_loosely_is_decided_as_is_documented() -> None:
    loose = ComparisonConfig(alpha=0.3, max_safety_regression=0.9, seed_delta_spread=0.01)
    once = _strict(loose)
    assert once.alpha == 0.05
    assert (once.max_safety_regression, once.seed_delta_spread) == (0.05, 0.01)  # stricter may stay


# More of it: what is held gets more episodes, all runs count together, and the gate is asked again


@pytest.fixture(scope="module")
def was_held(tmp_path_factory: pytest.TempPathFactory, weights: tuple[str, str]) -> tuple[Path, str]:
    """A store in which nothing proves the candidate to be better, and the run that measured it."""
    cli, folder = Cli(), tmp_path_factory.mktemp("held") / "state"
    at = of_tools(cli, ("--store", str(folder / "s.sqlite")), *weights)
    run = compared(cli, at)
    decided = cli(*DECIDE, run, "--untrained", *at)
    assert decided.code == 1 and decided.lines[0].startswith("tools@2: held; it stays candidate")
    assert "holdfast prove more tools@2" in decided.out
    return folder, run


@pytest.fixture
def held(was_held: tuple[Path, str], tmp_path: Path, cli: Cli) -> tuple[At, str]:
    folder, run = was_held
    return ("--store", str(shutil.copytree(folder, tmp_path / "state") / "s.sqlite")), run


def evidence(at: At) -> tuple[Evidence, float]:
    """What the last decision rests on, and the error rate it was made by."""
    with open_store(at[1]) as store:
        found = loads(Evidence, store.blobs.get(str(store.releases.get("tools@2").evidence)))
        return found, json.loads(store.blobs.get(str(found.samples)))["weighing"]["alpha"]


def test_further_tasks_are_added_and_the_gate_decides_on_all_of_them(cli: Cli, held: tuple[At, str]) -> None:
    at, first = held
    ran = cli("prove", "more", "tools@2", "--json", *at)
    second = ran.json["run"]
    assert ran.code == 1 and second != first
    found, alpha = evidence(at)
    assert (found.episodes, found.missing, alpha) == (8, {"planned": 16, "baseline": 0, "candidate": 0}, level(0.05, 1))
    with open_store(at[1]) as store:
        (before, _), (_, both) = episodes_of_run(store, first), episodes_of_run(store, second)
        assert [one.task for one in both[:8]] == [one.task for one in before]  # order kept, the new ones after them
        assert len({(one.task, one.seed) for one in both}) == len(both) == 16
    shown = cli("prove", "show", second, *at)
    assert shown.lines[3] == "HOLD: 8 tasks measured, 2 looks"
    assert cli("prove", "run", "--resume", second, *at).lines[3] == shown.lines[3]  # what is done is read
    explained = cli("release", "explain", "tools@2", "--json", *at).done().json
    assert explained["agrees"] and len(explained["history"]) == 3  # registered, and decided about twice


def test_evidence_goes_on_at_its_end_and_nowhere_else(cli: Cli, held: tuple[At, str]) -> None:
    at, first = held
    assert cli("prove", "more", first, "--tasks", "tooluse:6", *at).code == 1  # the four of before are not done again
    assert evidence(at)[0].episodes == 6
    for words, said in (
        ((first, "--tasks", "tooluse:6"), "tooluse:6: has no task that is not measured yet"),
        ((first, "--seeds", 1, "--tasks", "f"), "and --seeds were both given"),
        (("tools@9",), "there is none"),
    ):
        assert said in cli("prove", "more", *words, *at).refusal
    assert cli("prove", "more", first, "--tasks", "tooluse:3:1", *at).code == 1  # other tasks under the same names
    assert evidence(at)[0].episodes == 9
    with open_store(at[1]) as store:
        other = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result()
    assert "is of the kind optimize, and compared nothing" in cli("prove", "more", other.id, *at).refusal


def test_further_seeds_are_another_test_with_an_alpha_of_its_own(cli: Cli, at: At, weights: tuple[str, str]) -> None:
    of_tools(cli, at, *weights)
    assert "nothing has measured it yet" in cli("prove", "more", "tools@2", *at).refusal
    run = compared(cli, at, SUITE)
    assert cli(*DECIDE, run, "--untrained", *at).code == 1
    assert cli("prove", "more", "tools@2", *at).code == 1  # a suite in a file has no further tasks
    found, alpha = evidence(at)
    assert (found.episodes, found.bands["seed"].of, alpha) == (2, 4, level(0.05, 2))
    assert cli("prove", "more", "tools@2", "--seeds", 1, *at).code == 1
    found, alpha = evidence(at)
    assert (found.bands["seed"].of, alpha) == (5, level(0.05, 3))
    with open_store(at[1]) as store:
        last = store.runs.newest(most=1)[0]
    assert cli(*DECIDE, last.id, "--untrained", *at).code == 1
    assert evidence(at)[1] == level(0.05, 3)  # however it is brought before the gate


def test_what_no_gate_has_decided_about_is_measured_and_shown(cli: Cli, at: At, weights: tuple[str, str]) -> None:
    run = compared(cli, of_tools(cli, at, *weights))
    assert f"holdfast prove more {run}" in joined(cli("prove", "show", run, *at))
    ran = cli("prove", "more", run, *at).done()
    assert ran.lines[3] == "HOLD: 8 tasks measured, 2 looks" and "holdfast release decide tools@2 --run" in joined(ran)


def lines(tasks: list[dict[str, Any]]) -> str:
    """As a file of tasks has them."""
    split = [({name: one[name] for name in one if name != "expected"}, one["expected"]) for one in tasks]
    return "\n".join(json.dumps({"input": given, "expected": expected}) for given, expected in split)


def test_a_candidate_that_improve_left_held_goes_on_with_tasks_from_a_file(cli: Cli, here: Path) -> None:
    at = ("--store", "s.db")
    words = ("--policy", "tools", "--model", "local/sprout-weak", *at)
    ran = cli("improve", config(here, stage="shadow"), *words).done()
    assert "holdfast prove more tools@2 --tasks FILE --store s.db" in ran.out
    run = ran.lines[0].split()[0]
    Path("more.jsonl").write_text(lines([*items("test", 5), items("val", 1)[0]]))
    assert cli("prove", "more", "tools@2", "--tasks", "more.jsonl", *at).code == 1
    found, _ = evidence(at)
    assert (found.episodes, found.baseline) == (9, "tools@1")  # one of them was measured before
    assert found.audit is not None  # what it learnt from was looked at by the run that made it
    assert cli("release", "explain", "tools@2", "--json", *at).json["agrees"]
    again = cli("prove", "run", "--resume", "run-2", *at).done()  # made from its settings; what is done is read
    assert again.lines[3] == "HOLD: 9 tasks measured, 3 looks"
    Path("learnt.jsonl").write_text(lines(items("train", 1)))
    assert "is one that it learnt from" in cli("prove", "more", run, "--tasks", "learnt.jsonl", *at).refusal
    alone = cli(*DECIDE, run, *at)  # a run of kind improve compared something, too
    assert alone.code == 1 and "population_below_minimum" in alone.out
    assert evidence(at)[0].episodes == 4


def test_a_plan_says_before_the_run_what_the_tasks_can_prove(cli: Cli, at: At, tmp_path: Path) -> None:
    plan = ("prove", "plan", *at)
    few = cli(*plan, "--tasks", 60, "--json")
    found = json.loads(few.out)
    assert few.code == 1 and found["safety_tasks"] == 80 and not found["is_provable"]
    assert found["alpha"] == pytest.approx(level(0.05, 1))  # what the account leaves to the first candidate
    asked = ("--tasks", 60, "--waive-safety", "a forecast", "--gain", 0.3, "--base-rate", 0.4)
    enough = json.loads(cli(*plan, *asked, "--json").out)
    assert enough["is_provable"] and enough["margin"] is None and enough["needed"][0]["gain"] == 0.3
    rows = [{"prompt": f"{n} + 1?", "expected": str(n + 1)} for n in range(90)]
    (tmp_path / "c.json").write_text(json.dumps({"optimize": ["?"], "validate": rows, "improve": {"policy": "sums"}}))
    told = cli(*plan, tmp_path / "c.json")
    assert told.code == 0 and "90 tasks, 2 tries each: a true gain of " in told.out and "cannot" not in told.out
    assert "--tasks: is missing" in cli(*plan).refusal


# The account, and live against its anchor


def test_the_account_shows_what_is_spent_and_what_the_next_candidate_gets(cli: Cli, held: tuple[At, str]) -> None:
    at, _ = held
    told = cli("release", "account", "--json", *at).done().json
    (one,) = told["sets"]
    assert (told["policy"], told["tests"], told["promoted"], one["tasks"]) == ("tools", 1, 0, 4)
    assert (one["spent"], one["next_alpha"]) == (pytest.approx(1 / 4), level(0.05, 2))
    assert told["bound"] == pytest.approx(level(0.05, 1)) and told["anchor"] is None and told["anchor_due"] is None
    shown = cli("release", "account", "tools", *at).done().out
    assert "1 candidate tested, 0 accepted" in shown and f"{level(0.05, 2):.2g}" in shown


def test_live_is_measured_against_its_anchor_and_an_alert_says_where_it_is_proved_worse(cli: Cli, sprouts: At) -> None:
    """tools@1 is the weak one, tools@2 the better: brought back, the weak one is worse than its anchor."""
    assert "is live, and its own anchor" in cli("prove", "anchor", *sprouts).refusal
    assert "no held-out tasks are known" in cli("prove", "anchor", "--against", "tools@2", *sprouts).refusal
    compared(cli, sprouts, "tooluse:40")
    ran = cli("prove", "anchor", "tools", "--against", "tools@2", *sprouts)
    said = " ".join(ran.err.split())
    assert ran.code == 1 and "proved worse than tools@2" in said and "release rollback tools --to tools@2" in said
    told = cli("release", "account", "--json", *sprouts).done().json
    assert (told["tests"], told["anchor"]["outcome"], told["anchor"]["against"]) == (1, "reject", "tools@2")
    assert told["anchor"]["alpha"] == level(0.05, 1)  # an α of its own
    with open_store(sprouts[1]) as store:
        (alert,) = store.alerts.standing()
        assert alert.code == "worse_than_anchor:tools"


def test_both_versions_draw_with_the_same_chance_in_the_model_itself(held: tuple[At, str]) -> None:
    """The first call of a task and a seed has the same random key in either arm, and another one elsewhere."""
    at, run = held
    with open_store(at[1]) as store:
        ids = [one.id for one in store.views.rollouts(run, most=100)]
        first = {one.rollout.partition("/")[2]: one.calls[0].sampling["seed"] for one in store.experiences.of(ids)}
    keys = {name.partition("-")[2]: seed for name, seed in first.items() if name.startswith("baseline")}
    assert keys == {name.partition("-")[2]: seed for name, seed in first.items() if name.startswith("candidate")}
    assert len(keys) == len(set(keys.values())) == 8
