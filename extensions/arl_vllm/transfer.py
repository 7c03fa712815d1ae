"""The vLLM side of a publication: weights are staged while it samples, and swapped in a pause.

    POST /start_weight_update     drops the rest of an earlier, unfinished update
    POST /update_weights          starts staging in a thread and returns at once
    POST /collective_rpc          {"method": "arl_staging"} reports its progress
    POST /finish_weight_update    swaps; fails before it touches the model, or not at all

vLLM calls these in each worker between two decode steps, and an exception is a 500 for the client.
"""

# vllm is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from arl_gloo.broadcast import BroadcastGroup
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from agentgym_rl.core import WeightsError
from agentgym_rl.core.model_folder import Shapes
from agentgym_rl.storage import SHARED_MEMORY
from agentgym_rl.weights import (
    StoredVersion,
    is_adapter,
    opened_version,
    whole_units,
)
from agentgym_rl.weights.adapter import merged

from .staging import Loaded, Staging, lock_pages, mapped, read_shapes, shapes_of
from .swap import loaded_adapter, serves_adapter, swap_adapter, swap_weights

_log = logging.getLogger("vllm.agentgym_rl")  # shown by vLLM's own logging configuration

_TIED_HEAD = "lm_head.weight"
_LAST_WORDS_S = 0.1


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The `init_info` of arl-shm."""

    timeout_s: float = 60.0
    """The longest wait of a finish for staging that is still under way."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The `update_info` of arl-shm."""

    path: str = ""
    """The folder of a version (`weights/version_folder.py`)."""
    discard: bool = False
    """The request to drop the update instead. The reply is an error, since only an error makes vLLM
    forget that an update is under way."""


