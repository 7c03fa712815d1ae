"""The sets of tokens that a row's tokens were drawn from, where a grammar, `top_p`, `top_k` or
`min_p` left only some."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ALL = -1
"""The index of a token that was drawn from the whole vocabulary, or not drawn."""
FORCED = -2
"""The index of a sampled token beside which no other was allowed: nothing was chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The allowed tokens of a row of T tokens. Few sets are distinct: a grammar is in the same
    state at many tokens."""

    index: npt.NDArray[np.int32]
    """The set of each token, [T], by its place in `sets`; or ALL, or FORCED."""
    sets: Sequence[bytes]
    """The distinct sets, as compressed bit masks over the vocabulary (`packed_set`)."""

    @property
    def num_forced(self) -> int:
        """Return the number of tokens that had no alternative."""
        return int((self.index == FORCED).sum())

    def head(self, num_tokens: int) -> Choices:
        """Return the choices of the first `num_tokens` tokens."""
        return Choices(self.index[:num_tokens], self.sets)

    def pack(self) -> dict[str, Any]:
        """Return blocks for msgpack; `index` is compressed."""
        index = np.ascontiguousarray(self.index, np.int32).tobytes()
        return {"index": zlib.compress(index, 1), "sets": list(self.sets)}

    @classmethod
    def unpack(cls, blocks: Mapping[str, Any], *, length: int) -> Choices:
        """Return the choices in the blocks of `pack`, of a row of `length` tokens.

        Raises:
            ValueError, KeyError, TypeError: the blocks are no choices of such a row.
        """
        try:
            index = np.frombuffer(zlib.decompress(blocks["index"]), np.int32)
        except zlib.error as error:
            raise ValueError(f"the choices of a row: {error}") from error
        choices = cls(index, tuple(blocks["sets"]))
        if len(index) != length or (length and not FORCED <= index.min() <= index.max()):
            raise ValueError(f"choices of {len(index)} tokens, expected {length}")
        if length and index.max() >= len(choices.sets):
            raise ValueError(f"set {index.max()} of {len(choices.sets)}")
        return choices


def choices_of(masks: Iterable[bytes]) -> Choices:
    """Return the choices of tokens that were each drawn from the set of a bit mask (see
    `packed_set`)."""
    places: dict[bytes, int] = {}
    sets: list[bytes] = []
    index: list[int] = []
    for mask in masks:
        if mask not in places:
            only = int.from_bytes(mask, "little").bit_count() == 1
            places[mask] = FORCED if only else len(sets)
            sets += [] if only else [packed_set(mask)]
        index.append(places[mask])
    return Choices(np.array(index, np.int32), tuple(sets))


def mask_of(ids: Sequence[int]) -> bytes:
    """Return the bit mask of a set of tokens, given by their ids."""
    mask = np.zeros(max(ids) + 1, np.uint8)
    mask[ids] = 1
    return np.packbits(mask, bitorder="little").tobytes()


def packed_set(mask: bytes) -> bytes:
    """Return a set in the form of `Choices.sets`. Bit i % 8 of byte i // 8 of `mask` is token i."""
    return zlib.compress(mask, 1)


def unpacked_set(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the bit mask of a set of `Choices.sets`.

    Raises:
        ValueError: the data are damaged.
    """
    try:
        return np.frombuffer(zlib.decompress(data), np.uint8)
    except zlib.error as error:
        raise ValueError(f"a set of allowed tokens: {error}") from error


def joined(parts: Sequence[tuple[int, Choices | None]]) -> Choices | None:
    """Return the choices of a row that consists of `parts`: each a number of tokens, with their
    choices or None. The result is None if no part has any."""
    if all(choices is None for _, choices in parts):
        return None
    places: dict[bytes, int] = {}
    index: list[npt.NDArray[np.int32]] = []
    for length, choices in parts:
        if choices is None:
            index.append(np.full(length, ALL, np.int32))
            continue
        place = [places.setdefault(one, len(places)) for one in choices.sets]
        # The last two entries are FORCED and ALL, as the indices -2 and -1 of an array.
        index.append(np.array([*place, FORCED, ALL], np.int32)[choices.index])
    return Choices(np.concatenate(index), tuple(places))
