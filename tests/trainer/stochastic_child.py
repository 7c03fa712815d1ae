"""One of two ranks that take steps of AdamW with stochastic rounding, and save what they got: two
steps in a process of their own, a checkpoint, and two more by an optimizer that has loaded it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from arl_optimizers.adamw import StochasticAdamW
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from agentgym_rl.trainer import join_world

WAYS = {
    "plain": (torch.float32, (2,)),
    "halves": (torch.bfloat16, (2,)),
    "replicas": (torch.bfloat16, (2, 1)),
}


def model_of(dtype: torch.dtype) -> nn.Module:
    """A model with an odd number of rows, a single one, and more numbers than are moved at once."""
    torch.manual_seed(0)
    layers = nn.Linear(300, 601), nn.Linear(601, 1), nn.LayerNorm(7)
    return nn.Sequential(*layers).to(dtype)


def make(model: nn.Module) -> StochasticAdamW:
    groups = [{"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for p in model.parameters()]
    return StochasticAdamW(groups, lr=1e-3, seed=3)


def gradients(model: nn.Module, step: int) -> None:
    """Give each parameter its random gradient of a step, whole or this rank's part."""
    for number, p in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(100 * step + number)
        whole = torch.randn(p.shape, generator=generator).to(p.dtype)
        is_part = isinstance(p, DTensor)
        p.grad = distribute_tensor(whole, p.device_mesh, p.placements) if is_part else whole


def complete(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def steps(name: str, mesh: DeviceMesh, out: Path, rank: int) -> None:
    model = fully_shard(model_of(WAYS[name][0]), mesh=mesh)
    optimizer = make(model)
    for step in (0, 1):
        gradients(model, step)
        optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": state}, checkpoint_id=out / f"{name}-saved")
    model = fully_shard(model_of(WAYS[name][0]), mesh=mesh)
    optimizer = make(model)
    weights, state = get_state_dict(model, optimizer)
    load({"model": weights, "optimizer": state}, checkpoint_id=out / f"{name}-saved")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for step in (2, 3):
        gradients(model, step)
        optimizer.step()
    found = {
        "model": {name: complete(it) for name, it in model.state_dict().items()},
        "states": [
            {n: complete(it) for n, it in its.items() if n != "step"}
            for its in optimizer.state.values()
        ],
    }
    if rank == 0:
        torch.save(found, out / f"{name}.pt")


def main(meeting: str, rank: str, out: str) -> None:
    torch.set_num_threads(1)
    with join_world(rank=int(rank), size=2, rendezvous=meeting, timeout_s=300):
        for name, (_, shape) in WAYS.items():
            names = ("replicate", "shard")[-len(shape) :]
            steps(name, init_device_mesh("cpu", shape, mesh_dim_names=names), Path(out), int(rank))


if __name__ == "__main__":
    main(*sys.argv[1:])
