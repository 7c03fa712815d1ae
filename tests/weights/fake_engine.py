"""A small real HTTP server that takes weight updates as vLLM with our plugin does."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from arl_gloo.broadcast import BroadcastGroup
from torch import Tensor

from agentgym_rl.core import WeightsError
from tests.kit.threaded_server import ThreadedServer


class FakeEngine(ThreadedServer):
    """Serves the update routes and keeps a log of them.

    On a path that begins with `fail` it answers 500, at `die` it hangs up there and from then on,
    at `hang` it answers `hang_s` late. One that lies reports another version, one that
    forgets loses the update it was told of.
    """

    def __init__(
        self,
        *,
        fail: str = "",
        die: str = "",
        hang: str = "",
        hang_s: float = 2.0,
        lie: bool = False,
        forgets: bool = False,
        workers: int = 1,
        staging_s: float = 0.0,
        staging_error: str = "",
    ):
        super().__init__()
        self.fail, self.die, self.hang, self.hang_s = fail, die, hang, hang_s
        self.lie, self.forgets = lie, forgets
        self.workers, self.staging_s, self.staging_error = workers, staging_s, staging_error
        self.label = "default"
        self.paused = self.active = self.dead = False
        self.received: list[dict[str, Tensor]] = []
        self.stagings: list[_Staging] = []
        self.groups: dict[int, BroadcastGroup] = {}
        self.meeting_s = 30.0  # where the request has no limit, as with NCCL

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.log if path != "/collective_rpc"]

    def hang_up(self) -> None:
        """Die, as far as anyone outside can tell."""
        self.dead = True
        for group in self.groups.values():
            group.close()

    def respond(self, path: str, body: Any) -> tuple[int, Any] | None:
        if path != "/model_info":  # the question for its kind, once in its life
            self.log.append((path, body))
        if self.die and path.startswith(self.die):
            self.hang_up()
        if self.dead:
            return None
        if self.hang and path.startswith(self.hang):
            time.sleep(self.hang_s)
        if self.fail and path.startswith(self.fail):
            return _error("no such file")
        route = path.partition("?")[0]
        name = "_" + route.strip("/").split("/")[-1]
        answer = getattr(self, name, None)
        return answer(body) if answer else (404, {"detail": "Not Found"})

    def _weight_info(self, body: Any) -> tuple[int, Any]:
        return 200, {"weight_version": "1.1" if self.lie else self.label}

    def _update_weight_version(self, body: Any) -> tuple[int, Any]:
        self.label = body["new_version"]
        return 200, {}

    def _get_world_size(self, body: Any) -> tuple[int, Any]:
        return 200, {"world_size": self.workers}

    def _pause(self, body: Any) -> tuple[int, Any]:
        self.paused = True
        return 200, {"status": "paused"}

    def _resume(self, body: Any) -> tuple[int, Any]:
        self.paused = False
        return 200, {"status": "resumed"}

    def _shutdown_weight_transfer_engine(self, body: Any) -> tuple[int, Any]:
        return 200, {}

    def _init_weight_transfer_engine(self, body: Any) -> tuple[int, Any]:
        info = body["init_info"]
        groups = self.groups = {}
        if "master_address" in info:
            self.meeting_s = info.get("timeout_s", self.meeting_s)
            for rank in range(info["rank_offset"], info["rank_offset"] + self.workers):
                # Not a daemon: C++ that waits for a peer must not outlive the interpreter.
                threading.Thread(target=_meet, args=(groups, info, rank)).start()
        return 200, {}

    def _start_weight_update(self, body: Any) -> tuple[int, Any]:
        if self.active:
            return _error("start_weight_update called while an update is already active.")
        self.active, self.stagings = True, []
        return 200, {}

    def _update_weights(self, body: Any) -> tuple[int, Any]:
        if not self.active:
            return _error("start_weight_update must be called before update_weights.")
        info = body["update_info"]
        if info.get("discard"):
            self.active, self.stagings = False, []
            return _error("weight update discarded on request; the old weights still serve")
        workers = 0 if self.forgets else self.workers
        self.stagings = [_Staging(self, info, worker) for worker in range(workers)]
        return 200, {}

    def _collective_rpc(self, body: Any) -> tuple[int, Any]:
        idle = {"state": "idle", "error": "", "path": ""}
        return 200, {"results": [one.status for one in self.stagings] or [idle] * self.workers}

    def _finish_weight_update(self, body: Any) -> tuple[int, Any]:
        if any(one.status["state"] != "ready" for one in self.stagings) or not self.active:
            return _error("nothing is staged")
        self.active, self.label = False, body["weight_version"]
        return 200, {}


def _meet(groups: dict[int, BroadcastGroup], info: dict[str, Any], rank: int) -> None:
    try:
        groups[rank] = BroadcastGroup(
            address=info["master_address"],
            port=info["master_port"],
            rank=rank,
            world_size=info["world_size"],
            timeout_s=info["timeout_s"],
        )
    except WeightsError:
        return  # it shows when nothing can be received


class _Staging:
    """Of one worker."""

    def __init__(self, engine: FakeEngine, info: dict[str, Any], worker: int):
        self.status = {"state": "staging", "error": "", "path": ""}
        self._engine, self._info, self._worker = engine, info, worker
        self._groups = engine.groups  # of this moment: a later meeting is for a later update
        if engine.staging_s or self._is_broadcast:
            threading.Thread(target=self._run).start()
        else:
            self._run()

    @property
    def _is_broadcast(self) -> bool:
        return "fingerprint" in self._info

    def _run(self) -> None:
        engine = self._engine
        time.sleep(engine.staging_s)
        try:
            if engine.staging_error:
                raise WeightsError(engine.staging_error)
            if self._is_broadcast:
                engine.received.append(self._receive())
            self.status = {**self.status, "state": "ready"}
        except WeightsError as error:
            self.status = {**self.status, "state": "failed", "error": str(error)}

    def _receive(self) -> dict[str, Tensor]:
        deadline = time.monotonic() + self._engine.meeting_s
        while len(self._groups) < self._engine.workers:
            if time.monotonic() > deadline:
                raise WeightsError("the broadcast group has not met in time")
            time.sleep(0.005)
        group = sorted(self._groups.items())[self._worker][1]
        info = self._info
        dtypes = [getattr(torch, name) for name in info["dtypes"]]
        return group.receive(info["names"], dtypes, info["shapes"], info["fingerprint"])


def _error(message: str) -> tuple[int, Any]:
    return 500, {"error": {"message": f"Call to collective_rpc method failed: {message}"}}


STEPS = [
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/collective_rpc",
    "/pause",
    "/finish_weight_update",
    "/resume",
    "/weight_info",
]
"""Routes of one publication, in the order they are asked for."""


def engine(**options: Any) -> AbstractContextManager[FakeEngine]:
    """Run a fake engine for a context."""
    return FakeEngine(**options).running()
