"""The transports `nccl` and `ipc`: vLLM's own trainer engines, between GPUs and within one.

Experimental: written against vLLM 0.32 and 0.33, not measured. These write into the served weights,
so there is nothing to stage. The complete transfer happens in a pause of all engines at once, and
an interrupted transfer leaves an engine with neither the old policy nor the new one. Such engines
are never resumed. vLLM must be installed in the trainer's own interpreter; it is imported when the
first group is made.
"""

# pyright: reportMissingImports=false
# vLLM is installed only for runs that use this, and not for this project's checks.

from __future__ import annotations

import base64
import importlib.util
import inspect
import logging
import os
import pickle
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from agentgym_rl.cluster import free_port
from agentgym_rl.core import PAUSE_PATHS, UNKNOWN_LABEL, ConfigError, WeightsError
from agentgym_rl.runtime import in_thread
from agentgym_rl.weights import (
    EngineHttpError,
    Pause,
    Publication,
    RemoteEngine,
    Transport,
    kinds_of,
    own_address,
    rank_offsets,
)
from agentgym_rl.weights.files import Kind


class FleetClient:
    """A VLLMWeightSyncClient (four synchronous methods of vLLM) for all engines of a publication.

    This client adds the steps that vLLM's own leaves out: the pause, the version's label, and the
    resumption. Its methods raise WeightsError if any engine fails, since no other can go on then.
    """

    def __init__(self) -> None:
        self.workers: Mapping[str, int] = {}
        """The number of worker processes by engine."""
        self.wrote = False
        """Whether an engine may have begun to overwrite its weights."""
        self.pauses: dict[str, Pause] = {}
        """The interval in which each engine did not sample."""
        self.failures: queue.Queue[WeightsError] = queue.Queue()
        self._publication: Publication | None = None
        self._stands_still = 0.0

    @property
    def urls(self) -> Sequence[str]:
        """Return the URLs of the engines that take part."""
        return [engine.url for engine in self._taking_part().alive.values()]

    def join(self, publication: Publication, workers: Mapping[str, int]) -> None:
        """Take part in this publication from here on."""
        self._publication = publication
        self.workers = {name: workers[name] for name in publication.alive}
        self.wrote, self.pauses, self.failures = False, {}, queue.Queue()

    def leave(self) -> None:
        """Leave the publication: every method raises from here on."""
        self._publication = None

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Initialize all engines; they get consecutive ranks in the order of `workers`."""
        offsets = rank_offsets(self.workers, first=init_info.get("rank_offset", 0))

        def info(engine: RemoteEngine) -> Mapping[str, Any]:
            if "rank_offset" not in init_info:
                return init_info
            return {**init_info, "rank_offset": offsets[engine.name]}

        self._post("/init_weight_transfer_engine", lambda engine: {"init_info": info(engine)})

    def start_weight_update(self) -> None:
        """Pause all engines; then prepare them to be written to."""
        publication = self._taking_part()
        self._stands_still = time.monotonic()
        self._post(PAUSE_PATHS[publication.interrupt], lambda engine: None)
        if publication.interrupt == "wait":  # they sample until they answer
            self._stands_still = time.monotonic()
        # Until it is finished, the weights are of no version: an engine that is found so after the
        # trainer's death is not resumed.
        self._post("/update_weight_version", lambda engine: {"new_version": UNKNOWN_LABEL})
        self.wrote = True
        self._post("/start_weight_update", lambda engine: {})

    def update_weights(self, update_info: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Send one piece to all engines at the same time."""
        safe = (
            json_safe(update_info)
            if isinstance(update_info, Mapping)
            else [json_safe(info) for info in update_info]
        )
        self._post("/update_weights", lambda engine: {"update_info": safe})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Make the engines serve the version, and sample again."""
        publication = self._taking_part()
        label = weight_version or publication.label
        self._post("/finish_weight_update", lambda engine: {"weight_version": label})
        self._post("/resume", lambda engine: None)
        pause = (self._stands_still, time.monotonic())
        publication.each(lambda engine: engine.check_label(label, deadline=publication.deadline))
        self.pauses = dict.fromkeys(publication.alive, pause)

    def _post(self, path: str, body: Callable[[RemoteEngine], Mapping[str, Any] | None]) -> None:
        deadline = self._taking_part().deadline
        self._each(lambda engine: engine.post(path, body(engine), deadline=deadline))

    def _each(self, step: Callable[[RemoteEngine], object]) -> None:
        publication = self._taking_part()
        before = set(publication.alive)
        publication.each(step)
        if gone := before - publication.alive.keys():
            reasons = "; ".join(publication.failed[name] for name in sorted(gone))
            error = WeightsError(f"broken off: {reasons}")
            self.failures.put(error)
            raise error

    def _taking_part(self) -> Publication:
        if self._publication is None:
            raise WeightsError("this client takes part in no publication (any more)")
        return self._publication


def json_safe(update_info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return JSON-safe info: CUDA IPC handles are pickled, as vLLM's own HTTP client sends them."""
    if update_info.get("ipc_handles") is None:
        return update_info
    rest = {name: value for name, value in update_info.items() if name != "ipc_handles"}
    handles = base64.b64encode(pickle.dumps(update_info["ipc_handles"])).decode()
    return {**rest, "ipc_handles_pickled": handles}


_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0

T = TypeVar("T")


