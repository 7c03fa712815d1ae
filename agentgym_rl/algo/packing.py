"""The packing of rows end to end into one sequence, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.core.trajectory import Row


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """A micro-batch. Attention must be causal within each row and must not cross rows."""

    tokens: Tensor
    """The token ids, [1, T] int64."""
    position_ids: Tensor
    """The positions, [1, T] int64; 0 at the start of every row."""
    cu_seqlens: Tensor
    """The boundaries, [R + 1] int32: row r is tokens[cu_seqlens[r]:cu_seqlens[r + 1]]."""
    lengths: tuple[int, ...]
    """The lengths of the rows, as plain numbers."""
    positions: Tensor
    """The places of the trained tokens' logits, [N] int64, one before the token itself."""
    targets: Tensor
    """The trained tokens, [N] int64, row after row."""
    temperatures: Tensor
    """The temperature that each token was sampled at, [N] float32."""

    def to(self, device: torch.device) -> PackedRows:
        """Return the same rows on another device."""
        names = ("tokens", "position_ids", "cu_seqlens", "positions", "targets", "temperatures")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


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
        tokens=torch.as_tensor(tokens)[None],
        position_ids=torch.as_tensor(np.concatenate([np.arange(n) for n in lengths]))[None],
        cu_seqlens=torch.as_tensor(cu_seqlens.astype(np.int32)),
        lengths=lengths,
        positions=torch.as_tensor(trained - 1),
        targets=torch.as_tensor(tokens[trained]),
        temperatures=torch.as_tensor(temperatures.astype(np.float32)),
    )
