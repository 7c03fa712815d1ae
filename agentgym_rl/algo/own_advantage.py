"""The option `algo.advantage = "module:function"`: a user's own advantages of tokens.

    def advantage(batch: TokenBatch, **options) -> Tensor

The function gets a batch and returns the advantage of each of its tokens, [N]. `options` are those
of `algo.advantage_options`. It replaces `algo.baseline` and `algo.scale`, and has to add rewards of
turns itself; the weight of the task, `algo.whiten` over tokens and a divergence in the reward apply
to its result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import ConfigError, Credit, explain
from agentgym_rl.runtime import import_function

from .advantages import Moments, moments_of
from .inputs import TokenBatch
from .own_loss import needs_of

T = TypeVar("T")


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
        raise ConfigError(f"algo.advantage={algo.advantage!r} raised {explain(error)}") from error
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
        "a tensor [N] like batch.rows (arl docs algorithms#advantages-of-your-own)"
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
