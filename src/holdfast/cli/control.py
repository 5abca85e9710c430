"""`holdfast control …`: orders to runs, rollouts and policies, obeyed once and kept; and how a run stands.

What an order does is `operate.control`'s business: HTTP and MCP go through the same desk.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.onward import folded, place, step
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreAt, Why, existing, who
from holdfast.contracts.run import DesiredState, RunState

if TYPE_CHECKING:
    from holdfast.contracts.run import RunRecord
    from holdfast.operate.auth import Caller
    from holdfast.store.store import Store

app = typer.Typer(
    help="Orders, obeyed once and kept.", add_completion=False, no_args_is_help=True, rich_markup_mode=None
)

NEWEST = "newest"  # stands for the newest run: no run is called so
RunText = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, the beginning of it, or 'newest'.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what it would come to.")]
Identity = Annotated[
    str | None, typer.Option("--id", metavar="TEXT", help="The same id again is the same order: it is obeyed once.")
]


@app.command()
def pause(
    run: RunText,
    why: Why,
    mode: Annotated[str, typer.Option(metavar="drain|freeze", help="Let what runs go on, or hand it back.")] = "drain",
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Begin nothing new until it is resumed.

    With --mode freeze, what runs is handed back too, and run anew later.
    """
    _order((store, project), "pause", run, why, id, dry_run=dry_run, json=json, mode=mode)


