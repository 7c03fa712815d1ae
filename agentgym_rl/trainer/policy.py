"""The policy being trained: a packed model and its log-probs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym_rl.algo.packing import PackedRows

from .packed import PackedModel


class Scores(NamedTuple):
    """Of the packed trained tokens, at the temperatures they were sampled at; both [N]."""

    logprobs: Tensor
    entropies: Tensor
    """Of the whole distribution each token was drawn from, nats."""


class Policy(PackedModel):
    """A causal language model over the ranks of `world`; float32 master weights."""

    def logprobs(self, packed: PackedRows) -> Tensor:
        """[N] log-probs of the packed trained tokens at the temperatures they were sampled at.

        Carries the gradient unless it is disabled. Collective: every rank calls it equally often.
        """
        packed = packed.to(self.world.device)
        return -F.cross_entropy(self._logits(packed), packed.targets, reduction="none")

    def scores(self, packed: PackedRows) -> Scores:
        """`logprobs`, and the entropies that come with them."""
        packed = packed.to(self.world.device)
        logprobs = torch.log_softmax(self._logits(packed), -1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return Scores(logprobs.gather(1, packed.targets[:, None])[:, 0], entropies)

    def _logits(self, packed: PackedRows) -> Tensor:
        """[N, V] at the recorded temperatures, in float32 or better."""
        logits = self.outputs(packed)
        if logits.dtype != torch.float64:
            logits = logits.float()
        return logits / packed.temperatures.to(logits.dtype)[:, None]
