"""The share of a batch of one rank, as flat arrays over its trained tokens, and passes over its
rows that all ranks make in step: one without gradients, and one with.

Legend: [E] episodes of the complete batch, [R] this rank's rows, [N] this rank's trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.algo import PackedRows
from agentgym_rl.core import BatchRow, BatchShard, Row, TrainerError

from .packed import PackedModel
from .policy import PolicyBase


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Some packed rows, and the positions of their trained tokens in the flat arrays."""

    packed: PackedRows
    index: Tensor
    """The flat positions, [N of the micro-batch] int64."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardTokens:
    """A flat view of a shard; rows without a trained token are left out."""

    rows: Sequence[Row]
    starts: Sequence[int]
    """The offsets [R + 1]: row r's trained tokens are starts[r]:starts[r + 1] of the flat
    arrays."""
    minibatches: Sequence[Sequence[int]]
    """The row indices of each minibatch."""
    row_index: Tensor
    """The index into `rows` of each token's row, [N] int64."""
    episodes: Tensor
    """The index of each token's episode, [N] int64."""
    behavior_logprobs: Tensor
    """The log-probs recorded at sampling, [N] float32."""
    staleness: Tensor
    """The age of each token's weights, in versions, [N] int64."""
    spans_versions: Tensor
    """A mask, [N] bool, of tokens of turns during which a weight update happened."""
    turns: Tensor
    """The number of each token's turn in its episode, [N] int64."""
    turn_returns: Tensor
    """The return of each token's turn, [N] float64; 0 without any reward to turns or lineages."""
    tokens_per_episode: Tensor
    """The number of trained tokens per episode, [E] int64; 0 for episodes of other ranks."""

    @property
    def positions(self) -> Tensor:
        """Return the position of each token in its row, [N] int64."""
        return _joined([np.flatnonzero(row.loss_mask) for row in self.rows], np.int64)

    @classmethod
    def from_shard(cls, shard: BatchShard, *, vocab_size: int) -> ShardTokens:
        """Flatten a shard.

        Raises:
            TrainerError: the shard contradicts itself or holds tokens the model does not have.
        """
        _check(shard, vocab_size)
        items = [[it for it in part if it.row.num_trained] for part in shard.minibatches]
        flat = [item for part in items for item in part]
        rows, row_episodes = [item.row for item in flat], [item.episode for item in flat]
        counts = [row.num_trained for row in rows]
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        firsts = np.cumsum([0] + [len(part) for part in items])
        episodes = torch.from_numpy(np.repeat(np.asarray(row_episodes, np.int64), counts))
        return cls(
            rows=rows,
            starts=starts.tolist(),
            minibatches=[list(range(a, b)) for a, b in pairwise(firsts)],
            row_index=torch.from_numpy(np.repeat(np.arange(len(rows)), counts)),
            episodes=episodes,
            behavior_logprobs=_flat(rows, "behavior_logprobs", np.float32),
            staleness=shard.step - _flat(rows, "policy_versions", np.int64),
            spans_versions=_joined([_spans(row) for row in rows], np.bool_),
            turns=_flat(rows, "turn_ids", np.int64),
            turn_returns=_joined([_returns(item, shard) for item in flat], np.float64),
            tokens_per_episode=torch.bincount(episodes, minlength=len(shard.rewards)),
        )

    def micro_batches(
        self, rows: Sequence[int], model: PackedModel | PolicyBase, *, least: int = 1
    ) -> list[MicroBatch]:
        """Return the rows of the given indices in the model's micro-batches; in `least`, if they
        can be smaller then.

        Raises:
            TrainerError: a row is too long for them, or holds tokens that cannot be trained.
        """
        try:
            found = list(model.micro_batches([self.rows[r] for r in rows], least=least))
        except ValueError as error:
            raise TrainerError(f"batch cannot be packed: {error}") from error
        return [MicroBatch(packed, self._index([rows[i] for i in of])) for of, packed in found]

    def _index(self, rows: Sequence[int]) -> Tensor:
        parts = [np.arange(self.starts[r], self.starts[r + 1]) for r in rows]
        return torch.from_numpy(np.concatenate(parts))


def _flat(rows: Sequence[Row], name: str, dtype: type[np.generic]) -> Tensor:
    return _joined([getattr(row, name)[row.loss_mask] for row in rows], dtype)


def _joined(parts: Sequence[np.ndarray], dtype: type[np.generic]) -> Tensor:
    joined = np.concatenate(parts) if parts else np.zeros(0)
    return torch.from_numpy(joined.astype(dtype))


def _spans(row: Row) -> np.ndarray:
    """Return, per trained token, whether an update happened during its turn. With `interrupt =
    "keep"`, even tokens of one version may then attend to KV of the previous one."""
    versions = row.policy_versions[row.loss_mask]
    admitted = row.admitted_versions[row.loss_mask]
    late = (admitted >= 0) & (versions != admitted)
    if (versions == versions[0]).all() and not late.any():
        return np.zeros(len(versions), np.bool_)
    turns = row.turn_ids[row.loss_mask]
    several = [
        t
        for t in np.unique(turns)
        if len(np.unique(versions[turns == t])) > 1 or late[turns == t].any()
    ]
    return np.isin(turns, several)


