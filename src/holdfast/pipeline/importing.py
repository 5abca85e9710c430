"""Chat logs become finished rollouts, scrubbed and through the gates, ready to be learnt from.

All of them go to one run of the project, each under the hash of what was said, so that importing again is harmless.
What is scrubbed is `privacy.scrub`'s business, and what is fit `learn.quality`'s; nothing is stored before both have
seen it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from holdfast.collect.chat_format import conversation_spans, opening
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.contracts.trace import ModelCall, Span
from holdfast.learn.quality import QualityReport, Standards, audit
from holdfast.privacy.scrub import Scrub, count, key_in
from holdfast.reward.turns import TurnRewards
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

KIND, WORKER = "import", "import"
LEASE_S, SILENT_S = 60.0, 10.0
BATCH, PAGE = 100, 500
DEEPEST = 100  # lists and objects within one another in a line
KNOWN = ("messages", "reward", "model", "tools", "metadata")
REMEDY = 'give one object a line, such as {"messages": [{"role": "user", "content": "…"}, …], "reward": 1.0}'
Clock = Callable[[], float]
Progress = Callable[[str, int | None], AbstractContextManager[Callable[..., None]]]


def silent(title: str, total: int | None) -> AbstractContextManager[Callable[..., None]]:
    """No progress is shown."""
    return nullcontext(lambda *done, **more: None)


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
    def input(self) -> dict[str, Any]:
        """The task: what was said before the first answer, and the tools that were offered."""
        return {"messages": opening(self.messages), **({"tools": list(self.tools)} if self.tools else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of a file."""

    run: str | None  # None: nothing was ever stored
    stored: int  # conversations
    repeated: int  # that were there already
    quarantined: Mapping[int, Sequence[str]]  # by line, the gates that kept it out
    scrubbed: Mapping[str, int]  # by kind, what was replaced
    audit: QualityReport

    @property
    def is_fruitless(self) -> bool:
        """Whether there was something new, and none of it passed the gates."""
        return bool(self.quarantined) and not self.stored


