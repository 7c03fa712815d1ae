"""The share of the time of ranks that passes take, counted in tokens: ranks wait for each other at
every micro-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agentgym_rl.algo import num_distinct
from agentgym_rl.controller import split_batch
from agentgym_rl.core import Group, Outcome, Row, Trajectory

from .packing import row

PROMPT, REPLY = 64, 500
"""The tokens of a group's prompt, and the median of those of its rows."""


def busy(groups: int, members: int, ranks: int, *, minibatches: int = 4) -> dict[str, Any]:
    """Return the busy share of ranks for episodes of log-normal lengths: an even split over the
    ranks, relative to the sum over minibatches of the fullest rank; of all tokens, and of those
    computed if groups share their prompts."""
    dealt = [
        [[it.tokens for it in rows] for rows in parts]
        for parts in minibatch_rows(groups, members, ranks, minibatches=minibatches)
    ]
    tokens = np.array([[sum(map(len, rows)) for rows in parts] for parts in dealt])
    computed = np.array([[num_distinct(rows) for rows in parts] for parts in dealt])
    shares = [float(of.sum() / ranks / of.max(1).sum()) for of in (tokens, computed)]
    return {
        "batch": f"{groups} x {members}",
        "minibatches": minibatches,
        "ranks": ranks,
        "busy": round(shares[0], 3),
        "busy_of_computed": round(shares[1], 3),
    }


def minibatch_rows(
    groups: int, members: int, ranks: int, *, minibatches: int = 4
) -> list[list[list[Row]]]:
    """Return the rows of each rank in each minibatch, of such a batch."""
    batch = [_group(number, members) for number in range(groups)]
    shards = split_batch(batch, step=2, num_ranks=ranks, num_minibatches=minibatches)
    parts = zip(*(shard.minibatches for shard in shards), strict=True)
    return [[[it.row for it in part] for part in its] for its in parts]


def _group(number: int, members: int) -> Group:
    draw = np.random.default_rng([1, number])
    prompt = draw.integers(0, 150_000, PROMPT)
    name, found = f"g{number}", list[Trajectory]()
    for member in range(members):
        length = int(np.clip(draw.lognormal(np.log(REPLY), 0.5), 100, 2 * REPLY))
        tokens = draw.integers(0, 150_000, length).astype(np.int32)
        tokens[:PROMPT] = prompt
        its = replace(row(length, length - PROMPT), tokens=tokens)
        episode = Trajectory(
            f"{name}.{member}", name, name, Outcome.COMPLETED, float(member % 2), [its]
        )
        found.append(episode)
    return Group(name, name, found, index=number)
