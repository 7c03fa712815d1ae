"""The spans of packed rows: the tokens that attend together, and the keys that they attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentgym_rl.algo.packing import Branches


@dataclass(eq=False)
class Spans:
    """The spans of packed tokens, in their order. The queries of a span are its tokens; its keys
    are tokens of the same row, the last of which are these queries."""

    device: torch.device
    queries: list[int] = field(default_factory=list[int])
    """The number of queries of each span; together they are all tokens."""
    keys: list[int] = field(default_factory=list[int])
    """The number of keys of each span."""
    places: list[npt.NDArray[np.int64] | None] = field(default_factory=list[Any])
    """The places of the keys of each span; None: they are the queries."""

    @cached_property
    def copied(self) -> list[int]:
        """The numbers of keys of the spans that have more keys than queries."""
        return [len(places) for places in self.places if places is not None]

    @cached_property
    def copies(self) -> Tensor:
        """The places of these keys."""
        found = np.concatenate([places for places in self.places if places is not None])
        return torch.as_tensor(found).to(self.device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of packed rows on their way through a model. What attention derives from them is
    made once in a forward, on the host, for all layers."""

    lengths: Sequence[int]
    branches: Branches | None
    device: torch.device
    made: dict[object, Any] = field(default_factory=dict[object, Any])

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return self.branches.longest if self.branches else max(self.lengths)

    def spans(self, window: int | None, chunk: int) -> Spans:
        """Return the spans of a layer whose tokens attend to the last `window` ones, and to those
        of their own `chunk` (0: of the complete row)."""
        if (found := self.made.get((window, chunk))) is None:
            found = self.made[window, chunk] = self._spans(window, chunk)
        return found

    def _spans(self, window: int | None, chunk: int) -> Spans:
        spans = Spans(self.device)
        shared = self.branches.shared if self.branches else [0] * len(self.lengths)
        ends = [before + length for before, length in zip(shared, self.lengths, strict=True)]
        cuts = np.cumsum([end for before, end in zip(shared, ends, strict=True) if before])
        paths = iter(np.split(self.branches.paths.numpy(), cuts) if self.branches else ())
        for before, end in zip(shared, ends, strict=True):
            path = next(paths) if before else None
            later = range((before // chunk + 1) * chunk, end, chunk) if chunk else ()
            for low in (before, *later):
                first = low // chunk * chunk if chunk else 0
                high = min(end, first + chunk) if chunk else end
                first = first if window is None else max(first, low - window + 1)
                spans.queries.append(high - low)
                spans.keys.append(high - first)
                spans.places.append(None if path is None or first == low else path[first:high])
        return spans
