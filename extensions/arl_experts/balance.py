"""The loss that balances the load of experts, `algo.expert_balance_coef`: the auxiliary loss of
Switch Transformers (Fedus et al. 2021, https://arxiv.org/abs/2101.03961, equations 4 to 6).

A layer adds E · Σ_i f_i · P_i, for experts i of E: f_i is an expert's share of the choices for all
trained tokens of the batch, under the weights at its start, a constant; P_i is the mean of the
router's probabilities, which carry the gradient, over the trained tokens of the minibatch. With f
fixed the loss is a sum over tokens, so that micro-batches, ranks and meshes give one gradient; with
the f of a micro-batch they would not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from agentgym_rl.algo import LossTokens, Tally, TokenBatch
from agentgym_rl.core import ConfigError
from agentgym_rl.trainer import Loading, ModelTerm, Policy, RankBatch

from .keys import BalanceKeys
from .load import totals
from .watch import Watch, read

Probabilities = Callable[[Tensor], Tensor]


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, -1)


def _sigmoid(logits: Tensor) -> Tensor:
    """Return sigmoids, divided by their sum (DeepSeek-V3, https://arxiv.org/abs/2412.19437,
    equation 19)."""
    scores = torch.sigmoid(logits)
    return scores / scores.sum(-1, keepdim=True)


KINDS: Mapping[str, Probabilities] = {"softmax": _softmax, "sigmoid": _sigmoid}
"""The ways in which routers make probabilities of their logits."""
_MOST_APART = 0.02
"""The largest difference of a weight from a probability that rounding explains."""


class BalanceTerm(ModelTerm):
    """The loss that balances experts. It has no model of its own: it watches the policy's
    routers."""

    needs = ("proximal", "every_row")
    order = -10  # before a reference, which may be the policy without its adapter
    keys: BalanceKeys

    def __init__(self, keys: BalanceKeys) -> None:
        super().__init__(keys)
        self._policy: Policy | None = None
        self._shares: list[Tensor] = []
        self._scale = 0.0

    def load(self, loading: Loading) -> None:
        self.use(loading.policy)

    def use(self, policy: Policy) -> None:
        """Balance the experts of `policy` (collective).

        Raises:
            ConfigError: it has no routers, or none whose probabilities are known.
        """
        self._watch, self._policy = Watch.of(policy), policy
        self._probabilities = _kind_of(self._watch, policy, self.keys)
        self._watch.keeps_passes = True

    @property
    def is_loaded(self) -> bool:
        return self._policy is not None

    def shaped(self, batch: TokenBatch, rewards: Tensor) -> Tensor:
        self._watch.clear(frozen=True)  # the pass for proximal log-probs is next
        return rewards

    def provide(self, batch: RankBatch) -> None:
        assert self._policy is not None
        world = self._policy.world
        self._shares = [
            (counts / counts.sum()).to(world.device) for counts in totals(self._watch.frozen, world)
        ]
        self._scale = batch.num_minibatches / max(1, batch.num_tokens)

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        policy, seen = self._policy, self._watch.taken()
        assert policy is not None
        own: Any = 0.0
        used = [logits for logits in seen.logits if logits is not None]
        for logits, shares in zip(used, self._shares, strict=True):
            wide = torch.promote_types(logits.dtype, torch.float32)
            sums = seen.counts.to(wide) @ self._probabilities(logits.to(wide))
            own = own + len(shares) * (shares.to(wide) @ sums)
        whole = own.detach()
        if policy.parallel is not None:  # each rank of a unit has some of the tokens
            whole = policy.parallel.total(whole.double().reshape(1)).to(own)[0]
        count = len(tokens.logprobs) * len(used)
        tally.mean("experts/balance_loss", float(whole), count)
        return self.keys.expert_balance_coef * self._scale * (own + (whole - own.detach()))


@torch.no_grad()
def _kind_of(watch: Watch, policy: Policy, keys: BalanceKeys) -> Probabilities:
    """Return how the routers of a policy make probabilities, found by a trial (collective): the
    weights of two experts of a token are as these are.

    Raises:
        ConfigError: there are no routers, or they do it in another way.
    """
    what = f"algo.expert_balance_coef {keys.expert_balance_coef}"
    kind = type(policy.model).__name__
    if not watch.routers:
        raise ConfigError(
            f"{what} has no effect on {kind}: it has no experts, or no router that chooses them "
            "is known. Remedy: algo.expert_balance_coef 0"
        )
    with watch.looking() as seen:
        policy.idle()
    policy.reshard()
    apart = dict.fromkeys(KINDS, 0.0)
    for name, found in zip(watch.routers, seen, strict=True):
        if found is None:
            continue
        logits, ids = read(name, found, len(found[0]))
        weights = _relative(found[1].double())
        for its, probabilities in KINDS.items():
            expected = _relative(probabilities(logits.double()).gather(-1, ids))
            apart[its] += float((weights - expected).abs().max())
    errors = dict(zip(apart, policy.world.total(list(apart.values())), strict=True))
    best = min(errors, key=lambda name: errors[name])
    if not errors[best] <= _MOST_APART * len(seen) * policy.world.size:
        raise ConfigError(
            f"{what}: the routers of {kind} weight experts neither by a softmax nor by sigmoids, "
            "so that their probabilities are not known. Remedy: algo.expert_balance_coef 0"
        )
    return KINDS[best]


def _relative(weights: Tensor) -> Tensor:
    """Return the weights of a token's experts, divided by their sum; of a single one, as it is."""
    return weights / weights.sum(-1, keepdim=True) if weights.shape[-1] > 1 else weights
