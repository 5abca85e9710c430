"""Functions on numbers."""

from __future__ import annotations

from experiments.coding.functions import Function


def greatest_divisor(a: int, b: int) -> int:
    a, b = abs(a), abs(b)
    while b:
        a, b = b, a % b
    return a


def is_prime(n: int) -> bool:
    if n < 2:
        return False
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 1
    return True


def prime_factors(n: int) -> list[int]:
    factors = []
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors


def to_base(n: int, base: int) -> str:
    if not 2 <= base <= 16:
        raise ValueError("base must be between 2 and 16")
    digits = ""
    rest = abs(n)
    while rest > 0:
        digits = "0123456789abcdef"[rest % base] + digits
        rest //= base
    sign = "-" if n < 0 else ""
    return sign + (digits or "0")


def digit_sum(n: int) -> int:
    total = 0
    rest = abs(n)
    while rest > 0:
        total += rest % 10
        rest //= 10
    return total


def roman(n: int) -> str:
    values = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC")]
    values += [(50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    result = ""
    for value, letters in values:
        while n >= value:
            result += letters
            n -= value
    return result


def clamp(value: float, low: float, high: float) -> float:
    if low > high:
        raise ValueError("low must not be above high")
    if value < low:
        return low
    if value > high:
        return high
    return value


def triangle_row(n: int) -> list[int]:
    row = [1]
    for k in range(n):
        row.append(row[k] * (n - k) // (k + 1))
    return row


FUNCTIONS = (
    Function(
        call=greatest_divisor,
        examples=(((12, 18), 6), ((7, 3), 1), ((0, 5), 5), ((-8, 12), 4)),
        draw=lambda rng: (rng.randint(-60, 60), rng.randint(-60, 60)),
    ),
    Function(
        call=is_prime,
        examples=(((2,), True), ((9,), False), ((1,), False), ((13,), True), ((4,), False), ((0,), False)),
        draw=lambda rng: (rng.randint(-3, 130),),
    ),
    Function(
        call=prime_factors,
        examples=(((12,), [2, 2, 3]), ((1,), []), ((13,), [13]), ((49,), [7, 7])),
        draw=lambda rng: (rng.randint(1, 300),),
    ),
    Function(
        call=to_base,
        examples=(((10, 2), "1010"), ((255, 16), "ff"), ((0, 7), "0"), ((-9, 3), "-100"), ((5, 1), ValueError)),
        draw=lambda rng: (rng.randint(-999, 999), rng.randint(1, 17)),
    ),
    Function(
        call=digit_sum,
        examples=(((123,), 6), ((0,), 0), ((-45,), 9), ((909,), 18)),
        draw=lambda rng: (rng.randint(-99999, 99999),),
    ),
    Function(
        call=roman,
        examples=(((1994,), "MCMXCIV"), ((4,), "IV"), ((58,), "LVIII"), ((3000,), "MMM"), ((449,), "CDXLIX")),
        draw=lambda rng: (rng.randint(0, 3999),),
    ),
    Function(
        call=clamp,
        examples=(((5, 1, 3), 3), ((0, 1, 3), 1), ((2, 1, 3), 2), ((1, 3, 2), ValueError), ((7, 7, 7), 7)),
        draw=lambda rng: (rng.randint(-9, 9), rng.randint(-6, 4), rng.randint(-4, 6)),
    ),
    Function(
        call=triangle_row,
        examples=(((0,), [1]), ((1,), [1, 1]), ((4,), [1, 4, 6, 4, 1])),
        draw=lambda rng: (rng.randint(0, 12),),
    ),
)
