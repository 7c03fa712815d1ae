"""The option `algo.advantage = "module:function"`: a user's own advantages of tokens.

    def advantage(batch: TokenBatch, **options) -> Tensor

The function gets a batch and returns the advantage of each of its tokens, [N]. `options` are those
of `algo.advantage_options`. It replaces `algo.baseline` and `algo.scale`, and has to add rewards of
turns itself; the weight of the task, `algo.whiten` over tokens and a divergence in the reward apply
to its result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import ConfigError, Credit
from agentgym_rl.runtime import import_function

from .advantages import Moments, moments_of
from .own_loss import needs_of

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
    """The rewards of episodes as `algo.reward` shapes them, [E] float64."""
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


def own_advantages(batch: TokenBatch, algo: AlgoConfig) -> Tensor:
    """Return the advantages of the tokens by the function `algo.advantage`, [N] float64.

    Raises:
        ConfigError: there is no such function, it raised, or it returned something else.
    """
    assert algo.advantage is not None
    function = _function(algo.advantage, tuple(algo.advantage_options))
    try:
        found = function(batch, **algo.advantage_options)
    except Exception as error:
        raise ConfigError(f"algo.advantage={algo.advantage!r} raised {error!r}") from error
    if not isinstance(found, Tensor) or found.shape != batch.rows.shape:
        got = list(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise _returned(algo, f"{got} for {len(batch.rows)} tokens")
    return found.detach().to("cpu", torch.float64)


def advantage_needs(algo: AlgoConfig) -> frozenset[str]:
    """Return what the function `algo.advantage` needs of a batch; nothing, if there is none.

    Raises:
        ConfigError: see `own_advantages`.
    """
    if algo.advantage is None:
        return frozenset()
    return needs_of(_function(algo.advantage, tuple(algo.advantage_options)))


def check_advantage(algo: AlgoConfig) -> None:
    """Try the function `algo.advantage` on four made-up episodes of two groups, one of whose turns
    has a reward.

    Raises:
        ConfigError: see `own_advantages`; or an advantage is not finite.
    """
    if algo.advantage is None:
        return
    found = own_advantages(made_up_batch(advantage_needs(algo)), algo)
    if not bool(torch.isfinite(found).all()):
        raise _returned(algo, f"{list(map(float, found))}, not all finite")


@functools.cache
def _function(path: str, options: tuple[str, ...]) -> Callable[..., object]:
    return import_function("algo.advantage", path, gets="batch", options=dict.fromkeys(options))


def _returned(algo: AlgoConfig, what: str) -> ConfigError:
    return ConfigError(
        f"algo.advantage={algo.advantage!r} returned {what}; expected the advantage of each token, "
        "a tensor [N] like batch.rows (docs/algorithms.md#advantages-of-your-own)"
    )


class _SingleProcess:
    """A `Ranks` of a single rank, for trial batches."""

    def gather(self, value: T, /) -> list[T]:
        return [value]

    def moments(self, values: Tensor, /) -> Moments:
        return moments_of(values)


def made_up_batch(needed: Collection[str]) -> TokenBatch:
    """Return four episodes of two turns; each turn is one trained token."""
    episodes, turns = torch.arange(4).repeat_interleave(2), torch.arange(2).repeat(4)
    logprobs = torch.linspace(-2.0, -0.1, 8)
    plain = Credit(0.0, parents=[-1, 0], lineages=[0, 0])
    paid = replace(plain, turn_rewards=[0.5, 0.0], lineage_rewards=[0.0])
    rewards = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    return TokenBatch(
        step=0,
        seed=1,
        num_tokens=8,
        num_minibatches=2,
        raw_rewards=rewards,
        rewards=rewards,
        groups=torch.tensor([0, 0, 1, 1]),
        lengths=torch.full((4,), 2),
        truncated=torch.tensor([False, False, False, True]),
        credits=[paid, plain, plain, plain],
        episodes=episodes,
        rows=episodes,
        turns=turns,
        positions=turns * 2 + 3,
        turn_rewards=torch.tensor([0.5] + [0.0] * 7, dtype=torch.float64),
        turn_returns=torch.tensor([0.5] + [0.0] * 7, dtype=torch.float64),
        behavior_logprobs=logprobs,
        staleness=torch.zeros(8, dtype=torch.int64),
        ranks=_SingleProcess(),
        proximal=logprobs if "proximal" in needed else None,
        reference=logprobs - 0.1 if "reference" in needed else None,
    )
