"""The trainer's client of the controller's private HTTP API (synchronous, every call bounded)."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.runtime.http_client import call

_CALL_TIMEOUT_S = 90.0
"""The longest wait for one reply, in seconds. The controller answers 204 well before, unless
engines take long to fall asleep or to wake."""
_ANSWER_BYTES = 1 << 36
"""The longest answer, the shard of a batch."""
_TELL_EVERY_S = 10.0
_PAUSE_S = 0.02
"""The pause before another request for an incomplete batch or for an engine that does not serve
yet."""


class RunEnding(Exception):
    """The end of the run, as reported by the controller: no more batches will come."""


class BatchTimeout(TrainerError):
    """A batch that was not complete in time."""


class ControllerClient:
    """A client that takes batches from the controller at `url`, with the run's secret `token`."""

    def __init__(self, url: str, token: str):
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    def batch(
        self,
        step: int,
        *,
        rank: int,
        timeout_s: float,
        republish: Callable[[], None] | None = None,
    ) -> BatchShard:
        """Wait until batch `step` is complete, and return this rank's shard of it.

        `republish` (rank 0) is called meanwhile if a restarted engine needs the current version,
        which it can get in no other way.

        Raises:
            RunEnding: there are no more batches.
            BatchTimeout: there is none, and no engine sampled anything, for `timeout_s`.
            TrainerError: the controller is gone or refuses.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status, body = self._call("GET", f"/batch/{step}?rank={rank}")
            if status == 200:
                return _shard(body, step)
            if status == 205 and republish is not None:
                republish()
            if status == 202:  # engines have sampled for it meanwhile
                deadline = time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise BatchTimeout(
                    f"batch {step} is not complete, and no engine has sampled a token for "
                    f"{timeout_s:.0f} s (trainer.batch_timeout_s): see the rollout's log for what "
                    "it waits for"
                )
            time.sleep(_PAUSE_S)

    def begin_publication(self, version: int, *, timeout_s: float) -> dict[str, str]:
        """Wait until there is an engine to get `version`, and return the URLs of all such engines
        by name.

        Until `end_publication` no other engine begins to serve.

        Raises:
            RunEnding: no more versions are needed.
            TrainerError: no engine within `timeout_s`, or the controller is gone or refuses.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status, body = self._post_json("/publish/begin", {"version": version})
            if status == 200:
                return _engines(body, version)
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"no engine was there to take policy version {version} within "
                    f"{timeout_s:.0f} s: see logs/engine-*.log for the cause"
                )
            time.sleep(_PAUSE_S)

    def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None:
        """Tell the controller which engines serve `version` now, and which failed for what
        reason."""
        said = {"version": version, "served": list(served), "failed": dict(failed)}
        self._post_json("/publish/end", said)

    def report(self, report: StepReport) -> dict[str, float | None]:
        """Tell the controller that a step is trained and published; return all metrics of the step,
        which are in the run's log by then."""
        _, body = self._call("POST", "/report", report.pack(), "application/msgpack")
        try:
            return dict(json.loads(body))
        except (ValueError, TypeError) as error:
            raise TrainerError(
                f"report of step {report.step}: the controller answers {body[:200]!r}"
            ) from error

    def check_current(self) -> None:
        """Check that these ranks are still the run's current ranks.

        Raises:
            TrainerError: other ranks have replaced them, or the controller does not answer.
        """
        self._post_json("/current", {})

    @contextlib.contextmanager
    def telling(self, passes: Callable[[], float]) -> Iterator[None]:
        """Tell the controller, from a thread while the context is open, that this rank lives, as
        long as `passes` changes: a step of a large model takes longer than any silence allowed."""
        over = threading.Event()

        def tell() -> None:
            seen = passes()
            while not over.wait(_TELL_EVERY_S):
                before, seen = seen, passes()
                if seen != before:
                    with contextlib.suppress(RunEnding, TrainerError):  # the step itself notices
                        self.check_current()

        thread = threading.Thread(target=tell, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(1.0)  # it may wait for a controller that is ending

    def checkpointed(self, step: int, folder: Path) -> None:
        """Tell the controller that a checkpoint of the first `step` batches is complete. A
        controller that is gone does not need it."""
        with contextlib.suppress(RunEnding, TrainerError):
            self._post_json("/checkpoint", {"step": step, "folder": str(folder)})

    def failed(self, why: str) -> None:
        """Tell the controller that the run must end, because a retry would fail too. A controller
        that is gone does not need it."""
        with contextlib.suppress(RunEnding, TrainerError):
            self._post_json("/failed", {"why": why})

    def warn(self, text: str) -> None:
        """Tell the controller to print a warning on the run's console. A controller that is gone is
        ignored: it has no console."""
        with contextlib.suppress(RunEnding, TrainerError):
            self._post_json("/warn", {"text": text})

    def ready(self, rank: int) -> None:
        """Tell the controller that this rank has loaded its model."""
        self._post_json("/ready", {"rank": rank})

    def _post_json(self, path: str, content: object) -> tuple[int, bytes]:
        return self._call("POST", path, json.dumps(content).encode(), "application/json")

    def _call(
        self, method: str, path: str, body: bytes | None = None, content_type: str = ""
    ) -> tuple[int, bytes]:
        what = f"controller {self._url}: {method} {path}"
        headers = {**self._headers, "Content-Type": content_type} if body else self._headers
        try:
            status, reply = call(
                *(self._url, method, path),
                body=body,
                headers=headers,
                timeout_s=_CALL_TIMEOUT_S,
                max_bytes=_ANSWER_BYTES,
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


def _engines(body: bytes, version: int) -> dict[str, str]:
    try:
        engines = json.loads(body)["engines"]
        if not all(isinstance(item, str) for pair in engines.items() for item in pair):
            raise ValueError("names and URLs must be text")
        return dict(engines)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TrainerError(
            f"publication of version {version}: the controller names no engines: {body[:200]!r}"
        ) from error
