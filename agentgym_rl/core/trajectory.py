"""The trajectory, the record of an episode, token for token (numpy, no torch)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from .chat import is_list, is_mapping, is_tuple
from .credit import NO_CREDIT, Credit
from .parse import parse_json
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


POLICY = "policy"
"""The player of a seat that is the trained policy."""


class Outcome(StrEnum):
    """The way an episode ended. Only `completed` and `truncated` train."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    AGENT_ERROR = "agent_error"
    ENV_ERROR = "env_error"
    INFRA_ERROR = "infra_error"
    ABORTED = "aborted"
    TOO_LONG = "too_long"
    """The outcome of an episode whose first prompt has more than `rollout.max_input_tokens`, or
    leaves no room for a reply in the model's context, so that it is not played."""
    NO_IMAGE = "no_image"
    """The outcome of an episode whose task's image cannot be built here, so that it is not
    played."""

    @property
    def trains(self) -> bool:
        return self in (Outcome.COMPLETED, Outcome.TRUNCATED)

    @property
    def failed(self) -> bool:
        """Return whether an error ended the episode: it neither trains nor was left out."""
        return not self.trains and self is not Outcome.FILTERED and not self.unplayable

    @property
    def unplayable(self) -> bool:
        """Return whether the task is left out: no episode of it can be played."""
        return self in (Outcome.TOO_LONG, Outcome.NO_IMAGE)


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
    """The number of the row's conversation in the episode: 0 is the main one, the others are of
    helpers.
    """
    parent: int = -1
    """The number of the row in the episode that this one branches off from, or whose summary it
    begins with; -1: none."""
    choices: Choices | None = None
    """The tokens that the sampled ones were chosen from; None: always the whole vocabulary."""
    experts: Experts | None = None
    """The experts that the engine chose for each token; None: not known, or there are none."""
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
        packing later. An array is then unpacked anew at each access."""
        if self._packed is not None:
            return
        _ = self.counts  # computed from the arrays, which are deleted
        # msgspec's bytes have spare room, half as much again; the copy has none.
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
"""The records that few rows have."""
_PACKED_AS = {name: name for name in _EXTRAS} | {"teacher_logprobs": "told"}
"""The key of each of these records in a packed row."""


class _WholeArrays(msgspec.Struct):
    """The arrays of a packed row that are no runs, decoded alone and without a copy."""

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
        ValueError, KeyError, TypeError: the blocks are no row.
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
"""The arrays that rows with a common beginning have in common: a token trains in one of them."""


def _packed_rows(rows: Sequence[Row]) -> list[Any]:
    """Return the rows of an episode for msgpack; what a row has in common with an earlier one from
    the beginning on is stored once."""
    packed: list[Any] = [msgspec.Raw(row.packed) for row in rows[:1]]
    # Rows that are kept packed unpack an array at each access: once is enough.
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


def _unpacked_rows(packed: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of the blocks of `_packed_rows`.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the blocks are no rows.
    """
    rows: list[Row] = []
    for blocks in packed:
        if "shared" not in blocks:
            rows.append(unpack_row(blocks))
            continue
        index, count = map(int, blocks["shared"])
        if not 0 <= count <= len(rows[index]):  # before memory is taken for as many
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


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """The record of an episode. `reward` is the sum of the environment's step rewards, of the
    session's reward for the complete episode, and of `group_reward`."""

    episode_id: str
    group_id: str
    task_id: str
    outcome: Outcome
    reward: float
    rows: Sequence[Row]
    num_turns: int = 0
    """The number of sampled turns (requests that the engine answered)."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """The numbers that are averaged: `tool_calls`, `invalid_actions`, the env's own."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The conversation as the agent saw it, for people to read."""
    error: str = ""
    """The error message, for the outcomes that are errors."""
    env_id: str = ""
    """The environment that played: `info["env_id"]` of `reset`, or else the configured one."""
    actions_json: Sequence[bytes] | None = None
    """The messages given to `env.step`, as JSON; None: not recorded (logs of earlier versions)."""
    answers: Sequence[int] = ()
    """The checksums of the answers of `reset` and of each step (see `transcript`)."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools that `messages` were sampled with; empty also in logs of earlier versions."""
    credit: Credit = NO_CREDIT
    """The rewards given through the session. The episode reward is part of `reward`; those of turns
    and lineages are not."""
    verdict: str = ""
    """The verifier's report, for people to read; empty also in logs of earlier versions."""
    group_reward: float | None = None
    """The part of `reward` that `rollout.group_reward` gave; None: it was not called."""
    seat: str = ""
    """The seat of a game whose share this trajectory is; empty: it is a complete episode."""
    player: str = ""
    """The player of the seat, as in `rollout.seats`."""
    seats: Sequence[Trajectory] = ()
    """The trajectories of the seats of a game that agents played. `rows` has the rows of all of
    them, one seat after the other; turns, lineages and rows are numbered throughout the game, whose
    `credit` all seats have. `reward` and `metrics` are the means over the seats of the policy."""

    @property
    def parts(self) -> Sequence[Trajectory]:
        """Return the parts that get advantages of their own: the policy's seats of a game, or else
        the episode itself."""
        return [seat for seat in self.seats if seat.player == POLICY] or [self]

    @property
    def actions(self) -> list[dict[str, Any]] | None:
        """Return the assistant messages exactly as given to `env.step`; None: not recorded."""
        return None if self.actions_json is None else [parse_json(a) for a in self.actions_json]

    @property
    def num_tokens(self) -> int:
        return sum(len(row) for row in self.rows)

    @property
    def num_trained(self) -> int:
        return sum(row.num_trained for row in self.rows)

    @property
    def num_sampled(self) -> int:
        return sum(row.counts.sampled for row in self.rows)

    @property
    def oldest_version(self) -> int | None:
        """Return the lowest policy version among trained tokens; None if none trains."""
        return min((r.counts.versions[0] for r in self.rows if r.counts.trained), default=None)

    @property
    def trained_versions(self) -> Sequence[int]:
        """Return the distinct versions of the trained tokens, ascending; empty if none trains."""
        if len(self.rows) == 1:
            return self.rows[0].counts.versions
        return sorted({version for row in self.rows for version in row.counts.versions})

    def with_turn_rewards(self, rewards: Sequence[float]) -> Trajectory:
        """Return the episode with a reward for each turn, added to those that its turns have: an
        advantage of the tokens of the turn and, with `algo.turn_discount`, of those before it.

        Raises:
            ValueError: there is not one finite reward for each turn.
        """
        return replace(self, credit=self.credit.with_turn_rewards(rewards))

    def keep_packed(self) -> None:
        """Keep all rows packed; see `Row.keep_packed`."""
        for row in self.rows:
            row.keep_packed()

    def pack(self) -> bytes:
        """Return bytes for the durable log and the wire (msgpack)."""
        head, rows = self._head(), _packed_rows(self.rows)
        try:
            return msgspec.msgpack.encode(head | {"rows": rows})
        except (UnicodeEncodeError, TypeError):  # seldom: agents nearly always write plain JSON
            return msgspec.msgpack.encode(_encodable(head) | {"rows": rows})

    def _head(self) -> dict[str, Any]:
        """Return everything but the rows, for msgpack."""
        return {
            "episode_id": self.episode_id,
            "group_id": self.group_id,
            "task_id": self.task_id,
            "outcome": self.outcome.value,
            "reward": float(self.reward),  # environments like to return numpy scalars
            "num_turns": self.num_turns,
            "metrics": {name: float(value) for name, value in self.metrics.items()},
            "messages": self.messages,
            "tools": self.tools,
            "error": self.error,
            "env_id": self.env_id,
            "actions_json": self.actions_json,
            "answers": self.answers,
            "credit": {name: getattr(self.credit, name) for name in Credit.__slots__},
            "verdict": self.verdict,
            "group_reward": self.group_reward,
            "seat": self.seat,
            "player": self.player,
            "seats": [seat._head() | {"num_rows": len(seat.rows)} for seat in self.seats],
        }

    @classmethod
    def unpack(cls, data: bytes) -> Trajectory:
        """Return the trajectory in the bytes of `pack`.

        Raises:
            ValueError: the bytes are truncated or not a trajectory.
        """
        try:
            head: dict[str, Any] = msgspec.msgpack.decode(data)
            return cls._of(head, _unpacked_rows(head.pop("rows")))
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a trajectory ({len(data)} bytes): {error}") from error

    @classmethod
    def _of(cls, head: dict[str, Any], rows: Sequence[Row]) -> Trajectory:
        """Return the trajectory of the output of `_head`, which is used up, and its rows."""
        outcome = Outcome(head.pop("outcome"))
        credit = Credit(**head.pop("credit", {}))  # earlier versions have none
        seats, start = list[Trajectory](), 0
        for seat in head.pop("seats", ()):  # nor these
            end = start + int(seat.pop("num_rows"))
            seats.append(cls._of(seat, rows[start:end]))
            start = end
        return cls(**head, outcome=outcome, rows=rows, credit=credit, seats=seats)


def forks_json(metrics: Mapping[str, float]) -> str:
    """Return the number of an episode's forks by cause, as JSON; causes with none are left out.

    `metrics` are an episode's, with the gateway's counters `forks_CAUSE`.
    """
    if not metrics.get("forks", 1):  # their sum: nearly always 0
        return "{}"
    return json.dumps(
        {name[6:]: int(n) for name, n in metrics.items() if n and name[:6] == "forks_"}
    )


UNPACK_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors that foreign bytes can cause in msgpack and in the constructors of this module."""


def _encodable(value: Any) -> Any:
    """Return plain JSON without lone surrogates, which models write and UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if is_mapping(value):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if is_list(value) or is_tuple(value):
        return [_encodable(item) for item in value]
    return value
