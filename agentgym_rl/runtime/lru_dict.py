"""A bounded dict that drops the least recently used entry first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruDict(Generic[K, V]):
    """A dict of at most `most` entries with at most the total size `most_size`, by `size_of`; the
    newest entry stays, whatever its size. An entry is used by setting it, or by `use`."""

    def __init__(
        self,
        most: float = float("inf"),
        *,
        most_size: float = float("inf"),
        size_of: Callable[[V], int] = lambda value: 0,
    ) -> None:
        self.size = 0
        self._most = most
        self._most_size = most_size
        self._size_of = size_of
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.get = self._entries.get  # does not count as a use
        self.values = self._entries.values

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __setitem__(self, key: K, value: V) -> None:
        entries = self._entries
        if key in entries:
            self.size -= self._size_of(entries[key])
        entries[key] = value
        entries.move_to_end(key)
        self.size += self._size_of(value)
        while len(entries) > 1 and (len(entries) > self._most or self.size > self._most_size):
            self.size -= self._size_of(entries.popitem(last=False)[1])

    def use(self, key: K) -> V | None:
        """Return the value of a key, and mark it as used; None if it is missing."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def remove(self, key: K) -> V | None:
        """Remove a key and return its value; None if it is missing."""
        value = self._entries.pop(key, None)
        if value is not None:
            self.size -= self._size_of(value)
        return value
