"""The engines of a publication as vLLM's trainer side sees them: one client for all of them."""

from __future__ import annotations

import base64
import pickle
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_rl.engine import PAUSE_PATHS
from agentgym_rl.errors import WeightsError

from .publication import Publication, rank_offsets
from .remote import Pause, RemoteEngine


class FleetClient:
    """vLLM's VLLMWeightSyncClient (four synchronous methods) for all engines of a publication.

    It adds what vLLM's own leaves out: the pause, the version's label, and the resumption. Its
    methods raise WeightsError if any engine fails, since none can go on without the others.
    """

    def __init__(self) -> None:
        self.workers: Mapping[str, int] = {}
        """Worker processes by engine."""
        self.wrote = False
        """Whether an engine may have begun to overwrite its weights."""
        self.pauses: dict[str, Pause] = {}
        """When each engine stood still."""
        self.failures: queue.Queue[WeightsError] = queue.Queue()
        self._publication: Publication | None = None
        self._stands_still = 0.0

    @property
    def urls(self) -> Sequence[str]:
        """Of the engines that take part."""
        return [engine.url for engine in self._taking_part().alive.values()]

    def join(self, publication: Publication, workers: Mapping[str, int]) -> None:
        """Work for this publication from here on."""
        self._publication = publication
        self.workers = {name: workers[name] for name in publication.alive}
        self.wrote, self.pauses, self.failures = False, {}, queue.Queue()

    def leave(self) -> None:
        """Work for nobody any more: every method raises."""
        self._publication = None

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Engines get the ranks one after the other, in the order of their names' mapping."""
        offsets = rank_offsets(self.workers, first=init_info.get("rank_offset", 0))

        def info(engine: RemoteEngine) -> Mapping[str, Any]:
            if "rank_offset" not in init_info:
                return init_info
            return {**init_info, "rank_offset": offsets[engine.name]}

        self._post("/init_weight_transfer_engine", lambda engine: {"init_info": info(engine)})

    def start_weight_update(self) -> None:
        """Pause all engines; then they make ready to be written to."""
        publication = self._taking_part()
        self._stands_still = time.monotonic()
        self._post(PAUSE_PATHS[publication.interrupt], lambda engine: None)
        if publication.interrupt == "wait":  # until they answered they were still sampling
            self._stands_still = time.monotonic()
        self.wrote = True
        self._post("/start_weight_update", lambda engine: {})

    def update_weights(self, update_info: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """All engines take one piece, at the same time."""
        safe = (
            json_safe(update_info)
            if isinstance(update_info, Mapping)
            else [json_safe(info) for info in update_info]
        )
        self._post("/update_weights", lambda engine: {"update_info": safe})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """They serve the version, and sample again."""
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
    """CUDA IPC handles are no JSON: pickled, as vLLM's own HTTP client sends them."""
    if update_info.get("ipc_handles") is None:
        return update_info
    rest = {name: value for name, value in update_info.items() if name != "ipc_handles"}
    handles = base64.b64encode(pickle.dumps(update_info["ipc_handles"])).decode()
    return {**rest, "ipc_handles_pickled": handles}
