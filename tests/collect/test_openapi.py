"""What the endpoint says of itself is true, however it is asked; and the document tells of all that is served."""

from __future__ import annotations

import json
import logging
from http.client import HTTPConnection
from typing import Any

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from holdfast.collect.endpoint import app
from holdfast.collect.openapi import JSON, TEXT, ApiRoute, Told, described, document, obj, refusals
from tests.collect.fuzz import fuzz
from tests.collect.test_endpoint import HELLO, Script, serving
from tests.collect.test_endpoint import Told as Listener

KEY = "sk-planted-0123456789abcdefghijklmnop"


async def nothing(request: Request) -> Response:
    return Response()


def place(path: str, **more: Any) -> ApiRoute:
    told = Told(name="ask", says="Ask", gives={200: ("an answer", {JSON: obj(text=TEXT)}), **refusals(400)}, **more)
    return ApiRoute(path, nothing, told, method="POST")


def test_a_route_is_told_with_what_is_in_its_path_its_headers_and_its_body() -> None:
    named = [{"name": "x-id", "in": "header", "required": True, "schema": TEXT}]
    made = document(
        "t",
        "says",
        [place("/a/{name:path}/{n:int}/ask", takes={JSON: obj()}, headers=named), place("/ask", headers=named)],
        has_token=False,
    )
    assert made["openapi"].startswith("3.1") and "security" not in made
    below, plain = made["paths"]["/a/{name}/{n}/ask"]["post"], made["paths"]["/ask"]["post"]
    assert [(one["name"], one["in"]) for one in below["parameters"]] == [("name", "path"), ("n", "path")]
    assert below["requestBody"]["content"][JSON]["schema"]["type"] == "object"
    assert plain["parameters"] == named and "requestBody" not in plain
    assert below["operationId"] != plain["operationId"]
    assert set(plain["responses"]) == {"200", "400"}


def test_a_token_is_told_of_and_where_none_is_asked_for() -> None:
    made = document("t", "", [place("/closed"), place("/open", is_open=True)], has_token=True)
    assert made["security"] == [{"token": []}] and made["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert made["paths"]["/open"]["post"]["security"] == [] and "security" not in made["paths"]["/closed"]["post"]


def test_the_document_is_among_what_it_tells_of() -> None:
    routes = described("t", "", [place("/ask")], lambda request: None, has_token=False)
    assert set(document("t", "", routes, has_token=False)["paths"]) == {"/ask", "/openapi.json"}


def told_by(application: Starlette) -> None:
    for route in application.routes:
        assert isinstance(route, ApiRoute), f"{route} is served, and nobody is told"


def test_all_that_the_endpoint_serves_is_told() -> None:
    told_by(app(Script(), name="m", feedback=Listener()))


def fetched(url: str, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection(url.removeprefix("http://").partition("/")[0], timeout=60)
    connection.request("GET", "/openapi.json", headers=headers)
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_every_form_is_a_schema_and_the_document_asks_for_the_token_too() -> None:
    with serving(Script(), feedback=Listener(), token="tok") as url:
        assert fetched(url)[0] == 401
        status, made = fetched(url, Authorization="Bearer tok")
    assert status == 200
    for path in made["paths"].values():
        for operation in path.values():
            forms = [one["content"] for one in (*operation["responses"].values(), operation.get("requestBody")) if one]
            for form in (media["schema"] for content in forms for media in content.values()):
                jsonschema.Draft202012Validator.check_schema(form)


def test_nothing_that_is_asked_breaks_the_endpoint_or_gets_an_answer_that_it_does_not_tell_of(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    known = {"model": "script", "messages": HELLO, "id": "chatcmpl-1"}
    known |= dict.fromkeys(("stream_options", "top_logprobs", "max_completion_tokens"))  # wrong only beside others
    with caplog.at_level(logging.INFO), serving(Script(), feedback=Listener()) as url:
        headers = {"Authorization": f"Bearer {KEY}", "x-api-key": KEY}
        seen = fuzz(url.removesuffix("/v1"), tries=15, headers=headers, known=known)
    chat, feedback = seen["POST /v1/chat/completions"], seen["POST /v1/feedback"]
    assert chat[200] >= 3 and chat[400] >= 12 and feedback[200] >= 3 and feedback[400] >= 12  # else nothing was tried
    assert set(seen) == {f"GET {path}" for path in ("/v1/models", "/health", "/openapi.json")} | {
        f"POST /v1/{name}" for name in ("chat/completions", "feedback")
    }
    told = capfd.readouterr()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("holdfast", "uvicorn"))]
    assert not [text for text in (told.out, told.err, *ours) if KEY in text]