class StagedTransfer(WeightTransferEngine[Any, Any]):
    """A transfer that stages weights in separate memory and swaps them once, in the pause;
    subclasses load the tensors."""

    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s = InitInfo.timeout_s
        self._staging: Staging | None = None
        self._served: tuple[str, int] | None = None
        """The sequence and the number of the version in place, if it came by an update."""
        self._expected: Shapes | None = read_shapes(Path(self.model_config.model))

    @abstractmethod
    def load(self, update_info: Any) -> Loaded:
        """Return the update's tensors in CPU memory, verified; runs in the staging thread. Nothing
        changes them until `Staging.release`.

        Raises:
            WeightsError: they are not available, or are damaged.
        """

    def status(self) -> dict[str, str]:
        """Return the progress of staging, as `worker.StagingExtension` reports it."""
        staging = self._staging
        if staging is None:
            return {"state": "idle", "error": "", "path": ""}
        return {"state": staging.state, "error": staging.error, "path": staging.path}

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self._timeout_s = init_info.timeout_s

    def start_weight_update(self) -> None:
        self.drop()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Start staging; see the module docstring.

        Raises:
            WeightsError: `discard`, or a second file in one update.
        """
        info = self.parse_update_info(update_info)
        if info.discard:
            self.drop()
            raise WeightsError("weight update discarded on request; the old weights still serve")
        if self._staging is not None:
            raise WeightsError("an update is one /update_weights; start another for more weights")
        self.receive_weights(info)

    def receive_weights(self, update_info: Any) -> None:
        def load() -> Loaded:
            loaded = self.load(update_info)
            if serves_adapter(self.model):
                return self._adapter(loaded)
            if is_adapter(loaded.tensors):
                tensors = dict(merged(loaded.tensors, Path(self.model_config.model)))
                loaded = Loaded(tensors)
            if self._is_tied():  # some models' files contain the tied head a second time
                loaded.tensors.pop(_TIED_HEAD, None)
            return loaded

        expected = None if serves_adapter(self.model) else self._expected
        if expected is not None and self._is_tied():
            expected = {name: shape for name, shape in expected.items() if name != _TIED_HEAD}
        self._staging = Staging(load, path=update_info.path, expected=expected)

    def finish_weight_update(self) -> None:
        """Swap in the staged weights.

        Raises:
            WeightsError: nothing is staged, it failed, or it is not ready in time, here or in
                another worker of this server. The model has not been touched.
        """
        start = time.monotonic()
        loaded = self._agreed()
        ready = time.monotonic()
        self._served = None
        try:
            if serves_adapter(self.model):
                swap_adapter(self.model, loaded_adapter(self.model, loaded.tensors))
            else:
                swap_weights(self.model, self.model_config, self.device, loaded.tensors)
        except BaseException:
            _log.critical("the swap of %s failed half way: ending the process", self.status())
            self._condemn()
            raise
        assert self._staging is not None
        _log.info(
            "weights %s: staged in %.3f s, finish waited %.3f s, swapped in %.3f s",
            *(self._staging.path, self._staging.seconds),
            *(ready - start, time.monotonic() - ready),
        )
        if not loaded.same and not serves_adapter(self.model):
            self._expected = self._expected or shapes_of(loaded.tensors)
        self._served = loaded.brings
        self.drop()

    def _adapter(self, loaded: Loaded) -> Loaded:
        """Return the tensors of an adapter that this server can compute in addition to its base.

        Raises:
            WeightsError: they are not an adapter's, belong to another base, or do not fit.
        """
        if not is_adapter(loaded.tensors):
            raise WeightsError(
                "the server computes an adapter in addition to its base (--enable-lora) and "
                "takes no other weights; start it without that for runs without lora.serve = "
                "'adapter'"
            )
        # This checks base and shapes, and makes nothing.
        merged(loaded.tensors, Path(self.model_config.model))
        loaded_adapter(self.model, loaded.tensors)
        return loaded

    def drop(self) -> None:
        """Forget the update; a thread that still runs ends by itself, and its result is unused."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.release()

    def shutdown(self) -> None:
        self.drop()

    def _condemn(self) -> None:
        """Stop the model, which has neither the old policy nor the new one, from sampling any
        token.

        The process ends once it has had the time to report why; vLLM then ends the server.
        """

        def refuse(*_: Any) -> None:
            raise RuntimeError("the model is half swapped")

        self.model.register_forward_pre_hook(refuse)
        threading.Timer(_LAST_WORDS_S, os._exit, (1,)).start()

    def _is_tied(self) -> bool:
        return bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))

    def _agreed(self) -> Loaded:
        """Return the staged tensors, once every worker of this server has its own."""
        loaded = Loaded({})
        failure = ""
        try:
            if self._staging is None:
                raise WeightsError("nothing is staged: /update_weights comes before the finish")
            loaded = self._staging.result(timeout_s=self._timeout_s)
            if loaded.base is not None and loaded.base != self._served:
                raise WeightsError("the staged weights are changes of others; stage them again")
        except WeightsError as error:
            failure = str(error)
        world = get_world_group()
        if world.world_size > 1:
            failures = torch.tensor([bool(failure)], dtype=torch.int32)
            torch.distributed.all_reduce(failures, group=world.cpu_group)
            if failures.item() and not failure:
                failure = "another worker of this server has not staged these weights"
        if failure:
            raise WeightsError(failure)
        return loaded


class SharedMemoryTransfer(StagedTransfer):
    """The backend arl-shm: safetensors files in a folder that trainer and worker both access.

    A version in shared memory stays there until the swap; the workers of a server share its check.
    From another folder each worker reads it into memory of its own.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def load(self, update_info: UpdateInfo) -> Loaded:
        with ExitStack() as hold:
            with opened_version(Path(update_info.path)) as version:
                loaded = self._opened(version, hold)
            # Only now the version is verified; after a failure nothing holds it.
            return replace(loaded, hold=hold.pop_all())

    def _opened(self, version: StoredVersion, hold: ExitStack) -> Loaded:
        """Return the tensors of an open version; they stay in place until `hold` closes."""
        if is_adapter(version):
            return Loaded(dict(version))
        same: set[str] = set()
        if self._served is not None:
            same = whole_units(version, version.unchanged_since(*self._served))
        version.known = same
        names = [name for name in version if name not in same]
        base = self._served if same else None
        loaded = Loaded({}, same=same, base=base, brings=(version.sequence, version.version))
        if SHARED_MEMORY not in version.path.resolve().parents:
            loaded.tensors.update((name, version[name]) for name in names)
            return loaded
        world = get_world_group()
        own = names[world.rank :: world.world_size]
        version.known = same.union(names).difference(own)
        found = mapped(version.path, set(names), hold)
        if self.device.type == "cuda":
            lock_pages(found.values(), hold, device=self.device)
        return replace(loaded, tensors=found, own=own)


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """The `init_info` of arl-gloo: the address at which the trainer (rank 0) waits for the
    workers."""

    master_address: str
    master_port: int
    rank_offset: int
    """The rank of this server's first worker."""
    world_size: int
    """The number of members: the trainer and all workers of all servers."""
    timeout_s: float = 60.0
    """The longest meeting, and the longest broadcast, in seconds."""


