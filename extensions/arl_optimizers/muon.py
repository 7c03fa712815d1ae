"""Muon for the matrices of hidden layers, and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import WHOLE, adamw, groups_of, trained

from .keys import MomentumKeys

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of Jordan et al.: fast for small singular values, inexact around 1."""
_TINY = 1e-7
_ADAMW_RMS = 0.2
"""The usual root mean square of AdamW's updates, at a learning rate of 1."""


class Muon(torch.optim.AdamW):
    """Muon for the groups with a `momentum`, all of matrices; AdamW for the others.

    A matrix moves along its momentum, made orthogonal: all its singular values become about 1. The
    update is scaled to the root mean square of AdamW's, about 0.2, so that one learning rate serves
    both. A sharded matrix is gathered, and each rank computes the same update and keeps its part;
    in the matrix's own dtype, because bfloat16 would round differently on two ranks.

    Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon); the scale: Liu et al. 2025
    (https://arxiv.org/abs/2502.16982).
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore
        """Take a step; the gradients of matrices are dropped. Collective."""
        for group in self.param_groups:
            if "momentum" in group:
                for p in group["params"]:
                    self._move(p, group)
                    p.grad = None  # so that AdamW passes it over
        super().step()

    def _move(self, p: Tensor, group: Mapping[str, Any]) -> None:
        if p.grad is None:
            return
        momentum, rate = group["momentum"], group["lr"]
        state = self.state[p]
        state["step"] += 1
        buffer = state["momentum_buffer"]
        buffer.lerp_(p.grad, 1 - momentum)
        update = p.grad.lerp(buffer, momentum)  # Nesterov's
        if isinstance(update, DTensor):
            whole, of = update.full_tensor(), getattr(p, WHOLE, None)
            whole = _orthogonal_step(of.joined(whole) if of else whole)
            whole = of.taken(whole) if of else whole
            moved = distribute_tensor(
                whole, update.device_mesh, update.placements, src_data_rank=None
            )
        else:
            moved = _orthogonal_step(update)
        p.mul_(1 - rate * group["weight_decay"]).sub_(moved, alpha=rate)


def _orthogonal_step(update: Tensor) -> Tensor:
    return orthogonal(update) * _ADAMW_RMS * max(update.shape) ** 0.5


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix with the singular vectors of `matrix`, and singular values of about 1: by
    five steps of a Newton–Schulz iteration of degree 5 (`Muon` has the source)."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + _TINY)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if is_tall else x


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained matrices that are neither embeddings nor the output layer: those that Muon
    is for. Stacks of matrices (experts of a mixture, convolutions) are not among them."""
    outer = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if isinstance(model, PreTrainedModel) and (head := model.get_output_embeddings()) is not None:
        outer.append(head)
    others = {id(p) for module in outer for p in module.parameters()}
    return [p for p in trained(model) if p.ndim == 2 and id(p) not in others]


def muon(model: nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """Return Muon for the trained parameters of a model, those that it moves in a group with a
    `momentum`."""
    moved, momentum = hidden_matrices(model), config.part(MomentumKeys).momentum
    known = {id(p) for p in moved}
    groups = groups_of((p for p in trained(model) if id(p) not in known), config)
    if moved:
        own = {"params": moved, "weight_decay": config.weight_decay, "momentum": momentum}
        groups.insert(0, own)
    return adamw(groups, config, Muon, _states)


def _states(group: Mapping[str, Any]) -> tuple[str, ...]:
    return ("momentum_buffer",) if "momentum" in group else ("exp_avg", "exp_avg_sq")
