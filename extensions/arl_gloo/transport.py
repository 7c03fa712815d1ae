"""The transport `gloo`: a broadcast from the trainer to all workers of all engines over sockets."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from agentgym_rl.core import WeightsError
from agentgym_rl.weights import (
    Pause,
    Prepared,
    Publication,
    RemoteEngine,
    StoredVersion,
    Transport,
    fingerprint,
    is_adapter,
    kinds_of,
    own_address,
    rank_offsets,
    stage_tensors,
    whole_units,
)

from .broadcast import BroadcastGroup

_log = logging.getLogger(__name__)

_MEETING_TIMEOUT_S = 10.0
"""The longest time, in seconds, until all members have joined the group: the requests to join are
sent before the trainer waits."""


class Broadcasts(Transport):
    """A broadcast group with the workers of all engines, used as long as its members stay the same.

    A new group is made when an engine joins or leaves, and after a failed broadcast. A broadcast
    needs every member, so an engine that dies during it makes it fail for all. The engines that
    still answer then form another group, and the version is sent again. Blocks that the members
    already have, from the previous version, are not sent. `timeout_s` limits the meeting and the
    broadcast, as measured by the workers.

    An engine that joins no common group has a separate one, and receives the version in its own
    pause; for that `model_dir`, the model's folder, is needed.
    """

    def __init__(self, *, timeout_s: float, model_dir: Path | None = None):
        self._model_dir = model_dir
        self._version: Prepared | None = None
        self._timeout_s = timeout_s
        self._tensors: Mapping[str, Tensor] = {}
        self._path = ""
        self._brings: tuple[str, int] | None = None
        """The sequence and the number of the prepared version, if it is stored completely."""
        self._base: tuple[str, int] | None = None
        """The sequence and the number of the version that all members serve, if this group
        transferred it."""
        self._members: dict[str, RemoteEngine] = {}
        self._swapped: set[str] = set()
        """The engines that serve the prepared version."""
        self._group: BroadcastGroup | None = None

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._version = Prepared(tensors, self._model_dir)
        self._path = f"of policy version {version}"
        self._brings = None
        self._swapped.clear()
        if isinstance(tensors, StoredVersion) and not is_adapter(tensors):
            self._brings = tensors.sequence, tensors.version

    def swap(
        self, publication: Publication, names: Sequence[str], *, deadline: float
    ) -> dict[str, Pause]:
        pauses = super().swap(publication, names, deadline=deadline)
        self._swapped |= pauses.keys()
        self._base = self._brings if self._members.keys() <= self._swapped else None
        return pauses

    def stage(self, publication: Publication, *, deadline: float) -> None:
        """Broadcast until it succeeds, or fails a second time without an engine to exclude."""
        assert self._version is not None
        stage_tensors(publication, self._version, way="gloo", deadline=deadline)
        tries_left = 2
        while members := publication.group():
            start = time.monotonic()
            try:
                # Use half of the time: if a member hangs, there must be time for an attempt without
                # it.
                limit = deadline if tries_left == 1 else (start + deadline) / 2
                self._broadcast(publication, deadline=limit)
                break
            except WeightsError as error:
                _log.info("%s", error)
                self.close()  # this also ends the waits of receivers
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
        self._group = self._base = None
        self._members = {}

    def _changes(self) -> Mapping[str, Tensor]:
        """Return the tensors that the members do not have already."""
        if self._base is None or not isinstance(self._tensors, StoredVersion):
            return self._tensors
        stored = self._tensors
        same = whole_units(stored, stored.unchanged_since(*self._base))
        return stored.without(same) if same and self._brings is not None else stored

    def _update_info(self, tensors: Mapping[str, Tensor]) -> dict[str, object]:
        """Return the description of the broadcast `tensors` that receivers need."""
        kinds = kinds_of(tensors)
        same = [name for name in self._tensors if name not in kinds]
        return {
            "names": list(kinds),
            "dtypes": [str(kind.dtype).removeprefix("torch.") for kind in kinds.values()],
            "shapes": [list(kind.shape) for kind in kinds.values()],
            "fingerprint": fingerprint(tensors),
            "path": self._path,
            "same": same,
            "base": list(self._base or ()) if same else [],
            "brings": list(self._brings or ()),
        }

    def _broadcast(self, publication: Publication, *, deadline: float) -> None:
        """Broadcast the tensors once; raise WeightsError if the group cannot be used any more."""
        if self._group is None or self._members != publication.group():
            self.close()
            self._group = self._meet(publication, deadline=deadline)
            self._members = publication.group()

        tensors = self._changes()
        update = self._update_info(tensors)

        def begin(engine: RemoteEngine) -> None:
            engine.start_update(deadline=deadline)
            engine.post("/update_weights", {"update_info": update}, deadline=deadline)

        publication.each(begin, among=self._members.values())
        _nobody_left(self._members, publication)
        self._group.send(tensors, timeout_s=deadline - time.monotonic())

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
