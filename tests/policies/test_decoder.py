"""Answers come and go at any time, and each is what it would have been alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.policies.cpu import GRAIN, SlotPlan, Slots
from holdfast.policies.decoder import Cuda, Decoder, DecodeRequest
from holdfast.policies.lm import SPROUT, ModelShape, Transformer, layout, rotate
from holdfast.policies.sampling import Completion, Sampling
from holdfast.policies.tokens import END, THINK
from tests.policies.small import SMALL, generate, recomputed, small

HEAD = list(np.random.default_rng(0).integers(0, 256, 70))
HOW = Sampling(max_tokens=12)


def requests(count: int) -> list[DecodeRequest]:
    """Each with a beginning in common, and in fours the same throughout."""
    return [DecodeRequest(n, [*HEAD, *([n // 4] * (n % 3 if n < 4 else 5)), 7], HOW, n) for n in range(count)]


def test_answers_join_while_others_are_written() -> None:
    model, asked = small(), requests(14)
    alone = generate(model, [r.ids for r in asked], HOW, [r.key for r in asked])
    decoder = Decoder(model, slots=4)
    waiting, done = list(asked), dict[Any, Completion]()
    for _ in range(300):
        left = decoder.admit(waiting[:3])  # a few at a time
        waiting = left + waiting[3:]
        done.update(decoder.step())
        if len(done) == len(asked):
            break
    assert [done[n].ids for n in range(14)] == [completion.ids for completion in alone]
    assert decoder.busy == 0 and decoder.room == 4 and decoder.step() == []


def test_conversations_go_on_from_what_is_there() -> None:
    model, decoder = small(), None
    decoder = Decoder(model, slots=3)
    prompts = [[*HEAD, n] for n in range(3)]
    for turn in range(3):
        answers = decoder.generate(prompts, HOW, [turn * 10 + n for n in range(3)])
        for prompt, completion in zip(prompts, answers, strict=True):
            expected = recomputed(model, prompt, completion, HOW)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
        prompts = [[*p, *c.ids, 5, turn] for p, c in zip(prompts, answers, strict=True)]


def test_an_unwanted_answer_leaves_its_place() -> None:
    decoder = Decoder(small(), slots=2)
    assert decoder.admit(requests(3)) == requests(3)[2:]
    decoder.step()
    decoder.drop([0])
    assert (decoder.busy, decoder.room) == (1, 1)
    assert decoder.admit(requests(3)[2:]) == []
    done = dict[Any, Completion]()
    while decoder.busy:
        done.update(decoder.step())
    assert set(done) == {1, 2}


def test_new_weights_forget_the_old_ones() -> None:
    one, two = small(1), small(2)
    decoder = Decoder(one, slots=2)
    prompts = [r.ids for r in requests(2)]
    decoder.generate(prompts, HOW, [0, 1])
    decoder.load(two)
    assert [c.ids for c in decoder.generate(prompts, HOW, [0, 1])] == [
        c.ids for c in generate(two, prompts, HOW, [0, 1])
    ]
    decoder.admit(requests(1))
    with pytest.raises(BadInput, match="new weights: 1 answers are under way"):
        decoder.load(one)
    with pytest.raises(BadInput, match="slots = 0"):
        Decoder(one, slots=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fixed_layout_gives_the_same_bits_whatever_runs_beside(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        decoder = Decoder(small(), slots=5, fixed=True)
        asked = requests(10)
        together = decoder.generate([r.ids for r in asked], HOW, [r.key for r in asked])
        backwards = decoder.generate([r.ids for r in asked[::-1]], HOW, [r.key for r in asked[::-1]])[::-1]
        alone = [decoder.generate([r.ids], HOW, [r.key])[0] for r in asked]
    finally:
        torch.set_num_threads(before)
    assert together == backwards == alone


HOWS = [
    Sampling(max_tokens=21),
    Sampling(max_tokens=30, temperature=0.7, top_p=0.9),
    Sampling(max_tokens=9, temperature=0.0),
    Sampling(max_tokens=30, top_k=40, thinking=0),
    Sampling(max_tokens=30, thinking=3),
    Sampling(max_tokens=200, stop=("a", "b")),
    Sampling(
        max_tokens=50, stop=tuple(f"q{chr(last)}" for last in range(32, 127))
    ),  # ends of stops, hardly a whole one
]
PROMPTS = [[1], [1, 2, 3], list(b"a longer prompt than the others"), [7] * 100, [9] * 158, [5, 6], [8]]


@pytest.mark.parametrize("fixed", [False, True])
def test_strides_give_the_same_answers_as_single_steps(fixed: bool) -> None:
    model = small(favour={THINK: 3.0, END: 1.0})
    expected = generate(model, PROMPTS, HOWS, range(len(HOWS)))
    cuda = Cuda(model, 4, torch.device("cpu"), fixed=fixed)
    decoder = Decoder(model, slots=4, cuda=cuda)
    found = decoder.generate(PROMPTS, HOWS, range(len(HOWS)))
    assert [(c.ids, c.forced, c.finish) for c in found] == [(c.ids, c.forced, c.finish) for c in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    other = small(seed=5)
    decoder.load(other)
    assert [c.ids for c in decoder.generate(PROMPTS, HOWS, range(len(HOWS)))] == [
        c.ids for c in generate(other, PROMPTS, HOWS, range(len(HOWS)))
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_log_probs_are_those_of_training_up_to_bfloat16() -> None:
    model = small(favour={THINK: 3.0, END: 1.0})
    found = generate(model, PROMPTS * 20, HOWS * 20, range(20 * len(HOWS)), device="cuda", slots=64)
    assert np.mean([c.logprobs[0] for c in found]) < -0.5  # nothing so certain that anything would agree about it
    errors = []
    for prompt, how, completion in zip(PROMPTS * 20, HOWS * 20, found, strict=True):
        drawn = [place for place in range(len(completion.ids)) if place not in completion.forced]
        error = (recomputed(model, prompt, completion, how) - torch.tensor(completion.logprobs))[drawn]
        errors += error.abs().tolist()
    assert sum(errors) / len(errors) < 0.05


def ids(*runs: tuple[int, int]) -> np.ndarray:
    """(token, how often), one after the other; and the last token, which is never kept."""
    return np.array([token for token, times in runs for _ in range(times)] + [9])


def computed(slots: Slots, prompt: np.ndarray) -> SlotPlan:
    plan = slots.take(prompt, wait=False)
    assert plan is not None
    slots.computed()
    return plan


def test_a_prompt_like_another_leans_on_it_in_whole_grains_and_copies_the_rest() -> None:
    slots = Slots(4, 256, memory=True)
    first = computed(slots, ids((1, 100)))
    assert first == SlotPlan(0, 0, 0, 0, -1)
    second = computed(slots, ids((1, 100), (2, 5)))
    assert second == SlotPlan(1, 100, 0, GRAIN, 0)
    third = computed(slots, ids((1, 100), (2, 5), (3, 5)))  # most like the second, which leans on the first
    assert third == SlotPlan(2, 105, 0, GRAIN, 1)


def test_a_prompt_waits_for_a_neighbour_that_is_being_computed() -> None:
    slots = Slots(4, 256, memory=True)
    assert slots.take(ids((1, 80)), wait=True) is not None
    assert slots.take(ids((1, 80)), wait=True) is None
    assert slots.take(ids((2, 80)), wait=True) == SlotPlan(1, 0, 1, 0, -1)
    slots.computed()
    assert slots.take(ids((1, 80)), wait=True) == SlotPlan(2, 80, 0, GRAIN, 0)


def test_the_next_turn_goes_on_in_its_own_slot() -> None:
    slots = Slots(3, 256, memory=True)
    plan = computed(slots, ids((1, 30)))
    slots.fed(np.array([plan.slot]), np.array([30]), np.array([9]))  # the prompt's last token
    slots.leave(plan.slot)
    assert computed(slots, np.array([1] * 30 + [9, 4, 4, 4])) == SlotPlan(0, 31, 0, 0, -1)


def test_what_others_lean_on_is_not_given_away() -> None:
    slots = Slots(2, 256, memory=True)
    base = computed(slots, ids((1, 100)))
    computed(slots, ids((1, 100), (2, 5)))
    slots.leave(base.slot)
    assert slots.take(ids((3, 10)), wait=False) is None  # one is active, and it leans on the other
    slots.leave(1)
    assert slots.take(ids((3, 10)), wait=False) is not None


def test_without_memory_the_lowest_free_slot_is_taken() -> None:
    slots = Slots(3, 256, memory=False)
    assert [computed(slots, ids((1, 80))) for _ in range(2)] == [SlotPlan(0, 0, 0, 0, -1), SlotPlan(1, 0, 1, 0, -1)]
    slots.leave(0)
    assert computed(slots, ids((1, 80))).slot == 0


class Model:
    """A cache in which a place holds all tokens up to it: what a row would see can be compared with what it should."""

    def __init__(self, count: int) -> None:
        self.slots = Slots(count, 320, memory=True)
        self.cache = np.full((count, 320), None, object)
        self.rows: dict[int, list[int]] = {}

    def admit(self, prompt: list[int]) -> None:
        plan = self.slots.take(np.array(prompt), wait=False)
        if plan is None:
            return
        assert plan.slot not in self.rows and plan.shared % GRAIN == 0
        if plan.source >= 0:
            self.cache[plan.slot, plan.shared : plan.start] = self.cache[plan.source, plan.shared : plan.start]
        for place in range(plan.start, len(prompt) - 1):
            self.cache[plan.slot, place] = tuple(prompt[: place + 1])
        self.slots.computed()
        self.rows[plan.slot] = prompt
        self.check()

    def leave(self, number: int) -> None:
        if self.rows:
            slot = sorted(self.rows)[number % len(self.rows)]
            del self.rows[slot]
            self.slots.leave(slot)

    def check(self) -> None:
        for slot, prompt in self.rows.items():
            base, shared = self.slots.base[slot], self.slots.shared[slot]
            for place in range(len(prompt) - 1):
                assert self.cache[base if place < shared else slot, place] == tuple(prompt[: place + 1])


prompts = st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from([3, 20, 64, 70])), min_size=1, max_size=4)


@given(st.lists(st.one_of(prompts, st.integers(0, 5)), max_size=30))
def test_every_row_sees_its_own_prompt_whatever_came_and_went(moves: list[list[tuple[int, int]] | int]) -> None:
    model = Model(5)
    for move in moves:
        if isinstance(move, int):
            model.leave(move)
        else:
            model.admit(ids(*move).tolist())


def test_where_the_like_slot_is_all_there_is_it_is_taken_and_nobody_waits_for_ever() -> None:
    for count in (1, 2):
        slots = Slots(count, 256, memory=True)
        for prompt in (ids((1, 200)), ids((1, 70), (2, 10)), ids((1, 200)), ids((1, 66), (3, 5))):
            plan = slots.take(prompt, wait=True)
            assert plan is not None
            slots.computed()
            slots.leave(plan.slot)


def some_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 264, (rows, length), generator=torch.Generator().manual_seed(3))


def test_sprout_has_1_2_million_parameters() -> None:
    assert sum(weight.numel() for weight in Transformer(SPROUT, seed=0).parameters()) == 1_239_680


def test_a_place_sees_nothing_to_its_right() -> None:
    model, ids = small(), some_ids(2, 20)
    other = ids.clone()
    other[:, 12:] = 0
    assert torch.equal(model(ids)[:, :12], model(other)[:, :12])
    assert not torch.allclose(model(ids)[:, 12], model(other)[:, 12])


def test_padding_on_the_right_changes_nothing() -> None:
    model, ids = small(), some_ids(1, 20)
    torch.testing.assert_close(model(ids)[:, :9], model(ids[:, :9]))


def test_only_the_distance_between_places_matters() -> None:
    angle = torch.arange(50)[:, None] * torch.tensor([1.0, 0.1])
    q, k = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).expand(50, 2, 4).unbind(1)
    turned_q, turned_k = (rotate(x, angle.cos(), angle.sin()) for x in (q, k))
    products = turned_q @ turned_k.T
    torch.testing.assert_close(products[10, 3], products[47, 40])


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two, other = small(1).state_dict(), small(1).state_dict(), small(2).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="161 tokens: the context is 160"):
        small()(some_ids(1, 161))
    with pytest.raises(BadInput, match=r"shape.width = 30: .* even multiple of heads"):
        ModelShape(width=30, layers=1, heads=4, context=8)
    with pytest.raises(BadInput, match=r"shape.layers = 0"):
        ModelShape(width=32, layers=0, heads=4, context=8)


@pytest.mark.parametrize(
    "wrong",
    [{"width": 32.0}, {"width": 2**20}, {"width": 2 * 10**30}, {"layers": 10**7}, {"heads": None}, {"heads": "2"},
     {"context": 10**6}, {"context": True}, {"vocabulary": 10**9}],
)  # fmt: skip
def test_a_shape_is_of_whole_numbers_that_can_be_built(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=rf"shape.{next(iter(wrong))} = .*: must be a whole number from 1 to \d+"):
        ModelShape(**{"width": 32, "layers": 1, "heads": 2, "context": 8} | wrong)


@pytest.mark.parametrize("shape", [SMALL, SPROUT])
def test_the_layout_is_known_before_the_model_is_built(shape: ModelShape) -> None:
    found = {name: tuple(weight.shape) for name, weight in Transformer(shape, seed=0).state_dict().items()}
    assert layout(shape) == found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_two_models_capture_their_graphs_in_turn() -> None:
    """Torch captures on one stream for all threads; what another one does on it meanwhile spoils both graphs."""

    def sampled(seed: int) -> list[list[Completion]]:
        decoder = Decoder(small(seed), slots=64, device="cuda")
        return [decoder.generate([[1, 2, 3]] * n, Sampling(max_tokens=8), range(n)) for n in (1, 9, 17, 33)]

    alone = [sampled(seed) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            assert list(pool.map(sampled, (0, 1))) == alone
