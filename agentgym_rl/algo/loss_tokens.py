"""What a loss is given of the tokens it trains, and what it says of each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossTokens:
    """Trained tokens of whole rows; every field is [N]."""

    logprobs: Tensor
    """x: of the policy being optimized, carries the gradient."""
    anchor: Tensor
    """Centre of the trust region: proximal log-probs (behavior if naive)."""
    behavior_logprobs: Tensor
    """b: of the policy that sampled the token."""
    behavior_weight: Tensor
    """w' from `behavior_weights` (ones if naive); 0 where the token is dropped."""
    advantages: Tensor
    weights: Tensor
    """From `aggregation_weights`."""
    rows: Tensor
    """int64, row of the token."""

    @property
    def live(self) -> Tensor:
        """bool: not dropped."""
        return self.behavior_weight != 0

    @property
    def log_ratio(self) -> Tensor:
        """log u = x − anchor; 0 where the token is dropped, whatever its log-probs."""
        return torch.where(self.live, self.logprobs - self.anchor, 0.0)


class TokenObjective(NamedTuple):
    """Of each token, [N]; tokens that were dropped may hold any finite number."""

    value: Tensor
    """What is gained: larger is better. Carries the gradient."""
    clipped: Tensor
    """bool: the ratio is bounded there, as `policy/clip_fraction` counts it."""
