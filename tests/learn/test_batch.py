from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.learn.batch import (
    Sample,
    SampleFilter,
    Samples,
    SamplingRule,
    SkipReason,
    cut,
    gather,
    pack,
    pad,
    reach,
    read,
    reward,
)
from holdfast.policies.tokens import THINK
from tests.learn.attempts import attempt, call, signal

GOOD = (signal(1.0),)


def sample(length: int, decided: list[int], **streams: Any) -> Sample:
    marks = np.isin(np.arange(length), decided)
    return Sample(
        rollout=f"r{length}",
        task="t",
        ids=np.arange(length, dtype=np.int32) + 10,
        decided=marks,
        turns=np.where(marks, 0, -1).astype(np.int32),
        **streams,
    )


def test_calls_that_go_on_from_one_another_are_one_sequence() -> None:
    reading = read(attempt("a", call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5]), signals=GOOD), SampleFilter())
    (one,) = reading.samples
    assert one.ids.tolist() == [1, 2, 3, 4, 9, 9, 5] and one.ids.dtype == np.int32
    assert one.decided.tolist() == [False, False, True, True, False, False, True]
    assert one.turns.tolist() == [-1, -1, 0, 0, -1, -1, 1]
    assert one.starts == ((0, 2), (1, 6))
    assert np.isnan(one.logprobs).tolist() == [True, True, False, False, True, True, False]  # type: ignore[arg-type]
    assert reading.breaks == {}


def test_a_rewritten_prompt_begins_a_new_sequence_and_is_counted() -> None:
    reading = read(attempt("a", call([1, 2], [3, 4]), call([1, 7, 3, 4, 9], [5]), signals=GOOD), SampleFilter())
    assert [one.ids.tolist() for one in reading.samples] == [[1, 2, 3, 4], [1, 7, 3, 4, 9, 5]]
    assert [one.turns.max() for one in reading.samples] == [0, 1]
    assert reading.breaks == {"edited": 1}


def test_two_conversations_that_take_turns_are_told_apart() -> None:
    calls = (call([1], [2]), call([5], [6]), call([1, 2, 3], [4]), call([5, 6, 7], [8]))
    reading = read(attempt("a", *calls, signals=GOOD), SampleFilter())
    assert [one.ids.tolist() for one in reading.samples] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_forced_tokens_are_read_and_never_learnt() -> None:
    (one,) = read(attempt("a", call([1], [2, 3, 4], forced=[1]), signals=GOOD), SampleFilter()).samples
    assert one.decided.tolist() == [False, True, False, True]


def test_each_turn_keeps_the_sampling_that_was_in_force() -> None:
    first = call([1], [2], sampling={"temperature": 0.7, "top_k": 5, "top_p": 0.9})
    second = call([1, 2], [3], sampling={"thinking": 0, "banned": [THINK]})
    (one,) = read(attempt("a", first, second, signals=GOOD), SampleFilter()).samples
    assert one.rules == (SamplingRule(temperature=0.7, top_k=5, top_p=0.9), SamplingRule(banned=(THINK,)))
    packed = pack([one])
    assert packed.rules == one.rules and packed.rule is not None and packed.rule.tolist()[1:] == [0, 1]


def test_a_greedy_turn_has_no_gradient() -> None:
    greedy = {"temperature": 0.0}
    mixed = attempt("a", call([1], [2], sampling=greedy), call([1, 2], [3]), signals=GOOD)
    assert read(mixed, SampleFilter()).samples[0].decided.tolist() == [False, False, True]
    assert read(attempt("b", call([1], [2], sampling=greedy), signals=GOOD), SampleFilter()).reason is SkipReason.GREEDY


