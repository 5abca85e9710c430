"""The OpenAPI document of an app, made from the routes that it serves, and the JSON Schemas (2020-12) of the chat API.

The schemas say what the request readers refuse and what the writers write. https://spec.openapis.org/oas/v3.1.1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import orjson
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.collect.chat_format import KNOWN, MOST_CHOICES, NEUTRAL, ROLES
from holdfast.contracts.reward import LARGEST_REWARD

Schema = Mapping[str, Any]
Gives = Mapping[int | str, tuple[str, Mapping[str, Schema]]]
JSON, EVENTS = "application/json", "text/event-stream"
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOperation:
    """The description of an operation."""

    name: str
    says: str
    gives: Gives  # by status: words, and a schema for each media type
    takes: Mapping[str, Schema] = field(default_factory=dict)  # by media type; none: no body
    headers: Sequence[Mapping[str, Any]] = ()
    is_open: bool = False  # no token is needed


def obj(required: tuple[str, ...] = (), **members: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": members}


def listed(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def whole(low: int, high: int = 2**63 - 1) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


ERROR = obj(
    ("error",), error=obj(("message", "type"), message=TEXT, type=TEXT, param=optional(TEXT), code=optional(TEXT))
)
STATUS_TEXTS = {
    400: "the request is wrong: the message names the field",
    401: "the token is missing or wrong",
    403: "without a token only this machine is served",
    404: "there is no such thing",
    408: "the request did not come in time",
    409: "it conflicts with what was sent before",
    413: "the request is too large",
    415: "the request is not JSON",
    429: "too many wrong tokens; Retry-After says when to come again",
    503: "it cannot be answered now; ask again",
}


def refusals(*statuses: int) -> Gives:
    return {status: (STATUS_TEXTS[status], {JSON: ERROR}) for status in statuses}


MODEL = obj(("id", "object"), id=TEXT, object=TEXT, created=COUNT, owned_by=TEXT, tokenizer=TEXT)
MODELS = obj(("object", "data"), object={"const": "list"}, data=listed(MODEL))

TEXT_PART = obj(("type", "text"), type={"const": "text"}, text=TEXT)
CALLED = obj(("function",), function=obj(("name",), name=TEXT, arguments=TEXT))
MESSAGE = obj(  # only an assistant's content may be null
    ("role",),
    role={"enum": list(ROLES)},
    content={"type": ["string", "array", "null"], "items": TEXT_PART},
    reasoning_content={"type": ["string", "null"]},
    tool_call_id={"type": ["string", "null"]},
    name={"type": ["string", "null"]},
    tool_calls={"type": ["array", "null"], "items": CALLED},
)
TOOL = obj(
    ("function",),
    type={"const": "function"},
    function=obj(
        ("name",),
        name={"type": "string", "minLength": 1},
        parameters=optional(obj(properties=optional({"type": "object"}))),
    ),
)
FLAG, WORD = {"type": "boolean"}, {"type": "string", "minLength": 1}
FIELDS: Mapping[str, Schema] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": whole(-1, 2**31 - 1),
    "max_tokens": whole(1, 2**31 - 1),
    "max_completion_tokens": whole(1, 2**31 - 1),
    "stop": {"anyOf": [WORD, listed(WORD, maxItems=16)]},
    "seed": whole(0, 2**63 - 1 - MOST_CHOICES),
    "thinking": whole(0, 2**31 - 1),
    "tools": listed(TOOL),
    "tool_choice": {"enum": ["auto", "none"]},
    "n": whole(1, MOST_CHOICES),
    "logprobs": FLAG,
    "top_logprobs": whole(0, 20),
    "return_token_ids": FLAG,
    "stream": FLAG,
    "stream_options": obj(include_usage=FLAG),
    "user": WORD,
    **{name: {"const": only[0]} if len(only) == 1 else FLAG for name, only in NEUTRAL.items()},
}
REQUEST = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {"model": WORD, "messages": listed(MESSAGE, minItems=1)}
    | {name: optional(FIELDS.get(name, {})) for name in sorted(KNOWN - {"model", "messages"})},
    "additionalProperties": {"type": "null"},
}

USAGE = optional(obj(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT))
IDS = optional(listed(COUNT))
LOGPROBS = optional(obj(content=optional(listed(obj(("logprob",), logprob={"type": "number", "maximum": 0})))))
CHOICE = obj(
    ("index", "message", "finish_reason"),
    index=COUNT,
    message=obj(("role",), role=TEXT, content=optional(TEXT)),
    finish_reason=TEXT,
    logprobs=LOGPROBS,
    token_ids=IDS,
)
COMPLETION = obj(
    ("id", "object", "created", "model", "choices"),
    id=TEXT,
    object={"const": "chat.completion"},
    created=COUNT,
    model=TEXT,
    choices=listed(CHOICE, minItems=1),
    usage=USAGE,
    prompt_token_ids=IDS,
)
FEEDBACK = {
    **obj(
        ("id",),
        id=WORD,
        success={"anyOf": [FLAG, {"type": "number", "minimum": 0, "maximum": 1}]},
        reward={"type": "number", "minimum": -LARGEST_REWARD, "maximum": LARGEST_REWARD},
        safety_cost={"type": "number", "minimum": 0, "maximum": LARGEST_REWARD},
    ),
    "minProperties": 2,
    "additionalProperties": False,
}
TAKEN = obj(("id", "object", "taken"), id=TEXT, object={"const": "feedback"}, taken={"const": True})
HEALTH = obj(("status", "model"), status={"const": "ok"}, model=TEXT)

BODY = (400, 401, 403, 408, 413, 415, 429)  # the errors of any request with a body
CHAT = ApiOperation(
    name="chat",
    says="An answer of the model, whole or as a stream of events",
    takes={JSON: REQUEST},
    gives={
        200: ("the answer; with `stream`, its chunks and at the end [DONE]", {JSON: COMPLETION, EVENTS: TEXT}),
        **refusals(*BODY, 404, 503),
    },
)
LIST = ApiOperation(
    name="models",
    says="The models that there are",
    gives={200: ("all of them", {JSON: MODELS}), **refusals(401, 403, 429)},
)
UP = ApiOperation(name="health", says="Whether it is up", gives={200: ("it is", {JSON: HEALTH})}, is_open=True)
TELL = ApiOperation(
    name="feedback",
    says="What came of an answer",
    takes={JSON: FEEDBACK},
    gives={200: ("it is taken", {JSON: TAKEN}), **refusals(*BODY, 404, 409, 503)},
)


ATTEMPT = r"[0-9]+(?:\.[0-9a-f]{32})?"  # the number of an attempt, and the capability to speak for it


class AttemptConvertor(StringConvertor):
    """An attempt in a path; starlette's numbers have no end, and Python refuses to read the longest."""

    regex = ATTEMPT


