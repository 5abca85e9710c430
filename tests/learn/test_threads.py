"""Where a conversation goes on and where it breaks, by ids worked by hand. One id is one word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.trace import ModelCall
from holdfast.learn.batch import Break, SampleFilter, SamplesOrReason, SkipReason, Thread, broken, gather, read
from tests.learn.attempts import attempt, call, signal

GOOD = (signal(1.0),)
ASK = {"role": "user", "content": "Paris?"}
SAID = {"role": "assistant", "content": "It is in France."}
MORE = {"role": "user", "content": "Rome?"}
FIRST = replace(call([1, 10, 2], [20, 21, 22, 3]), messages=(ASK,), response=SAID)
FULL = (*FIRST.prompt_ids, *FIRST.completion_ids)  # type: ignore[misc]


def next_call(ids: Sequence[int], *before: Mapping[str, Any], **more: Any) -> ModelCall:
    return replace(call([*ids, 1, 11, 2], [30, 3]), messages=(*(before or (ASK, SAID)), MORE), **more)


def reading(*calls: ModelCall, **how: Any) -> SamplesOrReason:
    return read(attempt("a", *calls, signals=GOOD), SampleFilter(**how))


def test_the_same_messages_in_the_same_ids_are_one_sequence() -> None:
    found = reading(FIRST, next_call(FULL))
    assert found.breaks == {} and [one.ids.tolist() for one in found.samples] == [[*FULL, 1, 11, 2, 30, 3]]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ((9, 10, 2, 20, 21, 22, 3), Break.TEMPLATE),  # another opening, a date perhaps
        ((1, 10, 9, 2, 20, 21, 22, 3), Break.TEMPLATE),  # something between the messages
        ((1, 10, 2, 22, 3), Break.TEMPLATE),  # the answer's beginning, its thought, is left out
        ((1, 10, 2, 20, 21, 22, 4), Break.TEMPLATE),  # another mark ends it
        ((1, 10, 2, 20, 23, 3), Break.RETOKENISED),  # 21 22 came back as 23
        ((1, 10, 2, 20, 21, 5, 6, 3), Break.RETOKENISED),  # 22 came back as 5 6
    ],
)
def test_the_same_messages_in_other_ids(ids: tuple[int, ...], kind: Break) -> None:
    found = reading(FIRST, next_call(ids))
    assert found.breaks == {kind: 1}
    assert [one.ids.tolist() for one in found.samples] == [list(FULL), [*ids, 1, 11, 2, 30, 3]]


def test_an_answer_that_was_cut_has_no_mark_at_its_end() -> None:
    cut = replace(FIRST, finish_reason="length", completion_ids=(20, 21, 22), logprobs=(-1.0,) * 3)
    assert reading(cut, next_call((1, 10, 2, 20, 21, 5, 6, 3))).breaks == {Break.RETOKENISED: 1}
    assert reading(cut, next_call((1, 10, 2, 20, 21, 22, 3))).breaks == {}  # the template adds it


@pytest.mark.parametrize(
    "before",
    [
        ({**ASK, "content": "Paris!"}, SAID),
        (ASK, {**SAID, "content": "It is in France"}),
        (ASK, {**SAID, "tool_calls": [{"id": "c", "function": {"name": "map", "arguments": "{}"}}]}),
        (SAID,),  # the question is gone
        ({"role": "system", "content": "Be brief."}, ASK, SAID),
    ],
)
def test_other_messages_are_an_edit_whatever_the_ids(before: tuple[dict[str, Any], ...]) -> None:
    assert reading(FIRST, next_call((1, 10, 2, 20, 23, 3), *before)).breaks == {Break.EDITED: 1}


def test_other_tools_are_an_edit() -> None:
    tools = [{"type": "function", "function": {"name": "map"}}]
    first = replace(FIRST, sampling={"tools": tools})
    assert reading(first, next_call((9, *FULL[1:]), sampling={"tools": tools})).breaks == {Break.TEMPLATE: 1}
    assert reading(first, next_call((9, *FULL[1:]), sampling={})).breaks == {Break.EDITED: 1}


def test_a_thought_that_the_agent_leaves_out_is_an_edit_of_the_agents() -> None:
    thought = replace(FIRST, response={**SAID, "reasoning_content": "A city."})
    assert reading(thought, next_call((1, 10, 2, 22, 3))).breaks == {Break.EDITED: 1}
    kept = next_call((1, 10, 2, 22, 3), ASK, {**SAID, "reasoning": "A city."})
    assert reading(thought, kept).breaks == {Break.TEMPLATE: 1}


def test_what_clients_add_to_a_message_and_says_nothing_is_no_edit() -> None:
    """OpenAI's own client sends back what it got, with fields that are null; frameworks send text as parts."""
    asked = {**ASK, "content": [{"type": "text", "text": "Paris?"}]}
    said = {**SAID, "refusal": None, "tool_calls": [], "annotations": [], "audio": None}
    assert reading(FIRST, next_call((9, *FULL[1:]), asked, said)).breaks == {Break.TEMPLATE: 1}


