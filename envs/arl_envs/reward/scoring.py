"""The call of a user's reward function, in a thread that a cancellation leaves behind, or of a
judge; and the conversion of the result."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from agentgym_rl import EnvError, InfraError, Verifier
from agentgym_rl.core import definition_of, headline
from agentgym_rl.gym import VerifierPool
from agentgym_rl.runtime import in_thread

from .options import Options, parameters

_log = logging.getLogger(__name__)


async def in_a_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return or raise the outcome of `function`. The call cannot be ended: a cancellation leaves
    its thread behind, which then hinders neither another call nor the end of the process."""

    def outcome() -> tuple[Any, BaseException | None]:
        try:
            return function(*args), None
        except BaseException as error:  # as a value: a future takes no StopIteration
            return None, error

    value, error = await asyncio.wrap_future(in_thread(outcome, name=f"{function!r:.60}"))
    if error is not None:
        raise error
    return value


class Score(NamedTuple):
    reward: float
    components: dict[str, float]
    timed_out: bool = False
    """True if the reply twice took the function too long, or too much memory, in the pool."""


class Scorer:
    """A scorer of replies with the function or the judge that `options` name."""

    def __init__(self, options: Options) -> None:
        self._judged = options.judged()
        self._function = None if self._judged else options.reward_function()
        self._name = options.function
        self._thinks = (
            self._function is not None and parameters(self._function, self._name).reasoning
        )
        self._executor = options.executor
        self._timeout_s = options.limit_s()
        self._pool = Verifier()

    def use_pool(self, pool: VerifierPool | None) -> None:
        """Use a started pool; None: use the scorer's own."""
        if pool is not None:
            self._pool = Verifier(pool)

    async def score(
        self,
        completion: str,
        row: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        *,
        thoughts: str = "",
    ) -> Score:
        """Return the reward of a reply to `messages`, the prompt of `row`; a reasoning parser took
        `thoughts` out of the reply.

        Raises:
            EnvError: the function failed, or returned no reward; or the judge refuses.
            InfraError: the function raised it, the judge or the pool failed, or the function
                crashed in the pool: the episode is played again.
        """
        if self._judged is not None:
            return read_score(await self._judged.score(completion, row, messages), "the judge")
        given = (completion, copy.deepcopy(dict(row)), *([thoughts] if self._thinks else []))
        if thoughts and not self._thinks:
            _log_thoughts(self._name)
        if self._executor == "pool":
            return await self._in_pool(given)
        try:
            value = await self._here(given)
        except InfraError:
            raise
        except (Exception, SystemExit) as error:  # the user's code
            raise EnvError(f"{self._name} raised {headline(error)}") from error
        return self._read(value)

    async def close(self) -> None:
        """End the scorer's own pool, if there is one."""
        await self._pool.close()

    async def _here(self, given: tuple[Any, ...]) -> Any:
        assert self._function is not None  # there is no judge
        if self._executor == "thread":
            return await in_a_thread(self._function, *given)
        value = self._function(*given)
        return await value if inspect.isawaitable(value) else value

    async def _in_pool(self, given: tuple[Any, ...]) -> Score:
        called = await self._pool.call(self._name, *given, timeout_s=self._timeout_s)
        if called.status == "done":
            return self._read(called.value)
        if called.status in ("timeout", "memory"):  # caused by the reply: others are scored
            return Score(0.0, {}, timed_out=True)
        error = InfraError if called.status == "crash" else EnvError
        text = called.error.replace(os.getcwd() + os.sep, "")  # workers have another folder
        raise error(f"{self._name} in the verifier pool: {called.status}: {text}")

    def _read(self, value: Any) -> Score:
        """Return the reward from the function's value; errors name the place of the function."""
        try:
            return read_score(value, self._name)
        except EnvError as error:
            place = definition_of(self._function) if self._function else ""
            raise EnvError(f"{error}{f' ({place})' if place else ''}") from None


@lru_cache(maxsize=64)
def _log_thoughts(name: str) -> None:
    """Log once for each function that it does not get the thoughts of replies."""
    _log.warning(
        "replies have thoughts, apart from their text, and %s(completion, row) gets the text "
        "alone: a third parameter `reasoning` gets the thoughts",
        name,
    )


def read_score(value: Any, name: str) -> Score:
    """Return the reward, and its components, from the value that the function `name` returned. A
    component that is None does not apply and is left out; if `reward` is None, it is the sum of the
    other components.

    Raises:
        EnvError: the value is neither a finite number nor a dictionary of such with `reward`, or
            no part of it applies.
    """
    parts = dict(value) if isinstance(value, Mapping) else {"reward": value}
    applying = {part: number for part, number in parts.items() if number is not None}
    if isinstance(value, Mapping) and parts and not applying:
        raise EnvError(
            f"{name} returned {value!r:.200}: every part is None, so none applies to this row; "
            "return a number for at least one of them, or leave the row out by `processor`"
        )
    if "reward" not in parts:
        raise EnvError(
            f"{name} returned {value!r:.200}: a dictionary needs the key 'reward', the sum of its "
            "other parts or any other number"
        )
    given = applying if isinstance(value, Mapping) else parts
    try:
        numbers = {str(part): float(number) for part, number in given.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise EnvError(
            f"{name} returned {_shown(given if isinstance(value, Mapping) else value)}"
        ) from error
    numbers.setdefault("reward", sum(numbers.values()))
    if not all(map(math.isfinite, numbers.values())):
        raise EnvError(f"{name} returned {value!r:.200}, expected finite numbers")
    return Score(numbers.pop("reward"), numbers)


def _shown(value: Any) -> str:
    """Return a value that is no reward, and what is expected in its place."""
    if value is None:
        return "None, as without `return`; expected a number"
    if isinstance(value, list | tuple):
        return (
            f"{value!r:.200}: the function is called with one completion at a time, not with a "
            "batch; expected a number"
        )
    if isinstance(value, Mapping):
        wrong = next(
            (f"{part!r}: {given!r:.80}" for part, given in value.items() if not _is_number(given)),
            "",
        )
        return f"a dictionary with {wrong}; expected a number for each part"
    return f"{value!r:.200}, expected a number"


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
