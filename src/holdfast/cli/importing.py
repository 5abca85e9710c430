"""`holdfast import`: chat logs become finished rollouts, scrubbed and through the gates, ready to be learnt from.

All of them go to one run of the project, each under the hash of what was said, so that importing again is harmless.
What is scrubbed is `collect.scrub`'s business, and what is fit `learn.quality`'s; nothing is stored before both have
seen it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreAt, who
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.rollout import RolloutState, Split

if TYPE_CHECKING:
    from holdfast.collect.scrub import Scrub
    from holdfast.contracts.experience import Experience
    from holdfast.contracts.reward import Signal
    from holdfast.contracts.rollout import Task
    from holdfast.contracts.run import Run
    from holdfast.contracts.trace import Span
    from holdfast.learn.quality import Audit
    from holdfast.store.store import Store

KIND, WORKER = "import", "import"
LEASE_S, SILENT_S = 60.0, 10.0
BATCH, PAGE = 100, 500
DEEPEST = 100  # lists and objects within one another in a line
KNOWN = ("messages", "reward", "model", "tools", "metadata")
REMEDY = 'give one object a line, such as {"messages": [{"role": "user", "content": "…"}, …], "reward": 1.0}'
EPILOG = """Each line of FILE is {"messages": […]}, and may have "reward", "model", "tools" and "metadata".

Exit codes: 0 done, 1 nothing passed the gates, 2 a line that cannot be read: then nothing was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One line of the file, scrubbed."""

    line: int
    name: str  # of its rollout: the hash of what was said
    messages: Sequence[Mapping[str, Any]]
    model: str
    tools: Sequence[Any] = ()
    reward: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def opening(self) -> list[Mapping[str, Any]]:
        """What was said before the first answer: the task."""
        roles = [message.get("role") for message in self.messages]
        return list(self.messages[: roles.index("assistant") if "assistant" in roles else len(roles)])


def take_in(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Conversations as JSON, one a line.")],
    split: Annotated[Split, typer.Option(help="What they are for.")] = Split.TRAIN,
    model: Annotated[str, typer.Option(metavar="NAME", help="Who answered, where a line does not say.")] = "imported",
    scrub: Annotated[
        bool,
        typer.Option("--scrub/--no-scrub", help="Replace secrets and personal data; without it --yes is asked for."),
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Really keep what was said as it was said.")] = False,
    limit: Limit = 20,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take in chat logs: scrubbed, through the data gates, each conversation once."""
    if not scrub and not yes:
        remedy = "leave it out, or add --yes"
        raise BadInput("--no-scrub", why="would store secrets and personal data as they are", remedy=remedy)
    rows = list(_rows(file))
    from holdfast.collect.scrub import Scrub, key_in
    from holdfast.store.store import open_store

    with open_store(store, project=project) as opened:
        scrubber = Scrub(key_in(opened.folder)) if scrub else None
        with show.progress("scrubbing", len(rows)) as bar:
            found = [_conversation(row, line, model, scrubber, bar) for line, row in rows]
        run = _run(opened)
        known = {} if run is None else {one.name: one for one in _rollouts(opened, run.id)}
        done = {name for name, one in known.items() if one.status is RolloutState.SUCCEEDED}
        fresh: dict[str, Conversation] = {}
        for one in found:
            if one.name not in done:
                fresh.setdefault(one.name, one)
        kept_out = [one.input for one in known.values() if one.split in (Split.VAL, Split.TEST)]
        audit = _audit(list(fresh.values()), split, kept_out)
        ready = [one for one in fresh.values() if one.name in audit.ready]
        name = run.id if run is not None else None
        if ready:
            name = _write(opened, run, ready, split, scrubbed=scrub, status={k: one.status for k, one in known.items()})
    left = {fresh[name].line: names for name, names in audit.quarantined.items()}
    counted = _counted(ready) if scrub else Counter[str]()
    _tell(name, audit, left, counted, len(ready), len(found) - len(fresh), limit=limit, json=json)
    if fresh and not ready:
        raise typer.Exit(1)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines, each checked; what it says is never repeated in an error."""
    import json

    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"file {path}", why=error.strerror or str(error), remedy="check the path") from None
    empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path}:{number}", why=f"is not JSON: {error}", remedy=REMEDY) from None
        if why := _why_not(row):
            raise BadInput(f"{path}:{number}", why=why, remedy=REMEDY)
        empty = False
        yield number, row
    if empty:
        raise BadInput(f"file {path}", why="holds no conversation", remedy=REMEDY)


def _is_deep(row: Any) -> bool:
    """Whether it holds lists and objects deeper than a record may: level by level, without recursion."""
    level = [row]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def _is_finite(number: Any) -> bool:
    from math import isfinite

    try:
        return isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
    except OverflowError:  # a whole number that no fraction is as large as
        return False


def _why_not(row: Any) -> str | None:
    if not isinstance(row, dict):
        return "is not an object"
    if unknown := sorted(set(row) - set(KNOWN)):
        return f"has {show.count(len(unknown), 'unknown field')}; known are {', '.join(KNOWN)}"
    if _is_deep(row):
        return f"is nested more than {DEEPEST} deep"
    messages, reward = row.get("messages"), row.get("reward")
    if not isinstance(messages, list) or not messages:
        return "messages is not a list, or an empty one"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"messages[{place}] is not an object with a role"
        if not isinstance(message.get("content"), str | list | None):
            return f"messages[{place}].content is neither text nor a list of parts"
        if not isinstance(message.get("tool_calls"), list | None):
            return f"messages[{place}].tool_calls is not a list"
        for call in message.get("tool_calls") or ():
            if not isinstance(call, dict) or not isinstance(call.get("function"), dict | None):
                return f"messages[{place}].tool_calls holds what is not an object with a function"
    if reward is not None and not _is_finite(reward):
        return "reward is not a finite number"
    for key, kind in (("model", str), ("tools", list), ("metadata", dict)):
        if not isinstance(row.get(key), kind | None):
            return f"{key} is not a {kind.__name__}"
    return None


def _conversation(row: Mapping[str, Any], line: int, model: str, scrub: Scrub | None, bar: show.Bar) -> Conversation:
    messages, tools, metadata = row["messages"], row.get("tools") or [], row.get("metadata") or {}
    model = row.get("model") or model
    if scrub is not None:
        messages, tools, metadata = scrub.messages(messages), scrub.value(tools), scrub.value(metadata)
        model = scrub.name(model)
    bar()
    return Conversation(
        line=line,
        name=_hash(messages),
        messages=messages,
        model=model,
        tools=tools,
        reward=row.get("reward"),
        metadata=metadata,
    )


def _hash(data: Any) -> str:
    """Of what is stored: of what was there before, not even a hash is kept."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(data, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _spans(one: Conversation, at: float) -> tuple[Span, ...]:
    """Every answer is a model call with all that was said before it; every result of a tool is a call of the tool."""
    from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall

    spans: list[Span] = []
    asked: dict[str, Mapping[str, Any]] = {}
    when: dict[str, Any] = {"started_at": at, "ended_at": at}
    for place, message in enumerate(one.messages):
        seq = len(spans) + 1
        if message["role"] == "assistant":
            call = ModelCall(
                model=one.model,
                messages=tuple(one.messages[:place]),
                response=message,
                sampling={"tools": list(one.tools)} if one.tools else {},
            )
            spans.append(Span(seq=seq, kind=SpanKind.MODEL, name="chat", model=call, **when))
            calls = [each for each in message.get("tool_calls") or () if isinstance(each, Mapping)]
            asked |= {str(each.get("id")): each.get("function") or {} for each in calls}
        elif message["role"] == "tool":
            function = asked.get(str(message.get("tool_call_id")), {})
            name = str(function.get("name") or message.get("name") or "tool")
            tool = ToolCall(
                tool=name,
                arguments=_arguments(function.get("arguments")),
                result=message.get("content"),
                call_id=str(message["tool_call_id"]) if message.get("tool_call_id") else None,
            )
            spans.append(Span(seq=seq, kind=SpanKind.TOOL, name=name, tool=tool, **when))
    return tuple(spans)


