"""Keys and values of the running rows: one slot each, grown in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

_SLOT_BLOCK = 16
_LENGTH_BLOCK = 32
_SLACK = 1.25
"""Length capacity grows to this multiple: unused positions between slots cost memory traffic."""


class SlotKV:
    """Per layer keys and values [slots, heads, length, dim]; row i of the batch owns slot i.

    Rows fill slots 0..b-1 without gaps, so that a decode step reads a plain slice instead of
    gathering. With `transposed_keys`, keys are kept as [slots, heads, dim, length], the order in
    which a batched product of queries and keys reads fastest.
    """

    def __init__(
        self,
        *,
        max_slots: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        transposed_keys: bool = False,
    ) -> None:
        self._max_slots = max_slots
        self._max_length = max_length
        self._dtype = dtype
        self._device = device
        self._key_axis = 3 if transposed_keys else 2
        self._slots = 0
        self._length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    def add_layer(self, keys: tuple[int, int], values: tuple[int, int]) -> None:
        """Append a layer; `keys` and `values` are its (heads, dim)."""
        self.layers.append((self._empty(*keys, self._key_axis), self._empty(*values, 2)))

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` rows of `length` tokens, keeping what is stored."""
        if slots > self._slots:
            self._slots = _grown(max(slots, 2 * self._slots), slots, _SLOT_BLOCK, self._max_slots)
        elif length <= self._length:
            return
        if length > self._length:
            wanted = int(max(length, _SLACK * self._length))
            self._length = _grown(wanted, length, _LENGTH_BLOCK, self._max_length)
        for index, (keys, values) in enumerate(self.layers):
            self.layers[index] = (self._resized(keys, self._key_axis), self._resized(values, 2))

    def clear(self) -> None:
        """Give back the memory of all slots; `reserve` begins anew."""
        self._slots = self._length = 0
        for index, (keys, values) in enumerate(self.layers):
            key_dim, value_dim = keys.shape[5 - self._key_axis], values.shape[3]
            self.layers[index] = (
                self._empty(keys.shape[1], key_dim, self._key_axis),
                self._empty(values.shape[1], value_dim, 2),
            )

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        for keys, values in self.layers:
            keys = keys.narrow(self._key_axis, 0, length)
            keys[target] = keys[source]
            values[target, :, :length] = values[source, :, :length]

    def _empty(self, heads: int, dim: int, length_axis: int) -> Tensor:
        inner = (self._length, dim) if length_axis == 2 else (dim, self._length)
        # Zeros, not garbage: a masked position still takes part in 0 * value.
        return torch.zeros(self._slots, heads, *inner, dtype=self._dtype, device=self._device)

    def _resized(self, old: Tensor, length_axis: int) -> Tensor:
        new = self._empty(old.shape[1], old.shape[5 - length_axis], length_axis)
        part = new[: old.shape[0]].narrow(length_axis, 0, old.shape[length_axis])
        part.copy_(old)
        return new


def _grown(wanted: int, need: int, block: int, limit: int) -> int:
    """`wanted` rounded up to blocks, at most `limit`, at least `need`."""
    return max(need, min(-(-wanted // block) * block, limit))
