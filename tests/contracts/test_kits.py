"""The kits of agents, artifacts, engines, executors and policies: built-in kinds pass, each promise is broken once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.collect import questions
from holdfast.collect.agent import Context, Tracer, load_agent, no_model
from holdfast.collect.executors import AgentRuntime
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.agent import Agent, check_agent, is_async
from holdfast.contracts.artifacts import Artifact, check_artifacts, content_hash
from holdfast.contracts.engine import Complete, Engine, check_engine
from holdfast.contracts.envs import Spaces
from holdfast.contracts.executor import Assignment, Executor, Outcome, Record, Report, check_executor
from holdfast.contracts.policy import Actor, Policy, check_policy
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import ModelCall
from holdfast.pipeline.context import Endpoints
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.policies.network import Network
from holdfast.policies.prompt import Prompt
from holdfast.store.artifacts import FolderArtifacts
from tests.collect.agents import no_score
from tests.collect.scene import assignment
from tests.workloads.scene import tiny

# Agents ---------------------------------------------------------------------------------------------------------------

TASKS = [{"prompt": f"question {n}"} for n in range(3)]


async def echo(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
    await asyncio.sleep(0)
    response = {"role": "assistant", "content": str(messages[-1]["content"]).upper()}
    return ModelCall(model="m", messages=tuple(messages), response=response)


def context(task: Any) -> Context:
    return Context(assignment=assignment(task), trace=Tracer(lambda span: None, time.time), complete=echo)


async def asking(task: Any, ctx: Context) -> Any:
    return (await ctx.ask([{"role": "user", "content": task["prompt"]}])).response["content"]


def plain(task: Any, ctx: Context) -> Any:
    return {"is": [task["prompt"], ctx.seed]}


def awaitable(task: Any, ctx: Context) -> Any:
    return asking(task, ctx)


def changing(task: Any, ctx: Context) -> Any:
    return task.pop("prompt")  # its own copy


@pytest.mark.parametrize("agent", [questions.answer, asking, plain, awaitable, changing])
def test_an_agent_that_keeps_to_itself_passes(agent: Agent) -> None:
    check_agent(agent, TASKS, context)
    assert is_async(agent) == (agent in (questions.answer, asking))
    assert TASKS[0] == {"prompt": "question 0"}


class Remembering:
    """Of all attempts at once it knows one task."""

    async def __call__(self, task: Any, ctx: Context) -> Any:
        self.task = task["prompt"]
        await asyncio.sleep(0)
        return self.task


class Slow:
    def __call__(self, task: Any, ctx: Context) -> Any:
        self.task = task["prompt"]
        time.sleep(0.05)
        return self.task


counted = itertools.count()
AGENTS: list[tuple[Any, str]] = [
    (lambda task: task, "cannot be called with"),
    (lambda task, ctx: object(), "the agent's answer"),
    (lambda task, ctx: {"score": float("nan")}, "the agent's answer"),
    (lambda task, ctx: 1 / 0, "ZeroDivisionError"),
    (lambda task, ctx: next(counted), "the same chance gives"),
    (Remembering(), "answers 'question 2' beside others, 'question 0' alone"),
    (Slow(), "beside others"),
]


@pytest.mark.parametrize(("agent", "says"), AGENTS, ids=[says for _, says in AGENTS])
def test_an_agent_that_breaks_a_promise_fails_the_kit(agent: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_agent(agent, TASKS, context)
    with pytest.raises(AssertionError, match="fewer than two tasks"):
        check_agent(agent, TASKS[:1], context)


# Artifacts ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_a_folder_keeps_what_the_kit_asks(tmp_path: Path, scratch: Path) -> None:
    check_artifacts(lambda: FolderArtifacts(tmp_path / "kept"), scratch)


def place(artifacts: FolderArtifacts, ref: Artifact | str) -> Path:
    return artifacts.root / (ref if isinstance(ref, str) else ref.uri)


class Trusting(FolderArtifacts):
    """Never looks at what it gives."""

    def get(self, ref: Artifact | str) -> Path:
        return found if (found := place(self, ref)).exists() else super().get(ref)


class Guessing(FolderArtifacts):
    def put(self, source: Path, uri: str) -> Artifact:
        super().put(source, uri)
        return Artifact(uri=uri, sha256=hashlib.sha256(uri.encode()).hexdigest())


class Forgetful(FolderArtifacts):
    """Has what was put only as long as it lives."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / str(id(self)))


