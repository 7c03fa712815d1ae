"""Passes over a rank's rows that every rank makes in step: one to look, and one to learn."""

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
    """A model that one only looks at."""

    world: World

    def idle(self) -> Tensor: ...


@torch.no_grad()
def frozen_pass(
    model: Looked, say: Callable[[PackedRows], Tensor], tokens: ShardTokens, *, budget: int
) -> Tensor:
    """[N] what `say`, a method of `model`, says of every trained token; collective."""
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
    """Gradients of one minibatch, summed over its micro-batches and over ranks (collective); this
    rank's part of its loss."""
    total = 0.0
    for turn in range(num_rounds):
        model.synchronize_gradients(turn == num_rounds - 1)
        if turn < len(plan):
            loss = loss_of(plan[turn])
            total += loss.item()
        else:
            loss = model.idle()
        # FSDP averages gradients over ranks; the loss is a sum over them.
        (loss * model.world.size).backward()
    return total
