"""The running rows in their slots, with their keys and values, and one decode step over all of
them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .cache import CopyableKV, KVPiece
from .decoder import Decoder, Segment
from .journal import Counters
from .prefixes import Prefixes
from .request import Request
from .sampler import Sampler

_SLOT_BLOCK = 16
_LENGTH_BLOCK = 32
_SLACK = 1.25
"""The growth factor of the length capacity: unused positions between slots cost memory traffic."""


class SlotKV(CopyableKV):
    """A cache of keys and values [slots, heads, length, dim] per layer; row i of the batch owns
    slot i.

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

    def add_layer(
        self,
        keys: tuple[int, int],
        values: tuple[int, int],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Append a layer; `keys` and `values` are its (heads, dim), `dtype` None: the cache's."""
        dtype = dtype or self._dtype
        empty = self._empty(*keys, self._key_axis, dtype), self._empty(*values, 2, dtype)
        self.layers.append(empty)

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` rows of `length` tokens, and keep the stored tokens."""
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
        """Free the memory of all slots; `reserve` allocates it again."""
        self._slots = self._length = 0
        for index, (keys, values) in enumerate(self.layers):
            key_dim, value_dim = keys.shape[5 - self._key_axis], values.shape[3]
            self.layers[index] = (
                self._empty(keys.shape[1], key_dim, self._key_axis, keys.dtype),
                self._empty(values.shape[1], value_dim, 2, values.dtype),
            )

    @property
    def num_bytes(self) -> int:
        """Return the memory of all slots in bytes."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        for keys, values in self.layers:
            keys = keys.narrow(self._key_axis, 0, length)
            keys[target] = keys[source]
            values[target, :, :length] = values[source, :, :length]

    def read(self, slot: int, start: int, stop: int) -> KVPiece:
        """Return a copy of tokens [start, stop) of a slot."""
        axis = self._key_axis - 1
        whole = KVPiece([(keys[slot], values[slot]) for keys, values in self.layers], axis)
        return whole.part(start, stop).copy()

    def write(self, slot: int, start: int, piece: KVPiece) -> None:
        """Store tokens in a slot, the first one at position `start`."""
        count = piece.layers[0][1].shape[1]
        self.reserve(slot + 1, start + count)
        for (keys, values), (new_keys, new_values) in zip(self.layers, piece.layers, strict=True):
            keys[slot].narrow(self._key_axis - 1, start, count).copy_(new_keys)
            values[slot, :, start : start + count] = new_values

    def _empty(self, heads: int, dim: int, length_axis: int, dtype: torch.dtype) -> Tensor:
        inner = (self._length, dim) if length_axis == 2 else (dim, self._length)
        # Zeros, not garbage: a masked position still takes part in 0 * value.
        return torch.zeros(self._slots, heads, *inner, dtype=dtype, device=self._device)

    def _resized(self, old: Tensor, length_axis: int) -> Tensor:
        new = self._empty(old.shape[1], old.shape[5 - length_axis], length_axis, old.dtype)
        part = new[: old.shape[0]].narrow(length_axis, 0, old.shape[length_axis])
        part.copy_(old)
        return new


def _grown(wanted: int, need: int, block: int, limit: int) -> int:
    """Return `wanted` rounded up to blocks, at most `limit`, at least `need`."""
    return max(need, min(-(-wanted // block) * block, limit))


_PREFILL_TOKENS_CPU = 512
"""The limit of padded prompt tokens in one forward, so that activations stay in a CPU's cache: 3600
tokens took the bundled model 78 ms, and 116 ms with a limit of 4096. A longer prompt has a pass of
its own."""
_PREFILL_TOKENS_GPU = 8192
_SEGMENT_ROWS = 16
"""The smallest number of rows in a segment of the batch."""
_SEGMENT_WORTH = 400
"""The padded positions (rows x tokens) that a segment must save to pay for its own operations."""


class Step(NamedTuple):
    """The result of a step: entries in the order of the batch's rows."""

    tokens: list[int]
    logprobs: list[float]
    support: Mapping[int, list[int]]
    """The ids that the token was drawn from, by row, for rows that exclude some."""


class Batch:
    """A batch of rows in slots 0..b-1 without gaps; the last row fills the slot of one that
    leaves."""

    def __init__(self, decoder: Decoder, *, prefixes: Prefixes | None, counters: Counters) -> None:
        self.rows: list[Request] = []
        self._decoder = decoder
        self._prefixes = prefixes
        self._counters = counters
        self._current: set[Request] = set()
        """The rows all of whose keys and values were computed under the present weights: only these
        may be shared."""
        on_cpu = decoder.device.type == "cpu"
        self._prefill_tokens = _PREFILL_TOKENS_CPU if on_cpu else _PREFILL_TOKENS_GPU
        self._sampler = Sampler(decoder.device)
        self._refresh()

    def add(self, requests: Sequence[Request]) -> None:
        """Append rows and cache all their tokens but the last, which the next step feeds. A common
        beginning of several requests is computed once."""
        waiting = list(requests)
        while waiting:
            now, waiting = self._prefixes.leaders(waiting) if self._prefixes else (waiting, [])
            self._append(now)
        self._refresh()

    def _append(self, requests: Sequence[Request]) -> None:
        """Append rows; compute those of their tokens that are not stored."""
        first, prefixes = len(self.rows), self._prefixes
        known = dict.fromkeys(requests, 0)
        if prefixes is not None:
            known = {it: prefixes.length(it.cache_salt, it.tokens[:-1]) for it in requests}
        added = sorted(requests, key=lambda request: request.num_fed - known[request])
        if prefixes is not None:
            for slot, request in enumerate(added, start=first):
                prefixes.fill(slot, request.cache_salt, request.tokens[:-1])
        starts = [known[request] for request in added]
        lengths = [request.num_fed - known[request] for request in added]
        for group in prefill_groups(lengths, self._prefill_tokens):
            rows = [added[index].tokens[starts[index] : -1] for index in group]
            if rows[0]:  # sorted: else there is nothing to compute
                begun = starts[group.start : group.stop]
                self._decoder.prefill(first + group.start, rows, begun if any(begun) else None)
        self.rows += added
        self._current.update(added)
        self._counters.prefilled_tokens += sum(lengths)
        if prefixes is not None:
            self._counters.prefix_cache_queries += sum(starts) + sum(lengths)
            self._counters.prefix_cache_hits += sum(starts)
            for slot, request in enumerate(added, start=first):
                prefixes.store(slot, request.cache_salt, request.fed_prompt)

    def remove(self, leaving: Sequence[Request]) -> None:
        """Take rows out, and store their tokens for later requests that begin with them; rows that
        are not in the batch are ignored."""
        for request in leaving:
            if request not in self.rows:
                continue
            slot, last = self.rows.index(request), len(self.rows) - 1
            self._note_experts(slot, request)
            if self._prefixes is not None and request in self._current and request.error is None:
                self._prefixes.store(slot, request.cache_salt, request.tokens[:-1])
            if slot != last:
                self._decoder.move(last, slot, self.rows[last].num_fed)
                self.rows[slot] = self.rows[last]
            self.rows.pop()
            self._current.discard(request)
        self._refresh()

    def forget(self) -> None:
        """Drop all stored tokens; rows keep theirs."""
        if self._prefixes is not None:
            self._prefixes.clear()

    def outdate(self) -> None:
        """Share nothing that was computed so far: the weights are others now."""
        self.forget()
        self._current.clear()

    def rebuild(self) -> None:
        """Compute the cache of every row again, under the present weights."""
        self._note_all_experts()
        rows, self.rows = self.rows, []
        for request in rows:
            request.recomputed_at.append(len(request.token_ids))
        self.add(rows)

    def clear(self) -> list[Request]:
        """Take all rows out; their cache is computed again when they are added again later."""
        self._note_all_experts()
        rows, self.rows = self.rows, []
        for request in rows:
            if request.token_ids:
                request.recomputed_at.append(len(request.token_ids))
        self.outdate()
        self._refresh()
        return rows

    def step(self) -> Step:
        """Sample one token for each of `rows`."""
        logits = self._decoder.decode(self._tokens, self._positions, self._segments)
        if self._constrained is not None:
            self._bar(logits, self._constrained)
        tokens, logprobs = self._sampler.sample(logits)
        if self._forced is not None:
            self._force(logits, tokens, logprobs, self._forced)
        self._tokens = tokens
        self._positions += 1
        self._segments = [Segment(a, b, length + 1) for a, b, length in self._segments]
        return Step(tokens.tolist(), logprobs.tolist(), self._sampler.support())

    def _note_all_experts(self) -> None:
        """Note the experts of all rows, before their tokens are computed again with others."""
        for slot, request in enumerate(self.rows):
            self._note_experts(slot, request)

    def _note_experts(self, slot: int, request: Request) -> None:
        """Note the experts of the row's tokens that were computed since the last note, if the
        request wants them."""
        start, stop = request.experts_from, request.num_fed
        if start is not None and start < stop:
            request.experts += self._decoder.experts(slot, start, stop)
            request.experts_from = stop

    def _bar(self, logits: Tensor, rows: Tensor) -> None:
        """Mask the tokens of constrained rows that their grammars do not allow."""
        constraints = [request.constraint for request in self.rows if request.constraint]
        allowed = np.stack([constraint.allowed() for constraint in constraints])
        barred = torch.from_numpy(~allowed).to(logits.device)
        logits[rows] = logits[rows].masked_fill(barred, -math.inf)

    def _force(self, logits: Tensor, tokens: Tensor, logprobs: Tensor, rows: Tensor) -> None:
        """Replace the sampled tokens of rows whose reply is known, and their log-probs."""
        known = [request.forced[len(request.token_ids)] for request in self.rows if request.forced]
        tokens[rows] = torch.tensor(known, device=tokens.device)
        found = logits[rows].log_softmax(-1).gather(1, tokens[rows, None]).squeeze(1)
        logprobs[rows] = found.to(logprobs.dtype)

    def _refresh(self) -> None:
        """Derive the inputs of a step from the rows; called only after a change of the rows."""
        device = self._decoder.device
        positions = [request.num_fed for request in self.rows]
        self._tokens = torch.tensor([request.last_token for request in self.rows], device=device)
        self._positions = torch.tensor(positions, device=device)
        self._segments = segments(positions)
        held = [index for index, request in enumerate(self.rows) if request.constraint]
        self._constrained = torch.tensor(held, device=device) if held else None
        known = [index for index, request in enumerate(self.rows) if request.forced]
        self._forced = torch.tensor(known, device=device) if known else None
        self._sampler.set_rows(
            [request.sampling for request in self.rows],
            [len(request.token_ids) for request in self.rows],
        )


def prefill_groups(lengths: Sequence[int], budget: int) -> list[range]:
    """Split ascending `lengths` into runs that are padded together with little waste."""
    groups: list[range] = []
    start = 0
    for index, length in enumerate(lengths):
        over_budget = (index - start + 1) * length > budget
        wasteful = length > 1.5 * lengths[start] + 16 or lengths[start] == 0 < length
        if index > start and (over_budget or wasteful):
            groups.append(range(start, index))
            start = index
    if lengths:
        groups.append(range(start, len(lengths)))
    return groups


def segments(positions: Sequence[int], worth: int = _SEGMENT_WORTH) -> list[Segment]:
    """Split slots into runs that need not attend as far as the longest row.

    Rows admitted together are ordered by length, so runs of similar rows are common.
    """
    found: list[Segment] = []
    for start in range(0, len(positions), _SEGMENT_ROWS):
        stop = min(start + _SEGMENT_ROWS, len(positions))
        segment = Segment(start, stop, max(positions[start:stop]) + 1)
        if found and _waste(found[-1], segment) < worth:
            before = found.pop()
            segment = Segment(before.start, stop, max(before.length, segment.length))
        found.append(segment)
    return found


def _waste(first: Segment, second: Segment) -> int:
    """Return the number of padded positions if two segments were joined to one."""
    length = max(first.length, second.length)
    return sum((s.stop - s.start) * (length - s.length) for s in (first, second))
