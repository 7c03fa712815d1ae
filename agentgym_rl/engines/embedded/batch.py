"""The running rows: who is in which slot, and one decode step over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .decoder import Decoder, Segment
from .request import Request
from .sampler import Sampler

_PREFILL_TOKENS_CPU = 512
"""Padded prompt tokens of one forward, few enough that activations stay in a CPU's cache: 3600
tokens took the bundled model 78 ms, and 116 ms at 4096 a forward. A longer prompt goes alone."""
_PREFILL_TOKENS_GPU = 8192
_SEGMENT_ROWS = 16
"""Finest split of the batch."""
_SEGMENT_WORTH = 400
"""Padded positions (rows x tokens) a segment must save to pay for its own operations."""


class Batch:
    """Rows in slots 0..b-1 without gaps; the last row fills the place of one that leaves."""

    def __init__(self, decoder: Decoder) -> None:
        self.rows: list[Request] = []
        self._decoder = decoder
        on_cpu = decoder.device.type == "cpu"
        self._prefill_tokens = _PREFILL_TOKENS_CPU if on_cpu else _PREFILL_TOKENS_GPU
        self._sampler = Sampler(decoder.device)
        self._refresh()

    def add(self, requests: Sequence[Request]) -> None:
        """Append rows and cache all their tokens but the last, which the next step feeds."""
        added = sorted(requests, key=lambda request: request.num_fed)
        first = len(self.rows)
        for group in prefill_groups([request.num_fed for request in added], self._prefill_tokens):
            rows = [added[index].tokens[:-1] for index in group]
            if rows[0]:  # sorted: a prompt of one token has nothing to cache
                self._decoder.prefill(first + group.start, rows)
        self.rows += added
        self._refresh()

    def remove(self, leaving: Sequence[Request]) -> None:
        """Take rows out; those not in the batch are ignored."""
        for request in leaving:
            if request not in self.rows:
                continue
            slot, last = self.rows.index(request), len(self.rows) - 1
            if slot != last:
                self._decoder.move(last, slot, self.rows[last].num_fed)
                self.rows[slot] = self.rows[last]
            self.rows.pop()
        self._refresh()

    def rebuild(self) -> None:
        """Compute the cache of every row again, under the weights in place now."""
        rows, self.rows = self.rows, []
        for request in rows:
            request.recomputed_at.append(len(request.token_ids))
        self.add(rows)

    def clear(self) -> list[Request]:
        """Take all rows out, to be added again later, when their cache is computed again."""
        rows, self.rows = self.rows, []
        for request in rows:
            if request.token_ids:
                request.recomputed_at.append(len(request.token_ids))
        self._refresh()
        return rows

    def step(self) -> tuple[list[int], list[float]]:
        """One sampled token and its log-prob for each of `rows`, in their order."""
        logits = self._decoder.decode(self._tokens, self._positions, self._segments)
        if self._constrained is not None:
            self._bar(logits, self._constrained)
        tokens, logprobs = self._sampler.sample(logits)
        self._tokens = tokens
        self._positions += 1
        self._segments = [Segment(a, b, length + 1) for a, b, length in self._segments]
        return tokens.tolist(), logprobs.tolist()

    def _bar(self, logits: Tensor, rows: Tensor) -> None:
        """Take from the constrained rows what their grammars do not allow."""
        constraints = [request.constraint for request in self.rows if request.constraint]
        allowed = np.stack([constraint.allowed() for constraint in constraints])
        barred = torch.from_numpy(~allowed).to(logits.device)
        logits[rows] = logits[rows].masked_fill(barred, -math.inf)

    def _refresh(self) -> None:
        """Derive what a step needs from the rows; called when they change, not every step."""
        device = self._decoder.device
        positions = [request.num_fed for request in self.rows]
        self._tokens = torch.tensor([request.last_token for request in self.rows], device=device)
        self._positions = torch.tensor(positions, device=device)
        self._segments = segments(positions)
        held = [index for index, request in enumerate(self.rows) if request.constraint]
        self._constrained = torch.tensor(held, device=device) if held else None
        self._sampler.set_rows(
            [request.sampling for request in self.rows],
            [len(request.token_ids) for request in self.rows],
        )


def prefill_groups(lengths: Sequence[int], budget: int) -> list[range]:
    """Split ascending `lengths` into runs that are padded together at little waste."""
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

    Rows admitted together are in order of length, so that runs of like rows are common.
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
    """Positions that would be padding if the two were one."""
    length = max(first.length, second.length)
    return sum((s.stop - s.start) * (length - s.length) for s in (first, second))