class Rude(FolderArtifacts):
    def get(self, ref: Artifact | str) -> Path:
        if not place(self, ref).exists():
            raise FileNotFoundError
        return super().get(ref)


class Believing(FolderArtifacts):
    """Looks at what is there when it is asked for something else, and believes its own records."""

    put_here: ClassVar[dict[str, Artifact]] = {}

    def get(self, ref: Artifact | str) -> Path:
        is_known = isinstance(ref, Artifact) and self.put_here.get(ref.uri) == ref
        return place(self, ref) if is_known and place(self, ref).exists() else super().get(ref)

    def put(self, source: Path, uri: str) -> Artifact:
        self.put_here[uri] = super().put(source, uri)
        return self.put_here[uri]


def remove(at: Path) -> None:
    shutil.rmtree(at) if at.is_dir() else at.unlink()


class Cleaning(FolderArtifacts):
    """Where one was damaged, away with the rest."""

    def put(self, source: Path, uri: str) -> Artifact:
        at = self.root / uri
        if at.exists() and (at / "content" if at.is_dir() else at).read_bytes() == b"ono":
            for other in at.parent.iterdir():
                remove(other)
        return super().put(source, uri)


class Stubborn(FolderArtifacts):
    """What is there stays, damaged or not."""

    def put(self, source: Path, uri: str) -> Artifact:
        if not (self.root / uri).exists():
            return super().put(source, uri)
        proved = content_hash(source)
        remove(source)
        return Artifact(uri=uri, sha256=proved)


ARTIFACTS: list[tuple[type[FolderArtifacts], str]] = [
    (Guessing, "does not prove what was put"),
    (Forgetful, "another process does not get what was put"),
    (Rude, "what was never put is got: FileNotFoundError is raised, not Lost"),
    (Trusting, "other bytes than the hash proves are got"),
    (Believing, "damaged bytes are got"),
    (Stubborn, "what was damaged cannot be put again"),
    (Cleaning, "putting one has changed another"),
]


@pytest.mark.parametrize(("kind", "says"), ARTIFACTS, ids=[kind.__name__ for kind, _ in ARTIFACTS])
def test_artifacts_that_break_a_promise_fail_the_kit(
    kind: type[FolderArtifacts], says: str, tmp_path: Path, scratch: Path
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_artifacts(lambda: kind(tmp_path / "kept"), scratch)


def test_a_folder_is_proved_by_what_its_manifest_names(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"weights")
    proved = hashlib.sha256(b"weights").hexdigest()
    manifests: list[tuple[Any, str]] = [
        ({"file": "w", "sha256": "0" * 64}, "is damaged"),  # another hash
        ([], "is no object"),
        ({}, "None"),  # names no file
    ]
    for manifest, says in manifests:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises((ValueError, OSError), match=says):
            content_hash(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"file": "w", "sha256": proved}))
    assert content_hash(tmp_path) == content_hash(tmp_path / "w") == proved


# Engines --------------------------------------------------------------------------------------------------------------

PROMPTS = [Prompt(model=name) for name in ("a", "b", "c")]


def test_models_of_ours_in_this_process_pass(tmp_path: Path) -> None:
    policies = [Model(tiny(tmp_path / "base", 9)).at(None if n == 0 else f"c-{n}") for n in range(4)]
    for n in (1, 2, 3):
        tiny(tmp_path / "checkpoints" / f"c-{n}", n)
    make = partial(LocalEngine, slots=4, deterministic=True, files=FolderArtifacts(tmp_path))
    check_engine(make, policies, seed=5, temperature=1.0, max_tokens=8)


def answering(model: str, **fields: Any) -> Complete:
    async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        response = {"role": "assistant", "content": f"I am {model}"}
        return ModelCall(model=model, **{"messages": tuple(messages), "response": response, **fields})

    return complete


def test_models_behind_an_address_pass() -> None:
    check_engine(lambda: Endpoints(answering), PROMPTS)


class Last(Endpoints):
    """Whatever was opened last answers for all, as an engine does that keeps one model in memory."""

    def open_endpoint(self, model: str) -> Complete | None:
        self.model = model

        async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
            return await answering(self.model)(messages, **sampling)

        return complete


