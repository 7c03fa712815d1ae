"""The mismatch of the trainer's and the engine's log-probs, overall and by staleness.

On fresh tokens the two differ only by rounding. A multiplicative error away from 1 at staleness 0
is a bug in one of them (or KV of older weights, under `interrupt = "keep"`), not a lag.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .aggregation import Tally
from .losses import BehaviorWeights


def tally_mismatch(
    tally: Tally,
    proximal_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    staleness: Tensor,  # [N] int64, versions between sampling and this batch
    spans_versions: Tensor,  # [N] bool, an update came within the token's turn
) -> None:
    """Add `mismatch/…` and `policy/approx_entropy` of all trained tokens.

    `token_mult_prob_error` is the mean of exp|p − b|. Tokens of turns that span a weight update
    have a separate bucket: their staleness differs within one request. Tokens whose p − b is not
    finite are in `mismatch/num_nonfinite` only. One outlier can dominate the mean of exponentials;
    `mean_abs`, in nats, shows how far tokens moved in general.
    """
    difference = (proximal_logprobs - behavior_logprobs).double()
    finite = torch.isfinite(difference)
    tally.count("mismatch/num_nonfinite", float((~finite).sum()))
    difference, p = difference[finite], proximal_logprobs.double()[finite]
    if not len(difference):
        return
    gap, ratio, count = difference.abs(), difference.exp(), len(difference)
    error = gap.exp()
    tally.mean("mismatch/token_mult_prob_error", float(error.sum()), count)
    tally.mean("mismatch/mean_abs", float(gap.sum()), count)
    tally.maximum("mismatch/max_abs", float(gap.max()))
    tally.mean("mismatch/sampling_importance_ratio", float(ratio.sum()), count)
    tally.mean("policy/approx_entropy", float(-(ratio * p).sum()), count)
    buckets = torch.where(spans_versions[finite], -1, staleness[finite])
    for bucket in np.unique(np.asarray(buckets)).tolist():
        chosen = error[buckets == bucket]
        name = "several_versions" if bucket == -1 else f"staleness_{bucket}"
        tally.mean(f"mismatch/token_mult_prob_error/{name}", float(chosen.sum()), len(chosen))
        tally.count(f"mismatch/num_tokens/{name}", len(chosen))
        if bucket == 0:
            fresh = gap[buckets == bucket]
            tally.mean(f"mismatch/mean_abs/{name}", float(fresh.sum()), len(fresh))


def tally_weights(tally: Tally, weights: BehaviorWeights) -> None:
    """Add `policy/behavior_weight_{mean,max,masked}`: the applied weights, and the share
    dropped."""
    if not len(weights.weight):
        return
    tally.mean("policy/behavior_weight_mean", float(weights.weight.sum()), len(weights.weight))
    tally.maximum("policy/behavior_weight_max", float(weights.weight.max()))
    tally.mean("policy/behavior_weight_masked", float(weights.masked.sum()), len(weights.masked))
