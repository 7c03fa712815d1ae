"""The trainer's side of the controller's private HTTP API (synchronous, every call bounded)."""

from __future__ import annotations

import json
import time

from agentgym_rl.batch import BatchShard, StepReport
from agentgym_rl.errors import TrainerError
from agentgym_rl.weights.wire import call

_CALL_TIMEOUT_S = 30.0
"""Longest wait for one answer; the controller answers 204 well before."""
_PAUSE_S = 0.02
"""Between two asks for a batch that is not complete."""


class RunEnding(Exception):
    """The controller says that the run is over: no batch will come."""


class ControllerClient:
    """Asks the controller at `url` for batches and reports to it; `token` is the run's secret."""

    def __init__(self, url: str, token: str):
        self._url = url
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/msgpack",
        }

    def batch(self, step: int, *, rank: int, timeout_s: float) -> BatchShard:
        """This rank's shard of batch `step`; waits until the batch is complete.

        Raises:
            RunEnding: no more batches.
            TrainerError: none within `timeout_s`, or the controller is gone or refuses.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status, body = self._call("GET", f"/batch/{step}?rank={rank}")
            if status == 200:
                return _shard(body, step)
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"batch {step} was not complete after {timeout_s:.0f} s "
                    "(trainer.batch_timeout_s): see the rollout's log for what it waits for"
                )
            time.sleep(_PAUSE_S)

    def report(self, report: StepReport) -> None:
        """Tell the controller that a step is trained and published."""
        self._call("POST", "/report", report.pack())

    def ready(self, rank: int) -> None:
        """Tell the controller that this rank has loaded its model."""
        self._call("POST", "/ready", json.dumps({"rank": rank}).encode())

    def _call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        what = f"controller {self._url}: {method} {path}"
        try:
            status, reply = call(
                self._url,
                method,
                path,
                body=body,
                headers=self._headers,
                timeout_s=_CALL_TIMEOUT_S,
            )
        except OSError as error:
            raise TrainerError(f"{what}: {type(error).__name__}: {error}") from error
        if status == 410:
            raise RunEnding(what)
        if not 200 <= status < 300:
            raise TrainerError(f"{what}: HTTP {status}: {reply[:500].decode(errors='replace')}")
        return status, reply


def _shard(body: bytes, step: int) -> BatchShard:
    try:
        shard = BatchShard.unpack(body)
    except ValueError as error:
        raise TrainerError(f"batch {step}: {error}") from error
    if shard.step != step:
        raise TrainerError(f"asked for batch {step}, got batch {shard.step}")
    return shard
