from __future__ import annotations

import csv
import re

from experiments.coding.known.parsing import FUNCTIONS
from tests.experiments.coding.scene import agrees, function


def test_balanced_text_shrinks_to_nothing() -> None:
    def oracle(text: str) -> bool:
        text = re.sub(r"[^][(){}]", "", text)
        while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
            text = shorter
        return not text

    agrees(function(FUNCTIONS, "is_balanced"), oracle)


def test_pairs_are_split_at_the_first_sign() -> None:
    def oracle(text: str) -> dict[str, str]:
        parts = [part.split("=", 1) for part in text.split(";") if "=" in part]
        return {key.strip(): value.strip() for key, value in parts if key.strip()}

    agrees(function(FUNCTIONS, "parse_pairs"), oracle)


def test_ranges_include_both_ends() -> None:
    def oracle(text: str) -> list[int]:
        parts = [part.split("-") for part in text.split(",") if part]
        return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]

    agrees(function(FUNCTIONS, "expand_ranges"), oracle)


def test_versions_compare_as_padded_numbers() -> None:
    def oracle(left: str, right: str) -> int:
        one, two = ((*map(int, text.split(".")), 0, 0, 0)[:4] for text in (left, right))
        return (one > two) - (one < two)

    agrees(function(FUNCTIONS, "compare_versions"), oracle)


def test_postfix_is_infix_with_brackets() -> None:
    def oracle(expression: str) -> int:
        stack: list[str] = []
        for word in expression.split():
            stack.append(f"({stack.pop(-2)}{word}{stack.pop()})" if word in "+-*" else word)
        return int(eval(stack[-1]))

    agrees(function(FUNCTIONS, "postfix"), oracle)


def test_fields_are_split_as_the_csv_module_splits_them_where_quotes_stand_right() -> None:
    one = function(FUNCTIONS, "split_fields")
    for line in ("a,b", '"a,b",c', 'x,"",y', '"1,2,3"', "one"):
        assert one.call(line) == next(csv.reader([line]))
    agrees(one, one.call, 1)
