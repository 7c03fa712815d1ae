"""The data that the parts of the objective get and return: of a batch, and of its tokens.

Losses, advantages and terms of this package and of users have the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from agentgym_rl.core import Credit

from .advantages import Moments

T = TypeVar("T")


class Ranks(Protocol):
    """The ranks that train together; each calls the same methods in the same order."""

    def gather(self, value: T, /) -> list[T]:
        """Return the values of all ranks, in their order."""
        ...

    def moments(self, values: Tensor, /) -> Moments:
        """Return the moments of the values of all ranks together."""
        ...


@dataclass(slots=True, eq=False)
class TokenBatch:
    """A training batch, before its first update: its E episodes, and the N trained tokens of this
    rank. Tensors are on the CPU; tokens of a row follow one another."""

    step: int
    """The number of the batch, from 0; also the version of the weights at its start."""
    seed: int
    """The seed of the run."""
    num_tokens: int
    """The number of trained tokens, on all ranks together."""
    num_minibatches: int
    """The number of updates, each on a part of the batch whose loss is multiplied by it."""
    raw_rewards: Tensor
    """The rewards of episodes as the environment paid them, [E] float64."""
    rewards: Tensor
    """The rewards of episodes that advantages use, as terms shape them, [E] float64."""
    groups: Tensor
    """The number of each episode's group, [E] int64. The players of a game are groups of their
    own."""
    lengths: Tensor
    """The number of trained tokens of each episode, [E] int64, on all ranks together."""
    truncated: Tensor
    """The episodes that were cut off, [E] bool."""
    credits: Sequence[Credit]
    """The rewards of each episode's turns and lineages, and the order of its turns (E items);
    empty if the batch has no such reward."""
    episodes: Tensor
    """The index of each token's episode, [N] int64."""
    rows: Tensor
    """The index of each token's row on this rank, ascending, [N] int64."""
    turns: Tensor
    """The number of each token's turn in its episode, [N] int64."""
    positions: Tensor
    """The position of each token in its row, [N] int64: the tokens between are not trained."""
    turn_rewards: Tensor
    """The reward of each token's own turn, [N] float64."""
    turn_returns: Tensor
    """The rewards of each token's turn and of those after it, discounted by `algo.turn_discount`,
    plus that of its lineage, [N] float64."""
    behavior_logprobs: Tensor
    """The log-probs with which the tokens were sampled, [N]."""
    staleness: Tensor
    """The age of the weights that sampled each token, in versions, [N] int64."""
    ranks: Ranks
    """The ranks, for statistics over the complete batch."""
    parts: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The metrics of episodes that advantages use in place of rewards, by name, each [E] float64
    (`ObjectiveKeys.reward_parts`)."""
    proximal: Tensor | None = None
    """The log-probs under the weights at the start of the batch, [N], if they are needed."""
    reference: Tensor | None = None
    """The log-probs under the reference model, [N], if they are needed."""
    provided: dict[str, object] = field(default_factory=dict[str, object])
    """The things that terms provide to others beside those above, by `Term.provides`."""
    token_rewards: Tensor | None = None
    """The rewards of single tokens, [N], for a term that sums rewards; None: there are none."""
    advantages: Tensor | None = None
    """The advantages of the tokens, [N] float64, once all parts have been added."""


@dataclass(frozen=True, slots=True, eq=False)
class LossTokens:
    """The trained tokens of complete rows; every field is [N]."""

    logprobs: Tensor
    """The log-probs x of the optimized policy, which carry the gradient."""
    anchor: Tensor
    """The centre of the trust region: proximal log-probs (behavior if naive)."""
    behavior_logprobs: Tensor
    """The log-probs b of the policy that sampled the token."""
    behavior_weight: Tensor
    """The weights w' from `behavior_weights` (ones if naive); 0 for a dropped token."""
    advantages: Tensor
    weights: Tensor
    """The weights from `aggregation_weights`."""
    rows: Tensor
    """The index of each token's row, int64."""
    turns: Tensor
    """The number of each token's turn in its episode, int64."""
    reference: Tensor | None = None
    """The log-probs under the reference model, if a part of the objective needs them."""
    entropies: Tensor | None = None
    """The entropies of the policy, with their gradient, if a part of the objective needs them."""
    candidates: Tensor | None = None
    """The log-probs of other tokens in the same places, [N, K], with their gradient, if a term
    names such tokens."""
    index: Tensor | None = None
    """The index of each token among those of the batch, on the CPU."""
    first: Tensor | None = None
    """The index of the first token with the same prediction: tokens that share a beginning have
    one. For numbers that two computations of one prediction would round in two ways."""

    def of(self, values: Tensor) -> Tensor:
        """Return the parts of `values`, of all tokens of the batch, that belong to these tokens, on
        their device."""
        assert self.index is not None
        return values[self.index].to(self.logprobs.device)

    @property
    def live(self) -> Tensor:
        """Return whether each token is kept, bool: False if it was dropped."""
        return self.behavior_weight != 0

    @property
    def log_ratio(self) -> Tensor:
        """Return log u = x − anchor; 0 for a dropped token, whatever its log-probs."""
        return torch.where(self.live, self.logprobs - self.anchor, 0.0)


class TokenObjective(NamedTuple):
    """The objective of each token, [N]; dropped tokens may hold any finite number."""

    value: Tensor
    """The objective to maximize, which carries the gradient."""
    clipped: Tensor
    """The tokens whose ratio is bounded, bool, counted by `policy/clip_fraction`."""


class BehaviorWeights(NamedTuple):
    """The weights of the trained tokens; constants of the batch, without gradient."""

    weight: Tensor
    """The factor of each token's objective, [N]."""
    masked: Tensor
    """The tokens dropped (weight 0) by the correction or for a non-finite log-prob, [N] bool."""
