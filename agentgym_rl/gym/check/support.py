"""Tasks of a source, and how they are compared.

Environments are closed in time, or left behind: a check itself always ends.

Infrastructure that fails under many at once is raised as what it is.

What a process has open: what is there afterwards and was not before has leaked.

What some environments must be given at reset, started.

Sees what an environment itself returns, before `make`'s wrappers have put it right.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.config import SandboxConfig, VerifierConfig
from agentgym_rl.core.chat import Message
from agentgym_rl.core.errors import InfraError
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.gym.env import Env, Step
from agentgym_rl.gym.services import running_services
from agentgym_rl.gym.wrappers import Wrapper, within


def first_tasks(source: TaskSource, count: int) -> list[Task]:
    """The first `count` tasks, or all there are."""
    found: list[Task] = []
    for index in range(count):
        try:
            found.append(source[index])
        except IndexError:
            break
    return found


def task_text(task: Any) -> str:
    """A task as JSON text, what is no JSON as its repr."""
    return json.dumps([task.id, task.seed, dict(task.data), task.split], default=repr)


CLOSE_S = 5.0
"""Longest `close` that is still in order."""
HUNG_S = 0.001
"""Waited for the others once one has hung: a check closes hundreds."""


class Closing:
    """Closes the environments of a check; whether that works is judged by criterion `close`."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = CLOSE_S if limit_s is None else limit_s
        """What the next one is given."""

    async def close(self, env: Env) -> None:
        """Close it; one that takes longer than `limit_s` is cancelled, whatever it raises is
        dropped."""
        try:
            await within(self.limit_s, env.close())
        except TimeoutError:
            self.limit_s = min(self.limit_s, HUNG_S)
        except (Exception, SystemExit):  # somebody else's code
            return


@contextlib.contextmanager
def infra_alone() -> Iterator[None]:
    """Out of a group that holds an InfraError, that one alone is raised; else all as it is.

    Raises:
        InfraError: the first in the group.
    """
    try:
        yield
    except ExceptionGroup as group:
        found = _first(group)
        if found is None:
            raise
        raise found from group


def _first(group: ExceptionGroup[Exception]) -> InfraError | None:
    for error in group.exceptions:
        found = _first(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, InfraError):
            return found
    return None


SETTLE_S = 2.0


def leftovers() -> Counter[str]:
    """How many tasks of the event loop, threads, child processes and open files there are."""
    gc.collect()
    found: Counter[str] = Counter()
    found["task"] = len(asyncio.all_tasks())
    found["thread"] = threading.active_count()
    found["process"] = _num_children()
    found["open file"] = len(os.listdir("/proc/self/fd"))
    return found


async def grown(before: Counter[str]) -> Counter[str]:
    """What is more than `before`, given some time to end."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        more = leftovers() - before
        if not more or time.monotonic() > deadline:
            return more
        await asyncio.sleep(0.02)


def _num_children() -> int:
    """Children of this process, dead ones that nobody waited for included."""
    return sum(_parent(entry) == os.getpid() for entry in os.listdir("/proc") if entry.isdigit())


def _parent(pid: str) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return -1
    return int(stat.rpartition(")")[2].split()[1])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which services to start, should the environment ask for them."""

    sandbox: SandboxConfig
    verifier: VerifierConfig

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it in another process."""
        return {"sandbox": self.sandbox.model_dump(), "verifier": self.verifier.model_dump()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Wanted:
        return cls(SandboxConfig(**found["sandbox"]), VerifierConfig(**found["verifier"]))


@contextlib.asynccontextmanager
async def started(env: Env, wanted: Wanted, closing: Closing) -> AsyncIterator[dict[str, Any]]:
    """The options of `reset` that `env` asks for beside the task; `env` is closed in the end.

    Raises:
        ConfigError: there is no such sandbox backend.
        SandboxUnavailable, VerifierError: it cannot work here.
    """
    async with running_services(env, wanted.sandbox, wanted.verifier) as services:
        try:
            yield services.options(env)
        finally:
            await closing.close(env)


class Spy(Wrapper):
    """Goes around the environment, inside all of `make`'s wrappers, and keeps what it sees."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[Any] = []
        self.steps: list[Any] = []
        self.raised: Exception | None = None
        """What the environment's own code raised last."""
        self._lent: list[tuple[str, Any, Any]] = []
        """(what it is, the object, a copy of it as it was)"""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        try:
            found = await self.env.reset(seed=seed, options=options)
        except InfraError:
            raise
        except Exception as error:
            self.raised = error
            raise
        self.resets.append(found)
        self._lend("the first messages", found)
        return found

    async def step(self, action: Message) -> Step:
        self._lend("the action given to step", action)
        try:
            found = await self.env.step(action)
        except InfraError:
            raise
        except Exception as error:
            self.raised = error
            raise
        self.steps.append(found)
        self._lend("an earlier observation", found)
        return found

    def _lend(self, what: str, found: Any) -> None:
        messages = found if isinstance(found, Mapping) else found[0] if _is_tuple(found) else found
        self._lent.append((what, messages, copy.deepcopy(messages)))

    def changed(self) -> str:
        """What was changed after it had been handed over; "" if nothing was."""
        for what, now, before in self._lent:
            if now != before:
                return f"{what} was {before!r:.150} and became {now!r:.150}"
        return ""


def _is_tuple(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) > 0
