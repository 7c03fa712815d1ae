"""Log-probs of chosen tokens of a run under a chosen version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from agentgym_rl.core.errors import WeightsError
from agentgym_rl.core.trajectory import FloatArray, Row
from agentgym_rl.storage.episode_reader import EpisodeReader

from .tokens import Index, Tokens

if TYPE_CHECKING:
    from agentgym_rl.trainer.audit import Recomputer

OnProgress = Callable[[int], None]
"""Called with the number of tokens recomputed since the call before."""

_ROWS_AT_ONCE = 512


class Recompute:
    """The tokens of a run, and the model that holds one of its versions at a time."""

    def __init__(
        self, tokens: Tokens, reader: EpisodeReader, model: Recomputer, on_progress: OnProgress
    ):
        self.tokens, self._reader, self._model = tokens, reader, model
        self._on_progress = on_progress

    def load(self, version: int) -> None:
        """Compute with this version from now on.

        Raises:
            WeightsError: its file is missing, damaged, or not what it should be.
        """
        self._model.load(version)

    def logprobs(
        self, chosen: Index, *, temperature: float | None = None, plain: bool = False
    ) -> FloatArray:
        """Of the chosen tokens (ascending), under the version loaded last; `plain`: each row in a
        forward of its own."""
        rows = self.tokens.rows(chosen, self._reader, temperature=temperature)
        parts = [part for some in _chunks(rows) for part in self._some(some, plain)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def relabelled(
        self,
        chosen: Index,
        *,
        shift: int = 0,
        temperature: float | None = None,
        plain: bool = False,
    ) -> FloatArray:
        """The chosen tokens as if recorded `shift` versions later; NaN without such a version."""
        result = np.full(len(chosen), np.nan, np.float32)
        own = self.tokens.version[chosen]
        for version in np.unique(own).tolist():
            try:
                self.load(version + shift)
            except WeightsError:
                continue
            result[own == version] = self.logprobs(
                chosen[own == version], temperature=temperature, plain=plain
            )
        return result

    def _some(self, rows: list[Row], plain: bool) -> list[FloatArray]:
        parts = self._model.logprobs(rows, plain=plain)
        self._on_progress(sum(len(part) for part in parts))
        return parts


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield some
