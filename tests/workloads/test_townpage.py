"""The live page's server: who gets in, what is sent, and that the town waits for nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.collect import endpoint
from holdfast.contracts.commands import Role
from holdfast.operate.app import TownPage
from holdfast.operate.auth import Caller, digest
from holdfast.policies.network import Network
from holdfast.store.store import Store, open_store
from holdfast.workloads import townlife
from holdfast.workloads import townobserver as observer
from holdfast.workloads.townaudit import AuditFile, read_audit
from holdfast.workloads.townlife import Life, Pseudonymizer, Rules
from holdfast.workloads.townobserver import StaticToken
from holdfast.workloads.townpage import FASTEST, FrameHub, Runner, app
from holdfast.workloads.townschool import TownMind, TownVectorEnv
from tests.operate import room

BADGES = (
    StaticToken(role="operator", token="operator-1-aaaaaaaaa", label="olga"),
    StaticToken(role="admin", token="admin-token-aaaaaaaa"),
)
VIEWER = StaticToken(role="viewer", token="viewer-token-aaaaaaa")


def network_driven(rules: Rules, store: Store) -> dict[str, Any]:
    """What makes a life the town of a network, one that has learnt nothing."""
    network = Network(width=8, sampled=True).fitted("town", TownVectorEnv(rules, towns=1).spaces)
    return {"mind": TownMind(store, network, rules, version="town@2"), "variant": "recall"}


@pytest.fixture(scope="module")
def rules() -> Rules:
    return townlife.read_rules(residents=12)


@contextmanager
def serving(
    rules: Rules,
    folder: Path,
    *,
    badges: tuple[StaticToken, ...] = BADGES,
    speed: float = 200.0,
    veil: Pseudonymizer | None = None,
    body_s: float = 30.0,
    answer_s: float = 60.0,
    driven: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[tuple[str, Runner]]:
    life = Life(rules, seed=3, veil=veil, **(driven or {}))
    recording = townlife.new_recording(folder / "town.frames", life)
    audit = AuditFile(folder / "audit.jsonl")
    with endpoint.listen("127.0.0.1", 0, token=None) as listening:
        with Runner(life, recording, audit=audit, speed=speed, answer_s=answer_s, **more) as runner:
            server = endpoint.server(app(runner, badges, body_s=body_s))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}", runner
            finally:
                server.should_exit = True
                thread.join()
        recording.close()
    assert runner.error is None


@pytest.fixture(scope="module")
def site(rules: Rules, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runner]]:
    """One town for all who only look, or give orders of their own."""
    with serving(rules, tmp_path_factory.mktemp("town")) as served:
        yield served


async def ask(url: str, body: Any = None, *, token: str | None = None, **headers: str) -> tuple[int, Any]:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with aiohttp.ClientSession() as session:
        how: dict[str, Any] = {"headers": headers} if body is None else {"headers": headers, "json": body}
        async with session.request("GET" if body is None else "POST", url, **how) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else await answer.text()


async def frames(url: str, count: int, *, token: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/live", headers=headers) as answer:
        assert answer.content_type == "text/event-stream"
        async for line in answer.content:
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
                if len(found) == count:
                    break
    return found


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the town lives in another thread
            await asyncio.sleep(0.01)


class Gate:
    """Where a town is held between two ticks, while it is shut."""

    def __init__(self) -> None:
        self.is_shut, self.is_held = True, False

    def pass_by(self, _: Any) -> None:
        while self.is_shut:
            self.is_held = True
            time.sleep(0.005)
        self.is_held = False


async def test_a_viewer_gets_the_page_the_legend_and_frames_that_follow_one_another(site: tuple[str, Runner]) -> None:
    url, _ = site
    status, page = await ask(url)
    assert status == 200 and '<script type="module" src="town.js">' in page
    assert (await ask(f"{url}/town.js"))[0] == 200
    status, legend = await ask(f"{url}/legend")
    assert (legend["town"], legend["width"], len(legend["glyphs"])) == ("harbour", 48, 48 * 48)
    seen = None
    for frame in await frames(url, 40):
        seen = townlife.fold(seen, frame)
    assert seen is not None and len(seen["at"]) == 12


async def test_any_moment_of_the_recording_can_be_asked_for(site: tuple[str, Runner]) -> None:
    url, runner = site
    await until(lambda: runner.life.tick > 130)
    status, found = await ask(f"{url}/frames?tick=100&most=20")
    assert status == 200 and found["frames"][0]["key"]
    assert found["frames"][0]["tick"] <= 100 and len(found["frames"]) <= 20
    for query in ("tick=x", "tick=-1", "most=1.5"):
        status, said = await ask(f"{url}/frames?{query}")
        assert status == 400 and "is not a whole number" in said["error"]


async def test_an_operator_pauses_speeds_up_and_brings_rain_and_it_is_written_down(
    rules: Rules, tmp_path: Path
) -> None:
    with serving(rules, tmp_path) as (url, runner):

        async def order(name: str, identity: str | None = None, **args: Any) -> tuple[int, Any]:
            dry = {"dry_run": True} if identity is None else {"id": identity}
            return await ask(f"{url}/order", {"name": name, "args": args, **dry}, token="operator-1-aaaaaaaaa")

        assert (await order("pause", "1"))[0] == 200
        at = runner.life.tick
        await asyncio.sleep(0.2)
        assert runner.life.tick == at and runner.is_paused
        status, said = await order("rain", "2", ticks=30)
        assert status == 200 and said["said"] == "rain for 30 ticks"
        assert (await order("rain", "2", ticks=30))[1] == said | {"again": True}
        assert (await order("blackout"))[1]["actions"] and len(runner.life.commands) == 1
        for args in ({"ticks_per_s": 0}, {"ticks_per_s": "fast"}, {}):
            assert (await order("speed", "3", **args))[0] == 400
        await order("speed", "4", ticks_per_s=500)
        await order("resume", "5")
        await until(lambda: runner.life.tick > at + 20)
        assert runner.speed == 500
    done = [(one["name"], one["who"]) for one in read_audit(tmp_path / "audit.jsonl") if "refused" not in one]
    assert done == [("pause", "olga"), ("rain", "olga"), ("speed", "olga"), ("resume", "olga")]


async def test_each_order_has_its_role(site: tuple[str, Runner]) -> None:
    for name, token, status in (
        ("rain", None, 403), ("rain", "wrong-token", 401), ("kill", "operator-1-aaaaaaaaa", 403), ("pause", None, 403),
        ("inspect", None, 200), ("fly", "admin-token-aaaaaaaa", 404), ("kill", "admin-token-aaaaaaaa", 200),
    ):  # fmt: skip
        args = {"resident": 1} if name in ("kill", "inspect") else {}
        answer, _ = await ask(f"{site[0]}/order", {"name": name, "id": "1", "args": args}, token=token)
        assert answer == status, name


async def test_anybody_may_look_into_the_network_and_nothing_of_it_is_written_down(
    rules: Rules, site: tuple[str, Runner], tmp_path: Path
) -> None:
    def mind(resident: Any) -> dict[str, Any]:
        return {"name": "mind", "id": "1", "args": {"resident": resident}}

    answer, told = await ask(f"{site[0]}/order", mind(1))
    assert answer == 404 and "--policy" in told["error"]  # scripts have none
    with (
        open_store(tmp_path / "store.db", create=True) as store,
        serving(rules, tmp_path, driven=network_driven(rules, store)) as (url, _),
    ):
        assert (await ask(f"{url}/status"))[1]["policy"] == "town@2"
        answer, told = await ask(f"{url}/order", mind(1))
        assert answer == 200 and told["mind"]["version"] == "town@2" and told["mind"]["actions"][0]["p"] > 0
        for wrong in (99, -1, "a"):
            assert (await ask(f"{url}/order", mind(wrong)))[0] == 400
    assert not (tmp_path / "audit.jsonl").exists()


async def test_orders_come_as_small_json_only(site: tuple[str, Runner]) -> None:
    url, _ = site
    async with aiohttp.ClientSession() as session:
        for data, kind, status in (
            (b"{}", "text/plain", 415), (b"{", "application/json", 400), (b"x" * 70_000, "application/json", 413),
        ):  # fmt: skip
            async with session.post(f"{url}/order", data=data, headers={"Content-Type": kind}) as answer:
                assert answer.status == status


async def test_an_order_that_does_not_come_is_not_waited_for(rules: Rules, tmp_path: Path) -> None:
    head = b"POST /order HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with serving(rules, tmp_path, body_s=0.1) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        async with asyncio.timeout(60):
            said = await reader.read()  # and it is hung up
        writer.close()
    assert said.startswith(b"HTTP/1.1 408 ") and b"the request did not come within 0.1 s" in said


async def test_who_gives_too_many_orders_is_told_when_to_come_again(rules: Rules, tmp_path: Path) -> None:
    with serving(rules, tmp_path, clock=lambda: 1000.0) as (url, runner):
        many = [{"name": "inspect", "args": {"resident": 1}}] * int(observer.BURST)
        await asyncio.gather(*(runner.take(one, Caller(label="olga", role=Role.OPERATOR)) for one in many))
        how = {"headers": {"Authorization": "Bearer operator-1-aaaaaaaaa"}, "json": many[0]}
        async with aiohttp.ClientSession() as session, session.post(f"{url}/order", **how) as answer:  # type: ignore[arg-type]
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert (await answer.json())["error"] == "order: too many orders; try again in 1 s"
        assert (await ask(f"{url}/order", many[0], token="admin-token-aaaaaaaa"))[0] == 200


async def test_an_order_that_the_town_has_no_time_for_is_refused_and_the_town_lives_on(
    rules: Rules, tmp_path: Path
) -> None:
    gate = Gate()
    order = {"name": "rain", "id": "1", "args": {"ticks": 30}}
    with serving(rules, tmp_path, observe=gate.pass_by, answer_s=0.2) as (url, runner):
        try:
            await until(lambda: gate.is_held)
            status, said = await ask(f"{url}/order", order, token="operator-1-aaaaaaaaa")
            assert status == 503 and "town: is starting" in said["error"]
            gate.is_shut = False
            await until(lambda: runner.life.tick > 20)  # past the order that nobody waits for any more
            assert len(runner.life.commands) == 0 and runner.error is None
            gate.is_shut = True
            await until(lambda: gate.is_held)
            status, said = await ask(f"{url}/order", order, token="operator-1-aaaaaaaaa")
            assert status == 503
            assert said["error"] == "town: has no time for orders; send the order again, with the same id"
        finally:
            gate.is_shut = False
        async with asyncio.timeout(60):
            while (await ask(f"{url}/order", order, token="operator-1-aaaaaaaaa"))[0] != 200:
                assert runner.error is None
        assert len(runner.life.commands) == 1


async def test_a_stream_ends_with_the_token_of_whoever_sees_it(rules: Rules, tmp_path: Path) -> None:
    tokens = {str(role): f"badge-of-{role}".ljust(20, "-") for role in Role}
    badges = tuple(StaticToken(role=role, token=token) for role, token in tokens.items())
    with open_store(tmp_path / "store.sqlite") as store, serving(rules, tmp_path, badges=badges) as (_, runner):
        for is_paused in (False, True):  # frames come all the time, or none at all
            runner.is_paused = is_paused
            with room.serving(store, town=TownPage(app=app(runner, badges), badges=tokens)) as served:
                headers = {"Authorization": f"Bearer {served.tokens['viewer']}"}
                async with (
                    asyncio.timeout(60),
                    aiohttp.ClientSession(headers=headers) as session,
                    session.get(f"{served.url}/town/live") as answer,
                ):
                    assert (await answer.content.readline()).startswith(b"data: ")
                    found = store.tokens.find(digest(served.tokens["viewer"]))
                    assert found is not None
                    store.tokens.revoke(found.id, "ann", "lost", time.time()).result()
                    async for _ in answer.content:
                        pass  # until it ends


async def test_a_page_of_elsewhere_that_points_at_this_machine_gets_nothing(site: tuple[str, Runner]) -> None:
    for path, host, status in (
        ("status", "evil.example", 403),
        ("live", "evil.example", 403),
        ("status", "localhost", 200),
    ):
        assert (await ask(f"{site[0]}/{path}", Host=host))[0] == status


async def test_with_a_viewers_token_nobody_sees_anything_without_one(rules: Rules, tmp_path: Path) -> None:
    with serving(rules, tmp_path, badges=(*BADGES, VIEWER)) as (url, _):
        for path in ("legend", "status", "live", "frames"):
            assert (await ask(f"{url}/{path}"))[0] == 401
            assert (await ask(f"{url}/{path}", token="guess-guess"))[0] == 401
        assert (await ask(f"{url}/status", token="viewer-token-aaaaaaa", Host="town.example"))[1]["role"] == "viewer"
        assert len(await frames(url, 2, token="operator-1-aaaaaaaaa")) == 2


async def test_who_guesses_tokens_has_to_wait_and_a_good_one_passes(rules: Rules, tmp_path: Path) -> None:
    with serving(rules, tmp_path, badges=(*BADGES, VIEWER)) as (url, _):
        found = [(await ask(f"{url}/status", token=f"guess-{n}"))[0] for n in range(12)]
        assert found[:2] == [401, 401] and found[-6:] == [429] * 6
        assert (await ask(f"{url}/status", token="viewer-token-aaaaaaa"))[0] == 200


async def test_status_tells_how_the_town_is_and_what_the_role_may_order(site: tuple[str, Runner]) -> None:
    url, runner = site
    runner.speed = FASTEST
    await until(lambda: runner.life.tick > 760)
    runner.speed = 200.0
    _, viewer = await ask(f"{url}/status")
    _, admin = await ask(f"{url}/status", token="admin-token-aaaaaaaa")
    assert {one["name"] for one in viewer["commands"]} == {"inspect", "queues"}
    assert {one["name"] for one in admin["commands"]} == set(townlife.COMMANDS)
    assert viewer["kpis"]["residents"] == 12 and viewer["history"] and viewer["lines"]
    assert (await ask(f"{url}/health"))[1] == {"status": "ok"}


async def test_behind_a_veil_no_name_leaves_by_any_door(rules: Rules, tmp_path: Path) -> None:
    names = {Life(rules, seed=3).name(seat) for seat in range(12)}
    with serving(rules, tmp_path, veil=Pseudonymizer(key=b"key" * 11)) as (url, runner):
        runner.speed = FASTEST
        await until(lambda: runner.life.tick > 400)
        sent = [json.dumps(await frames(url, 5))]
        paths = ("legend", "status", "frames?tick=1&most=600")
        sent += [json.dumps((await ask(f"{url}/{path}"))[1]) for path in paths]
        order = {"name": "kill", "id": "1", "args": {"resident": 2}}
        sent.append(json.dumps((await ask(f"{url}/order", order, token="admin-token-aaaaaaaa"))[1]))
    sent += [(tmp_path / name).read_text() for name in ("town.frames", "audit.jsonl")]
    words = set("".join(letter if letter.isalpha() else " " for letter in "\n".join(sent)).split())
    assert not names & words


# Backpressure -------------------------------------------------------------------------------------------------------


def test_who_has_fallen_behind_begins_at_the_newest_key_frame() -> None:
    hub = FrameHub()
    assert hub.after(-1) is None
    for seq in range(10):
        hub.offer({"seq": seq, "key": seq in (0, 6)})
    assert [found and found[0] for found in map(hub.after, (-1, 2, 5, 6, 8, 9))] == [6, 6, 6, 7, 9, None]


async def test_a_slow_viewer_slows_nothing_and_gets_a_key_frame_next(site: tuple[str, Runner]) -> None:
    url, runner = site
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")  # and then it reads nothing
        await until(lambda: runner.life.tick > 100)
        at = runner.life.tick
        seen = None
        for frame in await frames(url, 30):  # another one sees everything meanwhile
            seen = townlife.fold(seen, frame)
        assert runner.life.tick > at
    kept = runner.hub._frames
    assert len(kept) <= 60  # what is kept does not grow with who waits


async def test_whom_an_app_around_it_has_let_in_is_who_asks(site: tuple[str, Runner]) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    caller = Caller(label="ann", role=Role.ADMIN)
    scope = {"type": "http", "method": "GET", "path": "/status", "headers": [], "query_string": b"", "caller": caller}
    await app(site[1], [VIEWER])(scope, receive, send)
    assert sent[0]["status"] == 200 and json.loads(sent[1]["body"])["role"] == "admin"
