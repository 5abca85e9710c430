"""How questions are worded: a grammar for the train split, and a few hand-written wordings for each of the others.

A train wording is a frame around a noun phrase, so that there are hundreds for each form. What a model is measured on
is kept apart by construction: no train wording holds a phrase of `HELD_OUT`, and none says the same words as one of
the val or the test split, with or without courtesy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, product
from random import Random
from typing import TypeVar

T = TypeVar("T")


def pick(chance: Random, options: Sequence[T]) -> T:
    return options[int(chance.random() * len(options))]


def several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for line in text.strip().splitlines() for part in line.strip().split("|"))


# Frames of the test split. What is made by the grammar never has one.
HELD_OUT = (
    "i need", "is how much", "is how many", "is what", "is which", "is on which", "is it on", "is it from", "i want {",
    "the word is", "i want you", "of {w} and", "for {i},", "in {t}, what", "in {t}, how", "between {d} and {e}, how",
    "and compute it", "and convert it", "; convert it", "; add {n}", ", add {n}", "which {a} {i} has", "} is?",
    "first word:",
)  # fmt: skip

ASK = several("""
    What is {}?|What's {}?|Tell me {}.|Give me {}.|Show me {}.|Get {}.|Find out {}.|Do you know {}?|Can you tell me {}?
    Could you give me {}?|Would you tell me {}?|Please give me {}.|Please show {}.|I would like to know {}.|I'd like {}.
    I wonder what {} is.|I am looking for {}.|We are asked for {}.|My question is {}.|Let me know {}.|Let me have {}.
    {}?|{}, please.|{}: what is it?|{} = ?|Report {}.|State {}.|Return {}.|Write down {}.|Kindly tell me {}.
    Determine {}.|Figure out {}.|Check {}.|Check {} and tell me.|Answer this: what is {}?|Someone asks what {} is.
    What would {} be?|What might {} be?|Help me with {}.|Our customer asks for {}.|The question is: {}?|Next: {}.
    Next question: what is {}?|What about {}?|And {}?|Output {}.|Fetch {}.|Read me {}.|Let us see {}.|Hand me {}.
    Provide {}.|Quick: {}?|Can I have {}?|May I ask for {}?|Are you able to give {}?|Ask the system for {}.
    Try to get {}.|Please look: {}?|It is about {}.|Everyone wants to know {}.|Today's question: {}.|See what {} is.
    I have to know {}.|I must report {}.|Do tell me {}.|Work on this: {}.|One more thing: {}?|Just {}.|Only {}, please.
    Would {} be known?|Somebody needs {}.|You should know {}.|Explain what {} is.|Make it short: {}?|Now {}.
    Look for {}.|Retrieve {}.|Inform me of {}.|Say what {} is.|Spell out {}.|Is there {}? Which?|Grab {}.|Send me {}.
""")
RECKON = several("""
    Work out {}.|Compute {}.|Calculate {}.|How much is {}?|Evaluate {}.|Solve {}.|How much does {} make?
    What does {} come to?|What do we get from {}?|What comes out of {}?|Please calculate {}.|How much would {} be?
    Count up {}.|Reckon {}.|What number is {}?|Run the numbers: {}.|Do the calculation {}.|{} makes how much?
    {} gives what?|{} equals?|What does {} equal?|Can you compute {}?|Could you work {} out?|Let's calculate {}.
    Estimate nothing, compute {}.|Give the result of {}.|What is the result of {}?|What total do you get for {}?
    Get me the number for {}.|Figure {} out.|Add this up or whatever it takes: {}.
""")
BEFORE = several("""
    Hi.|Hello!|Good morning.|Hey,|Okay,|So,|Well,|Quick question:|A question:|For my report:|My boss asks:|Now then.
    One thing.|Dear assistant,|Listen:|Excuse me.|Sorry to ask.|Again:|For the shop:|Urgent!|By the way,|Last one:
    It is for a friend.|For the meeting:|Question 4:|- |> |Please:|Hm,|Right,|From the mail:|Customer:|Task:
""")
AFTER = several("""
    Thanks.|Thank you!|Please.|Cheers.|That is all.|It is important.|Be exact.|I am waiting.|Take care.|Bye.|No rush.
    It is for work.|Many thanks in advance.|If you can.|OK?|Got it?|You know how.|:)|!|I asked before.|Go.
