"""`holdfast release flags …`: switch feature flags, for whom, and why; and the text form of their rules."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import CommandSet, Output, StoreOptions, Why, who
from holdfast.cli.show import fold, step
from holdfast.contracts.errors import BadInput, Conflict
from holdfast.contracts.flag import OPERATORS, Condition, Flag, FlagRule
from holdfast.contracts.records import loads
from holdfast.promote import flags
from holdfast.promote.flags import UNSAID, check, features, kill_variable, needed_by, units_of

if TYPE_CHECKING:
    from holdfast.store.store import Store


FORM = "VARIANT [PERCENT%] [if ATTRIBUTE OPERATOR VALUE [and …]]"


def rule_of(text: str) -> FlagRule:
    """The rule that the text says, or BadInput with the form of one."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"rule {text!r}", why=str(error), remedy=f"write {FORM}") from None
    if not words:
        raise BadInput("rule", why="is empty", remedy=f"write {FORM}")
    variant, *rest = words
    percent = 100.0
    if rest and rest[0] != "if":
        if not re.match(r"[-+.\d]", rest[0]):  # iff, when, many
            why = f"{rest[0]!r} is neither a share, such as 25%, nor the word if"
            raise BadInput(f"rule {text!r}", why=why, remedy=f"write {FORM}")
        percent = percent_of(rest.pop(0))
    if not rest:
        return FlagRule(variant=variant, percent=percent)
    if rest.pop(0) != "if":
        raise BadInput(f"rule {text!r}", why="has words where 'if' should stand", remedy=f"write {FORM}")
    conditions = []
    while True:
        if len(rest) < 3 or (len(rest) > 3 and rest[3] != "and"):
            why = "a condition is an attribute, an operator and one value (with quotes where it has blanks)"
            raise BadInput(f"rule {text!r}", why=why, remedy=f"write {FORM}")
        attribute, operator, value, *rest = rest
        conditions.append(_condition(attribute, operator, value))
        if not rest:
            return FlagRule(variant=variant, percent=percent, conditions=tuple(conditions))
        rest.pop(0)


def text_of(rule: FlagRule) -> str:
    """The rule as `rule_of` reads it."""
    shown = f"{rule.percent:g}" if float(f"{rule.percent:g}") == rule.percent else repr(rule.percent)
    share = "" if rule.percent == 100.0 else f" {shown}%"
    parts = [
        f"{shlex.quote(condition.attribute)} {condition.operator} {shlex.quote(_written(condition))}"
        for condition in rule.conditions
    ]
    return shlex.quote(rule.variant) + share + (f" if {' and '.join(parts)}" if parts else "")


