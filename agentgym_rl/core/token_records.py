"""The optional records of a row's tokens: the sets from which they were drawn, where a grammar,
`top_p`, `top_k` or `min_p` excludes tokens; the experts that computed them; the log-probs of served
teachers. And the run-length encoding of arrays that seldom change from one entry to the next."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ALL = -1
"""The index of a token that was drawn from the complete vocabulary, or was not sampled."""
FORCED = -2
"""The index of a sampled token that was the only one allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """The allowed tokens of a row of T tokens. Few sets are distinct: a grammar is in the same
    state at many tokens."""

    index: npt.NDArray[np.int32]
    """The index of each token's set in `sets`, [T]; or ALL, or FORCED."""
    sets: Sequence[bytes]
    """The distinct sets, in the form of `packed_set`."""

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
            ValueError, KeyError, TypeError: the blocks are not the choices of such a row.
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


UNKNOWN_EXPERT = -1
"""The entry of `Experts` where no engine has reported the expert."""
_IN_A_BYTE = 255
"""The first expert whose number does not fit into one byte: this value stands for the unknown
expert."""


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """The experts to which an engine routed the tokens of a row, in a mixture-of-experts model."""

    ids: npt.NDArray[np.int16]
    """The experts of each token, [T, layers, k]; UNKNOWN_EXPERT where they are not known. `layers`
    counts all decoder layers, as engines do: a layer without experts has zeros."""

    @property
    def index(self) -> npt.NDArray[np.bool_]:
        """Return a mask, [T], of the tokens whose experts are known."""
        return (self.ids != UNKNOWN_EXPERT).all(axis=(1, 2))

    def head(self, num_tokens: int) -> Experts:
        """Return the experts of the first `num_tokens` tokens."""
        return Experts(self.ids[:num_tokens])

    def tail(self, start: int) -> Experts:
        """Return the experts of the tokens from `start` on."""
        return Experts(self.ids[start:])

    def continues(self, other: Experts | None, count: int) -> bool:
        """Return whether the first `count` tokens have the same experts as those of `other`."""
        return other is not None and np.array_equal(self.ids[:count], other.ids[:count])

    def after(self, head: Experts | None) -> Experts:
        """Return the experts of a row that begins with the tokens of `head`.

        Raises:
            ValueError: `head` has no experts, or has other layers.
        """
        if head is None or head.ids.shape[1:] != self.ids.shape[1:]:
            raise ValueError("the experts of a row's beginning are missing")
        return Experts(np.concatenate((head.ids, self.ids)))

    def pack(self) -> dict[str, Any]:
        """Return blocks for msgpack, compressed."""
        small = not self.ids.size or int(self.ids.max()) < _IN_A_BYTE
        ids = np.ascontiguousarray(self.ids, np.uint8 if small else np.int16)
        data = zlib.compress(ids.tobytes(), 1)
        return {"shape": list(self.ids.shape), "small": small, "ids": data}

    @classmethod
    def unpack(cls, blocks: Mapping[str, Any], *, length: int) -> Experts:
        """Return the experts in the blocks of `pack`, of a row of `length` tokens.

        Raises:
            ValueError, KeyError, TypeError: the blocks are not the experts of such a row.
        """
        shape = tuple(map(int, blocks["shape"]))
        if len(shape) != 3 or shape[0] != length:
            raise ValueError(f"experts of shape {shape}, expected [{length}, layers, k]")
        try:
            found = zlib.decompress(blocks["ids"])
        except zlib.error as error:
            raise ValueError(f"the experts of a row: {error}") from error
        if not blocks["small"]:
            return cls(np.frombuffer(found, np.int16).reshape(shape))
        ids = np.frombuffer(found, np.uint8).reshape(shape).astype(np.int16)
        ids[ids == _IN_A_BYTE] = UNKNOWN_EXPERT
        return cls(ids)


@dataclass(frozen=True, slots=True, eq=False)
class TeacherLogprobs:
    """The log-probs that served teachers gave to the tokens of a row."""

    logprobs: npt.NDArray[np.float32]
    """The log-probs of each token, [T, teachers], in the order of `algo.teacher.models`; NaN where
    a teacher gave none."""

    @property
    def index(self) -> npt.NDArray[np.bool_]:
        """Return a mask, [T], of the tokens with a log-prob of at least one teacher."""
        return np.asarray(~np.isnan(self.logprobs).all(axis=1), dtype=np.bool_)

    def head(self, num_tokens: int) -> TeacherLogprobs:
        """Return the log-probs of the first `num_tokens` tokens."""
        return TeacherLogprobs(self.logprobs[:num_tokens])

    def pack(self) -> dict[str, Any]:
        """Return blocks for msgpack, compressed: most tokens of a row have no such log-prob."""
        data = np.ascontiguousarray(self.logprobs, np.float32).tobytes()
        return {"teachers": self.logprobs.shape[1], "logprobs": zlib.compress(data, 1)}

    @classmethod
    def unpack(cls, blocks: Mapping[str, Any], *, length: int) -> TeacherLogprobs:
        """Return the log-probs in the blocks of `pack`, of a row of `length` tokens.

        Raises:
            ValueError, KeyError, TypeError: the blocks are not those of such a row.
        """
        try:
            data = zlib.decompress(blocks["logprobs"])
        except zlib.error as error:
            raise ValueError(f"the teachers of a row: {error}") from error
        found = np.frombuffer(data, np.float32)
        return cls(found.reshape(length, int(blocks["teachers"])))


