"""`holdfast town`: a run that is kept, lived again and looked at; watching, learning and soaking; what is refused."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.options import StoreOptions
from holdfast.cli.town import NATURES, badges, check_writable, clock_time, town
from holdfast.cli.town_school import _again, _verdict, warn
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.policy import policy_record
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.pipeline.promote import Candidate, PromotionRequest, promote
from holdfast.policies.network import Scripted
from holdfast.promote.gate import Criteria
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Cli, ended, first_line, running, until
from tests.operate.stage import episodes
from tests.town.small import hamlet

FEW = ("--residents", "12")


def test_a_run_is_kept_and_lived_again_bit_by_bit(cli: Cli, tmp_path: Path) -> None:
    kept = [("--save", tmp_path / "a.npz"), ("--replay", tmp_path / "a.replay"), ("--record", tmp_path / "a.frames")]
    ran = cli("town", "run", "--days", 0.1, *FEW, "--seed", 7, "--json", *(word for pair in kept for word in pair))
    assert ran.code == 0 and ran.json["tick"] == 144 and ran.json["kpis"]["residents"] == 12
    again = cli("town", "replay", tmp_path / "a.replay", *FEW, "--json")
    assert again.code == 0 and again.json["same"] is True and again.json["state"] == ran.json["state"]
    on = cli("town", "run", "--days", 0.1, *FEW, "--from", tmp_path / "a.npz", "--json")
    whole = cli("town", "run", "--days", 0.2, *FEW, "--seed", 7, "--json")
    assert on.json["state"] == whole.json["state"] and on.json["tick"] == 288
    for name, kind, tick in (
        ("a.npz", "snapshot", "tick"),
        ("a.replay", "replay", "ticks"),
        ("a.frames", "recording", "last_tick"),
    ):
        told = cli("town", "inspect", tmp_path / name, "--json")
        assert told.json["kind"] == kind and told.json[tick] == 144
        assert kind in cli("town", "inspect", tmp_path / name).lines[1]
    frame = cli("town", "replay", tmp_path / "a.frames", "--tick", 100, "--json").json
    assert frame["key"] and frame["tick"] == 100


def test_a_run_that_ends_otherwise_is_told_by_its_exit_code(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a"
    cli("town", "run", "--days", 0.01, *FEW, "--replay", file)
    file.write_text(re.sub(r'"state": "\w', '"state": "x', file.read_text()))
    ran = cli("town", "replay", file, *FEW)
    assert ran.code == 1 and ran.lines == ["14 ticks, 0 commands: NOT the same"]


def test_a_run_tells_how_the_town_did(cli: Cli) -> None:
    ran = cli("town", "run", "--days", 0.05, *FEW)
    assert ran.code == 0 and ran.lines[-2] == "healthy" and ran.lines[-1].endswith("after 72 ticks")
    assert ["alive", "100", "%"] in [line.split() for line in ran.lines]
    assert any(line.startswith("needs met") for line in ran.lines) and max(map(len, ran.lines)) <= 80


def test_behind_a_veil_the_recording_names_nobody(cli: Cli, tmp_path: Path) -> None:
    cli("town", "run", "--days", 0.1, *FEW, "--privacy", "--record", tmp_path / "a")
    text = (tmp_path / "a").read_text()
    assert '"Ada"' not in text and "R-" in text and '"seed"' not in text
    assert cli("town", "inspect", tmp_path / "a", "--json").json["private"] is True


def test_stages_wait_for_green_windows_or_for_a_reason(cli: Cli, tmp_path: Path) -> None:
    log = ("--stages", tmp_path / "stages.jsonl")
    first = cli("town", "run", "--days", 1, *FEW, *log, "--json")
    assert first.json["stages"] == ["needs"] and len(first.json["windows"]) == 2
    is_green = all(not window["faults"] for window in first.json["windows"])
    second = cli("town", "run", "--days", 0.01, *FEW, *log, "--json")
    assert second.json["stages"] == (["needs", "work"] if is_green else ["needs"])
    third = cli("town", "run", "--days", 0.01, *FEW, *log, "--unlock", "ties", "--why", "to see", "--json")
    assert third.json["stages"] == ["needs", "work", "ties"]
    for words, message in ((("--unlock", "ties"), "takes a reason"), (("--unlock", "x", "--why", "y"), "is unknown")):
        refused = cli("town", "run", *log, *words)
        assert refused.code == 2 and message in refused.err
    assert "give --stages FILE" in cli("town", "run", "--unlock", "ties").err


def test_validate_lists_everything_that_is_wrong(cli: Cli, tmp_path: Path) -> None:
    assert cli("town", "validate").lines[0].startswith("the rules are whole: ")
    bad = tmp_path / "bad.toml"
    bad.write_text("residents = 0\n[needs]\nhunger = { decay = -1, weight = 1, low = 0.4 }\n")
    told = cli("town", "validate", bad)
    assert told.code == 1 and len(told.lines) >= 2 and all(";" in line for line in told.lines)
    assert cli("town", "validate", bad, "--json").json["valid"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run --rules none.toml", "none.toml"),
        ("run --save nowhere/a.npz", "nowhere/a.npz: its folder does not exist; make it first"),
        ("run --from none.npz", "No such file"),
        ("replay none", "none: No such file"),
        ("inspect none", "none: No such file"),
        ("watch --web --host 0.0.0.0", "everyone who reaches this machine could watch; set HOLDFAST_TOWN_TOKEN"),
        ("watch --web --operator short", "--operator: everybody on this machine can read a command line (ps)"),
        ("soak --ticks 1000 --report none/soak.md", "its folder does not exist"),
        ("watch --port 9", "--port 9: belongs to the page; add --web"),
        ("watch --host 0.0.0.0", "--host 0.0.0.0: belongs to the page; add --web"),
        ("watch --web --ticks 9", "--ticks: a page is served until Ctrl-C; leave out --ticks or --web"),
        ("watch --policy live", "there is none; check the path; 'holdfast town school' creates one"),
        ("league", "there is none; check the path; 'holdfast town school' creates one"),
        ("school --name=", "--name '': must not be blank, nor begin or end with a blank; give it a plain name"),
        ("school --name a@b", "--name 'a@b': '@' comes before the number of a release; give it a plain name"),
        ("balance --residents 1", "residents = 1: too few for every nature"),
        (
            "run --profile nosuch",
            "personalities.nosuch: there is no such profile; there are quiet, outgoing, ambitious",
        ),
        ("run --observation odd", "observation 'odd': is unknown; use compact, recall, hybrid, full"),
        ("bench --observation odd", "observation 'odd': is unknown; use compact, recall, hybrid, full"),
        ("school --observation odd", "observation 'odd': is unknown; use compact, recall, hybrid, full"),
        ("stages --log none.jsonl", "--log none.jsonl: there is no such file; --earn FILE makes one"),
        ("stages --earn none/a.jsonl", "its folder does not exist"),
        ("prune nowhere", "nowhere: is no folder; name one that is there"),
        ("prune --store none.db", "there is none"),
        ("run --no-guard", "--no-guard: only what is live is guarded; add --policy live, or leave it out"),
        ("school --stage next", "--stage next: is no such stage; use candidate, shadow, canary or live"),
        ("audit", "there is none; check the path; 'holdfast town school' creates one"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(words: str, message: str, cli: Cli, here: Path) -> None:
    assert message in cli("town", *words.split()).refusal


def test_only_a_town_that_is_not_compiled_yet_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_cold, said in ((False, ""), (True, "compiling the rules of the town, once")):
        monkeypatch.setattr("holdfast.workloads.townlife.is_cold", lambda is_cold=is_cold: is_cold)
        warn()
        assert capsys.readouterr().err.startswith(said)
    check_writable(None, Path("a"))


def test_orders_are_listed_with_their_roles(cli: Cli) -> None:
    told = cli("town", "commands")
    assert any(line.startswith("rain") and "operator" in line for line in told.lines)
    assert {one["name"] for one in cli("town", "commands", "--json").json} >= {"rain", "kill", "inspect"}


def test_contracts_of_observation_are_shown_and_chosen(cli: Cli) -> None:
    found = {one["variant"]: one for one in cli("town", "observations", "--json").json}
    assert list(found) == ["compact", "recall", "hybrid", "full"] and found["compact"]["channels"] == []
    for one in found.values():
        end = list(one["groups"].values())[-1][1]
        assert one["numbers"] == len(one["features"]) + 121 * len(one["channels"]) == end
    assert "recall (usual)" in cli("town", "observations").out
    words = ("town", "run", "--days", 0.02, *FEW, "--json")
    seen = {name: cli(*words, "--observation", name).json for name in ("compact", "full")}
    ids = {one["variant"]: one["id"] for one in cli("town", "observations", *FEW, "--json").json}
    assert {name: one["observation"] for name, one in seen.items()} == {name: ids[name] for name in seen}
    assert seen["compact"]["state"] == seen["full"]["state"] == cli(*words).json["state"]  # looking changes nothing
    assert cli("town", "bench", "--worlds", 1, "--ticks", 3, "--observation", "hybrid", "--json").json["ticks"] == 3


HOOKS_FILE = """
def closed(call):
    "Never on a morning."
    return call.hour >= 12

