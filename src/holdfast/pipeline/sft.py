"""A run that teaches a model a user's own examples or preferences: prepare, learn piece by piece, result.

Each is a durable step. Examples are read and checked before the run begins; in tokens they are kept with it, so that a
run that was killed goes on without the file. What is learnt, and how, is the business of `learn.sft`, `learn.dpo` and
`learn.reward_model`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.collect.questions import exact_match
from holdfast.collect.rows import read_rows
from holdfast.contracts.algorithm import AlgorithmState
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import policy_from, policy_record
from holdfast.contracts.run import RunState, StepRecord
from holdfast.learn.dpo import DPO, recorded_pairs
from holdfast.learn.reward_model import RewardModelling
from holdfast.learn.sft import (
    HELD_OUT_LOSS,
    SFT,
    Dataset,
    Example,
    SkippedRows,
    Tokenised,
    check_columns,
    divide,
    read_examples,
    recorded,
    tokenise,
)
from holdfast.pipeline.context import Endpoints, Runtime, StepContext, no_agent
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.policies.model import Model, folder_of
from holdfast.store.store import Store

KINDS: Mapping[str, type[SFT]] = {one.phase: one for one in (SFT, DPO, RewardModelling)}
RESULT = "result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the examples come from: a path, rows in Python, or the rollouts of a run."""

    path: str | None = None
    rows: int | None = None  # so many, given in Python
    sha256: str | None = None  # of the examples as they were read; None: rollouts, which do not change
    run: str | None = None
    least: float | None = None  # reward of a rollout that is learnt from
    columns: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None

    def record(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**kept, "columns": dict(self.columns)}

    @property
    def name(self) -> str:
        return self.run or self.path or f"{self.rows} rows"


def sft_spec(
    policy: Model,
    examples: Any = None,
    *,
    run: str | None = None,
    least: float | None = None,
    columns: Mapping[str, str] | None = None,
    system: str | None = None,
    how: SFT | None = None,
) -> RunSpec:
    """A run that teaches `examples` (a path or rows), or the rollouts of `run` whose reward is at least `least`.

    `how` may be a DPO: the rows are then pairs, and of a run the best and the worst rollout of each task are one.
    `columns` names the columns of rows that are called otherwise, as in {"prompt": "ask", "completion": "reply"};
    `system` is the first message of rows that have none. The result is `result_of` the run."""
    how = how or SFT()
    folder_of(policy.name)  # it is there
    if (examples is None) == (run is None):
        why = "there are none" if examples is None else "and a run were both given"
        raise BadInput("examples", why=why, remedy="give a file or rows, or a run to learn from")
    if run is not None:
        if columns or system:
            raise BadInput(
                "columns and system", why="are for rows", remedy="leave them out: a run's rollouts have both"
            )
        _check_run(how, least)
        return _spec(policy, Source(run=run, least=least), how, ())
    if least is not None:
        raise BadInput(f"least = {least:g}", why="rows have no reward", remedy="leave it out, or give a run")
    source = Source(columns=dict(columns or {}), system=system)
    found, skipped, count = _read(examples, source, how)
    if (
        how.unit == "user"
        and (nobody := next((example for example in found if example.user is None), None)) is not None
    ):
        remedy = "add a column user, or name the one that says it: columns={'user': 'customer'}, --column user=customer"
        raise BadInput(nobody.place, why="names no user, and privacy.unit is user", remedy=remedy)
    place = str(Path(examples).absolute()) if isinstance(examples, str | Path) else None
    kept = Source(path=place, rows=count, sha256=_hashed(found), columns=source.columns, system=system)
    return _spec(policy, kept, how, found, skipped)


def _check_run(how: SFT, least: float | None) -> None:
    if how.is_pairs and least is not None:
        raise BadInput(f"least = {least:g}", why="pairs are made of good and bad rollouts", remedy="leave it out")
    if how.is_pairs and how.privacy is not None:
        why = "a pair of a run's rollouts is made of two conversations, and the budget would count one"
        raise BadInput(f"privacy.epsilon = {how.privacy.epsilon:g}", why=why, remedy="give the pairs as rows")


