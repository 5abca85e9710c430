"""`holdfast control …` orders runs, rollouts and policies; `holdfast control tokens …` says who may order over HTTP.

`operate.control` carries the orders out, for HTTP and MCP too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import CommandSet, Limit, Output, StoreOptions, Why, who
from holdfast.cli.show import step
from holdfast.contracts.commands import Role
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.lines import folded
from holdfast.contracts.release import check_name
from holdfast.contracts.run import DesiredState, RunState

if TYPE_CHECKING:
    from holdfast.contracts.commands import Token
    from holdfast.contracts.run import RunRecord
    from holdfast.operate.auth import Caller
    from holdfast.store.store import Store


tokens_app = CommandSet("Access tokens: who may read, and who may give commands.")

TokenText = Annotated[str, Argument(metavar="TOKEN", help="Its id, as in tok-3; never the token itself.")]
Days = Annotated[
    float | None, Option("--days", metavar="N", min=0.001, max=36_500, help="How long it is good; else for good.")
]
Again = Annotated[
    float | None,
    Option("--days", metavar="N", min=0.001, max=36_500, help="How long it is good; else as the old one was."),
]
DAY_S = 86_400.0


@tokens_app.command("add")
def add_token(
    label: Annotated[str, Argument(metavar="LABEL", help="Whose it is: the name that the ledger will have.")],
    at: StoreOptions,
    role: Annotated[Role, Option(help="viewer reads, operator gives commands, admin makes tokens.")] = Role.VIEWER,
    days: Days = None,
) -> Output:
    """Create a token and show it once; only its hash is stored."""
    from holdfast.operate.auth import digest, mint

    check_name("label", label)
    made, now = mint(), time.time()
    with at.existing() as opened:
        kept = opened.tokens.add(label, role, digest(made), now, _until(now, days), who=who()).result()
    return _shown_once(kept, made)


@tokens_app.command("list")
def list_tokens(at: StoreOptions) -> Output:
    """List the tokens, oldest first."""
    now = time.time()
    with at.existing() as opened:
        tokens = opened.tokens.all()
    if not tokens:
        return Output([], "no tokens; 'holdfast control tokens add LABEL --role operator' makes one")
    rows = [
        (token.id, token.label, str(token.role), show.local_time(token.created_at)[:16], _life(token, now))
        for token in tokens
    ]
    data = [{**_record(token), "good": token.is_good(now)} for token in tokens]
    return Output(data, show.table(("token", "~label", "role", "made", "good"), rows))


@tokens_app.command("rotate")
def rotate_token(
    token: TokenText,
    at: StoreOptions,
    grace_hours: Annotated[
        float, Option(metavar="N", min=0, max=8760, help="How long the old one is good yet.")
    ] = 24.0,
    days: Again = None,
) -> Output:
    """Replace a token; the old one stays valid for a while.

    The new one has the same label and role, and lives as long as the old one was to.
    """
    from holdfast.operate.auth import digest, mint

    _refuse_secret(token)
    made, now = mint(), time.time()
    with at.existing() as opened:
        kept = opened.tokens.rotate(
            token, digest(made), who(), now, grace_s=grace_hours * 3600, expires_at=_until(now, days)
        ).result()
    return _shown_once(kept, made)


@tokens_app.command("revoke")
def revoke_token(token: TokenText, at: StoreOptions, why: Why = "by hand") -> Output:
    """Revoke a token; it stops working within a second."""
    _refuse_secret(token)
    with at.existing() as opened:
        kept = opened.tokens.revoke(token, who(), why, time.time()).result()
    return Output(_record(kept), f"{kept.id} of {kept.label} is no good any more")


def _refuse_secret(token: str) -> None:
    """Refuses a token given in place of its id, without repeating it in the error."""
    if "hf_" in token:
        raise BadInput(
            "TOKEN", why="this is a token, not the id of one", remedy="'holdfast control tokens list' has the ids"
        )


def _until(now: float, days: float | None) -> float | None:
    return None if days is None else now + days * DAY_S


def _shown_once(kept: Token, made: str) -> Output:
    about = f"{kept.id}: {kept.role} {kept.label}, {_life(kept, kept.created_at)}; the token is shown this once:"
    return Output({**_record(kept), "token": made}, f"{about}\n{made}")


def _record(token: Token) -> dict[str, object]:
    """A token's record without its hash."""
    times = {"created_at": token.created_at, "expires_at": token.expires_at, "revoked_at": token.revoked_at}
    return {"id": token.id, "label": token.label, "role": str(token.role), **times}


