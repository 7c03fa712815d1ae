"""Packed micro-batches compared with padded ones: the same rows, model and loss."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.algo import PackedRows, pack_rows
from agentgym_rl.core import NOT_SAMPLED, BatchRow, BatchShard, Row
from agentgym_rl.trainer import MicroBatch, Policy, ShardTokens, World, accumulate
from benchmarks._toy import sized

VOCAB = 640
ROWS = 64


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of the rows of a batch."""

    name: str
    tokens: Sequence[int]
    budget: int
    """The tokens of a micro-batch, including padding, within the memory."""


def samples(seed: int = 0) -> list[Lengths]:
    """Return lengths like the main job's, and with the long tail of agents and thinking models."""
    draw = np.random.default_rng(seed)
    even = draw.integers(60, 121, ROWS)
    tail = np.clip(draw.lognormal(5.0, 0.8, ROWS), 32, 1024).astype(int)
    return [Lengths("even", even.tolist(), 1024), Lengths("long tail", tail.tolist(), 4096)]


class PaddedPolicy(Policy):
    """The same model with input [rows, longest], padded on the right.

    A causal model needs no mask for that, because tokens do not attend to later ones. So this is
    the fastest form of padding.
    """

    def outputs(self, packed: PackedRows) -> Tensor:
        rows = packed.tokens[0].split(list(packed.lengths))
        padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        positions = torch.arange(padded.shape[1], device=padded.device)[None]
        kept, place = packed.position_ids[0, packed.positions].unique(return_inverse=True)
        row_of = torch.bucketize(packed.positions, packed.cu_seqlens[1:].long(), right=True)
        logits = self.model(
            padded, position_ids=positions, use_cache=False, logits_to_keep=kept
        ).logits
        return logits[row_of, place]


def compare(
    model: Path, lengths: Lengths, world: World, *, rounds: int = sized(5, toy=1)
) -> list[dict[str, Any]]:
    """Return a row for each way: the tokens per second of a proximal pass and a forward and
    backward, measured in turn, and the share of padding."""
    tokens = ShardTokens.from_shard(_shard(lengths.tokens), vocab_size=VOCAB)
    every = range(len(tokens.rows))
    size = max(1, lengths.budget // max(lengths.tokens))
    fixed = [_micro_batch(tokens, every[i : i + size]) for i in range(0, len(every), size)]
    packed = Policy.load(model, world)
    packed.microbatch_tokens = lengths.budget
    padded = PaddedPolicy.load(model, world)
    padded.model.set_attn_implementation("sdpa")
    ways = {
        "packed, dynamic": (packed, tokens.micro_batches(every, packed)),
        "padded, fixed": (padded, fixed),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, float] = {}
    for turn in range(rounds + 1):  # the first warms up
        for name, (policy, plan) in ways.items():
            start = time.perf_counter()
            losses[name] = _train(policy, plan)
            if turn:
                times[name].append(time.perf_counter() - start)
    total = sum(lengths.tokens)
    computed = {"packed, dynamic": total, "padded, fixed": sum(_padded_size(b) for b in fixed)}
    return [
        {
            "lengths": lengths.name,
            "system": name,
            "micro_batches": len(plan),
            "tokens_per_s": round(total / statistics.median(times[name])),
            "padding": round(1 - total / computed[name], 4),
            "loss": losses[name],
        }
        for name, (_, plan) in ways.items()
    ]


def _train(policy: Policy, plan: Sequence[MicroBatch]) -> float:
    """Compute a batch: all log-probs without gradients, then with them."""
    with torch.no_grad():
        for batch in plan:
            policy.logprobs(batch.packed)
    loss = accumulate(policy, plan, len(plan), lambda it: -policy.logprobs(it.packed).sum())
    policy.model.zero_grad()
    return loss


def _micro_batch(tokens: ShardTokens, rows: Sequence[int]) -> MicroBatch:
    index = [torch.arange(tokens.starts[r], tokens.starts[r + 1]) for r in rows]
    return MicroBatch(pack_rows([tokens.rows[r] for r in rows]), torch.cat(index))


def _padded_size(batch: MicroBatch) -> int:
    return len(batch.packed.lengths) * max(batch.packed.lengths)


def _shard(lengths: Sequence[int]) -> BatchShard:
    draw = np.random.default_rng(1)
    rows = [half_sampled(draw, length) for length in lengths]
    return BatchShard(
        step=0,
        rewards=[0.0] * len(rows),
        group_ids=[str(i // 8) for i in range(len(rows))],
        num_trained_tokens=sum(row.num_trained for row in rows),
        num_episodes=len(rows),
        minibatches=[[BatchRow(row, i) for i, row in enumerate(rows)]],
    )


def half_sampled(draw: np.random.Generator, length: int, vocab: int = VOCAB) -> Row:
    """Return a row of random tokens: half prompt and tools, half sampled."""
    tokens = draw.integers(0, vocab, length).astype(np.int32)
    return replace(row(length, length - length // 2), tokens=tokens)


def row(length: int, trained: int) -> Row:
    """Return a row whose last `trained` tokens were sampled by version 0, at temperature 1."""
    sampled = np.arange(length) >= length - trained
    versions = np.where(sampled, 0, NOT_SAMPLED).astype(np.int32)
    return Row(
        tokens=np.zeros(length, np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.where(sampled, -5.0, 0.0).astype(np.float32),
        policy_versions=versions,
        admitted_versions=versions,
        temperatures=sampled.astype(np.float32),
        turn_ids=np.where(sampled, 0, -1).astype(np.int32),
        times_s=np.zeros(length),
    )
