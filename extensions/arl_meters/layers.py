"""The norms of gradients and of updates by layer, `trainer.layer_metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from torch import Tensor, nn

from agentgym_rl.algo import Tally
from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import Measurement, Policy, World, local, sum_of_squares

from .keys import LayerKeys


class LayerNorms(Measurement):
    """The norms of gradients (before clipping) and of updates, by layer of a model: the first
    number in the names of its parameters, or `rest`."""

    def __init__(self, model: nn.Module, world: World, *, num_replicas: int) -> None:
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                number = re.search(r"\.(\d+)\.", name)
                self._layers.setdefault(number[1] if number else "rest", []).append(p)
        self._world, self._replicas = world, num_replicas

    @classmethod
    def of(cls, config: TrainerConfig, policy: Policy) -> Self | None:
        if not config.part(LayerKeys).layer_metrics:
            return None
        return cls(policy.model, policy.world, num_replicas=config.num_replicas)

    @contextmanager
    def step(self, tally: Tally) -> Iterator[None]:
        """Add the squares of the norms for the optimizer step in this context; in the meantime, the
        parameters are in memory twice. Collective."""
        before = {p: local(p).clone() for ps in self._layers.values() for p in ps}
        self._add(tally, "grad_norm", {p: p.grad for p in before if p.grad is not None})
        yield
        self._add(tally, "update_norm", {p: local(p) - before.pop(p) for p in [*before]})

    def merged(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        return {k: v**0.5 if k.startswith("layer/") else v for k, v in metrics.items()}

    def _add(self, tally: Tally, name: str, tensors: Mapping[nn.Parameter, Tensor]) -> None:
        """Add the squares of the norms of tensors that belong to parameters, of all ranks."""
        own = [
            sum(float(sum_of_squares(tensors[p])) for p in ps if p in tensors)
            for ps in self._layers.values()
        ]
        for layer, total in zip(self._layers, self._world.total(own), strict=True):
            tally.mean(f"layer/{layer}/{name}", total / self._replicas, 1)
