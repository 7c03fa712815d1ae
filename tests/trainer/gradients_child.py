"""One of two ranks that add up the gradients of micro-batches, whole or in shards."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arl_lora.keys import LoraConfig
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from trainer_samples import make_row

from agentgym_rl.config import TrainerConfig
from agentgym_rl.trainer import Policy, World, join_world
from agentgym_rl.trainer.sharding import local

WAYS: dict[str, tuple[dict[str, Any], LoraConfig | None]] = {
    "plain": ({}, None),
    "replicas": ({"num_replicas": 2}, None),
    "offload": ({"cpu_offload": True}, None),
    "checkpointing": ({"activation_checkpointing": True}, None),
    "adapter": ({}, LoraConfig(rank=4, alpha=8)),
}


def whole_bytes(model: torch.nn.Module) -> int:
    """The bytes of gradients that no rank shares with another."""
    held = 0
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    kept = parameter.unsharded_accumulated_grad
                    own = getattr(parameter, "_unsharded_param", None)
                    both = kept, None if own is None else own.grad
                    held += sum(t.nbytes for t in both if t is not None)
    return held


def gradients(model_dir: Path, world: World, name: str, shards: bool) -> list[Tensor]:
    options, adapter = WAYS[name]
    trainer = TrainerConfig(max_tokens_per_microbatch=32, num_ranks=world.size, **options)
    if trainer.num_replicas > 1:
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        world = replace(world, mesh=mesh)
    how: dict[str, Any] = {"master_dtype": torch.float64, "trainer": trainer}
    policy = Policy.load(model_dir, world, adapter=adapter, **how)
    assert not policy.shards_gradients, "a small model"
    policy.shards_gradients = shards
    rng = np.random.default_rng(world.rank)
    batches = [packed for _, packed in policy.micro_batches([make_row(rng, 24) for _ in range(3)])]
    assert len(batches) == 3
    for number, packed in enumerate(batches):
        policy.synchronize_gradients(number == 2)
        policy.logprobs(packed).sum().backward()
        assert (whole_bytes(policy.model) > 0) == (not shards and number < 2), (name, number)
    return [local(p.grad) for p in policy.model.parameters() if p.grad is not None]


def main(meeting: str, rank: str, model_dir: str) -> None:
    torch.set_num_threads(1)
    with join_world(rank=int(rank), size=2, rendezvous=meeting, timeout_s=300) as world:
        for name in WAYS:
            once, each = (gradients(Path(model_dir), world, name, way) for way in (False, True))
            again = gradients(Path(model_dir), world, name, True)
            assert len(once) == len(each) > 0
            for one, other, same in zip(once, each, again, strict=True):
                torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)
                assert torch.equal(other, same), name


if __name__ == "__main__":
    main(*sys.argv[1:])
