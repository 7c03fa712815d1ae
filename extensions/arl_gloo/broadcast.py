"""A broadcast of tensors from one process to many over sockets, in a separate gloo group.

Rank 0 is the trainer, every other rank a worker of an engine. The group is made without
`init_process_group`, so it neither needs nor changes the default group of either side. The only
heavy package imported here is torch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, TCPStore
from torch.distributed import ProcessGroupGloo

from agentgym_rl.core import WeightsError
from agentgym_rl.weights import bytes_of, fingerprint, kinds_of

BUCKET_BYTES = 32 << 20
"""The approximate size, in bytes, of the buckets into which tensors are packed; a larger tensor is
sent by itself."""
_ALIGN = 16
"""The alignment in bytes of each tensor in its bucket, so that it can be viewed there."""


class BroadcastGroup:
    """A member `rank` of `world_size`; the constructor returns once all of them have met.

    The members meet at `address`:`port`, where rank 0 listens, on `listener` if it is given.
    `timeout_s` bounds the meeting, and each complete `send` and `receive`. After any failure but a
    wrong fingerprint the group cannot be used: `close` it and make another. Once rank 0 has closed
    its group, waiting receivers fail at once. `prefixes` are those of the keys in the store, and
    must be the same for all members; `backend` nccl is experimental: not measured.

    Raises:
        WeightsError: the members did not meet within `timeout_s`.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        listener: socket.socket | None = None,
        prefixes: Sequence[str] = ("weights",),
        backend: Literal["gloo", "nccl"] = "gloo",
    ):
        self.rank = rank
        self.world_size = world_size
        self._timeout_s = timeout_s
        self._name = f"broadcast group at {address}:{port}, rank {rank} of {world_size}"
        self._device = "cuda" if backend == "nccl" else "cpu"
        self._store: TCPStore | None = None
        self._group: Any = None
        limit = timedelta(seconds=timeout_s)
        try:
            self._store = TCPStore(
                address,
                port,
                is_master=rank == 0,
                timeout=limit,
                wait_for_workers=False,
                master_listen_fd=None if listener is None else listener.detach(),
            )
            store: Any = self._store
            for prefix in prefixes:
                store = PrefixStore(prefix, store)
            own = _own_address(address, port, rank)
            self._group = _joined(backend, store, rank, world_size, own, limit)
        except (RuntimeError, ValueError, OSError) as error:
            self.close()
            raise WeightsError(
                f"{self._name}: the members did not meet within {timeout_s:.1f} s: {_first(error)}"
            ) from error

    def send(self, tensors: Mapping[str, Tensor], *, timeout_s: float | None = None) -> None:
        """Send the tensors from rank 0 to every other member, in their order.

        Each tensor is accessed once, bucket by bucket, so that lazy ones are never all in memory.
        The members need names, dtypes, shapes and `fingerprint(tensors)` beforehand, by another
        route. `timeout_s` replaces the group's limit.

        Raises:
            WeightsError: a member is gone, or did not receive them in time.
        """
        deadline = self._deadline(timeout_s)
        kinds = kinds_of(tensors)
        names = list(kinds)
        for bucket in buckets([kind.nbytes for kind in kinds.values()]):
            packed = _packed([bytes_of(tensors[names[index]]) for index in bucket])
            self._broadcast(packed, deadline)

    def send_flat(self, data: Tensor, *, timeout_s: float) -> None:
        """Send bytes, uint8 [n], from rank 0 to every other member, in one piece.

        Raises:
            WeightsError: a member is gone, or did not receive them in time.
        """
        self._broadcast(data, self._deadline(timeout_s))

    def receive(
        self,
        names: Sequence[str],
        dtypes: Sequence[torch.dtype],
        shapes: Sequence[Sequence[int]],
        expected: str,
    ) -> dict[str, Tensor]:
        """Receive, on any other rank, the tensors that rank 0 sends; return them on the CPU,
        verified.

        Raises:
            WeightsError: rank 0 is gone or did not send all tensors in time, or the received bytes
                do not have the fingerprint `expected`.
        """
        deadline = self._deadline(None)
        sizes = [_num_bytes(*kind) for kind in zip(dtypes, shapes, strict=True)]
        tensors = {
            name: torch.empty(tuple(shape), dtype=dtype)
            for name, dtype, shape, size in zip(names, dtypes, shapes, sizes, strict=True)
            if not size
        }
        for bucket in buckets(sizes):
            places = _padded([sizes[index] for index in bucket])
            data = torch.empty(sum(places), dtype=torch.uint8)
            self._broadcast(data, deadline)
            for index, part in zip(bucket, data.split(places), strict=True):
                flat = part[: sizes[index]].view(dtypes[index])
                tensors[names[index]] = flat.reshape(tuple(shapes[index]))
        found = fingerprint(tensors)
        if found != expected:
            raise WeightsError(
                f"{self._name}: what came has fingerprint {found}, sent was {expected}"
            )
        return {name: tensors[name] for name in names}

    def close(self) -> None:
        """Leave the group (idempotent). On rank 0 this ends the waiting of all others."""
        self._group = None
        self._store = None

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _broadcast(self, data: Tensor, deadline: float) -> None:
        if self._group is None:
            raise WeightsError(f"{self._name} is closed")
        left = deadline - time.monotonic()
        if left <= 0:
            raise WeightsError(f"{self._name}: no time left to broadcast {len(data)} bytes")
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=left)
        try:
            self._group.broadcast([data.to(self._device)], options).wait()
        except RuntimeError as error:
            raise WeightsError(
                f"{self._name}: broadcast of {len(data)} bytes: {_first(error)}"
            ) from error


def _joined(
    backend: str, store: Any, rank: int, world_size: int, own_address: str, limit: timedelta
) -> Any:
    """Return the process group, once all members have joined it (nccl: at the first broadcast)."""
    if backend == "nccl":
        from torch.distributed import ProcessGroupNCCL  # not in torch's builds for CPUs

        nccl: Any = ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = limit
        return nccl(store, rank, world_size, options)
    gloo: Any = ProcessGroupGloo  # torch's stubs do not have its options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=own_address)]
    options._timeout = limit
    return gloo(store, rank, world_size, options)


def _own_address(address: str, port: int, rank: int) -> str:
    """Return the address of this host at which the group's other members reach it.

    Gloo by default resolves the host name, which may not resolve, or resolves to loopback.
    """
    if rank == 0:
        return address
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def buckets(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of tensors that are sent together, in order; empty tensors are not sent."""
    bucket: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if not size:
            continue
        if bucket and total + size > BUCKET_BYTES:
            yield bucket
            bucket, total = [], 0
        bucket.append(index)
        total += _rounded(size)
    if bucket:
        yield bucket


def _padded(sizes: Sequence[int]) -> list[int]:
    """Return the padded size, in bytes, of each tensor in a bucket; the last one needs no
    padding."""
    return [*map(_rounded, sizes[:-1]), *sizes[-1:]]


def _rounded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _packed(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    places = _padded([len(part) for part in parts])
    packed = torch.zeros(sum(places), dtype=torch.uint8)
    for part, place in zip(parts, packed.split(places), strict=True):
        place[: len(part)] = part
    return packed


def _num_bytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return dtype.itemsize * torch.Size(shape).numel()


def _first(error: Exception) -> str:
    """Return the first line of torch's message, which has the cause; more lines follow it."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
