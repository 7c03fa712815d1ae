"""The training batches that the controller sends to trainer ranks, and the reports on them.

One batch is one policy version. The controller fixes the split into ranks and minibatches, so
any number of ranks computes the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .credit import Credit
from .row import Row, unpack_row
from .trajectory import UNPACK_ERRORS


@dataclass(frozen=True, slots=True, eq=False)
class BatchRow:
    """A row and the index of its episode in the batch."""

    row: Row
    episode: int
    """The index into the batch's `rewards` and `group_ids`; rows of one episode share it."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchShard:
    """The share of one rank of a training batch.

    `rewards`, `group_ids` and the counts describe the COMPLETE batch (every rank gets the same),
    `minibatches` only this rank's rows. Every rank has the same number of minibatches; one of them
    may be empty.
    """

    step: int
    """The 0-based step; also the policy version current when the batch was assembled."""
    rewards: Sequence[float]
    """The reward per episode of the batch."""
    group_ids: Sequence[str]
    """The group ID per episode of the batch."""
    num_trained_tokens: int
    """The number of tokens with loss_mask True in the complete batch."""
    num_episodes: int
    """The number of episodes with at least one trained token in the complete batch."""
    minibatches: Sequence[Sequence[BatchRow]]
    weights: Sequence[float] = ()
    """The weight of the task per episode of the batch, a factor of its advantage. Empty: all 1."""
    of_tasks: Mapping[str, Sequence[Sequence[float]]] = field(
        default_factory=dict[str, Sequence[Sequence[float]]]
    )
    """The numbers that a term of the objective needs per episode of the batch, by the term's name:
    they depend on the episode's task."""
    turn_returns: Sequence[Sequence[float]] = ()
    """The returns per episode of the batch, per turn, from `Credit.turn_returns`; an episode
    without turn rewards has none. Empty: no episode has any."""
    credits: Sequence[Credit] = ()
    """The rewards of turns and lineages per episode of the batch, from which `turn_returns` are
    computed. Empty: no episode has any."""
    lengths: Sequence[int] = ()
    """The number of trained tokens per episode of the batch, also of those that are left out."""
    truncated: Sequence[bool] = ()
    """Whether the episode was cut off, per episode of the batch. Empty: not known."""
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """The parts of rewards by name (`algo.reward.parts`), each per episode of the batch."""
    names: Sequence[str] = ()
    """The ID and environment per episode of the batch, for errors. Empty: not known."""
    seats: Sequence[str] = ()
    """The seat per episode of the batch; a game with several seats has an "episode" for each seat
    of the policy. Empty: there are no games."""

    @property
    def compared(self) -> Sequence[object]:
        """Return the group and the seat of each episode of the batch: an episode is compared with
        those that have the same."""
        return [*zip(self.group_ids, self.seats, strict=True)] if self.seats else self.group_ids

    def pack(self) -> bytes:
        """Return the bytes for the wire (msgpack)."""
        head = {name: getattr(self, name) for name in _HEAD}
        head["minibatches"] = [
            [{"episode": item.episode, "row": msgspec.Raw(item.row.packed)} for item in minibatch]
            for minibatch in self.minibatches
        ]
        return msgspec.msgpack.encode(head)

    @classmethod
    def unpack(cls, data: bytes) -> BatchShard:
        """Decode the output of `pack`; raises ValueError on anything else."""
        try:
            head: dict[str, Any] = msgspec.msgpack.decode(data)
            minibatches = [
                [BatchRow(unpack_row(item["row"]), item["episode"]) for item in minibatch]
                for minibatch in head.pop("minibatches")
            ]
            credits = [Credit(**it) for it in head.pop("credits")]
            return cls(**head, credits=credits, minibatches=minibatches)
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a batch ({len(data)} bytes): {error}") from error


_HEAD = (
    *("step", "rewards", "group_ids", "num_trained_tokens", "num_episodes", "weights"),
    *(
        "of_tasks",
        "turn_returns",
        "credits",
        "lengths",
        "truncated",
        "parts",
        "names",
        "seats",
    ),
)


Intervals = Sequence[tuple[str, float, float]]
"""The (phase, start, end) of phases, in CLOCK_MONOTONIC seconds."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of a trained batch, which has become policy version `version`."""

    step: int
    version: int
    metrics: Mapping[str, float]
    """The metrics, as in docs/metrics.md: loss, mismatch/…, policy/…, grad_norm, lr, time/…"""
    intervals: Intervals = ()
    """The intervals of rank 0; phases rollout_wait, proximal, forward_backward, optimizer,
    weight_sync, checkpoint; and those of terms with models of their own, such as reference."""
    group_ids: Sequence[str] = ()
    """The IDs of the trained groups, in the order of the batch, as the trainer saw them."""
    parameters: str = ""
    """A hash of the weights of `version` (trainer.fingerprint)."""
    others: Mapping[str, Intervals] = field(default_factory=dict[str, Intervals])
    """The `intervals` of other processes, by name: trainer ranks, and the pauses of engines."""
    warnings: Sequence[str] = ()
    """The warnings of the ranks for the run's console."""

    def pack(self) -> bytes:
        """Return the bytes for the wire (msgpack)."""
        return msgspec.msgpack.encode({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def unpack(cls, data: bytes) -> StepReport:
        """Decode the output of `pack`; raises ValueError on anything else."""
        try:
            head: dict[str, Any] = msgspec.msgpack.decode(data)
            head["intervals"] = [tuple(item) for item in head["intervals"]]
            head["others"] = {
                str(name): [tuple(item) for item in found] for name, found in head["others"].items()
            }
            return cls(**head)
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a step report ({len(data)} bytes): {error}") from error