@pytest.mark.parametrize(
    ("fields", "intake", "reason"),
    [
        ({"split": Split.VAL}, SampleFilter(), SkipReason.WRONG_SPLIT),
        ({"split": None}, SampleFilter(), SkipReason.WRONG_SPLIT),
        ({"is_final": False}, SampleFilter(), SkipReason.NOT_FINAL),
        ({"state": RolloutState.DEAD}, SampleFilter(), SkipReason.FAULT),
        ({"state": RolloutState.RUNNING}, SampleFilter(), SkipReason.FAULT),
        ({"sheet": None}, SampleFilter(), SkipReason.NO_REWARD),
        ({}, SampleFilter(channels=("safe",)), SkipReason.NO_REWARD),  # scored, but by nothing that counts
        ({}, SampleFilter(run="run-2"), SkipReason.OTHER_RUN),
        ({"version": "v1"}, SampleFilter(versions=("v2",)), SkipReason.STALE),
        ({"spans": ()}, SampleFilter(), SkipReason.NO_TRAJECTORY),
        ({}, SampleFilter(max_tokens=2), SkipReason.TOO_LONG),
        ({}, SampleFilter(vocabulary=3), SkipReason.FOREIGN),
        ({}, SampleFilter(vocabulary=4, max_tokens=3), None),
        ({"state": RolloutState.FAILED}, SampleFilter(), None),  # the agent failed, and that was scored
    ],
)
def test_what_may_not_be_learnt_from_is_left_out_with_its_reason(
    fields: dict[str, Any], intake: SampleFilter, reason: SkipReason | None
) -> None:
    assert read(attempt("a", call([1, 2], [3]), signals=GOOD, **fields), intake).reason is reason


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (call(None, None), SkipReason.NO_IDS),
        (call([1], []), SkipReason.NO_IDS),
        (call([1], [2], logprobs=None), SkipReason.NO_LOGPROBS),
        (call([1], [2, 3], forced=[0, 1]), SkipReason.ALL_FORCED),
    ],
)
def test_a_call_without_what_learning_needs_gives_nothing(one: Any, reason: SkipReason) -> None:
    assert read(attempt("a", one, signals=GOOD), SampleFilter()).reason is reason


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ((signal(1.0, turn=1),), SkipReason.BAD_TURN),
        ((signal(1.7e308, "a"), signal(1.7e308, "b")), SkipReason.BAD_REWARD),  # an infinite sum of finite numbers
        ((signal(1e300),), SkipReason.BAD_REWARD),  # no 32 bits hold it
        ((signal(1e300, "a"), signal(-1e300, "b")), SkipReason.BAD_REWARD),  # nor these, turn by turn
        ((signal(1e17),), None),
    ],
)
def test_rewards_that_nobody_could_compute_with_are_left_out(signals: Any, reason: SkipReason | None) -> None:
    odd = attempt("a", call([1, 2], [3]), signals=signals)
    assert read(odd, SampleFilter()).reason is reason
    assert read(odd, SampleFilter(is_scored=False)).reason is None  # demonstrations need no reward
    named = attempt("a", call([1, 2], [3]), signals=(*signals, signal(1.0, "fine")))
    assert read(named, SampleFilter(channels=("fine",))).reason is None


def test_ids_that_no_model_has_are_foreign_and_a_first_token_alone_teaches_nothing() -> None:
    assert read(attempt("a", call([2**40], [3]), signals=GOOD), SampleFilter()).reason is SkipReason.FOREIGN
    assert read(attempt("a", call([], [3]), signals=GOOD), SampleFilter()).reason is SkipReason.ALL_FORCED


def test_only_named_channels_count_and_nothing_counted_is_not_zero() -> None:
    one = attempt("a", signals=(signal(1.0, "right", weight=2.0), signal(-5.0, "latency")))
    assert reward(one) == -3.0
    assert reward(one, ("right",)) == 2.0
    assert reward(one, ("style",)) is None


def test_an_earlier_attempt_says_nothing_about_its_rollout() -> None:
    final = attempt("a", call([1], [2]), signals=GOOD)
    earlier = attempt("a", call([1], [3]), signals=GOOD, is_final=False)
    for order in ([final, earlier], [earlier, final]):
        gathered = gather(order, SampleFilter())
        assert gathered.reasons == {"a": None}
        assert [one.is_final for one, _ in gathered.kept] == [True]


