"""`holdfast rewards ROLLOUT`: what a rollout was paid for, turn by turn, and why not more. Nothing is scored again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import DEFAULT_STORE, Json, Project, RolloutText, StoreAt, existing

if TYPE_CHECKING:
    from holdfast.contracts.reward import RewardBreakdown, RewardTerm
    from holdfast.contracts.rollout import Rollout
    from holdfast.contracts.trace import Span
    from holdfast.store.store import Store

WIDTH = 80
GATED = "gated"  # 1: the guard let nothing through


def rewards(
    rollout: RolloutText, store: StoreAt = DEFAULT_STORE, project: Project = "default", json: Json = False
) -> None:
    """Show what a rollout was paid for: what it did in each turn, every signal with its weight, and the total."""
    from holdfast.cli.show import print_json
    from holdfast.contracts.records import encode
    from holdfast.store.find import find_rollout

    with existing(store, project) as opened:
        found = find_rollout(opened, rollout)
        spans, sheet, output = read(opened, found)
    if json:
        told = None if sheet is None else encode(sheet)
        total = None if sheet is None else sheet.total
        print_json({"rollout": found.id, "output": output, "total": total, "sheet": told, "turns": _turns(spans)})
    else:
        print("\n".join(lines(found, spans, sheet)))


def read(store: Store, rollout: Rollout) -> tuple[list[Span], RewardBreakdown | None, Any]:
    """Of the attempt that decided it, or else of the last one: what happened, what it was paid, what it answered."""
    tries = store.views.attempts(rollout.id)
    decided = [attempt for attempt in tries if attempt.id == rollout.final_attempt] or tries[-1:]
    if not decided:
        return [], None, None
    return store.traces.spans(decided[0].token), store.traces.sheet(decided[0].token), store.views.output(decided[0])


def lines(rollout: Rollout, spans: Sequence[Span], sheet: RewardBreakdown | None) -> Iterator[str]:
    """The sheet in 80 columns."""
    from holdfast.cli.show import one_line
    from holdfast.contracts.task import asked_of

    yield f"{rollout.id}: {rollout.status}"
    yield _cut(f"  asked     {one_line(asked_of(rollout.input))}")
    if isinstance(rollout.input, Mapping) and rollout.input.get("system"):
        yield _cut(f"  told      {one_line(rollout.input['system'])}")
    if isinstance(rollout.input, Mapping) and rollout.input.get("expected") is not None:
        yield _cut(f"  expected  {one_line(rollout.input['expected'])}  (hidden from the agent)")
    signals = () if sheet is None else sheet.signals
    for number, done in enumerate(_turns(spans)):
        for place, text in enumerate(done):
            yield _cut(f"  turn {number + 1:<3}  {text}" if not place else f"            {text}")
        if own := [one for one in signals if one.turn == number]:
            yield from _turn_signals(own)
    if sheet is None or sheet.total is None:
        yield "  nothing was measured, so there is no reward"
        return
    yield ""
    yield from _table([one for one in signals if one.turn is None and one.name != GATED], signals, sheet.total)


def _table(whole: Sequence[RewardTerm], signals: Sequence[RewardTerm], total: float) -> Iterator[str]:
    """Every signal of the whole attempt, the turns' in one line, and the sum."""
    from holdfast.cli.show import count

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
    from textwrap import wrap

    paid = [f"{one.name} {one.value:.3g} × {one.weight:.3g}" for one in own if one.weight]
    seen = [f"{one.name} {one.value:.3g}" for one in own if not one.weight]
    for title, words in (("counts:", paid), ("seen:", seen)):
        if words:
            folded = wrap(", ".join(words), WIDTH - 22)
            yield f"            {title:<8}{folded[0]}"
            yield from (f"{'':<20}{more}" for more in folded[1:])


def _turns(spans: Sequence[Span]) -> list[list[str]]:
    """What each model call did: what it thought, called and was told, or answered."""
    from holdfast.cli.show import one_line, pairs

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
