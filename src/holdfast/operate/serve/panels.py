"""The routes of the pages: one for each view, with the parameters it takes, in one table.

Invalid parameters are refused here, so that a view only gets values that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

from starlette.datastructures import QueryParams

from holdfast.collect.openapi import JSON, TEXT, ApiOperation, Gives, Schema, obj
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import OutcomeKind, RolloutState, Split
from holdfast.operate.look import conversation, lessons, standings, views

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
    """One query parameter."""

    name: str
    says: str
    schema: Schema
    is_needed: bool = False
    into: str = ""  # the name of the view's parameter, where it differs

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
        value, given_as = values[0], f"{self.name} = {values[0][:60]!r}"
        if self.schema["type"] == "integer":
            low, high = self.schema["minimum"], self.schema["maximum"]
            if not (value.isascii() and value.isdecimal()) or len(value) > 18 or not low <= int(value) <= high:
                raise BadInput(given_as, why=f"must be a whole number from {low} to {high}")
            return int(value)
        if self.schema["type"] == "number":
            with suppress(ValueError):
                if isfinite(found := float(value)) and value.isascii() and abs(found) <= 1e12:
                    return found
            raise BadInput(given_as, why="must be a number")
        if "enum" in self.schema and value not in self.schema["enum"]:
            raise BadInput(given_as, why=f"must be one of {', '.join(self.schema['enum'])}")
        if not 0 < len(value) <= LONGEST or "\0" in value:
            raise BadInput(self.name, why=f"must be a text of 1 to {LONGEST} letters")
        return value


def text(name: str, says: str, *, needed: bool = False, into: str = "") -> Param:
    schema = {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": "^[^\\u0000]+$"}
    return Param(name=name, says=says, schema=schema, is_needed=needed, into=into)


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

    def told(self) -> ApiOperation:
        gives = {200: ("what it shows", {JSON: {"type": "object"}}), **refusals(400, 401, 403, 404, 429, 503)}
        return ApiOperation(name=self.name, says=self.says, gives=gives, headers=[param.told() for param in self.takes])


KEY = 2**62
RUN = text("run", "A run's id, or the beginning of it.", needed=True, into="run_id")
PAGE = whole("most", "At most so many.", MOST)
FROM = text("before", "The id of the last one already seen.")
AFTER = whole("before", "The `next` of the page before.", KEY)
POLICY = text("policy", "Which; without it, the first.")


def _choice(name: str, values: Sequence[Any]) -> Param:
    schema = {"type": "string", "enum": [str(one) for one in values]}
    return Param(name=name, says="Only those.", schema=schema)


FILTERS = (
    _choice("outcome", [one for one in OutcomeKind if one is not OutcomeKind.NO_ANSWER]),
    _choice("status", list(RolloutState)),
    _choice("split", list(Split)),
    text("text", "A part of the name."),
    number("least", "The least reward."),
    number("most_reward", "The most reward."),
)
ROLLOUT = (
    text("rollout", "RUN/NAME.", needed=True, into="rollout_id"),
    whole("attempt", "This attempt instead of the deciding one.", 2**31 - 1),
)
GROUP = (RUN, text("group", "Which.", needed=True, into="name"), whole("near", "The key of one of them.", KEY, low=0))
RELEASE = text("release", "POLICY@N.", needed=True, into="release_id")
ENTRIES = (PAGE, AFTER, text("run", "Only about this run.", into="run_id"), text("kind", "Only of this kind."))

PANELS: tuple[Panel, ...] = tuple(
    Panel(name=view.__name__, says=says, view=view, takes=takes)
    for view, says, takes in (
        (views.overview, "Live versions and why, health, and what is running", ()),
        (views.runs, "The runs, newest first", (PAGE, FROM)),
        (views.run, "One run", (RUN,)),
        (views.rollouts, "Rollouts of a run, newest first", (RUN, PAGE, AFTER, *FILTERS)),
        (conversation.rollout, "One rollout, turn by turn", ROLLOUT),
        (conversation.group, "The rollouts of a group side by side", GROUP),
        (lessons.learning, "How a run learns", (RUN,)),
        (views.tools, "Tool adoption of a run", (RUN, PAGE)),
        (views.budgets, "Thinking budgets of a run", (RUN, PAGE, AFTER)),
        (standings.proofs, "Versions that rest on evidence", ()),
        (standings.proof, "The evidence of a version's last decision", (RELEASE,)),
        (standings.experiments, "Experiments, newest first", ()),
        (standings.experiment, "One experiment and its verdict", (text("name", "Which.", needed=True),)),
        (standings.releases, "The versions of a policy, its guard and its history", (POLICY,)),
        (views.workers, "Worker processes", (PAGE,)),
        (views.alerts, "Active and past alerts", (PAGE, FROM)),
        (views.audit, "The ledger, newest first", ENTRIES),
        (views.flags, "Feature flags", ()),
    )
)
