"""The one desk for orders: who may give which, what each would do, and doing it once. The command line, HTTP and MCP
all come here.

An order only writes down what is wanted; whoever it concerns reads that and obeys. Every order, and every refusal, is
in the ledger. How an order reaches this desk, and in which shape the answer goes back, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.contracts.commands import LONGEST, LONGEST_WHY, Command, Forbidden, Role, check_why
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, HoldfastError, NotFound, Refused
from holdfast.operate.actions import ALONE, PLANS, ActionPlan
from holdfast.operate.auth import Caller
from holdfast.store.commands import CommandResult
from holdfast.store.locks import locked
from holdfast.store.store import Store

REFUSALS = (Forbidden, Refused, NotFound, BadInput)  # the rest is trouble, and not an answer
LONGEST_NAME = 500  # letters
FIELDS = ("id", "action", "subject", "args", "why", "dry_run")
LOCK = "orders.lock"  # beside the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What may be said with an order, beside its subject."""

    help: str
    choices: tuple[str, ...] = ()  # none: any text
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandKind:
    """What may be ordered, by whom, and about what."""

    name: str
    role: Role  # the least that is needed
    subject: str  # "run", "rollout", "policy", "flag", "alert"
    help: str
    args: Mapping[str, Argument] = field(default_factory=dict)


def _actions(*listed: tuple[str, str, str, Mapping[str, Argument]]) -> Mapping[str, CommandKind]:
    return {
        name: CommandKind(name=name, role=Role.OPERATOR, subject=subject, help=text, args=args)
        for name, subject, text, args in listed
    }


MODE = Argument(help="drain lets what runs go on; freeze hands it back.", choices=("drain", "freeze"), default="drain")
TO = Argument(help="The version to go back to; else the last that is known to be good.")
ACTIONS: Mapping[str, CommandKind] = _actions(
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


def answer(store: Store, body: Any, caller: Caller, *, now: float) -> dict[str, Any]:
    """Read an order and take it; one that cannot be read is refused, and in the ledger as every refusal is."""
    try:
        command, is_dry = read(body, caller, now=now)
    except BadInput as error:
        if not isinstance(body, dict) or body.get("dry_run") is not True:
            note(store, body, error, who=caller.label, role=caller.role, now=now)
        raise
    return take(store, command, caller, is_dry=is_dry)


def note(store: Store, body: Any, error: HoldfastError, *, who: str, role: str, now: float) -> None:
    """Put on record that something was refused which is no order: what of it can be read, and why not."""
    given = body if isinstance(body, dict) else {}
    words: dict[str, Any] = {name: _shown(given.get(name), most) for name, most in NOTED.items()}
    command = Command(**words, who=who, at=now)
    store.commands.refused(command, role, str(error)[:LONGEST_WHY], run=_run_of(store, command)).result()


NOTED = {"id": LONGEST, "action": LONGEST_NAME, "subject": LONGEST_NAME, "why": LONGEST_WHY}


def _shown(value: Any, most: int) -> str:
    """As much of it as a command may have."""
    letters = value[:most] if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else "\ufffd" for one in letters).strip() or "?"


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
    try:
        return Command(**words, who=caller.label, at=now, args=args), is_dry
    except BadRecord as error:  # it was asked for so, and not kept so
        raise BadInput(error.what, why=error.why, remedy=error.remedy) from None


def _text(body: Mapping[str, Any], name: str, is_dry: bool) -> str:
    """A word of the order; who only looks needs neither an id nor a reason."""
    found = body.get(name, "dry run" if is_dry and name in ("id", "why") else None)
    if not isinstance(found, str) or not found.strip():
        raise BadInput(f"order: {name}", why="is missing, or not a text", remedy=f"send {', '.join(FIELDS)}")
    if name != "why" and not _is_plain(found):  # a reason may have lines, a name is one that a store can look up
        raise BadInput(f"order: {name}", why="is too long, or has letters in it that cannot be seen")
    if name == "why":
        check_why("order", found)
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
        check_why("order", command.why)
        _action(command)
        with locked(store.folder / LOCK) if command.action in ALONE else nullcontext():
            found, then = _obey(store, command, caller)
    except REFUSALS as error:
        if not is_dry and (before := _meanwhile(store, command)) is not None:
            return {**before.body, "again": True}
        kept = replace(command, why=command.why[:LONGEST_WHY])
        store.commands.refused(kept, caller.role, str(error), run=_run_of(store, command)).result()
        raise
    return {**found.body, "again": found.again, **({} if found.again else then())}


def _obey(store: Store, command: Command, caller: Caller) -> tuple[CommandResult, Callable[[], Mapping[str, Any]]]:
    """The answer, and what may yet be done about it."""
    before = store.commands.known(command)
    if before is not None:
        return before, dict
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
    found = store.commands.once(command, caller.role, lambda tx: {**told, **plan.act(tx)}, run=plan.run).result()
    return found, plan.then


def _meanwhile(store: Store, command: Command) -> CommandResult | None:
    """What the very same order came to, where another was faster with it: what that did is why this one is refused."""
    with suppress(Conflict):
        return store.commands.known(command)
    return None


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


def _action(command: Command) -> CommandKind:
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


def _plan(store: Store, command: Command) -> ActionPlan:
    return PLANS[ACTIONS[command.action].subject](store, command)


def _said(plan: ActionPlan) -> str:
    """In one sentence: what it is, and what it was."""
    if not plan.is_change:
        return f"{plan.subject}: {', '.join(_words(plan.after).values())}, as before"
    now, was = _words(plan.after), _words(plan.before)
    told = [f"{name} {now[name]}, was {was[name]}" for name in now if now[name] != was[name]]
    return f"{plan.subject}: {'; '.join(told)}"


def _words(told: Mapping[str, Any]) -> dict[str, str]:
    plain = {None: "nobody", True: "yes", False: "no"}
    return {name.replace("_", " "): plain.get(value, str(value)) for name, value in told.items()}
