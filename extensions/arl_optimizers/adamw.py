"""AdamW with states in bfloat16, rounded stochastically.

bfloat16 has 8 bits of precision: a state that changes by less than 1/512 of itself would stay where
it is if it were rounded to nearest, and a mean square with a decay of 0.999 changes by less in most
steps. A number is therefore rounded up with the probability of the part that is cut off, so that
its mean is the exact number. Parameters that are bfloat16 themselves are rounded so, too.

Gupta et al. 2015 (https://arxiv.org/abs/1502.02551); training in bfloat16 by it: Zamirai et al.
2020 (https://arxiv.org/abs/2010.06192). The random numbers: SplitMix64, Steele et al. 2014
(https://doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_rl.trainer import local

_CHUNK = 1 << 17
"""The numbers that are updated at once: what that takes fits in a cache."""
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_STATES = ("exp_avg", "exp_avg_sq")


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW whose two states are bfloat16: 4 bytes a number in place of 8.

    Computed in float32 (or the parameter's dtype, if that is wider) and then rounded. The random
    bits of a number depend on `seed`, the step, the parameter's place among those of the optimizer
    and the number's place in the whole parameter: neither on sharding, nor on a resume, nor on
    other random numbers.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not (len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(f"betas is {betas}; expected two numbers from 0, below 1")
        if eps < 0 or weight_decay < 0:
            raise ValueError(f"eps is {eps}, weight_decay {weight_decay}; expected at least 0")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)
        self._seed = seed
        for p in self._parameters():
            if not p.is_floating_point():
                raise ValueError(f"a parameter is {p.dtype}; expected real numbers")
            self.state[p] = {
                "step": torch.zeros(()),
                **{n: torch.zeros_like(p, dtype=torch.bfloat16) for n in _STATES},
            }

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore
        """Take a step of all parameters with a gradient."""
        number = 0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, group, number)
                number += 1

    def _move(self, p: Tensor, group: Mapping[str, Any], number: int) -> None:
        state = self.state[p]
        state["step"] += 1
        step = int(state["step"])
        key, first = _key(self._seed, number, step), _first(p)
        parts = [local(it) for it in (p, p.grad, *(state[name] for name in _STATES))]  # pyright: ignore
        whole = [it.contiguous().view(-1) for it in parts]
        for begin in range(0, whole[0].numel(), _CHUNK):
            some = [it[begin : begin + _CHUNK] for it in whole]
            _update(*some, _bits(first + begin, some[0], key), group, step)  # pyright: ignore
        for part, flat in zip(parts, whole, strict=True):
            if not part.is_contiguous():
                part.copy_(flat.view(part.shape))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, in its own dtype: torch would make it that of the parameters."""
        found = state_dict["state"]
        steps = {n: {"step": state["step"]} for n, state in found.items()}
        super().load_state_dict({**state_dict, "state": steps})
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        for n, p in zip(numbers, self._parameters(), strict=True):
            for name in _STATES if n in found else ():
                self.state[p][name] = found[n][name].to(device=p.device, dtype=torch.bfloat16)


def _update(
    p: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    bits: Tensor,
    group: Mapping[str, Any],
    step: int,
) -> None:
    """Take the step of some numbers, with 64 random bits for each."""
    (beta, decay), rate = group["betas"], group["lr"]
    dtype = torch.promote_types(p.dtype, torch.float32)
    g, weights = grad.to(dtype), p.to(dtype)
    first = mean.to(dtype).lerp_(g, 1 - beta)
    second = square.to(dtype).mul_(decay).addcmul_(g, g, value=1 - decay)
    mean.copy_(_rounded(first, bits))
    square.copy_(_rounded(second, bits >> 16))
    scale = second.sqrt_().div_((1 - decay**step) ** 0.5).add_(group["eps"])
    weights = weights * (1 - rate * group["weight_decay"])
    weights.addcdiv_(first, scale, value=-rate / (1 - beta**step))
    p.copy_(_rounded(weights, bits >> 32) if p.dtype == torch.bfloat16 else weights)


def _rounded(numbers: Tensor, bits: Tensor) -> Tensor:
    """Return numbers in bfloat16, the lower 16 random bits of each added to those that are cut off;
    infinite ones, and NaN as arithmetic makes it, stay so: there is nothing to carry."""
    moved = numbers.float().view(torch.int32) + bits.int().bitwise_and_(0xFFFF)
    return moved.bitwise_and_(-0x10000).view(torch.float32).bfloat16()


def _first(p: Tensor) -> int:
    """Return the place of a rank's first number in the whole parameter."""
    if not isinstance(p, DTensor):
        return 0
    mesh, (*outer, last) = p.device_mesh, p.placements
    if not last.is_shard(0) or not all(it.is_replicate() for it in outer):
        raise ValueError(f"a parameter is placed {p.placements}; expected slices of its first axis")
    rows = -(-len(p) // mesh.size(mesh.ndim - 1))
    row = min(len(p), mesh.get_local_rank(mesh.ndim - 1) * rows)
    return row * math.prod(p.shape[1:])


def _key(*numbers: int) -> int:
    """Return a number of 64 bits for some others."""
    found = 0
    for number in numbers:
        found = (found + _GAMMA * (1 + number)) % 2**64
        for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
            found = (found ^ (found >> shift)) * factor % 2**64
    return found


def _bits(first: int, like: Tensor, key: int) -> Tensor:
    """Return 64 random bits for each number from the place `first` on, as int64, on the device of
    `like`."""
    x = torch.arange(first, first + len(like), device=like.device)
    x.mul_(_signed(_GAMMA)).add_(_signed(key))
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        x ^= (x >> shift).bitwise_and_(2 ** (64 - shift) - 1)  # int64 shifts its sign in
        x.mul_(_signed(factor))
    return x ^ (x >> 31).bitwise_and_(2**33 - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
