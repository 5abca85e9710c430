"""`holdfast reward …`: attach a reward, show what a rollout was paid for, score a run again, label open cases."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.options import Json, Limit, RolloutText, StoreOptions, who
from holdfast.cli.show import count, one_line, pairs, print_json, print_record, print_table
from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import Label, Maker
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.task import asked_of

if TYPE_CHECKING:
    from holdfast.contracts.judgement import EvalItem, ReviewRequest
    from holdfast.contracts.reward import RewardBreakdown
    from holdfast.contracts.rollout import Rollout
    from holdfast.contracts.trace import Span
    from holdfast.store.store import Store


REWARD_EPILOG = """What was told stands: the same once more changes nothing, another value for the same name, source and
turn is refused (5). A reward counts for what is learnt from then on; steps that were made before stay as they are.

The ledger has who told it: 'holdfast ledger'."""


def reward(
    rollout: RolloutText,
    name: Annotated[str, Option(metavar="NAME", help="Of the signal, as in success or tone.")],
    value: Annotated[float, Option(metavar="X", help="Any finite number.")],
    source: Annotated[str, Option(metavar="TEXT", help="Who or what measured it, as in person:ann.")],
    at: StoreOptions,
    turn: Annotated[
        int | None, Option(metavar="T", min=0, help="Of one call of the model, from 0; else of all.")
    ] = None,
    weight: Annotated[float, Option(metavar="X", help="How much it counts in the reward; 0: not at all.")] = 1.0,
    json: Json = False,
) -> None:
    """Attach a reward to a rollout that has ended."""
    from holdfast.store.find import find_rollout

    told = RewardTerm(name=name, value=value, weight=weight, source=source, turn=turn)
    with at.existing() as opened:
        found = find_rollout(opened, rollout)
        after = opened.rewards.attach(found.id, told, who=who(), now=time.time()).result()
    if json:
        print_record(after)
        return
    where = "" if turn is None else f" at turn {turn}"
    what = f"{told.name}{where} = {told.value:g} × {told.weight:g} ({told.source})"
    if after.is_new:
        before = "none" if found.reward is None else f"{found.reward:g}"
        print(f"{after.rollout}: {what}; its reward is {after.reward:g}, was {before}")
    else:
        print(f"{after.rollout}: {what} was told before; its reward is {after.reward:g}")


WIDTH = 80
GATED = "gated"  # 1: the guard let nothing through


def rewards(rollout: RolloutText, at: StoreOptions, json: Json = False) -> None:
    """Show what a rollout was paid for: what it did in each turn, every signal with its weight, and the total."""
    from holdfast.store.find import find_rollout

    with at.existing() as opened:
        found = find_rollout(opened, rollout)
        spans, sheet, output = read_rewards(opened, found)
    if json:
        told = None if sheet is None else encode(sheet)
        total = None if sheet is None else sheet.total
        print_json({"rollout": found.id, "output": output, "total": total, "sheet": told, "turns": _turns(spans)})
    else:
        print("\n".join(reward_lines(found, spans, sheet)))


def read_rewards(store: Store, rollout: Rollout) -> tuple[list[Span], RewardBreakdown | None, Any]:
    """Of the attempt that decided it, or else of the last one: what happened, what it was paid, what it answered."""
    tries = store.views.attempts(rollout.id)
    decided = [attempt for attempt in tries if attempt.id == rollout.final_attempt] or tries[-1:]
    if not decided:
        return [], None, None
    return store.traces.spans(decided[0].token), store.traces.sheet(decided[0].token), store.views.output(decided[0])


def reward_lines(rollout: Rollout, spans: Sequence[Span], sheet: RewardBreakdown | None) -> Iterator[str]:
    """The sheet in 80 columns."""
    yield f"{rollout.id}: {rollout.status}"
    yield _cut(f"  asked     {one_line(asked_of(rollout.input))}")
    if isinstance(rollout.input, Mapping) and rollout.input.get("system"):
        yield _cut(f"  told      {one_line(rollout.input['system'])}")
    if isinstance(rollout.input, Mapping) and rollout.input.get("expected") is not None:
        yield _cut(f"  expected  {one_line(rollout.input['expected'])}  (hidden from the agent)")
    signals = () if sheet is None else sheet.signals
    for number, done in enumerate(_turns(spans)):
        for line, text in enumerate(done):
            yield _cut(f"  turn {number + 1:<3}  {text}" if not line else f"            {text}")
        if own := [one for one in signals if one.turn == number]:
            yield from _turn_signals(own)
    if sheet is None or sheet.total is None:
        yield "  nothing was measured, so there is no reward"
        return
    yield ""
    yield from _table([one for one in signals if one.turn is None and one.name != GATED], signals, sheet.total)


def _table(whole: Sequence[RewardTerm], signals: Sequence[RewardTerm], total: float) -> Iterator[str]:
    """Every signal of the whole attempt, the turns' in one line, and the sum."""
    yield f"  {'signal':<24} {'value':>7}   {'weight':>7}   {'counts':>7}  source"
    for one in whole:
        paid = one.value * one.weight
        yield _cut(f"  {one.name[:24]:<24} {one.value:>7.3g} × {one.weight:>7.3g} = {paid:>7.3g}  {one.source}")
    if of_turns := [one for one in signals if one.turn is not None]:
        paid = sum(one.value * one.weight for one in of_turns)
        many = f"{count(len(of_turns), 'signal')} of turns"
        yield f"  {many:<24} {'':>7}   {'':>7} = {paid:>7.3g}  as above"
    yield f"  {'total':<24} {'':>7}   {'':>7}   {total:>7.3g}"
    for one in signals:
        if one.name == GATED:
            said = "closed, so nothing else is paid" if one.value else "open: the hidden check passed"
            yield _cut(f"  {one.source} is {said}")


