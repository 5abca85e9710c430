"""Answers to many prompts: when they end, how much they think; the recorded log-probs are those that training finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.sampling import Completion, Sampling, SamplingRules, draw, log_probs, track_thinking, uniforms
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


LOGITS = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.65}, [4 / 7, 3 / 7, 0, 0]),  # 0.4 is not enough, 0.7 is
        ({"top_p": 0.4}, [1, 0, 0, 0]),  # 0.4 is just enough
        ({"top_p": 0.01}, [1, 0, 0, 0]),  # one token is always left
        ({"temperature": 0.5}, [0.16 / 0.30, 0.09 / 0.30, 0.04 / 0.30, 0.01 / 0.30]),  # squared
        ({"temperature": 0.0}, [0.4, 0.3, 0.2, 0.1]),  # greedy: recorded at temperature 1
        ({"top_k": 3, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),  # top-p counts within the three: 4/9, then 7/9
        ({"banned": torch.tensor([True, False, False, False]), "top_k": 2}, [0, 0.6, 0.4, 0]),
        ({"top_k": 1, "chosen": torch.tensor(1)}, [4 / 7, 3 / 7, 0, 0]),  # what was drawn stays in
    ],
)
def test_probabilities_by_hand(how: dict[str, object], expected: list[float]) -> None:
    found = log_probs(LOGITS, **how).exp()  # type: ignore[arg-type]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_rows_may_each_have_their_own_sampling() -> None:
    found = log_probs(
        LOGITS.expand(3, 4), torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0, 0, 2]), torch.tensor([0.65, 1.0, 1.0])
    )
    for row, how in enumerate(({"top_p": 0.65}, {"temperature": 0.5}, {"top_k": 2})):
        torch.testing.assert_close(found[row], log_probs(LOGITS, **how))  # type: ignore[arg-type]


def test_gradients_reach_only_what_could_be_drawn() -> None:
    logits = LOGITS.clone().requires_grad_()
    log_probs(logits, top_k=2)[0].backward()
    np.testing.assert_allclose(logits.grad.numpy(), [3 / 7, -3 / 7, 0, 0], atol=1e-6)  # type: ignore[union-attr]


def test_drawing_inverts_the_distribution_function() -> None:
    logps = LOGITS.expand(6, 4).clone()
    logps[5] = torch.tensor([-torch.inf, 0.0, -torch.inf, -torch.inf])
    uniform = torch.tensor([0.0, 0.39, 0.41, 0.69, 1 - 2**-23, 1 - 2**-23])
    assert draw(logps, uniform).tolist() == [0, 0, 1, 1, 3, 1]


def test_the_stream_of_a_key_is_its_own() -> None:
    assert uniforms(5, 8).tolist() == uniforms(5, 20)[:8].tolist() != uniforms(6, 8).tolist()
    assert uniforms(5, 10_000).max() < 1
    with pytest.raises(BadInput, match="key = -1"):
        uniforms(-1, 3)


def test_any_mark_ends_a_thought() -> None:
    tokens = torch.tensor([THINK, 65, UNTHINK, END, 65])
    inside, left = track_thinking(tokens, torch.tensor([False, True, True, True, False]), torch.full((5,), 9))
    assert inside.tolist() == [True, True, False, False, False]
    assert left.tolist() == [9, 8, 9, 9, 9]


def test_rows_that_all_ask_for_the_same_need_no_tensors() -> None:
    plain = np.array([Sampling().column] * 3, np.float32).T
    assert SamplingRules.of(plain, 264, torch.device("cpu")) == SamplingRules(1.0, None, 0, 1.0, None)
    every = SamplingRules.of(plain, 264, torch.device("cpu"), every=True)
    logits, uniform = torch.randn(3, 264, generator=torch.Generator().manual_seed(0)), torch.tensor([0.1, 0.5, 0.9])
    for rules in (every, every.first(3, filtered=False), SamplingRules.of(plain, 264, torch.device("cpu"))):
        tokens, logps = rules.decide(logits, uniform, torch.tensor([False, True, False]))
        assert tokens[1] == UNTHINK and logps[1] == 0
        torch.testing.assert_close(logps[0], torch.log_softmax(logits[0], -1)[tokens[0]])


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": math.inf}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"max_tokens": 0},
     {"stop": ("",)}, {"thinking": -1}, {"temperature": math.nan}, {"temperature": 1e300}, {"temperature": "x"},
     {"temperature": True}, {"top_p": None}, {"stop": ("\ud800",)}, {"stop": (7,)},
     *({name: value} for name in ("top_k", "max_tokens", "thinking") for value in (True, 1.0, 2**31, 10**5000)),
    ],
)  # fmt: skip
def test_impossible_samplings_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"sampling.{next(iter(wrong))} = "):
        Sampling(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1e-50, 1e-40, 9.9e-4])
def test_a_temperature_that_32_bits_cannot_divide_by_is_refused(temperature: float) -> None:
    with pytest.raises(BadInput, match=r"sampling.temperature = .*: is too near to 0; give 0: the likeliest token"):
        Sampling(temperature=temperature)
    assert torch.isfinite(log_probs(torch.tensor([-1e4, 1e4]), Sampling(temperature=1e-3).temperature)).all()
