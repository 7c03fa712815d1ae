"""The sampler: it draws one token per row and reports its log-prob.

The log-prob is that of the distribution really sampled from: after temperature, top-k, top-p and
min-p, renormalised, in that order. Greedy rows (temperature 0) report the log-prob of the plain
distribution at temperature 1, since that of a certain token is always 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from .request import Sampling

_BLOCK = 256
_BLOCK_FROM = 4096
"""The vocabulary from which on probabilities are cumulated by blocks of that many tokens."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def random_key(*parts: int | str) -> int:
    """Return 64 well-mixed bits of `parts`: the key of a request's random numbers."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniforms(
    keys: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per (key, counter): a pure function, so rows do not affect each
    other.

    SplitMix64 (Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195) with the key as its seed.
    """
    with np.errstate(over="ignore"):  # overflow modulo 2**64 is part of the algorithm
        z = keys + (counters + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Sampler:
    """A sampler of the rows given to `set_rows`, all of them in each call, in that order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._probs = torch.empty(0, 0, device=device)
        """The memory of `sample`: for large vocabularies, new pages every step cost more than the
        numbers."""
        self._kept = torch.empty(0, 0, dtype=torch.bool, device=device)
        self.set_rows([], [])

    def set_rows(self, rows: Sequence[Sampling], num_sampled: Sequence[int]) -> None:
        """Set the rows; `num_sampled` are their token counts (the counters of their random
        numbers)."""
        self._keys = np.array([row.key for row in rows], dtype=np.uint64)
        self._counters = np.array(num_sampled, dtype=np.uint64)
        scales = [row.temperature or 1.0 for row in rows]
        self._temperatures = None
        if any(scale != 1.0 for scale in scales):
            self._temperatures = self._column(scales)
        self._greedy = self._indices(i for i, row in enumerate(rows) if row.temperature == 0)
        restricted = [(i, row) for i, row in enumerate(rows) if row.restricted]
        self._restricted = self._indices(i for i, _ in restricted)
        if restricted:
            huge = torch.iinfo(torch.int32).max
            # A bound of 2 keeps the tail: rounding must not cut it if top_p is off.
            self._top_k = self._column([row.top_k or huge for _, row in restricted])
            self._top_p = self._column([row.top_p if row.top_p < 1 else 2 for _, row in restricted])
            self._min_p = self._column([row.min_p for _, row in restricted])

    def sample(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (token ids [b], log-probs [b]) for logits [b, V] in float32.

        A row with logits that are not finite gets a log-prob that is not finite.
        """
        scaled = logits if self._temperatures is None else logits / self._temperatures
        probs = torch.softmax(scaled, dim=-1, out=self._room(logits))
        if self._restricted is not None:
            kept = restrict(probs[self._restricted], self._top_k, self._top_p, self._min_p)
            probs[self._restricted] = kept
            self._kept = kept > 0
        draws = torch.from_numpy(uniforms(self._keys, self._counters)).to(self._device)
        self._counters += np.uint64(1)
        tokens = drawn(probs, draws)
        if self._greedy is not None:
            tokens[self._greedy] = logits[self._greedy].argmax(dim=-1)
        logprobs = probs.gather(1, tokens[:, None]).squeeze(1).log()
        return tokens, logprobs

    def support(self) -> dict[int, list[int]]:
        """Return the ids that the last tokens were drawn from, by row, for restricted rows."""
        if self._restricted is None:
            return {}
        rows = self._restricted.tolist()
        return {row: of.nonzero()[:, 0].tolist() for row, of in zip(rows, self._kept, strict=True)}

    def _room(self, logits: Tensor) -> Tensor:
        """Return uninitialized memory of the shape of `logits`."""
        rows, size = logits.shape
        if len(self._probs) < rows or self._probs.shape[1] != size:
            self._probs = torch.empty_like(logits, memory_format=torch.contiguous_format)
        return self._probs[:rows]

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)[:, None]

    def _indices(self, values: object) -> Tensor | None:
        found = list(values)  # type: ignore[call-overload]
        return torch.tensor(found, device=self._device) if found else None


def drawn(probs: Tensor, draws: Tensor) -> Tensor:
    """Return the token ids [b] at which the cumulated `probs` [b, V] exceed `draws` [b], float64 in
    [0, 1).

    Large vocabularies are cumulated by blocks, and then within one block: cumulating every token of
    64 rows of 49,152 took 21 ms of a step, this takes 2. float64 keeps a token's chance equal to
    its probability, even far into a big vocabulary.
    """
    size = probs.shape[-1]
    if size <= _BLOCK_FROM:
        masses = probs.cumsum(dim=-1, dtype=torch.float64)
        return _first_beyond(masses, draws[:, None] * masses[:, -1:]).squeeze(1)
    blocks = F.pad(probs, (0, -size % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    masses = blocks.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    targets = draws[:, None] * masses[:, -1:]
    block = _first_beyond(masses, targets)
    before = F.pad(masses, (1, 0)).gather(1, block)
    within = blocks[torch.arange(len(probs), device=probs.device), block[:, 0]]
    # Rounding may leave the target a hair beyond its block, whose last token of any mass it means.
    within = within.cumsum(dim=-1, dtype=torch.float64)
    targets = torch.minimum(targets - before, within[:, -1:].nextafter(within.new_zeros(1)))
    return (block * _BLOCK + _first_beyond(within, targets)).squeeze(1)


def _first_beyond(masses: Tensor, targets: Tensor) -> Tensor:
    """Return [b, 1] where the ascending `masses` [b, n] first exceed `targets` [b, 1]."""
    found = torch.searchsorted(masses, targets, right=True)
    return found.clamp_(max=masses.shape[-1] - 1)


def restrict(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Exclude tokens and renormalise: [b, V] and three columns [b, 1]; row sums are 1.

    The kept tokens are the `top_k` most likely; of these, renormalised, the smallest set that
    reaches mass `top_p`; of these, the ones at least `min_p` times as likely as the first. The most
    likely token is always kept.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    keep = torch.arange(probs.shape[-1], device=probs.device) < top_k
    kept = ordered * keep
    mass_before = kept.cumsum(dim=-1) - kept
    keep &= mass_before < top_p * kept.sum(dim=-1, keepdim=True)
    keep &= ordered >= min_p * ordered[:, :1]
    keep[:, 0] = True
    kept = ordered * keep
    kept /= kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(1, order, kept)
