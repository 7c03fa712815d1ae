"""The transport `gloo`: a broadcast from the trainer to all workers of all engines over sockets."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from agentgym_rl.core.errors import WeightsError

from .adapter import WholeVersion
from .broadcast import BroadcastGroup
from .engine_routes import RemoteEngine
from .files import checksum
from .transport import Publication, Transport, own_address, rank_offsets, stage_tensors

_log = logging.getLogger(__name__)

_MEETING_TIMEOUT_S = 10.0
"""The longest meeting, in seconds: all members are on their way when the trainer begins to wait."""


class Broadcasts(Transport):
    """A broadcast group with the workers of all engines, used as long as its members stay the same.

    A new group is made when an engine comes or goes, and after a failed broadcast. A broadcast
    needs every member, so an engine that dies during it makes it fail for all. The engines that
    still answer then form another group and get the version again. `timeout_s` is the longest
    meeting and the longest broadcast, as measured by the workers.

    Each SGLang server has a group of its own, and gets the version in its own pause; for that
    `model_dir`, the model's folder, is needed.
    """

    def __init__(self, *, timeout_s: float, model_dir: Path | None = None):
        self._model_dir = model_dir
        self._whole: WholeVersion | None = None
        self._timeout_s = timeout_s
        self._tensors: dict[str, Tensor] = {}
        self._update: dict[str, object] = {}
        self._members: dict[str, RemoteEngine] = {}
        self._group: BroadcastGroup | None = None

    def prepare(
        self, version: int, tensors: Mapping[str, Tensor], *, sums: bytes | None = None
    ) -> None:
        self._tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
        }
        self._whole = WholeVersion(self._tensors, self._model_dir)
        parts = self._tensors.values()
        self._update = {
            "names": list(self._tensors),
            "dtypes": [str(part.dtype).removeprefix("torch.") for part in parts],
            "shapes": [list(part.shape) for part in parts],
            "crc32": checksum(self._tensors, sums=sums),
            "path": f"of policy version {version}",
        }

    def stage(self, publication: Publication, *, deadline: float) -> None:
        """Broadcast until it succeeds, or fails a second time without an engine to exclude."""
        assert self._whole is not None
        stage_tensors(publication, self._whole, way="gloo", deadline=deadline)
        tries_left = 2
        while members := publication.group():
            start = time.monotonic()
            try:
                # Use half of the time: a member that hangs must leave time for a try without it.
                limit = deadline if tries_left == 1 else (start + deadline) / 2
                self._broadcast(publication, deadline=limit)
                break
            except WeightsError as error:
                _log.info("%s", error)
                self.close()  # this also ends the waiting of receivers
                limit = (time.monotonic() + deadline) / 2
                publication.each(
                    lambda engine, limit=limit: engine.discard(deadline=limit),
                    among=publication.group().values(),
                )
                tries_left -= publication.group() == members
                if not tries_left:
                    publication.fail_all(error, among=publication.group().values())
        group = publication.group()
        if publication.polls_staging:
            publication.each(
                lambda engine: engine.wait_staged(deadline=deadline), among=group.values()
            )
        if self._members != publication.group():
            self.close()

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None
        self._members = {}

    def _broadcast(self, publication: Publication, *, deadline: float) -> None:
        """Broadcast the tensors once; raise WeightsError if the group is of no more use."""
        if self._group is None or self._members != publication.group():
            self.close()
            self._group = self._meet(publication, deadline=deadline)
            self._members = publication.group()

        def begin(engine: RemoteEngine) -> None:
            engine.start_update(deadline=deadline)
            engine.post("/update_weights", {"update_info": self._update}, deadline=deadline)

        publication.each(begin, among=self._members.values())
        _nobody_left(self._members, publication)
        self._group.send(self._tensors, timeout_s=deadline - time.monotonic())

    def _meet(self, publication: Publication, *, deadline: float) -> BroadcastGroup:
        workers = publication.each(
            lambda engine: engine.num_workers(deadline=deadline),
            among=publication.group().values(),
        )
        if not workers:
            raise WeightsError("no engine answers")
        offsets = rank_offsets(workers, first=1)
        world_size = 1 + sum(workers.values())
        members = publication.group()
        address = own_address(engine.url for engine in members.values())
        with socket.create_server((address, 0)) as listener:
            meeting = {
                "master_address": address,
                "master_port": listener.getsockname()[1],
                "world_size": world_size,
                "timeout_s": self._timeout_s,
            }
            publication.each(
                lambda engine: engine.post(
                    "/init_weight_transfer_engine",
                    {"init_info": {**meeting, "rank_offset": offsets[engine.name]}},
                    deadline=deadline,
                ),
                among=members.values(),
            )
            _nobody_left(members, publication)
            return BroadcastGroup(
                address=address,
                port=meeting["master_port"],
                rank=0,
                world_size=world_size,
                timeout_s=min(_MEETING_TIMEOUT_S, deadline - time.monotonic()),
                listener=listener,
            )


def _nobody_left(members: Mapping[str, RemoteEngine], publication: Publication) -> None:
    if gone := members.keys() - publication.alive.keys():
        raise WeightsError(f"{', '.join(sorted(gone))} left the broadcast group")
