"""The contract of a verifier pool: processes that call functions that may hang or crash.

A package provides a pool by an entry point of the group `agentgym_rl.verifiers`, which names a
class of pools; `make_pool` makes a pool. The first-party package is `arl_verifier`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from agentgym_rl.core import ConfigError, added_class
from agentgym_rl.core.extensions import PREFIX

VERIFIERS = "verifiers"
"""The group of entry points of classes of pools."""

Status = Literal["done", "error", "timeout", "crash", "memory"]
"""The status of a call. `done`: the function returned. `error`: it raised. The other three, each
after two attempts: it did not return in time, its process died, or it needed more memory than
allowed."""


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call."""

    status: Status
    value: Any = None
    """The return value of the function, as JSON would return it: tuples have become lists."""
    error: str = ""
    """The problem, unless the status is `done`; for `error` the exception and its last traceback
    lines."""
    ms: float = 0.0
    """The duration of the last attempt in milliseconds, from its dispatch to a free worker on."""
    attempts: int = 1


@dataclass
class VerifierStats:
    """The counters of a pool."""

    calls: int = 0
    """The number of calls that ended; cancelled ones are not counted."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    """The number of calls by status."""
    retries: int = 0
    """The number of second attempts, in a fresh worker."""
    cancelled: int = 0
    workers: int = 0
    """The number of workers started so far."""
    queue_s: float = 0.0
    """The total time in seconds that calls waited for a free worker."""
    queue_max_s: float = 0.0

    @property
    def timeouts(self) -> int:
        return self.statuses["timeout"]

    @property
    def crashes(self) -> int:
        """Return the number of crashes, calls that hit the memory limit included."""
        return self.statuses["crash"] + self.statuses["memory"]


class VerifierPool(ABC):
    """A pool of processes that call functions, each one call at a time, in an event loop.

    `async with` starts the pool and ends it.
    """

    @abstractmethod
    def __init__(self, num_workers: int, **options: Any) -> None:
        """Prepare a pool of `num_workers` processes. Every class has the options `timeout_s`, the
        time limit of a call, and `memory_mb`, the memory limit of a process."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def start(self) -> None:
        """Start the processes.

        Raises:
            ConfigError, VerifierError: the pool cannot work on this machine.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every process; calls in flight raise VerifierError. Idempotent."""

    @abstractmethod
    async def call(
        self, target: str, *args: Any, timeout_s: float | None = None, fresh: bool = False
    ) -> Called:
        """Call `module:function` with JSON-able arguments in a worker.

        fresh: Whether a new worker serves only this call: for functions that may run code of the
        model that they judge, which could stay in the worker and attack the next call.

        Raises:
            ConfigError: there is no such function, or its module cannot be imported.
            TypeError, ValueError: an argument is not JSON-able.
            VerifierError: the pool is not running, or cannot answer.
        """

    @property
    @abstractmethod
    def isolation(self) -> frozenset[str]:
        """Return the kinds of access that the pool has found to be denied to its workers.

        The kinds: `network`, `writes` (files), `exec` (programs and processes), `signals` (to other
        processes), `reads` (files outside the interpreter and its modules; other processes). Empty
        before the start."""

    @abstractmethod
    def require(self, *words: str) -> None:
        """Raise an error if `isolation` lacks one of the kinds `words`.

        Raises:
            ConfigError: a kind is missing; the message names it and the features that this machine
                lacks.
        """

    @abstractmethod
    def stats(self) -> VerifierStats:
        """Return the counters so far."""


def make_pool(num_workers: int = 2, **options: Any) -> VerifierPool:
    """Make a pool of the installed class, not started; another package's class takes precedence
    over the first-party one. `options` are those of the class.

    Raises:
        ConfigError: no installed package has a pool, or several other packages do.
    """
    made = added_class(VERIFIERS, VerifierPool, would="call verifiers in processes of their own")
    if made is None:
        raise ConfigError(
            "uses_verifier: no installed package has a pool of processes for verifiers (the group "
            f"of entry points {PREFIX}{VERIFIERS}); install one (ours is arl_verifier), or an "
            "environment that does without"
        )
    return made(num_workers, **options)
