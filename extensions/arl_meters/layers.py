"""The norms of gradients and of updates by layer, `trainer.layer_metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from torch import Tensor, nn

from agentgym_rl.algo import Tally
from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import Measurement, Policy, local, sum_of_squares

from .keys import LayerKeys


class LayerNorms(Measurement):
    """The norms of gradients (before clipping) and of updates, by layer of a model: the first
    number in the names of its parameters, or `rest`."""

    def __init__(self, model: nn.Module, *, num_ranks: int, num_replicas: int) -> None:
        self._layers: dict[str, list[nn.Parameter]] = {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                number = re.search(r"\.(\d+)\.", name)
                self._layers.setdefault(number[1] if number else "rest", []).append(p)
        self._share, self._replicas = 1.0 / num_ranks, num_replicas

    @classmethod
    def of(cls, config: TrainerConfig, policy: Policy) -> Self | None:
        if not config.part(LayerKeys).layer_metrics:
            return None
        size, replicas = policy.world.size, config.num_replicas
        return cls(policy.model, num_ranks=size, num_replicas=replicas)

    @contextmanager
    def step(self, tally: Tally) -> Iterator[None]:
        """Add the squares of the norms for the optimizer step in this context; in the meantime, the
        parameters are in memory twice. The mean over all ranks is the square of the norm of the
        complete model."""
        before = {p: local(p).clone() for ps in self._layers.values() for p in ps}
        for layer, ps in self._layers.items():
            self._add(tally, f"layer/{layer}/grad_norm", [p.grad for p in ps if p.grad is not None])
        yield
        for layer, ps in self._layers.items():
            self._add(tally, f"layer/{layer}/update_norm", [local(p) - before.pop(p) for p in ps])

    def merged(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        return {k: v**0.5 if k.startswith("layer/") else v for k, v in metrics.items()}

    def _add(self, tally: Tally, name: str, parts: list[Tensor]) -> None:
        total = sum(float(sum_of_squares(part)) for part in parts)
        tally.mean(name, total / self._replicas, self._share)
