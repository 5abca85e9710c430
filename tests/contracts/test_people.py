"""Names, addresses and telephone numbers: found as people write them, and not where nobody is meant."""

from __future__ import annotations

import time

import pytest

from holdfast.privacy.detect import find
from holdfast.privacy.people import AMBIGUOUS, FAMILY, GIVEN, NO_NAMES, PLACES, names


def named(text: str) -> list[str]:
    return sorted({text[found.start : found.end] for found in names(text)})


@pytest.mark.parametrize(
    ("text", "who"),
    [
        # by dictionary: a given name alone, or with whatever stands after it
        ("ask Maria about it", ["Maria"]),
        ("Maria Xylander has the file", ["Maria", "Xylander"]),
        ("it was Anna-Lena B. von der Heide.", ["Anna-Lena", "Heide"]),
        ("J. Smith and K. L. Nguyen", ["Nguyen", "Smith"]),
        # names that are words too: only with a family name
        ("Grace Miller will know", ["Grace", "Miller"]),
        ("Mark Johnson", ["Johnson", "Mark"]),
        # by what is said before them
        ("Mrs. Okwuosa called", ["Okwuosa"]),
        ("my name is Thandiwe", ["Thandiwe"]),
        ("my name is zbigniew mbeki.", ["mbeki", "zbigniew"]),
        ("Dear Xiomara,", ["Xiomara"]),
        ("I am Tsering Quispe and", ["Quispe", "Tsering"]),
        ("Kind regards,\nEluned", ["Eluned"]),
        ("Patient: Ngozi de la Haddad", ["Haddad", "Ngozi"]),
    ],
)
def test_a_person_is_found_by_each_word_of_the_name(text: str, who: list[str]) -> None:
    assert named(text) == who


@pytest.mark.parametrize(
    "text",
    [
        "Grace Period, Mark All, May Day, Will You",
        "Dear Customer, Dear Sir or Madam, Dear All",
        "I am Sure, this is Important",
        "Adam and Adagrad are optimisers",
        "class MariaService: def Maria(self)",
        "MariaDB, maria.db, /data/Maria, user@Maria, $Maria",
        "name: Path, named Tuple, called False",
        "The Washington Post wrote in March",
    ],
)
def test_nobody_is_found_where_nobody_is_meant(text: str) -> None:
    assert named(text) == []


def test_the_dictionaries_hold_hundreds_and_no_ordinary_words() -> None:
    assert len(GIVEN) > 400 and len(FAMILY) > 400
    assert not (GIVEN - AMBIGUOUS) & NO_NAMES


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("address", "12 Maple Street"),
        ("address", "1600 Old Mill Rd., Apt 4b, Oak Park, OR 97201"),
        ("address", "221B Baker Street, London NW1 6XE"),
        ("address", "Goethestraße 12a, 60313 Frankfurt"),
        ("address", "Berliner Straße 5"),
        ("address", "14 rue de la Paix, 75002 Paris"),
        ("address", "Calle de Alcalá 48, 28014 Madrid"),
        ("address", "P.O. Box 1207"),
        ("phone", "(415) 555-2671"),
        ("phone", "415-555-2671"),
        ("phone", "030 2345678"),
        ("phone", "0049 151 23456789"),
        ("phone", "06 23 45 67 89"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "it is {}, thanks", '"{}"', "a\n{}\nb"])
def test_where_people_live_and_how_they_are_called(kind: str, text: str, around: str) -> None:
    said = around.format(text)
    assert [(found.kind, said[found.start : found.end]) for found in find(said, PLACES)] == [(kind, text)]


def test_a_number_that_is_called_one_needs_no_form() -> None:
    (found,) = find("phone number: 5552671 and order 5552672", PLACES)
    assert found.kind == "told_phone" and "phone number: 5552671 and"[found.start : found.end] == "5552671"


@pytest.mark.parametrize(
    "text",
    [
        "on 2024-11-15, from 100-200-3000 to 10.0.0.12",
        "version 0.12.1, 1204 lines, 0.5 of 3,898,747",
        "3 Ways to learn, 2 Drive letters, 5 stars",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "the way to the street, 20 rue",
        "phone 12",
    ],
)
def test_numbers_and_words_are_left_alone(text: str) -> None:
    assert not list(find(text, PLACES))


@pytest.mark.parametrize(
    "letters", ["Maria ", "A. ", "Aa ", "Aa-", "1 Aa ", "0 1", "(2", "my name is ", "Mr Aa ", "12 Aa St "]
)
def test_a_long_text_is_read_in_no_time(letters: str) -> None:
    text = letters * (100_000 // len(letters))
    began = time.perf_counter()
    list(names(text)), list(find(text, PLACES))
    assert time.perf_counter() - began < 5.0


@pytest.mark.parametrize(
    "piece",
    [
        "001" + "1" * 44 + "a\n",  # many ways to group the digits, and none that fits
        "name: Aa" + "'Aa" * 17 + ".\n",  # each capital could be read in two ways
        "12 rue de la ",
        "Am Aa Aa ",
    ],
)
def test_a_longer_text_takes_longer_by_as_much(piece: str) -> None:
    def cost(letters: int) -> float:
        text = piece * (letters // len(piece))
        began = time.process_time()
        list(names(text)), list(find(text, PLACES))
        return time.process_time() - began

    few = cost(5_000)
    assert few < 1.0
    assert cost(60_000) < 30 * few + 0.2


@pytest.mark.parametrize("text", ["001415555267", "0049 (0)151 23456789", "0044-20-7946-0958", "0033 1 42 68 53 00"])
def test_a_number_from_abroad_is_found_whole_however_it_is_grouped(text: str) -> None:
    (found,) = find(f"at {text}, please", PLACES)
    assert (found.kind, found.end - found.start) == ("phone", len(text))
    assert not list(find("001 2 3 4 5 6 7 8 9 1 2", PLACES))
