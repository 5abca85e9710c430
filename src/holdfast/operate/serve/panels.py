"""What the pages ask for: a route for each view, and what may be asked of it, in one table.

What a view tells is `views`' business, how it looks the page's. A question that makes no sense is refused here, so that
a view is only ever asked with values that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

from starlette.datastructures import QueryParams

from holdfast.collect.openapi import JSON, TEXT, Gives, Schema, Told, obj
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import OutcomeKind, RolloutState, Split
from holdfast.operate.look import views

LONGEST = 300  # letters of a name in an address
MOST = 200  # rows of a page
WORDS = {
    400: "the question is wrong: the message names the field",
    401: "the token is missing, wrong or no longer good",
    403: "the role is too low, or the request comes from another site",
    404: "there is no such thing",
    408: "the request did not come in time",
    409: "it cannot be done as things are, or was told otherwise before",
    413: "the request is too large",
    415: "the request is not JSON",
    429: "too many requests; Retry-After says when to come again",
    503: "the store cannot be asked now; ask again",
}
ERROR = obj(("error",), error=obj(("type", "code", "message"), type=TEXT, code=TEXT, message=TEXT))


def refusals(*statuses: int) -> Gives:
    return {status: (WORDS[status], {JSON: ERROR}) for status in statuses}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One field of a question, in the address."""

    name: str
    says: str
    schema: Schema
    is_needed: bool = False
    into: str = ""  # what the view calls it, where that is another word

    def told(self) -> Mapping[str, Any]:
        told = {"name": self.name, "in": "query", "description": self.says, "schema": self.schema}
        return told | {"required": self.is_needed}

    def read(self, given: QueryParams) -> str | float | None:
        values = given.getlist(self.name)
        if len(values) > 1:
            raise BadInput(self.name, why="is given twice", remedy="give it once")
        if not values:
            if self.is_needed:
                raise BadInput(self.name, why="is missing", remedy=f"give {self.name}=…")
            return None
        if self.schema["type"] == "integer":
            return self._whole(values[0])
        if self.schema["type"] == "number":
            return self._number(values[0])
        if "enum" in self.schema and values[0] not in self.schema["enum"]:
            raise BadInput(f"{self.name} = {values[0][:60]!r}", why=f"must be one of {', '.join(self.schema['enum'])}")
        if not 0 < len(values[0]) <= LONGEST or "\0" in values[0]:
            raise BadInput(self.name, why=f"must be a text of 1 to {LONGEST} letters")
        return values[0]

    def _whole(self, text: str) -> int:
        low, high = self.schema["minimum"], self.schema["maximum"]
        if not (text.isascii() and text.isdecimal()) or len(text) > 18 or not low <= int(text) <= high:
            raise BadInput(f"{self.name} = {text[:60]!r}", why=f"must be a whole number from {low} to {high}")
        return int(text)

    def _number(self, text: str) -> float:
        with suppress(ValueError):
            if isfinite(found := float(text)) and text.isascii() and abs(found) <= 1e12:
                return found
        raise BadInput(f"{self.name} = {text[:60]!r}", why="must be a number")


