"""`holdfast release …`: versions are listed, explained, promoted and taken back; a refusal is exit code 1 and kept."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.release import decision_lines, headline, into_service, outcome, reason_lines
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.promote.release import UNDECIDED
from holdfast.store.store import Store
from tests.cli.conftest import Answer, Cli, Group
from tests.operate.stage import POLICY, Line, proposed
from tests.operate.test_canary_controller import GOOD, play

COMMANDS = ["list", "add", "retry", "decide", "show", "history", "explain", "promote", "rollback", "serve"]


class Releases(Group):
    """What it says fits 80 columns, and an error one line."""

    def __call__(self, *words: object) -> Answer:
        ran = super().__call__(*words)
        assert ("--json" in words or ran.page is not None) and len(ran.err.splitlines()) <= 1, ran
        return ran

    def fails(self, code: int, *words: object) -> str:
        ran = self(*words)
        assert (ran.code, ran.out) == (code, "")
        return ran.err.removeprefix("holdfast: error: ").rstrip("\n")


@pytest.fixture
def release(cli: Cli, url: str) -> Releases:
    return Releases(cli, "release", url)


def test_every_command_explains_itself_whole_and_needs_neither_torch_nor_a_server(cli: Cli) -> None:
    listed = cli("release", "--help").lines
    for command in COMMANDS:
        assert cli("release", command, "--help").done().page[0].startswith(f"Usage: holdfast release {command}")
        (line,) = [line for line in listed if line.startswith(f"  {command} ")]
        assert line.endswith(".") and not line.endswith("...")  # whole
    code = (
        "import sys; sys.argv = ['holdfast', 'release', 'serve', '--help']\n"
        "from holdfast.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'starlette', 'numpy', 'sqlalchemy'} & set(sys.modules), sys.modules.keys()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_line_begins_with_a_version_that_goes_live_and_ends_where_a_proof_is_missing(
    release: Releases, store: Store
) -> None:
    assert release("list").out.startswith("no versions in project default; ")
    assert release("list", "--json").json == []
    assert release.says("add", "sprout-weak", "--policy", "sprout") == "sprout@1: candidate, shelf:sprout-weak"
    moved = release.says("promote", "sprout@1", "--why", "first")
    assert moved.startswith("sprout@1 is live now, with 100 %\nnext:\n  holdfast release serve sprout")
    added = release("add", "sprout", "--policy", "sprout", "--parent", "sprout@1", "--json").json
    assert (added["id"], added["parent"], added["stage"]) == ("sprout@2", "sprout@1", "candidate")
    assert len(added["manifest"]["sha256"]) == 64
    assert release("add", "sprout", "--policy", "sprout", "--json").json["id"] == "sprout@2"  # it is there already
    refused = release("promote", "sprout@2")
    assert (refused.code, refused.err) == (1, "")
    assert refused.lines[0] == "sprout@2: refused; it stays candidate"
    assert "  codes: evidence_missing_all" in refused.lines[2:]
    assert release("promote", "sprout@2", "--json").json["decision"]["open"] is False
    rows = [line.split() for line in release("list").lines]
    assert " ".join(rows[-1]).startswith("known good: ")
    assert [row[:2] for row in rows[:3]] == [["version", "stage"], ["sprout@2", "candidate"], ["sprout@1", "live"]]
    assert rows[2][2:5] == ["100", "%", "yes"] and rows[1][-1] == "shelf:sprout"
    assert [one["id"] for one in release("list", "--json").json] == ["sprout@2", "sprout@1"]
    entries = store.releases.history("sprout")
    assert [next(iter(one.body)) for one in entries] == ["add", "move", "add", "refuse", "refuse"]
    assert {one.who for one in entries} == {"ann"}
    history = release("history").out
    assert "sprout@2 was refused" in history and "sprout@1 went from candidate to live, by ann\n" in history
    assert "against; first\n" in history and len(release("history", "--json").json) == 5  # its --why
    release.says("add", "sprout", "--policy", policy := "a-rather-long-name-of-a-policy-that-somebody-gave-it")
    assert release("list", policy).lines[0] == f"{policy}@1"  # ids are never cut


def test_show_and_promote_follow_a_version_from_canary_to_live(release: Releases, store: Store) -> None:
    line = Line(store, 2)
    asyncio.run(proposed(store, to=Stage.CANARY))
    assert any(line.startswith("  decision promoted (") for line in release("show", "sprout@2").lines)
    assert release("show", "sprout@2", "--json").json["decision"]["open"]
    held = release("promote", "sprout@2")
    assert held.code == 1 and held.lines[0] == "sprout@2: held; it stays canary"
    assert "  codes: guard_undecided" in held.lines
    assert "  errors: no answers yet" in held.lines and "open" not in held.out.replace(release.url, "")
    assert "guard    success     undecided" in release("show", "sprout@2").out
    assert "sprout@2 was held" in release("history").out
    play(line, GOOD)
    shown = release.says("show", "sprout@2").splitlines()
    assert shown[0] == "sprout@2: canary with 5 %"
    assert shown[1].startswith("  since    ")
    assert "  evidence: 100 tasks of small@1 3f2a3f2a3f2a, against sprout@1 (at 95 %)" in shown
    assert any(line.startswith("  guard    success     clear") for line in shown)
    assert any(line.startswith("    success     +0.700 better (") for line in shown)
    answer = release("show", "sprout@2", "--json").json
    assert answer["release"]["share"] == 5 and answer["evidence"]["candidate"] == "sprout@2"
    assert answer["guard"]["is_clear"] is True
    assert release("list").lines[2].split()[:4] == ["sprout@1", "live", "95", "%"]  # the canary has the rest
    first = release("show", "sprout@1", "--json").json
    assert (first["evidence"], first["guard"]) == (None, None)
    assert release.says("promote", "sprout@2") == "sprout@2 is canary now, with 25 %"
    play(line, GOOD)
    moved = release("promote", "sprout@2", "--to", "live", "--json").done()
    assert moved.json["release"]["stage"] == "live" and moved.json["decision"] is None
    assert line.at(1).stage is Stage.RETIRED


def test_a_shadow_that_nobody_serves_is_told_what_produces_answers_and_how_to_go_on_without(
    release: Releases, store: Store
) -> None:
    Line(store, 2)
    asyncio.run(proposed(store, to=Stage.SHADOW))
    held = release("promote", "sprout@2")
    told = " ".join(held.out.split())
    assert held.code == 1 and "holdfast release serve sprout" in told and "promote sprout@2 --to live" in told
    assert release.says("promote", "sprout@2", "--to", "live").startswith("sprout@2 is live now")


def test_one_step_of_an_accepted_version_is_a_shadow_and_it_is_said_who_answers(
    release: Releases, store: Store
) -> None:
    Line(store, 2)
    asyncio.run(proposed(store, to=None))
    moved = release.says("promote", "sprout@2").splitlines()
    assert moved[0] == "sprout@2 is shadow now; sprout@1 answers the callers meanwhile"


@pytest.mark.parametrize("kind", PolicyKind)
def test_what_is_called_into_service_is_for_all_callers(kind: PolicyKind) -> None:
    first, *others = list(into_service("sprout@2", kind))
    assert first.split("#")[0].split() == ["holdfast", "release", "promote", "sprout@2", "--to", "live"]
    assert first.endswith("# into service, for all callers") and not any("into service" in line for line in others)


def test_rollback_takes_back_who_answers_and_says_who_is_live(release: Releases, store: Store) -> None:
    line = Line(store, 3)
    line.go(2, Stage.LIVE)
    line.go(3, Stage.CANARY, 25)
    assert release.says("rollback", "--why", "odd") == "sprout@3 is taken back; sprout@2 is live"
    answer = release("rollback", "sprout", "--to", "sprout@1", "--json").json
    assert answer["rolled_back"] == "sprout@2" and answer["live"]["id"] == "sprout@1"
    said = release.fails(2, "rollback")
    assert said.startswith("release sprout@1: no other version of it is known to be good; 'holdfast release rollback")
    assert release.says("rollback", "--to", "spr@2", "--why", "undo") == "sprout@2 is live again; sprout@1 is retired"
    assert "sprout@2 is live again; sprout@1 retired" in release("history").out
    assert "sprout@2 is live again; sprout@1 retired, by ann" in release("explain", "sprout@1").out
    assert release("rollback", "--json").json["rolled_back"] == "sprout@2"
    undone = release("rollback", "--to", "sprout@2", "--json").json
    assert (undone["rolled_back"], undone["retired"], undone["live"]["id"]) == (None, "sprout@1", "sprout@2")
    release.says("rollback")
    assert store.releases.history(POLICY)[-1].body["why"] == "by hand"
    assert "sprout@3 was taken back; sprout@2 is live" in release("history").out.replace("\n", " ")


def test_where_nothing_is_live_a_held_candidate_stays_and_an_accepted_one_finds_its_baseline_live(
    release: Releases, store: Store
) -> None:
    asyncio.run(proposed(store, rate=0.3, to=None))
    assert release("promote", "sprout@2").code == 1 and store.releases.live(POLICY) is None
    asyncio.run(proposed(store, to=None, now=60.0))
    moved = release("promote", "sprout@2", "--to", "canary", "--share", "5", "--json").done().json["release"]
    assert (moved["stage"], moved["share"]) == ("canary", 5)
    live = store.releases.live(POLICY)
    assert live is not None and live.id == "sprout@1"


def test_what_fell_gets_another_try_and_adding_it_again_says_so(release: Releases, store: Store) -> None:
    for source in ("sprout-weak", "sprout"):
        release.says("add", source, "--policy", "tools")
    release.says("promote", "tools@1")
    live = release("add", "sprout-weak", "--policy", "tools")
    assert (live.code, live.out) == (1, "tools@1 is there already, and live: there is nothing to add\n")
    store.releases.move("tools@2", Stage.REJECTED, expect=Stage.CANDIDATE, who="t", why="bad", now=9.0).result()
    fallen = release("add", "sprout", "--policy", "tools")
    assert fallen.code == 1 and fallen.lines[0] == "tools@2 is there already, and rejected"
    assert fallen.lines[1:3] == ["  # gives it a second try", "  holdfast release retry tools@2 \\"]  # and --store
    assert release("add", "sprout", "--policy", "tools", "--json").json["stage"] == "rejected"
    assert "'holdfast release retry tools@2' gives it a second try" in release.fails(2, "promote", "tools@2")
    retried = release.says("retry", "too@2", "--why", "it was the data").splitlines()
    assert retried[0] == "tools@2 is a candidate again, without evidence"
    assert retried[2].startswith("  holdfast prove run SUITE --baseline tools@1")
    assert store.releases.history("tools")[-1].body["why"] == "it was the data"
    assert "tools@2 gets a second try" in release("history").out


def test_explain_decides_once_more_and_names_what_was_changed(release: Releases, store: Store, url: str) -> None:
    line = Line(store, 2)
    made = asyncio.run(proposed(store))
    ran = release("explain", "sprout@2").done()
    assert ran.lines[0] == "sprout@2 is live; it answers the callers"
    assert "take it back:\n  # then sprout@1 answers\n  holdfast release rollback sprout" in ran.out
    assert "decided once more from 400 stored episodes: open; it is the same" in ran.out
    assert "entries, the chain holds" in ran.out
    answer = release("explain", "sprout@2", "--json").json
    assert answer["agrees"] is True and answer["recomputed"] == answer["decision"] and answer["proof"] == made["proof"]
    line.back(2, 1)
    assert "take it back" not in release("explain", "sprout@2").out
    assert "sprout@2 was taken back; sprout@1 is live, by test" in release("explain", "sprout@1").done().out
    path = store.blobs.path(made["evidence"])
    path.chmod(0o600)
    path.write_bytes(path.read_bytes() + b" ")
    assert str(path) in release.fails(5, "explain", "sprout@2")
    with sqlite3.connect(url) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE ledger SET who = 'mallory' WHERE seq = 2")
    assert release.fails(5, "explain", "sprout@2").startswith("ledger: entry 2 was changed after it was written")


def test_explain_shows_refusals_with_their_codes_and_ends_with_1_where_the_samples_lead_elsewhere(
    release: Releases, store: Store
) -> None:
    line = Line(store, 2)
    made = asyncio.run(proposed(store, rate=0.1))
    ran = release("explain", "sprout@2").done()
    assert "closed" in ran.out
    told = " ".join(ran.out.split()).partition(" codes: ")[2]
    assert all(reason["code"] in told for reason in made["decision"]["reasons"])
    waved = Decision(open=True, reasons=(Reason(code="open", text="trust me"),))
    line.go(2, Stage.LIVE, evidence=made["evidence"], decision=waved)
    ran, answer = release("explain", "sprout@2"), release("explain", "sprout@2", "--json")
    assert ran.code == answer.code == 1 and "it DIFFERS" in ran.out and answer.json["agrees"] is False


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (2, ["list", "other"], "policy 'other': has no versions; there is sprout"),
        (2, ["history", "other"], "policy 'other': has no versions; there is sprout"),
        (2, ["show", "sprout@9"], "release 'sprout@9': there is none in project 'default'"),
        (2, ["show", "sprout"], "release 'sprout': there is none"),
        (2, ["explain", "sprout@x"], "release 'sprout@x': there is none"),
        (2, ["promote", "sprout@9"], "release 'sprout@9': there is none"),
        (2, ["promote", "sprout@2", "--to", "candidate"], "--to candidate: is no stage ahead; use shadow, canary or"),
        (2, ["promote", "sprout@1"], "release sprout@1: is live: there is no step ahead"),
        (2, ["rollback", "--to", "sprout@9"], "release 'sprout@9': there is none"),
        (2, ["rollback", "--to", "sprout@1"], "release sprout@1: cannot be rolled back to itself"),
        (5, ["rollback", "--to", "sprout@2"], "release sprout@2: is candidate, and not one that was live until"),
        (2, ["retry", "sprout@1"], "release sprout@1: is live; only what was rolled back or rejected gets a second"),
        (2, ["rollback", "other"], "policy 'other': has no versions"),
        (2, ["add", "nothing", "--policy", "p"], "version 'nothing': is no model of the package, no folder, no check"),
        (2, ["add", "sprout", "--policy", " "], "policy ' ': must not be blank"),
        (2, ["add", "sprout", "--policy", "p", "--parent", "p@9"], "release 'p@9': there is none"),
        (2, ["add", "sprout@1", "--policy", "p"], "source sprout@1: is a release already; name what it was made of"),
        (2, ["add", "resources:1", "--policy", "p"], "source resources:1: resources are a number, given to a model"),
        (2, ["serve", "other", "--port", "0"], "policy 'other': has no versions"),
        (2, ["serve", "--host", "0.0.0.0", "--port", "0"], "host 0.0.0.0: everyone who reaches this machine"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_its_exit_code(
    release: Releases, store: Store, code: int, words: list[str], says: str
) -> None:
    Line(store, 2)
    entries = list(store.ledger.entries())
    assert says in release.fails(code, *words)
    assert [one for one in store.ledger.entries() if one.kind != "refusal"] == entries


def test_with_several_policies_one_has_to_be_named(release: Releases) -> None:
    assert release.fails(2, "rollback") == "POLICY: there is none; propose a version first"
    for policy in ("sprout", "town"):
        release.says("add", "sprout", "--policy", policy)
    assert release.fails(2, "history") == "POLICY: there are 2; name one: sprout, town"
    assert len(release("list", "--json").json) == 2
    assert [one["id"] for one in release("list", "town", "--json").json] == ["town@1"]


def test_a_store_that_is_not_there_is_not_made_by_looking(cli: Cli, tmp_path: Path) -> None:
    missing = tmp_path / "none.sqlite"
    assert "'holdfast release add' makes one" in cli("release", "list", "--store", missing).err
    for words in ("list", "retry a@1", "show a@1", "history", "explain a@1", "promote a@1", "rollback"):
        ran = cli("release", *words.split(), "--store", missing)
        assert ran.code in (2, 5) and str(missing) in ran.err and not missing.exists()


# A decision in 80 columns: in one word, with what may still open it, and each reason with its code

LONG = Reason(code="checkpoint_promotion_blocked_safety_regression", text="safety is worse " * 20)
MET = Reason(code="promotion_allowed", text="success +0.4; all is met")
NO_GAIN = Reason(code="no_gain_seen", text="the candidate is no better so far")
SHORT = Reason(code="guard_undecided", text="nothing is proved yet")


def version(stage: Stage, share: int = 0) -> Release:
    about: dict[str, Any] = {"project": "default", "policy": "sprout", "number": 2, "kind": PolicyKind.WEIGHTS}
    about |= {"source": "shelf:sprout", "created_at": 0.0, "changed_at": 0.0}
    return Release(id="sprout@2", stage=stage, share=share, **about)


@pytest.mark.parametrize(
    ("decision", "word", "line"),
    [
        (Decision(open=True, reasons=(SHORT,)), "promoted", ""),
        (Decision(open=False, reasons=(LONG,)), "refused", ""),
        (Decision(open=False, reasons=(SHORT,)), "held", ""),  # a guard goes on looking
        (Decision(open=False, reasons=(SHORT,), needs=40), "held", "; about 40 more answers may decide it"),
        (Decision(open=False, reasons=(LONG,), needs=120), "held", "; about 120 more episodes may open the gate"),
        (Decision(open=False, reasons=(LONG, NO_GAIN)), "held", "; no gain yet, more episodes will not help"),
    ],
)
def test_what_became_of_a_version_is_one_word(decision: Decision, word: str, line: str) -> None:
    assert outcome(decision) == word
    assert headline("sprout@2", decision) == f"sprout@2: {word}{line}"


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (version(Stage.SHADOW), "sprout@2: promoted to shadow; it serves nobody yet"),
        (version(Stage.CANARY, 5), "sprout@2: promoted to canary; it answers 5 % of the callers"),
        (version(Stage.LIVE, 100), "sprout@2: promoted to live; it answers the callers"),
        (version(Stage.CANDIDATE), "sprout@2: accepted; it stays candidate"),
        (version(Stage.RETIRED), "sprout@2: promoted; it is retired by now"),
    ],
)
def test_where_a_promoted_version_is_now_is_said(now: Release, line: str) -> None:
    assert headline("sprout@2", Decision(open=True, reasons=(MET,)), now) == line


def test_what_is_not_promoted_stays_where_it_is() -> None:
    decision, now = Decision(open=False, reasons=(LONG,), needs=7), version(Stage.CANDIDATE)
    told_so = "sprout@2: held; it stays candidate; about 7 more episodes may open the gate"
    assert headline("sprout@2", decision, now) == told_so
    assert next(iter(decision_lines("sprout@2", decision, now, "  "))) == f"  {told_so}"
    more = list(decision_lines("sprout@2", decision, at=" --store s.db"))[-1]
    assert more == "  holdfast prove more sprout@2 --tasks FILE --store s.db"
    vain = Decision(open=False, reasons=(NO_GAIN,))
    assert not any("prove more" in line for line in decision_lines("sprout@2", vain))  # it would be in vain
    guard = Decision(open=False, reasons=(Reason(code=UNDECIDED, text="no answers yet"),))
    assert not any("prove more" in line for line in decision_lines("sprout@2", guard))  # it waits for callers


def test_every_reason_has_its_code_once_and_is_folded_and_of_an_open_gate_only_the_sum_is_told() -> None:
    assert list(reason_lines((MET, Reason(code="promotion_allowed", text="400 pairs")))) == [
        "  success +0.4; all is met"
    ]
    assert list(reason_lines((SHORT, SHORT))) == [*["  nothing is proved yet"] * 2, "  codes: guard_undecided"]
    found = list(reason_lines((SHORT, LONG, SHORT)))
    assert (found[0], found[-2]) == ("  nothing is proved yet",) * 2
    assert found[-1] == f"  codes: guard_undecided, {LONG.code}"  # each once, the last of all
    assert max(map(len, found)) <= 79 and len(found) > 6
    assert " ".join(line.strip() for line in found[1:-2]) == LONG.text.strip()
    assert list(reason_lines((SHORT,), "")) == ["nothing is proved yet", "codes: guard_undecided"]
    assert next(iter(reason_lines((LONG, NO_GAIN)))) == f"  {NO_GAIN.text}"  # the plainest before all


CLOSED: dict[str, Any] = {"open": False, "reasons": [{"code": "c", "text": "t"}], "needs": None, "schema_version": 2}
OPEN = {**CLOSED, "open": True, "reasons": [{"code": "c", "text": "all hold"}]}
