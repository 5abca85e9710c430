"""What is asked of the proxy and what it answers, as JSON Schema: only what it reads itself, the rest is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.collect.forms import (
    BODY,
    COUNT,
    EVENTS,
    FLAG,
    JSON,
    TEXT,
    WORD,
    WORDS,
    Gives,
    Schema,
    Told,
    listed,
    obj,
    optional,
)

ERROR = obj(("error",), error=obj(("code", "message"), code=TEXT, message=TEXT, type=TEXT))
ANYTHING: Schema = {"type": "object"}
SAID = {
    **WORDS,
    400: "the request, or a header, is wrong",
    404: "the store has no such rollout or attempt",
    409: "the attempt does not run, or its lease has run out",
    429: "the upstream is held, or full; come back after Retry-After",
    502: "the upstream gave no answer, or broke off",
    503: "a model of this process failed; ask again",
}
OWN: Gives = {"default": ("what the upstream says, as it says it", {JSON: {}})}
REQUESTS: Mapping[str, Schema] = {  # by the path of a dialect
    "/v1/chat/completions": obj(
        ("model", "messages"), model=WORD, messages=listed(ANYTHING), n=optional({"const": 1}), stream={}
    ),
    "/v1/responses": obj(
        ("model",), model=WORD, input={"type": ["string", "array", "null"], "items": ANYTHING}, stream={}
    ),
    "/v1/messages": obj(("model", "messages"), model=WORD, messages=listed(ANYTHING), stream={}),
}


def _header(name: str, schema: Schema, *, required: bool = False, says: str = "") -> Mapping[str, Any]:
    return {"name": name, "in": "header", "required": required, "schema": schema, "description": says}


WHOSE = (
    _header("x-rollout-id", WORD, required=True, says="run/name"),
    _header("x-attempt-id", WORD, required=True, says="the attempt's id, or its number"),
    _header("x-sequence-id", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}),
    _header("x-trace-id", TEXT),
)


def refusals(*statuses: int) -> Gives:
    return {status: (SAID[status], {JSON: ERROR}) for status in statuses}


def called(path: str) -> Told:
    """A call of a model in the dialect that is spoken at this path."""
    return Told(
        name=path.removeprefix("/v1/").replace("/", "_"),
        says="A call of a model, passed on as it is and kept as a span of its attempt",
        takes={JSON: REQUESTS.get(path, ANYTHING)},
        gives={
            200: ("the upstream's answer, byte for byte", {JSON: ANYTHING, EVENTS: TEXT}),
            **refusals(*BODY, 404, 409, 429, 502, 503),
            **OWN,
        },
        headers=WHOSE,
    )


LIST = Told(
    name="models",
    says="The models of the upstreams; of a single one as it says it",
    gives={200: ("all of them", {JSON: ANYTHING}), **refusals(401, 403, 404, 502), **OWN},
)
UPSTREAM = obj(("name", "calls", "held"), name=TEXT, calls=COUNT, held=FLAG)
HEALTH = Told(
    name="health",
    says="Whether it is ready, and where calls go",
    gives={
        200: (
            "it is",
            {JSON: obj(("status", "upstreams"), status={"const": "ready"}, upstreams=listed(UPSTREAM, minItems=1))},
        ),
        **refusals(401, 403),
    },
)


def ordered(order: str) -> Told:
    """`hold` or `release` of an upstream."""
    return Told(
        name=order,
        says=f"{order.capitalize()} an upstream, while its weights are exchanged",
        takes={JSON: obj(upstream=TEXT)},
        gives={200: ("how it stands now", {JSON: UPSTREAM}), **refusals(*BODY)},
    )
