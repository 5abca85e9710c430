"""Flags by the standard OpenFeature client: typed values with their details, and news from other processes at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.evaluation_context import EvaluationContext
from openfeature.event import EventDetails, ProviderEvent
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import Reason
from openfeature.provider import ProviderStatus

from holdfast.contracts.errors import StoreBusy
from holdfast.contracts.flag import Condition, Flag, FlagRule
from holdfast.contracts.release import Experiment
from holdfast.promote.experiment import KIND, Design, arms_of, assign, settings_of
from holdfast.promote.provider import Provider
from holdfast.store.notifications import FLAGS
from holdfast.store.store import Store
from tests.conftest import Clock
from tests.store.children import ready, tell
from tests.store.scene import once

SECOND = 1.0
pytestmark = once  # the provider lies above the store


def put(store: Store, name: str = "f", **given: Any) -> Flag:
    told = {"variants": {"on": True, "off": False}, "off": "off", "enabled": True, "rules": (FlagRule(variant="on"),)}
    flag = Flag(name=name, **{**told, **given})
    return store.flags.put(flag, who="ann", why="test", now=1.0).result()


def soon(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


class Scene:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock, self.environment = store, clock, dict[str, str]()
        self.provider = Provider(store, clock=lambda: clock.now, environment=self.environment)
        self.client: OpenFeatureClient = api.get_client()
        self.heard: list[tuple[ProviderEvent, EventDetails]] = []
        for event in ProviderEvent:
            self.client.add_handler(event, lambda details, event=event: self.heard.append((event, details)))

    def begin(self) -> None:
        api.set_provider_and_wait(self.provider)

    def events(self, wanted: ProviderEvent) -> list[EventDetails]:
        return [details for event, details in self.heard if event is wanted]


@pytest.fixture
def scene(store: Store, clock: Clock) -> Iterator[Scene]:
    yield Scene(store, clock)
    api.clear_providers()
    api.clear_evaluation_context()


def test_typed_getters_give_the_value_and_its_details(scene: Scene) -> None:
    put(scene.store, "switch", owner="ann")
    put(scene.store, "word", variants={"a": "one", "b": "two"}, off="a", rules=(FlagRule(variant="b"),))
    put(scene.store, "number", variants={"a": 1, "b": 2}, off="a", rules=(FlagRule(variant="b"),))
    put(scene.store, "share", variants={"a": 0.5, "b": 0.25}, off="a", rules=())
    put(scene.store, "tree", variants={"a": {"depth": [1, 2]}}, off="a", rules=(FlagRule(variant="a"),))
    scene.begin()
    client = scene.client
    assert client.get_boolean_value("switch", False) is True
    assert client.get_string_value("word", "none") == "two"
    assert client.get_integer_value("number", 0) == 2
    assert client.get_float_value("share", 0.0) == 0.5
    assert client.get_float_value("number", 0.0) == 2.0
    assert client.get_object_value("tree", {}) == {"depth": [1, 2]}
    details = client.get_boolean_details("switch", False)
    assert (details.flag_key, details.variant, details.reason) == ("switch", "on", Reason.STATIC)
    assert details.flag_metadata == {"detail": "rule 1", "owner": "ann", "changed_at": 1.0}
    assert client.get_float_details("share", 0.0).reason == Reason.DEFAULT


def test_a_value_of_another_type_or_of_no_flag_is_an_error_and_the_default(scene: Scene) -> None:
    put(scene.store)
    scene.begin()
    defaults = {"string": "x", "integer": 7, "float": 7.0, "object": {"x": 1}}  # true is not 1
    for kind, default in defaults.items():
        details = getattr(scene.client, f"get_{kind}_details")("f", default)
        assert (details.value, details.reason, details.error_code) == (default, Reason.ERROR, ErrorCode.TYPE_MISMATCH)
    details = scene.client.get_boolean_details("gone", True)
    assert (details.value, details.reason, details.error_code) == (True, Reason.ERROR, ErrorCode.FLAG_NOT_FOUND)
    assert details.error_message == "there is no flag 'gone'"


async def test_the_async_client_gets_the_same(store: Store, clock: Clock) -> None:
    put(store)
    api.set_provider_and_wait(Provider(store, clock=lambda: clock.now, environment={}))
    try:
        assert await api.get_client().get_boolean_value_async("f", False) is True
    finally:
        api.clear_providers()


def test_the_context_reaches_the_rules_from_every_level(scene: Scene) -> None:
    staff = Condition(attribute="group", operator="in", value=["staff"])
    put(scene.store, rules=(FlagRule(variant="on", conditions=(staff,), percent=99.99),))
    scene.begin()
    client = scene.client
    assert client.get_boolean_value("f", False) is False
    api.set_evaluation_context(EvaluationContext(attributes={"group": "staff"}))
    details = client.get_boolean_details("f", False)  # nobody in particular is in no share
    assert (details.value, details.reason) == (False, Reason.DEFAULT)
    assert "no targeting key" in str(details.flag_metadata["detail"])
    details = client.get_boolean_details("f", False, EvaluationContext("ann"))
    assert (details.value, details.reason) == (True, Reason.SPLIT)


def test_a_flag_expires_by_the_clock_and_the_environment_kills_at_once(scene: Scene) -> None:
    put(scene.store, expires_at=scene.clock.now + 10)
    put(scene.store, "g")
    scene.begin()
    assert scene.client.get_boolean_value("f", False) is scene.client.get_boolean_value("g", False) is True
    scene.clock.advance(10)
    assert scene.client.get_boolean_details("f", False).reason == Reason.DISABLED
    scene.environment["HOLDFAST_KILL_G"] = "1"
    details = scene.client.get_boolean_details("g", True)
    assert (details.value, details.reason) == (False, Reason.DISABLED)
    assert details.flag_metadata["detail"] == "killed by HOLDFAST_KILL_G"


CHILD = """
import sys, time
from dataclasses import replace
from holdfast.store.store import open_store

