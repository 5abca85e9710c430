"""Who sits where, and whose beginning is shared: no slot is given away while somebody needs it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policies.slots import GRAIN, SlotPlan, Slots


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
