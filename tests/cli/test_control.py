"""Orders from the command line go over the desk that HTTP has too, and tell what they came to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.cli import control
from holdfast.contracts.commands import Alert, Role, Severity
from holdfast.contracts.flag import Flag
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.run import DesiredState
from holdfast.operate.control import ACTIONS
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Answer, Cli
from tests.conftest import Files
from tests.store.scene import Scene, serving

ENDED = "state cancelled, was running; wanted cancelled, was running"  # the tests' hour is long ago: nobody drives it


class Desk:
    """`holdfast control …` on one store."""

    def __init__(self, cli: Cli, scene: Scene) -> None:
        self._cli, self._url, self.scene = cli, scene.store.url, scene

    def __call__(self, *words: object, why: str | None = "lunch") -> Answer:
        reason = () if why is None else ("--why", why)
        return self._cli("control", *words, *reason, "--store", self._url)

    @property
    def wanted(self) -> DesiredState:
        return self.scene.store.runs.get(self.scene.run).wanted


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    """The engine makes no difference here."""
    with open_store(files.fresh()) as opened:
        yield opened


@pytest.fixture
def desk(cli: Cli, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("LOGNAME", "ann")
    return Desk(cli, scene)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("pause",), DesiredState.PAUSED),
        (("pause", "--mode", "freeze"), DesiredState.FROZEN),
        (("drain",), DesiredState.DRAINING),
    ],
)
def test_a_run_is_told_to_stop_and_to_go_on(desk: Desk, words: tuple[str, ...], wanted: DesiredState) -> None:
    ran = desk(words[0], "run-1", *words[1:])
    assert (ran.code, ran.out) == (0, f"run-1-a: wanted {wanted}, was running\n")
    assert desk.wanted is wanted
    entry = list(desk.scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.body["why"], entry.body["role"]) == ("command", "ann", "lunch", "admin")
    assert desk("resume", "run-1").out == f"run-1-a: wanted running, was {wanted}\n"
    assert desk("resume", "run-1").out == "run-1-a: running, running, as before\n"


def test_an_order_with_an_id_is_obeyed_once(desk: Desk) -> None:
    assert desk("pause", "run-1", "--id", "c1").code == 0
    desk("resume", "run-1")
    assert desk("pause", "run-1", "--id", "c1").out.endswith("(this order was obeyed before)\n")
    assert desk.wanted is DesiredState.RUNNING
    ran = desk("drain", "run-1", "--id", "c1")
    assert ran.code == 5 and "order c1: was another one: pause run-1 by ann" in ran.err


def test_a_dry_run_tells_what_would_come_of_it_and_does_nothing(desk: Desk) -> None:
    desk.scene.enqueue("t", "u")
    desk.scene.claim()
    ran = desk("cancel", "run-1", "--dry-run")
    assert (ran.code, desk.wanted) == (0, DesiredState.RUNNING)
    assert ran.lines == [
        f"run-1-a: {ENDED} (nothing was done)",
        "affected: running 1, waiting 1",
    ]
    desk("cancel", "run-1")
    ran = desk("resume", "run-1", "--dry-run")
    assert (ran.code, ran.out) == (1, "would be refused: run run-1-a: is cancelled; start a new run\n")
    assert desk("resume", "run-1", "--dry-run", "--json").json["refused"]["kind"] == "IllegalMove"


def test_what_cannot_be_done_is_one_line_and_is_noted(desk: Desk) -> None:
    desk("cancel", "run-1")
    ran = desk("pause", "run-1")
    assert (ran.code, ran.out, ran.err) == (5, "", "holdfast: error: run run-1-a: is cancelled; start a new run\n")
    assert list(desk.scene.store.ledger.entries())[-1].kind == "refusal"
    assert desk("pause", "run-1", "--mode", "nap").code == 2
    assert desk("pause", "run-1", why=None).code == 2  # no order without a reason
    for words, why in (((), " "), ((), "x" * 100_000), (("--id", ""), "lunch"), (("--id", "x" * 101), "lunch")):
        before = desk.scene.store.ledger.verify()
        ran = desk("drain", "run-1", *words, why=why)
        assert (ran.code, ran.err.count("\n")) == (2, 1) and len(ran.err) < 300
        *_, noted = desk.scene.store.ledger.entries()
        assert (noted.kind, noted.who, noted.seq, noted.body["action"]) == ("refusal", "ann", before + 1, "drain")


def test_rollouts_are_cancelled_and_queued_again(desk: Desk) -> None:
    desk.scene.enqueue("t", "u")
    assert desk("cancel", "run-1/t").out == "run-1-a/t: status cancelled, was queuing\n"
    assert desk("requeue", "run-1/t").out == "run-1-a/t: status queuing, was cancelled\n"
    assert desk("cancel", "run-1").lines == [f"run-1-a: {ENDED}", "2 rollouts cancelled"]
    assert desk("requeue", "run-1/u").lines[1] == "its run was cancelled for good: nobody claims it"
    assert desk.scene.rollout("u").status is RolloutState.QUEUING


def test_a_run_whose_driver_died_is_recovered(desk: Desk) -> None:
    """It began at the tests' hour, which is long ago."""
    ran = desk("recover", "run-1")
    assert ran.code == 0 and ran.lines[0].startswith("run-1-a: state failed, was running")
    assert "next: holdfast optimize --resume run-1-a \\ --store " in " ".join(ran.out.split())
    assert "no crash" in desk("recover", "run-1").out


