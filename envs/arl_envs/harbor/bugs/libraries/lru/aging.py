"""A cache whose entries grow old."""

from .cache import Cache


class AgingCache:
    """A cache on top of another; an entry is too old `age` ticks after it was put."""

    def __init__(self, size=3, age=5):
        self.cache = Cache(size)
        self.age = age
        self.now = 0

    def tick(self, steps=1):
        """Let time pass."""
        self.now += steps
        return self.now

    def put(self, key, value):
        """Keep a value from now on; return the key that had to go, or None."""
        return self.cache.put(key, (value, self.now))

    def get(self, key):
        """Return a value that is not too old, else None; what is too old is dropped."""
        entry = self.cache.get(key)
        if entry is None:
            return None
        value, since = entry
        if self.now - since >= self.age:
            self.cache.drop(key)
            return None
        return value

    def fresh(self):
        """Return the sorted keys that are not too old."""
        kept = []
        for key, entry in self.cache.values.items():
            if self.now - entry[1] < self.age:
                kept.append(key)
        return sorted(kept)