def experts_of(parts: Iterable[tuple[int, npt.NDArray[np.int16]]], length: int) -> Experts | None:
    """Return the experts of a row of `length` tokens from the reports of engines; None: there are
    no reports. Each report has the position of its first token, and the experts, [n, layers, k].
    The first report of a token counts.

    Raises:
        ValueError: reports differ in their numbers of layers or experts, or have tokens beyond the
            row.
    """
    reports = list(parts)
    if not reports:
        return None
    shape = reports[0][1].shape[1:]
    ids = np.full((length, *shape), UNKNOWN_EXPERT, np.int16)
    for start, part in reports:
        stop = start + len(part)
        if part.shape[1:] != shape or start < 0 or stop > length:
            raise ValueError(
                f"experts of shape {part.shape} from token {start} on, in a row of {length} tokens "
                f"with {shape}"
            )
        place = ids[start:stop]
        np.copyto(place, part, where=place == UNKNOWN_EXPERT)
    return Experts(ids)


def choices_of(sets: Iterable[bytes], pack: Callable[[bytes], bytes] = bytes) -> Choices:
    """Return the choices of tokens, given the set from which each was drawn, and the function that
    packs such a set; by default, they are packed."""
    places: dict[bytes, int] = {}
    distinct: list[bytes] = []
    index: list[int] = []
    for one in sets:
        if one not in places:
            packed = pack(one)
            ids = few_ids(packed)
            only = ids is not None and len(ids) == 1
            places[one] = FORCED if only else len(distinct)
            distinct += [] if only else [packed]
        index.append(places[one])
    return Choices(np.array(index, np.int32), tuple(distinct))


_FEW = 256
"""The largest set of tokens that is recorded as ids: 1 kB, where a mask over a large vocabulary has
19 kB."""
_IDS = b"i"
"""The first byte of a set of ids, before their checksum; a compressed mask begins with another
one."""


def set_of(ids: Sequence[int]) -> bytes:
    """Return a set of tokens, given by their ids, in the form of `packed_set`."""
    found = np.array(sorted(set(ids)), "<i4")
    if len(found) <= _FEW:
        data = found.tobytes()
        return _IDS + zlib.adler32(data).to_bytes(4, "little") + data
    mask = np.zeros(int(found[-1]) + 1, np.uint8)
    mask[found] = 1
    return zlib.compress(np.packbits(mask, bitorder="little").tobytes(), 1)


def packed_set(mask: bytes) -> bytes:
    """Return a set in the form of `Choices.sets`: the ids of few tokens, or else the compressed bit
    mask. Bit i % 8 of byte i // 8 of `mask` is token i."""
    if int.from_bytes(mask, "little").bit_count() > _FEW:
        return zlib.compress(mask, 1)
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set_of(bits.nonzero()[0].tolist())


def few_ids(data: bytes) -> npt.NDArray[np.int32] | None:
    """Return the ids of a set of `Choices.sets`; None if it is recorded as a mask.

    Raises:
        ValueError: the data are damaged.
    """
    if data[:1] != _IDS:
        return None
    if zlib.adler32(data[5:]) != int.from_bytes(data[1:5], "little"):
        raise ValueError("a set of allowed tokens: wrong checksum")
    return np.frombuffer(data[5:], "<i4")


def unpacked_set(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the bit mask of a set of `Choices.sets`.

    Raises:
        ValueError: the data are damaged.
    """
    if (ids := few_ids(data)) is not None:
        mask = np.zeros(int(ids.max(initial=-1)) + 1, np.uint8)
        mask[ids] = 1
        return np.packbits(mask, bitorder="little")
    try:
        return np.frombuffer(zlib.decompress(data), np.uint8)
    except zlib.error as error:
        raise ValueError(f"a set of allowed tokens: {error}") from error


def joined(parts: Sequence[tuple[int, Choices | None]]) -> Choices | None:
    """Return the choices of a row that consists of `parts`, each a number of tokens with their
    choices or None. The result is None if no part has choices."""
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


Array = npt.NDArray[Any]

_BITS = {4: np.dtype(np.int32), 1: np.dtype(np.int8)}
"""The integer type as which entries are compared, by their number of bytes."""


class Runs(NamedTuple):
    """The common runs of several arrays of one length: a run ends when any array changes."""

    lengths: npt.NDArray[np.int32]
    """The length of each run, 1 or more: [runs]."""
    values: Sequence[Array]
    """The values of each array: [runs]."""


def runs_of(arrays: Sequence[Array]) -> Runs:
    """Return the runs of arrays, all [T], of numbers of 1 or 4 bytes, compared by their bits."""
    length = len(arrays[0])
    if not length:
        return Runs(np.zeros(0, np.int32), arrays)
    first, *others = [array.view(_BITS[array.itemsize]) for array in arrays]
    changes = first[1:] != first[:-1]
    for bits in others:
        changes |= bits[1:] != bits[:-1]
    inner = changes.nonzero()[0]
    ends = np.empty(len(inner) + 1, np.int64)  # the last entry of each run
    ends[:-1] = inner
    ends[-1] = length - 1
    lengths = np.empty(len(ends), np.int32)
    lengths[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=lengths[1:], casting="unsafe")
    return Runs(lengths, [array.take(ends) for array in arrays])


def repeated(runs: Runs, *, total: int) -> list[Array]:
    """Return the arrays of these runs, all [total].

    Raises:
        ValueError: the arrays have another length, or the runs are malformed.
    """
    lengths, values = runs
    if any(len(of) != len(lengths) for of in values) or (len(lengths) and int(lengths.min()) < 1):
        raise ValueError(
            f"{len(lengths)} runs of {[len(of) for of in values]} values: expected as many, each "
            "of 1 entry or more"
        )
    if (found := int(lengths.sum(dtype=np.int64))) != total:
        raise ValueError(f"runs of {found} entries, expected {total}")
    return [of.repeat(lengths) for of in values]
