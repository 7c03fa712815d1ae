"""The meshes of ranks. A rank's number is ((replica · data + shard) · c + context) · t + tensor:
the ranks of a unit, which compute the same rows, have consecutive numbers, and so have the ranks
that divide the experts."""

from __future__ import annotations

from functools import lru_cache

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from agentgym_rl.trainer import World, open_mesh

from .shape import Shape


class Meshes:
    """The groups that this rank belongs to."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.shape = shape
        context, tensor = shape.context, shape.tensor
        rows = world.size // shape.unit
        whole = open_mesh(world.device, (rows, context, tensor), ("rows", "c", "t"))
        self.context: ProcessGroup = whole.get_group("c")
        self.tensor: ProcessGroup = whole.get_group("t")
        self.unit = open_mesh(world.device, (rows, shape.unit), ("rows", "unit")).get_group("unit")
        self._replicas = world.size // world.mesh.size(-1)
        self._world = world
        self.matrices = self._across(tensor)
        """The ranks over which the matrices of this rank's part are sharded."""
        experts = open_mesh(
            world.device, (world.size // shape.experts, shape.experts), ("rest", "e")
        )
        self.experts: ProcessGroup = experts.get_group("e")
        self.experts_part = self._across(shape.experts)

    def _across(self, count: int) -> DeviceMesh:
        """Return the mesh of the ranks that have the same part of `count`."""
        if count == 1:
            return self._world.mesh
        rest = self._world.size // self._replicas // count
        shape, names = (rest, count), ("shard", "part")
        if self._replicas == 1:
            return open_mesh(self._world.device, shape, names)["shard"]
        names = ("replicate", *names)
        return open_mesh(self._world.device, (self._replicas, *shape), names)["replicate", "shard"]


@lru_cache(maxsize=1)
def meshes_of(world: World, shape: Shape) -> Meshes:
    """Return the groups, made for the first model of these ranks: policy, critic and reference use
    the same ones (collective)."""
    return Meshes(world, shape)