def test_padding_reads_no_further_than_the_last_decision_needs() -> None:
    batch = pack([sample(9, [3, 4]), sample(3, [2])])
    lengths = reach(batch)
    assert lengths.tolist() == [4, 2]  # tokens 0 to 3 decide token 4
    padded = pad(batch, np.array([0, 1]), lengths)
    assert padded.ids.tolist() == [[10, 11, 12, 13], [10, 11, 0, 0]]
    assert padded.places.tolist() == [2, 3, 5]
    assert padded.targets.tolist() == [13, 14, 12]


def test_the_first_token_is_decided_in_no_state() -> None:
    batch = pack([sample(3, [0, 2])])
    padded = pad(batch, np.array([0]), reach(batch))
    assert padded.targets.tolist() == [12]
    assert reach(pack([sample(3, [0])])).tolist() == [0]


def test_a_value_target_behind_the_last_decision_is_reached() -> None:
    returns = np.array([np.nan, np.nan, np.nan, np.nan, 0.5], dtype=np.float32)
    batch = pack([sample(5, [2], returns=returns)])
    lengths = reach(batch)
    assert lengths.tolist() == [5]
    assert pad(batch, np.array([0]), lengths).value_places.tolist() == [4]


def test_tiles_make_few_shapes() -> None:
    batch = pack([sample(9, [8]), sample(3, [2])])
    padded = pad(batch, np.array([0, 1]), reach(batch), multiple=16, height=4)
    assert padded.ids.shape == (4, 16)
    assert padded.places.tolist() == [7, 16 + 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_a_cut_holds_every_sample_once_and_stays_within_the_limit(numbers: list[int], limit: int) -> None:
    lengths = np.array(numbers)
    parts = list(cut(lengths, limit))
    found = np.concatenate(parts) if parts else np.array([], dtype=np.int64)
    assert sorted(found.tolist()) == [i for i, n in enumerate(numbers) if n > 0]
    assert all(len(part) == 1 or len(part) * lengths[part].max() <= limit for part in parts)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_decided_token_finds_the_state_before_it(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(2, 12), min_size=1, max_size=6))
    batch = pack([sample(n, sorted(data.draw(st.sets(st.integers(1, n - 1), min_size=1)))) for n in lengths])
    reached = reach(batch)
    order = np.array(data.draw(st.permutations(range(len(lengths)))))
    padded = pad(batch, order, reached)
    flat = padded.ids.ravel()
    assert (flat[padded.places] + 1 == padded.targets).all()  # ids count upwards within a sample
    assert len(padded.targets) == batch.tokens


def test_picked_samples_keep_their_streams() -> None:
    batch = pack([sample(3, [1], weights=np.full(3, w, np.float32)) for w in (1.0, 2.0, 3.0)])
    picked = batch.pick(np.array([2, 0]))
    assert picked.weights is not None and picked.weights.tolist() == [3.0] * 3 + [1.0] * 3
    assert len(picked) == 2 and picked.rollouts == ("r3", "r3")


def test_a_stream_that_some_samples_lack_is_filled_with_nothing() -> None:
    with_logprobs = sample(2, [1], logprobs=np.array([np.nan, -1.0], np.float32))
    batch = pack([sample(2, [1], weights=np.ones(2, np.float32)), with_logprobs])
    assert batch.logprobs is not None and np.isnan(batch.logprobs).tolist() == [True, True, True, False]
    assert batch.weights is not None and batch.weights.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert batch.returns is None


def test_streams_of_another_length_and_empty_batches_are_refused() -> None:
    with pytest.raises(BadInput, match="weights: 3 entries, 2 ids"):
        sample(2, [1], weights=np.ones(3, np.float32))
    with pytest.raises(BadInput, match="nothing to learn from"):
        pack([])


def test_truncation_is_told_or_seen_in_the_last_call() -> None:
    assert attempt("a", call([1], [2], finish="length")).is_truncated
    assert not attempt("a", call([1], [2], finish="length"), call([1, 2], [3])).is_truncated
    assert attempt("a", call([1], [2]), ended="truncated").is_truncated
    assert isinstance(pack([sample(2, [1])]), Samples)
