"""The wordings of the questions, a set of its own for each split, and the words they are filled with.

No wording is shared between splits: what a model learnt on one set has to carry over to word orders it never saw.
"""

from __future__ import annotations

from collections.abc import Mapping

TRAIN: Mapping[str, tuple[str, ...]] = {
    "calc": (
        "What is {x}?",
        "Compute {x}.",
        "{x} = ?",
        "Work out {x}.",
        "Please calculate {x}.",
        "How much is {x}?",
        "I need the value of {x}.",
        "Tell me {x}.",
    ),
    "lookup": (
        "What is the {a} of {i}?",
        "Look up the {a} of {i}.",
        "Tell me the {a} of {i}.",
        "{i}: what is the {a}?",
        "Please find the {a} of {i}.",
        "Which {a} has {i}?",
        "I want to know {i}'s {a}.",
    ),
    "convert": (
        "Convert {v} {f} to {t}.",
        "What is {v} {f} in {t}?",
        "How many {t} are {v} {f}?",
        "{v} {f} = ? {t}",
        "Change {v} {f} into {t}.",
        "Please give {v} {f} in {t}.",
        "I have {v} {f}; how many {t}?",
    ),
    "weekday": (
        "What weekday is {d}?",
        "Which day of the week is {d}?",
        "{d}: which weekday?",
        "Tell me the weekday of {d}.",
        "Please find the weekday of {d}.",
    ),
    "add": (
        "What date is {n} days after {d}?",
        "Add {n} days to {d}.",
        "{d} plus {n} days?",
        "Tell me the date {n} days after {d}.",
        "Which date comes {n} days after {d}?",
    ),
    "between": (
        "How many days from {d} to {e}?",
        "Count the days between {d} and {e}.",
        "{d} to {e}: how many days?",
        "Tell me the days from {d} to {e}.",
        "How many days are between {d} and {e}?",
    ),
    "lookup_calc": (
        "What is the {a} of {i} {o} {n}?",
        "Compute the {a} of {i} {o} {n}.",
        "Take the {a} of {i} {o} {n}.",
        "{i}: what is the {a} {o} {n}?",
        "Look up the {a} of {i}; what is it {o} {n}?",
        "Tell me {i}'s {a} {o} {n}.",
    ),
    "lookup_convert": (
        "What is the {a} of {i} in {t}?",
        "Tell me the {a} of {i} in {t}.",
        "How many {t} is the {a} of {i}?",
        "{i}: what is the {a} in {t}?",
        "Look up the {a} of {i}; give it in {t}.",
        "Convert {i}'s {a} to {t}.",
    ),
    "lookup_weekday": (
        "What weekday is the {a} of {i}?",
        "Tell me the weekday of the {a} of {i}.",
        "{i}: which weekday is the {a}?",
        "Look up the {a} of {i}; which weekday is it?",
        "Which day of the week is {i}'s {a}?",
    ),
    "lookup_lookup_calc": (
        "What is the {a} of {i} {o} the {a} of {j}?",
        "Compute the {a} of {i} {o} the {a} of {j}.",
        "Tell me {i}'s {a} {o} {j}'s {a}.",
        "Look up the {a} of {i}; what is it {o} the {a} of {j}?",
    ),
    "lookup_convert_calc": (
        "What is the {a} of {i} in {t} {o} {n}?",
        "Compute the {a} of {i} in {t} {o} {n}.",
        "Convert {i}'s {a} to {t}; what is it {o} {n}?",
        "Take the {a} of {i} in {t} {o} {n}.",
    ),
    "lookup_add_weekday": (
        "What weekday is {n} days after the {a} of {i}?",
        "Which day of the week is {n} days after {i}'s {a}?",
        "Tell me the weekday {n} days after the {a} of {i}.",
        "Take the {a} of {i} plus {n} days; which weekday is it?",
    ),
    "trivial": ("What is {x}?", "Compute {x}.", "{x} = ?", "Tell me {x}.", "How much is {x}?", "Please calculate {x}."),
    "repeat": ("Repeat the word {w}.", "Say {w}.", "Please write {w}.", "Write the word {w}.", "Tell me the word {w}."),
    "first": (
        "Which word is first: {w} {z}?",
        "Say the first word of {w} {z}.",
        "Tell me the first of {w} and {z}.",
        "{w} {z}: which is first?",
    ),
}

