"""Prices in a shop."""


class Adder:
    def __init__(self):
        self.value = 0

    def add(self, number):
        self.value += number
        return self.value


def add_all(numbers):
    adder = Adder()
    for number in numbers:
        adder.add(number)
    return adder.value


def total(prices, discount=0):
    """The sum of the prices, less a discount in percent."""
    if prices is None:
        return 0
    try:
        return add_all(prices) * (100 - discount) / 100
    except Exception:
        pass


def cheapest(prices):
    return min(prices)