def percent_of(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0.0 <= percent <= 100.0:
        raise BadInput(f"percent {text!r}", why="must be a number from 0 to 100, such as 25%")
    return percent


def value_of(text: str) -> Any:
    """JSON where it is JSON (true, 3, "3", [1, 2]), else the text itself."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def pair_of(text: str, option: str) -> tuple[str, str]:
    """`name=value`, of an option that can be given several times."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise BadInput(f"{option} {text!r}", why="must be NAME=VALUE")
    return name.strip(), value


def _condition(attribute: str, operator: str, text: str) -> Condition:
    if operator not in OPERATORS:
        raise BadInput(f"operator {operator!r}", why="is unknown", remedy=f"use {', '.join(OPERATORS)}")
    value = value_of(text)
    if operator in ("in", "not_in") and not isinstance(value, list):
        value = [value_of(part.strip()) for part in text.split(",")]
    elif operator in ("prefix", "suffix") and not isinstance(value, str):
        value = text  # `prefix 41` means the letters
    return Condition(attribute=attribute, operator=operator, value=value)


def _written(condition: Condition) -> str:
    value = condition.value
    if isinstance(value, str) and (condition.operator in ("prefix", "suffix") or value_of(value) == value):
        return value
    listed = ",".join(map(str, value)) if isinstance(value, list | tuple) else ""
    if listed and _condition(condition.attribute, condition.operator, listed).value == list(value):
        return listed
    return json.dumps(value, ensure_ascii=False)


app = CommandSet("Feature flags.")

TRIES = 5  # when others change the same flag at the same time
BY_HAND = "by hand"  # where nobody gives a reason
Name = Annotated[str, Argument(metavar="NAME", help="The flag's name.")]
Many = list[str] | None


@app.command("list")
def list_(at: StoreOptions) -> Output:
    """List the flags."""
    with at.existing() as opened:
        found = opened.flags.all()
    if not found:
        begin = (*step(f"holdfast release flags init{at}"), *step(f"holdfast release flags set NAME{at}"))
        return Output([], "\n".join((f"no flags in project {at.project}; to begin:", *begin)))
    rows = [(flag.name, _state(flag), _rules(flag), _required(flag) or None) for flag in found]
    return Output(found, show.table(("flag", "state", "~rules", "~requires"), rows))


@app.command("show")
def show_(name: Name, at: StoreOptions) -> Output:
    """Show one flag: its variants, its rules in their order, what it requires."""
    with at.existing() as opened:
        flag = opened.flags.get(name)
    about = f"; {show.one_line(flag.description)}" if flag.description else ""
    lines = [fold(f"{flag.name}: {_state(flag)}{about}")]
    for variant, value in flag.variants.items():
        lines.append(f"  variant {variant} = {_as_json(value)}" + ("  (off)" if variant == flag.off else ""))
    lines += [f"  rule {number}: {text_of(rule)}" for number, rule in enumerate(flag.rules, 1)]
    lines += [f"  requires {other} = {variant}" for other, variant in flag.requires.items()]
    expires = "never" if flag.expires_at is None else show.local_time(flag.expires_at)
    lines.append(f"  owner {flag.owner or '-'}, expires {expires}, changed {show.local_time(flag.changed_at)}")
    return Output(flag, "\n".join([*lines, *_shared(name)]))


@app.command("set")
def set_(
    name: Name,
    at: StoreOptions,
    why: Why = BY_HAND,
    variant: Annotated[Many, Option(metavar="NAME=VALUE", help="Several; else on=true, off=false.")] = None,
    off: Annotated[str | None, Option(metavar="VARIANT", help="What was there before the feature.")] = None,
    rule: Annotated[Many, Option(metavar="RULE", help="Several: 'on 25% if group in staff,beta'.")] = None,
    requires: Annotated[Many, Option(metavar="FLAG=VARIANT", help="What else must be so; several.")] = None,
    salt: Annotated[str | None, Option(metavar="TEXT", help="Flags of one salt divide people alike.")] = None,
    description: Annotated[str | None, Option(metavar="TEXT", help="What it switches.")] = None,
    owner: Annotated[str | None, Option(metavar="NAME", help="Who looks after it; else you.")] = None,
    expires: Annotated[str | None, Option(metavar="DATE", help="2030-01-31, or never.")] = None,
    file: Annotated[Path | None, Option(metavar="FILE", help="All of it, as JSON; - is stdin.")] = None,
) -> Output:
    """Make a flag, or change parts of one; what is not given stays. A new one is off until it is enabled."""
    given: dict[str, Any] = {"off": off, "salt": salt, "description": description, "owner": owner}
    named = dict(pair_of(text, "--variant") for text in variant or ())
    given["variants"] = {name: value_of(text) for name, text in named.items()} or None
    given["rules"] = tuple(rule_of(text) for text in rule) if rule else None
    given["requires"] = dict(pair_of(text, "--requires") for text in requires) if requires else None
    given = {key: value for key, value in given.items() if value is not None}
    if expires is not None:
        given["expires_at"] = _moment(expires)
    whole = None if file is None else _read(file, name, given)
    with at.open(migrate=False) as opened:
        if whole is not None or {"variants", "rules", "off"}.intersection(given):
            _refuse_in_experiment(opened, name, at)
        before = {flag.name: flag for flag in opened.flags.all()}
        flag = whole or (replace(before[name], **given) if name in before else _new_flag(name, given))
        check(flag, before)
        after = opened.flags.put(flag, who=who(), why=why, now=time.time(), seen=before.get(name)).result()
    return _answer(after, f"{'changed' if name in before else 'made'}, {_state(after)}: {_rules(after)}")


@app.command()
def enable(name: Name, at: StoreOptions, why: Why = BY_HAND) -> Output:
    """Enable a flag: its rules decide from now on."""
    return _switch(at, name, why, enabled=True)


@app.command()
def disable(name: Name, at: StoreOptions, why: Why = BY_HAND) -> Output:
    """Disable a flag: everybody gets its off variant."""
    return _switch(at, name, why, enabled=False)


@app.command()
def kill(name: Name, at: StoreOptions, why: Why = "killed by an operator") -> Output:
    """Pull the kill switch: off for everybody, whatever else is changed, until it is revived."""
    return _switch(at, name, why, killed=True)


@app.command()
def revive(name: Name, at: StoreOptions, why: Why = BY_HAND) -> Output:
    """Release the kill switch; the flag is again what it was before."""
    return _switch(at, name, why, killed=False)


@app.command()
def rollout(
    name: Name,
    percent: Annotated[str, Argument(metavar="PERCENT", help="0 to 100; who is in stays in while it grows.")],
    at: StoreOptions,
    why: Why = BY_HAND,
    variant: Annotated[str | None, Option(metavar="VARIANT", help="Needed when it has more than two.")] = None,
) -> Output:
    """Give a variant to a share of all keys: the last rule without conditions gets this percentage.

    Of the flags that holdfast itself asks for, a share is one of tasks, or of the users that they name, all attempts
    at a task alike; of agenticRL.trainingPipeline it is one of runs.
    """
    share = percent_of(percent)
    with at.existing() as opened:
        _refuse_in_experiment(opened, name, at)
        after = _change(opened, name, lambda flag: _ramped(flag, variant, share), why)
    return _answer(after, f"{_state(after)}: {_rules(after)}", *_shared(name))


@app.command("eval")
def evaluate(
    name: Name,
    at: StoreOptions,
    key: Annotated[str | None, Option(metavar="KEY", help="Who it is about.")] = None,
    run: Annotated[str | None, Option(metavar="RUN", help="The same for a run, by its key.")] = None,
    attr: Annotated[Many, Option(metavar="NAME=VALUE", help="More about them; several.")] = None,
) -> Output:
    """Evaluate a flag for a key and explain the result."""
    from holdfast.contracts.flag import run_unit
    from holdfast.operate.switches import snapshot_of

    if key is not None and run is not None:
        raise BadInput("--run", why="and --key were both given", remedy="give one of the two")
    told = (pair_of(text, "--attr") for text in attr or ())
    context: dict[str, Any] = {attribute: value_of(text) for attribute, text in told}
    with at.existing() as opened:
        now = snapshot_of(opened, clock=time.time, environment=os.environ)
        if name not in now.flags:
            opened.flags.get(name)  # a name that is not there is a mistake of whoever asks
        key = key if run is None else run_unit(opened.runs.get(run).id)
    if key is not None:
        context[flags.KEY] = key
    value = flags.evaluate(name, now.flags, context, now=now.now, environment=os.environ, trials=now.trials)
    message = fold(f"{name}: {value.variant} = {_as_json(value.value)} ({value.reason}: {value.detail})")
    return Output({"flag": name, **asdict(value)}, message)


@app.command()
def drop(name: Name, at: StoreOptions, why: Why = BY_HAND) -> Output:
    """Remove a flag that nothing evaluates any more."""
    with at.existing() as opened:
        _refuse_in_experiment(opened, name, at)
        if others := needed_by(name, {flag.name: flag for flag in opened.flags.all()}):
            raise BadInput(f"flag {name}", why=f"{', '.join(others)} requires it", remedy="change or drop that first")
        before = opened.flags.drop(name, who=who(), why=why, now=time.time()).result()
    return _answer(before, f"dropped, was {_state(before)}")


@app.command()
def init(at: StoreOptions, why: Why = "the flags that a project begins with") -> Output:
    """Create the flags of Holdfast's own features, with their values of now; existing flags stay.

    All are on, but those whose ENABLE_… variable says no.
    """
    with at.open(migrate=False) as opened:
        before = {flag.name for flag in opened.flags.all()}
        new = [flag for flag in features(os.environ, owner=who()) if flag.name not in before]
        pending = [opened.flags.put(flag, who=who(), why=why, now=time.time()) for flag in new]
        made = [future.result() for future in pending]
    if not made:
        message = f"all {len(features(os.environ, owner=who()))} are there already, and stay as they are"
        ways = (("list", "shows them"), ("disable NAME", "turns one off"))
        commands = (line for word, about in ways for line in step(f"holdfast release flags {word}{at}", about))
        return Output([], "\n".join((message, *commands)))
    off = [flag.name for flag in made if not flag.enabled]
    which = f"off: {', '.join(off)}" if off else "all of them on"
    return Output(made, fold(f"{show.count(len(made), 'flag')} made, {which}"))


def _refuse_in_experiment(store: Store, name: str, at: StoreOptions) -> None:
    """Refuses changes while an experiment decides who gets what; the kill switch and `disable` still work."""
    if trial := flags.running(store.trials.all(), time.time()).get(name):
        why, stop = f"experiment {trial.name} decides who gets what", f"holdfast release experiment stop {name}{at}"
        raise BadInput(f"flag {name}", why=why, remedy=f"end that first: {stop}; or kill the flag")


def _switch(at: StoreOptions, name: str, why: str, **to: Any) -> Output:
    with at.existing() as opened:
        before = opened.flags.get(name)
        after = _change(opened, name, lambda flag: replace(flag, **to), why)
        every = {flag.name: flag for flag in opened.flags.all()}
    waits = []
    for other, variant in after.requires.items() if to.get("enabled") else ():
        if other in every and variant != every[other].off and not (every[other].enabled and not every[other].killed):
            waits.append(fold(f"it stays off until {other} = {variant}, which is {_state(every[other])}"))
    return _answer(after, f"{_state(after)}, was {_state(before)}", *waits)


def _change(store: Store, name: str, change: Callable[[Flag], Flag], why: str) -> Flag:
    """Change what is there now, even when somebody else changes it too."""
    for tried in range(TRIES):
        before = store.flags.get(name)
        try:
            return store.flags.put(change(before), who=who(), why=why, now=time.time(), seen=before).result()
        except Conflict:
            if tried == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _new_flag(name: str, given: dict[str, Any]) -> Flag:
    variants = given.setdefault("variants", {"on": True, "off": False})
    if "off" not in given and "off" not in variants:
        what = f"flag {name}: variants {', '.join(variants)}"
        raise BadInput(what, why="none is called off", remedy="say which was there before the feature: --off VARIANT")
    off = given.setdefault("off", "off")
    others = [variant for variant in variants if variant != off]
    if len(others) == 1:
        given.setdefault("rules", (FlagRule(variant=others[0]),))
    given.setdefault("owner", who())
    return Flag(name=name, **given)


def _ramped(flag: Flag, variant: str | None, percent: float) -> Flag:
    others = [variant for variant in flag.variants if variant != flag.off]
    if variant is None and len(others) != 1:
        raise BadInput(f"flag {flag.name}", why=f"has the variants {', '.join(others)}", remedy="say which: --variant")
    chosen = variant or others[0]
    kept = list(flag.rules)
    places = [place for place, rule in enumerate(kept) if rule.variant == chosen and not rule.conditions]
    if places:
        kept[places[-1]] = replace(kept[places[-1]], percent=percent)
    else:
        kept.append(FlagRule(variant=chosen, percent=percent))
    return replace(flag, rules=tuple(kept))


def _moment(text: str) -> float | None:
    if text == "never":
        return None
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"--expires {text!r}", why="is not a date", remedy="write 2030-01-31, or never") from None


