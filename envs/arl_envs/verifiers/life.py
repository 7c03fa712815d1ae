"""A process of the other Python, from its start to its end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from agentgym_rl import ConfigError, EnvError, InfraError
from agentgym_rl.runtime import read_json
from agentgym_rl.runtime.http_client import MAX_STREAM_BYTES

_LAST_LINES = 8
_EXIT_S = 5.0
GRACE_S = 5.0
"""The time beyond a deadline after which a process that has not ended the call itself is killed."""


class Life:
    """A process, which starts now and ends after `idle_s` without a call or an open episode.

    A life belongs to no event loop and serves all loops of this process; threads transfer the
    lines.
    """

    def __init__(self, argv: Sequence[str], *, idle_s: float) -> None:
        self._name = " ".join(argv)
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._over = False
        self._why = ""
        self._numbers = itertools.count(1)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.ready: Future[Any] = _future()
        self._waiting: dict[int, Future[Any]] = {0: self.ready}
        self._limits: dict[int, threading.Timer] = {}
        self._last_message_s = time.monotonic()
        self._open_plays = 0
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # a group of its own, so that Ctrl-C reaches only us
            argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._reading = threading.Thread(target=self._read, daemon=True, name="verifiers-out")
        self._noting = threading.Thread(target=self._note, daemon=True, name="verifiers-err")
        self._writing = threading.Thread(target=self._write, daemon=True, name="verifiers-in")
        for thread in (self._reading, self._noting, self._writing):
            thread.start()

    def send(
        self, call: str, args: Mapping[str, Any], *, timeout_s: float, at_once: int
    ) -> Future[Any] | None:
        """Send a call and return its future answer; None if the process has ended. Never waits.

        The call may take `timeout_s` from the start of its turn; a process without an answer then
        is killed.
        """
        future = _future()
        with self._lock:
            if self._over:
                return None
            number = next(self._numbers)
            self._waiting[number] = future
        request = {
            "id": number,
            "call": call,
            "args": args,
            "timeout_s": timeout_s,
            "at_once": at_once,
        }
        self._requests.put(json.dumps(request).encode() + b"\n")
        return future

    def quiet_s(self) -> float:
        """Return the seconds since the last message of the process."""
        return time.monotonic() - self._last_message_s

    def end(self, why: str) -> None:
        """Kill the process and its children; all waiting calls get the reason. Does not wait."""
        with self._lock:
            if self._over:
                return
            self._over, self._why = True, why
            self._kill()
        self._requests.put(None)

    def join(self) -> None:
        """Wait for its end, some seconds at most; call `end` first."""
        for thread in (self._reading, self._noting, self._writing):
            thread.join(_EXIT_S)

    def _kill(self) -> None:
        if self._process.returncode is None:  # not reaped, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ threads
    def _write(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError), stdin:  # `_read` notices its end
            while True:
                try:
                    line = self._requests.get(timeout=self._idle_s)
                except queue.Empty:
                    self._end_if_idle()
                    continue
                if line is None:
                    return
                stdin.write(line)
                stdin.flush()

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._waiting or self._open_plays or self._over:
                return
            self._over = True
            self._kill()
        self._requests.put(None)

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with stdout:
            while line := stdout.readline(MAX_STREAM_BYTES):
                try:
                    found = read_json(line)
                    number = found["id"]
                except (ValueError, KeyError, TypeError):
                    self.end(f"it sent a line that is no answer: {line[:80]!r}")
                    break
                self._last_message_s = time.monotonic()
                self._limit(number, found)
                if "started" in found:
                    continue
                self._open_plays = int(found.get("open", 0))
                with self._lock:
                    future = self._waiting.pop(number, None)
                if future is not None:
                    _settle(future, found)
        self._ended()

    def _limit(self, number: int, found: Mapping[str, Any]) -> None:
        """Start the deadline of a call with its turn, and cancel it with its answer."""
        with self._lock:
            if (old := self._limits.pop(number, None)) is not None:
                old.cancel()
            limit_s = found.get("started")
            if limit_s is None or self._over:
                return
            why = f"it was killed, because {found.get('call')} took more than {limit_s:g} s"
            timer = threading.Timer(limit_s + GRACE_S, self.end, (why,))
            timer.daemon = True
            self._limits[number] = timer
            timer.start()

    def _ended(self) -> None:
        with self._lock:
            self._over = True
            self._kill()  # its children may still be alive
            code = self._process.wait()
            waiting = list(self._waiting.values())
            self._waiting.clear()
            for timer in self._limits.values():
                timer.cancel()
        self._requests.put(None)
        self._noting.join(_EXIT_S)
        why = self._why or f"it ended by itself ({_how(code)})"
        stderr = "".join(self._stderr_lines).strip()
        text = f"{self._name}: {why}{f'; it said: {stderr}' if stderr else ''}"
        for future in waiting:
            future.set_exception(InfraError(text))

    def _note(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with stderr:
            while line := stderr.readline(2000):
                self._stderr_lines.append(line.decode(errors="replace"))


def _future() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # one cancelled caller must not cancel it for all
    return future


def _settle(future: Future[Any], found: Mapping[str, Any]) -> None:
    kinds = {"config": ConfigError, "env": EnvError, "timeout": InfraError}
    if "value" in found:
        future.set_result(found["value"])
    else:
        kind = kinds.get(str(found.get("kind")), InfraError)
        future.set_exception(kind(f"verifiers: {found.get('error')}"))


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