def read_logs(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The lines of a file with their numbers; one that cannot be read is refused before a store is opened."""
    return list(_rows(path))


def import_logs(
    store: Store,
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    *,
    split: Split,
    model: str,
    scrub: bool,
    leave: Collection[str] = (),
    who: str,
    clock: Clock,
    progress: Progress = silent,
) -> Imported:
    """Scrub the conversations, look at them, and store those that are fit and not there yet."""
    scrubber = Scrub(key_in(store.folder), leave=leave) if scrub else None
    with progress("scrubbing", len(rows)) as bar:
        conversations = [_conversation(row, line, model, scrubber, bar) for line, row in rows]
    run = _run(store)
    known = {} if run is None else {rollout.name: rollout for rollout in store.views.every(run.id)}
    done = {name for name, rollout in known.items() if rollout.status is RolloutState.SUCCEEDED}
    fresh: dict[str, Conversation] = {}
    for conversation in conversations:
        if conversation.name not in done:
            fresh.setdefault(conversation.name, conversation)
    kept_out = [rollout.input for rollout in known.values() if rollout.split in (Split.VAL, Split.TEST)]
    looked = _audit(list(fresh.values()), split, kept_out, progress)
    ready = [conversation for conversation in fresh.values() if conversation.name in looked.ready]
    name = run.id if run is not None else None
    if ready:
        status = {k: rollout.status for k, rollout in known.items()}
        name = _write(store, run, ready, split, scrubbed=scrub, status=status, who=who, clock=clock, progress=progress)
    return Imported(
        run=name,
        stored=len(ready),
        repeated=len(conversations) - len(fresh),
        quarantined={fresh[name].line: names for name, names in looked.quarantined.items()},
        scrubbed=_counted(ready) if scrub else {},
        audit=looked,
    )


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines, each checked; what it says is never repeated in an error."""
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
    try:
        return isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
    except OverflowError:  # a whole number that no fraction is as large as
        return False


def _why_not(row: Any) -> str | None:
    if not isinstance(row, dict):
        return "is not an object"
    if unknown := sorted(set(row) - set(KNOWN)):
        fields = "1 unknown field" if len(unknown) == 1 else f"{len(unknown)} unknown fields"
        return f"has {fields}; known are {', '.join(KNOWN)}"
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


def _conversation(
    row: Mapping[str, Any], line: int, model: str, scrub: Scrub | None, bar: Callable[..., None]
) -> Conversation:
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
    """Hashes what is stored, after scrubbing: not even a hash of the original is kept."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _spans(one: Conversation, at: float) -> tuple[Span, ...]:
    """Makes a model call of every answer, with all messages before it, and a tool call of every tool result."""
    sampling = {"tools": list(one.tools)} if one.tools else {}
    calls = {
        place: (
            ModelCall(model=one.model, messages=tuple(one.messages[:place]), response=message, sampling=sampling),
            at,
        )
        for place, message in enumerate(one.messages)
        if message["role"] == "assistant"
    }
    return conversation_spans(one.messages, calls, at)


def _signals(one: Conversation) -> tuple[RewardTerm, ...]:
    return () if one.reward is None else (RewardTerm(name="reward", value=float(one.reward), source=KIND),)


def _audit(found: Sequence[Conversation], split: Split, kept_out: Sequence[Any], progress: Progress) -> QualityReport:
    """Audits conversations by rollout name. Only training data must not contain held-out tasks."""
    is_train = split is Split.TRAIN
    experiences = [_experience(conversation, split if is_train else None) for conversation in found]
    with progress("looking", None):
        return audit(
            experiences,
            inputs={conversation.name: conversation.input for conversation in found},
            held_out=kept_out if is_train else (),
            standards=Standards(needs_logprobs=False, needs_score=False),
        )


def _experience(one: Conversation, split: Split | None) -> Experience:
    return Experience(
        rollout=one.name,
        run=KIND,
        task=_hash(opening(one.messages)),
        split=split,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=_spans(one, 0.0),
        breakdown=RewardBreakdown(signals=_signals(one)),
        version=one.model,
    )


def _run(store: Store) -> RunRecord | None:
    """The project's run of imports, which goes on with every import."""
    last = None
    while page := store.runs.newest(most=PAGE, before=last):
        for run in page:
            if run.kind == KIND and run.wanted is not DesiredState.CANCELLED:
                return run
        last = page[-1].id
    return None


def _write(
    store: Store,
    run: RunRecord | None,
    ready: Sequence[Conversation],
    split: Split,
    *,
    scrubbed: bool,
    status: Mapping[str, RolloutState],
    who: str,
    clock: Clock,
    progress: Progress,
) -> str:
    """Store them as finished rollouts; the run they are in. What an import that was killed has begun is begun again."""
    now = clock()
    if run is None:
        salt = secrets.token_hex(2)
        run = store.runs.begin(kind=KIND, model_ref=KIND, settings={}, salt=salt, who=who, now=now).result()
    else:
        run = store.runs.resume(run.id, who=who, now=now, silent_s=SILENT_S).result()
    with ending(store, run, who, clock), progress("storing", len(ready)) as bar:
        for start in range(0, len(ready), BATCH):
            batch = ready[start : start + BATCH]
            for conversation in batch:
                _renew(store, f"{run.id}/{conversation.name}", status.get(conversation.name), clock)
            tasks = [_task(conversation, split, scrubbed) for conversation in batch]
            store.queue.enqueue(run.id, tasks, now=clock()).result()
            _finish(store, run.id, batch, clock)
            store.runs.beat(run.id, driver=run.driver, now=clock()).result()
            bar(len(batch))
    return run.id


@contextmanager
def ending(store: Store, run: RunRecord, who: str, clock: Clock) -> Iterator[None]:
    """Ends a run that this block writes: completed, or failed by what it raised."""
    try:
        yield
    except BaseException as error:
        why = type(error).__name__
        store.runs.end(run.id, RunState.FAILED, who=who, now=clock(), error=why, driver=run.driver).result()
        raise
    store.runs.end(run.id, RunState.COMPLETED, who=who, now=clock(), driver=run.driver).result()


def _task(one: Conversation, split: Split, scrubbed: bool) -> Task:
    metadata: dict[str, Any] = {"group": _hash(opening(one.messages)), "scrubbed": scrubbed}
    metadata |= {"given": one.metadata} if one.metadata else {}
    return Task(name=one.name, input=one.input, split=split, max_attempts=1, max_faults=0, metadata=metadata)


def _renew(store: Store, rollout: str, status: RolloutState | None, clock: Clock) -> None:
    if status is RolloutState.RUNNING:
        store.queue.cancel(rollout, now=clock(), why="its import ended before it").result()
        status = RolloutState.CANCELLED
    if status in (RolloutState.CANCELLED, RolloutState.DEAD, RolloutState.FAILED):
        store.queue.requeue(rollout, now=clock()).result()


def _finish(store: Store, run: str, batch: Sequence[Conversation], clock: Clock) -> None:
    left = {conversation.name: conversation for conversation in batch}
    while left:
        claims = store.queue.claim(run, WORKER, now=clock(), lease_s=LEASE_S, most=BATCH).result()
        if not claims:
            raise Fault(
                f"run {run}", why="takes nothing at the moment", remedy="'holdfast control resume' tells it to go on"
            )
        ends = []
        for claim in claims:
            conversation, now = left.pop(claim.rollout.name, None), clock()
            if conversation is None:  # an import that was killed left it, and its file comes later or never
                why = "was not imported to the end"
                ends.append(store.queue.finish(claim.attempt, AttemptState.FAULT, now=now, error=why))
                continue
            answers = [message.get("content") for message in conversation.messages if message["role"] == "assistant"]
            ends.append(
                finish_conversation(
                    store, claim, _spans(conversation, now), answers[-1], _signals(conversation), now=now
                )
            )
        for end in ends:
            end.result()


def finish_conversation(
    store: Store, claim: Claim, spans: Sequence[Span], answer: Any, signals: Sequence[RewardTerm], *, now: float
) -> WriteFuture[RolloutState]:
    """Ends a claimed rollout by a conversation that took place elsewhere, with the rewards of its turns."""
    paid = TurnRewards()(claim.rollout.input, answer, spans, signals)
    before = [store.traces.add(claim.attempt, spans, now=now), store.traces.score(claim.attempt, paid, now=now)]
    reward = RewardBreakdown(signals=paid).total
    ended = AttemptState.SUCCEEDED
    return store.queue.finish(claim.attempt, ended, now=now, reward=reward, output=answer, after=before)


def _counted(ready: Sequence[Conversation]) -> Counter[str]:
    return sum(
        (count([conversation.messages, conversation.tools, conversation.metadata]) for conversation in ready),
        Counter[str](),
    )
