"""An SGLang server as a receiver of policy versions (SGLang 0.5.23 and later).

SGLang cannot stage weights: every update writes into the served ones, and damaged ones are accepted
without an error (missing or narrowed tensors, NaN). So a version is checked before the server is
touched, and the server is paused before it is written to. While it is written to it carries the
label of an unknown version, which it keeps if the update is interrupted: a server with that label
is never resumed, and tokens that it should sample all the same are marked unknown.

A server with LoRA (lora.serve = "adapter") keeps its weights. An adapter is loaded under the name
of its version, next to the serving ones, and is then the one that new requests name. A request
keeps the adapter that it named, so no pause is needed, and versions cannot be mixed.
"""

from __future__ import annotations

import base64
import logging
import pickle
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from arl_gloo.broadcast import BroadcastGroup, buckets
from torch import Tensor

from agentgym_rl.core import UNKNOWN_LABEL, Interrupt, WeightsError
from agentgym_rl.engines import EMPTY_ADAPTER
from agentgym_rl.runtime import in_thread
from agentgym_rl.weights import (
    RESUME_TIMEOUT_S,
    EngineHttpError,
    Pause,
    Prepared,
    RemoteEngine,
    bytes_of,
    kinds_of,
)
from agentgym_rl.weights.engine_routes import OutOfTime, Way

from .adapters import adapter_name
from .build import ADAPTER_INTERRUPTS
from .version import WholeVersion

_log = logging.getLogger(__name__)

_MODES: Mapping[Interrupt, str] = {"keep": "in_place", "recompute": "retract", "abort": "abort"}
"""The pause of SGLang by its effect. There is none for `wait`: an update without a pause waits for
the requests in flight, and lets new ones wait."""
_FLUSHED: tuple[Interrupt, ...] = ("recompute", "abort")
"""The modes in which the prefix cache is emptied. In `wait` it may not be: a scheduler that still
holds a finished request refuses that, with the weights written. Prefixes are salted by version."""
_GROUP = "agentgym-rl"
_MEETING_TIMEOUT_S = 10.0
"""The longest meeting of a broadcast group, in seconds."""


@dataclass
class _State:
    """The part of an engine that changes."""

    write: Callable[[str, Interrupt, float], None] | None = None
    """The update that is staged; its arguments are label, interrupt and deadline."""
    version: WholeVersion | None = None
    staged: str = ""
    """The label of the adapter that is loaded and does not serve yet."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The answer to /server_info."""
    group: BroadcastGroup | None = None
    proven: set[str] = field(default_factory=set)
    """The tensors whose checksum was the expected one once, and must be so from then on."""
    said: bool = False