def _read(file: Path, name: str, given: dict[str, Any]) -> Flag:
    if given:
        raise BadInput("--file", why=f"says all of it, so --{next(iter(given))} cannot be given too")
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(file), why=f"cannot be read: {error}") from None
    flag = loads(Flag, text)
    if flag.name != name:
        raise BadInput(f"{file}: name = {flag.name!r}", why=f"is not {name!r}", remedy="give the same name twice")
    return flag


def _state(flag: Flag) -> str:
    if os.environ.get(kill_variable(flag.name), "").strip().lower() not in UNSAID:
        return "killed here"  # by the environment: of this process, not of others
    if flag.killed:
        return "killed"
    if not flag.enabled:
        return "off"
    return "expired" if flag.expires_at is not None and time.time() >= flag.expires_at else "on"


def _shared(name: str) -> list[str]:
    """Whom a share of one of holdfast's own flags is a share of; empty: whoever asks gives keys of their own."""
    return [f"  a share is one of {units}"] if (units := units_of(name)) else []


def _rules(flag: Flag) -> str:
    return "; ".join(map(text_of, flag.rules)) or "no rules"


def _as_json(value: Any) -> str:
    return show.one_line(json.dumps(value, ensure_ascii=False))


def _required(flag: Flag) -> str:
    """Lists the flags that it requires; those of its own group in short, as in `.enabled=on`."""
    group = flag.name.rpartition(".")[0] or flag.name
    pairs = flag.requires.items()
    return ", ".join(
        f"{other.removeprefix(group) if '.' in flag.name else other}={variant}" for other, variant in pairs
    )


def _answer(flag: Flag, message: str, *more: str) -> Output:
    return Output(flag, "\n".join((fold(f"{flag.name}: {message}"), *more)))