with open_store(sys.argv[1]) as store:
    flag = store.flags.get("f")
    print("ready", flush=True)
    for word in sys.stdin:
        print(time.time(), flush=True)
        store.flags.put(replace(flag, killed=word == "kill\\n"), who="ann", why="it burns", now=2.0).result()
"""


def test_a_kill_in_another_process_is_in_force_within_a_second(scene: Scene, url: str) -> None:
    put(scene.store)
    put(scene.store, "g")
    scene.begin()
    assert scene.client.get_boolean_value("f", False) is True
    child = ready(CHILD, url)
    assert child.stdout is not None
    for _ in range(10):  # on a busy machine, not the first time
        took = {}
        for word, is_on in (("kill", False), ("spare", True)):
            tell(child, word)
            written = float(child.stdout.readline())
            soon(lambda is_on=is_on: scene.client.get_boolean_value("f", False) is is_on)  # type: ignore[misc]
            took[word] = time.time() - written
        if took["kill"] < SECOND:
            break
    assert took["kill"] < SECOND
    child.communicate(timeout=60)
    soon(lambda: bool(scene.events(ProviderEvent.PROVIDER_CONFIGURATION_CHANGED)))
    changed = scene.events(ProviderEvent.PROVIDER_CONFIGURATION_CHANGED)
    assert {tuple(details.flags_changed) for details in changed} == {("f",)}  # not g, and not the first look
    assert changed[0].provider_name == "holdfast"


def test_new_and_dropped_flags_are_news_too(scene: Scene) -> None:
    scene.begin()
    put(scene.store)
    soon(lambda: scene.client.get_boolean_value("f", False) is True)
    scene.store.flags.drop("f", who="ann", why="done", now=3.0).result()
    soon(lambda: scene.client.get_boolean_details("f", False).error_code == ErrorCode.FLAG_NOT_FOUND)


def test_a_key_that_is_given_an_arm_of_an_experiment_is_exposed_to_it_once(scene: Scene) -> None:
    flag = put(scene.store, "parser", rules=(FlagRule(variant="on", percent=0.0),))
    scene.begin()
    assert not scene.client.get_boolean_value("parser", False, EvaluationContext("ann"))
    design = Design(flag="parser", until=scene.clock.now + 60.0)
    about: Any = {"name": "parser-1", "kind": KIND, "salt": "trial/parser-1", "created_at": scene.clock.now}
    trial = Experiment(**about, arms=arms_of(flag, 0.5), settings=settings_of(design))
    scene.store.trials.begin(trial, who="ann", now=scene.clock.now).result()
    people = [EvaluationContext(f"user-{number}") for number in range(40)]

    def split() -> list[bool]:
        return [scene.client.get_boolean_value("parser", False, one) for one in people]

    soon(lambda: any(split()))  # it has heard of the experiment
    given = split()
    assert given == [assign(trial, one.targeting_key or "") == "on" for one in people]
    soon(lambda: sum(scene.store.trials.exposed("parser-1").values()) == 40)
    assert scene.store.trials.exposed("parser-1") == {"off": given.count(False), "on": given.count(True)}
    scene.clock.advance(61.0)  # its time is over, whoever notices
    assert not any(split())


def test_a_snapshot_that_is_held_stays_as_it_was(scene: Scene) -> None:
    put(scene.store)
    scene.begin()
    before = scene.provider.snapshot()
    put(scene.store, rules=())
    soon(lambda: not scene.provider.snapshot()["f"].rules)
    assert before["f"].rules
    with pytest.raises(TypeError):
        before["g"] = before["f"]  # type: ignore[index]


@pytest.mark.parametrize("failure", [StoreBusy("store", why="is locked"), RuntimeError("store: is locked")])
def test_while_the_store_cannot_be_read_the_last_flags_stay_and_the_provider_is_stale(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    put(scene.store)
    scene.begin()
    is_down, looking = threading.Event(), threading.Lock()
    read = scene.store.flags.all

    def all_flags() -> list[Flag]:
        with looking:
            if is_down.is_set():
                raise failure
            return read()

    monkeypatch.setattr(scene.store.flags, "all", all_flags)
    with looking:  # nobody who found the store well reads what comes now
        is_down.set()
    put(scene.store, killed=True)
    soon(lambda: scene.client.get_provider_status() is ProviderStatus.STALE)
    assert scene.client.get_boolean_value("f", False) is True
    is_down.clear()
    soon(lambda: scene.client.get_provider_status() is ProviderStatus.READY)
    assert scene.client.get_boolean_value("f", False) is False
    soon(lambda: bool(scene.events(ProviderEvent.PROVIDER_STALE)))
    assert scene.events(ProviderEvent.PROVIDER_STALE)[0].message == "store: is locked"


def test_a_store_that_was_closed_makes_it_stale_and_costs_no_processor(scene: Scene) -> None:
    put(scene.store)
    scene.begin()
    scene.store.changes.wait(FLAGS, scene.store.changes.seen(FLAGS), 0.1)  # its watcher is at work
    scene.store.close()
    soon(lambda: scene.client.get_provider_status() is ProviderStatus.STALE)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    assert scene.client.get_boolean_value("f", False) is True


def test_a_provider_that_was_shut_down_leaves_no_thread_and_can_begin_again(scene: Scene) -> None:
    put(scene.store)
    scene.begin()
    assert _followers() == 1
    api.shutdown()
    assert _followers() == 0
    api.clear_providers()
    scene.begin()
    assert scene.client.get_boolean_value("f", False) is True


def _followers() -> int:
    return sum(thread.name == "holdfast-flags" for thread in threading.enumerate())
