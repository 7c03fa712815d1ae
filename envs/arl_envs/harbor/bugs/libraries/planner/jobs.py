"""Jobs with a rank; the lowest rank goes first, equal ranks in the order of arrival."""

from .heap import Heap


class Jobs:
    """Jobs that wait."""

    def __init__(self, limit=10):
        self.limit = limit
        self.waiting = Heap()
        self.arrived = 0
        self.dropped = []

    def add(self, name, rank=5):
        """Add a job; return False if too many wait."""
        if self.waiting.size() >= self.limit:
            return False
        self.waiting.push((rank, self.arrived, name))
        self.arrived += 1
        return True

    def drop(self, name):
        """Let no job of that name be done."""
        self.dropped.append(name)

    def take(self):
        """Return the name of the next job; None if there is none."""
        while self.waiting.size() > 0:
            name = self.waiting.pop()[2]
            if name not in self.dropped:
                return name
        return None

    def next_names(self, count):
        """Return the names of the next jobs in order, dropped ones too."""
        return [name for _, _, name in self.waiting.smallest(count)]


def spread(costs, machines):
    """Give each job in turn to the machine with the least work, the first of equal ones; return
    the work of each."""
    work = [0] * machines
    for cost in costs:
        least = 0
        for number in range(machines):
            if work[number] < work[least]:
                least = number
        work[least] += cost
    return work
