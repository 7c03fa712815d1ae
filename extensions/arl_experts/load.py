"""The load of experts in the passes that train: `experts/max_load`, `experts/idle` and
`experts/load_entropy`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from agentgym_rl.algo import Tally
from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import Measurement, PackedModel, Phases, Policy, World

from .watch import Watch


class ExpertLoad(Measurement):
    """The load of the experts of a policy, for all passes of a batch that have gradients."""

    def __init__(self, policy: Policy) -> None:
        self._watch, self._world = Watch.of(policy), policy.world

    @classmethod
    def of(cls, config: TrainerConfig, policy: Policy) -> Self | None:
        made = cls(policy)
        return made if made._watch.routers else None

    def begin(self, models: Sequence[PackedModel]) -> None:
        self._watch.clear(frozen=False)

    def end(self, tally: Tally, phases: Phases) -> None:
        """Add the means over layers (collective)."""
        loads = totals(self._watch.trained, self._world)
        for counts in loads:
            shares = counts / counts.sum()
            entropy = -torch.special.xlogy(shares, shares).sum() / math.log(max(2, len(shares)))
            tally.mean("experts/max_load", float(shares.max()) * len(shares), 1)
            tally.mean("experts/idle", float((counts == 0).double().mean()), 1)
            tally.mean("experts/load_entropy", float(entropy), 1)


def totals(numbers: Sequence[Tensor | None], world: World) -> list[Tensor]:
    """Return the numbers of tokens of all ranks, [experts] float64 on the CPU, of the routers that
    any rank has used (collective)."""
    sizes = world.maxima([0 if its is None else len(its) for its in numbers])
    own = [
        torch.zeros(size, dtype=torch.float64) if its is None else its.cpu()
        for its, size in zip(numbers, sizes, strict=True)
    ]
    whole = torch.tensor(world.total(torch.cat(own).tolist()), dtype=torch.float64)
    return [its for its in whole.split(sizes) if its.sum() > 0]
