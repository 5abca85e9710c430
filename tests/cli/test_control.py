"""Commands to runs and policies go over the service that HTTP has too; tokens say who may give them over HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from holdfast.cli import control
from holdfast.contracts.commands import Alert, Role, Severity
from holdfast.contracts.flag import Flag
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.run import DesiredState
from holdfast.operate.auth import digest
from holdfast.operate.control import ACTIONS
from holdfast.store.store import Store
from tests.cli.conftest import Answer, At, Cli, Group
from tests.store.scene import Scene, serving

ENDED = "state cancelled, was running; wanted cancelled, was running"  # the tests' hour is long ago: nobody drives it


@dataclass
class Control:
    """`holdfast control …` on one store, with a reason."""

    cli: Cli
    scene: Scene

    def __call__(self, *words: object, why: str | None = "lunch") -> Answer:
        reason = () if why is None else ("--why", why)
        return self.cli("control", *words, *reason, "--store", self.scene.store.url)

    @property
    def wanted(self) -> DesiredState:
        return self.scene.store.runs.get(self.scene.run).wanted


@pytest.fixture
def order(cli: Cli, scene: Scene) -> Control:
    return Control(cli, scene)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("pause", "run-1"), DesiredState.PAUSED),
        (("pause", "newest", "--mode", "freeze"), DesiredState.FROZEN),  # the newest run needs no name
        (("drain", "run-1"), DesiredState.DRAINING),
    ],
)
def test_a_run_is_told_to_stop_and_to_go_on(order: Control, words: tuple[str, ...], wanted: DesiredState) -> None:
    assert order(*words).done().out == f"run-1-a: wanted {wanted}, was running\n"
    assert order.wanted is wanted
    entry = list(order.scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.body["why"], entry.body["role"]) == ("command", "ann", "lunch", "admin")
    assert order("resume", "run-1").out == f"run-1-a: wanted running, was {wanted}\n"
    assert order("resume", "run-1").out == "run-1-a: running, running, as before\n"


def test_a_command_with_an_id_is_obeyed_once(order: Control) -> None:
    order("pause", "run-1", "--id", "c1").done()
    order("resume", "run-1")
    assert order("pause", "run-1", "--id", "c1").out.endswith("(this order was obeyed before)\n")
    assert order.wanted is DesiredState.RUNNING
    ran = order("drain", "run-1", "--id", "c1")
    assert ran.code == 5 and "order c1: was another one: pause run-1 by ann" in ran.err


def test_a_dry_run_tells_what_would_come_of_it_and_does_nothing(order: Control) -> None:
    order.scene.enqueue("t", "u")
    order.scene.claim()
    ran = order("cancel", "run-1", "--dry-run").done()
    assert ran.lines == [f"run-1-a: {ENDED} (nothing was done)", "affected: running 1, waiting 1"]
    assert order.wanted is DesiredState.RUNNING
    order("cancel", "run-1")
    ran = order("resume", "run-1", "--dry-run")
    assert (ran.code, ran.out) == (1, "would be refused: run run-1-a: is cancelled; start a new run\n")
    assert order("resume", "run-1", "--dry-run", "--json").json["refused"]["kind"] == "IllegalMove"


def test_what_cannot_be_done_is_one_line_and_is_noted(order: Control) -> None:
    serving(order.scene.store)
    assert "no other version of it is known to be good" in order("rollback", "sprout").refusal
    order("cancel", "run-1")
    ran = order("pause", "run-1")
    assert (ran.code, ran.out, ran.err) == (5, "", "holdfast: error: run run-1-a: is cancelled; start a new run\n")
    assert list(order.scene.store.ledger.entries())[-1].kind == "refusal"
    assert order("pause", "run-1", "--mode", "nap").code == 2
    assert order("pause", "run-1", why=None).code == 2  # none without a reason
    for words, why in (((), " "), ((), "x" * 100_000), (("--id", ""), "lunch"), (("--id", "x" * 101), "lunch")):
        before = order.scene.store.ledger.verify()
        assert len(order("drain", "run-1", *words, why=why).refusal) < 300
        *_, noted = order.scene.store.ledger.entries()
        assert (noted.kind, noted.who, noted.seq, noted.body["action"]) == ("refusal", "ann", before + 1, "drain")


def test_rollouts_are_cancelled_and_queued_again(order: Control) -> None:
    order.scene.enqueue("t", "u")
    assert order("cancel", "run-1/t").out == "run-1-a/t: status cancelled, was queuing\n"
    assert order("requeue", "run-1/t").out == "run-1-a/t: status queuing, was cancelled\n"
    assert order("cancel", "run-1").lines == [f"run-1-a: {ENDED}", "2 rollouts cancelled"]
    assert order("requeue", "run-1/u").lines[1] == "its run was cancelled for good: nobody claims it"
    assert order.scene.rollout("u").status is RolloutState.QUEUING


def test_a_run_whose_driver_died_is_recovered(order: Control) -> None:
    """It began at the tests' hour, which is long ago."""
    ran = order("recover", "run-1").done()
    assert ran.lines[0].startswith("run-1-a: state failed, was running")
    assert "next: holdfast run start --resume run-1-a \\ --store " in " ".join(ran.out.split())
    assert "no crash" in order("recover", "run-1").out