def test_alerts_are_listed_and_acknowledged_and_flags_killed(desk: Desk) -> None:
    store = desk.scene.store
    assert desk("alerts", why=None).out == "no alert stands\n"
    store.alerts.raise_(Alert(code="disk", severity=Severity.CRITICAL, message="1 MB left", at=1.0)).result()
    assert desk("ack", "disk").out == "disk: acknowledged by ann, was nobody\n"
    assert desk("alerts", why=None).lines[1].split() == [
        "disk", "critical", "1970-01-01", "00:00", "ann", "1", "MB", "left"
    ]  # fmt: skip
    store.alerts.clear("disk", at=2.0).result()
    assert desk("alerts", "--all", "--json", why=None).json[0]["cleared_at"] == 2.0
    assert "does not stand" in desk("ack", "disk").err
    flag = Flag(name="beta", variants={"on": True, "off": False}, off="off")
    store.flags.put(flag, who="t", why="w", now=1.0).result()
    assert desk("kill", "beta").out == "beta: killed yes, was no\n"


def test_a_policy_with_nothing_to_go_back_to_says_so(desk: Desk) -> None:
    serving(desk.scene.store)
    ran = desk("rollback", "sprout")
    assert ran.code == 2 and "no other version of it is known to be good" in ran.err


def test_status_has_the_documented_report(desk: Desk) -> None:
    desk("pause", "run-1")
    report = desk("status", "--json", why=None).json  # the newest run
    assert (report["schema_version"], report["action"], report["principal"]) == (1, "status", "local:ann")
    assert report["control_state"]["lifecycle_state"] == "paused"
    assert report["control_state"]["last_action"] == "pause"
    lines = desk("status", "run-1", why=None).lines
    assert lines[0] == "run-1-a: paused"
    assert lines[1].startswith("last order: pause by ann, ")
    assert lines[-1] == "may be told: resume, pause --mode freeze, drain, cancel, recover"


def test_the_newest_run_needs_no_name(desk: Desk) -> None:
    assert desk("pause", "newest", "--id", "c1").out == "run-1-a: wanted paused, was running\n"
    assert desk("status", why=None).lines[0] == "run-1-a: paused"


def test_without_a_run_there_is_no_status(cli: Cli, store: Store) -> None:
    ran = cli("control", "status", "--store", store.url)
    assert (ran.code, ran.err) == (
        2, "holdfast: error: run: there is none in project 'default'; 'holdfast optimize' begins one\n"
    )  # fmt: skip


def test_every_action_of_the_desk_has_a_command() -> None:
    named = {command.name or command.callback.__name__ for command in control.app.registered_commands}  # type: ignore[union-attr]
    short = {"acknowledge": "ack", "cancel_rollout": "cancel"}
    assert {short.get(name, name) for name in ACTIONS} <= named
    assert control.here().role is Role.ADMIN
