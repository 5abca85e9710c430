"""The control room over HTTP: every route for every role, orders, refusals in one shape, and whatever may be asked."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from holdfast.cli.main import COMMANDS
from holdfast.collect.openapi import ApiRoute
from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput
from holdfast.contracts.run import DesiredState
from holdfast.operate import app as control_room
from holdfast.operate import auth_middleware
from holdfast.operate.app import PANELS, TownPage, app
from holdfast.operate.auth_middleware import OPEN
from holdfast.store.store import Store, open_store
from tests.collect.fuzz import fuzz
from tests.operate.room import Room, serving
from tests.store.filled import filled

ROLES = ("viewer", "operator", "admin")
RUN, ROLLOUT = "run-2-new", "run-2-new/task-1"
ASKED = {  # what a route has to be asked with
    "/api/run": {"run": RUN},
    "/api/rollouts": {"run": RUN},
    "/api/rollout": {"rollout": ROLLOUT},
    "/api/group": {"run": RUN, "group": "group-1"},
    "/api/learning": {"run": RUN},
    "/api/search": {"run": RUN},
    "/api/tools": {"run": RUN},
    "/api/budgets": {"run": RUN},
    "/api/proof": {"release": "sprout@2"},
    "/api/experiment": {"name": "greeting"},
}
BODIES: dict[str, Any] = {  # and with which body
    "/login": {"token": "hf_wrong"},
    "/logout": {},
    "/api/orders": {"id": "matrix", "action": "resume", "subject": RUN, "why": "to see who may"},
    "/dashboard/actions": {"action": "resume"},
    "/gateway/training/config": {"enabled": True},
}
LEAST = {"/api/orders": "operator", "/dashboard/actions": "operator", "/gateway/training/config": "operator"}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    path = filled(tmp_path_factory.mktemp("room") / "store.sqlite", 400)
    with open_store(path, poll_s=0.01) as store, serving(store, stream_s=0.0) as served:
        yield served


def places(room: Room) -> list[tuple[str, str]]:
    """Every route with its method; none is served that is neither told nor a file."""
    found = []
    for route in app(room.store, town=TownPage(app=echo, badges={})).routes:
        if isinstance(route, ApiRoute):
            found.append((route.method, route.path))
        elif not isinstance(route, Mount):
            found.append(("GET", route.path.replace("{name}", "serve.js")))  # type: ignore[attr-defined]
    return [*found, ("GET", "/town/"), ("POST", "/town/order"), ("GET", "/nowhere"), ("DELETE", "/api/runs")]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """In place of a town: says which headers reach it, and where."""
    told = {name.decode(): value.decode() for name, value in scope["headers"]} | {"at": scope["path"]}
    await Response(json.dumps(told), media_type="application/json")(scope, receive, send)


def ask(room: Room, method: str, path: str, role: str | None = None, **headers: str) -> requests.Response:
    """As the route wants to be asked; of a stream, no more than that it begins."""
    query = "&".join(f"{name}={value}" for name, value in ASKED.get(path, {}).items())
    return room.ask(f"{path}?{query}" if query else path, role=role, method=method, json=BODIES.get(path), **headers)


def test_without_a_token_nothing_answers_but_whether_it_is_up_and_the_way_in(room: Room) -> None:
    open_ones, shut = list[tuple[str, str]](), list[tuple[str, str]]()
    for method, path in places(room):
        answer = ask(room, method, path)
        (open_ones if path in OPEN else shut).append((method, path))
        if path in OPEN:
            assert answer.status_code == (401 if method == "POST" else 200), path  # the token that is sent is wrong
        else:
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"]["code"] == "unauthorized" and RUN not in answer.text
    assert open_ones == [("GET", "/healthz"), ("POST", "/login"), ("GET", "/login")] and len(shut) > 35
    for name in auth_middleware.assets():
        assert room.ask(f"/static/{name}").status_code == (200 if name in auth_middleware.WAY_IN else 401), name
    token = room.tokens["admin"]
    for told in (f"/api/runs?token={token}", f"/api/runs?access_token={token}", "/api/runs?auth=1"):
        assert room.ask(told).status_code == 401  # an address is not where a token is looked for
    for header in (f"Basic {token}", token, "Bearer hf_" + "x" * 43, "Bearer "):
        assert room.ask("/api/runs", Authorization=header).status_code in (401, 429)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_do_what_the_one_before_may_and_no_more(room: Room, role: str) -> None:
    for method, path in places(room):
        if path in ("/login", "/town/", "/town/order"):
            continue
        answer = ask(room, method, path, role)
        may = ROLES.index(role) >= ROLES.index(LEAST.get(path, "viewer"))
        expected = {"/nowhere": 404, "/api/runs": 200 if method == "GET" else 405}.get(path, 200 if may else 403)
        if path == "/api/orders" and role == "admin":
            expected = 409  # the same id, from somebody else
        assert answer.status_code == expected, (method, path, answer.text[:300])
        assert answer.headers["content-security-policy"] == auth_middleware.CSP, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        if expected >= 400:
            assert set(answer.json()["error"]) == {"type", "code", "message"}


def test_an_order_is_looked_at_obeyed_once_and_a_refusal_is_written_down(room: Room) -> None:
    order = {"id": "stop-1", "action": "pause", "subject": RUN, "args": {"mode": "drain"}, "why": "lunch"}
    looked = room.ask("/api/orders", role="operator", method="POST", json={**order, "dry_run": True}).json()
    assert looked["dry_run"] and looked["after"]["wanted"] == "paused"
    assert room.store.runs.get(RUN).wanted is DesiredState.RUNNING
    refused = room.ask("/api/orders", role="viewer", method="POST", json=order)
    assert refused.status_code == 403 and "operator" in refused.json()["error"]["message"]
    first, again = (room.ask("/api/orders", role="operator", method="POST", json=order).json() for _ in range(2))
    assert not first["again"] and again["again"] and again["after"] == first["after"]
    assert room.store.runs.get(RUN).wanted is DesiredState.PAUSED
    other = room.ask("/api/orders", role="operator", method="POST", json={**order, "action": "cancel", "args": {}})
    assert other.status_code == 409 and other.json()["error"]["code"] == "conflict"
    entries = room.ask("/api/audit?most=20", role="viewer").json()["entries"]
    kinds = [(one["kind"], one["who"]) for one in entries if one["body"].get("id") == "stop-1"]
    assert kinds == [("refusal", "operator one"), ("command", "operator one"), ("refusal", "viewer one")]
    assert room.store.ledger.verify() > 0
    again = {**order, "id": "go-1", "action": "resume", "args": {}}
    assert room.ask("/api/orders", role="operator", method="POST", json=again).status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/runs?most=0", 400, "invalid_request"),
        ("/api/run?run=run-9", 404, "not_found"),
        ("/api/rollout?rollout=%00", 400, "invalid_request"),
        ("/api/proof?release=sprout@1", 404, "not_found"),
        ("/static/..%2Fapp.py", 404, "not_found"),
        ("/gateway/training/rollouts?page=0", 400, "invalid_request"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_a_reason(room: Room, path: str, status: int, code: str) -> None:
    answer = room.ask(path, role="viewer")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_a_body_must_be_json_small_and_an_object(room: Room) -> None:
    how: dict[str, Any] = {"headers": {"Authorization": f"Bearer {room.tokens['admin']}"}, "timeout": 60}
    url = f"{room.url}/api/orders"
    assert requests.post(url, data={"action": "cancel"}, **how).status_code == 415
    how["headers"]["Content-Type"] = "application/json"
    assert requests.post(url, data=b"{", **how).json()["error"]["code"] == "malformed_json"
    assert requests.post(url, data=b'"' + b"x" * 70_000 + b'"', **how).status_code == 413
    assert requests.post(url, data=b"[1]", **how).status_code == 400


def test_what_a_known_caller_is_refused_is_in_the_ledger_whatever_it_was(room: Room) -> None:
    order = {"id": "x" * 101, "action": "pause", "subject": RUN, "why": "w"}
    for path, method, role, body, status in (
        ("/api/orders", "POST", "operator", order, 400),
        ("/api/orders", "POST", "operator", order | {"id": "1", "why": " "}, 400),
        ("/gateway/training/config", "PATCH", "viewer", {"enabled": False}, 403),
        ("/gateway/training/config", "PATCH", "operator", {"store_path": "elsewhere"}, 400),
        ("/dashboard/actions", "POST", "operator", {"action": "stop"}, 400),
    ):
        before = room.store.ledger.verify()
        assert room.ask(path, role=role, method=method, json=body).status_code == status
        *_, noted = room.store.ledger.entries()
        assert (noted.kind, noted.body["role"], noted.seq) == ("refusal", role, before + 1), path


def test_in_the_town_everybody_is_who_they_are_here_and_it_learns_no_secret(room: Room) -> None:
    badges = {role: f"badge-of-{role}" for role in ROLES}
    with serving(room.store, town=TownPage(app=echo, badges=badges)) as served:
        assert served.ask("/town/").status_code == 401
        assert served.ask("/api/me", role="viewer").json()["has_town"]
        for role in ROLES:
            told = served.ask("/town/legend", role=role, Cookie="a=b").json()
            assert told["authorization"] == f"Bearer badge-of-{role}" and "cookie" not in told
        session = served.browser("operator")
        ours = session.post(f"{served.url}/town/order", json={}, headers={"X-Holdfast": None}, timeout=60)
        assert ours.json()["authorization"] == "Bearer badge-of-operator"  # its page has no header of ours to send
        other = session.post(f"{served.url}/town/order", json={}, headers={"Sec-Fetch-Site": "cross-site"}, timeout=60)
        assert other.status_code == 403


def test_what_prometheus_reads_is_there(room: Room) -> None:
    answer = room.ask("/metrics", role="viewer")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE holdfast_" in answer.text


def test_nothing_that_is_asked_breaks_it_or_gets_an_answer_that_it_does_not_tell_of(tmp_path: Path) -> None:
    known = {"subject": RUN, "action": "resume", "args": {}}
    with open_store(filled(tmp_path / "store.sqlite", 80)) as store, serving(store, stream_s=0.0) as served:
        headers = {"Authorization": f"Bearer {served.tokens['admin']}"}
        seen = fuzz(served.url, tries=2, headers=headers, known=known)
    assert len(seen) > 30
    answered = {name for name, statuses in seen.items() if statuses[200]}
    assert {"GET /api/overview", "GET /dashboard/health", "GET /api/stream", "GET /metrics"} <= answered
    assert sum(statuses[400] + statuses[404] for statuses in seen.values()) >= 20


BY_NAME = {panel.name: panel for panel in PANELS}


def test_every_view_takes_what_its_panel_reads() -> None:
    for panel in PANELS:
        taken = inspect.signature(panel.view).parameters
        names = {param.into or param.name for param in panel.takes}
        assert names <= set(taken), panel.name
        needed = {name for name, one in taken.items() if one.default is one.empty} - {"store", "now"}
        assert needed == {param.into or param.name for param in panel.takes if param.is_needed}, panel.name
        told = panel.described()
        assert [(one["name"], one["required"]) for one in told.headers] == [(p.name, p.is_needed) for p in panel.takes]
        assert {200, 400, 401, 404, 429} <= set(told.gives)
    assert len(BY_NAME) == len(PANELS)


@pytest.mark.parametrize(
    ("panel", "query", "read"),
    [
        ("runs", "", {}),
        ("runs", "most=20&before=run-3", {"most": 20, "before": "run-3"}),
        ("rollouts", "run=run-1&status=dead&least=-0.5", {"run_id": "run-1", "status": "dead", "least": -0.5}),
        ("group", "run=r&group=a%2Fb&near=0", {"run_id": "r", "name": "a/b", "near": 0}),
    ],
)
def test_a_question_is_read(panel: str, query: str, read: dict[str, object]) -> None:
    assert BY_NAME[panel].read(QueryParams(query)) == read


@pytest.mark.parametrize(
    ("panel", "query", "why"),
    [
        ("run", "", "run: is missing"),
        ("runs", "most=0", "from 1 to 200"),
        ("runs", "most=201", "from 1 to 200"),
        ("runs", "most=-1", "from 1 to 200"),
        ("runs", "most=²", "from 1 to 200"),
        ("runs", "most=1&most=2", "is given twice"),
        ("runs", "before=", "1 to 300 letters"),
        ("rollouts", "run=r&split=all", "one of train, val, test"),
        ("rollouts", "run=r&least=inf", "must be a number"),
        ("rollouts", "run=r&least=nan", "must be a number"),
        ("overview", "run=r", "overview takes nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(panel: str, query: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        BY_NAME[panel].read(QueryParams(query))


PATIENCE_S = 60.0


def change(store: Store) -> None:
    store.alerts.raise_(Alert(code="c", severity=Severity.INFO, message="m", at=1.0)).result()


async def test_a_change_is_an_event_with_its_topic_and_who_is_no_longer_known_gets_none(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_room, "LOOK_S", 0.05)
    changes, known = file_store.changes, [True] * 9
    await asyncio.to_thread(changes.wait, "queue", changes.seen("queue"), PATIENCE_S)  # a first look is news

    async def is_known() -> bool:
        if known.pop() and len(known) == 5:
            await asyncio.to_thread(change, file_store)
        return bool(known)

    async with asyncio.timeout(PATIENCE_S):
        found = [one.decode() async for one in control_room.topics(changes, is_known)]
    assert found == ["retry: 2000\n\n", 'event: change\ndata: ["alerts"]\n\n'] and known == []


async def test_a_snapshot_is_sent_when_it_differs_in_more_than_its_moment(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_room, "SNAPSHOT_S", 0.01)
    monkeypatch.setattr(control_room, "LOOK_S", 0.05)
    told: list[dict[str, Any]] = [{"generated_unix_ms": k, "n": k // 3} for k in range(6)]  # 0 0 0 1 1 1

    async def look() -> Mapping[str, Any]:
        return told.pop(0)

    async def is_known() -> bool:
        if told:
            change(file_store) if len(told) % 2 else file_store.alerts.clear("c", at=2.0).result()
        return bool(told)

    async with asyncio.timeout(PATIENCE_S):
        found = [
            one.decode() async for one in control_room.snapshots(look, file_store.changes, is_known, "dashboard-7")
        ]
    events = [(one.splitlines()[0], one.splitlines()[1], json.loads(one.splitlines()[2][6:])) for one in found]
    why = "history_not_retained_request_full_snapshot"
    assert events[0][2] == {"schema_version": 1, "reset": True, "last_event_id": "dashboard-7", "reason": why}
    assert [(name, number, body.get("n")) for name, number, body in events[1:]] == [
        ("event: dashboard.snapshot", "id: dashboard-2", 0),
        ("event: dashboard.snapshot", "id: dashboard-3", 1),
    ]


MODULES = sorted(name for name in auth_middleware.assets() if name.endswith(".js") and name != "town.js")


def test_the_shell_names_every_module_and_loads_nothing_from_elsewhere() -> None:
    text = auth_middleware.shell().data.decode()
    named = set(re.findall(r'(?:href|src)="/static/([\w.-]+)"', text))
    assert named <= set(auth_middleware.assets()) and {*MODULES, "serve.css"} <= named | {"login.js"}
    for page in (text, auth_middleware.login().data.decode()):
        assert "<style" not in page and " style=" not in page and "http" not in page
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
        assert not re.search(r"\son\w+=", page)
    assert set(re.findall(r'/static/([\w.-]+)"', page)) == set(auth_middleware.WAY_IN)  # of the login


def test_a_module_is_small_and_has_no_way_to_turn_text_into_markup() -> None:
    for name in MODULES:
        text = auth_middleware.assets()[name].data.decode()
        assert len(text.splitlines()) < 250, name
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|srcdoc", text)
        assert not found, name
        assert set(re.findall(r'from "\./([\w.-]+)"', text)) <= set(auth_middleware.assets()), name


def test_a_page_that_is_empty_names_a_command_that_there_is() -> None:
    every = "".join(file.data.decode() for name, file in auth_middleware.assets().items() if name in MODULES)
    named = set(re.findall(r"holdfast ([a-z]+)", every))
    assert {"quickstart", "run", "prove", "release"} <= named <= {*COMMANDS}


def test_a_browser_that_has_the_file_is_told_so() -> None:
    def asked(**headers: str) -> Request:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return Request({"type": "http", "method": "GET", "headers": named})

    first = auth_middleware.answer(asked(), auth_middleware.shell())
    assert first.status_code == 200 and first.headers["cache-control"] == "no-cache"
    for etag, status in ((first.headers["etag"], 304), ('"old"', 200)):
        assert auth_middleware.answer(asked(if_none_match=etag), auth_middleware.shell()).status_code == status
    assert "unsafe" not in first.headers["content-security-policy"]