def _arguments(given: Any) -> Mapping[str, Any]:
    import json

    try:
        read = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        read = given
    return read if isinstance(read, dict) else {} if read is None else {"arguments": read}


def _signals(one: Conversation) -> tuple[Signal, ...]:
    from holdfast.contracts.reward import Signal

    return () if one.reward is None else (Signal(name="reward", value=float(one.reward), source=KIND),)


def _audit(found: Sequence[Conversation], split: Split, kept_out: Sequence[Any]) -> Audit:
    """By the names of rollouts. What is kept for proving may well be held out: it is asked of what is for training."""
    from holdfast.learn.quality import Standards, audit

    is_train = split is Split.TRAIN
    experiences = [_experience(one, split if is_train else None) for one in found]
    with show.progress("looking", None):
        return audit(
            experiences,
            inputs={one.name: {"messages": one.opening} for one in found},
            held_out=kept_out if is_train else (),
            standards=Standards(needs_logprobs=False, needs_score=False),
        )


def _experience(one: Conversation, split: Split | None) -> Experience:
    from holdfast.contracts.experience import Experience
    from holdfast.contracts.reward import Sheet

    return Experience(
        rollout=one.name,
        run=KIND,
        task=_hash(one.opening),
        split=split,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=_spans(one, 0.0),
        sheet=Sheet(signals=_signals(one)),
        version=one.model,
    )


def _run(store: Store) -> Run | None:
    """The project's run of imports, which goes on with every import."""
    from holdfast.contracts.run import Wanted

    last = None
    while page := store.runs.newest(most=PAGE, before=last):
        for run in page:
            if run.kind == KIND and run.wanted is not Wanted.CANCELLED:
                return run
        last = page[-1].id
    return None


def _rollouts(store: Store, run: str) -> Iterator[Any]:
    last = None
    while page := store.views.rollouts(run, most=PAGE, after=last):
        yield from page
        last = page[-1].name


