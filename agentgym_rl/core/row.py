"""The rows of a trajectory: exact tokens, with what is known of each (numpy, no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from .token_records import Choices, Experts, Runs, TeacherLogprobs, repeated, runs_of

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
TimeArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NOT_SAMPLED = -1
"""The `policy_versions` entry of a token that no policy sampled. A sampled token whose version is
lost has `engine.UNKNOWN_VERSION` and never trains."""

IGNORED = -100
"""The label, in supervised data, of a token that is not learned: torch's cross-entropy ignores it.
"""


class Counts(NamedTuple):
    """The counts of a row that are needed often."""

    sampled: int
    trained: int
    versions: Sequence[int]
    """The distinct policy versions of the trained tokens, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A trainable token sequence: exactly the tokens that the engine was fed and sampled.

    All arrays are [T]. Entry t of the sampled arrays describes token t itself (not the next).
    """

    tokens: IntArray
    loss_mask: BoolArray
    """The mask that is True on sampled tokens that train."""
    behavior_logprobs: FloatArray
    """The log-probs that the engine reported; 0 on tokens that were not sampled."""
    policy_versions: IntArray
    """The version that sampled the token; NOT_SAMPLED on prompt, tool output and template tokens.
    """
    admitted_versions: IntArray
    """The version known to serve when the token's request was sent. If it equals the policy
    version, the token's KV is of that version alone; NOT_SAMPLED on tokens that were not sampled.
    """
    temperatures: FloatArray
    """The temperature at which the token was sampled; 0 on tokens that were not sampled."""
    turn_ids: IntArray
    """The 0-based sampled turn of the token within the episode; -1 on tokens not sampled."""
    times_s: TimeArray
    """The end of the token's decode step, by CLOCK_MONOTONIC; 0 on tokens not sampled."""
    lineage: int = 0
    """The number of the row's conversation in the episode: 0 is the main one, others are those of
    helpers.
    """
    parent: int = -1
    """The number of the episode's row from which this one branches off, or with whose summary it
    begins; -1: none."""
    choices: Choices | None = None
    """The sets from which the sampled tokens were drawn; None: always the complete vocabulary."""
    experts: Experts | None = None
    """The experts to which the engine routed each token; None: not known, or the model has none."""
    teacher_logprobs: TeacherLogprobs | None = None
    """The log-probs of the tokens under served teachers; None: there are none."""
    _runs: Runs | None = field(init=False, default=None, repr=False, compare=False)
    _counts: Counts | None = field(init=False, default=None, repr=False, compare=False)
    _length: int = field(init=False, default=0, repr=False, compare=False)
    _packed: bytes | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_length", len(self.tokens))
        shape = (self._length,)
        for name in _ROW_DTYPES:
            array = getattr(self, name)
            if array.shape != shape:
                raise ValueError(f"Row.{name} has shape {array.shape}, expected {shape}")
        for name in _EXTRAS:
            extra = getattr(self, name)
            if extra is not None and extra.index.shape != shape:
                found = extra.index.shape
                raise ValueError(f"Row.{name}.index has shape {found}, expected {shape}")

    def __len__(self) -> int:
        return self._length

    @property
    def packed(self) -> bytes:
        """Return the blocks of `pack_row` in msgpack."""
        return self._packed or msgspec.msgpack.encode(pack_row(self))

    def keep_packed(self) -> None:
        """Keep only `packed` and the counts from now on: half the memory, in one piece, and no
        packing later. Each access to an array then unpacks it again."""
        if self._packed is not None:
            return
        _ = self.counts  # computed from the arrays, which are deleted
        # msgspec allocates 50 % more than the bytes need; the copy does not.
        whole = memoryview(self.packed).tobytes()
        object.__setattr__(self, "_packed", whole)
        object.__setattr__(self, "_runs", None)
        for name in (*_ROW_DTYPES, *_EXTRAS):
            object.__delattr__(self, name)

    if not TYPE_CHECKING:  # else a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Return an array that `keep_packed` deleted (called for missing attributes)."""
            if name not in _ROW_DTYPES and name not in _EXTRAS:
                raise AttributeError(f"a Row has no {name!r}")
            if name in _WHOLE:  # tokens and times are needed for every batch, so this is fast
                found = getattr(_WHOLE_ARRAYS.decode(self._packed), name)
                return np.frombuffer(found, _ROW_DTYPES[name])
            return getattr(unpack_row(msgspec.msgpack.decode(self._packed)), name)

    @property
    def runs(self) -> Runs:
        """Return the runs of the arrays that classify tokens (`_IN_RUNS`). Computed once, since
        an array is never changed in place, only in a new row (`dataclasses.replace`)."""
        if self._runs is None:
            object.__setattr__(self, "_runs", runs_of([_of_type(self, n) for n in _IN_RUNS]))
        return cast("Runs", self._runs)

    @property
    def counts(self) -> Counts:
        """Return the counts, computed once, like `runs`."""
        if self._counts is None:
            sampled, trained, versions = 0, 0, set[int]()
            lengths, (masks, of, *_) = self.runs
            for length, trains, version in zip(
                lengths.tolist(), masks.tolist(), of.tolist(), strict=True
            ):
                if version != NOT_SAMPLED:
                    sampled += length
                if trains:
                    trained += length
                    versions.add(version)
            object.__setattr__(self, "_counts", Counts(sampled, trained, sorted(versions)))
        return cast("Counts", self._counts)

    @property
    def num_trained(self) -> int:
        return self.counts.trained

    @property
    def beginning(self) -> IntArray:
        """Return the tokens, or numbers in place of unknown ones that are equal where tokens are:
        beginnings that rows share are found by them."""
        return self.tokens

    def head(self, num_tokens: int) -> Row:
        """Return a row of the first `num_tokens` tokens."""
        parts = {name: getattr(self, name)[:num_tokens] for name in _ROW_DTYPES}
        for name in _EXTRAS:
            extra = getattr(self, name)
            parts[name] = extra and extra.head(num_tokens)
        return replace(self, **parts)


