"""A prompt that grows from turn to turn without encoding its earlier tokens again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

import msgspec


class Prompt(Sequence[int]):
    """An immutable sequence of token ids that continues another prompt.

    The length, the tail and the JSON need no work per token of the earlier prompt, except for a
    copy of bytes; all other operations make a list of all ids.
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
        """Return all ids."""
        return list(chain.from_iterable(reversed([piece._ids for piece in self._pieces()])))

    def tail(self, count: int) -> list[int]:
        """Return the last `count` ids."""
        ids: list[int] = []
        for piece in self._pieces():
            ids = [*piece._ids, *ids]
            if len(ids) >= count:
                break
        return ids[max(len(ids) - count, 0) :]

    def json(self) -> bytes:
        """Return a JSON array of all ids.

        The encoded ids are moved from the earlier prompt to this one: if the earlier prompt needs
        its JSON again, it encodes it anew.
        """
        if self._json is None:
            parts: list[bytes] = []
            for piece in self._pieces():
                if piece._json is not None:
                    parts.append(piece._json)
                    piece._json = None
                    break
                if piece._ids:
                    parts.append(msgspec.json.encode(piece._ids)[1:-1])
            self._json = b",".join(filter(None, reversed(parts)))
        return b"[%b]" % self._json

    def _pieces(self) -> Iterator[Prompt]:
        """Yield the pieces of the prompt, the last one first."""
        piece: Prompt | None = self
        while piece is not None:
            yield piece
            piece = piece._before
