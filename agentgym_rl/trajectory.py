"""Trajectories: what an episode leaves behind, token for token (numpy, no torch)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
TimeArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NOT_SAMPLED = -1
"""`policy_versions` entry of a token no policy sampled. A sampled token whose version is lost has
`engine.UNKNOWN_VERSION` and never trains."""


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
    """Not played: its first prompt has more than `rollout.max_input_tokens`."""

    @property
    def trains(self) -> bool:
        return self in (Outcome.COMPLETED, Outcome.TRUNCATED)

    @property
    def failed(self) -> bool:
        """Whether something went wrong: neither that it trains, nor that it was left out."""
        return not self.trains and self not in (Outcome.FILTERED, Outcome.TOO_LONG)


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

    def __post_init__(self) -> None:
        length = len(self.tokens)
        for name in _ROW_DTYPES:
            array = getattr(self, name)
            if array.shape != (length,):
                raise ValueError(f"Row.{name} has shape {array.shape}, expected ({length},)")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask.sum())


_ROW_DTYPES: dict[str, Any] = {
    "tokens": np.int32,
    "loss_mask": np.bool_,
    "behavior_logprobs": np.float32,
    "policy_versions": np.int32,
    "admitted_versions": np.int32,
    "temperatures": np.float32,
    "turn_ids": np.int32,
    "times_s": np.float64,
}


def pack_row(row: Row) -> dict[str, bytes]:
    """A row as raw little-endian blocks, ready for msgpack."""
    return {name: getattr(row, name).astype(dtype).tobytes() for name, dtype in _ROW_DTYPES.items()}


def unpack_row(blocks: Mapping[str, bytes]) -> Row:
    """The inverse of `pack_row`."""
    arrays: dict[str, Any] = {
        name: np.frombuffer(blocks[name], dtype) for name, dtype in _ROW_DTYPES.items()
    }
    return Row(**arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """An episode's record. `reward` is the sum of the environment's step rewards."""

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
    def trained_versions(self) -> list[int]:
        """Distinct policy versions of the trained tokens, ascending; empty if none trains."""
        versions = [row.policy_versions[row.loss_mask] for row in self.rows]
        return np.unique(np.concatenate(versions)).tolist() if versions else []

    def pack(self) -> bytes:
        """Bytes for the durable log and the wire (msgpack)."""
        return msgspec.msgpack.encode(
            {
                "episode_id": self.episode_id,
                "group_id": self.group_id,
                "task_id": self.task_id,
                "outcome": self.outcome.value,
                "reward": float(self.reward),  # environments like to return numpy scalars
                "num_turns": self.num_turns,
                "metrics": {name: float(value) for name, value in self.metrics.items()},
                "messages": _encodable([*self.messages]),
                "tools": _encodable([*self.tools]),
                "error": _encodable(self.error),
                "env_id": self.env_id,
                "actions_json": self.actions_json,
                "answers": self.answers,
                "rows": [pack_row(row) for row in self.rows],
            }
        )

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
            return cls(**head, outcome=outcome, rows=rows)
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a trajectory ({len(data)} bytes): {error}") from error


def by_env(episodes: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Episodes by the environment that played them, its id in order; those that say it."""
    found: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.env_id:
            found.setdefault(episode.env_id, []).append(episode)
    return dict(sorted(found.items()))


UNPACK_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What foreign bytes can raise on the way through msgpack and our constructors."""


def _encodable(value: Any) -> Any:
    """JSON without lone surrogates: models do write them, UTF-8 has none."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value)
        return {_encodable(key): _encodable(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in cast("Sequence[Any]", value)]
    return value
