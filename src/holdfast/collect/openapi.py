"""The OpenAPI document of an app, told by the routes that it serves: what is not in the one is not in the other.

What requests and answers look like is in `forms`, and in `proxy.forms`; here they become one document.
https://spec.openapis.org/oas/v3.1.1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.collect import forms
from holdfast.collect.forms import JSON, Schema, Told

OPENAPI = "3.1.0"
PATH = "/openapi.json"
PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
PARAMETERS: Mapping[str, Schema] = {
    "str": {"type": "string", "minLength": 1},
    "path": {"type": "string", "minLength": 1},
    "int": {"type": "integer", "minimum": 0},
}


class ApiRoute(Route):
    """A route that says what it takes and what it gives."""

    def __init__(self, path: str, call: Callable[..., Any], told: Told, *, method: str = "GET") -> None:
        super().__init__(path, call, methods=[method])
        self.told, self.method = told, method


def described(
    title: str, says: str, routes: Iterable[BaseRoute], admit: Callable[[Request], None], *, has_token: bool
) -> list[BaseRoute]:
    """The routes, and one more that tells of them all, itself included. `admit` says who may read it."""

    async def read(request: Request) -> Response:
        admit(request)
        return Response(text, media_type=JSON)

    gives = {200: ("this document", {JSON: {"type": "object"}}), **forms.refusals(401, 403)}
    told = Told(name="openapi", says="What can be asked here, and how", gives=gives)
    every = [*routes, ApiRoute(PATH, read, told)]
    text = orjson.dumps(document(title, says, every, has_token=has_token))
    return every


def document(title: str, says: str, routes: Iterable[BaseRoute], *, has_token: bool) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, ApiRoute):
            path = PARAMETER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, has_token)
    told: dict[str, Any] = {
        "openapi": OPENAPI,
        "info": {"title": title, "description": says, "version": version("holdfast")},
        "paths": paths,
    }
    if has_token:
        told["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        told["security"] = [{"token": []}]
    return told


def _operation(place: ApiRoute, has_token: bool) -> dict[str, Any]:
    told = place.told
    named = [_parameter(name, kind) for name, kind in PARAMETER.findall(place.path)]
    operation: dict[str, Any] = {
        "operationId": told.name if not named else f"{told.name}_of_attempt",
        "summary": told.says,
        "responses": {
            str(status): {"description": words, "content": _content(media)}
            for status, (words, media) in told.gives.items()
        },
    }
    # An attempt that is in the path is in no header.
    parameters = [*named, *(one for one in told.headers if not named or not one.get("required"))]
    if parameters:
        operation["parameters"] = parameters
    if told.takes:
        operation["requestBody"] = {"required": True, "content": _content(told.takes)}
    if has_token and told.is_open:
        operation["security"] = []
    return operation


def _parameter(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": PARAMETERS[kind or "str"]}


def _content(media: Mapping[str, Schema]) -> dict[str, Any]:
    return {name: {"schema": schema} for name, schema in media.items()}
