"""A prompt that grows from turn to turn, and what of it need not be written down again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import overload

import msgspec


class Piece:
    """Token ids that stand in many prompts. `json` is how engines are sent them, without
    brackets; it is written once."""

    __slots__ = ("_json", "ids")

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        if self._json is None:
            self._json = msgspec.json.encode(self.ids)[1:-1]
        return self._json


class Prompt(Sequence[int]):
    """The token ids of some pieces, one after the other.

    Its length, its end and its JSON cost nothing per token; anything else makes a list of all.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._length = sum(len(piece.ids) for piece in pieces)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self.whole()[index]

    def whole(self) -> list[int]:
        """All ids."""
        return list(chain.from_iterable(piece.ids for piece in self._pieces))

    def tail(self, count: int) -> list[int]:
        """The last `count` ids."""
        ids: list[int] = []
        for piece in reversed(self._pieces):
            if len(ids) >= count:
                break
            ids = [*piece.ids, *ids]
        return ids[max(len(ids) - count, 0) :]

    def json(self) -> bytes:
        """A JSON array of the ids."""
        return b"[" + b",".join([piece.json for piece in self._pieces if piece.ids]) + b"]"
