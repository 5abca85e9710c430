"""The files of the control room: all there, all small, none with anything in it that a policy would have to allow."""

from __future__ import annotations

import re

import pytest
from starlette.requests import Request

from holdfast.cli.main import COMMANDS, SHORT
from holdfast.operate.serve import auth_middleware

MODULES = sorted(name for name in auth_middleware.assets() if name.endswith(".js") and name != "town.js")


def test_the_shell_names_every_module_and_loads_nothing_from_elsewhere() -> None:
    text = auth_middleware.shell().data.decode()
    named = set(re.findall(r'(?:href|src)="/static/([\w.-]+)"', text))
    assert named <= set(auth_middleware.assets()) and {*MODULES, "serve.css"} <= named | {"login.js"}
    for page in (text, auth_middleware.login().data.decode()):
        assert "<style" not in page and " style=" not in page and "http" not in page
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
        assert not re.search(r"\son\w+=", page)


def test_the_way_in_needs_only_files_that_are_open() -> None:
    text = auth_middleware.login().data.decode()
    assert set(re.findall(r'/static/([\w.-]+)"', text)) == set(auth_middleware.WAY_IN)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_small_and_has_no_way_to_turn_text_into_markup(name: str) -> None:
    text = auth_middleware.assets()[name].data.decode()
    assert len(text.splitlines()) < 250
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"):
        assert forbidden not in text
    for imported in re.findall(r'from "\./([\w.-]+)"', text):
        assert imported in auth_middleware.assets()


def test_a_page_that_is_empty_names_a_command_that_there_is() -> None:
    every = "".join(file.data.decode() for name, file in auth_middleware.assets().items() if name in MODULES)
    named = set(re.findall(r"holdfast ([a-z]+)", every))
    assert {"quickstart", "optimize", "prove", "release", "ab", "flags"} <= named <= {*COMMANDS, *SHORT}


def test_a_browser_that_has_the_file_is_told_so() -> None:
    def asked(**headers: str) -> Request:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return Request({"type": "http", "method": "GET", "headers": named})

    first = auth_middleware.answer(asked(), auth_middleware.shell())
    assert first.status_code == 200 and first.headers["cache-control"] == "no-cache"
    assert (
        auth_middleware.answer(asked(if_none_match=first.headers["etag"]), auth_middleware.shell()).status_code == 304
    )
    assert auth_middleware.answer(asked(if_none_match='"old"'), auth_middleware.shell()).status_code == 200
    assert "unsafe" not in first.headers["content-security-policy"]
