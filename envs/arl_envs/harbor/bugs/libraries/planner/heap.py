"""A queue from which the smallest item comes first."""


class Heap:
    """A binary heap: an item is never larger than the two below it."""

    def __init__(self, items=None):
        if items is None:
            items = []
        self.items = items
        for place in range(len(self.items) // 2 - 1, -1, -1):
            self._sink(place)

    def push(self, item):
        """Add an item."""
        self.items.append(item)
        place = len(self.items) - 1
        while place > 0:
            above = (place - 1) // 2
            if self.items[above] <= self.items[place]:
                break
            self._swap(above, place)
            place = above

    def pop(self):
        """Return the smallest item and remove it; raise IndexError if there is none."""
        if not self.items:
            raise IndexError("empty")
        self._swap(0, len(self.items) - 1)
        item = self.items.pop()
        self._sink(0)
        return item

    def smallest(self, count=1):
        """Return the smallest items in order, and keep them."""
        taken = []
        while self.items and len(taken) < count:
            taken.append(self.pop())
        for item in taken:
            self.push(item)
        return taken

    def size(self):
        """Return the number of items."""
        return len(self.items)

    def _swap(self, one, other):
        self.items[one], self.items[other] = self.items[other], self.items[one]

    def _sink(self, place):
        while True:
            least = place
            for below in (2 * place + 1, 2 * place + 2):
                if below < len(self.items) and self.items[below] < self.items[least]:
                    least = below
            if least == place:
                return
            self._swap(place, least)
            place = least