""")


RECORD = ("the {a} of {i}", "{i}'s {a}", "the {a} for {i}", "the {a} that {i} has", "the recorded {a} of {i}",
    "the {a} listed for {i}", "the {a} we have for {i}", "the {a} on file for {i}", "the known {a} of {i}",
    "the {a} belonging to {i}", "{a} of {i}")  # fmt: skip
FEW = RECORD[:5]
ITEM = {name: f"{{{item}}}" for name, item in zip("LMNOP", "ijklm", strict=True)}


def nested(*shapes: str, records: Sequence[str] = FEW) -> tuple[str, ...]:
    """Shapes with L, M, N, O, P for the same phrase about the items i, j, k, l, m."""
    names = re.compile(r"\b[LMNOP]\b")
    parts = [(names.split(shape), names.findall(shape)) for shape in shapes]
    return tuple(
        "".join(chain(*zip(between, [*(record.replace("{i}", ITEM[name]) for name in named), ""], strict=True)))
        for record in records
        for between, named in parts
    )


UNIT_FIRST = several("""
    As {t}: {}?|To {t}, please: {}.|Expressed in {t}, what is {}?|Measured in {t}, how much is {}?|Using {t}, give {}.
    The unit is {t}: {}?|With {t} as the unit, how much is {}?|How much in {t} is {}?|{t}: {}?|Give {t} for {}.
    Unit {t}. What is {}?|I think in {t}; what is {}?|Counting in {t}, tell me {}.|Wanted in {t}: {}.
    On the {t} scale, {}?
""")
ITEM_FIRST = several("""
    Concerning {i}, {}?|About {i}: {}?|With {i}, {}?|As to {i}, {}?|Take {i}; {}?|Regarding {i}: {}?
    Speaking of {i}, {}?
