"""The trajectory, the record of an episode, token for token (numpy, no torch)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from .chat import is_list, is_mapping, is_tuple
from .credit import NO_CREDIT, Credit
from .parse import parse_json
from .row import Row, packed_rows, unpacked_rows

POLICY = "policy"
"""The name of the trained policy as the player of a seat."""


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
        """Return whether no episode of the task can be played, so that the task is left out."""
        return self in (Outcome.TOO_LONG, Outcome.NO_IMAGE)


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
    """The conversation as the agent saw it, for display."""
    error: str = ""
    """The error message, for the outcomes that are errors."""
    env_id: str = ""
    """The environment that played: `info["env_id"]` of `reset`, or else the configured one."""
    actions_json: Sequence[bytes] | None = None
    """The messages given to `env.step`, as JSON; None: not recorded (logs of earlier versions)."""
    answers: Sequence[int] = ()
    """The checksums of the results of `reset` and of each step (see `transcript`)."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools with which `messages` were sampled; empty also in logs of earlier versions."""
    credit: Credit = NO_CREDIT
    """The rewards given through the session. The episode reward is part of `reward`; those of turns
    and lineages are not."""
    verdict: str = ""
    """The verifier's report, for display; empty also in logs of earlier versions."""
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """The parts of the reward by name, for display; empty also in logs of earlier versions."""
    group_reward: float | None = None
    """The part of `reward` from `rollout.group_reward`; None: it was not called."""
    seat: str = ""
    """The seat whose part of a game this trajectory records; empty: it records a complete
    episode."""
    player: str = ""
    """The player of the seat, as in `rollout.seats`."""
    seats: Sequence[Trajectory] = ()
    """The trajectories of the seats of a game that agents played. `rows` has the rows of all seats,
    one seat after the other; turns, lineages and rows are numbered throughout the game, and all
    seats have the game's `credit`. `reward` and `metrics` are the means over the seats of the
    policy."""

    @property
    def parts(self) -> Sequence[Trajectory]:
        """Return the trajectories that get separate advantages: the policy's seats of a game, or
        else the episode itself."""
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
        """Return the episode with a reward added for each turn. It enters the advantages of the
        turn's tokens and, with `algo.turn_discount`, of the turns before it.

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
        head, rows = self._head(), packed_rows(self.rows)
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
            "reward_parts": self.reward_parts,
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
            return cls._of(head, unpacked_rows(head.pop("rows")))
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a trajectory ({len(data)} bytes): {error}") from error

    @classmethod
    def _of(cls, head: dict[str, Any], rows: Sequence[Row]) -> Trajectory:
        """Return the trajectory with this output of `_head`, which is modified, and these rows."""
        outcome = Outcome(head.pop("outcome"))
        credit = Credit(**head.pop("credit", {}))  # earlier versions have none
        seats, start = list[Trajectory](), 0
        for seat in head.pop("seats", ()):  # nor these
            end = start + int(seat.pop("num_rows"))
            seats.append(cls._of(seat, rows[start:end]))
            start = end
        return cls(**head, outcome=outcome, rows=rows, credit=credit, seats=seats)


def forks_json(metrics: Mapping[str, float]) -> str:
    """Return the number of an episode's forks by cause, as JSON, without causes of no fork.

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
    """Return plain JSON without unpaired surrogates, which models write and UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if is_mapping(value):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if is_list(value) or is_tuple(value):
        return [_encodable(item) for item in value]
    return value
