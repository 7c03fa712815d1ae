"""The parts that several criteria use: tasks of a source, a spy inside of `make`'s wrappers, the
services for reset, closing within a time limit, open resources counted to find leaks, and the
infrastructure error inside of an exception group."""

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
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentgym_rl.config import SandboxConfig
from agentgym_rl.core import InfraError, Message, Task, TaskSource, explain, is_mapping, is_tuple
from agentgym_rl.gym import Env, Step, running_services
from agentgym_rl.gym.data import TaskLoader
from agentgym_rl.gym.wrappers import Wrapper, within


def first_tasks(source: TaskSource, count: int) -> list[Task]:
    """Return the first `count` tasks, or all if there are fewer."""
    return list(islice(TaskLoader(source), count))


def shown(error: BaseException) -> str:
    """Return an error of the environment's code in one line: its message, and its place there."""
    return explain(error).partition("\n")[0][:400]


def task_text(task: Any) -> str:
    """Return a task as JSON text; a part that is not JSON becomes its repr."""
    return json.dumps([task.id, task.seed, dict(task.data), task.split], default=repr)


CLOSE_S = 5.0
"""The longest time that `close` may take."""
HUNG_S = 0.001
"""The time given to the other environments once one has hung: a check closes hundreds."""


class Closing:
    """The closer of a check's environments; criterion `close` judges whether closing works."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = CLOSE_S if limit_s is None else limit_s
        """The time that the next environment may take to close."""

    async def close(self, env: Env) -> None:
        """Close `env`; cancel its `close` after `limit_s`, and drop the exceptions it raises."""
        try:
            await within(self.limit_s, env.close())
        except TimeoutError:
            self.limit_s = min(self.limit_s, HUNG_S)
        except (Exception, SystemExit):  # the environment's own code
            return


@contextlib.contextmanager
def unwrapped_infra_error() -> Generator[None]:
    """Replace an exception group in the context by the InfraError that it holds, if there is one.

    Raises:
        InfraError: the first in the group.
    """
    try:
        yield
    except ExceptionGroup as group:
        found = group.subgroup(InfraError)
        while isinstance(found, ExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from group


SETTLE_S = 4.0
"""The time without any change after which the rest is taken to stay: services replace what they
have lost, one after the other, and on a busy machine slowly."""
MAX_SETTLE_S = 60.0


def leftovers() -> Counter[str]:
    """Count the tasks of the event loop, the threads, the child processes and the open files."""
    gc.collect()
    found: Counter[str] = Counter()
    found["task"] = len(asyncio.all_tasks())
    found["thread"] = threading.active_count()
    found["process"] = _num_children()
    found["open file"] = len(os.listdir("/proc/self/fd"))
    return found


async def grown(before: Counter[str]) -> Counter[str]:
    """Return the resources in excess of `before`, after waiting for them while they change."""
    begun = changed = time.monotonic()
    more = leftovers() - before
    while more:
        now = time.monotonic()
        if now > min(changed + SETTLE_S, begun + MAX_SETTLE_S):
            break
        await asyncio.sleep(0.02)
        found = leftovers() - before
        if found != more:
            changed = time.monotonic()
        more = found
    return more


def _num_children() -> int:
    """Count the children of this process, including zombies."""
    return sum(_parent(entry) == os.getpid() for entry in os.listdir("/proc") if entry.isdigit())


def _parent(pid: str) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # the process has just ended
        return -1
    return int(stat.rpartition(")")[2].split()[1])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The configuration of the services to start if the environment needs them."""

    sandbox: SandboxConfig
    verifier: Mapping[str, Any]
    """The options of the pool that verifiers run in."""

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON, for `from_json` in another process."""
        return {"sandbox": self.sandbox.model_dump(), "verifier": dict(self.verifier)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Wanted:
        return cls(SandboxConfig(**found["sandbox"]), found["verifier"])


@contextlib.asynccontextmanager
async def started(env: Env, wanted: Wanted, closing: Closing) -> AsyncGenerator[dict[str, Any]]:
    """Start the services `env` needs; yield them as options of `reset`, and close `env` at exit.

    Raises:
        ConfigError: there is no such sandbox backend.
        SandboxUnavailable, VerifierError: the service cannot work on this machine.
    """
    async with running_services(env, wanted.sandbox, wanted.verifier) as services:
        try:
            yield services.options(env)
        finally:
            await closing.close(env)


class Spy(Wrapper):
    """A wrapper directly around the environment, inside `make`'s wrappers; records all results."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[Any] = []
        self.steps: list[Any] = []
        self.raised: Exception | None = None
        """The last exception that the environment's own code raised."""
        self._lent: list[tuple[str, Any, Any]] = []
        """The objects handed over: (description, the object, a copy of its state at that time)."""

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
        messages = found if is_mapping(found) else found[0] if is_tuple(found) and found else found
        self._lent.append((what, messages, copy.deepcopy(messages)))

    def changed(self) -> str:
        """Describe the first object changed after it was handed over; "" if there is none."""
        for what, now, before in self._lent:
            if now != before:
                return f"{what} was {before!r:.150} and became {now!r:.150}"
        return ""
