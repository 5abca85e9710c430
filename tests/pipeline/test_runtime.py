"""Who answers for a version of a policy: whoever was opened for it in this process, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.agent import no_model
from holdfast.collect.executors import InProcess
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.errors import Fault
from holdfast.pipeline.runtime import Endpoints, Runtime
from holdfast.policies.model import Model
from holdfast.policies.prompt import Prompt
from holdfast.store.artifacts import FolderArtifacts
from tests.collect.agents import no_score
from tests.pipeline.driving import echo


class Connected(Endpoints):
    """Addresses that answer with their own name, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__(lambda model: lambda *messages, **sampling: model)  # type: ignore[arg-type,return-value]
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime(echo, no_score, Connected())
    yield made
    made.close()


def test_a_version_is_answered_for_by_whom_it_was_opened_with(runtime: Runtime) -> None:
    policies = [Prompt({"say": name}, model=name) for name in ("a", "b")]
    assert runtime.versions() == []
    for one in policies:
        actor = runtime.open(one)
        assert (actor.version, actor.model, dict(actor.resources)) == (one.version, one.model, {"say": one.model})
    assert runtime.versions() == [one.version for one in policies]
    for one in policies:
        complete: Any = runtime.complete(one.version)
        assert complete() == one.model


def test_a_policy_without_a_model_is_open_and_answers_nothing(runtime: Runtime) -> None:
    policy = Prompt({"say": "hi"})
    runtime.open(policy)
    assert (runtime.versions(), runtime.complete(policy.version)) == ([policy.version], None)


def test_what_nobody_has_opened_here_is_a_fault_and_no_answer_of_another(runtime: Runtime) -> None:
    runtime.open(Prompt(model="a"))
    with pytest.raises(Fault, match="policy p@2: nobody has opened it in this process; let the process that drives"):
        runtime.complete("p@2")


def test_a_rollout_without_a_version_is_answered_by_the_last_one_opened(runtime: Runtime) -> None:
    assert runtime.complete(None) is None
    for name in ("a", "b"):
        runtime.open(Prompt(model=name))
    complete: Any = runtime.complete(None)
    assert complete() == "b"


def test_weights_of_ours_are_out_of_place_behind_an_address(runtime: Runtime) -> None:
    with pytest.raises(Fault, match="its weights are ours, and this run loads none"):
        runtime.open(Model("sprout"))
    assert runtime.versions() == []


def test_the_engine_learns_where_checkpoints_lie_and_is_closed_with_the_run(tmp_path: Path) -> None:
    engine = Connected()
    made = Runtime(echo, no_score, engine)
    files = FolderArtifacts(tmp_path)
    made.attach(files)
    assert (engine.files, engine.is_closed) == (files, False)
    made.close()
    assert engine.is_closed
    assert not made._home.current.thread.is_alive()


@pytest.mark.parametrize(
    ("executor", "kind"),
    [
        (None, InProcess),
        (partial(ProcessExecutor, ProcessRecipe("tests.collect.agents:do", no_score, no_model)), ProcessExecutor),
    ],
    ids=["here", "in processes"],
)
def test_agents_run_here_or_in_processes_of_their_own(executor: Any, kind: type) -> None:
    made = Runtime(echo, no_score, Connected(), executor=executor)
    assert isinstance(made.seat()._executor, kind)
    made.close()