def broken(call):
    raise KeyError("oh")
"""


def test_hooks_of_a_users_own_are_listed_used_and_told_of_where_they_break(cli: Cli, here: Path) -> None:
    (here / "my_town.py").write_text(HOOKS_FILE)
    rules = here / "hooked.toml"
    rules.write_text('[hooks.shower]\nbefore = ["my_town.py:closed"]\n[hooks.buy]\nafter = ["cheer"]\n')
    table = cli("town", "hooks", "--rules", rules, "--json").json
    used = [(one["affordance"], one["stage"], one["hook"]) for one in table if one["affordance"]]
    assert ("shower", "before", "my_town.py:closed") in used and ("buy", "after", "cheer") in used
    assert {"in_company", "disappoint", "move_on"} <= {one["hook"] for one in table}
    words = ("town", "run", "--days", 0.4, *FEW, "--json")
    first, again, plain = (cli(*words, "--rules", rules), cli(*words, "--rules", rules), cli(*words))
    assert first.json["state"] == again.json["state"] != plain.json["state"]
    rules.write_text('[hooks.sleep]\nfail = ["my_town.py:broken"]\nafter = ["my_town.py:broken"]\n')
    failed = cli(*words[:-1], "--rules", rules)
    assert failed.code == 2 and "hook my_town.py:broken (" in failed.err and "raised KeyError: 'oh'" in failed.err
    rules.write_text('[hooks.sleep]\nafter = ["my_town.py:nothing"]\n')
    assert "hooks.after: 'my_town.py:nothing': my_town.py has no nothing; it has: closed, broken" in " ".join(
        cli("town", "validate", rules).out.split()
    )


def test_a_profile_is_another_mix_of_natures_and_another_town(cli: Cli, tmp_path: Path) -> None:
    words = ("town", "run", "--days", 0.05, "--json")
    usual, quiet = cli(*words).json, cli(*words, "--profile", "quiet", "--replay", tmp_path / "a").json
    assert usual["rules"] != quiet["rules"] and usual["state"] != quiet["state"]
    assert cli("town", "replay", tmp_path / "a", "--profile", "quiet", "--json").json["same"] is True
    own = tmp_path / "own.toml"
    own.write_text("[personalities.quiet]\nstoic = 1.0\n")  # takes the place of ours of that name
    told = cli("town", "balance", "--towns", 3, *FEW, "--rules", own, "--profile", "quiet", "--json").json
    assert list(told["natures"]) == ["stoic"] and told["balanced"]
    assert set(told["natures"]["stoic"]["kpis"]) == set(told["targets"]) == {
        "needs_met", "starving", "attendance", "exits",
    }  # fmt: skip


def test_words_that_are_never_said(cli: Cli, tmp_path: Path) -> None:
    assert re.match(r"(\d+) of \1 phrases may be said", cli("town", "words").out)
    assert cli("town", "words", "They fought all night.").code == 1
    assert cli("town", "words", "They talked all night.").code == 0
    own = tmp_path / "own.toml"
    own.write_text('[talk]\nnever = ["hat", "rain*"]\n')
    told = cli("town", "words", "--rules", own, "--json").json
    assert {one["text"] for one in told["refused"]} == {
        "I like your hat.", "Rain later, I think.", "It begins to rain.", "The rain stops.",
    }  # fmt: skip
    words = ("town", "run", "--days", 0.05, *FEW, "--json")
    assert cli(*words, "--rules", own).json["state"] == cli(*words).json["state"]  # words are no part of the world


def test_stages_are_on_by_the_shipped_log_and_can_be_earned_by_other_rules(cli: Cli, rules: Path, here: Path) -> None:
    shown = cli("town", "stages")
    assert [line.split()[1] for line in shown.lines[1:]] == ["yes"] * 7
    earned = cli("town", "stages", "--earn", here / "own.jsonl", "--rules", rules, "--json")
    told = earned.json["stages"]
    assert told[0]["allowed"] and earned.code == int(not told[-1]["allowed"])
    ran = cli("town", "run", "--days", 1, "--rules", rules, "--stages", here / "own.jsonl", "--json")
    assert ran.json["stages"] == [one["stage"] for one in told if one["allowed"]]
    again = cli("town", "stages", "--earn", here / "own.jsonl", "--rules", rules)
    assert again.code == 2 and "is there already" in again.err


def test_what_is_too_old_is_listed_and_with_yes_removed(cli: Cli, here: Path) -> None:
    cli("town", "run", "--days", 0.01, *FEW, "--save", here / "a.npz", "--record", here / "a.frames")
    os.utime(here / "a.frames", (1.0, 1.0))
    listed = cli("town", "prune", here)
    assert "a.frames" in listed.out and "a.npz" not in listed.out and listed.lines[-1].startswith("would go")
    assert (here / "a.frames").exists()
    removed = cli("town", "prune", here, "--yes", "--json").json
    assert [one["kind"] for one in removed["found"]] == ["recording"] and removed["removed"]
    assert not (here / "a.frames").exists() and (here / "a.npz").exists()
    assert cli("town", "prune", here).lines == ["nothing is older than it is kept"]


def test_bench_and_soak_tell_metrics_and_write_a_page(cli: Cli, tmp_path: Path) -> None:
    assert cli("town", "bench", "--worlds", 2, "--ticks", 5, "--json").json["agent_steps_per_s"] > 0
    soaked = cli("town", "soak", "--ticks", 1000, "--report", tmp_path / "soak.md", "--json").done().json
    assert soaked["ticks"] == 1000 and soaked["lost_events"] == 0
    assert len(soaked["looks"]) == 20 and soaked["looks"][-1]["memory_mb"] > 10
    page = (tmp_path / "soak.md").read_text()
    assert "`holdfast town soak --ticks 1000 --seed 1`" in page and soaked["looks"][-1]["state"] in page


def test_watching_writes_windows_to_the_log_of_stages_as_a_run_does(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "stages.jsonl"
    cli("town", "watch", "--ticks", 1441, *FEW, "--stages", log)
    kept = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["what"], one["stage"]) for one in kept] == [("window", "needs")] * 2
    ran = cli("town", "run", "--days", 0.01, *FEW, "--stages", log, "--json")
    assert ran.json["stages"] == (["needs", "work"] if all(one["green"] for one in kept) else ["needs"])
    assert "give --stages FILE" in cli("town", "watch", "--unlock", "ties").err


# Learning


def test_balance_says_why_its_exit_code_is_what_it_is(cli: Cli) -> None:
    words = ("town", "balance", "--towns", 3, *FEW)
    ran, told = cli(*words), cli(*words, "--json").json
    out = {name: one["from_mean"] for name, one in told["natures"].items() if abs(one["from_mean"]) > 0.1}
    assert ran.code == int(bool(out or told["missed"])) and bool(out) == (not told["balanced"])
    if out:
        said, _, _ = " ".join(ran.out.partition("not balanced: ")[2].split()).partition(" (limit 10 % of the mean)")
        assert all(name in said for name in out)
    else:
        assert "balanced: every nature within 10 % of the mean" in ran.lines
    assert ran.lines[-1] == "every nature meets its targets" or "targets missed: " in ran.out
    few = cli("town", "balance", "--towns", 2)
    assert few.code == 2 and "--towns" in few.err
    assert _verdict({}, 0.1) == "balanced: every nature within 10 % of the mean"
    assert _verdict({"industrious": -0.186}, 0.1).startswith("not balanced: industrious -18.6 % (limit")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A hamlet whose days are short: so are its exams."""
    return hamlet(tmp_path)