def _life(token: Token, now: float) -> str:
    if token.revoked_at is not None:
        return f"revoked {show.local_time(token.revoked_at)[:16]}"
    if token.expires_at is None:
        return "for good"
    return f"{'until' if token.is_good(now) else 'until then:'} {show.local_time(token.expires_at)[:16]}"


app = CommandSet("Commands to runs and releases; each is obeyed once and recorded.")

NEWEST = "newest"  # stands for the newest run: no run is called so
RunText = Annotated[str, Argument(metavar="RUN", help="The run's id, the beginning of it, or 'newest'.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only tell what it would come to.")]
Identity = Annotated[
    str | None, Option("--id", metavar="TEXT", help="The same id again is the same order: it is obeyed once.")
]


@app.command()
def pause(
    run: RunText,
    why: Why,
    at: StoreOptions,
    mode: Annotated[str, Option(metavar="drain|freeze", help="Let what runs go on, or hand it back.")] = "drain",
    dry_run: DryRun = False,
    id: Identity = None,
) -> Output:
    """Pause a run: start nothing new until it is resumed.

    With --mode freeze, what runs is handed back too, and run anew later.
    """
    return _order(at, "pause", run, why, id, dry_run=dry_run, mode=mode)


@app.command()
def rollback(
    policy: Annotated[str, Argument(metavar="POLICY", help="Its canary, or else its live version, goes back.")],
    why: Why,
    at: StoreOptions,
    to: Annotated[str | None, Option(metavar="VERSION", help="Else the last known good one.")] = None,
    dry_run: DryRun = False,
    id: Identity = None,
) -> Output:
    """Roll back the canary, or the live version if there is no canary.

    Services follow at once, and nobody is interrupted.
    """
    return _order(at, "rollback", policy, why, id, dry_run=dry_run, to=to)


COMMANDS = {  # command → what it is about, what it does
    "resume": (RunText, "Let a paused, frozen or draining run go on."),
    "drain": (RunText, "Drain a run: start nothing new, and stop when running attempts have ended."),
    "cancel": (
        Annotated[str, Argument(metavar="RUN", help="A run, or RUN/NAME: one rollout.")],
        "Cancel a run for good, or one rollout; running attempts are stopped.",
    ),
    "recover": (
        RunText,
        "Release what a dead driver still holds.\n\nIts rollouts wait again; the command that began it goes on.",
    ),
    "requeue": (
        Annotated[str, Argument(metavar="RUN/NAME", help="Both parts may be cut short.")],
        "Give a rollout that failed a fresh set of attempts.\n\nAlso one that is dead or was cancelled.",
    ),
    "ack": (
        Annotated[str, Argument(metavar="CODE[@RUN]", help="As 'holdfast control alerts' lists it.")],
        "Acknowledge an alert.\n\nIt stands until its reason is gone.",
    ),
    "kill": (
        Annotated[str, Argument(metavar="FLAG", help="A feature flag's name.")],
        "Pull a flag's kill switch: off for everybody.\n\n'holdfast release flags revive' releases it.",
    ),
}


def _command(name: str, argument: Any) -> Callable[..., Output]:
    def order(subject: str, why: Why, at: StoreOptions, dry_run: DryRun = False, id: Identity = None) -> Output:
        action = {"ack": "acknowledge", "cancel": "cancel_rollout" if "/" in subject else "cancel"}.get(name, name)
        return _order(at, action, subject, why, id, dry_run=dry_run)

    order.__annotations__["subject"] = argument
    return order


for _name, (_argument, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_command(_name, _argument))


@app.command()
def status(at: StoreOptions, run: RunText = NEWEST) -> Output:
    """Show a run's desired state, who asked for it, and what the run accepts now.

    Also what it may be told now, and what a recovery found.
    """
    from holdfast.operate.lifecycle import report

    with at.existing() as opened:
        found = _newest(opened) if run == NEWEST else opened.runs.get(run)
        payload = report(opened, found, principal=f"local:{who()}", now=time.time())
    return Output(payload, _status_lines(found, payload))