""")


def framed(frames: Sequence[str], *phrases: str) -> tuple[str, ...]:
    return tuple(frame.replace("{}", phrase) for frame in frames for phrase in phrases)


# Form: (its noun phrases, which frames fit, wordings of its own)
GRAMMAR: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str]]] = {
    "calc": (("{x}", "the value of {x}", "the result of {x}", "the answer to {x}", "the outcome of {x}"),
        (ASK, RECKON), ("What is {x}?", "I need the value of {x}.", "{x} = ?", "If I take {x}, what do I have?")),
    "lookup": (RECORD, (ASK,), several("""
        {i}: {a}?|{i}, {a}?|{a}, {i}?|What {a} does {i} have?|Which {a} does {i} have?|Which {a} belongs to {i}?
        Tell me what {a} {i} has.|About {i}: what is its {a}?|{i} has what {a}?|With {i}, what is the {a}?
        Take {i}. What is its {a}?|As to {i}, give the {a}.|Regarding {i}, tell me its {a}.|{i} and its {a}?
        Look at {i} and tell me its {a}.|I am asking about {i}: its {a}?|Look {i} up and give me the {a}.
        Search for {i}; report its {a}.|{i}: what is the {a}?|Which {a} has {i}?|I want to know {i}'s {a}.
        Look up the {a} of {i}.|Look up {i}'s {a}.|Please find the {a} of {i}.|{i} -> {a}|{a}({i})|{i}.{a}?
        There is {i}; its {a}?|We sell {i}. Its {a}?|On {i}: say the {a}.|How about {i} and the {a}?|{a} ({i})?
        Does {i} have a {a}? Which one?|Open the record of {i} and read the {a}.|My {i} has some {a}; which?""")),
    "convert": (("{v} {f} in {t}", "{v} {f} as {t}", "{v} {f} expressed in {t}", "{v} {f} converted to {t}",
        "the {t} value of {v} {f}", "the number of {t} in {v} {f}", "{v} {f} measured in {t}", "{v} {f} into {t}"),
        (ASK,), several("""
        Convert {v} {f} to {t}.|How many {t} are {v} {f}?|{v} {f} = ? {t}|Change {v} {f} into {t}.
        I have {v} {f}; how many {t}?|How many {t} do {v} {f} make?|How many {t} are there in {v} {f}?
        {v} {f} makes how many {t}?|Turn {v} {f} into {t}.|Express {v} {f} in {t}.|Write {v} {f} in {t}.
        Translate {v} {f} to {t}.|From {f} to {t}: {v}.|{v} {f}, but in {t}.|{v} {f} -> {t}|{v} {f} to {t}?
        If it is {v} {f}, how many {t} does that make?|We have {v} {f}. How many {t}?|There are {v} {f}; say it in {t}.
        Recalculate {v} {f} as {t}.|Convert to {t}: {v} {f}.|How many {t} fit into {v} {f}?|{v} {f} ({t}?)
        Please turn {v} {f} to {t}.|My list says {v} {f}; give me {t}.|{t} please: {v} {f}.|How do {v} {f} read in {t}?
        Could you convert {v} {f} to {t}?|Say {v} {f} in {t}.|Make {t} out of {v} {f}.""")
        + framed(UNIT_FIRST, "{v} {f}")),
    "weekday": (("the weekday of {d}", "the day of the week of {d}", "the weekday on {d}", "the weekday for {d}",
        "which weekday {d} is", "which day of the week {d} falls on", "the weekday that {d} falls on"),
        (ASK,), several("""
        What weekday is {d}?|Which day of the week is {d}?|{d}: which weekday?|What day is {d}?
        {d} falls on which weekday?|On which weekday does {d} fall?|What day of the week was {d}?|{d}, weekday?
        What weekday will {d} be?|Name the weekday: {d}.|Weekday of {d}?|Which day did we have on {d}?
        We meet {d}. Which weekday?|Monday, Tuesday or what on {d}?|What kind of day is {d} in the week?""")),
    "add": (("the date {n} days after {d}", "the date {n} days past {d}", "{d} plus {n} days", "{n} days after {d}",
        "the day {n} days after {d}", "the date that comes {n} days after {d}", "the date {n} days from {d}"),
        (ASK,), several("""
        What date is {n} days after {d}?|Add {n} days to {d}.|{d} plus {n} days?|Which date comes {n} days after {d}?
        Which date do I get {n} days after {d}?|Go {n} days on from {d}.|Start at {d} and go {n} days on; which date?
        Count {n} days from {d}.|Move {d} forward by {n} days.|From {d}, {n} days on: which date?
        What date follows {d} by {n} days?|When is {n} days after {d}?|{d} + {n} days = ?|{n} days past {d}: the date?
        It begins {d} and takes {n} days; when does it end?|Wait {n} days from {d}: which date?""")),
    "between": (("the number of days from {d} to {e}", "the days from {d} until {e}", "the days between {d} and {e}",
        "the time from {d} to {e} in days", "the number of days between {d} and {e}",
        "the distance in days from {d} to {e}"), (ASK,), several("""
        How many days from {d} to {e}?|Count the days between {d} and {e}.|{d} to {e}: how many days?
        How many days are between {d} and {e}?|How many days lie between {d} and {e}?|Days {d} to {e}?
        How many days pass from {d} to {e}?|How long from {d} to {e}, in days?|Starting {d}, how many days to {e}?
        How many days until {e} if today is {d}?|{e} minus {d} in days?|We go {d} and return {e}; how many days?
        Begin {d}, end {e}: days?""")),
    "lookup_calc": (nested("L {o} {n}", "L, {o} {n}"), (ASK, RECKON), nested("Take L {o} {n}.",
        "{i}: what is the {a} {o} {n}?", "Look up L; what is it {o} {n}?", "Start from L; what is it {o} {n}?",
        "If you take L {o} {n}, what comes out?", "First get L, then compute that {o} {n}.",
        "Get L. What is that {o} {n}?", "With {i}, the {a} {o} {n}?", "L. {o} {n}. How much?",
        "Open {i}: its {a} {o} {n}?")
        + framed(ITEM_FIRST, "what is the {a} {o} {n}", "how much is the {a} {o} {n}")),
    "lookup_convert": (nested("L in {t}", "L as {t}", "L expressed in {t}", "L converted to {t}", "L measured in {t}"),
        (ASK,), nested("How many {t} does L make?", "Express L in {t}.", "Turn L into {t}.", "Convert L to {t}.",
        "Get L, then convert to {t}.", "Find L; what is that in {t}?", "How many {t} make L?", "L: in {t}, please.",
        "{i}: what is the {a} in {t}?", "Look up L; give it in {t}.", "How many {t} would L be?",
        "With {i}, the {a} in {t}?")
        + framed(UNIT_FIRST, *nested("L")) + framed(ITEM_FIRST, "what is the {a} in {t}", "the {a} as {t}")),
    "lookup_weekday": (nested("the weekday of L", "the day of the week of L", "the weekday on which L falls",
        "the weekday for L"), (ASK,), nested("What weekday is L?", "On which weekday is L?", "L: which weekday?",
        "Which weekday does L fall on?", "L: what day of the week?", "What day of the week is L?", "Weekday of L?",
        "Get L and tell me its weekday.", "{i}: which weekday is the {a}?", "Look up L; which weekday is it?",
        "Find L, then its weekday.", "Which day do we have on L?")
        + framed(ITEM_FIRST, "on which weekday is the {a}", "what weekday is the {a}", "the weekday of its {a}")),
    "lookup_lookup_calc": (nested("L {o} M"), (ASK, RECKON), nested("Take L; what is it {o} M?",
        "Look up L; what is it {o} M?", "Get L and M; what is the first {o} the second?", "L, then {o} M: how much?",
        "If I have L {o} M, what comes out?", "{i} {o} {j}, by their {a}?", "Of {i} {o} {j}, what is the {a}?")),
    "lookup_convert_calc": (nested("L in {t} {o} {n}", "L in {t}, {o} {n}", "L converted to {t} {o} {n}",
        "L as {t} {o} {n}"), (ASK, RECKON), nested("Convert L to {t}; what is it {o} {n}?",
        "Express L in {t}, then {o} {n}: how much?", "First L in {t}, then that {o} {n}.",
        "Turn L into {t}. What is that {o} {n}?")
        + framed(UNIT_FIRST, *nested("L {o} {n}", "L and that {o} {n}"))),
    "lookup_add_weekday": (nested("the weekday {n} days after L", "the day of the week {n} days after L",
        "the weekday of L plus {n} days", "the weekday {n} days past L"), (ASK,), nested(
        "What weekday is {n} days after L?", "Which day of the week is {n} days after L?",
        "Take L plus {n} days; which weekday is it?", "Get L, go {n} days on: which weekday?",
        "Go {n} days on from L; what day of the week?", "On which weekday is L plus {n} days?")
        + framed(ITEM_FIRST, "what weekday is {n} days after the {a}", "the weekday of its {a} plus {n} days")),
    "lookup_lookup_lookup_calc": (nested("L {o} M {p} N"), (ASK, RECKON), nested("Take L {o} M {p} N.",
        "Get L, M and N; what is the first {o} the second {p} the third?", "L, then {o} M, then {p} N: how much?")),
    "lookup_lookup_add_weekday": (nested("the weekday of L plus {j}'s {b} in days",
        "the weekday as many days after L as the {b} of {j}", "the weekday of L plus as many days as {j}'s {b}"),
        (ASK,), nested("What weekday is L plus as many days as the {b} of {j}?",
        "Take L, go on by {j}'s {b} in days; which weekday is it?",
        "L plus the {b} of {j} in days: which weekday?")),
    "lookup_lookup_lookup_lookup_calc": (nested("L {o} M {p} N {q} O", records=RECORD[:3]), (ASK, RECKON), nested(
        "Take L {o} M {p} N {q} O.", "L, then {o} M, then {p} N, then {q} O: how much?", records=RECORD[:3])),
    "lookup_convert_lookup_convert_calc": (nested("L in {t} {o} M in {t}", "L {o} M, both in {t}",
        "L as {t} {o} M as {t}"), (ASK, RECKON), nested("Convert L and M to {t}; what is the first {o} the second?",
        "Express L in {t}, then {o} M in {t}: how much?")
        + framed(UNIT_FIRST, *nested("L {o} M"))),
    "lookup_lookup_lookup_lookup_lookup_calc": (nested("L {o} M {p} N {q} O {r} P", records=RECORD[:3]),
        (ASK, RECKON), nested("Take L {o} M {p} N {q} O {r} P.", records=RECORD[:3])),
    "lookup_convert_lookup_convert_calc_calc": (nested("L in {t} {o} M in {t} and then {p} {n}",
        "L {o} M, both in {t} and then {p} {n}", "L as {t} {o} M as {t} and that {p} {n}"), (ASK, RECKON), nested(
        "Convert L and M to {t}; what is the first {o} the second, then {p} {n}?",
        "Take L in {t} {o} M in {t}; what is that {p} {n}?")
        + framed(UNIT_FIRST, *nested("L {o} M, then {p} {n}", "L {o} M and that {p} {n}"))),
    "trivial": (("{x}",), (ASK, RECKON), ("What is {x}?", "Compute {x}.", "{x} = ?")),
    "steps": (("{x}", "the result of {x}", "the end of this: {x}"), (ASK, RECKON), several("""
        Start with {x}. Where do you end?|Begin: {x}. The last number?|In your head: {x}.|Step by step: {x}.
        Follow this: {x}. What comes out?|{x}. What is left?|Do it in order: {x}.|Number game: {x}.""")),
    "lookup_steps": (nested("L {x}", "L, {x}", records=RECORD), (ASK, RECKON), nested(
        "Start with L, {x}. Where do you end?", "Begin with L; then {x}. The last number?",
        "In your head: L {x}.", "Take L, {x}. What comes out?", "First L. Then {x}.")),
    "repeat": (("{w}", "the word {w}"), (several(
        "Repeat {}.|Say {}.|Please write {}.|Write {}.|Tell me {}.|Echo {}.|Type {}."
        "|Print {}.|Copy {}.|Speak {}.|Answer with {}.|Respond with {}.|Just say {}.|Can you say {}?|Reply with {}."
        "|Please say {}.|Could you repeat {}?|Say back {}.|Give back {}.|{}: repeat after me.|Spell {} as it is."
        "|Utter {}.|Let me hear {}.|Output {} and nothing else.|Show {}.|Write down {}.|Pronounce {}.|Return {}."),),
        several("""
        {w}. Now you.|Say it: {w}.|My word: {w}. Yours?|What did I say? {w}|Parrot: {w}|The magic word: {w}. Say it.
        I say {w}, you say?|Repeat after me: {w}.|Here is a word: {w}. Copy it.|Remember {w}. What was it?
        Here comes {w}. Say it again.|My word was {w}. Echo that.|A word: {w}. Write it.|Hear this: {w}. Repeat, please.
        She said {w}. What did she say?|It is {w}. Type it.|The text reads {w}. Copy it.|He wrote {w}. Write that too.
        This is {w}. Name it.|Your word: {w}. Speak.|The name was {w}. Say that name.|They call it {w}. What?
        The password may be {w}. Give it back.|On the sign: {w}. Read it.|It says {w}. Read it out.""")),
    "first": (("{w} {z}", "{w} and {z}", "{w}, {z}", "these two: {w} {z}"), (several(
        "Which word is first: {}?|Say the first word of {}.|Tell me the first of {}.|{}: which is first?"
        "|Name the first: {}.|What is the first word in {}?|Which one comes first, {}?|Give the first of {}."
        "|First of {}?|The first one of {}?|Pick the first: {}.|From {}, say the first.|Only the first of {}, please."
        "|Look at {} and say the first word.|Repeat only the first: {}.|What stands first in {}?|Take {}; the first is?"
        "|Which do I say first: {}?|Read {} and stop after one word.|Begin of {}?|Copy the first word: {}."),),
        several("""
        {w} comes before {z} here; which is first?|I say {w}, then {z}. Which was first?|{w}, {z}: the first?
        First {w}, second {z}. Say the first.|Given {w} and {z}, give the first.|Out of {w} and {z}, take the first.
        The list: {w} {z}. Say the first.|We have {w} and {z}. Which one leads?|Words: {w}, {z}. Number one?
        Two words, {w} then {z}. Name the one at the start.|{w} {z}. Only the first, please.|In {w} {z}, what leads?
        Between {w} and {z}, who is at the front?""")),
}  # fmt: skip

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
    "lookup_add_weekday": ("Find the weekday {n} days after {i}'s {a}.",
        "{n} days after the {a} of {i}: which weekday?"),
    "lookup_lookup_lookup_calc": ("Find the {a} of {i} {o} the {a} of {j} {p} the {a} of {k}.",
        "How much is {i}'s {a} {o} {j}'s {a} {p} {k}'s {a} all in all?"),
    "lookup_lookup_add_weekday": ("Find the weekday of {i}'s {a} plus the {b} of {j} in days.",
        "{i}'s {a} and {j}'s {b} days more: which weekday?"),
    "lookup_lookup_lookup_lookup_calc": (
        "Find the {a} of {i} {o} the {a} of {j} {p} the {a} of {k} {q} the {a} of {l}.",
        "How much is {i}'s {a} {o} {j}'s {a} {p} {k}'s {a} {q} {l}'s {a} all in all?"),
    "lookup_convert_lookup_convert_calc": ("Find {i}'s {a} in {t} {o} {j}'s {a} in {t}.",
        "How much is the {a} of {i} {o} the {a} of {j} if all is in {t}?"),
    "lookup_lookup_lookup_lookup_lookup_calc": (
        "Find {i}'s {a} {o} {j}'s {a} {p} {k}'s {a} {q} {l}'s {a} {r} {m}'s {a}.",
        "How much is {i}'s {a} {o} {j}'s {a} {p} {k}'s {a} {q} {l}'s {a} {r} {m}'s {a} all in all?"),
    "lookup_convert_lookup_convert_calc_calc": ("Find {i}'s {a} in {t} {o} {j}'s {a} in {t}, and that {p} {n}.",
        "How much is the {a} of {i} {o} the {a} of {j} if all is in {t}, and then {p} {n}?"),
    "steps": ("Find {x}.", "What do I get for {x}?"),
    "lookup_steps": ("Find the {a} of {i}, {x}.", "What do I get for {i}'s {a}, {x}?"),
    "trivial": ("Find {x}.", "What do I get for {x}?"),
    "repeat": ("Please repeat {w}.", "Say the word {w}."),
    "first": ("Tell me which is first: {w} {z}.", "Write the first word of {w} {z}."),
}  # fmt: skip

TEST: Mapping[str, tuple[str, ...]] = {
    "calc": ("{x} is how much?", "Please work out {x}.", "I want to know {x}.", "The value of {x} is?"),
    "lookup": ("The {a} of {i} is what?", "I need {i}'s {a}.", "Please tell me which {a} {i} has.",
        "For {i}, look up the {a}."),
    "convert": ("In {t}, what is {v} {f}?", "{v} {f} is how many {t}?", "I want {v} {f} in {t}.",
        "Take {v} {f}; convert it to {t}."),
    "weekday": ("Which weekday is it on {d}?", "The weekday of {d} is?", "I need the day of the week of {d}."),
    "add": ("{n} days after {d} is which date?", "Take {d}; add {n} days.", "I need the date {n} days after {d}."),
    "between": ("Between {d} and {e}, how many days?", "I need the days between {d} and {e}.",
        "How many days is it from {d} to {e}?"),
    "lookup_calc": ("Look up {i}'s {a} and compute it {o} {n}.", "The {a} of {i} {o} {n} is how much?",
        "I need the {a} of {i} {o} {n}."),
    "lookup_convert": ("In {t}, what is the {a} of {i}?", "I need {i}'s {a} in {t}.",
        "Look up {i}'s {a} and convert it to {t}."),
    "lookup_weekday": ("The {a} of {i} is on which weekday?", "I need the weekday of {i}'s {a}.",
        "For {i}, which day of the week is the {a}?"),
    "lookup_lookup_calc": ("The {a} of {i} {o} the {a} of {j} is how much?", "I need {i}'s {a} {o} {j}'s {a}.",
        "Take the {a} of {i} {o} the {a} of {j}."),
    "lookup_convert_calc": ("Take {i}'s {a} in {t}; what is it {o} {n}?", "I need the {a} of {i} in {t} {o} {n}."),
    "lookup_add_weekday": ("Take {i}'s {a}, add {n} days; which weekday is it?",
        "I need the weekday {n} days after the {a} of {i}."),
    "lookup_lookup_lookup_calc": ("The {a} of {i} {o} the {a} of {j} {p} the {a} of {k} is how much?",
        "I need {i}'s {a} {o} {j}'s {a} {p} {k}'s {a}."),
    "lookup_lookup_add_weekday": ("Take {i}'s {a}, add {j}'s {b} in days; which weekday is it?",
        "I need the weekday of the {a} of {i} plus {j}'s {b} in days."),
    "lookup_lookup_lookup_lookup_calc": (
        "The {a} of {i} {o} the {a} of {j} {p} the {a} of {k} {q} the {a} of {l} is how much?",
        "I need {i}'s {a} {o} {j}'s {a} {p} {k}'s {a} {q} {l}'s {a}."),
    "lookup_convert_lookup_convert_calc": ("In {t}, how much is {i}'s {a} {o} {j}'s {a}?",
        "I need the {a} of {i} in {t} {o} the {a} of {j} in {t}."),
    "lookup_lookup_lookup_lookup_lookup_calc": (
        "I need {i}'s {a} {o} {j}'s {a} {p} {k}'s {a} {q} {l}'s {a} {r} {m}'s {a}.",
        "{i}'s {a} {o} {j}'s {a} {p} {k}'s {a} {q} {l}'s {a} {r} {m}'s {a} is how much?"),
    "lookup_convert_lookup_convert_calc_calc": ("In {t}, how much is {i}'s {a} {o} {j}'s {a}, then {p} {n}?",
        "I need the {a} of {i} in {t} {o} the {a} of {j} in {t}, then {p} {n}."),
    "steps": ("{x} is how much?", "Please work out {x}.", "I need the last number of {x}."),
    "lookup_steps": ("The {a} of {i}, {x}, is how much?", "I need {i}'s {a}, {x}."),
    "trivial": ("{x} is how much?", "Please work out {x}.", "I want to know {x}."),
    "repeat": ("The word is {w}. Repeat it.", "I want you to say {w}."),
    "first": ("Of {w} and {z}, which is first?", "Please say the first word: {w} {z}."),
}  # fmt: skip


def plain(wording: str) -> str:
    """What is left of a wording when case, stops and courtesy are not looked at."""
    return " ".join(part for part in re.findall(r"[\w{}']+", wording.lower()) if part not in ("please", "kindly"))


def _capital(text: str) -> str:
    return text if text.startswith("{") else text[0].upper() + text[1:]


def _framed(form: str) -> Iterator[str]:
    phrases, frames, _ = GRAMMAR[form]
    for frame in chain.from_iterable(frames):
        for phrase in phrases:
            yield _capital(frame.replace("{}", phrase))


def _variants(wording: str) -> Iterator[str]:
    """The wording itself, within a letter or a chat, and as it is typed in a hurry."""
    yield wording
    chance = Random(wording)
    if chance.random() < 0.5:
        yield f"{pick(chance, BEFORE)} {wording}"
    elif chance.random() < 0.5:
        yield f"{wording} {pick(chance, AFTER)}"
    if chance.random() < 0.3:
        yield wording.lower().rstrip(".?")
    if chance.random() < 0.2:
        yield _mistyped(wording, chance)


def _mistyped(wording: str, chance: Random) -> str:
    """With two letters of one longer word swapped, or one left out; never in what is filled in."""
    words = wording.split(" ")
    longer = [place for place, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    if not longer:
        return wording.lower()
    place = longer[int(chance.random() * len(longer))]
    word, at = words[place], 1 + int(chance.random() * (len(words[place]) - 2))
    words[place] = word[:at] + (word[at + 1] + word[at] if chance.random() < 0.5 else word[at + 1]) + word[at + 2 :]
    return " ".join(words)


class TrainWordings(Mapping[str, tuple[str, ...]]):
    """The wordings of each form, made when they are first asked for."""

    def __getitem__(self, form: str) -> tuple[str, ...]:
        own, framed = _train(form)
        return own + framed

    def __iter__(self) -> Iterator[str]:
        return iter(GRAMMAR)

    def __len__(self) -> int:
        return len(GRAMMAR)


@cache
def _train(form: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The wordings of a form's own, and those in frames."""
    held_out, measured, known = re.compile("|".join(map(re.escape, HELD_OUT))), _measured(), set[str]()

    def varied(wordings: Iterable[str]) -> Iterator[str]:
        for text in chain.from_iterable(map(_variants, wordings)):
            if text not in known and not held_out.search(text.lower()) and plain(text) not in measured:
                known.add(text)
                yield text

    return tuple(varied(map(_capital, GRAMMAR[form][2]))), tuple(varied(_framed(form)))