_ROW_DTYPES: dict[str, Any] = {
    "tokens": np.dtype(np.int32),
    "loss_mask": np.dtype(np.bool_),
    "behavior_logprobs": np.dtype(np.float32),
    "policy_versions": np.dtype(np.int32),
    "admitted_versions": np.dtype(np.int32),
    "temperatures": np.dtype(np.float32),
    "turn_ids": np.dtype(np.int32),
    "times_s": np.dtype(np.float64),
}


_EXTRAS: dict[str, type[Choices] | type[Experts] | type[TeacherLogprobs]] = {
    "choices": Choices,
    "experts": Experts,
    "teacher_logprobs": TeacherLogprobs,
}
"""The optional records, which few rows have."""
_PACKED_AS = {name: name for name in _EXTRAS} | {"teacher_logprobs": "told"}
"""The key of each optional record in a packed row."""


class _WholeArrays(msgspec.Struct):
    """The arrays of a packed row that are not stored as runs, decoded separately and without a
    copy."""

    tokens: memoryview
    behavior_logprobs: memoryview
    times_s: memoryview


_WHOLE_ARRAYS = msgspec.msgpack.Decoder(_WholeArrays)

_IN_RUNS = ("loss_mask", "policy_versions", "admitted_versions", "temperatures", "turn_ids")
"""The arrays that are constant over many tokens."""
_WHOLE = ("tokens", "behavior_logprobs", "times_s")


def _of_type(row: Row, name: str) -> npt.NDArray[Any]:
    array, dtype = getattr(row, name), _ROW_DTYPES[name]
    return array if array.dtype is dtype else array.astype(dtype)


def pack_row(row: Row) -> dict[str, Any]:
    """Return a row as raw little-endian blocks and its lineage, ready for msgpack. Arrays that
    seldom change are stored as their `runs`: half of the bytes."""
    blocks: dict[str, Any] = {name: _of_type(row, name).tobytes() for name in _WHOLE}
    lengths, values = row.runs
    blocks["runs"] = lengths.tobytes()
    for name, of in zip(_IN_RUNS, values, strict=True):
        blocks[name] = of.tobytes()
    blocks["lineage"], blocks["parent"] = row.lineage, row.parent
    return blocks | _packed_extras(row)


def _packed_extras(row: Row) -> dict[str, Any]:
    found = {name: getattr(row, name) for name in _EXTRAS}
    return {_PACKED_AS[name]: extra.pack() for name, extra in found.items() if extra is not None}


def _unpacked_extras(blocks: Mapping[str, Any], length: int) -> dict[str, Any]:
    kinds = [(name, _PACKED_AS[name], kind) for name, kind in _EXTRAS.items()]
    return {n: kind.unpack(blocks[at], length=length) for n, at, kind in kinds if at in blocks}