def _turn_signals(own: Sequence[RewardTerm]) -> Iterator[str]:
    """Those that count with what they count for; the others as they were measured."""
    paid = [f"{one.name} {one.value:.3g} × {one.weight:.3g}" for one in own if one.weight]
    seen = [f"{one.name} {one.value:.3g}" for one in own if not one.weight]
    for title, words in (("counts:", paid), ("seen:", seen)):
        if words:
            folded = wrap(", ".join(words), WIDTH - 22)
            yield f"            {title:<8}{folded[0]}"
            yield from (f"{'':<20}{more}" for more in folded[1:])


def _turns(spans: Sequence[Span]) -> list[list[str]]:
    """What each model call did: what it thought, called and was told, or answered."""
    turns: list[list[str]] = []
    for span in sorted(spans, key=lambda one: one.seq):
        if span.model is not None:
            response = span.model.response
            thought, said = response.get("reasoning_content"), response.get("content")
            turns.append([f"thinks    {one_line(thought)}"] if thought else [])
            if said or not response.get("tool_calls"):
                turns[-1].append(f"answers   {one_line(said or '')}")
        elif span.tool is not None and turns:
            turns[-1].append(f"calls     {span.tool.tool} {pairs(span.tool.arguments)}")
            turns[-1].append(f"is told   {one_line(span.tool.error or span.tool.result)}")
    return [turn or ["says nothing"] for turn in turns]


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


RESCORE_EPILOG = """The rollouts keep their rewards: the second scoring lies beside the first, under its name."""