def worded(chance: Random, split: str, form: str) -> str:
    """One wording of the split. In the train split one of a form's own comes ten times as often as one in a frame."""
    if split != "train":
        return pick(chance, TEMPLATES[split][form])
    own, framed = _train(form)
    draw = chance.random() * (10 * len(own) + len(framed))
    return own[int(draw / 10)] if draw < 10 * len(own) else framed[int(draw) - 10 * len(own)]


@cache
def _measured() -> frozenset[str]:
    return frozenset(plain(wording) for split in (VAL, TEST) for several in split.values() for wording in several)


TEMPLATES: Mapping[str, Mapping[str, tuple[str, ...]]] = {"train": TrainWordings(), "val": VAL, "test": TEST}


# Instructions: what a system prompt may ask for, in sentences. The test split has sentences of its own.
TEST_INSTRUCTIONS: Mapping[str, tuple[str, ...]] = {
    "tools": several("""
        Answer with the help of the tools.|Ask the tools, not your memory.|Make tool calls where they apply.
        Get all facts by tool calls."""),
    "retry": several("""
        If a tool fails, try once more.|Busy tools must be called a second time.|Never stop at one failed call."""),
    "finish": several("Work through all steps.|Do not answer before the last step.|See the task through."),
    "unknown": several("If you do not know, say unknown.|Answer unknown rather than guess.|Missing facts: unknown."),
    "think": several("Reason step by step.|Let's think step by step.|Think carefully before you reply."),
    "hurry": several("Answer right away.|Hurry up.|Rely on your memory."),
    "no_tools": several("Call no tools.|Work without any tool."),
    "other": several("You are a careful clerk.|Be nice to people.|You serve a library.|Answer in English."),
}
SENTENCES: Mapping[str, str] = {  # [a|b] is one of the two
    "tools": """
        [Use|Call|Consult|Ask|Query|Employ|Rely on|Work with|Turn to|Depend on] [the|your|the given|available] tools[\
        | first| for every fact| for all values| before you answer| whenever they fit| in each task].
        [Get|Take|Fetch|Obtain|Find|Check|Look up] [facts|values|numbers|every value|each fact|what you need] [from|\
        with|through|by|using] [tools|the tools|a tool|calls|a call|a tool call].
        [Make|Start with|Begin with|Use|Try] [calls|a call|a tool call|the right tool] [when|if|whenever] [one fits|it \
        helps|you need facts|a tool is there].
        [Answer|Reply|Respond] [using|through|by means of|only after] [tools|the tools|a tool call|calls|tool results].
        [Every|Each|Any|The] [fact|value|number|figure] [must come|comes|has to come|should come] from a [tool|call].
        [Do not|Never] [answer|reply|speak] from memory[; call a tool|: use tools|, ask a tool].
        Make use of [the|your] tools[ where they help|].|Let the tools do the work.|There are tools: call them.
        [Prefer|Choose] [tools|tool calls|a call|the tools] over [guessing|your memory|memory].""",
    "retry": """
        [If|When|Whenever] a [tool|call] [is busy|gives an error|does not work|says try again|breaks], [call it again|\
        try it again|repeat the call|ask once more|retry|do it again].
        [Retry|Repeat|Try again|Redo] [a failed call|failed calls|a call that failed|calls that fail|what failed].
        [Call|Ask|Try] [a busy tool|busy tools|tools that fail] [again|once more|another time|until it works].
        [Do not|Never] give up [on a busy tool|after an error|at a failed call|when a tool is busy].
        [Be patient with|Keep calling|Insist on|Come back to] [busy tools|a busy tool|tools that fail].
        [Failed calls|Busy tools] [get|need|deserve] [a second try|another call|one more call].
        [Errors|Failures] are no reason to [stop|give up]: [call again|try again].""",
    "finish": """
        [Do|Take|Carry out|Complete|Finish|Go through] [every|each] step[ that is needed| of the task| to the end|].
        [Do|Take|Carry out|Complete|Finish|Go through] all [steps|the steps|needed steps|parts][ in order|].
        [Do not|Never] [stop|end|answer|quit] [halfway|too early|after the first step|before all is done].
        [Go on|Continue|Keep going|Work on] until [the task is done|all steps are done|the question is answered].
        [Answer|Reply] only [when|after|once] [all steps are done|everything is done|the last result is there].
        [Solve|Complete|Finish|Do] the [whole|entire|full] [task|question|problem].
        [Follow|Pursue|Carry] the task to [its|the] end.|The answer comes after the last [step|call|result].
        One [call|step|result] may not be enough: [go on|continue].""",
    "unknown": """
        [If|When|Where] [you cannot know|nothing is found|there is no record|it cannot be found|you are not sure|you \
        have no evidence|the fact is missing], [say|answer|reply|write] unknown.
        [Say|Answer|Reply|Write] unknown [if|when|where] [you cannot know|nothing is found|there is no record|in doubt].
        [Never|Do not] [guess|invent a value|make things up|make up values][: say unknown|; reply unknown].
        [Unknown|Saying unknown] is [better|safer|more honest] than [a guess|guessing|an invented value].
        [Prefer|Choose] unknown [to a guess|over a guess|over guessing].|[Rather|Better] unknown than [wrong|guessed].
        [No record|Nothing found|No evidence|In doubt|A missing record|A missing value]: unknown.""",
    "think": """
        Think first.
        [Think|Reason|Reflect|Plan] [first|step by step|before you answer|before you act|carefully|in steps].
        [Let us|You should|Please|Always] [think|reason|plan] [first|step by step|before answering|in steps].
        [Write down|Note|Show|Spell out] your [thoughts|reasoning|thinking|steps|plan] [first|before the answer].
        [Take time|Take a moment|Stop] to think[ first| it over|].
        First [think|reason|plan], then [answer|speak|act].|[Careful|Slow] thinking [comes first|helps].""",
    "hurry": """
        [Answer|Reply|Respond] [at once|immediately|fast|quickly|without delay].|[Be|Stay] [quick|fast].
        [Trust|Follow] your [memory|gut|first idea].|[Do not|Never] [waste time|check anything|lose time].
        [Guess|Just guess][ if you must| when in doubt|].|[Speed|Time] [matters most|is all that counts].""",
    "no_tools": """
        [Do not|Never] [use|call|touch] [tools|the tools|any tool].|[Tools|Tool calls] are [forbidden|not allowed].
        [Answer|Reply] without [tools|tool calls].|Leave the tools alone.""",
    "other": """
        You are [a helpful assistant|Sprout|an expert|an assistant of a museum|a friendly clerk|an agent|a good helper].
        Be [kind|polite|friendly|calm|honest|yourself|clear].|You work for [a small shop|a school|the city|a bank].
        [The user|Users|People|Customers] [may be new here|come from everywhere|like short words|are in a good mood].
        Answer [the user|the question below|what is asked].|Do your best.|Keep secrets.|This is a test.|Never swear.
        Today is a fine day.|We value our customers.|Speak plainly.|You help with small questions.|Stay friendly.""",
}


def expanded(text: str) -> Iterator[str]:
    """All sentences of a text: every choice of every bracket."""
    for sentence in filter(str.strip, text.replace(".|", ".\n").splitlines()):
        parts = [part.split("|") if place % 2 else [part] for place, part in enumerate(re.split(r"[\[\]]", sentence))]
        for words in product(*parts):
            yield re.sub(r" +", " ", "".join(words)).strip().replace(" .", ".")


@cache
def instructions(split: str, aspect: str) -> tuple[str, ...]:
    """The sentences that ask for something; those of the test split are in no other."""
    if split == "test":
        return TEST_INSTRUCTIONS[aspect]
    return tuple(one for one in dict.fromkeys(expanded(SENTENCES[aspect])) if one not in TEST_INSTRUCTIONS[aspect])
