"""From recorded attempts to samples and padded tensors; every rollout that teaches nothing has its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall
from holdfast.learn.batch import (
    Sample,
    SampleFilter,
    SamplingRule,
    SkipReason,
    cut,
    fitted,
    gather,
    pack,
    pad,
    reach,
    read,
    reward,
)
from holdfast.learn.grpo import Grpo, audit, compare, dominance
from holdfast.learn.sft import sequences
from holdfast.learn.train import Settings, Trainer
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.tokens import THINK
from tests.learn.attempts import attempt, call, drawn, signal

torch.set_num_threads(1)
FINE = call([1, 2], [3])


def model() -> Transformer:
    return Transformer(ModelShape(vocabulary=16, width=8, layers=1, heads=2, context=16), seed=0)


def odd(one: ModelCall | None = FINE, **fields: Any) -> list[Experience]:
    """Two good attempts at a task, and one at another task with something the matter."""
    good = [attempt(f"good-{i}", FINE, signals=[signal(float(i))]) for i in range(2)]
    calls = () if one is None else (one,)
    return [*good, attempt("odd", *calls, **({"signals": [signal(1.0)], "task": "other"} | fields))]


GOOD = (signal(1.0),)


def sample(length: int, decided: list[int], **streams: Any) -> Sample:
    marks = np.isin(np.arange(length), decided)
    return Sample(
        rollout=f"r{length}",
        task="t",
        ids=np.arange(length, dtype=np.int32) + 10,
        action_mask=marks,
        turns=np.where(marks, 0, -1).astype(np.int32),
        **streams,
    )


def test_each_turn_keeps_the_sampling_that_was_in_force() -> None:
    first = call([1], [2], sampling=drawn(temperature=0.7, top_k=5, top_p=0.9))
    second = call([1, 2], [3], sampling=drawn(thinking=0, banned=[THINK]))
    (one,) = read(attempt("a", first, second, signals=GOOD), SampleFilter()).samples
    assert one.rules == (SamplingRule(temperature=0.7, top_k=5, top_p=0.9), SamplingRule(banned=(THINK,)))
    packed = pack([one])
    assert packed.rules == one.rules and packed.rule is not None and packed.rule.tolist()[1:] == [0, 1]


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


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_a_cut_holds_every_sample_once_and_stays_within_the_limit(numbers: list[int], limit: int) -> None:
    lengths = np.array(numbers)
    parts = list(cut(lengths, limit))
    found = np.concatenate(parts) if parts else np.array([], dtype=np.int64)
    assert sorted(found.tolist()) == [i for i, n in enumerate(numbers) if n > 0]
    assert all(len(part) == 1 or len(part) * lengths[part].max() <= limit for part in parts)


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


@pytest.mark.parametrize(
    ("attempts", "intake", "reason"),
    [
        (odd(None), SampleFilter(), SkipReason.NO_TRAJECTORY),
        (odd(call(None, None)), SampleFilter(), SkipReason.NO_IDS),
        (odd(call([1], [])), SampleFilter(), SkipReason.NO_IDS),
        (odd(call([1], [2], logprobs=None)), SampleFilter(), SkipReason.NO_LOGPROBS),
        (odd(call([1], [2, 3], forced=[0, 1])), SampleFilter(), SkipReason.ALL_FORCED),
        (odd(call([], [3])), SampleFilter(), SkipReason.ALL_FORCED),  # a first token is decided in no state
        (odd(call([1], [2], sampling={"temperature": 0})), SampleFilter(), SkipReason.GREEDY),
        (odd(call(range(9), [2])), SampleFilter(max_tokens=9), SkipReason.TOO_LONG),
        (odd(call([1, 2], [16])), SampleFilter(vocabulary=16), SkipReason.FOREIGN),
        (odd(call([2**40], [3])), SampleFilter(), SkipReason.FOREIGN),
        (odd(version="old"), SampleFilter(versions=("new", "m")), SkipReason.STALE),
        (odd(version="other"), SampleFilter(train_on="m"), SkipReason.NOT_CHOSEN),
        (odd(call([1], [2], sampling={"temperature": 1, "min_p": 0.1})), SampleFilter(), SkipReason.MIN_P),
        (odd(call([1], [2], sampling=drawn(repetition_penalty=1.1))), SampleFilter(), SkipReason.PENALTIES),
        (odd(call([1], [2], sampling=drawn(logit_bias={"2": 1}))), SampleFilter(), SkipReason.LOGIT_BIAS),
        (odd(call([1], [2], sampling=drawn(tool_choice="required"))), SampleFilter(), SkipReason.GUIDED),
        (odd(call([1], [2], sampling={"temperature": 1, "top_p": 0.9})), SampleFilter(), SkipReason.TRUNCATED),
        (odd(call([1], [2], sampling={"temperature": 0.9})), SampleFilter(), SkipReason.TEMPERATURE),
        (odd(call([1], [2], sampling={"max_tokens": 9})), SampleFilter(), SkipReason.DEFAULTS),
        (odd(call([1], [2], sampling=drawn(xtc_probability=0.5))), SampleFilter(), SkipReason.UNKNOWN),
        (odd(signals=None), SampleFilter(), SkipReason.NO_REWARD),
        (odd(signals=[signal(1.0, "style")]), SampleFilter(channels=("right",)), SkipReason.NO_REWARD),
        (odd(state=RolloutState.DEAD), SampleFilter(), SkipReason.FAULT),
        (odd(state=RolloutState.RUNNING), SampleFilter(), SkipReason.FAULT),
        (odd(split=Split.VAL), SampleFilter(), SkipReason.WRONG_SPLIT),
        (odd(split=None), SampleFilter(), SkipReason.WRONG_SPLIT),
        (odd(is_final=False), SampleFilter(), SkipReason.NOT_FINAL),
        (odd(run="run-2"), SampleFilter(run="run-1"), SkipReason.OTHER_RUN),
        (odd(), SampleFilter(), SkipReason.ALONE),
        (odd(task="task", signals=[signal(0.5)]), SampleFilter(), SkipReason.ZERO_WEIGHT),  # exactly average
    ],
)
def test_every_rollout_that_teaches_nothing_has_its_reason(
    attempts: list[Experience], intake: SampleFilter, reason: SkipReason
) -> None:
    found = compare(attempts, intake, Grpo())
    account = audit(attempts, found.reasons, found.samples)
    assert account.reasons == {"odd": str(reason)} and account.counts == {str(reason): 1}
    assert (account.rollouts, account.taught) == (3, 2)
    assert json.loads(json.dumps(account.to_dict()))["reasons"] == {"odd": str(reason)}


def test_what_just_fits_is_learnt_from_and_so_is_an_agent_that_failed() -> None:
    for fields, intake in (({}, SampleFilter(vocabulary=4, max_tokens=3)), ({"state": RolloutState.FAILED}, None)):
        assert read(attempt("a", FINE, signals=GOOD, **fields), intake or SampleFilter()).reason is None


def test_groups_without_spread_are_told_and_where_they_are_kept_they_weigh_nothing() -> None:
    attempts = [attempt(name, FINE, signals=[signal(1.0)]) for name in "ab"]
    found = compare(attempts, SampleFilter(), Grpo())
    account = audit(attempts, found.reasons, found.samples)
    assert account.counts == {"zero_variance_group": 2} and account.taught == 0 and account.samples == 0
    found = compare(attempts, SampleFilter(), Grpo(skip_zero_spread=False))
    update = Trainer(model(), Settings(), seed=0).step(found.samples)  # type: ignore[arg-type]
    account = audit(attempts, found.reasons, found.samples, update=update)
    assert account.zero_gradient is True and account.idle_tokens == 2 and account.tokens == 0


def test_a_gradient_that_is_there_is_not_called_zero() -> None:
    samples = sequences([([1, 2, 3], [False, True, True])])
    update = Trainer(model(), Settings(), seed=0).step(samples)
    assert audit([], {}, samples, update=update).zero_gradient is False


def test_the_signal_that_the_reward_is_made_of_is_named_unless_it_is_the_only_one() -> None:
    def one(name: str, right: float, style: float) -> Experience:
        return attempt(name, FINE, signals=[signal(right), signal(style, "style", weight=0.1)])

    attempts = [one("a", 1.0, 1.0), one("b", 0.0, 1.0), one("c", 1.0, 0.0), one("d", 0.0, 0.0)]
    shares = dominance(attempts)  # variances ¼ and 0.01 · ¼, not correlated
    assert shares == {"right": pytest.approx(1 / 1.01), "style": pytest.approx(0.01 / 1.01)}
    assert audit(attempts, {}, None).dominant == "right" and dominance(attempts[:1]) == {}
    alone = [attempt(str(value), FINE, signals=[signal(value)]) for value in (1.0, 0.0)]
    assert audit(alone, {}, None).dominant is None


# Sequences


def test_calls_that_go_on_from_one_another_are_one_sequence_in_which_forced_and_greedy_tokens_are_not_learnt() -> None:
    greedy = call([1, 2, 3, 4, 9, 9, 5], [6], sampling={"temperature": 0.0})
    calls = (call([1, 2], [3, 4], forced=[1]), call([1, 2, 3, 4, 9, 9], [5]), greedy)
    reading = read(attempt("a", *calls, signals=GOOD), SampleFilter())
    (one,) = reading.samples
    assert one.ids.tolist() == [1, 2, 3, 4, 9, 9, 5, 6] and one.ids.dtype == np.int32
    assert np.flatnonzero(one.action_mask).tolist() == [2, 6]
    assert one.turns.tolist() == [-1, -1, 0, 0, -1, -1, 1, 2] and one.starts == ((0, 2), (1, 6), (2, 7))
    assert np.flatnonzero(~np.isnan(one.logprobs)).tolist() == [2, 3, 6, 7]  # type: ignore[arg-type]
    assert reading.breaks == {}


def test_calls_of_other_models_are_context_and_keep_their_turns() -> None:
    mine, later = (replace(one, model="local/tiny@1") for one in (call([1, 2], [3]), call([1, 2, 3, 9, 9], [4])))
    other = replace(call(None, None, sampling={"min_p": 1}), model="gpt")
    turns = [signal(0.5, turn=0), signal(7.0, turn=1), signal(1.0, turn=2)]
    found = attempt("a", mine, other, later, signals=turns)
    for intake in (SampleFilter(versions=("local/tiny@1",)), SampleFilter(train_on="tiny")):
        reading = read(found, intake)
        (one,) = reading.samples
        assert one.ids.tolist() == [1, 2, 3, 9, 9, 4] and one.turns.tolist() == [-1, -1, 0, -1, -1, 2]
        assert reading.left_out == {"other_model" if intake.train_on is None else "not_chosen": 1}
        assert reading.trajectory is not None and reading.trajectory.turn_count == 3
        assert [after.reward for _, after in reading.trajectory.transitions] == [0.5, 7.0, 1.0]
    assert read(found, SampleFilter(model="local/tiny")).reason is None  # any version of it, and no other model
    assert read(found, SampleFilter(train_on="gpt", versions=("local/tiny@1",))).reason is SkipReason.NO_IDS
    for named in ("tiny", "local/tiny", "local/tiny@1"):  # an older version of the policy is not what it says now
        assert read(found, SampleFilter(train_on=named, versions=("local/tiny@2",))).reason is SkipReason.STALE


def test_a_call_that_cannot_be_trained_on_leaves_the_others_of_its_attempt() -> None:
    biased = call([1, 2, 3, 4], [5], sampling=drawn(min_p=0.1))
    reading = read(attempt("a", call([1, 2], [3]), biased, signals=GOOD), SampleFilter())
    assert np.flatnonzero(reading.samples[0].action_mask).tolist() == [2] and reading.left_out == {"min_p": 1}
    empty = call([1, 2, 3, 4], [])  # all that some models say of a prompt that fills their context
    assert read(attempt("a", call([1, 2], [3]), empty, signals=GOOD), SampleFilter()).reason is None


def test_what_a_models_folder_asks_of_servers_counts_where_the_request_does_not_say() -> None:
    class Served:
        vocabulary, context, sampling_defaults = 16, 16, {"temperature": 0.6, "top_k": 20}

    def reason(**sampling: Any) -> SkipReason | None:
        return read(
            attempt("a", call([1], [2], sampling=sampling), signals=GOOD), fitted(SampleFilter(), Served())
        ).reason

    assert reason(temperature=1) is SkipReason.TRUNCATED and reason(temperature=1, top_k=-1) is None
    assert reason(max_tokens=5, top_k=-1) is SkipReason.TEMPERATURE
    assert reason(**drawn(temperature=0.6, top_k=20)) is None  # our own engine says what it did


def test_a_rewritten_prompt_begins_a_new_sequence_and_is_counted() -> None:
    attempts = [
        attempt(str(i), call([1, 2], [3, 4]), call([1, 7, 3, 4, 9], [5]), signals=[signal(float(i))]) for i in range(2)
    ]
    samples = read(attempts[0], SampleFilter()).samples
    assert [one.ids.tolist() for one in samples] == [[1, 2, 3, 4], [1, 7, 3, 4, 9, 5]]
    assert [one.turns.max() for one in samples] == [0, 1]
    found = compare(attempts, SampleFilter(), Grpo())
    account = audit(attempts, found.reasons, found.samples, breaks=found.breaks)
    assert json.loads(json.dumps(account.to_dict()))["breaks"] == {"edited": 2}
    calls = (call([1], [2]), call([5], [6]), call([1, 2, 3], [4]), call([5, 6, 7], [8]))  # two that take turns
    apart = read(attempt("a", *calls, signals=GOOD), SampleFilter()).samples
    assert [one.ids.tolist() for one in apart] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_padding_reads_no_further_than_the_last_decision_or_value_target_needs() -> None:
    batch = pack([sample(9, [0, 3, 4]), sample(3, [2]), sample(3, [0])])
    lengths = reach(batch)
    assert lengths.tolist() == [4, 2, 0]  # tokens 0 to 3 decide token 4; a first token is decided in no state
    padded = pad(batch, np.array([0, 1]), lengths)
    assert padded.ids.tolist() == [[10, 11, 12, 13], [10, 11, 0, 0]]
    assert (padded.places.tolist(), padded.targets.tolist()) == ([2, 3, 5], [13, 14, 12])
    valued = pack([sample(5, [2], returns=np.array([*[np.nan] * 4, 0.5], dtype=np.float32))])
    assert reach(valued).tolist() == [5] and pad(valued, np.array([0]), reach(valued)).value_places.tolist() == [4]


def test_truncation_is_told_or_seen_in_the_last_call() -> None:
    assert attempt("a", call([1], [2], finish="length")).is_truncated
    assert not attempt("a", call([1], [2], finish="length"), call([1, 2], [3])).is_truncated
    assert attempt("a", call([1], [2]), ended="truncated").is_truncated
