"""Functions that read text with a form."""

from __future__ import annotations

import random

from experiments.coding.functions import Function


def is_balanced(text: str) -> bool:
    pairs = {")": "(", "]": "[", "}": "{"}
    waiting = []
    for letter in text:
        if letter in pairs.values():
            waiting.append(letter)
        elif letter in pairs and (not waiting or waiting.pop() != pairs[letter]):
            return False
    return not waiting


def parse_pairs(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(";"):
        key, sign, value = part.partition("=")
        if sign and key.strip():
            found[key.strip()] = value.strip()
    return found


def expand_ranges(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        if "-" in part:
            first, last = part.split("-")
            numbers.extend(range(int(first), int(last) + 1))
        elif part:
            numbers.append(int(part))
    return numbers


def compare_versions(left: str, right: str) -> int:
    a = [int(part) for part in left.split(".")]
    b = [int(part) for part in right.split(".")]
    length = max(len(a), len(b))
    a += [0] * (length - len(a))
    b += [0] * (length - len(b))
    if a == b:
        return 0
    return -1 if a < b else 1


def postfix(expression: str) -> int:
    stack: list[int] = []
    for word in expression.split():
        if word in ("+", "-", "*"):
            right = stack.pop()
            left = stack.pop()
            if word == "+":
                stack.append(left + right)
            elif word == "-":
                stack.append(left - right)
            else:
                stack.append(left * right)
        else:
            stack.append(int(word))
    return stack[-1]


def split_fields(line: str) -> list[str]:
    fields = []
    current = ""
    quoted = False
    for letter in line:
        if letter == '"':
            quoted = not quoted
        elif letter == "," and not quoted:
            fields.append(current)
            current = ""
        else:
            current += letter
    fields.append(current)
    return fields


def _drawn(rng: random.Random, letters: str, most: int) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, most)))


def _brackets(rng: random.Random) -> tuple[str]:
    text = ""
    for _ in range(rng.randint(0, 4)):
        opened, closed = rng.choice(("()", "[]", "{}"))
        text = opened + text + closed if rng.random() < 0.6 else text + opened + closed
    return (text if rng.random() < 0.6 else text + rng.choice(("(", "]", "a")),)


def _postfix(rng: random.Random, depth: int = 3) -> str:
    if depth == 0 or rng.random() < 0.3:
        return str(rng.randint(0, 9))
    return f"{_postfix(rng, depth - 1)} {_postfix(rng, depth - 1)} {rng.choice('+-*')}"


def _ranges(rng: random.Random) -> tuple[str]:
    parts = []
    for _ in range(rng.randint(0, 4)):
        first = rng.randint(0, 20)
        parts.append(f"{first}-{first + rng.randint(0, 4)}" if rng.random() < 0.5 else str(first))
    return (",".join(parts),)


def _version(rng: random.Random) -> str:
    return ".".join(str(rng.randint(0, 2)) for _ in range(rng.randint(1, 3)))


FUNCTIONS = (
    Function(
        call=is_balanced,
        examples=((("{[()]}",), True), (("(]",), False), (("",), True), (("((",), False), ((")",), False)),
        draw=_brackets,
    ),
    Function(
        call=parse_pairs,
        examples=(
            (("a=1; b = 2",), {"a": "1", "b": "2"}),
            (("",), {}),
            (("=x;y",), {}),
            (("k=v=w;k2=",), {"k": "v=w", "k2": ""}),
        ),
        draw=lambda rng: (_drawn(rng, "ab=; ", 12),),
    ),
    Function(
        call=expand_ranges,
        examples=((("1-3,7",), [1, 2, 3, 7]), (("",), []), (("5",), [5]), (("2-2,9-10",), [2, 9, 10])),
        draw=_ranges,
    ),
    Function(
        call=compare_versions,
        examples=((("1.2", "1.10"), -1), (("2", "1.9.9"), 1), (("1.0", "1"), 0), (("1", "1.0.1"), -1)),
        draw=lambda rng: (_version(rng), _version(rng)),
    ),
    Function(
        call=postfix,
        examples=((("3 4 + 2 *",), 14), (("9 5 -",), 4), (("7",), 7), (("2 3 4 * +",), 14)),
        draw=lambda rng: (_postfix(rng),),
    ),
    Function(
        call=split_fields,
        examples=((("a,b",), ["a", "b"]), (('"a,b",c',), ["a,b", "c"]), (("",), [""]), (("x,,y",), ["x", "", "y"])),
        draw=lambda rng: (_drawn(rng, 'ab,"', 9),),
    ),
)