def _returns(item: BatchRow, shard: BatchShard) -> np.ndarray:
    """Return the return of each trained token's turn."""
    row, returns = item.row, shard.turn_returns[item.episode] if shard.turn_returns else ()
    if not returns:
        return np.zeros(row.num_trained)
    return np.asarray(returns, np.float64)[row.turn_ids[row.loss_mask]]


def _check(shard: BatchShard, vocab_size: int) -> None:
    num_episodes = len(shard.rewards)
    if num_episodes != len(shard.group_ids):
        raise TrainerError(f"{num_episodes} rewards but {len(shard.group_ids)} group ids")
    if not np.isfinite(np.asarray(shard.rewards, np.float64)).all():
        bad = _first_bad(shard, shard.rewards)
        raise TrainerError(f"batch {shard.step} has a reward that is not finite: {bad}")
    if shard.turn_returns and len(shard.turn_returns) != num_episodes:
        raise TrainerError(
            f"{num_episodes} rewards but turns of {len(shard.turn_returns)} episodes"
        )
    if shard.lengths and len(shard.lengths) != num_episodes:
        raise TrainerError(f"{num_episodes} rewards but {len(shard.lengths)} lengths of episodes")
    for name, part in shard.parts.items():
        if len(part) != num_episodes or not np.isfinite(np.asarray(part, np.float64)).all():
            raise TrainerError(
                f"{num_episodes} rewards but {len(part)} values of part {name!r}, or one that is "
                "not finite"
            )
    if not all(np.isfinite(np.asarray(r, np.float64)).all() for r in shard.turn_returns):
        sums = [float(np.sum(np.abs(returns))) for returns in shard.turn_returns]
        raise TrainerError(
            f"batch {shard.step} has a turn's return that is not finite: {_first_bad(shard, sums)}"
        )
    for item in (item for part in shard.minibatches for item in part):
        if not 0 <= item.episode < num_episodes:
            raise TrainerError(f"row of episode {item.episode}, batch has {num_episodes}")
        tokens = item.row.tokens
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
            raise TrainerError(
                f"token ids {tokens.min()}..{tokens.max()}, the model has 0..{vocab_size - 1}"
            )
        returns = shard.turn_returns[item.episode] if shard.turn_returns else ()
        if returns and len(tokens) and item.row.turn_ids.max() >= len(returns):
            raise TrainerError(
                f"a row has turn {item.row.turn_ids.max()}, its episode {len(returns)} turns"
            )


def _first_bad(shard: BatchShard, values: Sequence[float]) -> str:
    """Return the first non-finite value, with the name of its episode."""
    index = int(np.flatnonzero(~np.isfinite(np.asarray(values, np.float64)))[0])
    name = shard.names[index] if shard.names else f"number {index} of the batch"
    return f"{values[index]} of episode {name}"


def in_rounds(
    parts: Sequence[Sequence[int]],
    tokens: ShardTokens,
    model: PackedModel | PolicyBase,
    *,
    passes: int = 1,
) -> tuple[list[list[MicroBatch]], list[int]]:
    """Return the micro-batches of each of the `parts`, this rank's rows of one pass, and its number
    of rounds, in each of which a rank computes one at most (collective); `passes`: how often.

    Ranks wait for each other in every round. So a rank with fewer micro-batches than another one
    makes them smaller, and each begins with its largest.
    """
    plans = [tokens.micro_batches(rows, model) for rows in parts]
    rounds = model.world.maxima([len(plan) for plan in plans])
    if model.world.size > 1:
        for number, (rows, most) in enumerate(zip(parts, rounds, strict=True)):
            if 0 < len(plans[number]) < most:
                plans[number] = tokens.micro_batches(rows, model, least=most)
            assert len(plans[number]) <= most  # others would not be computed
            plans[number].sort(key=lambda batch: -sum(batch.packed.lengths))
        sizes = [[sum(batch.packed.lengths) for batch in plan] for plan in plans]
        its = [n for of, most in zip(sizes, rounds, strict=True) for n in [*of, *[0] * most][:most]]
        model.wait_for(passes * sum(model.world.maxima(its)))
    return plans, rounds


@torch.no_grad()
def frozen_pass(
    model: PackedModel | PolicyBase,
    compute: Callable[[PackedRows], Tensor],
    tokens: ShardTokens,
    rows: Sequence[int] | None = None,
    *,
    shape: Sequence[int] = (),
) -> Tensor:
    """Return [N, *shape], the result of `compute`, a method of `model`, for the trained tokens of
    the given rows (default: all); NaN for the others. Collective."""
    rows = range(len(tokens.rows)) if rows is None else rows
    (batches,), (rounds,) = in_rounds([rows], tokens, model)
    result = torch.full((len(tokens.episodes), *shape), torch.nan, dtype=torch.float32)
    for turn in range(rounds):
        if turn < len(batches):
            found = compute(batches[turn].packed).cpu()
            result = result.to(found.dtype)
            result[batches[turn].index] = found
        else:
            model.idle()
    if isinstance(model, PackedModel):  # or what is outside its blocks would stay whole
        model.reshard()
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
        loss.backward()
    return total
