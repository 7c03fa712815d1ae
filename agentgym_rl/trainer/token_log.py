"""What a rank keeps of the tokens it trains, for `arl inspect`."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import Tensor

from agentgym_rl.core.errors import StorageError
from agentgym_rl.storage.trained_tokens import forget_tokens, write_tokens

from .shard_tensors import ShardTokens
from .step import OnTokens

_log = logging.getLogger(__name__)


class TokensOut:
    """A rank's files in `RUN/tokens/`. A disk that takes no more is said once, and then nothing is
    kept: training needs none of it, and its own files say when they have no room."""

    def __init__(self, run: Path, *, rank: int, from_step: int, keeps: bool = True) -> None:
        """Training begins at `from_step`: what was kept of that and later steps is of weights
        that are gone, and is removed, even where nothing is to be kept from now on."""
        self._run, self._rank = run, rank
        self._works = keeps
        if rank == 0:
            self._forget(from_step)

    def of(self, step: int) -> OnTokens:
        """What to call with the tokens of a step."""

        def keep(tokens: ShardTokens, proximal: Tensor, advantages: Tensor) -> None:
            if self._works:
                self._write(step, tokens, proximal, advantages)

        return keep

    def _write(self, step: int, tokens: ShardTokens, proximal: Tensor, advantages: Tensor) -> None:
        try:
            write_tokens(
                self._run,
                step=step,
                rank=self._rank,
                rows=tokens.rows,
                proximal=proximal.detach().float().cpu().numpy(),
                advantages=advantages.detach().float().cpu().numpy(),
            )
        except StorageError as error:
            self._works = False
            _log.warning(
                "%s; training goes on, and from step %d on `arl inspect` has neither proximal "
                "log-probs nor advantages of rank %d: make room, or set logging.tokens=false",
                *(error, step, self._rank),
            )

    def _forget(self, from_step: int) -> None:
        try:
            forget_tokens(self._run, from_step=from_step)
        except OSError as error:
            _log.warning("%s: what earlier ranks kept stays until it is replaced", error)