def test_a_school_in_a_changed_town_is_refused_until_the_change_is_signed(cli: Cli, rules: Path, here: Path) -> None:
    at = ("--store", here / "s.db")
    first = cli("town", "golden", "--rules", rules, *at)
    assert first.code == 0 and first.lines[0].startswith("town-4 ") and " recorded: 2 towns" in " ".join(first.lines)
    assert cli("town", "golden", "--rules", rules, *at).code == 0
    rules.write_text(rules.read_text() + "[rewards]\nalive = 0.006\n")
    changed = cli("town", "golden", "--rules", rules, *at, "--json")
    assert changed.code == 1 and [one["name"] for one in changed.json["findings"] if one["count"]] == ["reward_hash"]
    refused = cli("town", "school", "--quick", "--rules", rules, *at)
    said = " ".join(refused.err.split())
    assert refused.code == 2 and f"holdfast prove golden sign town-4 --why WHY --store {here / 's.db'}" in said
    assert cli("run", "list", *at, "--json").json == []  # refused before any work
    assert cli("prove", "golden", "sign", "town-4", "--why", "being there is worth more", *at).code == 0
    assert cli("town", "golden", "--rules", rules, *at).code == 0
    again = cli("prove", "golden", "replay", "town-4", "--version", "town@1", *at)
    assert again.code == 2 and "'holdfast town golden' lives it again" in " ".join(again.err.split())


