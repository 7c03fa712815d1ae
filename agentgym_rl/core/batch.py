"""Training batches: what the controller hands to trainer ranks, and what they report back.

One batch is one policy version. The controller fixes the split into ranks and minibatches, so
any number of ranks computes the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .trajectory import UNPACK_ERRORS, Row, unpack_row


@dataclass(frozen=True, slots=True, eq=False)
class BatchRow:
    """A row with its place in the batch."""

    row: Row
    episode: int
    """Index into the batch's `rewards` and `group_ids`; rows of one episode share it."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchShard:
    """One rank's share of a training batch.

    `rewards`, `group_ids` and the counts describe the WHOLE batch (every rank gets the same),
    `minibatches` only this rank's rows. Every rank has the same number of minibatches; one of
    them may be empty.
    """

    step: int
    """0-based; also the policy version current when the batch was assembled."""
    rewards: Sequence[float]
    """Per episode of the batch."""
    group_ids: Sequence[str]
    """Per episode of the batch."""
    num_trained_tokens: int
    """Tokens with loss_mask True, whole batch."""
    num_episodes: int
    """Episodes with at least one trained token, whole batch."""
    minibatches: Sequence[Sequence[BatchRow]]
    weights: Sequence[float] = ()
    """Per episode of the batch, of its task; multiplies its advantage. Empty: all are 1."""
    turn_returns: Sequence[Sequence[float]] = ()
    """Per episode of the batch, per turn: what `Credit.turn_returns` says; an episode without
    such rewards has none. Empty: no episode has any."""
    lengths: Sequence[int] = ()
    """Per episode of the batch: its trained tokens."""
    names: Sequence[str] = ()
    """Per episode of the batch: its id and environment, for errors. Empty: not known."""
    checkpoint: bool = False
    """Whether what this batch makes is to be saved, beyond `trainer.checkpoint_every`."""

    def pack(self) -> bytes:
        """Bytes for the wire (msgpack)."""
        head = {name: getattr(self, name) for name in _HEAD}
        head["minibatches"] = [
            [{"episode": item.episode, "row": msgspec.Raw(item.row.packed)} for item in minibatch]
            for minibatch in self.minibatches
        ]
        return msgspec.msgpack.encode(head)

    @classmethod
    def unpack(cls, data: bytes) -> BatchShard:
        """The inverse of `pack`; raises ValueError on anything else."""
        try:
            head: dict[str, Any] = msgspec.msgpack.decode(data)
            minibatches = [
                [BatchRow(unpack_row(item["row"]), item["episode"]) for item in minibatch]
                for minibatch in head.pop("minibatches")
            ]
            return cls(**head, minibatches=minibatches)
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a batch ({len(data)} bytes): {error}") from error


_HEAD = (
    *("step", "rewards", "group_ids", "num_trained_tokens", "num_episodes", "weights"),
    *("turn_returns", "lengths", "names", "checkpoint"),
)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Rank 0's report once step `step` is trained and version `version` is on every engine."""

    step: int
    version: int
    metrics: Mapping[str, float]
    """Names of docs/metrics.md: loss, mismatch/…, policy/…, grad_norm, lr, time/…"""
    intervals: Sequence[tuple[str, float, float]] = field(default_factory=list)
    """(phase, start, end) in CLOCK_MONOTONIC seconds; phases rollout_wait, proximal,
    forward_backward, optimizer, weight_sync, checkpoint; where there are such models, reference,
    values and critic."""
    group_ids: Sequence[str] = ()
    """The groups it trained on, in the order of the batch, as the trainer saw them."""
    parameters: str = ""
    """A hash of the weights of `version` (trainer.fingerprint)."""
    others: Mapping[str, Sequence[tuple[str, float, float]]] = field(default_factory=dict)
    """`intervals` of other processes, by name: trainer ranks, and the pauses of engines."""

    def pack(self) -> bytes:
        """Bytes for the wire (msgpack)."""
        return msgspec.msgpack.encode({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def unpack(cls, data: bytes) -> StepReport:
        """The inverse of `pack`; raises ValueError on anything else."""
        try:
            head: dict[str, Any] = msgspec.msgpack.decode(data)
            head["intervals"] = [tuple(item) for item in head["intervals"]]
            head["others"] = {
                str(name): [tuple(item) for item in found] for name, found in head["others"].items()
            }
            return cls(**head)
        except UNPACK_ERRORS as error:
            raise ValueError(f"not a step report ({len(data)} bytes): {error}") from error
