"""A locked-in worker, which answers calls one by one until its stream closes or it is killed."""

from __future__ import annotations

import importlib
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from agentgym_rl.gym.verifier import wire

_ERROR_FRAMES, _ERROR_CHARS = 3, 2000
_OURS = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen importlib")


def function(target: str) -> Callable[..., Any]:
    """Import and return the function that `module:function` names.

    Raises:
        ImportError, AttributeError, TypeError: there is none. (Other import errors pass through.)
    """
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"it is no function but a {type(found).__name__}")
    return found


def serve(fd: int, max_answer_bytes: int) -> None:
    """Answer calls until the other end closes."""
    functions: dict[str, Callable[..., Any]] = {}
    while head := _read(fd, wire.HEAD.size):
        size, number = wire.HEAD.unpack(head)
        target, args = wire.decode(_read(fd, size))
        answer = _answer(functions, target, args)
        body = _body(answer, max_answer_bytes)
        _write(fd, wire.frame(number, body))


def _answer(functions: dict[str, Callable[..., Any]], target: str, args: list[Any]) -> list[Any]:
    try:
        if target not in functions:
            functions[target] = function(target)
        return ["done", functions[target](*args), ""]
    except MemoryError:
        return ["memory", None, "MemoryError"]
    except BaseException as error:  # SystemExit too: the caller judges what it means
        return ["error", None, describe(error)]
    finally:
        signal.alarm(0)  # an alarm left by the function would end the next call


def _body(answer: list[Any], max_bytes: int) -> bytes:
    try:
        body = wire.encode(answer)
    except MemoryError:
        return wire.encode(["memory", None, "MemoryError"])
    except Exception as error:
        text = f"the function's return value is not JSON: {type(error).__name__}: {error}"
        return wire.encode(["error", None, text[:_ERROR_CHARS]])
    if len(body) > max_bytes:
        text = f"the function returned {len(body)} bytes, more than {max_bytes} (max_answer_bytes)"
        return wire.encode(["error", None, text])
    return body


def describe(error: BaseException) -> str:
    """Return the type and text of `error`, below its last foreign traceback frames."""
    try:
        told = traceback.TracebackException.from_exception(error, lookup_lines=False)
        theirs = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
        told.stack = traceback.StackSummary.from_list(theirs[-_ERROR_FRAMES:])
        told.__cause__ = told.__context__ = None
        return "".join(told.format()).strip()[-_ERROR_CHARS:]
    except BaseException:  # its own __str__ is foreign code
        return type(error).__name__


def _read(fd: int, size: int) -> bytes:
    """Read `size` bytes; return b"" at the end of the stream."""
    found = b""
    while len(found) < size:
        more = os.read(fd, size - len(found))
        if not more:
            return b""
        found += more
    return found


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
