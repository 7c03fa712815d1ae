"""The client of one engine in publications; the base class has the routes of `engines.protocol`.
Kinds of engines have clients of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agentgym_rl.core import PAUSE_PATHS, Interrupt, WeightsError
from agentgym_rl.runtime.http_client import call

if TYPE_CHECKING:
    from .files import Prepared

T = TypeVar("T")

Pause = tuple[float, float]
"""The start and end of an interval without sampling, in seconds of `time.monotonic`."""

Way = Literal["gloo", "nccl", "ipc"]
"""The method of transferring tensors without files: a broadcast over sockets (gloo) or between GPUs
(nccl), or handles of GPU memory (ipc)."""

RESUME_TIMEOUT_S = 5.0
_NOT_FOUND = 404
_POLL_S = (0.005, 0.1)
"""The shortest and longest pause between two polls of staging, in seconds."""


class EngineHttpError(WeightsError):
    """An HTTP error from the engine."""

    status = 0
    """The HTTP status."""


class OutOfTime(WeightsError):
    """The error that the engine did not answer before the deadline."""


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """An engine behind a URL, which loads new weights in addition to those that it serves.

    Every `deadline` is in seconds of `time.monotonic`. All methods raise WeightsError, naming
    engine, step and reason, if the engine is gone, refuses, or does not answer in time.
    """

    name: str
    url: str

    def num_workers(self, *, deadline: float) -> int:
        """Return the number of worker processes of the engine; each is a member of a broadcast."""
        return self._value("/get_world_size", "world_size", int, deadline)

    @property
    def joins_group(self) -> bool:
        """Return whether the engine's workers join one broadcast group with those of other
        engines."""
        return True

    def stage_file(
        self,
        path: Path,
        *,
        version: Prepared,
        label: str,
        interrupt: Interrupt,
        deadline: float,
        polls: bool,
        timeout_s: float,
    ) -> None:
        """Make the engine load and check the version `label` in `path`. `polls`: the engine answers
        before it has staged the version; `timeout_s` is the longest time that its `swap` may wait
        for staging. `whole`: the version as a `WholeVersion`, for engines that cannot read the
        file."""
        # Initialize each time: an engine may have been restarted behind the same URL.
        init = {"init_info": {"timeout_s": timeout_s}}
        self.post("/init_weight_transfer_engine", init, deadline=deadline)
        self.start_update(deadline=deadline)
        update = {"update_info": {"path": str(path)}}
        self.post("/update_weights", update, deadline=deadline)
        if polls:
            self.wait_staged(deadline=deadline)

    def stage_tensors(
        self, *, version: Prepared, way: str, address: str, interrupt: Interrupt, deadline: float
    ) -> None:
        """Prepare the engine to receive the tensors of a version by `way`, during a pause."""
        raise WeightsError(
            f"{self}: takes no tensors in a pause, and weights.transport {way!r} is set up for "
            "servers that do; use 'shm' or 'gloo' for several kinds of servers in one run"
        )

    def start_update(self, *, deadline: float) -> None:
        """Begin an update; drop an unfinished earlier one first."""
        try:
            self.post("/start_weight_update", {}, deadline=deadline)
        except EngineHttpError:  # an update may be in progress already
            self.discard(deadline=deadline)
            self.post("/start_weight_update", {}, deadline=deadline)

    def discard(self, *, deadline: float) -> None:
        """Drop the update in progress, if there is one."""
        try:
            self.post("/update_weights", {"update_info": {"discard": True}}, deadline=deadline)
        except EngineHttpError:
            return  # this is the answer of an engine that dropped its update, or had none

    def wait_staged(self, *, deadline: float) -> None:
        """Wait until every worker has loaded the new weights in addition to those that it
        serves."""
        pause_s, longest_s = _POLL_S
        states = None
        while True:
            try:
                reply = self.post("/collective_rpc", {"method": "arl_staging"}, deadline=deadline)
            except EngineHttpError as error:
                if error.status != _NOT_FOUND:
                    raise
                return  # an embedded engine in a run with polled servers has staged already
            except OutOfTime as error:
                if states is None:
                    raise
                # The engine answered before: the time went into its staging, not into this last
                # poll.
                raise WeightsError(f"{_unfinished(self, states)}; {error}") from error
            states = _staging_states(reply)
            if states is None:
                raise WeightsError(f"{self}: arl_staging: answered {reply!r}")
            if all(state == "ready" for state, _ in states):
                return
            for worker, (state, error) in enumerate(states):
                if state not in ("ready", "staging"):
                    raise WeightsError(
                        f"{self}: staging in worker {worker}: {state}: "
                        f"{error or 'it knows of no update (was it restarted?)'}"
                    )
            if time.monotonic() + pause_s > deadline:
                raise WeightsError(_unfinished(self, states))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def swap(
        self, label: str, *, interrupt: Interrupt, deadline: float, may_sleep: bool = False
    ) -> Pause:
        """Pause, serve the staged weights as `label`, resume; return the interval without sampling.

        After a failure in between, a request to resume has been sent to the engine. With
        `may_sleep`, a sleeping engine is neither paused nor resumed: the controller, which put it
        to sleep, wakes it.
        """
        stands_still = time.monotonic()
        if may_sleep and self.is_sleeping(deadline=deadline):
            self.post("/finish_weight_update", {"weight_version": label}, deadline=deadline)
            self.check_label(label, deadline=deadline)
            return stands_still, time.monotonic()
        try:
            self.post(PAUSE_PATHS[interrupt], None, deadline=deadline)
            if interrupt == "wait":  # it samples until it answers
                stands_still = time.monotonic()
            self.post("/finish_weight_update", {"weight_version": label}, deadline=deadline)
            self.post("/resume", None, deadline=deadline)
        except WeightsError as error:
            self.try_resume(error)
            raise
        resumed = time.monotonic()
        self.check_label(label, deadline=deadline)
        return stands_still, resumed

    def rename(self, before: str, label: str, *, deadline: float) -> bool:
        """Change the label of the served weights from `before` to `label`, without a pause; return
        False if the engine does not serve `before`."""
        if self.label(deadline=deadline) != before:
            return False
        self.post("/update_weight_version", {"new_version": label}, deadline=deadline)
        self.check_label(label, deadline=deadline)
        return True

    def is_sleeping(self, *, deadline: float) -> bool:
        """Return whether the engine has released some of its memory (or is paused)."""
        return self._value("/is_sleeping", "is_sleeping", bool, deadline)

    def try_resume(self, error: WeightsError) -> None:
        """Resume the engine after `error`; if that fails, too, add the reason to `error` as a
        note."""
        try:
            self.post("/resume", None, deadline=time.monotonic() + RESUME_TIMEOUT_S)
        except WeightsError as second:
            error.add_note(f"resuming failed too: {second}")

    def check_label(self, label: str, *, deadline: float) -> None:
        """Check that the engine serves version `label`."""
        found = self.label(deadline=deadline)
        if found != label:
            raise WeightsError(f"{self}: reports {found!r} after weight_version {label!r}")

    def label(self, *, deadline: float) -> str:
        """Return the label of the weights that the engine serves."""
        return self._value("/weight_info", "weight_version", str, deadline)

    def close(self) -> None:
        """Release the resources held between publications."""

    def get(self, path: str, *, deadline: float) -> Any:
        """Return the JSON of a 2xx answer (None if there is none)."""
        return self._request("GET", path, None, deadline)

    def post(self, path: str, body: Mapping[str, Any] | None, *, deadline: float) -> Any:
        """Return the JSON of a 2xx answer (None if there is none)."""
        return self._request("POST", path, body, deadline)

    def _value(self, path: str, name: str, kind: type[T], deadline: float) -> T:
        reply = self.get(path, deadline=deadline)
        if not isinstance(reply, dict) or not isinstance(value := reply.get(name), kind):
            raise WeightsError(f"{self}: GET {path}: answered {reply!r}")
        return value

    def _request(self, method: str, path: str, body: Any, deadline: float) -> Any:
        left = deadline - time.monotonic()
        step = f"{self}: {method} {path}"
        if left <= 0:
            raise OutOfTime(f"{step}: no time left (weights.update_timeout_s)")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        try:
            status, reply = call(self.url, method, path, body=data, headers=headers, timeout_s=left)
        except TimeoutError as error:
            raise OutOfTime(f"{step}: no answer in {left:.1f} s") from error
        except OSError as error:
            raise WeightsError(f"{step}: {type(error).__name__}: {error}") from error
        if not 200 <= status < 300:
            error = EngineHttpError(
                f"{step}: HTTP {status}: {reply[:2000].decode(errors='replace')}"
            )
            error.status = status
            raise error
        try:
            return json.loads(reply) if reply.strip() else None
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.name} ({self.url})"


def _unfinished(engine: RemoteEngine, states: list[tuple[str, str]]) -> str:
    return f"{engine}: staging: not done in time: {[state for state, _ in states]}"


def _staging_states(reply: object) -> list[tuple[str, str]] | None:
    """Return (state, error) of each worker; None if the answer has another form."""
    try:
        states = [(str(one["state"]), str(one["error"])) for one in reply["results"]]  # type: ignore[index]
    except (TypeError, KeyError):
        return None
    return states or None