@app.command()
def resume(
    run: RunText,
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Let a paused, frozen or draining run go on."""
    _order((store, project), "resume", run, why, id, dry_run=dry_run, json=json)


@app.command()
def drain(
    run: RunText,
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Begin nothing new; when what runs is done, the run stops."""
    _order((store, project), "drain", run, why, id, dry_run=dry_run, json=json)


@app.command()
def cancel(
    subject: Annotated[str, typer.Argument(metavar="RUN", help="A run, or RUN/NAME: one rollout.")],
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """End a run for good, or one rollout; what runs is cut off."""
    action = "cancel_rollout" if "/" in subject else "cancel"
    _order((store, project), action, subject, why, id, dry_run=dry_run, json=json)


@app.command()
def recover(
    run: RunText,
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Give back what a driver that died has left.

    Its rollouts wait again, and the run can be taken up by the command that began it.
    """
    _order((store, project), "recover", run, why, id, dry_run=dry_run, json=json)


@app.command()
def requeue(
    rollout: Annotated[str, typer.Argument(metavar="RUN/NAME", help="Both parts may be cut short.")],
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Give a rollout that failed a fresh set of attempts.

    Also one that is dead or was cancelled.
    """
    _order((store, project), "requeue", rollout, why, id, dry_run=dry_run, json=json)


@app.command()
def rollback(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Its canary, or else its live version, goes back.")],
    why: Why,
    to: Annotated[str | None, typer.Option("--to", metavar="VERSION", help="Else the last known good one.")] = None,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take the canary back, or else the live version.

    Services follow at once, and nobody is interrupted.
    """
    _order((store, project), "rollback", policy, why, id, dry_run=dry_run, json=json, to=to)


@app.command()
def ack(
    alert: Annotated[str, typer.Argument(metavar="CODE[@RUN]", help="As 'holdfast control alerts' lists it.")],
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Say that you know of an alert.

    It stands until its reason is gone.
    """
    _order((store, project), "acknowledge", alert, why, id, dry_run=dry_run, json=json)


@app.command()
def kill(
    flag: Annotated[str, typer.Argument(metavar="FLAG", help="A feature flag's name.")],
    why: Why,
    dry_run: DryRun = False,
    id: Identity = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Pull a flag's kill switch: off for everybody.

    'holdfast flags revive' releases it.
    """
    _order((store, project), "kill", flag, why, id, dry_run=dry_run, json=json)


@app.command()
def status(
    run: RunText = NEWEST,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Tell what is wanted of a run, and who wanted that.

    Also what it may be told now, and what a recovery found.
    """
    from holdfast.operate.lifecycle import report

    with existing(store, project) as opened:
        found = _newest(opened) if run == NEWEST else opened.runs.get(run)
        told = report(opened, found, principal=f"local:{who()}", now=time.time())
    if json:
        show.print_json(told)
        return
    control, training = told["control_state"], told["training_status"]
    print(f"{found.id}: {_standing(found, training['running'])}")
    if control["last_action"] is not None:
        at = show.moment(control["updated_unix_ms"] / 1000)
        lines = folded(f"last order: {control['last_action']} by {control['principal']}, {at}: {told['why']}")
        print("\n".join(lines))
    came = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in training["outcomes"].items() if n)
    print(f"outcome: {came or 'nothing was answered yet'}")
    counted = ("running", "waiting", "succeeded", "failed", "cancelled")
    print(f"rollouts: {training['total_rollouts']}; {', '.join(f'{training[name]} {name}' for name in counted)}")
    if told["recovery_crash_detected"]:
        print(f"recovered from a crash; checkpoint: {told['recovery_checkpoint_source'] or 'none was needed'}")
    orders = [SAID.get(order, order) for order in told["allowed_actions"] if order != ALREADY[found.wanted]]
    print(f"may be told: {', '.join(orders) or 'nothing any more'}")


SAID = {"freeze": "pause --mode freeze"}
ALREADY = {
    DesiredState.RUNNING: "resume",
    DesiredState.PAUSED: "pause",
    DesiredState.FROZEN: "freeze",
    DesiredState.DRAINING: "drain",
    DesiredState.CANCELLED: "cancel",
}  # what it is told already


def _standing(run: RunRecord, running: int) -> str:
    """How it stands, in a word: who is told to pause has paused once nothing runs any more."""
    if run.state is not RunState.RUNNING or run.wanted is DesiredState.RUNNING:
        return str(run.state)
    return f"{run.wanted}; {show.count(running, 'rollout')} still running" if running else str(run.wanted)


@app.command()
def alerts(
    every: Annotated[bool, typer.Option("--all", help="Also those that were cleared.")] = False,
    limit: Limit = 50,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """List the alerts that stand, newest first."""
    with existing(store, project) as opened:
        found = opened.alerts.history(limit) if every else opened.alerts.standing()[:limit]
    if json:
        show.print_records(found)
        return
    if not found:
        print("no alerts" if every else "no alert stands")
        return
    rows = [
        (
            one.code if one.run is None else f"{one.code}@{one.run}",
            str(one.severity),
            show.moment(one.at)[:16],
            "cleared" if one.cleared_at is not None else one.acknowledged_by or "",
            one.message,
        )
        for one in found
    ]
    show.print_table(("alert", "severity", "since", "known to", "~message"), rows)


def here() -> Caller:
    """Whoever calls a command: who has the store itself needs no token."""
    from holdfast.contracts.commands import Role
    from holdfast.operate.auth import Caller

    return Caller(label=who(), role=Role.ADMIN)


def give(store: Store, action: str, subject: str, why: str, identity: str | None = None, **args: str | None) -> Any:
    """One order from this machine, with an id of its own unless one is given; the desk's answer."""
    from holdfast.operate import control

    return control.answer(store, _body(action, subject, why, identity, args), here(), now=time.time())


def _body(action: str, subject: str, why: str, identity: str | None, args: dict[str, str | None]) -> dict[str, Any]:
    from uuid import uuid4

    given = {name: value for name, value in args.items() if value is not None}
    named = uuid4().hex if identity is None else identity
    return {"id": named, "action": action, "subject": subject, "why": why, "args": given}


def _order(
    at: tuple[str, str],
    action: str,
    subject: str,
    why: str,
    identity: str | None,
    *,
    dry_run: bool,
    json: bool,
    **args: str | None,
) -> None:
    from holdfast.operate import control

    with existing(*at) as opened:
        named = _newest(opened).id if subject == NEWEST else subject
        body = {**_body(action, named, why, identity, args), "dry_run": dry_run}
        answer = control.answer(opened, body, here(), now=time.time())
    if json:
        show.print_json(answer)
    elif dry_run:
        print("\n".join(_foreseen(answer)))
    else:
        print("\n".join(_answered(answer, place(*at))))
    if dry_run and answer["refused"] is not None:
        raise typer.Exit(1)


def _foreseen(answer: dict[str, Any]) -> list[str]:
    if answer["refused"] is not None:
        return [f"would be refused: {answer['said']}"]
    named = ", ".join(f"{name} {value}" for name, value in answer["affected"].items() if value is not None)
    return [f"{answer['said']} (nothing was done)", *([f"affected: {named}"] if named else [])]


def _answered(answer: dict[str, Any], at: str) -> list[str]:
    lines = [answer["said"] + (" (this order was obeyed before)" if answer["again"] else "")]
    if "cancelled" in answer:
        lines.append(f"{show.count(answer['cancelled'], 'rollout')} cancelled")
    if "note" in answer:
        lines.append(answer["note"])
    recovery = answer.get("recovery")
    if recovery is not None:
        lines += [f"{show.count(recovery['requeued'], 'rollout')} wait again", *recovery["diagnostics"]]
        if recovery["resume"] is not None:
            lines += ["next:", *step(recovery["resume"] + at)]
    return lines


def _newest(store: Store) -> Any:
    from holdfast.contracts.errors import NotFound

    found = store.runs.newest(most=1)
    if not found:
        why = f"there is none in project {store.project!r}"
        raise NotFound("run", why=why, remedy="'holdfast optimize' begins one")
    return found[0]
