"""Goods and orders together."""

from .goods import Goods
from .orders import joined, price


class Store:
    """A store that sells what it has."""

    def __init__(self, prices, low=3):
        self.goods = Goods(low)
        self.prices = prices
        self.income = 0
        self.refused = []

    def arrive(self, name, count):
        """Add goods; return how many there are."""
        return self.goods.arrive(name, count, self.prices.get(name))

    def sell(self, order):
        """Sell an order if all of it is there; return what it costs, or 0."""
        order = joined([order])
        if not all(self.goods.counts.get(name, 0) >= count for name, count in order):
            self.refused.append(order)
            return 0
        for name, count in order:
            self.goods.take(name, count)
        cost = price(order, self.prices)
        self.income += cost
        return cost

    def wanted(self):
        """Return what refused orders ask for beyond the goods that are there."""
        missing = []
        for name, count in joined(self.refused):
            short = count - self.goods.counts.get(name, 0)
            if short > 0:
                missing.append((name, short))
        return missing

    def report(self):
        """Return income, worth of the goods, and scarce goods."""
        return self.income, self.goods.worth(), self.goods.scarce()
