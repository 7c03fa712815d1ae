"""Calls into the Python that has verifiers.

verifiers pins versions (mcp==2.0.0) that conflict with ours, and tasksets run code of their own, so
they run in another process, with the Python that ARL_VERIFIERS_PYTHON names. Its start takes
seconds, so everything in this process that plays the same taskset shares one. The process ends
after two minutes without a call or an episode that waits for a reply, with this process, or when a
call takes too long; the next call starts it again. Calls that may run for long are made one after
the other: the deadline of each counts from the start of its turn.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import os
import shutil
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from agentgym_rl import ConfigError, InfraError

from .life import GRACE_S, Life

VARIABLE = "ARL_VERIFIERS_PYTHON"
START_TIMEOUT_S = 180.0
IDLE_S = 120.0
_NOTIFY_S = 60.0
TURN_TIMEOUT_S = 600.0
"""The longest wait for other calls, before a call's own turn begins."""


def longest_call_s(timeout_s: float) -> float:
    """Return the longest time of a call with `timeout_s`: start, turn and grace included."""
    return START_TIMEOUT_S + TURN_TIMEOUT_S + timeout_s + 2 * GRACE_S


class Bridge:
    """A bridge to one Python, for every thread and event loop."""

    def __init__(self, python: str, *, idle_s: float = IDLE_S) -> None:
        program = str(Path(__file__).with_name("there.py"))
        self._argv = (python, "-P", program)  # -P: it must not import this folder's modules
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._life: Life | None = None

    async def call(self, name: str, *, timeout_s: float, at_once: int = 1, **args: Any) -> Any:
        """Return the result of the function `name` of there.py.

        `timeout_s` counts from the start of the call's turn; `at_once` calls that may run for long
        run together.

        Raises:
            ConfigError: verifiers or the taskset is missing, or does not take the request.
            EnvError: the taskset's own code raised.
            InfraError: it took too long, had no turn in time, or the process died.
        """
        life, future = self._sent(name, args, timeout_s, at_once)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wrap_future(life.ready)
            async with asyncio.timeout(TURN_TIMEOUT_S + timeout_s + GRACE_S):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise self._late(life, name, timeout_s) from error

    def call_now(self, name: str, *, timeout_s: float, **args: Any) -> Any:
        """Do the same as `call` for callers that cannot await; blocks."""
        life, future = self._sent(name, args, timeout_s, 1)
        try:
            life.ready.result(START_TIMEOUT_S)
            return future.result(TURN_TIMEOUT_S + timeout_s + GRACE_S)
        except TimeoutError as error:
            raise self._late(life, name, timeout_s) from error

    def notify(self, name: str, **args: Any) -> None:
        """Call the function `name` if the process lives, without a wait for its answer."""
        with self._lock:
            if self._life is not None:
                self._life.send(name, args, timeout_s=_NOTIFY_S, at_once=1)

    def close(self) -> None:
        """End the process, if there is one; the next call starts another."""
        with self._lock:
            life, self._life = self._life, None
        if life is not None:
            life.end("it was closed")
            life.join()

    def _sent(
        self, name: str, args: dict[str, Any], timeout_s: float, at_once: int
    ) -> tuple[Life, Future[Any]]:
        with self._lock:
            life, future = self._life, None
            if life is not None:
                future = life.send(name, args, timeout_s=timeout_s, at_once=at_once)
            if life is None or future is None:
                life = self._life = self._started()
                future = life.send(name, args, timeout_s=timeout_s, at_once=at_once)
        if future is None:
            raise InfraError(f"{' '.join(self._argv)} ended at once")
        return life, future

    def _started(self) -> Life:
        try:
            return Life(self._argv, idle_s=self._idle_s)
        except OSError as error:
            raise InfraError(f"{' '.join(self._argv)} cannot be started: {error}") from error

    def _late(self, life: Life, name: str, timeout_s: float) -> InfraError:
        if not life.ready.done():
            why = f"it did not start in {START_TIMEOUT_S:g} s"
        elif life.quiet_s() > timeout_s + GRACE_S:
            why = f"it sent nothing for {life.quiet_s():.0f} s"
        else:  # it is busy with other calls
            return InfraError(
                f"verifiers: {name} had no turn in {TURN_TIMEOUT_S:g} s: too many replies are "
                "scored at once for a scorer as slow as this; have fewer episodes at once"
            )
        life.end(f"it was killed, because {why}")
        return InfraError(f"verifiers: {why}")


_BRIDGES: dict[tuple[str, str], Bridge] = {}
_LOCK = threading.Lock()


def bridge_to(taskset: str, python: str) -> Bridge:
    """Return this process's bridge for `taskset` and `python` (a result of `interpreter`)."""
    with _LOCK:
        return _BRIDGES.setdefault((taskset, python), Bridge(python))


@atexit.register
def close_all() -> None:
    """End the processes of all bridges."""
    for bridge in list(_BRIDGES.values()):
        bridge.close()


def interpreter(python: str) -> str:
    """Return the Python to use: `python`, ARL_VERIFIERS_PYTHON, or this one if it has verifiers.

    Raises:
        ConfigError: there is none; the message explains how to make one.
    """
    named = python or os.environ.get(VARIABLE, "")
    if not named and importlib.util.find_spec("verifiers") is not None:
        return sys.executable
    found = shutil.which(os.path.expanduser(named)) if named else None
    if found is None:
        problem = f"{named!r} is no program" if named else "verifiers is not installed"
        raise ConfigError(
            f"{problem}; its pins are not ours, so give it an environment of its own: "
            "python -m venv .venv-verifiers && .venv-verifiers/bin/pip install verifiers==0.4.0 "
            f"(and your taskset), then {VARIABLE}=.venv-verifiers/bin/python or the option python="
        )
    return os.path.abspath(found)