@dataclass
class GlooUpdateInfo(UpdateInfo):
    """The `update_info` of arl-gloo: the trainer's next broadcast. `path` is only shown."""

    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    """The dtypes by their names in torch, "bfloat16" or "torch.bfloat16"."""
    shapes: list[list[int]] = field(default_factory=list)
    fingerprint: str = ""
    same: list[str] = field(default_factory=list)
    """The tensors that are not sent, because they are those of the version `base`."""
    base: list[Any] = field(default_factory=list)
    """The sequence and the number of the version that must be in place; empty: any."""
    brings: list[Any] = field(default_factory=list)
    """The sequence and the number of the version that is sent; empty: none that others follow."""


class GlooTransfer(StagedTransfer):
    """The backend arl-gloo: the trainer's broadcast over sockets, received during sampling."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _meeting: _Meeting | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Begin to meet the others, in a thread: a failure shows in the next staging."""
        self.shutdown()
        self._timeout_s = init_info.timeout_s
        self._meeting = _Meeting(init_info, rank=init_info.rank_offset + get_world_group().rank)

    def load(self, update_info: GlooUpdateInfo) -> Loaded:
        if self._meeting is None:
            raise WeightsError("no broadcast group: /init_weight_transfer_engine comes first")
        base, brings = _pair(update_info.base), _pair(update_info.brings)
        if base is not None and base != self._served:
            raise WeightsError(f"changes of {base} cannot be used: {self._served} is in place")
        dtypes = [getattr(torch, name.removeprefix("torch.")) for name in update_info.dtypes]
        group = self._meeting.group()
        received = group.receive(
            update_info.names, dtypes, update_info.shapes, update_info.fingerprint
        )
        return Loaded(received, same=set(update_info.same), base=base, brings=brings)

    def shutdown(self) -> None:
        super().shutdown()
        self._meeting = None  # the group is destroyed with its last user


def _pair(found: Sequence[Any]) -> tuple[str, int] | None:
    return (str(found[0]), int(found[1])) if found else None


class _Meeting:
    """A broadcast group that is being joined in a thread, so that sampling goes on meanwhile."""

    def __init__(self, info: GlooInitInfo, *, rank: int) -> None:
        self._info = info
        self._rank = rank
        self._group: BroadcastGroup | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._join, name="arl-meeting", daemon=True)
        self._thread.start()

    def group(self) -> BroadcastGroup:
        """Return the group; raise WeightsError if the members have not met in time."""
        self._thread.join(self._info.timeout_s)
        if self._group is None:
            raise WeightsError(self._error or "the broadcast group has not met in time")
        return self._group

    def _join(self) -> None:
        info = self._info
        try:
            self._group = BroadcastGroup(
                address=info.master_address,
                port=info.master_port,
                rank=self._rank,
                world_size=info.world_size,
                timeout_s=info.timeout_s,
            )
        except WeightsError as error:
            self._error = str(error)


class StagingExtension:
    """A mixin of vLLM's worker class; called by `POST /collective_rpc {"method": ...}`."""

    weight_transfer_engine: Any

    def arl_staging(self) -> dict[str, str]:
        """Return `state` idle | staging | ready | failed, `error` of a failure, `path` of the
        weights.

        The state is always idle with a weight-transfer backend of vLLM's own, which does not stage.
        """
        engine = self.weight_transfer_engine
        if isinstance(engine, StagedTransfer):
            return engine.status()
        return {"state": "idle", "error": "", "path": ""}
