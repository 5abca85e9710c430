"""The one desk for orders: who may give which, what each would do, and doing it once. The command line, HTTP and MCP
all come here.

An order only writes down what is wanted; whoever it concerns reads that and obeys. Every order, and every refusal, is
in the ledger. How an order reaches this desk, and in which shape the answer goes back, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.contracts.access import Forbidden, Role
from holdfast.contracts.errors import BadInput, HoldfastError, NotFound, Refused
from holdfast.contracts.orders import Command
from holdfast.operate.auth import Caller
from holdfast.operate.deeds import PLANS, Plan
from holdfast.store.store import Store

REFUSALS = (Forbidden, Refused, NotFound, BadInput)  # the rest is trouble, and not an answer
LONGEST_WHY, LONGEST_NAME = 2000, 500  # letters
FIELDS = ("id", "action", "subject", "args", "why", "dry_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What may be said with an order, beside its subject."""

    help: str
    choices: tuple[str, ...] = ()  # none: any text
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What may be ordered, by whom, and about what."""

    name: str
    role: Role  # the least that is needed
    subject: str  # "run", "rollout", "policy", "flag", "alert"
    help: str
    args: Mapping[str, Argument] = field(default_factory=dict)


def _actions(*listed: tuple[str, str, str, Mapping[str, Argument]]) -> Mapping[str, Action]:
    return {
        name: Action(name=name, role=Role.OPERATOR, subject=subject, help=text, args=args)
        for name, subject, text, args in listed
    }


MODE = Argument(help="drain lets what runs go on; freeze hands it back.", choices=("drain", "freeze"), default="drain")
TO = Argument(help="The version to go back to; else the last that is known to be good.")
ACTIONS: Mapping[str, Action] = _actions(
    ("pause", "run", "Nothing new is begun until it is resumed.", {"mode": MODE}),
    ("resume", "run", "It goes on.", {}),
    ("drain", "run", "Nothing new is begun; when what runs is done, the run stops.", {}),
    ("cancel", "run", "It ends for good; what runs is interrupted.", {}),
    ("recover", "run", "Its driver died: what that left behind is given back.", {}),
    ("requeue", "rollout", "A failed, dead or cancelled rollout gets a fresh set of attempts.", {}),
    ("cancel_rollout", "rollout", "One rollout ends, done or not.", {}),
    ("rollback", "policy", "The canary, or else the live version, is taken back.", {"to": TO}),
    ("acknowledge", "alert", "Somebody knows of it; it stands until its reason is gone.", {}),
    ("kill", "flag", "The kill switch: off for everybody, until it is revived.", {}),
)


# The desk ------------------------------------------------------------------------------------------------------------


def read(body: Any, caller: Caller, *, now: float) -> tuple[Command, bool]:
    """`{"id", "action", "subject", "args", "why", "dry_run"}` as an order, and whether it is for show only.

    Who gives it is the caller's token to say.
    """
    if not isinstance(body, dict):
        raise BadInput("order", why="is not a JSON object", remedy=f"send {', '.join(FIELDS)}")
    unknown = sorted(set(body) - set(FIELDS))
    if unknown:
        raise BadInput(f"order: {unknown[0][:40]!r}", why="is unknown", remedy=f"send {', '.join(FIELDS)}")
    is_dry, args = body.get("dry_run", False), body.get("args", {})
    if not isinstance(is_dry, bool):
        raise BadInput("order: dry_run", why="must be true or false")
    if not isinstance(args, dict) or not all(map(_is_plain, args.values())):
        raise BadInput("order: args", why="must be names with texts")
    words = {name: _text(body, name, is_dry) for name in ("id", "action", "subject", "why")}
    return Command(**words, who=caller.label, at=now, args=args), is_dry


def _text(body: Mapping[str, Any], name: str, is_dry: bool) -> str:
    """A word of the order; who only looks needs neither an id nor a reason."""
    found = body.get(name, "dry run" if is_dry and name in ("id", "why") else None)
    if not isinstance(found, str) or not found.strip():
        raise BadInput(f"order: {name}", why="is missing, or not a text", remedy=f"send {', '.join(FIELDS)}")
    if name != "why" and not _is_plain(found):  # a reason may have lines, a name is one that a store can look up
        raise BadInput(f"order: {name}", why="is too long, or has letters in it that cannot be seen")
    if len(found) > LONGEST_WHY:
        raise BadInput("order: why", why=f"is longer than {LONGEST_WHY} letters", remedy="say it in a sentence")
    return found


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_NAME


def look(store: Store, command: Command) -> dict[str, Any]:
    """What the order would come to: before, after, who would be affected, and why it would be refused, if it would."""
    told: dict[str, Any] = {"action": command.action, "subject": command.subject, "kind": None}
    try:
        told["kind"] = _action(command).subject
        plan = _plan(store, command)
        return told | {
            "subject": plan.subject,
            "before": dict(plan.before),
            "after": dict(plan.after),
            "changes": plan.is_change,
            "affected": dict(plan.affected()),
            "said": _said(plan),
            "refused": None,
        }
    except REFUSALS as error:
        nothing: dict[str, Any] = {"before": None, "after": None, "changes": False, "affected": {}}
        return told | nothing | {"said": str(error), "refused": refusal(error)}


def take(store: Store, command: Command, caller: Caller, *, is_dry: bool = False) -> dict[str, Any]:
    """Obey the order once, or refuse it; either is in the ledger. A dry run only looks.

    The answer has `id`, `action`, `subject` in full, `before`, `after`, `changes`, `again` (it had been obeyed before)
    and `said`, and more by action.
    """
    command = replace(command, who=caller.label)
    try:
        action = ACTIONS.get(command.action)
        if action is not None and not caller.role.may(action.role):
            why = f"is for {action.role}s, and {caller.label} is a {caller.role}"
            raise Forbidden(command.action, why=why, remedy=f"use the token of one who is {action.role}")
        if is_dry:
            return {"id": command.id, "dry_run": True, **look(store, command)}
        _action(command)
        found = store.commands.known(command)
        if found is not None:
            return {**found.body, "again": True}
        plan = _plan(store, command)
        told = {
            "id": command.id,
            "action": command.action,
            "subject": plan.subject,
            "before": dict(plan.before),
            "after": dict(plan.after),
            "changes": plan.is_change,
            "said": _said(plan),
            **plan.first(),
        }
        answer = store.commands.once(command, caller.role, lambda tx: {**told, **plan.act(tx)}, run=plan.run).result()
    except REFUSALS as error:
        store.commands.refused(command, caller.role, str(error), run=_run_of(store, command)).result()
        raise
    return {**answer.body, "again": answer.again, **({} if answer.again else plan.then())}


def refusal(error: HoldfastError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "why": error.why, "remedy": error.remedy}


def _run_of(store: Store, command: Command) -> str | None:
    """The run that an order was about, if there is one."""
    if ACTIONS.get(command.action) is None or ACTIONS[command.action].subject not in ("run", "rollout"):
        return None
    try:
        return store.runs.get(command.subject.partition("/")[0]).id
    except NotFound:
        return None


def _action(command: Command) -> Action:
    """The action, once it is known and its arguments are its own."""
    action = ACTIONS.get(command.action)
    if action is None:
        known = ", ".join(ACTIONS)
        raise BadInput(f"order {command.action[:40]!r}", why="is unknown", remedy=f"there are {known}")
    for name, value in command.args.items():
        if name not in action.args:
            known = ", ".join(action.args) or "none"
            raise BadInput(f"{action.name}: {name[:40]!r}", why="is not an argument of it", remedy=f"there is {known}")
        choices = action.args[name].choices
        if choices and value not in choices:
            raise BadInput(
                f"{action.name}: {name} = {value!s:.40}", why="is unknown", remedy=f"use {', '.join(choices)}"
            )
    return action


def _plan(store: Store, command: Command) -> Plan:
    return PLANS[ACTIONS[command.action].subject](store, command)


def _said(plan: Plan) -> str:
    """In one sentence: what it is, and what it was."""
    if not plan.is_change:
        return f"{plan.subject}: {', '.join(_words(plan.after).values())}, as before"
    now, was = _words(plan.after), _words(plan.before)
    told = [f"{name} {now[name]}, was {was[name]}" for name in now if now[name] != was[name]]
    return f"{plan.subject}: {'; '.join(told)}"


def _words(told: Mapping[str, Any]) -> dict[str, str]:
    plain = {None: "nobody", True: "yes", False: "no"}
    return {name.replace("_", " "): plain.get(value, str(value)) for name, value in told.items()}