def unpack_row(blocks: Mapping[str, Any]) -> Row:
    """Return the row of blocks from `pack_row`; rows of earlier versions have no runs, and only the
    main lineage.

    Raises:
        ValueError, KeyError, TypeError: the blocks are not a row.
    """
    arrays: dict[str, Any] = {
        name: np.frombuffer(blocks[name], dtype) for name, dtype in _ROW_DTYPES.items()
    }
    if "runs" in blocks:
        runs = Runs(np.frombuffer(blocks["runs"], np.int32), [arrays[n] for n in _IN_RUNS])
        found = repeated(runs, total=len(arrays["tokens"]))
        arrays |= zip(_IN_RUNS, found, strict=True)
    extras = _unpacked_extras(blocks, len(arrays["tokens"]))
    lineage, parent = int(blocks.get("lineage", 0)), int(blocks.get("parent", -1))
    return Row(**arrays, lineage=lineage, parent=parent, **extras)


_LEAST_SHARED = 64
"""The fewest tokens at the beginning of a row that are stored by reference to another row."""
_SHARED = tuple(name for name in _ROW_DTYPES if name != "loss_mask")
"""The arrays that rows with a common beginning share; `loss_mask` differs, since a token trains in
one row only."""


def packed_rows(rows: Sequence[Row]) -> list[Any]:
    """Return the rows of an episode for msgpack; a beginning that a row shares with an earlier row
    is stored once."""
    packed: list[Any] = [msgspec.Raw(row.packed) for row in rows[:1]]
    # Rows that are kept packed would unpack an array at each access; so they are unpacked once.
    opened = [replace(row) for row in rows] if len(rows) > 1 else []
    for index, row in enumerate(opened[1:], 1):
        other, count = _most_shared(row, opened[:index])
        if count < _LEAST_SHARED:
            packed.append(msgspec.Raw(rows[index].packed))
            continue
        arrays = {name: getattr(row, name)[count:] for name in _ROW_DTYPES}
        blocks = pack_row(replace(row, **arrays, **dict.fromkeys(_EXTRAS)))
        blocks["shared"] = [other, count]
        blocks["head_mask"] = np.packbits(row.loss_mask[:count]).tobytes()
        blocks |= _packed_extras(row)
        if row.experts is not None and row.experts.continues(opened[other].experts, count):
            blocks["experts"] = row.experts.tail(count).pack()
        packed.append(blocks)
    return packed


def _most_shared(row: Row, earlier: Sequence[Row]) -> tuple[int, int]:
    """Return the index of the row with the longest beginning in common with `row`, and its
    length."""
    best = (0, 0)
    for index, other in enumerate(earlier):
        count = min(len(row), len(other))
        for name in _SHARED:  # the tokens come first: most rows differ there already
            differ = getattr(row, name)[:count] != getattr(other, name)[:count]
            count = int(differ.argmax()) if differ.any() else count
            if count <= best[1]:
                break
        else:
            best = (index, count)
    return best


def unpacked_rows(packed: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the blocks of `packed_rows`.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the blocks are not rows.
    """
    rows: list[Row] = []
    for blocks in packed:
        if "shared" not in blocks:
            rows.append(unpack_row(blocks))
            continue
        index, count = map(int, blocks["shared"])
        if not 0 <= count <= len(rows[index]):  # before memory is allocated for that many
            raise ValueError(f"{count} tokens in common with a row of {len(rows[index])}")
        tail = unpack_row(
            {name: of for name, of in blocks.items() if name not in _PACKED_AS.values()}
        )
        head = rows[index].head(count)
        mask = np.unpackbits(np.frombuffer(blocks["head_mask"], np.uint8), count=count)
        pairs: dict[str, Any] = {n: (getattr(head, n), getattr(tail, n)) for n in _SHARED}
        arrays: dict[str, Any] = {name: np.concatenate(pair) for name, pair in pairs.items()}
        arrays["loss_mask"] = np.concatenate([mask.astype(np.bool_), tail.loss_mask])
        length = count + len(tail)
        if "experts" in blocks and int(blocks["experts"]["shape"][0]) < length:
            rest = Experts.unpack(blocks["experts"], length=len(tail))
            blocks = {name: of for name, of in blocks.items() if name != "experts"}
            arrays["experts"] = rest.after(head.experts)
        rows.append(replace(tail, **arrays, **_unpacked_extras(blocks, length)))
    return rows
