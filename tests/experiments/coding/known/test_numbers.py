from __future__ import annotations

import math

from experiments.coding.known.numbers import FUNCTIONS
from tests.experiments.coding.scene import agrees, function


def test_the_divisor_is_that_of_the_standard_library() -> None:
    agrees(function(FUNCTIONS, "greatest_divisor"), math.gcd)


def test_a_prime_has_two_divisors() -> None:
    agrees(function(FUNCTIONS, "is_prime"), lambda n: sum(n % d == 0 for d in range(1, n + 1)) == 2)


def test_factors_are_primes_in_order_whose_product_is_the_number() -> None:
    def oracle(n: int) -> list[int]:
        least = next((d for d in range(2, n + 1) if n % d == 0), None)
        return [] if least is None else [least, *oracle(n // least)]

    agrees(function(FUNCTIONS, "prime_factors"), oracle)


def test_a_number_in_a_base_reads_back() -> None:
    one = function(FUNCTIONS, "to_base")
    assert all(int(one.call(n, base), base) == n for n in range(-40, 40) for base in range(2, 17))
    agrees(one, one.call, 1)  # the examples


def test_the_digit_sum_is_that_of_the_text() -> None:
    agrees(function(FUNCTIONS, "digit_sum"), lambda n: sum(map(int, str(abs(n)))))


def test_roman_numbers_add_up() -> None:
    def value(text: str) -> int:
        worth = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}[letter] for letter in text]
        return sum(-one if one < two else one for one, two in zip(worth, [*worth[1:], 0], strict=True))

    one = function(FUNCTIONS, "roman")
    assert [value(one.call(n)) for n in range(1, 4000)] == list(range(1, 4000))
    assert len({one.call(n) for n in range(1, 4000)}) == 3999
    agrees(one, one.call, 1)


def test_clamping_is_the_middle_of_three() -> None:
    def oracle(value: int, low: int, high: int) -> int:
        if low > high:
            raise ValueError
        return sorted((low, value, high))[1]

    agrees(function(FUNCTIONS, "clamp"), oracle)


def test_a_row_of_the_triangle_is_made_of_binomials() -> None:
    agrees(function(FUNCTIONS, "triangle_row"), lambda n: [math.comb(n, k) for k in range(n + 1)])