def test_a_school_that_is_killed_goes_on_by_the_same_command(cli: Cli, rules: Path, here: Path) -> None:
    words = ("town", "school", "--quick", "--rules", rules, "--seed", 3, "--store", here / "s.db")
    with running(*words) as taught:
        until(lambda: list(here.glob("checkpoints/*/manifest.json")), taught)
        taught.kill()
        taught.wait(timeout=60)
    ran = cli(*words, "--json")
    assert ran.code == 0  # a hamlet and a short course prove nothing, and need not
    told = ran.json
    assert told["status"]["run_state"] == "completed" and told["run"].startswith("run-1-")
    assert 0 < told["bc_accuracy"] <= 1 and told["demonstrations"] > 0 and told["anneal"]["windows"]
    assert (told["why"] is None) == (told["decision"] is not None)
    words_of_audit = ("town", "audit", "--rules", rules, "--store", here / "s.db")
    audit = cli(*words_of_audit, "--json")
    assert audit.code == 0 and audit.json["run"] == told["run"] and audit.json["passed"]
    assert sum(one["coverage"]["rows"] for one in audit.json["sets"]) == told["demonstrations"]
    assert sum(audit.json["coverage"]["nature"].values()) == told["demonstrations"]
    assert cli(*words_of_audit).lines[-1] == "nothing is wrong with them"
    file = next(here.glob("checkpoints/*/demonstrations/*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    damaged = cli(*words_of_audit, told["run"])
    assert damaged.code == 1 and damaged.lines[-1] == "1 checks failed" and "is damaged" in " ".join(damaged.lines)
    assert "give the --rules and --residents" in " ".join(cli("town", "audit", "--store", here / "s.db").err.split())
    again = cli("town", "learn", *words[2:])  # the former name; what is finished begins anew
    lines = again.lines
    if any(line.endswith(": held") for line in lines):  # every reason stands under its code
        place = next(k for k, line in enumerate(lines) if line.endswith(": held"))
        reasons = lines[place + 1 : lines.index("next:")]
        assert reasons and all(re.match(r"  \w+$|    \S", line) for line in reasons)
    assert lines[0].startswith("run-2-") and any(line.strip().startswith("clone") for line in lines)


def test_a_town_follows_what_is_live_and_without_it_lives_by_scripts(cli: Cli, here: Path) -> None:
    with open_store(here / "s.db", create=True):
        pass
    words = ("town", "run", "--days", 0.05, *FEW, "--json")
    followed = cli(*words, "--policy", "live", "--store", here / "s.db")
    assert followed.code == 0 and followed.json["state"] == cli(*words).json["state"]


def test_a_promoted_canary_drives_residents_and_its_guard_is_shown_as_any_other(cli: Cli, here: Path) -> None:
    at = ("--store", here / "s.db")
    with open_store(here / "s.db", create=True) as store:
        accepted_in_towns(store, Scripted(env="town"), Scripted(env="town-b"))
    moved = cli("release", "promote", "town@2", "--to", "canary", "--share", 50, *at)
    assert moved.code == 0 and moved.lines[0] == "town@2 is canary now, with 50 %"
    assert any("holdfast town run --policy live" in line for line in moved.lines)
    early = cli("release", "promote", "town@2", *at)
    assert early.code == 1 and "no resident has lived a day by it yet" in " ".join(early.out.split())
    words = ("town", "run", "--days", 1, *FEW, "--policy", "live", *at)
    ran = cli(*words, "--json")
    told = ran.json["rollout"]
    assert ran.code == 0 and (told["live"], told["canary"], told["share"]) == ("town@1", "town@2", 50)
    assert sum(told["residents"].values()) == 12 and told["residents"]["town@2"] > 0 and told["moves"] == []
    assert {one["metric"]: one["state"] for one in told["guard"]["readings"]} == {"success": "open", "reward": "open"}
    shown = cli("release", "show", "town@2", *at, "--json").json["guard"]
    assert shown["beside"] == "town@1" and shown["readings"]["reward"]["n"] > 0
    lines = cli(*words, "--seed", 2, "--no-guard").lines
    assert any(line.startswith("canary town@2 with 50 %; residents: ") for line in lines)
    assert cli("release", "rollback", "town", *at).code == 0
    assert "rollout" not in cli(*words, "--json").json


def accepted_in_towns(store: Store, live: Scripted, candidate: Scripted) -> None:
    """Two versions of the line: the first is live, and a gate has accepted the second against it."""
    asked = Candidate(
        run="run-1-ab12",
        policy="town",
        kind=PolicyKind.NETWORK,
        suite=("town", "1", "3f2a" * 16),
        baseline=live.source,
        candidate=candidate.source,
        baseline_manifest={"policy": policy_record(live)},
        manifest={"policy": policy_record(candidate)},
        before=episodes(0.3),
        after=episodes(1.0),
        planned=len(episodes(1.0)),
        audit=(Finding(name="demonstrations_possible", severity="error", count=0, of=200),),
    )
    how: dict[str, Any] = {"how": ComparisonConfig(), "criteria": Criteria(), "reports": store.reports, "now": 50.0}
    store.releases.add(
        policy="town", kind=PolicyKind.NETWORK, source=live.source, manifest=asked.baseline_manifest, who="me", now=1.0
    ).result()
    first: dict[str, Any] = {"expect": Stage.CANDIDATE, "who": "me", "why": "the first", "now": 2.0}
    store.releases.move("town@1", Stage.LIVE, known_good=True, **first).result()
    request = PromotionRequest(candidate=asked, **how, to=None)
    assert asyncio.run(promote(store, request, clock=lambda: 50.0, who="loop"))["release"] == "town@2"


def test_the_command_that_goes_on_can_be_pasted() -> None:
    said = _again(3, True, Path("my rules.toml"), None, "a b", StoreOptions("s.db"), {"--stage": "canary"})
    words = ["--seed", "3", "--quick", "--rules", "my rules.toml", "--name", "a b", "--stage", "canary"]
    words += ["--store", "s.db"]
    assert shlex.split(said) == ["holdfast", "town", "school", *words]


# Watching: lines where there is no terminal, Ctrl-C where there is one, and a page until it is told to end


def test_watching_without_a_terminal_prints_what_happens(cli: Cli) -> None:
    told = cli("town", "watch", "--ticks", 300, *FEW)
    assert told.code == 0 and all(re.match(r"day 1, \d\d:\d\d  \w", line) for line in told.lines) and told.lines


def test_ctrl_c_ends_watching_and_leaves_the_terminal_as_it_was() -> None:
    child, screen = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="26")
        words = ["-m", "holdfast.cli", "town", "watch", "--residents", "12", "--speed", "30"]
        os.execv(sys.executable, [sys.executable, *words])
    seen, until, again = b"", time.monotonic() + 300, 0.0
    while time.monotonic() < until:
        if not select.select([screen], [], [], 0.5)[0]:
            continue
        try:
            seen += os.read(screen, 65536)
        except OSError:  # the other side is closed
            break
        if time.monotonic() > again and "▀".encode() in seen and b"harbour" in seen:
            again = time.monotonic() + 20  # a terminal that is just being set up may lose what is typed
            os.write(screen, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (
        seen.rstrip().endswith(b"the town goes on without you") and b"\x1b[?1049l" in seen and b"Traceback" not in seen
    )


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_it_is_told_to_end(with_signal: signal.Signals, tmp_path: Path) -> None:
    words = ("--web", "--port", "0", *FEW, "--audit", tmp_path / "audit.jsonl")
    with running("town", "watch", *words, env=os.environ | {"TMPDIR": str(tmp_path)}) as served:
        address = re.match(r"town at (http://127\.0\.0\.1:\d+/)", first_line(served))
        assert address is not None and "#token=" not in first_line(served)
        assert f"{address[1]}#token=" in (tmp_path / "operator-link").read_text()
        with urllib.request.urlopen(f"{address[1]}status", timeout=60) as answer:
            assert json.load(answer)["role"] == "viewer"
        served.send_signal(with_signal)
        ran = ended(served)
    assert ran.code in (130, 143, -with_signal, 0) and "Traceback" not in ran.err
    assert not list(tmp_path.glob("town-*"))  # its recording went with it


def test_a_badge_is_made_up_where_none_is_given() -> None:
    none: dict[str, str | None] = {"viewer": None, "operator": None, "admin": None}
    found, link = badges(none)
    assert [(one.role, one.token) for one in found] == [("operator", link)] and len(link) >= 20
    found, link = badges(none | {"viewer": "viewer-token" * 2, "admin": "admin-token" * 2})
    assert [one.role for one in found] == ["viewer", "admin"] and link == "admin-token" * 2
    with pytest.raises(BadInput):
        badges(none | {"admin": "x"})


# The town in 80 columns: who is where, in colour and without, and what is told beside it

LEGEND: dict[str, Any] = {
    "town": "hamlet", "day": 1440, "width": 6, "height": 4,
    "glyphs": "######" + "#_b_+=" + '#_"__=' + "######",
    "legend": {"walls": "#", "doors": "+", "ground": '._="', "entry": "=", "objects": {"b": "bed"}},
    "needs": ["hunger", "energy"], "troubles": ["rain", "festival"],
}  # fmt: skip
FRAME: dict[str, Any] = {
    "tick": 1440 + 605, "at": [7, 15, -1], "nature": [0, 1, 0], "needs": [255, 0, 127, 255, 0, 0],
    "until": [9999, 0], "kpis": {"alive": 0.5, "chats": None},
}  # fmt: skip


def shown(**how: Any) -> str:
    console = Console(file=io.StringIO(), width=80, color_system="truecolor" if how.get("is_coloured", True) else None,
                      force_terminal=True, highlight=False)  # fmt: skip
    console.print(town(LEGEND, FRAME, **how))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_two_tiles_are_one_character_in_the_colours_of_who_stands_there() -> None:
    text = shown()
    assert text.count("▀") == 6 * 2
    for colour in NATURES[:2]:
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        assert f"{red};{green};{blue}" in text


def test_without_colours_the_one_who_tells_more_is_seen() -> None:
    lines = [line[:6] for line in shown(is_coloured=False).splitlines()]
    assert lines == ["#@o###", "###@##"]


def test_time_troubles_and_needs_are_told() -> None:
    lines = [line[7:].rstrip() for line in shown(is_coloured=False).splitlines()]
    assert lines == ["hamlet · day 2, 10:05", "rain"]  # of a map of two rows, no more than that
    tall = LEGEND | {"height": 40, "glyphs": LEGEND["glyphs"] * 10}
    console = Console(file=io.StringIO(), width=80, color_system=None)
    news = [{"tick": 1440 + 600, "text": "Ada and Ben have a very good and quite long talk."}]
    console.print(town(tall, FRAME, news=news, alerts=["exits"], state="8×", is_coloured=False))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "8×, rain" in text and "! exits" in text and "10:00 Ada and Ben have a very" in text
    assert "hunger   ━━━━━━━━━╌╌╌  75%" in text  # of the two who are there
    assert "here                   50%" in text and "talks a day              -" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("tick", "words"), [(0, "day 1, 00:00"), (1439, "day 1, 23:59"), (1440 * 9 + 61, "day 10, 01:01")]
)
def test_a_tick_has_a_day_and_a_time(tick: int, words: str) -> None:
    assert clock_time(LEGEND, tick) == words
