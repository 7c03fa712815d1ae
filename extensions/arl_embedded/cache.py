"""Copied pieces of a KV cache, and the positions of tokens in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVPiece:
    """The keys and values of neighbouring tokens of one sequence, outside of any slot."""

    layers: Sequence[tuple[Tensor, Tensor]]
    """The keys and values of each layer: three dimensions, one of them the tokens."""
    key_axis: int
    """The dimension of the tokens in keys; in values it is 1."""

    def part(self, start: int, stop: int) -> KVPiece:
        """Return tokens [start, stop), as views."""
        axis, count = self.key_axis, stop - start
        layers = [(k.narrow(axis, start, count), v.narrow(1, start, count)) for k, v in self.layers]
        return KVPiece(layers, axis)

    def copy(self) -> KVPiece:
        """Return a copy that keeps no other memory alive."""
        dense = torch.contiguous_format
        layers = [
            (keys.clone(memory_format=dense), values.clone(memory_format=dense))
            for keys, values in self.layers
        ]
        return KVPiece(layers, self.key_axis)

    @property
    def num_bytes(self) -> int:
        """Return the memory of the tokens in bytes."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)


class CopyableKV(ABC):
    """A cache in which each token of a slot is stored separately, independently of later tokens."""

    @abstractmethod
    def read(self, slot: int, start: int, stop: int) -> KVPiece:
        """Return a copy of tokens [start, stop) of a slot."""

    @abstractmethod
    def write(self, slot: int, start: int, piece: KVPiece) -> None:
        """Store tokens in a slot, the first one at position `start`."""


def token_places(
    rows: Sequence[Sequence[int]], starts: Sequence[int] | None, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """Return the tokens of rows and their positions, both [n, L], padded on the right, and the
    length of the cache that they need; keys and values of padding are overwritten before use. With
    `starts`, all padding of a row has the position after its last token, so that none lies behind
    the end of the cache."""
    width = length = max(map(len, rows))
    padded = [[*row, *[0] * (width - len(row))] for row in rows]
    tokens = torch.tensor(padded, device=device)
    positions = torch.arange(width, device=device).expand(len(rows), -1)
    if starts is not None:
        ends = [start + len(row) for start, row in zip(starts, rows, strict=True)]
        positions = positions + torch.tensor(starts, device=device)[:, None]
        positions = torch.minimum(positions, torch.tensor(ends, device=device)[:, None])
        length = 1 + max(ends)
    return tokens, positions, length


def causal_mask(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Return [n, 1, L, length]: 0 where a token at `positions` [n, L] attends, else the lowest
    number."""
    columns = torch.arange(length, device=positions.device)
    mask = torch.zeros(*positions.shape, length, dtype=dtype, device=positions.device)
    return mask.masked_fill_(columns > positions[..., None], torch.finfo(dtype).min)[:, None]
