"""A prompt that grows from turn to turn, and what of it need not be written down again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

import msgspec


class Prompt(Sequence[int]):
    """Token ids that go on from those of another prompt.

    Its length, its end and its JSON take no work per token of what it goes on from; anything else
    makes a list of all. It never changes.
    """

    __slots__ = ("_before", "_ids", "_json", "_length")

    def __init__(self, ids: Sequence[int], *, before: Prompt | None = None) -> None:
        self._ids = ids
        self._before = before
        self._length = len(ids) + (0 if before is None else len(before))
        self._json: bytes | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self.whole()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.whole())

    def whole(self) -> list[int]:
        """All ids."""
        return list(chain.from_iterable(reversed([piece._ids for piece in self._pieces()])))

    def tail(self, count: int) -> list[int]:
        """The last `count` ids."""
        ids: list[int] = []
        for piece in self._pieces():
            ids = [*piece._ids, *ids]
            if len(ids) >= count:
                break
        return ids[max(len(ids) - count, 0) :]

    def json(self) -> bytes:
        """A JSON array of all ids."""
        parts = [piece._own_json() for piece in self._pieces() if piece._ids]
        return b"[" + b",".join(reversed(parts)) + b"]"

    def _own_json(self) -> bytes:
        """What it adds, without brackets; written once."""
        if self._json is None:
            self._json = msgspec.json.encode(self._ids)[1:-1]
        return self._json

    def _pieces(self) -> Iterator[Prompt]:
        """From the last one up."""
        piece: Prompt | None = self
        while piece is not None:
            yield piece
            piece = piece._before
