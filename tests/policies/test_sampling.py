"""Answers to many prompts: when they end, how much they think; the recorded log-probs are those that training finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.sampling import Completion, Sampling, log_probs
from holdfast.policies.tokens import END, THINK, UNTHINK
from tests.policies.small import SMALL, generate, recomputed, small

PROMPTS = [[1, 2, 3], list(b"a longer prompt than the first one"), [7]]


def test_sampled_frequencies_are_the_probabilities() -> None:
    model = small()
    with torch.no_grad():
        expected = log_probs(model(torch.tensor([[1, 2, 3]]))[0, -1]).exp().numpy()
    found = generate(model, [[1, 2, 3]] * 2000, Sampling(max_tokens=1), range(2000))
    counts = np.bincount([completion.ids[0] for completion in found], minlength=264)
    likely = expected > 0.01
    spread = np.sqrt(expected * (1 - expected) / 2000)
    assert (np.abs(counts / 2000 - expected)[likely] < 4.5 * spread[likely]).all()


HOWS = [
    Sampling(max_tokens=20),
    Sampling(max_tokens=20, temperature=0.7, top_p=0.9),
    Sampling(max_tokens=20, temperature=1.4, top_k=5),
    Sampling(max_tokens=20, temperature=0.0),
    Sampling(max_tokens=20, top_k=40, top_p=0.8, thinking=0),
    Sampling(max_tokens=20, thinking=3),
]


@pytest.mark.parametrize("how", HOWS)
def test_recomputed_log_probs_are_the_recorded_ones(how: Sampling) -> None:
    model = small(favour={THINK: 3.0})
    for prompt, completion in zip(PROMPTS, generate(model, PROMPTS, how, [1, 2, 3]), strict=True):
        found = recomputed(model, prompt, completion, how)
        drawn = [place for place in range(len(completion.ids)) if place not in completion.forced]
        torch.testing.assert_close(found[drawn], torch.tensor(completion.logprobs)[drawn], atol=1e-4, rtol=0)


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    model = small()
    alone = [generate(model, [p], how, [k])[0] for k, (p, how) in enumerate(zip(PROMPTS * 2, HOWS, strict=True))]
    together = generate(model, PROMPTS * 2, HOWS, range(6))
    few_at_a_time = generate(model, PROMPTS * 2, HOWS, range(6), slots=2)
    assert [c.ids for c in alone] == [c.ids for c in together] == [c.ids for c in few_at_a_time]


def test_greedy_takes_the_most_probable() -> None:
    model = small()
    (completion,) = generate(model, [[1, 2, 3]], Sampling(temperature=0, max_tokens=5), [0])
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3, *completion.ids]]))[0, 2:-1]
    assert completion.ids == tuple(logits.argmax(-1).tolist())
    assert all(p < 0 for p in completion.logprobs)


def test_an_answer_ends_at_its_end_at_its_length_or_at_the_context() -> None:
    endings = generate(small(favour={END: 2.0}), [[1]] * 20, Sampling(max_tokens=60), range(20))
    assert any(c.finish == "stop" for c in endings)
    for completion in endings:
        assert (completion.ids[-1] == END) == (completion.finish == "stop") and END not in completion.ids[:-1]
    never_ends = small(favour={END: -20.0})
    (short,) = generate(never_ends, [[1, 2]], Sampling(max_tokens=7), [0])
    assert (len(short.ids), short.finish) == (7, "length")
    (long,) = generate(never_ends, [[1] * 150], Sampling(max_tokens=100), [0])
    assert (len(long.ids), long.finish) == (SMALL.context - 150, "length")
    assert recomputed(never_ends, [1] * 150, long, Sampling()).shape == (10,)


def test_a_stop_string_ends_an_answer_and_stays_in_its_ids() -> None:
    model = small(favour={ord("a"): 4.0, ord("b"): 4.0})
    found = generate(model, [[1]] * 20, Sampling(max_tokens=40, stop=("ab", "bbb")), range(20))
    assert any(c.finish == "stop" for c in found)
    for completion in found:
        text = "".join(chr(i) for i in completion.ids)
        if completion.finish == "stop" and completion.ids[-1] != END:
            assert text.endswith(("ab", "bbb"))
        assert "ab" not in text[:-1] and "bbb" not in text[:-1]


def thoughts(completion: Completion) -> list[int]:
    """How long each thought of an answer is."""
    lengths, inside = [], False
    for token in completion.ids:
        if token >= 256:
            inside = token == THINK
            lengths += [0] if inside else []
        elif inside:
            lengths[-1] += 1
    return lengths


def test_a_thinking_budget_is_kept_while_decoding() -> None:
    model = small(favour={THINK: 3.0, UNTHINK: -20.0, END: -20.0})
    found = generate(model, [[1]] * 16, Sampling(max_tokens=30, thinking=4), range(16))
    assert any(c.forced for c in found)
    for completion in found:
        assert sum(thoughts(completion)) <= 4
        assert all(
            completion.ids[place] == UNTHINK and completion.logprobs[place] == 0.0 for place in completion.forced
        )
    free = generate(model, [[1]] * 16, Sampling(max_tokens=30), range(16))
    assert max(sum(thoughts(c)) for c in free) > 4 and not any(c.forced for c in free)


def test_a_budget_of_nothing_bans_thinking_and_forces_nothing() -> None:
    how = Sampling(max_tokens=30, thinking=0)
    model = small(favour={THINK: 3.0})
    found = generate(model, [[1]] * 8, how, range(8))
    assert how.banned == (THINK,)
    assert all(THINK not in c.ids and c.forced == () for c in found)


def test_a_prompt_that_breaks_off_within_a_thought_counts_on() -> None:
    model = small(favour={UNTHINK: -20.0, END: -20.0, THINK: -20.0})
    (completion,) = generate(model, [[1, THINK, 65]], Sampling(max_tokens=6, thinking=2), [3])
    assert completion.forced[0] == 2 and completion.ids[2] == UNTHINK


def test_prompts_that_leave_no_room_are_refused() -> None:
    with pytest.raises(BadInput, match="a prompt of 160 tokens: the context is 160, so that at most 159"):
        generate(small(), [[1] * 160], Sampling(), [0])
    with pytest.raises(BadInput, match="is empty"):
        generate(small(), [[]], Sampling(), [0])
    with pytest.raises(BadInput, match="not among the model's 264"):
        generate(small(), [[264]], Sampling(), [0])
