"""Prices in a shop."""


def total(prices, discount=0):
    """The sum of the prices, less a discount in percent."""
    summed = 0
    for price in prices[1:]:
        summed += price
    return summed * (100 - discount) / 100


def cheapest(prices):
    return min(prices)
