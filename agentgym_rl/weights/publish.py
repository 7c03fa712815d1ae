"""Hand a new policy version to every engine while it generates, with a short pause.

The engine loads the file beside the weights it serves; only the swap happens in a pause.
Routes are those of vLLM's RL HTTP API, which the embedded engine serves too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentgym_rl.engine import version_label
from agentgym_rl.errors import WeightsError

from .wire import call

_RESUME_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication took."""

    seconds: float
    """From the first request to the last engine's confirmation."""
    pause_s: float
    """Longest time one engine stood still: from its /pause to the answer of its /resume."""


class Publisher:
    """Publishes versions to `engine_urls`, one engine after the other.

    `interrupt`: requests in flight go on with the KV cache they have ("keep"), or with it
    recomputed under the new weights ("recompute"). `timeout_s` bounds one whole publication.
    """

    def __init__(
        self,
        engine_urls: Sequence[str],
        *,
        interrupt: Literal["keep", "recompute"] = "keep",
        timeout_s: float = 60.0,
        incarnation: int = 0,
    ):
        self._urls = tuple(engine_urls)
        self._pause = f"/pause?mode=keep&clear_cache={str(interrupt == 'recompute').lower()}"
        self._timeout_s = timeout_s
        self._incarnation = incarnation
        self._initialized: set[str] = set()

    def publish(self, path: Path, version: int) -> Published:
        """Make every engine serve the file at `path` as `version`.

        Raises:
            WeightsError: an engine refused, did not answer in time, or reports another version
                afterwards; names the engine, the step and what it said. The failing engine has
                been asked to resume; those before it in the list serve the new version already.
        """
        start = time.monotonic()
        deadline = start + self._timeout_s
        label = version_label(version, incarnation=self._incarnation)
        # All engines load first: then they swap one right after the other, and the time in
        # which the fleet serves two versions is that of the swaps alone.
        for url in self._urls:
            self._stage(url, path, deadline)
        pause_s = max((self._swap(url, label, deadline) for url in self._urls), default=0.0)
        return Published(seconds=time.monotonic() - start, pause_s=pause_s)

    def _stage(self, url: str, path: Path, deadline: float) -> None:
        if url not in self._initialized:
            init = {"init_info": {"layerwise": True}}
            _post(url, "/init_weight_transfer_engine", init, deadline)
            self._initialized.add(url)
        _post(url, "/start_weight_update", {}, deadline)
        _post(url, "/update_weights", {"update_info": {"path": str(path)}}, deadline)

    def _swap(self, url: str, label: str, deadline: float) -> float:
        """Seconds the engine stood still."""
        paused_at = time.monotonic()
        try:
            _post(url, self._pause, None, deadline)
            _post(url, "/finish_weight_update", {"weight_version": label}, deadline)
        except WeightsError as error:
            _try_resume(url, error)
            raise
        _post(url, "/resume", None, deadline)
        pause_s = time.monotonic() - paused_at
        info = _request(url, "GET", "/weight_info", None, deadline)
        if not isinstance(info, dict) or info.get("weight_version") != label:
            raise WeightsError(f"engine {url} reports {info!r} after weight_version {label!r}")
        return pause_s


def _post(url: str, path: str, body: Any, deadline: float) -> None:
    _request(url, "POST", path, body, deadline)


def _request(url: str, method: str, path: str, body: Any, deadline: float) -> Any:
    """The JSON of a 2xx answer (None where there is none)."""
    left = deadline - time.monotonic()
    step = f"engine {url}: {method} {path}"
    if left <= 0:
        raise WeightsError(f"{step}: no time left (weights.update_timeout_s)")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    try:
        status, reply = call(url, method, path, body=data, headers=headers, timeout_s=left)
    except TimeoutError as error:
        raise WeightsError(f"{step}: no answer in {left:.1f} s") from error
    except OSError as error:
        raise WeightsError(f"{step}: {type(error).__name__}: {error}") from error
    if not 200 <= status < 300:
        raise WeightsError(f"{step}: HTTP {status}: {reply[:2000].decode(errors='replace')}")
    try:
        return json.loads(reply) if reply.strip() else None
    except ValueError:
        return None


def _try_resume(url: str, error: WeightsError) -> None:
    """Leave no engine paused behind a failure; what fails here is added to that failure."""
    try:
        _post(url, "/resume", None, time.monotonic() + _RESUME_TIMEOUT_S)
    except WeightsError as second:
        error.add_note(f"resuming failed too: {second}")
