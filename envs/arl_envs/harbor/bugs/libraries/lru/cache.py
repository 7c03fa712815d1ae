"""A cache of limited size that forgets what was not used for the longest time."""


class Cache:
    """A mapping with a limit; `used` lists the keys, the oldest first."""

    def __init__(self, size=3):
        if size < 1:
            raise ValueError("a cache needs room")
        self.size = size
        self.values = {}
        self.used = []
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        """Return a key's value, which counts as a use; the default if there is none."""
        if key not in self.values:
            self.misses += 1
            return default
        self.hits += 1
        self.used.remove(key)
        self.used.append(key)
        return self.values[key]

    def put(self, key, value):
        """Keep a value, which counts as a use; return the key that had to go, or None."""
        if key in self.values:
            self.used.remove(key)
        self.values[key] = value
        self.used.append(key)
        if len(self.used) > self.size:
            oldest = self.used.pop(0)
            del self.values[oldest]
            return oldest
        return None

    def drop(self, key):
        """Forget a key; return whether it was there."""
        if key not in self.values:
            return False
        del self.values[key]
        self.used.remove(key)
        return True

    def keys(self):
        """Return the keys, the last used first."""
        return self.used[::-1]

    def rate(self):
        """Return the share of hits in percent, rounded down; 0 without a use."""
        uses = self.hits + self.misses
        if uses == 0:
            return 0
        return 100 * self.hits // uses
