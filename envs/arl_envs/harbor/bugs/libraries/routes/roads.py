"""A map: places, and roads that go both ways."""


class Roads:
    """The neighbors of each place, with distances."""

    def __init__(self):
        self.near = {}

    def add(self, one, other, distance=1):
        """Add a road, or replace it; raise ValueError for a road from a place to itself."""
        if one == other:
            raise ValueError("a road needs two places")
        self.near.setdefault(one, {})[other] = distance
        self.near.setdefault(other, {})[one] = distance

    def remove(self, one, other):
        """Remove a road; return whether there was one."""
        if other not in self.near.get(one, {}):
            return False
        del self.near[one][other]
        del self.near[other][one]
        return True

    def neighbors(self, place):
        """Return the sorted neighbors of a place."""
        return sorted(self.near.get(place, {}))

    def length(self):
        """Return the length of all roads together."""
        return sum(sum(roads.values()) for roads in self.near.values()) // 2

    def stops(self, start, end):
        """Return the way with the fewest stops, the first by name; [] if there is none."""
        ways = [[start]]
        seen = [start]
        while ways:
            way = ways.pop(0)
            if way[-1] == end:
                return way
            for place in self.neighbors(way[-1]):
                if place not in seen:
                    seen.append(place)
                    ways.append([*way, place])
        return []

    def shortest(self, start, end):
        """Return the shortest distance between two places; -1 if there is no way."""
        open_places = [(0, start)]
        done = []
        while open_places:
            open_places.sort()
            distance, place = open_places.pop(0)
            if place == end:
                return distance
            if place in done:
                continue
            done.append(place)
            for other, more in self.near.get(place, {}).items():
                if other not in done:
                    open_places.append((distance + more, other))
        return -1

    def islands(self):
        """Return the groups of connected places, each sorted, in the order of their first."""
        groups = []
        for place in sorted(self.near):
            if not any(place in group for group in groups):
                groups.append([other for other in sorted(self.near) if self.stops(place, other)])
        return groups