def test_a_conversation_that_begins_is_no_break() -> None:
    other = replace(call([1, 11, 2], [30, 3]), messages=(MORE,), response=SAID)
    found = reading(FIRST, other, next_call(FULL))
    assert found.breaks == {} and len(found.samples) == 2


def test_with_several_conversations_the_one_that_is_meant_is_compared() -> None:
    other = replace(call([1, 11, 2], [30, 31, 3]), messages=(MORE,), response={**SAID, "content": "In Italy."})
    assert reading(FIRST, other, next_call((1, 10, 2, 20, 23, 3))).breaks == {Break.RETOKENISED: 1}


# What is not kept


def test_nothing_is_merged_across_what_was_scrubbed_though_the_ids_are_equal() -> None:
    scrubbed = replace(FIRST, completion_ids=(20, 0, 22, 3), forced=(1,), scrubbed=((4, 5),))
    again = next_call((1, 10, 2, 20, 0, 22, 3), scrubbed=((4, 5),))
    found = reading(scrubbed, again)
    assert found.breaks == {Break.SCRUBBED: 1}
    (kept,) = found.samples  # of the second call all was decided after it
    assert kept.action_mask.tolist() == [False, False, False, True, False, False, False]


def test_what_is_scrubbed_in_a_later_message_leaves_the_turns_before_it_as_they_are() -> None:
    later = replace(call([*FULL, 1, 0, 2], [30, 3]), messages=(ASK, SAID, MORE), scrubbed=((8, 9),))
    (one,) = reading(FIRST, later).samples
    assert one.ids.tolist() == [*FULL, 1, 0, 2, 30, 3]
    assert np.flatnonzero(one.action_mask).tolist() == [3, 4, 5, 6]


def test_ids_that_part_before_what_was_scrubbed_part_for_their_own_reason() -> None:
    scrubbed = replace(FIRST, completion_ids=(20, 21, 0, 3), forced=(2,), scrubbed=((5, 6),))
    assert reading(scrubbed, next_call((9, 10, 2, 20, 21, 0, 3))).breaks == {Break.TEMPLATE: 1}


def test_a_rollout_of_which_nothing_is_left_says_why() -> None:
    hidden = replace(FIRST, prompt_ids=(1, 0, 2), scrubbed=((1, 2),))
    assert reading(hidden).reason is SkipReason.SCRUBBED
    (shown,) = reading(hidden, is_sampled=False).samples  # a demonstration has no log-probs that could be wrong
    assert shown.action_mask.tolist() == [False, False, False, True, True, True, True]


# All of them


def test_kinds_are_counted_over_all_that_is_kept() -> None:
    calls = (FIRST, next_call((1, 10, 2, 20, 23, 3)))
    edited = (FIRST, next_call(FULL, {**ASK, "content": "?"}, SAID, prompt_ids=(7,)))
    attempts = [attempt(name, *some, signals=GOOD) for name, some in (("a", calls), ("b", calls), ("c", edited))]
    lost = attempt("d", *edited, signals=None)
    assert gather([*attempts, lost], SampleFilter()).breaks == {Break.RETOKENISED: 2, Break.EDITED: 1}


ids = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(prompt=ids, answer=ids, follow=ids)
def test_a_call_leads_on_or_is_broken_and_nothing_is_lost(
    prompt: list[int], answer: list[int], follow: list[int]
) -> None:
    thread = Thread()
    thread.add(0, replace(call(prompt, answer), messages=(ASK,), response=SAID))
    later = next_call(follow)
    goes_on = [*follow, 1, 11, 2][: len(prompt) + len(answer)] == prompt + answer
    assert thread.leads_to(later) is goes_on
    assert goes_on or broken(later, [thread]) in (Break.TEMPLATE, Break.RETOKENISED)
    first = thread.pieces[0][2]
    read_back = [token for one in reading(first, later).samples for token in one.ids.tolist()]
    assert len(read_back) == len(follow) + 5 + (0 if goes_on else len(prompt) + len(answer))
