"""Trajectories: what an episode leaves behind, token for token (numpy, no torch)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from .run_length import Runs, repeated, runs_of

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
TimeArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NOT_SAMPLED = -1
"""`policy_versions` entry of a token no policy sampled. A sampled token whose version is lost has
`engine.UNKNOWN_VERSION` and never trains."""

IGNORED = -100
"""Label, in supervised data, of a token that is not learned: what cross-entropy of torch leaves
out."""


class Outcome(StrEnum):
    """How an episode ended. Only `completed` and `truncated` train."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    AGENT_ERROR = "agent_error"
    ENV_ERROR = "env_error"
    INFRA_ERROR = "infra_error"
    ABORTED = "aborted"
    TOO_LONG = "too_long"
    """Not played: its first prompt has more than `rollout.max_input_tokens`, or leaves no room for
    a reply in the model's context."""

    @property
    def trains(self) -> bool:
        return self in (Outcome.COMPLETED, Outcome.TRUNCATED)

    @property
    def failed(self) -> bool:
        """Whether something went wrong: neither that it trains, nor that it was left out."""
        return not self.trains and self not in (Outcome.FILTERED, Outcome.TOO_LONG)


class Counts(NamedTuple):
    """What is asked of a row again and again."""

    sampled: int
    trained: int
    versions: Sequence[int]
    """Distinct policy versions of the trained tokens, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One trainable token sequence: exactly what the engine was fed and what it sampled.

    All arrays are [T]. Entry t of the sampled arrays describes token t itself (not the next).
    """

    tokens: IntArray
    loss_mask: BoolArray
    """True on sampled tokens that train."""
    behavior_logprobs: FloatArray
    """As the engine reported them; 0 where not sampled."""
    policy_versions: IntArray
    """Version that sampled the token; NOT_SAMPLED on prompt, tool output and template glue."""
    admitted_versions: IntArray
    """Version known to serve when the token's request was sent. Where it equals the policy
    version, the token stands on KV of that version alone; NOT_SAMPLED where not sampled."""
    temperatures: FloatArray
    """Temperature the token was sampled at; 0 where not sampled."""
    turn_ids: IntArray
    """0-based sampled turn of the token within the episode; -1 where not sampled."""
    times_s: TimeArray
    """CLOCK_MONOTONIC end of the token's decode step; 0 where not sampled."""
    lineage: int = 0
    """Which of the episode's conversations it is of: 0 is the main one, others are of helpers."""
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

    def __len__(self) -> int:
        return self._length

    @property
    def packed(self) -> bytes:
        """As `pack_row` says, in msgpack."""
        return self._packed or msgspec.msgpack.encode(pack_row(self))

    def keep_packed(self) -> None:
        """Have nothing from now on but `packed` and the counts: half the memory, in one piece, and
        nothing is to be packed again. An array that is asked for is made anew each time."""
        if self._packed is not None:
            return
        _ = self.counts  # of the arrays, which go
        whole = memoryview(self.packed).tobytes()  # msgspec's bytes have room to grow: half as much
        object.__setattr__(self, "_packed", whole)
        object.__setattr__(self, "_runs", None)
        for name in _ROW_DTYPES:
            object.__delattr__(self, name)

    if not TYPE_CHECKING:  # all that is not declared would be an attribute

        def __getattr__(self, name: str) -> Any:
            """An array that `keep_packed` let go: what has no value is looked for here."""
            if name not in _ROW_DTYPES:
                raise AttributeError(f"a Row has no {name!r}")
            if name == "times_s":  # every batch is asked when its tokens were sampled
                return np.frombuffer(_TIMES.decode(self._packed).times_s, _ROW_DTYPES[name])
            return getattr(unpack_row(msgspec.msgpack.decode(self._packed)), name)

    @property
    def runs(self) -> Runs:
        """Of the arrays that say what kind of token each is (`_IN_RUNS`). Found once: who changes
        an array makes another row of it (`dataclasses.replace`)."""
        if self._runs is None:
            object.__setattr__(self, "_runs", runs_of([_of_type(self, n) for n in _IN_RUNS]))
        return cast("Runs", self._runs)

    @property
    def counts(self) -> Counts:
        """Counted once, as `runs` are."""
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
        """The first tokens of it."""
        return replace(self, **{name: getattr(self, name)[:num_tokens] for name in _ROW_DTYPES})


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


