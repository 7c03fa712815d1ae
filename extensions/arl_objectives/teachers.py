"""On-policy distillation: the divergence from teachers, in the loss or as a reward of tokens
(`algo.teacher`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentgym_rl.algo import LossTokens, Tally, TokenBatch, row_sums_to_come
from agentgym_rl.core import TrainerError
from agentgym_rl.models import resolve_model
from agentgym_rl.trainer import Loading, ModelTerm, PackedModel, Policy, RankBatch

from .keys.teacher import TeacherConfig
from .taught import Taught, taught_tokens


class TeacherTerm(ModelTerm):
    """The divergence from teachers, in the loss or as a reward of tokens (`algo.teacher`)."""

    provides = "teacher"
    lacking = "a teacher: name one in algo.teacher.models"
    order = 20
    keys: TeacherConfig

    def __init__(self, keys: TeacherConfig) -> None:
        super().__init__(keys)
        self._in_loss = keys.placement == "loss"
        self.needs = ("teacher", "first") if self._in_loss else ("teacher", "first", "proximal")
        self._teachers: Sequence[Policy | None] | None = None
        self._vocab_size = 0

    def load(self, loading: Loading) -> None:
        folders = [None if it.is_served else resolve_model(it.model) for it in self.keys.models]
        self.use([folder and loading.frozen(folder) for folder in folders], loading.policy)

    def use(self, teachers: Sequence[Policy | None], policy: Policy) -> None:
        """Let `policy` learn from models; None: one that is served elsewhere.

        Raises:
            TrainerError: there are not as many as `algo.teacher.models`.
        """
        if len(teachers) != len(self.keys.models):
            raise TrainerError(
                f"algo.teacher.models has {len(self.keys.models)} teachers, and {len(teachers)} "
                "were given"
            )
        self._teachers, self._vocab_size = teachers, policy.vocab_size

    @property
    def is_loaded(self) -> bool:
        return self._teachers is not None

    @property
    def models(self) -> Sequence[PackedModel]:
        return [it for it in self._teachers or () if it is not None]

    def provide(self, batch: RankBatch) -> None:
        assert self._teachers is not None
        with batch.phases.phase("teacher"):
            self._taught = taught_tokens(
                self._teachers,
                batch.shard,
                batch.tokens,
                top_k=self.keys.top_k,
                vocab_size=self._vocab_size,
            )
        batch.provided["teacher"] = self._taught

    def advantages(self, batch: TokenBatch) -> Tensor | None:
        if self._in_loss:
            return None
        assert batch.proximal is not None
        return distillation_advantages(batch.proximal, self._taught, batch.rows, self.keys)

    def uses(self, batch: TokenBatch) -> Tensor | None:
        return self._taught.weight if self._in_loss else None

    def candidates(self, batch: TokenBatch, index: Tensor) -> Tensor | None:
        return self._taught.of(index).top_ids if self._in_loss else None

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        if not self._in_loss:
            return None
        assert tokens.first is not None
        taught = self._taught.of(tokens.first)
        if tokens.candidates is not None:
            return top_loss(tokens.candidates, taught, tokens.weights, self.keys.coef)
        weights = (tokens.weights, tokens.behavior_weight)
        return distillation_loss(tokens.logprobs, taught, *weights, self.keys.coef)

    def measure(self, batch: TokenBatch, used: Tensor, proximal: Tensor, tally: Tally) -> None:
        tally_taught(tally, self._taught.of(used), proximal, num_tokens=len(batch.episodes))


def tally_taught(tally: Tally, taught: Taught, logprobs: Tensor, *, num_tokens: int) -> None:
    """Add the share of `num_tokens` tokens that are taught, their divergence, and their log-probs
    under the teachers; `logprobs` [N] are the proximal ones."""
    count = int((taught.weight > 0).sum())
    tally.mean("teacher/taught", count, num_tokens)
    if count:
        tally.mean("teacher/kl", float(taught.divergence(logprobs).sum()), count)
        tally.mean("teacher/logprob", float(taught.logprobs.sum()), count)


def distillation_advantages(
    logprobs: Tensor,  # [N] of the proximal policy
    taught: Taught,
    rows: Tensor,  # [N] int64, ascending
    teacher: TeacherConfig,
) -> Tensor:
    """Return [N] −coef · weight · k, the addition to each token's advantage; with `horizon` row,
    that of the token and those after it in its row.

    Only the token's own cost: Lu 2025, On-Policy Distillation
    (https://thinkingmachines.ai/blog/on-policy-distillation); the sum: the gradient of the row's
    divergence, Gu et al. 2023 (https://arxiv.org/abs/2306.08543).
    """
    costs = teacher.coef * taught.weight * taught.divergence(logprobs)
    return -(row_sums_to_come(costs, rows) if teacher.horizon == "row" else costs)


def distillation_loss(
    logprobs: Tensor,  # [N] of the policy being optimized, carries the gradient
    taught: Taught,
    weights: Tensor,  # [N] from `aggregation_weights`
    behavior_weight: Tensor,  # [N]
    coef: float,
) -> Tensor:
    """Return coef · Σ weights · w' · weight · ½k², to be added to the policy loss.

    Its gradient is that of k · log π: with tokens of the policy itself, the mean is the gradient of
    the reverse KL in the token's state (the estimator k2 of `kl_estimates` as a loss).
    """
    divergence = taught.divergence(logprobs)
    scale = weights * behavior_weight * taught.weight.to(logprobs.device)
    return coef * (scale * 0.5 * divergence**2).sum()


_LEAST_REST = 1e-6
"""The least probability of all other tokens together: less is the rounding of a sum of float32."""


def top_loss(
    logprobs: Tensor,  # [N, M · K] of the policy, at `taught.top_ids`; carries the gradient
    taught: Taught,
    weights: Tensor,  # [N] from `aggregation_weights`
    coef: float,
) -> Tensor:
    """Return coef · Σ weights · weight · KL(π ‖ teacher), to be added to the policy loss.

    Each divergence is that of two distributions over K + 1 outcomes: the K likeliest tokens of the
    teacher, and any other. It is a lower bound of the divergence over the complete vocabulary, 0
    only if both agree on all K, and exact for a K of that size. It is a mean over the policy's
    tokens, not an estimate from one: no behavior weight applies.
    """
    assert taught.top is not None
    theirs = taught.top[:, :, 0].to(logprobs).nan_to_num()
    ours = logprobs.view(theirs.shape)
    rest, their_rest = ((1 - of.exp().sum(-1)).clamp(min=_LEAST_REST) for of in (ours, theirs))
    divergence = (ours.exp() * (ours - theirs)).sum(-1) + rest * (rest / their_rest).log()
    scale = weights[:, None] * taught.weights.to(logprobs.device)
    return coef * torch.where(scale > 0, scale * divergence, 0.0).sum()
