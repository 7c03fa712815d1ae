"""The recorded tokens of a rank, with proximal log-probs and advantages, for `arl inspect`."""

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
    """A writer of a rank's files in `RUN/tokens/`. A full disk is reported once, and then nothing
    more is written: training does not need these files, and reports a full disk for its own."""

    def __init__(self, run: Path, *, rank: int, from_step: int, keeps: bool = True) -> None:
        """Remove the files of `from_step`, where training begins, and of later steps: they are of
        weights that are gone. This happens even if `keeps` is off."""
        self._run, self._rank = run, rank
        self._works = keeps
        if rank == 0:
            self._forget(from_step)

    def of(self, step: int) -> OnTokens:
        """Return the callback for the tokens of batch `step`."""

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
