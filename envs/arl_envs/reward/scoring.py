"""Calling somebody's reward function, and reading what it returns."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from agentgym_rl.errors import EnvError, InfraError
from agentgym_rl.verifier import VerifierHandle, VerifierPool

from .options import Options


class Score(NamedTuple):
    reward: float
    components: dict[str, float]


class Scorer:
    """Scores replies with the function that `options` name. Failures are EnvErrors."""

    def __init__(self, options: Options) -> None:
        self._function = options.reward_function()
        self._name = options.function
        self._executor = options.executor
        self._timeout_s = options.timeout_s
        self._thread: ThreadPoolExecutor | None = None
        self._pool = VerifierHandle()

    def use_pool(self, pool: VerifierPool | None) -> None:
        """A started pool; None: one of its own."""
        if pool is not None:
            self._pool = VerifierHandle(pool)

    async def score(self, completion: str, row: Mapping[str, Any]) -> Score:
        """The reward of a reply to the prompt of `row`.

        Raises:
            EnvError: the function failed, or returned no reward.
            InfraError: the function said so itself, or the pool: the episode is played again.
        """
        given = copy.deepcopy(dict(row))
        if self._executor == "pool":
            return read_score(await self._in_pool(completion, given), self._name)
        try:
            value = await self._here(completion, given)
        except InfraError:
            raise
        except Exception as error:  # somebody else's code
            raise EnvError(f"{self._name} raised {type(error).__name__}: {error}") from error
        return read_score(value, self._name)

    async def close(self) -> None:
        """End thread and pool, if there are any of its own."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        await self._pool.close()

    async def _here(self, completion: str, row: dict[str, Any]) -> Any:
        if self._executor == "inline":
            value = self._function(completion, row)
            return await value if inspect.isawaitable(value) else value
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "reward")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._function, completion, row)

    async def _in_pool(self, completion: str, row: dict[str, Any]) -> Any:
        called = await self._pool.call(self._name, completion, row, timeout_s=self._timeout_s)
        if called.status != "done":
            raise EnvError(f"{self._name} in the verifier pool: {called.status}: {called.error}")
        return called.value


def read_score(value: Any, name: str) -> Score:
    """The reward, and its components, in what the function `name` returned.

    Raises:
        EnvError: it is neither a finite number nor a dictionary of such with `reward`.
    """
    parts = dict(value) if isinstance(value, Mapping) else {"reward": value}
    if "reward" not in parts:
        raise EnvError(f"{name} returned {value!r:.200}: a dictionary needs the key 'reward'")
    try:
        numbers = {str(part): float(number) for part, number in parts.items()}
    except (TypeError, ValueError) as error:
        raise EnvError(f"{name} returned {value!r:.200}, expected a number") from error
    if not all(map(math.isfinite, numbers.values())):
        raise EnvError(f"{name} returned {value!r:.200}, expected finite numbers")
    return Score(numbers.pop("reward"), numbers)