class Crowded(Endpoints):
    """Right as long as one is asked at a time."""

    def open_endpoint(self, model: str) -> Complete | None:
        async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
            self.asked = model
            await asyncio.sleep(0)
            return await answering(self.asked)(messages, **sampling)

        return complete


class CloseOnce(Endpoints):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise AssertionError("it is closed already")
        self.is_closed = True


class Renaming(Endpoints):
    def open_model(self, policy: Any) -> Complete:
        return answering("local/other@9")


ENGINES: list[tuple[Callable[[], Any], Sequence[Any], str]] = [
    (lambda: Last(), PROMPTS, "prompt:.*: is answered by another version once others are open"),
    (lambda: Crowded(), PROMPTS, "is answered otherwise while others are asked"),
    (lambda: CloseOnce(answering), PROMPTS, "it is closed already"),
    (lambda: Endpoints(), PROMPTS, "nobody answers for it"),
    (lambda: Endpoints(lambda model: answering("one")), PROMPTS, "two versions say the same"),
    (lambda: Endpoints(lambda model: answering(model, messages=())), PROMPTS, "has other messages than were asked"),
    (Renaming, [Model("sprout")] * 3, "its calls are recorded as those of local/other@9"),
    (lambda: Endpoints(answering), PROMPTS[:2], "fewer than three versions"),
]