def _status_lines(run: RunRecord, report: dict[str, Any]) -> Iterator[str]:
    control, training = report["control_state"], report["training_status"]
    yield f"{run.id}: {_standing(run, training['running'])}"
    if control["last_action"] is not None:
        ordered = show.local_time(control["updated_unix_ms"] / 1000)
        yield from folded(f"last order: {control['last_action']} by {control['principal']}, {ordered}: {report['why']}")
    came = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in training["outcomes"].items() if n)
    yield f"outcome: {came or 'nothing was answered yet'}"
    counted = ("running", "waiting", "succeeded", "failed", "cancelled")
    yield f"rollouts: {training['total_rollouts']}; {', '.join(f'{training[name]} {name}' for name in counted)}"
    if report["recovery_crash_detected"]:
        yield f"recovered from a crash; checkpoint: {report['recovery_checkpoint_source'] or 'none was needed'}"
    commands = [SPELT.get(order, order) for order in report["allowed_actions"] if order != ALREADY[run.wanted]]
    yield f"accepts: {', '.join(commands) or 'nothing any more'}"


SPELT = {"freeze": "pause --mode freeze"}
ALREADY = {
    DesiredState.RUNNING: "resume",
    DesiredState.PAUSED: "pause",
    DesiredState.FROZEN: "freeze",
    DesiredState.DRAINING: "drain",
    DesiredState.CANCELLED: "cancel",
}  # what it is told already


def _standing(run: RunRecord, running: int) -> str:
    """Names the state of a run; one that is told to pause has paused once nothing runs any more."""
    if run.state is not RunState.RUNNING or run.wanted is DesiredState.RUNNING:
        return str(run.state)
    return f"{run.wanted}; {show.count(running, 'rollout')} still running" if running else str(run.wanted)


@app.command()
def alerts(
    at: StoreOptions,
    every: Annotated[bool, Option("--all", help="Also those that were cleared.")] = False,
    limit: Limit = 50,
) -> Output:
    """List the open alerts, newest first."""
    with at.existing() as opened:
        found = opened.alerts.history(limit) if every else opened.alerts.standing()[:limit]
    if not found:
        return Output([], "no alerts")
    rows = []
    for alert in found:
        code, known = f"{alert.code}@{alert.run}" if alert.run else alert.code, alert.acknowledged_by or ""
        cleared = "cleared" if alert.cleared_at is not None else known
        rows.append((code, str(alert.severity), show.local_time(alert.at)[:16], cleared, alert.message))
    return Output(found, show.table(("alert", "severity", "since", "known to", "~message"), rows))


def here() -> Caller:
    """The local user as an admin: who can open the store needs no token."""
    from holdfast.operate.auth import Caller

    return Caller(label=who(), role=Role.ADMIN)


def give(store: Store, action: str, subject: str, why: str, **args: str | None) -> Any:
    """Gives one command from this machine and returns the answer."""
    from holdfast.operate import control

    return control.answer(store, _body(action, subject, why, None, args), here(), now=time.time())


def _body(action: str, subject: str, why: str, identity: str | None, args: dict[str, str | None]) -> dict[str, Any]:
    given = {name: value for name, value in args.items() if value is not None}
    named = uuid4().hex if identity is None else identity
    return {"id": named, "action": action, "subject": subject, "why": why, "args": given}


def _order(
    at: StoreOptions, action: str, subject: str, why: str, identity: str | None, *, dry_run: bool, **args: str | None
) -> Output:
    from holdfast.operate import control

    with at.existing() as opened:
        named = _newest(opened).id if subject == NEWEST else subject
        body = {**_body(action, named, why, identity, args), "dry_run": dry_run}
        answer = control.answer(opened, body, here(), now=time.time())
    lines = _foreseen(answer) if dry_run else _answered(answer, str(at))
    return Output(answer, "\n".join(lines), int(dry_run and answer["refused"] is not None))


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
    runs = store.runs.newest(most=1)
    if not runs:
        why = f"there is none in project {store.project!r}"
        raise NotFound("run", why=why, remedy="'holdfast run start' begins one")
    return runs[0]
