"""The check that trainer and engine agree about fresh tokens, and the diagnosis of the faulty
one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError

from .backend import Model
from .shard_tensors import ShardTokens


class Bounds(NamedTuple):
    """The mean |Δ log-prob| of fresh tokens, in nats, by which trainer and engine may differ."""

    warn: float
    stop: float
    tokens: int
    """The number of fresh tokens that a batch must have to be judged."""


BOUNDS = {"float32": Bounds(1e-3, 0.1, 1), "bfloat16": Bounds(0.05, 0.5, 100)}
"""The bounds by dtype of the engine. Two correct forwards differ by 1e-6 on average in float32, and
with the bundled model by 1e-3 in bfloat16, where single tokens differ by 0.1."""


class _Worst(NamedTuple):
    """The mean |Δ log-prob| of each pair over the fresh tokens of the row where two disagree
    most."""

    trainer_engine: float
    plain_engine: float
    plain_trainer: float


class Agreement:
    """A comparison of the trainer's log-probs with the engine's, batch after batch. Fresh tokens
    are those sampled by exactly the weights that train on the batch, with no update in between."""

    def __init__(self, policy: Model, trainer: TrainerConfig, *, engine_dtype: str):
        default = BOUNDS[engine_dtype]
        self._warn = default.warn if trainer.mismatch_warn is None else trainer.mismatch_warn
        self._stop = default.stop if trainer.mismatch_stop is None else trainer.mismatch_stop
        self._enough = default.tokens
        self._policy = policy
        self._warned = False

    def check(self, step: int, tokens: ShardTokens, proximal: Tensor) -> str:
        """Return the warning to show, the first time that there is one; "" otherwise. Collective;
        the result is the same on every rank.

        Raises:
            TrainerError: trainer and engine differ by more than the configured limit.
        """
        gaps = (proximal - tokens.behavior_logprobs).double().abs()
        fresh = (tokens.staleness == 0) & ~tokens.spans_versions & torch.isfinite(gaps)
        parts = self._policy.world.gather((float(gaps[fresh].sum()), int(fresh.sum())))
        total, count = (sum(column) for column in zip(*parts, strict=True))
        if count < self._enough or (mean := total / count) <= min(self._warn, self._stop):
            return ""
        if self._warned and mean <= self._stop:
            return ""
        self._warned = True
        text = (
            f"trainer and engine disagree about fresh tokens: in batch {step} the log-probs of "
            f"{count:,} tokens that its own weights sampled differ by {mean:.2g} nats on average. "
            f"{self._diagnosis(tokens, proximal, fresh)}"
        )
        if mean > self._stop:
            raise TrainerError(
                f"{text} Every gradient would be wrong; to train all the same, set "
                f"trainer.mismatch_stop above {mean:.2g} (it is {self._stop:g})"
            )
        return f"{text} This warning is shown once (trainer.mismatch_warn={self._warn:g})"

    def _diagnosis(self, tokens: ShardTokens, proximal: Tensor, fresh: Tensor) -> str:
        """Return which side is wrong, by a plain forward of the row on which trainer and engine
        disagree most."""
        worst = max(self._policy.world.gather(self._worst(tokens, proximal, fresh)))
        clear = worst.trainer_engine / 4
        numbers = (
            f"(from the engine's {worst.plain_engine:.2g}, from the trainer's "
            f"{worst.plain_trainer:.2g})"
        )
        if worst.plain_engine < clear:
            return (
                "A plain forward of the worst row agrees with the engine and not with the trainer "
                f"{numbers}: the trainer packs rows of this model wrongly. "
                "Train another model, or make trainer.max_tokens_per_microbatch and "
                "engine.max_model_len smaller."
            )
        if worst.plain_trainer < clear:
            return (
                "A plain forward of the worst row agrees with the trainer and not with the engine "
                f"{numbers}: the engine computes something else. Look for another model, dtype or "
                "quantization in it, log-probs before temperature (a flag of its server), or an "
                "adapter that it does not apply."
            )
        return (
            f"A plain forward of the worst row agrees with neither {numbers}: look at the model "
            "and at what the engine is started with."
        )

    @torch.no_grad()
    def _worst(self, tokens: ShardTokens, proximal: Tensor, fresh: Tensor) -> _Worst:
        """Return the numbers of this rank's worst row; collective."""
        rows = tokens.row_index[fresh]
        with self._policy.unpacked():
            if not len(rows):
                self._policy.idle()
                return _Worst(0.0, 0.0, 0.0)
            gaps = (proximal - tokens.behavior_logprobs)[fresh].double().abs()
            row = int(
                torch.bincount(rows, weights=gaps).div(torch.bincount(rows)).nan_to_num().argmax()
            )
            plain = self._policy.logprobs(pack_rows([tokens.rows[row]])).cpu()
        own = slice(tokens.starts[row], tokens.starts[row + 1])
        trainer, engine = proximal[own], tokens.behavior_logprobs[own]
        pairs = ((trainer, engine), (plain, engine), (plain, trainer))
        return _Worst(*(float((one - other)[fresh[own]].abs().mean()) for one, other in pairs))
