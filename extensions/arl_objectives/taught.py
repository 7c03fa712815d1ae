"""The teaching of a batch's tokens: the log-probs of all teachers, of trainer ranks and of servers,
together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.core import BatchShard, Row, TrainerError
from agentgym_rl.trainer import Policy, ShardTokens, frozen_pass


class Taught(NamedTuple):
    """The combined target of all teachers for some tokens; constants of the batch."""

    logprobs: Tensor
    """The weighted mean of the teachers' log-probs, [N]; 0 for a token without a teacher."""
    weight: Tensor
    """The sum of their weights, [N]; 0 for a token without a teacher."""
    weights: Tensor
    """The weight of each teacher, [N, M]."""
    top: Tensor | None = None
    """The log-probs and the ids of each teacher's likeliest tokens, [N, M, 2, K], if they are
    wanted; NaN without a teacher."""

    def of(self, index: Tensor) -> Taught:
        """Return the same for some of the tokens."""
        top = None if self.top is None else self.top[index]
        return Taught(self.logprobs[index], self.weight[index], self.weights[index], top)

    @property
    def top_ids(self) -> Tensor | None:
        """Return the ids of the likeliest tokens, [N, M · K]; 0 without a teacher."""
        return None if self.top is None else self.top[:, :, 1].nan_to_num().long().flatten(1)

    def divergence(self, logprobs: Tensor) -> Tensor:
        """Return [N] k = log π − log π_teacher of the sampled tokens, whose mean over samples is
        the reverse KL; 0 without a teacher, or where a log-prob is not finite."""
        k = logprobs - self.logprobs.to(logprobs)
        known = torch.isfinite(k.detach()) & (self.weight.to(k.device) > 0)
        return torch.where(known, k, 0.0)


def taught_by(logprobs: Tensor, weights: Tensor, top: Tensor | None = None) -> Taught:
    """Return the combined target of M teachers, given their log-probs and weights, both [N, M], and
    `top` (see `Taught.top`); a teacher without a log-prob (NaN) does not count.

    Σ_m w_m (x − t_m) = W (x − t̄) with W = Σ w_m and t̄ = Σ w_m t_m / W: for x and its gradient,
    several teachers are one.
    """
    weights = torch.where(logprobs.isnan(), 0.0, weights)
    total = weights.sum(1)
    mean = (weights * logprobs.nan_to_num()).sum(1) / torch.where(total > 0, total, 1.0)
    return Taught(mean, total, weights, top)


def taught_tokens(
    teachers: Sequence[Policy | None],
    shard: BatchShard,
    tokens: ShardTokens,
    *,
    top_k: int,
    vocab_size: int,
) -> Taught:
    """Return the targets of the teachers for this rank's tokens (collective). `None` is a served
    teacher, whose log-probs are already in the batch.

    Each model computes only the rows of the tasks that it teaches. With `top_k`, it also names its
    likeliest tokens among the first `vocab_size`, those that the policy has.

    Raises:
        TrainerError: a row has a token that a teacher lacks, or is of other teachers.
    """
    weights = _weights(shard)[tokens.episodes]
    columns = list(_served(tokens.rows, weights.shape[1]).unbind(1))
    tops: list[Tensor] = []
    count = min([top_k, vocab_size, *(it.vocab_size for it in teachers if it is not None)])
    for number, teacher in enumerate(teachers):
        if teacher is not None:
            rows = [r for r, at in enumerate(tokens.starts[:-1]) if weights[at, number] > 0]
            _check_vocabulary(teacher, [tokens.rows[r] for r in rows])
            say = partial(teacher.likeliest, count=count, vocab_size=vocab_size)
            found = frozen_pass(teacher, say, tokens, rows, shape=(1 + 2 * count,))
            columns[number] = found[:, 0]
            tops.append(found[:, 1:].unflatten(1, (2, count)))
    top = torch.stack(tops, 1) if count else None
    return taught_by(torch.stack(columns, 1), weights, top)


def _weights(shard: BatchShard) -> Tensor:
    """Return the weights of teachers per episode, [E, teachers]."""
    found = shard.of_tasks.get("teacher", ())
    weights = torch.tensor(found, dtype=torch.float64)
    return weights if found else weights.new_zeros(len(shard.rewards), 0)


def _served(rows: Sequence[Row], num_teachers: int) -> Tensor:
    """Return the log-probs of trained tokens under served teachers, [N, teachers]; NaN: none."""
    parts: list[np.ndarray] = [np.zeros((0, num_teachers), np.float32)]
    for row in rows:
        silent = np.full((row.num_trained, num_teachers), np.nan, np.float32)
        parts.append(
            silent if row.teacher_logprobs is None else row.teacher_logprobs.logprobs[row.loss_mask]
        )
    try:
        return torch.from_numpy(np.concatenate(parts))
    except ValueError as error:
        raise TrainerError(f"rows of other teachers than the batch's {num_teachers}") from error


def _check_vocabulary(teacher: Policy, rows: Sequence[Row]) -> None:
    highest = max((int(row.tokens.max()) for row in rows), default=0)
    if highest >= teacher.vocab_size:
        raise TrainerError(
            f"a row has token {highest}, and a teacher has 0 to {teacher.vocab_size - 1}: "
            "algo.teacher.models have to be models of the policy's tokenizer"
        )