def resumed_spec(settings: Mapping[str, Any]) -> RunSpec:
    """The run that these settings began. Its examples are read again only where they were not yet kept."""
    policy = policy_from(settings["policy"])
    assert isinstance(policy, Model)
    phase = next(one for one in KINDS if one in settings)
    return _spec(policy, Source(**settings["source"]), KINDS[phase](**settings[phase]), None)


def _spec(
    policy: Model, source: Source, how: SFT, examples: Sequence[Example] | None, skipped: SkippedRows | None = None
) -> RunSpec:
    given = SftInput(source=source, how=how, examples=examples, skipped=skipped or SkippedRows())
    return RunSpec(
        kind=how.phase,
        program=partial(sft, policy, given),
        model_ref=policy.version.rpartition("@")[0],
        settings={"policy": policy_record(policy), "source": source.record(), how.phase: how.record()},
        runtime=Runtime(no_agent, exact_match, Endpoints()),
        workers=1,
        seed=how.seed,
        drain_s=1.0,
    )


# The program ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SftInput:
    """What a run begins with."""

    source: Source
    how: SFT
    examples: Sequence[Example] | None  # None: the run is taken up, and they are read where they are still needed
    skipped: SkippedRows

    def record(self) -> dict[str, Any]:
        return {"source": self.source.record(), self.how.phase: self.how.record()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The examples in tokens, by reference, and what of them there is."""

    blob: str
    examples: int  # that can be used
    sequences: int  # to learn from
    held_out: int  # sequences that only measure
    tokens: int  # to learn from, of the assistant's
    skipped: Mapping[str, int]
    first: Mapping[str, str]  # place of the first that was left out, by reason
    units: int | None = None  # to draw batches from: pairs, conversations or users; None: the sequences
    texts: str | None = None  # blob with what was taught, to be compared with what is proved on; None: not kept

    @property
    def count(self) -> int:
        return self.sequences if self.units is None else self.units

    def record(self) -> dict[str, Any]:
        known = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in known.items() if name not in ("units", "texts") or value is not None}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Prepared:
        return cls(**record)


async def sft(policy: Model, given: SftInput, run: DurableRun) -> None:
    """Prepare the examples, learn from them, and say what came of it."""
    how = given.how
    data: Prepared = await run.step("prepare", prepare, policy, given, title="reading the examples")
    state: AlgorithmState = await run.step("before", before, how, policy, data, title="measuring before")
    pieces, total = how.pieces(data.count), how.updates(data.count)
    while state.step < pieces:
        title = f"learning, {state.metrics.get('updates', 0)} of {total} updates done"
        state = await run.step(f"{state.step}/learn", learn, how, state, data, title=title)
        if "skipped" in state.metrics:
            break
    await run.step(RESULT, partial(result, run.done), state, data, title=RESULT)


def prepare(policy: Model, given: SftInput, *, ctx: StepContext) -> Prepared:
    """The examples as the model's own tokens, divided, and kept."""
    how, source = given.how, given.source
    template, longest, vocabulary = how.template(policy, ctx)
    kept: str | None = None  # of a run, the rollouts are kept as they are
    if source.run is not None:
        limits: dict[str, Any] = {"longest": longest, "vocabulary": vocabulary, "pause_point": ctx.check}
        users: dict[str, str] = {}
        experiences = _experiences(ctx.store, source.run, users)
        if how.is_pairs:
            made, skipped = recorded_pairs(template, experiences, **limits)
        else:
            made, skipped = recorded(template, experiences, least=source.least, users=users, **limits)
        if how.unit == "user" and any(tokenised.user is None for tokenised in made):
            why = 'some of its rollouts name no user ("metadata": {"user": …} of an imported line)'
            raise BadInput(f"run {source.run}", why=why, remedy="import them with it, or take unit = conversation")
        if not made:
            why = f"nothing in it is to be learnt from: {skipped.summary or 'it has no rollouts'}"
            raise BadInput(f"run {source.run}", why=why, remedy="name another run, or a lower least")
    else:
        examples, before = _again(given)
        kept = ctx.save([_text(example) for example in examples])
        made, after = tokenise(template, examples, longest=longest, pause_point=ctx.check)
        skipped = before.and_also(after)
        skipped.check(len(made) + skipped.total, how.skip, what="examples")
    return replace(_kept(made, skipped, how, ctx), texts=kept)


def _text(example: Example) -> str:
    """Joins all texts of an example except the instructions, which tell no task."""
    told = [message.get("content") for message in example.messages if message.get("role") != "system"]
    return "\n".join(text for text in told if isinstance(text, str))


def _kept(made: Sequence[Tokenised], skipped: SkippedRows, how: SFT, ctx: StepContext) -> Prepared:
    data = divide(made, how.held_out, seed=how.seed, unit=how.unit, is_whole=how.is_pairs)
    return Prepared(
        blob=ctx.store.blobs.put(data.to_bytes(), now=ctx.now()),
        examples=len(made),
        sequences=len(data.train),
        held_out=0 if data.held_out is None else len(data.held_out),
        tokens=data.train.tokens,
        skipped=dict(skipped.counts),
        first=dict(skipped.first),
        units=None if data.owners is None else data.units,
    )


def before(how: SFT, policy: Model, data: Prepared, *, ctx: StepContext) -> AlgorithmState:
    return how.begin(policy, _data(data, ctx), ctx, earlier_spending(ctx.store, policy.checkpoint))


def learn(how: SFT, state: AlgorithmState, data: Prepared, *, ctx: StepContext) -> AlgorithmState:
    return how.learn(state, _data(data, ctx), ctx)


def result(done: Sequence[StepRecord], state: AlgorithmState, data: Prepared) -> dict[str, Any]:
    """The policy that it is now, and what was measured on the way."""
    losses = [step.body[HELD_OUT_LOSS] for step in done if HELD_OUT_LOSS in step.body]
    learnt = [step.body for step in done if step.body.get("checkpoint")]
    return {
        "policy": policy_record(state.policy),
        "updates": learnt[-1]["updates"] if learnt else 0,
        "loss": [learnt[0]["loss"], learnt[-1]["loss"]] if learnt else None,
        "held_out": {"before": losses[0], "after": losses[-1], "each": losses},
        "taken_back": sum(body["taken_back"] for body in learnt),
        "why": state.metrics.get("skipped"),
        **({"privacy": state.metrics["privacy"]} if "privacy" in state.metrics else {}),
    }


def earlier_spending(store: Store, checkpoint: str | None) -> list[Mapping[str, Any]]:
    """Lists the privacy spending of each run that led to this checkpoint, by the last report of each."""
    line = [] if checkpoint is None else store.checkpoints.lineage(checkpoint)
    spent: dict[str, Mapping[str, Any]] = {}
    for one in line:
        if "privacy" in one.metadata:
            spent[one.id.rpartition("-")[0].rpartition("-")[0]] = one.metadata["privacy"]
    return list(spent.values())


def _data(data: Prepared, ctx: StepContext) -> Dataset:
    return Dataset.from_bytes(ctx.store.blobs.get(data.blob))


# What came of a run --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """What came of a run of this kind."""

    run: str
    policy: Model
    prepared: Prepared
    updates: int
    before: float | None  # loss on what is held out, nats a token of the assistant's; None: nothing was held out
    after: float | None
    losses: Sequence[float | None]  # the same at every checkpoint, the beginning first
    taken_back: int  # updates
    why: str | None  # nothing was learnt: the reason
    privacy: Mapping[str, Any] | None = None  # what was spent; None: it was not asked for
    kind: str = SFT.phase

    @property
    def measure(self) -> str:
        """The unit of the losses."""
        return " nats a token" if self.kind == SFT.phase else " nats a pair"


def result_of(store: Store, run: str) -> Taught:
    """Reads what a finished run taught, and the policy at its last checkpoint."""
    found = store.runs.get(run)
    if found.kind not in KINDS:
        raise BadInput(f"run {found.id}", why=f"is of the kind {found.kind}", remedy="'holdfast run list' lists them")
    step = store.steps.get(found.id, RESULT)
    kept = store.steps.get(found.id, "prepare")
    if step is None or kept is None:
        is_open = found.state is RunState.RUNNING
        why = "is not done" if is_open else f"ended before it was done: {found.error or found.state}"
        raise BadInput(f"run {found.id}", why=why, remedy=f"holdfast policy train --resume {found.id}")
    body = step.body
    policy = policy_from(body["policy"])
    assert isinstance(policy, Model)
    return Taught(
        run=found.id,
        policy=policy,
        prepared=Prepared.from_record(kept.body),
        updates=body["updates"],
        before=body["held_out"]["before"],
        after=body["held_out"]["after"],
        losses=body["held_out"]["each"],
        taken_back=body["taken_back"],
        why=body["why"],
        privacy=body.get("privacy"),
        kind=found.kind,
    )


def spending(privacy: Mapping[str, Any]) -> str:
    """One line of a report: what the weights may give away, and by which mechanism."""
    line = privacy["line"]
    before = f"{line['runs'] - 1} private run{'s' if line['runs'] > 2 else ''} before it"
    also = f" ({line['epsilon']:.3g} with {before})" if line["runs"] > 1 else ""
    how = f"noise {privacy['noise_multiplier']:.3g} × clip {privacy['clip']:g}, {privacy['steps']} steps"
    return (
        f"epsilon {privacy['epsilon']:.3g}{also} of {privacy['budget']:g} at delta {privacy['delta']:.2g} for each of "
        f"{privacy['units']} {privacy['unit']}s; {how}, sampling rate {privacy['sampling_rate']:.3g}"
        + ("; NOT PRIVATE to whoever knows the seed" if privacy["deterministic"] else "")
    )


# Reading -------------------------------------------------------------------------------------------------------------


def _read(examples: Any, source: Source, how: SFT) -> tuple[list[Example], SkippedRows, int]:
    """The examples of a path or of rows; too many that are none are refused before anything is begun."""
    check_columns(source.columns)
    rows = [(one.place, one.origin.split, one.data) for one in read_rows(examples)]
    if not rows:
        raise BadInput(str(examples)[:200], why="holds no example", remedy="write one JSON object a line")
    found, skipped = read_examples(rows, columns=source.columns, system=source.system, is_pairs=how.is_pairs)
    skipped.check(len(rows), how.skip, what="examples")
    return found, skipped, len(rows)


def _again(given: SftInput) -> tuple[Sequence[Example], SkippedRows]:
    """The examples; of a run that is taken up before they were kept, from their file."""
    if given.examples is not None:
        return given.examples, given.skipped
    source = given.source
    if source.path is None:
        why, remedy = "they were given in Python, and the run stopped before it kept them", "begin a new run"
        raise BadInput("examples", why=why, remedy=remedy)
    examples, skipped, _ = _read(source.path, source, given.how)
    if _hashed(examples) != source.sha256:
        raise BadInput(source.path, why="is not what the run began with", remedy="restore it, or begin a new run")
    return examples, skipped


def _experiences(store: Store, run: str, users: dict[str, str]) -> Iterator[Experience]:
    """The rollouts of a run; whose they are is told in `users`, where it is known."""
    for rollout in store.views.every(run):
        whose = (rollout.metadata.get("given") or {}).get("user") or rollout.metadata.get("user")
        if whose:
            users[rollout.id] = str(whose)
        experience = store.experiences.get(rollout.id)
        if experience is not None:
            yield experience


def _hashed(examples: Sequence[Example]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        row = [
            list(example.messages),
            list(example.tools),
            example.split,
            *([list(example.rejected)] if example.rejected else []),
        ]
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode(errors="replace") + b"\n")
    return digest.hexdigest()
