"""The trainer's ranks: their process group, the network interface that leads to the other ranks,
and the few messages between them."""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentgym_rl.algo import Moments
from agentgym_rl.core import ArlError, ConfigError, TrainerError
from agentgym_rl.weights import own_address

_log = logging.getLogger(__name__)

SIOCGIFADDR = 0x8915  # linux/sockios.h
LOOPBACK = "lo"


def interface_to(rendezvous: str) -> str:
    """Return the interface's name; loopback if `rendezvous` is not `tcp://host:port` or no
    interface matches.

    Raises:
        WeightsError: there is no route to the host.
    """
    host = urlsplit(rendezvous).hostname if rendezvous.startswith("tcp://") else None
    if not host:
        return LOOPBACK
    own = own_address([rendezvous])
    if ":" in own:
        return _ipv6_interfaces().get(own, LOOPBACK)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _address(probe, name) == own:
                return name
    return LOOPBACK


def _ipv6_interfaces() -> dict[str, str]:
    """Return the names of interfaces by their addresses of IPv6."""
    lines = Path("/proc/net/if_inet6").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines]
    return {str(ipaddress.IPv6Address(int(row[0], 16))): row[-1] for row in rows}


def _address(probe: socket.socket, name: str) -> str:
    """Return an interface's IPv4 address; "" if it has none."""
    request = struct.pack("256s", name.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A rank and its place among the others."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    """A mesh of one dimension, along which models are sharded, or of two, replicate × shard."""
    unit: int = 1
    """The number of ranks that compute the same rows: consecutive ones, with the same batch."""

    @property
    def part(self) -> int:
        """Return the number of this rank's part of each batch."""
        return self.rank // self.unit

    @property
    def is_first(self) -> bool:
        """Return whether this rank is the first of those with the same rows."""
        return self.rank % self.unit == 0

    def maxima(self, numbers: Sequence[int]) -> list[int]:
        """Return the element-wise maximum over ranks (collective)."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        if self.size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def gather(self, item: T) -> list[T]:
        """Return the item of each part of a batch, in their order, on every rank (collective)."""
        return self.gather_all(item)[:: self.unit]

    def gather_all(self, item: T) -> list[T]:
        """Return every rank's item, in rank order, on every rank (collective)."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def moments(self, numbers: Tensor) -> Moments:
        """Return the moments of the numbers of all ranks (collective)."""
        parts = self.gather((len(numbers), float(numbers.sum())))
        count = sum(n for n, _ in parts)
        mean = sum(total for _, total in parts) / max(1, count)
        squares = sum(self.gather(float(((numbers - mean) ** 2).sum())))
        return Moments(mean, squares, count)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Return the element-wise sum over ranks, in float64 (collective)."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor.tolist()

    def barrier(self) -> None:
        """Wait until every rank is here (collective)."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_world(
    *,
    rank: int = 0,
    size: int = 1,
    num_replicas: int = 1,
    unit: int = 1,
    rendezvous: str = "",
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    timeout_s: float = 600.0,
) -> Iterator[World]:
    """Join the trainer's process group; leave it at exit.

    If a rank of several fails, its process ends here, at once: the others may wait for it in a
    collective, and any orderly end, of NCCL or of Python, may then wait for them.

    `rendezvous` is torch's init method, `tcp://host:port` or `file:///path`; a single rank needs
    none and opens no port. The ranks hold `num_replicas` copies of each sharded model, a number
    that divides `size`. Collectives that take longer than `timeout_s` fail.

    Raises:
        ConfigError: `device` is cuda and there is none.
        TrainerError: the ranks did not find each other.
    """
    place = _device(device, rank)
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    store: dict[str, Any] = {"store": HashStore()} if size == 1 else {"init_method": rendezvous}
    # Without this, gloo resolves the host name, which may not resolve, or may not lead to the other
    # ranks.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to("" if size == 1 else rendezvous))
    try:
        dist.init_process_group(
            backend, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s), **store
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise TrainerError(
            f"trainer rank {rank} of {size} cannot meet the others at {rendezvous!r}: {error}"
        ) from error
    try:
        mesh = _mesh(place, size, num_replicas)
        world = World(rank=rank, size=size, device=place, mesh=mesh, unit=unit)
        yield world
        world.barrier()  # leave together: gloo fails if a peer is gone
    except BaseException as error:
        if size > 1:
            if not isinstance(error, SystemExit):
                ours = isinstance(error, ArlError | OSError)
                _log.error("rank %d fails: %s", rank, error or repr(error), exc_info=not ours)
            os._exit(1)
        raise
    finally:
        dist.destroy_process_group()


def _mesh(place: torch.device, size: int, num_replicas: int) -> DeviceMesh:
    if num_replicas == 1:
        return open_mesh(place, (size,))
    return open_mesh(place, (num_replicas, size // num_replicas), ("replicate", "shard"))


def open_mesh(
    place: torch.device, shape: tuple[int, ...], names: tuple[str, ...] | None = None
) -> DeviceMesh:
    """Return a mesh of all ranks (collective)."""
    mesh = init_device_mesh(place.type, shape, mesh_dim_names=names)
    # NCCL needs all ranks of a group in its first call, and `Gathering` may begin with a few.
    for group in mesh.get_all_groups():
        dist.all_reduce(torch.zeros(1, device=place), group=group)
    return mesh


def _device(device: str, rank: int) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device is 'cuda', but torch finds no GPU here; use 'cpu'")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    place = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(place)
    return place
