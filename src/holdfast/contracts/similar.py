"""Texts that say the same: what they have in common after normalisation, counted in runs of three words.

Nothing is drawn and nothing is approximate: of two texts that overlap by a share t, one of the rarest few runs of one
is among the rarest few of the other (prefix filter; Chaudhuri et al. 2006), so most pairs are never compared. What
follows from a match is decided by the caller: duplicates of held-out tasks, leaks of training data, twins in a batch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from typing import Any
from unicodedata import category, normalize

WORDS = 3  # in a run
LEAST = 0.9  # overlap from which two texts count as the same
LEAST_TEXTS = 8  # different ones, before what most of them share counts as a frame around them

Runs = frozenset[int]  # hashes, of one process

_WORD = re.compile(r"[^\W_]+|[^\w\s]")
# Beside a word these are punctuation; beside numbers, single letters and brackets they are what is to be computed.
_OPERATOR = re.compile(r"(?<![^\W\d_]{2})(?<![^\W\d_]{2} )([-*/%])(?! ?[^\W\d_]{2})")
_HELD = str.maketrans("-*/%", "\u2212\u00d7\u00f7\u2052")  # of the category of symbols
_DIGIT = re.compile(r"\d")


def visible(text: str) -> str:
    """The text as a reader sees it: one form of each letter (NFKC), and no letters of no width."""
    if text.isascii():
        return text
    return "".join(letter for letter in normalize("NFKC", text) if category(letter) != "Cf")


def normalise(text: str) -> str:
    """The words and symbols of a text: NFKC, without case, invisible characters, punctuation and extra spaces."""
    shown = text if text.isascii() else normalize("NFKC", visible(text).casefold())
    shown = _OPERATOR.sub(lambda match: match[1].translate(_HELD), " ".join(shown.casefold().split()))
    return " ".join(word for word in _WORD.findall(shown) if word[0].isalnum() or category(word)[0] in "SM")


def text_of(value: Any) -> str:
    """Any JSON value as text: its words with the names of its keys, whatever the order of the keys."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {text_of(value[key])}" for key in sorted(value, key=str))
    if isinstance(value, list | tuple):
        return "\n".join(map(text_of, value))
    return str(value)


def numbers(text: str) -> tuple[str, ...]:
    """The words of a normalised text with a digit, in order: tasks of one template often differ in nothing else."""
    return tuple(word for word in text.split() if _DIGIT.search(word))


def ngrams(text: str) -> Runs:
    """The runs of three words of a normalised text; a shorter text is one run."""
    words = text.split()
    return frozenset(hash(" ".join(words[at : at + WORDS])) for at in range(max(1, len(words) - WORDS + 1)))