@pytest.mark.parametrize(("make", "policies", "says"), ENGINES, ids=[says for *_, says in ENGINES])
def test_an_engine_that_breaks_a_promise_fails_the_kit(
    make: Callable[[], Any], policies: Sequence[Any], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_engine(make, policies)


# Executors ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runtimes() -> Iterator[list[AgentRuntime]]:
    opened: list[AgentRuntime] = []
    yield opened
    for one in opened:
        one.close()


def opened(runtimes: list[AgentRuntime], agent: str) -> AgentRuntime:
    runtimes.append(AgentRuntime(load_agent(agent), no_score, no_model, time.time))
    return runtimes[-1]


def test_threads_and_loops_in_this_process_pass(runtimes: list[AgentRuntime]) -> None:
    check_executor(lambda agent: opened(runtimes, agent).executor(), within_s=20.0, grace_s=0.3)
    assert [is_async(one.agent) for one in runtimes] == [False, True]  # a thread for one, a loop for the other


def test_processes_pass() -> None:
    check_executor(lambda agent: ProcessExecutor(ProcessRecipe(agent, no_score, no_model)), within_s=30.0, grace_s=0.3)


class Simple:
    """Runs plain agents in threads, and the rest of the kit's on loops: the least that passes nearly all of it."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._executor, self.kept = runtime.executor(), list[Any]()
        self.prepare, self.close = self._executor.prepare, self._executor.close

    def is_ready(self) -> bool:
        return self._executor.is_ready()

    def hindered(self) -> Callable[[], bool]:
        return lambda: False

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        self.record = record
        return self._executor.begin(assignment, self.hear, partial(self.end, report))

    def hear(self, span: Any) -> None:
        self.record(span)

    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        report(outcome, error)


class NeverReady(Simple):
    def is_ready(self) -> bool:
        return False


class Silent(Simple):
    def hear(self, span: Any) -> None:
        pass


class AtTheEnd(Simple):
    """Tells of what happens only when it has ended."""

    def hear(self, span: Any) -> None:
        self.kept.append(span)

    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        for span in self.kept:
            self.record(span)
        report(outcome, error)


class Late(AtTheEnd):
    """Tells of what happened once it is over."""

    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        report(outcome, error)
        super().end(lambda *_: None, outcome, error)


class Twice(Simple):
    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        report(outcome, error)
        report(outcome, error)


class Raising(Simple):
    """An agent that fails is an error of the executor's."""

    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        is_failed = outcome is not None and outcome.state is AttemptState.FAILED
        report(None if is_failed else outcome, ValueError("it failed") if is_failed else error)


class Forgiving(Simple):
    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        report(outcome and Outcome(state=AttemptState.SUCCEEDED, output=outcome.output or "fine"), error)


class Repeating(Simple):
    """Gives every attempt the first one's answer."""

    first: Outcome | None = None

    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        if outcome is not None and outcome.state is AttemptState.SUCCEEDED:
            outcome = self.first = self.first or outcome
        report(outcome, error)


class Accusing(Simple):
    def hindered(self) -> Callable[[], bool]:
        return lambda: True


class Queueing(Simple):
    """Ends nobody: whoever comes next waits."""

    def __init__(self, runtime: AgentRuntime) -> None:
        super().__init__(runtime)
        self._turn = threading.Lock()

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        def start() -> None:
            self._turn.acquire()
            Simple.begin(self, assignment, record, report)

        threading.Thread(target=start, daemon=True).start()
        return iter(())

    def end(self, report: Report, outcome: Outcome | None, error: BaseException | None) -> None:
        self._turn.release()
        report(outcome, error)


EXECUTORS: list[tuple[type[Simple], str]] = [
    (NeverReady, "it was prepared and is not ready"), (Silent, "the end of an attempt is reported before its spans"),
    (Late, "the end of an attempt is reported before its spans"), (AtTheEnd, "nothing is heard of an attempt for 1 s"),
    (Twice, "something is reported after the end"), (Raising, "an attempt that ended is reported as None, ValueError"),
    (Forgiving, "an agent that raised has ended as succeeded"),
    (Repeating, "an agent that said 'eight' has ended as .*'seven'"),
    (Accusing, "an agent that is alone is hindered by another"), (Queueing, "nothing is heard of an attempt for 1 s"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "says"), EXECUTORS, ids=[kind.__name__ for kind, _ in EXECUTORS])
def test_an_executor_that_breaks_a_promise_fails_the_kit(
    kind: type[Simple], says: str, runtimes: list[AgentRuntime]
) -> None:
    def make(agent: str) -> Executor:
        return kind(opened(runtimes, agent))

    with pytest.raises(AssertionError, match=says):
        check_executor(make, within_s=1.0, grace_s=0.1)


# Policies -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A policy as somebody writes one; the wrong ones below change one thing each."""

    answers: Mapping[str, str]
    note: str = ""

    kind: ClassVar[str] = "prompt"

    @property
    def manifest(self) -> Mapping[str, Any]:
        return {"answers": dict(self.answers), "note": self.note}

    @property
    def version(self) -> str:
        return f"table@{sorted(self.answers.items())}{self.note}"

    @property
    def source(self) -> str:
        return f"resources:{self.version}"

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Table:
        return cls(manifest["answers"], manifest["note"])

    def open(self, engine: Engine) -> Actor:
        return Actor(version=self.version)


class Unnamed(Table):
    version = " "  # type: ignore[assignment]


class Drawn(Table):
    version = property(lambda self: f"table@{next(counted)}")  # type: ignore[assignment]


class Binary(Table):
    manifest = property(lambda self: {"answers": dict(self.answers), "note": b"bytes"})  # type: ignore[assignment]


class Careless(Table):
    """Not all that decides what it says is in its record."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Table:
        return cls(manifest["answers"])


class Own(Table):
    """Hands out what it is made of."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        return vars(self).setdefault("kept", {"answers": dict(self.answers), "note": self.note})


class Other(Table):
    def open(self, engine: Engine) -> Actor:
        return Actor(version="table@other")


class Aging(Table):
    def open(self, engine: Engine) -> Actor:
        actor = Actor(version=self.version)
        object.__setattr__(self, "note", "opened")
        return actor


@pytest.mark.parametrize(
    "policy",
    [
        Table({"1?": "2"}, "a note"),
        Prompt(system="Be brief.", model="m", sampling={"temperature": 0.0}),
        Prompt(),
        Network(width=4).fitted("sign", Spaces(observation=2, actions=3)),
        Model("sprout", resources={"system": "Be brief."}),
        Model("sprout", lora=0).at(None),
    ],
    ids=lambda policy: policy.version,
)
def test_a_policy_of_each_kind_passes_the_kit(policy: Policy) -> None:
    engine = LocalEngine(slots=1) if policy.kind == "weights" else Endpoints()
    try:
        check_policy(policy, engine)
    finally:
        engine.close()


POLICIES: list[tuple[Any, str]] = [
    (Unnamed, "has a blank version"), (Drawn, "when it is asked again"), (Binary, "its manifest is not plain JSON"),
    (Careless, "comes back from its record as"), (Own, "whoever changes its manifest changes the policy"),
    (Other, "is opened as table@other"), (Aging, "is another one after it was opened"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "says"), POLICIES, ids=[kind.__name__ for kind, _ in POLICIES])
def test_a_policy_that_breaks_a_promise_fails_the_kit(kind: type[Table], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_policy(kind({"1?": "2"}, "a note"), Endpoints())
