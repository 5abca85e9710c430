from __future__ import annotations

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.learn.quality import likeness, shingles, twins

QUICK = settings(max_examples=100, deadline=None, derandomize=True)


def prose(words: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(2000)}" for _ in range(words)]


def test_likeness_is_the_overlap_of_three_words_in_a_row() -> None:
    one, other = shingles("a b c d"), shingles("a b c e")  # abc bcd, abc bce
    assert likeness(one, other) == 1 / 3
    assert likeness(one, shingles("A  b\nC d")) == 1.0
    assert len(shingles("two words")) == len(shingles("")) == 1


def test_a_text_with_one_word_changed_is_a_twin_and_one_with_half_of_them_is_not() -> None:
    words = prose(200, 1)
    near, half = [*words[:100], "other", *words[101:]], [*words[:100], *prose(100, 2)]
    assert twins([" ".join(words), " ".join(near), " ".join(half)]) == [None, 0, None]


def test_every_near_duplicate_among_many_texts_is_found_and_nothing_else() -> None:
    texts = [prose(120, seed) for seed in range(300)]
    near = [[*words[:60], "changed", *words[61:]] for words in texts]  # 118 runs each, 115 shared: 115 / 121
    found = twins([" ".join(words) for words in texts + near])
    assert found == [None] * 300 + list(range(300))


def test_the_same_text_again_is_a_twin_of_the_first() -> None:
    assert twins(["x", "y", "x", "x", ""]) == [None, None, 0, 0, None]
    assert twins([]) == []


@QUICK
@given(st.lists(st.text("abc ", max_size=30), max_size=12), st.sampled_from([0.5, 0.9, 1.0]))
def test_what_is_told_is_an_earlier_text_that_is_as_alike_as_asked(texts: list[str], least: float) -> None:
    for place, twin in enumerate(twins(texts, least=least)):
        if twin is not None:
            assert twin < place
            assert likeness(shingles(texts[place]), shingles(texts[twin])) >= least or texts[place] in texts[:place]


def test_thousands_of_texts_of_one_template_take_seconds() -> None:
    rng = random.Random(0)
    texts = [f"please add {rng.randrange(999)} and {rng.randrange(999)} for me now thank you" for _ in range(3000)]
    began = time.process_time()
    twins(texts)
    assert time.process_time() - began < 10.0
