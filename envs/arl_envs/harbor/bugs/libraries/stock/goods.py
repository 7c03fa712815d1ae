"""The goods of a store."""


class Goods:
    """Counts and prices by name."""

    def __init__(self, low=3):
        self.low = low
        self.counts = {}
        self.prices = {}

    def arrive(self, name, count, price=None):
        """Add goods, with a new price if one is given; raise ValueError for a count below 1."""
        if count < 1:
            raise ValueError("a count is 1 or more")
        self.counts[name] = self.counts.get(name, 0) + count
        if price is not None:
            self.prices[name] = price
        return self.counts[name]

    def take(self, name, count):
        """Take goods if enough are there; return whether they were."""
        if self.counts.get(name, 0) < count:
            return False
        self.counts[name] -= count
        if self.counts[name] == 0:
            del self.counts[name]
        return True

    def scarce(self):
        """Return the sorted names of goods of which fewer than `low` are left."""
        return sorted(name for name, count in self.counts.items() if count < self.low)

    def worth(self):
        """Return the value of all goods; those without a price are worth nothing."""
        total = 0
        for name, count in self.counts.items():
            total += count * self.prices.get(name, 0)
        return total