class NativeTransport(Transport):
    """The `backend` of vLLM, driven through its `WeightTransferTrainerFactory`.

    Rank 0 of `num_ranks` trainers holds complete tensors, and only it takes part in the transfer.

    Raises:
        ConfigError: vLLM is missing, or the backend does not support so many trainer ranks.
    """

    def __init__(self, backend: Literal["nccl", "ipc"], *, num_ranks: int = 1):
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                f"weights.transport {backend!r} is vLLM's own, and the trainer's interpreter has "
                "no vLLM: install it there too (the extra vllm), or use 'shm' or 'gloo'"
            )
        if backend == "ipc" and num_ranks > 1:
            raise ConfigError(
                f"weights.transport 'ipc' gathers handles of all trainer ranks, and only rank 0 "
                f"publishes: trainer.num_ranks must be 1, got {num_ranks}"
            )
        # A buffer of cuMem cannot be shared with an engine that was started without it. The
        # variable must be set before the first NCCL communicator of this process.
        os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
        self._backend = backend
        self._tensors: Mapping[str, Tensor] = {}
        self._client = FleetClient()
        self._members: dict[str, RemoteEngine] = {}
        self._kinds: list[tuple[str, Kind]] = []
        """The tensors that the present group was made for."""
        self._trainer: Any = None

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def stage(self, publication: Publication, *, deadline: float) -> None:
        """Make a group with the engines that answer, unless the present group has exactly these,
        and is for such tensors."""
        workers = publication.each(lambda engine: engine.num_workers(deadline=deadline))
        kinds = list(kinds_of(self._tensors).items())
        same = (publication.alive, kinds) == (self._members, self._kinds)
        if not workers or (self._trainer is not None and same):
            return
        self.close()
        publication.each(lambda engine: _release(engine, deadline=deadline))
        if not publication.alive:
            return
        self._client.join(publication, workers)
        try:
            self._trainer = _bounded(self._make_trainer, self._client, deadline)
        except WeightsError as error:
            publication.fail_all(error)
            self._forget()
            return
        self._members, self._kinds = dict(publication.alive), kinds

    def waves(self, publication: Publication) -> list[Sequence[str]]:
        """Return one wave: a transfer is one of all engines."""
        return [list(publication.alive)] if publication.alive else []

    def swap(
        self, publication: Publication, names: Sequence[str], *, deadline: float
    ) -> dict[str, Pause]:
        client = self._client
        client.join(publication, client.workers)
        try:
            _bounded(self._trainer.send_weights, client, deadline)
        except WeightsError as error:
            if not client.wrote:
                for engine in publication.alive.values():
                    engine.try_resume(error)
            publication.fail_all(error)
            self._forget()
            return {}
        return client.pauses

    def close(self) -> None:
        if self._trainer is not None:
            try:
                deadline = time.monotonic() + _CLOSE_TIMEOUT_S
                _bounded(self._trainer.shutdown, self._client, deadline)
            except WeightsError as error:
                _log.warning("the transfer group was left as it was: %s", error)
        self._forget()

    def _forget(self) -> None:
        """Disconnect the client, so that a thread still in the transfer reaches no engine."""
        self._client.leave()
        self._client = FleetClient()
        self._trainer, self._members = None, {}

    def _make_trainer(self) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info: Any
        if self._backend == "ipc":
            info = IPCTrainerInitInfo(rank=0, packed=True)
        else:
            address = own_address(self._client.urls)
            info = NCCLTrainerInitInfo(
                rank=0,
                master_address=address,
                master_port=free_port(address),
                world_size=1 + sum(self._client.workers.values()),
            )
        source = weight_source(lambda: self._tensors)
        return WeightTransferTrainerFactory.trainer_init(info, client=self._client, source=source)


def weight_source(tensors: Callable[[], Mapping[str, Tensor]]) -> Any:
    """Return a WeightSource of the vLLM that is installed, over the tensors that `tensors` returns
    at each transfer, moved to the trainer's GPU. Their names, dtypes and shapes may not change.

    vLLM 0.33 reads `metadata` as a property, once, and iterates over `iter_full()`; 0.32 calls
    `metadata()` and iterates over the source.
    """
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    def declared() -> list[Any]:
        return [
            ParamMeta(name, kind.dtype, kind.shape) for name, kind in kinds_of(tensors()).items()
        ]

    def moved() -> Iterator[tuple[str, Tensor]]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for name, tensor in tensors().items():
            yield name, tensor.detach().to(device)

    if isinstance(inspect.getattr_static(WeightSource, "metadata"), property):

        class Since33(WeightSource):
            @cached_property
            def metadata(self) -> list[Any]:
                return declared()

            def iter_full(self) -> Iterator[tuple[str, Tensor]]:
                return moved()

        return Since33()

    class Until32(WeightSource):
        def metadata(self) -> list[Any]:
            return declared()

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return moved()

    return Until32()


def _bounded(call: Callable[[], T], client: FleetClient, deadline: float) -> T:
    """Run `call` in a thread that is abandoned if an engine fails or time is up.

    NCCL waits for its peers without end, so no call of it may be awaited.
    """
    future = in_thread(call, name="vllm-transfer")
    while time.monotonic() < deadline:
        if not wait([future], timeout=0.01).done:
            if not client.failures.empty():
                raise client.failures.get()
            continue
        if (error := future.exception()) is None:
            return future.result()
        if isinstance(error, WeightsError):
            raise error
        raise WeightsError(f"vLLM's transfer failed: {type(error).__name__}: {error}") from error
    raise WeightsError("vLLM's transfer was not done in time (weights.update_timeout_s)")


def _release(engine: RemoteEngine, *, deadline: float) -> None:
    """Make the engine leave its previous group, if there is one."""
    with suppress(EngineHttpError):
        engine.post("/shutdown_weight_transfer_engine", None, deadline=deadline)