def rescore(
    run: Annotated[str, Argument(metavar="RUN", help="The run whose rollouts are scored.")],
    scorer: Annotated[list[str], Option(metavar="NAME", help="exact, FILE.py:FUNCTION, ...")],
    at: StoreOptions,
    gate: Annotated[bool, Option("--gate/--no-gate", help="The first scorer says whether an answer is right.")] = True,
    name: Annotated[str | None, Option(metavar="NAME", help="What the scoring is called.")] = None,
    limit: Annotated[int, Option(metavar="N", min=0, max=10_000, help="At most so many that changed.")] = 10,
    json: Json = False,
) -> None:
    """Score a run's stored rollouts by other scorers, keep that beside the first scoring, and compare the two.

    Told are how far they agree, which rollouts change, and what a proof's verdict would have been.
    """
    from holdfast.api.stored import rescore as scored_again

    blocks = [{"scorer": one, "gate": gate and not place} for place, one in enumerate(scorer)]
    found = scored_again(run, blocks, name=name, store=at.store, project=at.project)
    if json:
        verdicts = [None if one is None else encode(one) for one in (found.old_verdict, found.new_verdict)]
        told = {"run": found.run.id, "name": found.name, "comparison": asdict(found.comparison)}
        print_json({**told, "errors": dict(found.errors), "old_verdict": verdicts[0], "new_verdict": verdicts[1]})
        return
    print(found)
    changed = found.changed
    if changed and limit:
        print(f"\n{count(len(changed), 'rollout')} changed, the largest change first:")
        rows = [
            (
                row["id"],
                _number(row["old"]),
                _number(row["new"]),
                f"{_word(row['was_right'])} → {_word(row['is_right'])}",
            )
            for row in changed[:limit]
        ]
        print_table(("~rollout", ">was", ">is", "answer"), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _word(is_right: object) -> str:
    return "not checked" if is_right is None else "right" if is_right else "wrong"


KEYS = {"y": True, "n": False, "u": None}
HELP = "y yes, n no, u cannot be told, s skip, q quit; a reason may follow"
LONGEST = 2000  # characters of one part that are shown
LABEL_EPILOG = f"""Answer with {HELP}: "n the total is wrong".

Labels are kept at once, with your login as who made them, and are used by 'holdfast judge calibrate'."""


def label(
    at: StoreOptions,
    limit: Limit = 1000,
    name: Annotated[str | None, Option("--who", metavar="NAME", help="Who labels; else your login.")] = None,
    json: Json = False,
) -> None:
    """Decide what judges could not, at a terminal: a label is a person's word. --json only lists what waits."""
    with at.existing() as opened:
        waiting = opened.judgements.doubts(most=limit)
        if json:
            show.print_records(waiting)
            return
        if not waiting:
            print("nothing waits for a label")
            return
        if not sys.stdin.isatty():
            remedy = "use a terminal; what a program knows goes in with: holdfast judge calibrate --labels FILE"
            raise BadInput("label", why="a label is a person's word, and the input is no terminal", remedy=remedy)
        done = _ask(opened, waiting, name or who())
        left = opened.judgements.waiting()
    print(f"\n{show.count(done, 'label')} kept, {left} to go" + (f": holdfast label{at}" if left else ""))


def _ask(opened: Store, waiting: list[ReviewRequest], name: str) -> int:
    """How many were labelled. The end of the input, and Ctrl-C, end it; what was answered is on disk by then."""
    done, replies = 0, _replies()
    try:
        for place, doubt in enumerate(waiting, 1):
            _show(opened.judgements.artefact(doubt.artefact), doubt, f"{place} of {len(waiting)}")
            reply = next(replies, "q")
            while (key := reply[:1].lower()) not in (*KEYS, "s", "q") or reply[1:2].strip():
                print(HELP)
                reply = next(replies, "q")
            if key == "q":
                break
            if key != "s":
                _keep(opened, doubt, KEYS[key], reply[1:].strip(), name)
                done += 1
    except KeyboardInterrupt:
        print("\n(stopped)", end="")
    return done


def _replies() -> Iterator[str]:
    while True:
        try:
            yield input("holds? [y/n/u/s/q] ").strip()
        except EOFError:
            return


def _keep(opened: Store, doubt: ReviewRequest, holds: bool | None, why: str, name: str) -> None:
    given = Label(
        artefact=doubt.artefact,
        criterion=doubt.criterion,
        maker=Maker.PERSON,
        who=name,
        holds=holds,
        why=why,
        at=time.time(),
    )
    opened.judgements.label([given]).result()


def _show(artefact: EvalItem, doubt: ReviewRequest, place: str) -> None:
    from holdfast.reward.judges.judge import CRITERIA

    known = CRITERIA.get(doubt.criterion.partition("@")[0])
    print(
        f"\n--- {place} · {doubt.criterion} · {doubt.reason}" + (f" · {show.one_line(doubt.why)}" if doubt.why else "")
    )
    for title, text in (("task", artefact.task), ("context", artefact.context), ("answer", artefact.output)):
        if text or title == "answer":
            print(f"{title}:")
            for line in text[:LONGEST].splitlines() or ["(nothing)"]:
                print("  " + "".join(letter if letter.isprintable() else "�" for letter in line))
            if len(text) > LONGEST:
                print(f"  … and {len(text) - LONGEST} more characters")
    if known is not None:
        print(known.question)