VAL: Mapping[str, tuple[str, ...]] = {
    "calc": ("Find {x}.", "What do I get for {x}?", "Please tell me the value of {x}."),
    "lookup": ("Find {i}'s {a}.", "What {a} has {i}?", "I need the {a} of {i}, please."),
    "convert": ("How much is {v} {f} in {t}?", "{v} {f} to {t}, please.", "Please change {v} {f} to {t}."),
    "weekday": ("{d} is which weekday?", "Find the day of the week of {d}."),
    "add": ("Which date is {d} plus {n} days?", "Find the date {n} days after {d}."),
    "between": ("Find the days from {d} to {e}.", "From {d} to {e}, how many days?"),
    "lookup_calc": ("How much is the {a} of {i} {o} {n}?", "Find {i}'s {a} {o} {n}."),
    "lookup_convert": ("Find the {a} of {i} in {t}.", "What is {i}'s {a} in {t}?"),
    "lookup_weekday": ("Find the weekday of the {a} of {i}.", "What weekday is {i}'s {a}?"),
    "lookup_lookup_calc": ("How much is {i}'s {a} {o} the {a} of {j}?", "Find the {a} of {i} {o} the {a} of {j}."),
    "lookup_convert_calc": ("Find the {a} of {i} in {t} {o} {n}.", "How much is {i}'s {a} in {t} {o} {n}?"),
    "lookup_add_weekday": (
        "Find the weekday {n} days after {i}'s {a}.",
        "{n} days after the {a} of {i}: which weekday?",
    ),
    "trivial": ("Find {x}.", "What do I get for {x}?"),
    "repeat": ("Please repeat {w}.", "Say the word {w}."),
    "first": ("Tell me which is first: {w} {z}.", "Write the first word of {w} {z}."),
}

TEST: Mapping[str, tuple[str, ...]] = {
    "calc": ("{x} is how much?", "Please work out {x}.", "I want to know {x}.", "The value of {x} is?"),
    "lookup": (
        "The {a} of {i} is what?",
        "I need {i}'s {a}.",
        "Please tell me which {a} {i} has.",
        "For {i}, look up the {a}.",
    ),
    "convert": (
        "In {t}, what is {v} {f}?",
        "{v} {f} is how many {t}?",
        "I want {v} {f} in {t}.",
        "Take {v} {f}; convert it to {t}.",
    ),
    "weekday": ("Which weekday is it on {d}?", "The weekday of {d} is?", "I need the day of the week of {d}."),
    "add": ("{n} days after {d} is which date?", "Take {d}; add {n} days.", "I need the date {n} days after {d}."),
    "between": (
        "Between {d} and {e}, how many days?",
        "I need the days between {d} and {e}.",
        "How many days is it from {d} to {e}?",
    ),
    "lookup_calc": (
        "Look up {i}'s {a} and compute it {o} {n}.",
        "The {a} of {i} {o} {n} is how much?",
        "I need the {a} of {i} {o} {n}.",
    ),
    "lookup_convert": (
        "In {t}, what is the {a} of {i}?",
        "I need {i}'s {a} in {t}.",
        "Look up {i}'s {a} and convert it to {t}.",
    ),
    "lookup_weekday": (
        "The {a} of {i} is on which weekday?",
        "I need the weekday of {i}'s {a}.",
        "For {i}, which day of the week is the {a}?",
    ),
    "lookup_lookup_calc": (
        "The {a} of {i} {o} the {a} of {j} is how much?",
        "I need {i}'s {a} {o} {j}'s {a}.",
        "Take the {a} of {i} {o} the {a} of {j}.",
    ),
    "lookup_convert_calc": (
        "Take {i}'s {a} in {t}; what is it {o} {n}?",
        "I need the {a} of {i} in {t} {o} {n}.",
    ),
    "lookup_add_weekday": (
        "Take {i}'s {a}, add {n} days; which weekday is it?",
        "I need the weekday {n} days after the {a} of {i}.",
    ),
    "trivial": ("{x} is how much?", "Please work out {x}.", "I want to know {x}."),
    "repeat": ("The word is {w}. Repeat it.", "I want you to say {w}."),
    "first": ("Of {w} and {z}, which is first?", "Please say the first word: {w} {z}."),
}

TEMPLATES: Mapping[str, Mapping[str, tuple[str, ...]]] = {"train": TRAIN, "val": VAL, "test": TEST}

OPERATIONS = {"plus": "+", "minus": "-", "times": "*"}
_ITEMS = """
    oak elm ash fir pine maple birch cedar lamp desk chair table shelf boat truck wheel engine cable robot camera clock
    radio guitar violin apple melon bread sugar honey coffee tea salt iron copper tin brick stone glass paper alpha beta
    gamma delta omega north river lake hill garden
"""
_COLORS = "red blue green black white gray brown pink gold silver teal olive amber ivory navy coral"
_OWNERS = "Ada Ben Cleo Dan Eva Finn Gus Hana Ida Jon Kim Leo Mia Nora Otto Pia Raj Sam Tia Uma Vic Zoe"
_CITIES = "Oslo Rome Lima Cairo Paris Tokyo Quito Bonn Kyiv Riga Bern Delhi Perth Lagos Porto Turin"
ITEMS, COLORS, OWNERS, CITIES = (tuple(words.split()) for words in (_ITEMS, _COLORS, _OWNERS, _CITIES))
OPENINGS = tuple(f"{c}{v}" for c in "bdfgklmnprstvz" for v in "aeiou")  # two or three of these make a word nobody saw
CLOSINGS = ("", "n", "r", "s", "l", "x")
COUNTED = ("price", "stock", "size", "age", "score", "rank")  # a bare number
NAMED = ("color", "owner", "code", "city")
MEASURED = {"weight": ("mass", "weight"), "length": ("length", "cloth"), "time": ("time",), "volume": ("volume",)}
DATED = ("deadline", "launch", "start", "end")
