from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.similar import (
    jaccard,
    leaks,
    near_duplicates,
    ngrams,
    normalise,
    numbers,
    text_of,
)
from holdfast.contracts.task import leaked_tasks


def prose(words: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(2000)}" for _ in range(words)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How many birds?", "how   MANY birds"),
        ("“State-of-the-art”, isn’t it!", "state of the art isn t it"),
        ("ﬁve ①", "five 1"),  # NFKC
        ("a\u200bb c", "ab c"),  # invisible
        ("foo - bar", "foo bar"),
    ],
)
def test_case_spaces_punctuation_and_spelling_of_characters_do_not_count(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("3 - 2", "3 + 2"), ("3*2", "3/2"), ("x - y", "x * y"), ("1.5", "15"), ("5 %", "5"), ("a < b", "a > b")],
)
def test_what_is_to_be_computed_does(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_likeness_is_the_overlap_of_three_words_in_a_row() -> None:
    one, other = ngrams("a b c d"), ngrams("a b c e")  # abc bcd, abc bce
    assert jaccard(one, other) == 1 / 3
    assert len(ngrams("two words")) == len(ngrams("")) == 1


def test_a_text_with_one_word_changed_is_a_duplicate_and_one_with_half_of_them_is_not() -> None:
    words = prose(200, 1)
    near, half = [*words[:100], "other", *words[101:]], [*words[:100], *prose(100, 2)]
    assert near_duplicates([" ".join(words), " ".join(near), " ".join(half)]) == [None, 0, None]


def test_every_near_duplicate_among_many_texts_is_found_and_nothing_else() -> None:
    texts = [prose(120, seed) for seed in range(300)]
    near = [[*words[:60], "changed", *words[61:]] for words in texts]  # 118 runs each, 115 shared: 115 / 121
    found = near_duplicates([" ".join(words) for words in texts + near])
    assert found == [None] * 300 + list(range(300))


def test_the_same_text_again_is_a_duplicate_of_the_first() -> None:
    assert near_duplicates(["x", "y", "x", "X!", ""]) == [None, None, 0, 0, None]
    assert near_duplicates([]) == []


def test_only_texts_with_the_same_key_are_compared() -> None:
    texts = ["add 1 and 2", "Add 1 and 2.", "add 1 and 2"]
    assert near_duplicates(texts, keys=["three", "three", "four"]) == [None, 0, None]


def test_instructions_around_every_task_do_not_make_tasks_alike() -> None:
    frame, plants = " ".join(prose(300, 1)), ("oak", "elm", "fir", "yew", "ash", "box", "fig", "bay", "tea")
    texts = [f"{frame} Describe the {plant} in winter." for plant in plants]
    assert near_duplicates(texts) != [None] * 9
    assert near_duplicates([*texts, texts[3]], frame=0.5) == [*[None] * 9, 3]


@given(st.lists(st.text("abc ", max_size=30), max_size=12), st.sampled_from([0.5, 0.9, 1.0]))
def test_the_first_earlier_text_that_is_alike_is_told_exactly(texts: list[str], least: float) -> None:
    found: list[int | None] = []
    for place, text in enumerate(texts):
        heads = [other for other in range(place) if found[other] is None]
        same = (at for at in range(place) if normalise(texts[at]) == normalise(text))
        again = next(((at if found[at] is None else found[at]) for at in same), None)
        alike = (at for at in heads if jaccard(ngrams(normalise(text)), ngrams(normalise(texts[at]))) >= least)
        found.append(next(alike, None) if again is None else again)
    assert near_duplicates(texts, least=least) == found


def test_ten_thousand_texts_of_one_template_take_seconds() -> None:
    rng = random.Random(0)
    texts = [f"please add {rng.randrange(999)} and {rng.randrange(999)} for me now thank you" for _ in range(10_000)]
    began = time.process_time()
    near_duplicates(texts)
    assert time.process_time() - began < 10.0


def test_numbers_and_text_are_read_from_any_value() -> None:
    assert numbers(normalise("Add 17 to x2, then B.")) == ("17", "x2")
    assert text_of({"b": [1, "two"], "a": "x"}) == text_of({"a": "x", "b": [1, "two"]}) == "a: x\nb: 1\ntwo"


HELD = [
    "Anna bought 3 apples and 4 pears at the market on Monday, then gave 2 of the apples to her brother.",
    "How many days lie between the eclipse of 1999 and the one of 2015, leap days included?",
    *(f"Please translate the following sentence into formal French: {word} lives by the sea" for word in "abcdefgh"),
]


@pytest.mark.parametrize(
    "taught",
    [
        "anna bought 3 apples and 4 pears at the market, on Monday; then gave 2 of the apples to her brother!",
        "Anna bought 3 apples and 4 pears at the market on Monday, and gave 2 of the apples to her brother.",
        "user: hello\n" + HELD[0] + "\nassistant: Let us see. She has 5 pieces of fruit left.",
    ],
)
def test_a_copy_is_found_though_a_mark_a_word_or_its_place_was_changed(taught: str) -> None:
    assert leaks(["something else altogether", taught], HELD) == {0: frozenset({1})}


def test_tasks_of_one_template_and_with_other_numbers_are_other_tasks() -> None:
    other = [HELD[0].replace("3", "5"), HELD[4].replace("c lives", "z lives")]
    assert leaks(other, HELD) == {}
    assert leaks(["what is 2 + 2 * 3"], ["what is 2 + 2"]) == {}
    assert leaks([HELD[4].upper()], HELD) == {4: frozenset({0})}


def test_a_leaked_task_asks_the_same_of_the_same() -> None:
    text = " ".join(f"word{n} and some more of it" for n in range(40))
    held = [{"question": "Who wrote it, and when did they?", "document": text, "expected": "Ann"}]
    same = {**held[0], "question": "who wrote it and when did they"}
    another = {**held[0], "question": "Who paid for it?"}
    assert leaked_tasks([another, same], held) == {0: frozenset({1})}
    assert leaked_tasks([another, {**same, "document": "quite another one"}], held) == {} == leaked_tasks([], held)