class _Times(msgspec.Struct):
    """Of a packed row this alone, without a copy."""

    times_s: memoryview


_TIMES = msgspec.msgpack.Decoder(_Times)

_IN_RUNS = ("loss_mask", "policy_versions", "admitted_versions", "temperatures", "turn_ids")
"""Arrays that are the same over many tokens."""
_WHOLE = ("tokens", "behavior_logprobs", "times_s")


def _of_type(row: Row, name: str) -> npt.NDArray[Any]:
    array, dtype = getattr(row, name), _ROW_DTYPES[name]
    return array if array.dtype is dtype else array.astype(dtype)


def pack_row(row: Row) -> dict[str, Any]:
    """A row as raw little-endian blocks and its lineage, ready for msgpack. Of arrays that seldom
    change there are the `runs`: half of the bytes."""
    blocks: dict[str, Any] = {name: _of_type(row, name).tobytes() for name in _WHOLE}
    lengths, values = row.runs
    blocks["runs"] = lengths.tobytes()
    for name, of in zip(_IN_RUNS, values, strict=True):
        blocks[name] = of.tobytes()
    blocks["lineage"] = row.lineage
    return blocks


def unpack_row(blocks: Mapping[str, Any]) -> Row:
    """The inverse of `pack_row`; rows of earlier versions have no runs, and no lineage but the main
    one.

    Raises:
        ValueError, KeyError, TypeError: they are no row.
    """
    arrays: dict[str, Any] = {
        name: np.frombuffer(blocks[name], dtype) for name, dtype in _ROW_DTYPES.items()
    }
    if "runs" in blocks:
        runs = Runs(np.frombuffer(blocks["runs"], np.int32), [arrays[n] for n in _IN_RUNS])
        found = repeated(runs, total=len(arrays["tokens"]))
        arrays |= zip(_IN_RUNS, found, strict=True)
    return Row(**arrays, lineage=int(blocks.get("lineage", 0)))


MAX_REWARD = 1e12
"""Largest reward, up or down: squares and weighted sums of those beyond it overflow in training."""


def added_reward(before: float, value: float, *, what: str = "a reward") -> float:
    """Return `before` and a reward `value` on top of it; errors call the reward `what`.

    Raises:
        ValueError: the value or the sum is not a finite number within ±MAX_REWARD.
    """
    if -MAX_REWARD <= value <= MAX_REWARD and -MAX_REWARD <= before + value <= MAX_REWARD:
        return float(before + value)
    after = f" after {before:g}" if before else ""
    raise ValueError(
        f"{what} must be finite, and so must the sum, within ±{MAX_REWARD:g}; got "
        f"{value!s:.40}{after}"
    )


@dataclass(frozen=True, slots=True)
class Credit:
    """What a session was paid, beside what the environment pays, and which turn follows which."""

    episode_reward: float = 0.0
    parents: Sequence[int] = ()
    """Per turn: the turn before it in its conversation, a smaller number; -1: none."""
    lineages: Sequence[int] = ()
    """Per turn."""
    turn_rewards: Sequence[float] = ()
    """Per turn; empty where no turn and no lineage was paid anything."""
    lineage_rewards: Sequence[float] = ()
    """Per lineage; empty likewise."""

    def turn_returns(self, discount: float) -> list[float]:
        """Per turn: its lineage's reward, and its own and those of all turns that follow from it,
        each discounted by its distance along the conversation, never by the order of sampling.
        Empty where nothing was paid to them."""
        if not self.turn_rewards:
            return []
        returns = [float(reward) for reward in self.turn_rewards]
        for turn in reversed(range(len(returns))):
            if self.parents[turn] >= 0:
                returns[self.parents[turn]] += discount * returns[turn]
        pairs = zip(returns, self.lineages, strict=True)
        return [value + self.lineage_rewards[lineage] for value, lineage in pairs]