register_url_convertor("attempt", AttemptConvertor())

OPENAPI = "3.1.0"
PATH = "/openapi.json"
PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
PARAMETERS: Mapping[str, Schema] = {
    "str": {"type": "string", "minLength": 1},
    "path": {"type": "string", "minLength": 1},
    "int": {"type": "integer", "minimum": 0},
    "attempt": {"type": "string", "pattern": f"^{ATTEMPT}$"},
}


class ApiRoute(Route):
    """A route with the description of its operation."""

    def __init__(self, path: str, call: Callable[..., Any], operation: ApiOperation, *, method: str = "GET") -> None:
        super().__init__(path, call, methods=[method])
        self.operation, self.method = operation, method


def described(
    title: str, says: str, routes: Iterable[BaseRoute], admit: Callable[[Request], None], *, has_token: bool
) -> list[BaseRoute]:
    """The routes, and one more that serves their OpenAPI document. `admit` says who may read it."""

    async def read(request: Request) -> Response:
        admit(request)
        return Response(text, media_type=JSON)

    gives = {200: ("this document", {JSON: {"type": "object"}}), **refusals(401, 403, 429)}
    operation = ApiOperation(name="openapi", says="What can be asked here, and how", gives=gives)
    every = [*routes, ApiRoute(PATH, read, operation)]
    text = orjson.dumps(document(title, says, every, has_token=has_token))
    return every


def document(title: str, says: str, routes: Iterable[BaseRoute], *, has_token: bool) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, ApiRoute):
            path = PARAMETER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, has_token)
    payload: dict[str, Any] = {
        "openapi": OPENAPI,
        "info": {"title": title, "description": says, "version": version("holdfast")},
        "paths": paths,
    }
    if has_token:
        payload["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        payload["security"] = [{"token": []}]
    return payload


def _operation(place: ApiRoute, has_token: bool) -> dict[str, Any]:
    api_operation = place.operation
    named = [_parameter(name, kind) for name, kind in PARAMETER.findall(place.path)]
    operation: dict[str, Any] = {
        "operationId": api_operation.name if not named else f"{api_operation.name}_of_attempt",
        "summary": api_operation.says,
        "responses": {
            str(status): {"description": words, "content": _content(media)}
            for status, (words, media) in api_operation.gives.items()
        },
    }
    # An attempt in the path is not also in a header.
    parameters = [*named, *(header for header in api_operation.headers if not named or not header.get("required"))]
    if parameters:
        operation["parameters"] = parameters
    if api_operation.takes:
        operation["requestBody"] = {"required": True, "content": _content(api_operation.takes)}
    if has_token and api_operation.is_open:
        operation["security"] = []
    return operation


def _parameter(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": PARAMETERS[kind or "str"]}


def _content(media: Mapping[str, Schema]) -> dict[str, Any]:
    return {name: {"schema": schema} for name, schema in media.items()}
