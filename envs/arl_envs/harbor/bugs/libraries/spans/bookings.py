"""A room that is booked by the hour."""

from .ranges import gaps, holds, length, merge


class Room:
    """A room with its bookings."""

    def __init__(self, opens=8, closes=18):
        self.opens = opens
        self.closes = closes
        self.taken = []

    def book(self, start, end):
        """Book the room; return False if it is closed or taken then."""
        if start < self.opens or end > self.closes or start >= end:
            return False
        for hour in range(start, end):
            if holds(self.taken, hour):
                return False
        self.taken.append((start, end))
        return True

    def cancel(self, start, end):
        """Cancel a booking; raise KeyError if there is none like it."""
        if (start, end) not in self.taken:
            raise KeyError((start, end))
        self.taken.remove((start, end))

    def free(self):
        """Return the free spans of the day."""
        return gaps(self.taken, self.opens, self.closes)

    def longest(self):
        """Return the longest free span, the first of equal ones; None if there is none."""
        best = None
        for start, end in self.free():
            if best is None or end - start > best[1] - best[0]:
                best = (start, end)
        return best

    def hours(self):
        """Return the booked hours, and the merged bookings."""
        return length(self.taken), merge(self.taken)
