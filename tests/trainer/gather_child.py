"""A rank of several that gathers parameters of odd sizes, each to one owner."""

from __future__ import annotations

import sys

import torch
from torch import nn

from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import join_world
from agentgym_rl.trainer.sharding import Gathering, shard

SHAPES = [(7, 3), (8, 2), (5,), (1, 4), (2,)]
"""With four shards, some ranks have a smaller one, and some none."""


def main(meeting: str, rank: str, size: str, replicas: str) -> None:
    torch.set_num_threads(1)
    place: dict[str, int] = {"rank": int(rank), "size": int(size), "num_replicas": int(replicas)}
    with join_world(**place, rendezvous=meeting, timeout_s=120) as world:  # type: ignore[arg-type]
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(3)
            expected = [torch.randn(shape).to(dtype) for shape in SHAPES]
            model = nn.ParameterList([nn.Parameter(it.clone()) for it in expected])
            shard(model, world, "float32", TrainerConfig())
            gathering = Gathering(world)
            for owner in range(world.size):
                for parameter, whole in zip(model.parameters(), expected, strict=True):
                    found = gathering.gather(owner, parameter)
                    if world.rank != owner:
                        assert not found.numel()
                        continue
                    assert found.dtype == dtype
                    assert torch.equal(found, whole), (owner, tuple(whole.shape))
            gathering.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