def test_alerts_are_listed_and_acknowledged_and_flags_killed(order: Control) -> None:
    store = order.scene.store
    assert order("alerts", why=None).out == "no alerts\n"
    store.alerts.raise_(Alert(code="disk", severity=Severity.CRITICAL, message="1 MB left", at=1.0)).result()
    assert order("ack", "disk").out == "disk: acknowledged by ann, was nobody\n"
    assert order("alerts", why=None).lines[1].split() == [
        "disk",
        "critical",
        "1970-01-01",
        "00:00",
        "ann",
        "1",
        "MB",
        "left",
    ]
    store.alerts.clear("disk", at=2.0).result()
    assert order("alerts", "--all", "--json", why=None).json[0]["cleared_at"] == 2.0
    assert "does not stand" in order("ack", "disk").err
    store.flags.put(Flag(name="beta", variants={"on": True, "off": False}, off="off"), who="t", why="w", now=1.0)
    assert order("kill", "beta").out == "beta: killed yes, was no\n"


def test_status_has_the_documented_report(order: Control) -> None:
    order("pause", "run-1")
    report = order("status", "--json", why=None).json  # the newest run
    assert (report["schema_version"], report["action"], report["principal"]) == (1, "status", "local:ann")
    assert report["control_state"]["lifecycle_state"] == "paused"
    assert report["control_state"]["last_action"] == "pause"
    lines = order("status", "run-1", why=None).lines
    assert lines[0] == "run-1-a: paused" and lines[1].startswith("last order: pause by ann, ")
    assert lines[-1] == "accepts: resume, pause --mode freeze, drain, cancel, recover"


def test_without_a_run_there_is_no_status_and_every_action_has_a_command(cli: Cli, at: At) -> None:
    said = "run: there is none in project 'default'; 'holdfast run start' begins one"
    assert cli("control", "status", *at).refusal == f"holdfast: error: {said}\n"
    named = {command.name or command.callback.__name__ for command in control.app.registered_commands}  # type: ignore[union-attr]
    short = {"acknowledge": "ack", "cancel_rollout": "cancel"}
    assert {short.get(name, name) for name in ACTIONS} <= named
    assert control.here().role is Role.ADMIN


# Tokens: shown once, listed without their hash, rotated and revoked


@pytest.fixture
def tokens(cli: Cli, url: str) -> Group:
    return Group(cli, "tokens", url)


def test_a_token_is_shown_once_and_only_its_hash_is_kept(tokens: Group, store: Store) -> None:
    told, made = tokens("add", "ann", "--role", "operator").lines
    assert told == "tok-1: operator ann, for good; the token is shown this once:"
    assert re.fullmatch(r"hf_[\w-]{43}", made)
    kept = store.tokens.find(digest(made))
    assert kept is not None and (kept.label, kept.role) == ("ann", Role.OPERATOR)
    (entry,) = store.ledger.entries()
    assert (entry.kind, entry.who, entry.body["add"]) == ("token", "ann", "tok-1")
    for listed in (tokens("list"), tokens("list", "--json")):
        assert "ann" in listed.out and made not in listed.out and digest(made) not in listed.out
    assert tokens("add", "bob").lines[0].startswith("tok-2: viewer bob")  # the least, unless more is asked for


def test_a_token_is_rotated_and_revoked(tokens: Group) -> None:
    first = tokens("add", "ann", "--json", "--days", "30").json
    second = tokens("rotate", first["id"], "--grace-hours", "0", "--json").json
    assert (second["id"], second["label"]) == ("tok-2", "ann") and first["token"] != second["token"]
    assert second["expires_at"] - second["created_at"] == pytest.approx(30 * 86_400)  # as long as the first was to
    assert [one["good"] for one in tokens("list", "--json").json] == [False, True]
    assert tokens("revoke", "tok-2", "--why", "lost").out == "tok-2 of ann is no good any more\n"
    assert [one["good"] for one in tokens("list", "--json").json] == [False, False]
    assert "revoked" in tokens("list").lines[2]
    ran = tokens("revoke", "tok-2")
    assert (ran.code, ran.err.count("\n")) == (5, 1)


def test_what_is_no_token_is_refused_in_one_line(tokens: Group) -> None:
    assert tokens("list").out == "no tokens; 'holdfast control tokens add LABEL --role operator' makes one\n"
    for words in (("add", " "), ("add", "ann", "--role", "king"), ("revoke", "tok-9"), ("rotate", "tok-9")):
        ran = tokens(*words)
        assert (ran.code, ran.out) == (2, "")
    for word in ("revoke", "rotate"):
        assert "hf_secret" not in tokens(word, "hf_secret").refusal  # whoever reads the terminal later does not get it
    tokens("add", "ann")
    for why in ("", "x" * 100_000):
        assert len(tokens("revoke", "tok-1", "--why", why).refusal) < 200