def jaccard(one: Runs, other: Runs) -> float:
    """|A ∩ B| / |A ∪ B|."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def near_duplicates(
    texts: Sequence[str],
    *,
    least: float = LEAST,
    keys: Sequence[Hashable] | None = None,
    frame: float | None = None,
) -> list[int | None]:
    """For each text the place of the first earlier one, itself no duplicate, that it overlaps by at least `least`.

    `keys`: only texts with the same key are compared. `frame`: runs in more than this share of the different texts are
    left aside, such as instructions that stand around every task, unless a text has nothing else."""
    plain = [normalise(text) for text in texts]
    keys = [None] * len(texts) if keys is None else keys
    runs = {text: ngrams(text) for text in dict.fromkeys(plain)}
    counts = Counter(chain.from_iterable(runs.values()))
    if frame is not None and len(runs) >= LEAST_TEXTS:
        around = {run for run, count in counts.items() if count > frame * len(runs)}
        runs = {text: some - around or some for text, some in runs.items()}
    seen: dict[tuple[Hashable, str], int] = {}
    known: dict[tuple[Hashable, int], list[int]] = defaultdict(list)  # a rare run → those that have it
    found: list[int | None] = []
    for place, (text, key) in enumerate(zip(plain, keys, strict=True)):
        if (key, text) in seen:
            found.append(seen[key, text])
            continue
        mine = runs[text]
        rare = sorted(mine, key=lambda run: (counts[run], run))[: len(mine) - ceil(least * len(mine)) + 1]
        near = sorted({other for run in rare for other in known[key, run]})
        first = next((other for other in near if jaccard(mine, runs[plain[other]]) >= least), None)
        found.append(first)
        seen[key, text] = place if first is None else first
        if first is None:
            for run in rare:
                known[key, run].append(place)
    return found


LONG = 8  # runs: a shorter text inside another one is no copy of it
SAME = 0.7  # of the runs of a held-out text, those that a copy has: a changed word takes three
RARE, RARE_SHARE = 4, 0.01  # a run in more texts than that, or in more than that share, stands around many tasks
FEWEST = 3  # rare runs that a text can be told by


def leaks(taught: Sequence[str], held_out: Sequence[str]) -> dict[int, frozenset[int]]:
    """The held-out texts that were taught, each with the places of the texts that say the same: a copy but for case,
    punctuation and a few words, or a longer text that holds it. Texts whose numbers differ are different tasks, and so
    are those that share no more than the frame of their template."""
    learnt, kept = [normalise(text) for text in taught], [normalise(text) for text in held_out]
    runs = {text: ngrams(text) for text in (*learnt, *kept)}
    counts = Counter(chain.from_iterable(runs.values()))
    most = max(RARE, RARE_SHARE * len(runs))
    rare = {text: frozenset(run for run in runs[text] if counts[run] <= most) for text in set(kept)}
    index: dict[int, list[str]] = defaultdict(list)
    for text, some in rare.items():
        for run in some if len(some) >= FEWEST else ():
            index[run].append(text)
    found: dict[str, set[int]] = defaultdict(set)
    for at, text in enumerate(learnt):
        if text and text in rare:
            found[text].add(at)
        shared = Counter(other for run in runs[text] for other in index.get(run, ()))
        for other, count in shared.items():
            if count >= SAME * len(rare[other]) and _says(runs[text], runs[other], text, other):
                found[other].add(at)
    return {place: frozenset(found[text]) for place, text in enumerate(kept) if text in found}


def _says(mine: Runs, other: Runs, text: str, held_out: str) -> bool:
    """Whether one text says what the held-out one does: as long as it, or a longer one around a long enough one."""
    if len(mine & other) < SAME * len(other):
        return False
    own, theirs = Counter(numbers(text)), Counter(numbers(held_out))
    is_alike = len(mine) <= len(other) / SAME + FEWEST
    return own == theirs if is_alike else len(other) >= LONG and theirs <= own


@dataclass(frozen=True, slots=True)
class _Said:
    """What a text says, and what of that does not stand around most texts of its collection."""

    name: str
    runs: Runs
    own: Runs
    numbers: Counter[str]
    own_numbers: Counter[str]


def restated(known: Iterable[Sequence[tuple[str, str]]], texts: Sequence[str]) -> list[str | None]:
    """For each text the name of the first known one that says the same: one of the two holds seven tenths of the
    other's runs, and its numbers. All texts are normalised; `known` are collections of names and texts, and a name may
    have several. What stands around most texts of a collection is no part of them, so that an instruction that is put
    before all of them changes none. A run that several names have tells none of them from the others; how often one
    name says it makes no difference."""
    new, around = _said([("", text) for text in texts])
    old = list({(one.name, one.runs): one for some in known for one in _said(some)[0]}.values())
    by_name: dict[str, set[int]] = defaultdict(set)
    for one in old:
        by_name[one.name] |= one.runs
    counts = Counter(chain.from_iterable(by_name.values()))
    most = max(RARE, RARE_SHARE * len(by_name))
    index: dict[int, list[int]] = defaultdict(list)
    for place, text in enumerate(new):
        for run in text.own:
            if 0 < counts[run] <= most:
                index[run].append(place)
    found: list[str | None] = [None] * len(new)
    for one in (replace(one, own=one.own - around) for one in old):
        for place in {place for run in one.runs for place in index.get(run, ())}:
            if found[place] is None and any(
                _holds(a, b, counts, most) for a, b in ((new[place], one), (one, new[place]))
            ):
                found[place] = one.name
    return found


def _said(named: Sequence[tuple[str, str]]) -> tuple[list[_Said], Runs]:
    """What the texts of a collection say, and the runs that more than half of them share."""
    runs, told = [ngrams(text) for _, text in named], [Counter(numbers(text)) for _, text in named]
    half = len(named) / 2 if len({text for _, text in named}) >= LEAST_TEXTS else len(named)
    around = frozenset(run for run, count in Counter(chain.from_iterable(runs)).items() if count > half)
    times = Counter((word, n) for one in told for word, count in one.items() for n in range(count))
    shared = Counter(word for (word, _), count in times.items() if count > half)
    rows = zip(named, runs, told, strict=True)
    return [_Said(name, some, some - around, own, own - shared) for (name, _), some, own in rows], around


def _holds(one: _Said, other: _Said, counts: Mapping[int, int], most: float) -> bool:
    """Whether the first says what is the other's own. A short text is only held by one that is hardly longer."""
    rare = frozenset(run for run in other.own if counts[run] <= most)
    if len(rare) < FEWEST or any(len(some & one.runs) < SAME * len(some) for some in (rare, other.own)):
        return False
    if len(other.own) >= LONG:
        return other.own_numbers <= one.numbers
    return len(one.own) <= len(other.own) / SAME + FEWEST and one.own_numbers == other.own_numbers