NO_CREDIT = Credit()


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """An episode's record. `reward` is the sum of the environment's step rewards, and of what the
    session was paid for the whole episode."""

    episode_id: str
    group_id: str
    task_id: str
    outcome: Outcome
    reward: float
    rows: Sequence[Row]
    num_turns: int = 0
    """Sampled turns (requests the engine answered)."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers worth averaging: `tool_calls`, `invalid_actions`, the env's own."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The conversation as the agent saw it, for people to read."""
    error: str = ""
    """What went wrong, for the outcomes that are errors."""
    env_id: str = ""
    """The environment that played: `info["env_id"]` of `reset`, or else the configured one."""
    actions_json: Sequence[bytes] | None = None
    """The messages given to `env.step`, as JSON; None: not recorded (logs of earlier versions)."""
    answers: Sequence[int] = ()
    """Checksums of what `reset` and each of these steps answered (see `transcript`)."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools that `messages` were sampled with; empty also in logs of earlier versions."""
    credit: Credit = NO_CREDIT
    """What was paid through the session. Its episode reward is part of `reward`; those of turns
    and lineages are not."""
    verdict: str = ""
    """What the verifier said, for people to read; empty also in logs of earlier versions."""

    @property
    def actions(self) -> list[dict[str, Any]] | None:
        """The assistant messages exactly as they were given to `env.step`; None: not recorded."""
        return None if self.actions_json is None else [json.loads(a) for a in self.actions_json]

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
        """Lowest policy version among trained tokens; None if none trains."""
        return min((r.counts.versions[0] for r in self.rows if r.counts.trained), default=None)

    @property
    def trained_versions(self) -> Sequence[int]:
        """Distinct policy versions of the trained tokens, ascending; empty if none trains."""
        if len(self.rows) == 1:
            return self.rows[0].counts.versions
        return sorted({version for row in self.rows for version in row.counts.versions})

    def keep_packed(self) -> None:
        """See `Row.keep_packed`."""
        for row in self.rows:
            row.keep_packed()

    def pack(self) -> bytes:
        """Bytes for the durable log and the wire (msgpack)."""
        record: dict[str, Any] = {
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
            "rows": [msgspec.Raw(row.packed) for row in self.rows],
        }
        try:
            return msgspec.msgpack.encode(record)
        except (UnicodeEncodeError, TypeError):  # seldom: what agents write is nearly always plain
            record["messages"] = _encodable([*self.messages])
            record["tools"] = _encodable([*self.tools])
            record["error"] = _encodable(self.error)
            record["verdict"] = _encodable(self.verdict)
            return msgspec.msgpack.encode(record)

    @classmethod
    def unpack(cls, data: bytes) -> Trajectory:
        """The inverse of `pack`.

        Raises:
            ValueError: the bytes are truncated or not a trajectory.
        """
        try:
            head: dict[str, Any] = msgspec.msgpack.decode(data)
            rows = [unpack_row(blocks) for blocks in head.pop("rows")]
            outcome = Outcome(head.pop("outcome"))
            credit = Credit(**head.pop("credit", {}))  # earlier versions knew none
            return cls(**head, outcome=outcome, rows=rows, credit=credit)
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a trajectory ({len(data)} bytes): {error}") from error


def by_env(episodes: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Episodes by the environment that played them, its id in order; those that say it."""
    found: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.env_id:
            found.setdefault(episode.env_id, []).append(episode)
    return dict(sorted(found.items()))


def forks_json(metrics: Mapping[str, float]) -> str:
    """How often an episode forked, by cause, as JSON; causes of which there are none are left out.

    `metrics` are an episode's, with the gateway's counters `forks_CAUSE`.
    """
    if not metrics.get("forks", 1):  # their sum: nearly always 0
        return "{}"
    return json.dumps(
        {name[6:]: int(n) for name, n in metrics.items() if n and name[:6] == "forks_"}
    )


UNPACK_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What foreign bytes can raise on the way through msgpack and our constructors."""


def _encodable(value: Any) -> Any:
    """Plain JSON without lone surrogates: models do write them, UTF-8 has none."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value)
        return {_encodable(key): _encodable(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in cast("Sequence[Any]", value)]
    return value