def text(name: str, says: str, *, needed: bool = False, into: str = "") -> Param:
    schema = {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": "^[^\\u0000]+$"}
    return Param(name=name, says=says, schema=schema, is_needed=needed, into=into)


def choice(name: str, says: str, values: Sequence[str]) -> Param:
    return Param(name=name, says=says, schema={"type": "string", "enum": list(values)})


def whole(name: str, says: str, high: int, low: int = 1) -> Param:
    return Param(name=name, says=says, schema={"type": "integer", "minimum": low, "maximum": high})


def number(name: str, says: str) -> Param:
    return Param(name=name, says=says, schema={"type": "number", "minimum": -1e12, "maximum": 1e12})


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    name: str  # /api/<name>
    says: str
    view: Callable[..., dict[str, Any]]  # (store, **params, now=…)
    takes: tuple[Param, ...] = ()

    def read(self, given: QueryParams) -> dict[str, Any]:
        unknown = sorted(set(given) - {param.name for param in self.takes})
        if unknown:
            known = ", ".join(param.name for param in self.takes) or "nothing"
            raise BadInput(unknown[0][:60], why="is unknown here", remedy=f"{self.name} takes {known}")
        read = {param.into or param.name: param.read(given) for param in self.takes}
        return {name: value for name, value in read.items() if value is not None}

    def told(self) -> Told:
        gives = {200: ("what it shows", {JSON: {"type": "object"}}), **refusals(400, 401, 403, 404, 429, 503)}
        return Told(name=self.name, says=self.says, gives=gives, headers=[param.told() for param in self.takes])


KEY = 2**62
RUN = text("run", "A run's id, or the beginning of it.", needed=True, into="run_id")
PAGE = whole("most", "At most so many.", MOST)
FROM = text("before", "The id of the last one already seen.")
AFTER = whole("before", "The `next` of the page before.", KEY)

PANELS: tuple[Panel, ...] = (
    Panel(name="overview", says="What is live and why, whether it is well, and what goes on", view=views.overview),
    Panel(name="runs", says="The runs, newest first", view=views.runs, takes=(PAGE, FROM)),
    Panel(name="run", says="One run", view=views.run, takes=(RUN,)),
    Panel(
        name="rollouts",
        says="Rollouts of a run, newest first",
        view=views.rollouts,
        takes=(
            RUN,
            PAGE,
            AFTER,
            choice("outcome", "Only those.", [str(one) for one in OutcomeKind if one is not OutcomeKind.NO_ANSWER]),
            choice("status", "Only those.", [str(one) for one in RolloutState]),
            choice("split", "Only those.", [str(one) for one in Split]),
            text("text", "A part of the name."),
            number("least", "The least reward."),
            number("most_reward", "The most reward."),
        ),
    ),
    Panel(
        name="rollout",
        says="One rollout, turn by turn",
        view=views.rollout,
        takes=(
            text("rollout", "RUN/NAME.", needed=True, into="rollout_id"),
            whole("attempt", "This try, and not the deciding one.", 2**31 - 1),
        ),
    ),
    Panel(
        name="group",
        says="The rollouts of a group side by side",
        view=views.group,
        takes=(
            RUN,
            text("group", "Which.", needed=True, into="name"),
            whole("near", "The key of one of them.", KEY, low=0),
        ),
    ),
    Panel(name="learning", says="How a run learns", view=views.learning, takes=(RUN,)),
    Panel(name="tools", says="How far tools are adopted", view=views.tools, takes=(RUN, PAGE)),
    Panel(name="budgets", says="Thinking budgets of a run", view=views.budgets, takes=(RUN, PAGE, AFTER)),
    Panel(name="proofs", says="Versions that rest on evidence", view=views.proofs),
    Panel(
        name="proof",
        says="What a version's last decision rests on",
        view=views.proof,
        takes=(text("release", "POLICY@N.", needed=True, into="release_id"),),
    ),
    Panel(name="experiments", says="Experiments, newest first", view=views.experiments),
    Panel(
        name="experiment",
        says="One experiment, and what it comes to",
        view=views.experiment,
        takes=(text("name", "Which.", needed=True),),
    ),
    Panel(
        name="releases",
        says="The versions of a policy, its guard and its history",
        view=views.releases,
        takes=(text("policy", "Which; without it, the first."),),
    ),
    Panel(name="workers", says="Who works", view=views.workers, takes=(PAGE,)),
    Panel(name="alerts", says="What stands, and what stood", view=views.alerts, takes=(PAGE, FROM)),
    Panel(
        name="audit",
        says="The ledger, newest first",
        view=views.audit,
        takes=(
            PAGE,
            AFTER,
            text("run", "Only about this run.", into="run_id"),
            text("kind", "Only of this kind."),
        ),
    ),
    Panel(name="flags", says="Feature flags", view=views.flags),
)
