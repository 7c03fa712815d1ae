"""Keys and values of the running rows: one slot each, grown in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

_SLOT_BLOCK = 16
_LENGTH_BLOCK = 64


class SlotKV:
    """Per layer two tensors [slots, heads, length, dim]; row i of the batch owns slot i.

    Rows fill slots 0..b-1 without gaps, so that a decode step reads a plain slice instead of
    gathering. Capacity doubles when it runs out, up to the limits, and never shrinks.
    """

    def __init__(
        self, *, max_slots: int, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._max_slots = max_slots
        self._max_length = max_length
        self._dtype = dtype
        self._device = device
        self._slots = 0
        self._length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    @property
    def size_bytes(self) -> int:
        return sum(t.nbytes for layer in self.layers for t in layer)

    def add_layer(self, keys: tuple[int, int], values: tuple[int, int]) -> None:
        """Append a layer; `keys` and `values` are its (heads, dim)."""
        self.layers.append((self._empty(*keys), self._empty(*values)))

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` rows of `length` tokens, keeping what is stored."""
        if slots <= self._slots and length <= self._length:
            return
        self._slots = _grown(self._slots, slots, _SLOT_BLOCK, self._max_slots)
        self._length = _grown(self._length, length, _LENGTH_BLOCK, self._max_length)
        for index, (keys, values) in enumerate(self.layers):
            self.layers[index] = (self._resized(keys), self._resized(values))

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        for keys, values in self.layers:
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]

    def _empty(self, heads: int, dim: int) -> Tensor:
        shape = (self._slots, heads, self._length, dim)
        # Zeros, not garbage: a masked position still takes part in 0 * value.
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def _resized(self, old: Tensor) -> Tensor:
        new = self._empty(old.shape[1], old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new


def _grown(have: int, need: int, block: int, limit: int) -> int:
    if need <= have:
        return have
    blocks = -(-max(need, 2 * have) // block)
    return max(need, min(blocks * block, limit))
