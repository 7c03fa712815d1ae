"""Passes over a rank's rows that all ranks make in step: one without gradients, and one with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from agentgym_rl.algo.packing import PackedRows

from .packed import PackedModel
from .shard_tensors import MicroBatch, ShardTokens
from .world import World


class Looked(Protocol):
    """A model that is only evaluated."""

    world: World

    def idle(self) -> Tensor: ...


@torch.no_grad()
def frozen_pass(
    model: Looked, say: Callable[[PackedRows], Tensor], tokens: ShardTokens, *, budget: int
) -> Tensor:
    """Return [N], the result of `say`, a method of `model`, for every trained token; collective."""
    batches = tokens.micro_batches(range(len(tokens.rows)), budget)
    (rounds,) = model.world.maxima([len(batches)])
    result = torch.empty(len(tokens.episodes), dtype=torch.float32)
    for turn in range(rounds):
        if turn < len(batches):
            found = say(batches[turn].packed).cpu()
            result = result.to(found.dtype)
            result[batches[turn].index] = found
        else:
            model.idle()
    return result


def accumulate(
    model: PackedModel,
    plan: Sequence[MicroBatch],
    num_rounds: int,
    loss_of: Callable[[MicroBatch], Tensor],
) -> float:
    """Accumulate the gradients of one minibatch over its micro-batches and over ranks (collective);
    return this rank's part of its loss."""
    total = 0.0
    for turn in range(num_rounds):
        model.synchronize_gradients(turn == num_rounds - 1)
        if turn < len(plan):
            loss = loss_of(plan[turn])
            total += loss.item()
        else:
            loss = model.idle()
        # FSDP averages gradients over ranks, but the loss is a sum over them.
        (loss * model.world.size).backward()
    return total
