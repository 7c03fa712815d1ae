"""Rows end to end in one sequence, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.core.trajectory import Row


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """One micro-batch. Attention must be causal within each row and blind across rows."""

    tokens: Tensor
    """[1, T] int64."""
    position_ids: Tensor
    """[1, T] int64; starts at 0 in every row."""
    cu_seqlens: Tensor
    """[R + 1] int32: row r is tokens[cu_seqlens[r]:cu_seqlens[r + 1]]."""
    lengths: tuple[int, ...]
    """Of the rows, as plain numbers."""
    positions: Tensor
    """[N] int64: where the logits of the trained tokens are, one before the token itself."""
    targets: Tensor
    """[N] int64: the trained tokens, row after row."""
    temperatures: Tensor
    """[N] float32: temperature each was sampled at."""

    def to(self, device: torch.device) -> PackedRows:
        """The same on another device."""
        return PackedRows(
            self.tokens.to(device),
            self.position_ids.to(device),
            self.cu_seqlens.to(device),
            self.lengths,
            self.positions.to(device),
            self.targets.to(device),
            self.temperatures.to(device),
        )


def pack_rows(rows: Sequence[Row]) -> PackedRows:
    """Pack rows in the order given.

    Raises:
        ValueError: no rows; a trained token without context (the first of a row); a trained
            token whose recorded temperature is not positive and finite.
    """
    if not rows:
        raise ValueError("no rows to pack")
    lengths = tuple(len(row) for row in rows)
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.concatenate([row.tokens for row in rows]).astype(np.int64)
    trained = np.flatnonzero(np.concatenate([row.loss_mask for row in rows]))
    temperatures = np.concatenate([row.temperatures for row in rows])[trained]
    if np.isin(trained, cu_seqlens).any():
        raise ValueError("the first token of a row is marked as trained; nothing predicts it")
    if not np.all((temperatures > 0) & np.isfinite(temperatures)):
        bad = temperatures[~((temperatures > 0) & np.isfinite(temperatures))][0]
        raise ValueError(f"a trained token has temperature {bad}; greedy tokens do not train")
    return PackedRows(
        tokens=torch.from_numpy(tokens)[None],
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))[None],
        cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
        lengths=lengths,
        positions=torch.from_numpy(trained - 1),
        targets=torch.from_numpy(tokens[trained]),
        temperatures=torch.from_numpy(temperatures.astype(np.float32)),
    )
