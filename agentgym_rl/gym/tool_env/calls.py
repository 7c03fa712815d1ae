"""The tool calls of a model's message: they are parsed, even if malformed, run concurrently, and
answered; errors become text."""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from agentgym_rl.core import InfraError, Message, ToolSpec, explain, is_list, is_mapping

log = logging.getLogger(__name__)

_MAX_ERROR_CHARS = 400

_SHORTAGES = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO),
    *(errno.ENETDOWN, errno.ENETUNREACH),
}
"""The errors of a machine that lacks resources, independent of a call's arguments; other errors,
such as ENOENT, may be caused by the arguments."""

SEEN: ContextVar[Callable[[str, BaseException | None], None]] = ContextVar(
    "SEEN", default=lambda name, error: None
)
"""The observer of a context: it gets the name of each call that ended, and its error, if any."""

_MAX_WARNED = 100
_warned: set[str] = set()
"""The tools of this process that have raised unexpected exceptions."""


class ToolError(Exception):
    """An error that tools may raise: the agent gets "error: " and its text. Nothing is logged."""


class BadCall(ValueError):
    """The error of a call that cannot be executed; the message has the problem and the expected
    form."""


class NotJson(TypeError):
    """The error of a tool's result that is no JSON."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call with a name; the tool may not exist."""

    name: str
    arguments: str
    """The arguments, not yet parsed; they may be invalid JSON."""


def text_of(message: Message) -> str:
    """Return the text of a message with a string, a list of parts or nothing as its content."""
    content = message.get("content")
    if is_list(content):
        texts = [part.get("text") for part in content if is_mapping(part)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def listed(calls: Any) -> list[Mapping[str, Any]]:
    """Return the calls of a message as a list; an item that is not a mapping becomes an empty
    one."""
    many = calls if is_list(calls) else [calls]
    return [call if is_mapping(call) else {} for call in many]


def read_call(call: Mapping[str, Any]) -> Call:
    """Return the name and the arguments of a call; arguments given as an object become JSON.

    Raises:
        BadCall: the call has no name, or its arguments have another type.
    """
    function = call.get("function")
    if not is_mapping(function):
        raise BadCall("no function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise BadCall("the name of the function is no string")
    if is_mapping(arguments):
        try:
            arguments = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadCall("arguments are no JSON") from error
    if not isinstance(arguments, str):
        raise BadCall("arguments are no JSON object")
    return Call(name, arguments)


def one_argument_tool(name: str, description: str, argument: str) -> ToolSpec:
    """Return the OpenAI function schema of a tool that takes one string."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def argument_of(call: Mapping[str, Any], *, tool: str, argument: str) -> str:
    """Return the only argument, a string, of a call of the tool.

    Raises:
        BadCall: the call is of another tool, or its arguments have another form.
    """
    found = read_call(call)
    if found.name != tool:
        raise BadCall(f"the only tool is {tool}")
    try:
        arguments = json.loads(found.arguments)
    except (ValueError, RecursionError) as error:
        raise BadCall("arguments are no JSON") from error
    if not is_mapping(arguments) or list(arguments) != [argument]:
        raise BadCall(f"expected one argument, {argument}")
    if not isinstance(arguments[argument], str):
        raise BadCall(f"{argument} is no string")
    return arguments[argument]


def reply_to(call: Mapping[str, Any], content: str) -> Message:
    """Return the tool message that answers a call."""
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) else ""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


Results = Callable[[Call], Any]
"""A function that executes a call: it returns a result, or an awaitable of one."""


@dataclass(slots=True)
class Answered:
    """The answers to a message's calls."""

    messages: list[Message] = field(default_factory=list[Message])
    """The tool messages, one per call, in the order of the calls."""
    errors: list[str] = field(default_factory=list[str])
    """The texts of the failed calls, the same as in their messages."""


async def answer_calls(
    calls: Any, run: Results, *, max_calls: int = 32, max_concurrent: int = 8
) -> Answered:
    """Execute the calls in `tool_calls`, even if malformed, by `run`, and return their answers.

    Calls start in their order. A call that does not wait ends before the next one starts; at most
    `max_concurrent` wait at a time. Calls beyond `max_calls` in a message are refused. A failure
    is answered with a text that starts with "error:".

    Raises:
        InfraError: a tool raised it; or it raised MemoryError, ConnectionError, or an OSError
            for a lack of handles, memory, disk or network.
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
    """Return the text that answers a call, and whether it is an error."""
    name = ""
    try:
        read = read_call(call)
        name = read.name
        result = run(read)
        if inspect.isawaitable(result):
            result = await _result(result)
        text = as_text(result)
        SEEN.get()(name, None)
        return text, False
    except InfraError:
        raise
    except NotJson as error:
        SEEN.get()(name, error)
        text = f"tool {name!r:.100} {error}"
        _warn_once(name, text)
        return _error(text), True
    except (BadCall, ToolError) as error:
        SEEN.get()(name, error)
        return _error(str(error)), True
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        if _is_infra(error):
            raise InfraError(f"tool {name}: {text}") from error
        SEEN.get()(name, error)
        _warn_once(name, f"tool {name!r:.100} raised {explain(error)}")
        return _error(text), True


def _is_infra(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        return True
    return isinstance(error, MemoryError | ConnectionError)


def _warn_once(name: str, text: str) -> None:
    """Warn about a tool once; the agent gets each error, and `tool_errors` counts them."""
    is_first = name not in _warned and len(_warned) < _MAX_WARNED
    if is_first:
        _warned.add(name)
    log.log(
        logging.WARNING if is_first else logging.DEBUG,
        "%s\nThe agent reads it as an error of its call; a tool raises "
        "ToolError for those (further ones of this tool are logged at level DEBUG)",
        text,
    )


async def _result(waiting: Awaitable[Any]) -> Any:
    try:
        return await waiting
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the tool was cancelled by its own code") from error


def as_text(result: Any) -> str:
    """Return a tool's result as text for the agent: strings unchanged, everything else as JSON.

    Raises:
        NotJson: the result cannot be written as JSON.
    """
    if not isinstance(result, str):
        try:
            result = json.dumps(to_jsonable_python(result), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotJson(
                f"returned an object of type {type(result).__name__}, which is no JSON "
                f"({error}); return text, such as str(result), or numbers, lists and dictionaries"
            ) from error
    return _sendable(result)


def _error(text: str) -> str:
    text = text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}..."
    return f"error: {_sendable(text)}"


def _sendable(text: str) -> str:
    """Replace unpaired surrogates by question marks: they cannot be encoded as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
