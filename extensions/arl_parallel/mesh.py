"""The meshes of ranks. A rank's number is ((replica · data + shard) · c + context) · t + tensor:
the ranks of a unit, which compute the same rows, have consecutive numbers, and so have the ranks
that divide the experts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentgym_rl.trainer import World

from .shape import Shape


class Meshes:
    """The groups that this rank belongs to."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.shape = shape
        replicas = world.mesh.size(0) if world.mesh.ndim > 1 else 1
        context, tensor = shape.context, shape.tensor
        rows = world.size // shape.unit
        whole = _mesh(world, (rows, context, tensor), ("rows", "c", "t"))
        self.context: ProcessGroup = whole.get_group("c")
        self.tensor: ProcessGroup = whole.get_group("t")
        self.unit = _mesh(world, (rows, shape.unit), ("rows", "unit")).get_group("unit")
        self._replicas = replicas
        self._world = world
        self.matrices = self._across(tensor)
        """The ranks over which the matrices of this rank's part are sharded."""
        experts = _mesh(world, (world.size // shape.experts, shape.experts), ("rest", "e"))
        self.experts: ProcessGroup = experts.get_group("e")
        self.experts_part = self._across(shape.experts)

    def _across(self, count: int) -> DeviceMesh:
        """Return the mesh of the ranks that have the same part of `count`."""
        if count == 1:
            return self._world.mesh
        rest = self._world.size // self._replicas // count
        shape, names = (rest, count), ("shard", "part")
        if self._replicas == 1:
            return _mesh(self._world, shape, names)["shard"]
        names = ("replicate", *names)
        return _mesh(self._world, (self._replicas, *shape), names)["replicate", "shard"]


def _mesh(world: World, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    for group in mesh.get_all_groups():  # NCCL needs all ranks of a group in its first call
        dist.all_reduce(torch.zeros(1, device=world.device), group=group)
    return mesh
