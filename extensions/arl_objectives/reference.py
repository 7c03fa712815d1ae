"""The reference model (`algo.kl.reference`), and its log-probs of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from agentgym_rl.algo import TokenBatch
from agentgym_rl.core import TrainerError
from agentgym_rl.models import resolve_model
from agentgym_rl.trainer import (
    Loading,
    ModelTerm,
    PackedModel,
    Policy,
    PolicyBase,
    RankBatch,
    frozen_pass,
    local,
)

from .keys.kl import INITIAL, KlConfig


class Reference(ModelTerm):
    """The model that the policy is compared with: frozen, or one that follows the policy
    (`algo.kl.refresh_every`)."""

    provides = "reference"
    lacking = (
        'a reference model: set algo.kl.reference to "initial" (the model the run begins with) or '
        "to a model"
    )
    order = 0
    keys: KlConfig

    def __init__(self, keys: KlConfig) -> None:
        super().__init__(keys)
        self.unused = (
            f"algo.kl.reference {keys.reference!r} does nothing: algo.kl.coef is 0, and no "
            'function or term of the objective has it in its needs (@needs("reference")); leave it '
            "out"
        )
        self._model: Policy | PolicyBase | None = None
        self._policy: Policy | None = None

    def load(self, loading: Loading) -> None:
        policy = loading.policy
        is_initial = self.keys.reference == INITIAL
        if is_initial and policy.adapter is not None:
            self.use(PolicyBase(policy), policy)
            return
        folder = loading.model_dir if is_initial else resolve_model(self.keys.reference)
        if not self.keys.refresh_every:
            self.use(loading.frozen(folder), policy)
            return
        model = Policy.load(  # one that moves is not rounded
            folder, policy.world, compute_dtype=loading.compute_dtype, trainer=loading.trainer
        )
        model.model.requires_grad_(False)
        self.use(model, policy)

    def use(self, model: Policy | PolicyBase, policy: Policy) -> None:
        """Compare `policy` with `model`.

        Raises:
            TrainerError: they have different vocabularies, or are of different kinds, although the
                reference is to follow.
        """
        if model.vocab_size != policy.vocab_size:
            raise TrainerError(
                f"the reference model has {model.vocab_size} tokens, the policy "
                f"{policy.vocab_size}: algo.kl.reference has to be a model of the same tokenizer"
            )
        self._model, self._policy = model, policy
        if moving := self._moving:
            _follow(moving, policy, keep=1.0)  # moves nothing: refuses a model of another kind

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    @property
    def _moving(self) -> Policy | None:
        moves = self.keys.refresh_every and isinstance(self._model, Policy)
        return self._model if moves and isinstance(self._model, Policy) else None

    @property
    def models(self) -> Sequence[PackedModel]:
        # A `PolicyBase` runs the policy's model, which counts those operations too.
        return [self._model] if isinstance(self._model, PackedModel) else []

    def provide(self, batch: RankBatch) -> None:
        assert self._model is not None
        with batch.phases.phase("reference"):
            batch.reference = frozen_pass(self._model, self._model.logprobs, batch.tokens)

    def end(self, batch: TokenBatch) -> None:
        """Move the reference after every `algo.kl.refresh_every` batches."""
        moving = self._moving
        if moving is not None and (batch.step + 1) % self.keys.refresh_every == 0:
            assert self._policy is not None
            _follow(moving, self._policy, keep=self.keys.ema)

    def state(self) -> Mapping[str, Any]:
        moving = self._moving
        return {} if moving is None else {"reference": get_model_state_dict(moving.model)}

    def restore(self, state: Mapping[str, Any]) -> None:
        if (moving := self._moving) is not None:
            set_model_state_dict(moving.model, state["reference"])


@torch.no_grad()
def _follow(moving: PackedModel, policy: PackedModel, *, keep: float) -> None:
    """Move the parameters of `moving` to `keep` times themselves and 1 − `keep` times those of
    `policy`, a model of the same tensors, sharded alike.

    Raises:
        TrainerError: its tensors have other names or shapes.
    """
    own, its = moving.tensors(), policy.tensors()
    if {n: p.shape for n, p in own.items()} != {n: p.shape for n, p in its.items()}:
        raise TrainerError(
            "algo.kl.refresh_every moves the reference model to the policy, and their tensors have "
            "other names or shapes: set algo.kl.reference to a model of the same kind"
        )
    for name, parameter in own.items():
        if parameter.is_floating_point():
            local(parameter).lerp_(local(its[name]), 1 - keep)