@dataclass(frozen=True, slots=True)
class SglangEngine(RemoteEngine):
    """An SGLang server; the same object for all publications to one life of a server."""

    state: _State = field(default_factory=_State, compare=False, repr=False)

    @property
    def joins_group(self) -> bool:
        return False

    def num_workers(self, *, deadline: float) -> int:
        return int(self._server_info(deadline)["tp_size"])

    def stage_file(
        self,
        path: Path,
        *,
        version: Prepared,
        label: str,
        interrupt: Interrupt,
        deadline: float,
        polls: bool = False,
        timeout_s: float = 0.0,
    ) -> None:
        """Check the version, and prepare the folder that the server will load in its pause; load an
        adapter at once."""
        whole = version.as_form(WholeVersion)
        self._check_mode(interrupt, deadline)
        if self._has_lora(deadline):
            self._load_adapter(whole, label, deadline)
            return
        folder = str(whole.folder())
        self._sum_known(whole, deadline)

        def write(label: str, interrupt: Interrupt, deadline: float) -> None:
            flush = interrupt in _FLUSHED
            body = {"model_path": folder, "weight_version": label, "flush_cache": flush}
            self.post("/update_weights_from_disk", body, deadline=deadline)

        self.state.write, self.state.version = write, whole

    def stage_tensors(
        self,
        *,
        version: Prepared,
        way: Way,
        address: str,
        interrupt: Interrupt,
        deadline: float,
    ) -> None:
        """Check the version, and meet the server's workers, which get it in their pause."""
        self._check_mode(interrupt, deadline)
        if self._has_lora(deadline):
            raise WeightsError(
                f"{self}: was started with --enable-lora, and gets adapters as files alone: set "
                f"weights.transport to 'shm', got {way!r}"
            )
        whole = version.as_form(WholeVersion)
        tensors = whole.tensors()
        if interrupt == "wait":
            raise WeightsError(
                f"{self}: rollout.interrupt 'wait' needs weights.transport 'shm' on SGLang, which "
                f"has no pause that waits, and {way!r} takes many requests; or use 'recompute'"
            )
        info = self._server_info(deadline)
        sizes = {key: int(info.get(key) or 1) for key in ("dp_size", "pp_size", "nnodes")}
        if any(size > 1 for size in sizes.values()):
            raise WeightsError(
                f"{self}: weights.transport {way!r} reaches servers that are parallel over tensors "
                f"alone, and this one has {sizes}; use 'shm'"
            )
        self._sum_known(whole, deadline)
        if way != "ipc":
            self._meet(way, address, deadline)

        def write(label: str, interrupt: Interrupt, deadline: float) -> None:
            self._session(tensors, way, label, interrupt, deadline)

        self.state.write, self.state.version = write, whole

    def swap(
        self, label: str, *, interrupt: Interrupt, deadline: float, may_sleep: bool = False
    ) -> Pause:
        """Pause, write what is staged, check it, resume; return the interval without sampling (in
        `wait` it includes the wait for the requests in flight, since SGLang does not report them
        separately).

        After a failure before the first write the server samples on. After any other one it stays
        paused, with the label of an unknown version. `may_sleep` has no effect.
        """
        if self._has_lora(deadline):
            return self._serve_adapter(label, interrupt, deadline)
        write, self.state.write = self.state.write, None
        if write is None:
            raise WeightsError(f"{self}: nothing is staged")
        start = time.monotonic()
        if interrupt != "wait":
            self._stop(interrupt, deadline)
        try:
            write(label, interrupt, deadline)
            self.check_label(label, deadline=deadline)
            self._check_sums(deadline)
            if interrupt != "wait":
                self.post("/continue_generation", {}, deadline=deadline)
        except WeightsError as error:
            self._condemn(error)
            raise
        return start, time.monotonic()

    def rename(self, before: str, label: str, *, deadline: float) -> bool:
        if self._has_lora(deadline) or self.label(deadline=deadline) != before:
            return False  # an adapter has the name of its version
        self._name(label, deadline)
        self.check_label(label, deadline=deadline)
        return True

    def is_sleeping(self, *, deadline: float) -> bool:
        """Return False: no run lets an SGLang server sleep."""
        return False

    def discard(self, *, deadline: float) -> None:
        self.state.write, self.state.staged = None, ""

    def label(self, *, deadline: float) -> str:
        return self._value("/model_info", "weight_version", str, deadline)

    def close(self) -> None:
        if self.state.group is not None:
            self.state.group.close()
        self.state.group = None

    # ------------------------------------------------------------------ adapters
    def _has_lora(self, deadline: float) -> bool:
        return bool(self._server_info(deadline).get("enable_lora"))

    def _load_adapter(self, whole: WholeVersion, label: str, deadline: float) -> None:
        """Load an adapter next to the serving one; unload all others, when the last requests that
        named them are done."""
        folder = whole.adapter()
        name, served = (adapter_name(it) for it in (label, self.label(deadline=deadline)))
        loaded = self._adapters(deadline)
        for old in loaded.keys() - {served}:
            self.post("/unload_lora_adapter", {"lora_name": old}, deadline=deadline)
        if name != served:
            body = {"lora_name": name, "lora_path": str(folder)}
            self.post("/load_lora_adapter", body, deadline=deadline)
        else:
            there = Path(loaded.get(name, "")).name
            is_empty = there.startswith(EMPTY_ADAPTER) and whole.changes_nothing()
            if there != folder.name and not is_empty:
                raise WeightsError(f"{self}: serves other weights as {label!r}")
        self.state.staged = label

    def _adapters(self, deadline: float) -> dict[str, str]:
        """Return the folders that the server's adapters were loaded from, by name."""
        reply = self.get("/v1/models", deadline=deadline)
        try:
            found = {str(card["id"]): str(card["root"]) for card in reply["data"]}
        except (TypeError, KeyError):
            raise WeightsError(f"{self}: GET /v1/models: answered {reply!r:.200}") from None
        return {name: root for name, root in found.items() if name.startswith(adapter_name(""))}

    def _serve_adapter(self, label: str, interrupt: Interrupt, deadline: float) -> Pause:
        """Let new requests name the adapter that is staged; `abort`: end all others."""
        staged, self.state.staged = self.state.staged, ""
        if staged != label:
            raise WeightsError(f"{self}: nothing is staged as {label!r}")
        self._name(label, deadline)
        self.check_label(label, deadline=deadline)
        if interrupt == "abort":
            self.post("/abort_request", {"abort_all": True}, deadline=deadline)
        now = time.monotonic()
        return now, now

    # ------------------------------------------------------------------ steps of a swap
    def _stop(self, interrupt: Interrupt, deadline: float) -> None:
        """Pause, and take the label away; after a failure of this the server samples on."""
        before = self.label(deadline=deadline)
        try:
            # The reply comes before the pause; SGLang takes up what follows only after it.
            self.post("/pause_generation", {"mode": _MODES[interrupt]}, deadline=deadline)
            self._name(UNKNOWN_LABEL, deadline)
        except WeightsError as error:
            limit = time.monotonic() + RESUME_TIMEOUT_S
            try:
                if before != UNKNOWN_LABEL:
                    self._name(before, limit)
                    self.post("/continue_generation", {}, deadline=limit)
            except WeightsError as second:
                error.add_note(f"resuming failed too: {second}")
            raise

    def _condemn(self, error: WeightsError) -> None:
        """Prevent a server that may have weights of two versions from sampling."""
        self.close()
        error.add_note("it may have parts of two versions, and stays paused until it has one")
        limit = time.monotonic() + RESUME_TIMEOUT_S
        try:  # `wait` did not pause it, and it may have the new label already
            self.post("/pause_generation", {"mode": "in_place"}, deadline=limit)
            self._name(UNKNOWN_LABEL, limit)
        except WeightsError as second:
            error.add_note(f"pausing it failed too: {second}")

    def _name(self, label: str, deadline: float) -> None:
        body = {"new_version": label, "abort_all_requests": False}
        self.post("/update_weight_version", body, deadline=deadline)

    def _check_mode(self, interrupt: Interrupt, deadline: float) -> None:
        info = self._server_info(deadline)
        if info.get("enable_lora") and interrupt not in ADAPTER_INTERRUPTS:
            raise WeightsError(
                f"{self}: rollout.interrupt {interrupt!r} with lora.serve 'adapter': SGLang "
                "samples a request to its end with the adapter that it began with; use 'abort' or "
                "'wait'"
            )
        if interrupt == "keep" and not info.get("disable_overlap_schedule"):
            raise WeightsError(
                f"{self}: rollout.interrupt 'keep' needs a server started with "
                "--disable-overlap-schedule: else the token that is in flight at a pause gets the "
                "label of the next version. Start it with that, or use 'recompute'"
            )

    def _server_info(self, deadline: float) -> Mapping[str, Any]:
        if not self.state.info:
            info = self.get("/server_info", deadline=deadline)
            if not isinstance(info, dict) or "tp_size" not in info:
                raise WeightsError(f"{self}: GET /server_info: answered {info!r:.200}")
            self.state.info = info
        return self.state.info

    # ------------------------------------------------------------------ proof of the bytes
    def _provable(self, deadline: float) -> torch.dtype | None:
        """Return the dtype of the served weights if their checksums can be computed from a version;
        None if not."""
        info = self._server_info(deadline)
        dtype = getattr(torch, str(info.get("dtype")), None)
        plain = info.get("device") == "cpu" and info.get("tp_size") == info.get("pp_size") == 1
        if plain and isinstance(dtype, torch.dtype) and not info.get("quantization"):
            return dtype
        if not self.state.said:
            self.state.said = True
            _log.info(
                "%s: the bytes of an update are not checked after it (CPU servers only)", self
            )
        return None

    def _sum_known(self, whole: WholeVersion, deadline: float) -> None:
        """Compute the checksums of tensors that will be compared, before the pause."""
        dtype = self._provable(deadline)
        if dtype is not None:
            for name in self.state.proven:
                whole.expected(name, dtype)

    def _check_sums(self, deadline: float) -> None:
        """Compare the served tensors with the version.

        Which tensors of a model SGLang joins or pads is not known in general. So a tensor that did
        not have the expected checksum is only an error if it had it after an earlier update.
        """
        dtype, whole = self._provable(deadline), self.state.version
        if dtype is None or whole is None:
            return
        reply = self.post("/weights_checker", {"action": "checksum"}, deadline=deadline)
        try:
            sums: dict[str, str] = reply["ranks"][0]["checksums"]
        except (TypeError, KeyError, IndexError):
            raise WeightsError(f"{self}: /weights_checker: answered {reply!r:.200}") from None
        right = {name for name, found in sums.items() if found in whole.expected(name, dtype)}
        if wrong := sorted(self.state.proven - right):
            raise WeightsError(f"{self}: has other bytes than the version in {_some(wrong)}")
        self.state.proven |= right
        if not self.state.said:
            self.state.said = True
            _log.info(
                "%s: %d of %d tensors proved equal to the version", self, len(right), len(sums)
            )

    # ------------------------------------------------------------------ tensors without a file
    def _meet(self, way: Literal["gloo", "nccl"], address: str, deadline: float) -> None:
        """Make a broadcast group with the workers of this server, unless there is one."""
        if self.state.group is not None:
            return
        world_size = 1 + self.num_workers(deadline=deadline)
        with suppress(EngineHttpError):  # a trainer that died may have left one
            old = {"group_name": _GROUP}
            self.post("/destroy_weights_update_group", old, deadline=deadline)
        with socket.create_server((address, 0)) as listener:
            port = listener.getsockname()[1]
            body = {
                "master_address": address,
                "master_port": port,
                "rank_offset": 1,
                "world_size": world_size,
                "group_name": _GROUP,
                "backend": way,
            }
            route = "/init_weights_update_group"
            joined = in_thread(lambda: self.post(route, body, deadline=deadline), name="meeting")
            group = BroadcastGroup(
                address=address,
                port=port,
                rank=0,
                world_size=world_size,
                timeout_s=max(0.1, min(_MEETING_TIMEOUT_S, deadline - time.monotonic())),
                listener=listener,
                prefixes=(_GROUP, f"{_GROUP}/", "cuda/" if way == "nccl" else "cpu/"),
                backend=way,
            )
        self._both(joined, deadline=deadline)
        self.state.group = group

    def _session(
        self,
        tensors: Mapping[str, Tensor],
        way: Way,
        label: str,
        interrupt: Interrupt,
        deadline: float,
    ) -> None:
        """Write all tensors in messages of bounded size; then set the label."""
        with suppress(EngineHttpError):  # a trainer that died may have left one
            self.post("/end_weight_update", {}, deadline=deadline)
        self.post("/begin_weight_update", {}, deadline=deadline)
        # Wide dtypes first: each tensor of a message is aligned without gaps.
        kinds = kinds_of(tensors)  # the tensors themselves are read from a file when they are sent
        names = sorted(kinds, key=lambda name: -kinds[name].dtype.itemsize)
        parts = list(buckets([kinds[name].nbytes for name in names]))
        for number, part in enumerate(parts, start=1):
            message = {names[index]: tensors[names[index]] for index in part}
            is_last = number == len(parts)
            self._send(message, way, flush=is_last and interrupt in _FLUSHED, deadline=deadline)
        self.post("/end_weight_update", {}, deadline=deadline)
        self._name(label, deadline)

    def _send(
        self, tensors: Mapping[str, Tensor], way: Way, *, flush: bool, deadline: float
    ) -> None:
        if way == "ipc":
            size = self.num_workers(deadline=deadline)
            body = {"serialized_named_tensors": [_pickled(tensors)] * size}
            route = "/update_weights_from_tensor"
            self.post(route, {**body, "flush_cache": flush}, deadline=deadline)
            return
        flat = torch.cat([bytes_of(tensor) for tensor in tensors.values()])
        group = self.state.group
        if group is None:
            raise WeightsError(f"{self}: no broadcast group")
        body = {
            "names": list(tensors),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
            "group_name": _GROUP,
            "load_format": "flattened_bucket",
            "flush_cache": flush,
        }
        route = "/update_weights_from_distributed"
        received = in_thread(lambda: self.post(route, body, deadline=deadline), name="receive")
        left_s = max(0.1, deadline - time.monotonic())
        sent = in_thread(lambda: group.send_flat(flat, timeout_s=left_s), name="broadcast")
        self._both(received, sent, deadline=deadline)

    def _both(self, *calls: Future[Any], deadline: float) -> None:
        """Wait until all calls are done, or one has failed; raise its error."""
        left_s = max(0.1, deadline - time.monotonic())
        done, pending = wait(calls, timeout=left_s, return_when=FIRST_EXCEPTION)
        for call in done:
            call.result()
        if pending:
            raise OutOfTime(f"{self}: a broadcast was not done in {left_s:.1f} s")


def recognized(engine: RemoteEngine, *, deadline: float) -> RemoteEngine | None:
    """Return the client of a server of SGLang; None: it is no such server.

    Raises:
        WeightsError: it does not answer.
    """
    try:
        info = engine.get("/model_info", deadline=deadline)
    except EngineHttpError:  # vLLM and the embedded engine have no such route
        return None
    is_sglang = isinstance(info, dict) and "weight_version" in info
    return SglangEngine(engine.name, engine.url) if is_sglang else None


def _pickled(tensors: Mapping[str, Tensor]) -> str:
    """Return `tensors` as SGLang unpickles them: by value, since a handle of shared memory would
    keep a process of torch alive for as long as the server lives."""
    pairs = [(name, tensor.detach().to("cpu").clone()) for name, tensor in tensors.items()]
    return base64.b64encode(pickle.dumps(pairs)).decode()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
