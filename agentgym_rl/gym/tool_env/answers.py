"""Answering the tool calls of a message: side by side where they wait, never an exception."""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from agentgym_rl.core.chat import Message
from agentgym_rl.core.errors import InfraError

from .calls import BadCall, Call, listed, read_call, reply_to
from .schema import ToolError

log = logging.getLogger(__name__)

Results = Callable[[Call], Any]
"""Carries out a call: a result, or an awaitable of one."""

_MAX_ERROR_CHARS = 400

_SHORTAGES = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO),
    *(errno.ENETDOWN, errno.ENETUNREACH),
}
"""What the machine lacks, whatever the arguments were; of other errors, as of ENOENT, they may be
the cause."""

_MAX_WARNED = 100
_warned: set[str] = set()
"""Tools that have raised what they should not, in this process."""


@dataclass(slots=True)
class Answered:
    """The answers to a message's calls."""

    messages: list[Message] = field(default_factory=list[Message])
    """A tool message per call, in the order of the calls."""
    errors: list[str] = field(default_factory=list[str])
    """What was wrong with the calls that failed; the same texts."""


async def answer_calls(
    calls: Any, run: Results, *, max_calls: int = 32, max_concurrent: int = 8
) -> Answered:
    """Answer whatever stands in `tool_calls`, by `run`.

    Calls start in their order. One that does not wait is over before the next starts; at most
    `max_concurrent` wait at a time. More than `max_calls` in a message are refused. Failures
    are answered with a text that starts "error:".

    Raises:
        InfraError: a tool raised it; or MemoryError, ConnectionError, or an OSError that says
            that handles, memory, disk or network are wanting.
    """
    many = listed(calls)
    texts = [f"error: more than {max_calls} calls in a message"] * len(many)
    failed = [True] * len(many)
    slots = asyncio.Semaphore(max_concurrent)
    infra: list[InfraError] = []

    async def answer(index: int, call: Mapping[str, Any]) -> None:
        try:
            async with slots:
                texts[index], failed[index] = await _answer(call, run)
        except InfraError as error:
            infra.append(error)

    taken = list(enumerate(many[:max_calls]))
    if len(taken) == 1:
        await answer(*taken[0])
    else:
        async with asyncio.TaskGroup() as group:
            for index, call in taken:
                group.create_task(answer(index, call))
    if infra:
        raise infra[0]
    return Answered(
        [reply_to(call, text) for call, text in zip(many, texts, strict=True)],
        [text for text, bad in zip(texts, failed, strict=True) if bad],
    )


async def _answer(call: Mapping[str, Any], run: Results) -> tuple[str, bool]:
    """The text for a call, and whether it is an error."""
    name = ""
    try:
        read = read_call(call)
        name = read.name
        result = run(read)
        if inspect.isawaitable(result):
            result = await _result(result)
        return as_text(result), False
    except InfraError:
        raise
    except (BadCall, ToolError) as error:
        return _error(str(error)), True
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        if _is_infra(error):
            raise InfraError(f"tool {name}: {said}") from error
        _tell(name, error)
        return _error(said), True


def _is_infra(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        return True
    return isinstance(error, MemoryError | ConnectionError)


def _tell(name: str, error: BaseException) -> None:
    """Warn of a tool once: the agent is told each time, and `tool_errors` counts it."""
    is_first = name not in _warned and len(_warned) < _MAX_WARNED
    if is_first:
        _warned.add(name)
    log.log(
        logging.WARNING if is_first else logging.DEBUG,
        "tool %.100r raised %s: the agent reads it as an error of its call; a tool raises "
        "ToolError for those (further ones of this tool are logged at level DEBUG)",
        name, type(error).__name__, exc_info=error,
    )  # fmt: skip


async def _result(waiting: Awaitable[Any]) -> Any:
    try:
        return await waiting
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the tool was cancelled by its own code") from error


def as_text(result: Any) -> str:
    """A tool's result as the agent reads it: strings as they are, everything else as JSON."""
    if not isinstance(result, str):
        result = json.dumps(to_jsonable_python(result), ensure_ascii=False)
    return _sendable(result)


def _error(text: str) -> str:
    text = text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}..."
    return f"error: {_sendable(text)}"


def _sendable(text: str) -> str:
    """Lone surrogates become question marks: they have no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