def _write(
    store: Store,
    run: Run | None,
    ready: Sequence[Conversation],
    split: Split,
    *,
    scrubbed: bool,
    status: Mapping[str, RolloutState],
) -> str:
    """Store them as finished rollouts; the run they are in. What an import that was killed has begun is begun again."""
    import secrets

    from holdfast.contracts.run import RunState

    now = time.time()
    if run is None:
        salt = secrets.token_hex(2)
        run = store.runs.begin(kind=KIND, model_ref=KIND, settings={}, salt=salt, who=who(), now=now).result()
    else:
        run = store.runs.resume(run.id, who=who(), now=now, silent_s=SILENT_S).result()
    try:
        with show.progress("storing", len(ready)) as bar:
            for start in range(0, len(ready), BATCH):
                batch = ready[start : start + BATCH]
                for one in batch:
                    _renew(store, f"{run.id}/{one.name}", status.get(one.name))
                tasks = [_task(one, split, scrubbed) for one in batch]
                store.queue.enqueue(run.id, tasks, now=time.time()).result()
                _finish(store, run.id, batch)
                store.runs.beat(run.id, driver=run.driver, now=time.time()).result()
                bar(len(batch))
    except BaseException as error:
        why = type(error).__name__
        store.runs.end(run.id, RunState.FAILED, who=who(), now=time.time(), error=why, driver=run.driver).result()
        raise
    store.runs.end(run.id, RunState.COMPLETED, who=who(), now=time.time(), driver=run.driver).result()
    return run.id


def _task(one: Conversation, split: Split, scrubbed: bool) -> Task:
    from holdfast.contracts.rollout import Task

    metadata = {"group": _hash(one.opening), "scrubbed": scrubbed, **({"given": one.metadata} if one.metadata else {})}
    return Task(name=one.name, input={"messages": one.opening}, split=split, max_attempts=1, metadata=metadata)


def _renew(store: Store, rollout: str, status: RolloutState | None) -> None:
    if status is RolloutState.RUNNING:
        store.queue.cancel(rollout, now=time.time(), why="its import ended before it").result()
        status = RolloutState.CANCELLED
    if status in (RolloutState.CANCELLED, RolloutState.DEAD, RolloutState.FAILED):
        store.queue.requeue(rollout, now=time.time()).result()


def _finish(store: Store, run: str, batch: Sequence[Conversation]) -> None:
    from holdfast.contracts.reward import Sheet
    from holdfast.contracts.rollout import AttemptState

    left = {one.name: one for one in batch}
    while left:
        claims = store.queue.claim(run, WORKER, now=time.time(), lease_s=LEASE_S, most=BATCH).result()
        if not claims:
            raise Fault(f"run {run}", why="takes nothing at the moment", remedy="'holdfast order' tells it to go on")
        ends = []
        for claim in claims:
            one, now = left.pop(claim.rollout.name, None), time.time()
            if one is None:  # an import that was killed left it, and its file comes later or never
                why = "was not imported to the end"
                ends.append(store.queue.finish(claim.attempt, AttemptState.FAULT, now=now, error=why))
                continue
            signals = _signals(one)
            before = [store.traces.add(claim.attempt, _spans(one, now), now=now)]
            if signals:
                before.append(store.traces.score(claim.attempt, signals, now=now))
            answers = [message.get("content") for message in one.messages if message["role"] == "assistant"]
            ends.append(
                store.queue.finish(
                    claim.attempt,
                    AttemptState.SUCCEEDED,
                    now=now,
                    reward=Sheet(signals=signals).total,
                    output=answers[-1],
                    after=before,
                )
            )
        for end in ends:
            end.result()


def _counted(ready: Sequence[Conversation]) -> Counter[str]:
    from holdfast.collect.scrub import count

    return sum((count([one.messages, one.tools, one.metadata]) for one in ready), Counter[str]())


def _tell(
    run: str | None,
    audit: Audit,
    left: Mapping[int, Sequence[str]],
    counted: Counter[str],
    imported: int,
    repeated: int,
    *,
    limit: int,
    json: bool,
) -> None:
    if json:
        from holdfast.contracts.records import encode

        show.print_json(
            {
                "run": run,
                "imported": imported,
                "repeated": repeated,
                "quarantined": {str(line): list(names) for line, names in sorted(left.items())},
                "scrubbed": dict(sorted(counted.items())),
                "findings": [encode(finding) for finding in audit.findings if finding.count],
            }
        )
        return
    told = f"{show.count(imported, 'conversation')} imported, {repeated} there already, {len(left)} quarantined"
    print(told if run is None else f"{run}: {told}")
    if counted:
        print("scrubbed: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counted.items())))
    warned = [
        (finding.name, finding.severity, finding.count, finding.of) for finding in audit.findings if finding.count
    ]
    if warned:
        print()
        show.print_table(("gate", "severity", ">failed", ">of"), warned)
    if left:
        print()
        show.print_table((">line", "~quarantined by"), [(n, ", ".join(left[n])) for n in sorted(left)[:limit]])
        if len(left) > limit:
            print(f"and {len(left) - limit} more; --limit {len(left)} shows them all")
