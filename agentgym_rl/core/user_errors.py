"""The text of an error in a user's code: what failed, where in the user's own files, what to do;
then the user's functions that led there, without frames of libraries and of this package."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from traceback import FrameSummary
from typing import Any, cast

from .errors import ArlError, leaves, near_match

_MOST_FRAMES, _MOST_CHARS, _MOST_NAMES = 4, 2000, 20
_ROOT = Path(__file__).parents[2]
_FOLDERS = ("agentgym_rl/", "arl_", "extensions/", "envs/", "agents/", "sandboxes/")
_OURS = tuple(str(_ROOT / "x")[:-1] + folder for folder in _FOLDERS)
_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_HINTS = {
    r"can't be used in 'await' expression": (
        "The call after `await` returned a value at once: leave `await` out, or write `async def`"
    ),
    r"\bcoroutine\b": "A call of an `async def` needs `await` before it, as in `await call()`",
    r"'dict' object has no attribute '(content|role|tool_calls)'": (
        'Messages are dictionaries: read a field as in action["content"]'
    ),
    r"'Task' object (is not subscriptable|has no attribute)": (
        'A task has id, seed, split and data: read a field of its row as in task.data["name"]'
    ),
    r"\breset\(\) (got|takes|missing)": "Write `reset(self, *, seed=None, options=None)`",
    r"\bstep\(\) (got|takes|missing)": "Write `step(self, action)`",
    r"\brun\(\) (got|takes|missing)": "Write `async def run(self, env, client, *, model, task)`",
}
"""What to do, by a pattern of Python's own message."""


def explain(error: BaseException) -> str:
    """Return the text of an error of a user's code: a line with its type, message, file, line and
    function; the source line; what to do, if that is known; and the callers among the user's
    functions. An `ArlError` has its message alone, which is complete."""
    try:
        return _explained(leaves(error)[0])[:_MOST_CHARS]
    except BaseException:  # its own __str__ is foreign code
        return type(error).__name__


def _explained(error: BaseException) -> str:
    """Return the text, or raise what `str(error)` raises."""
    ours, chain = isinstance(error, ArlError), [error]
    while (cause := _cause(chain[-1])) is not None and cause not in chain:
        chain.append(cause)
    none: list[FrameSummary] = []
    frames = next((it for each in chain if (it := user_frames(each))), none)
    text = headline(error)
    known = _HINTS.items() if "`await`" not in text else ()
    hints = [hint for pattern, hint in known if re.search(pattern, text)][:1]
    at_the_call = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if not frames and (ours or hints or at_the_call or isinstance(error, ImportError)):
        return "\n".join([text, *hints])
    if not frames:  # the fault may be in a library, or ours: all that is known
        last = traceback.format_exception(error, limit=-_MOST_FRAMES)
        return "".join([text, "\n\n", *last]).strip()
    inner, *callers = frames[::-1]
    first, newline, rest = text.partition("\n")
    lines = [f"{first} ({_place(inner)}){newline}{rest}", *_source(inner), *hints]
    if not ours:
        lines += [f"caused by {headline(each)}" for each in chain[1:2]]
    for caller in callers[: _MOST_FRAMES - 1]:
        lines += [f"  called by {_place(caller)}", *_source(caller)]
    return "\n".join(lines)


def headline(error: BaseException) -> str:
    """Return the type and message of an error, and the names that were there in place of a missing
    key or attribute; of an `ArlError` only the message."""
    kind = "" if isinstance(error, ArlError) else type(error).__name__
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    with contextlib.suppress(Exception):  # their objects are foreign code
        text += _known(error)
    return ": ".join(filter(None, [kind, text]))


_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)


def _known(error: BaseException) -> str:
    """Return the keys of the mapping in which the user's line looked for a missing one, or the
    attribute with the nearest name; "" if neither is known."""
    if isinstance(error, AttributeError) and error.obj is not None and error.name:
        return near_match(error.name, dir(error.obj))
    if not isinstance(error, KeyError) or error.__traceback__ is None:
        return ""
    at = traceback.extract_tb(error.__traceback__)[-1]
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    source = linecache.getline(at.filename, line).encode()[at.colno : at.end_colno].decode()
    expression = ast.parse(source, mode="eval").body
    if not isinstance(expression, ast.Subscript):
        return ""
    owner = expression.value
    if not all(isinstance(node, _PLAIN) for node in ast.walk(owner)):
        return ""  # a call is not repeated
    held = eval(ast.unparse(owner), frame.f_globals, frame.f_locals)
    if not isinstance(held, Mapping):
        return ""
    keys = cast("Mapping[object, object]", held)
    near = near_match(str(error.args[0]), map(str, keys))
    return f"; {ast.unparse(owner)} has {listed(keys)}{near}"


def listed(names: Iterable[object]) -> str:
    """Return some names as a list, the first ones of many."""
    texts = list(map(str, names))
    return ", ".join([*texts[:_MOST_NAMES], *["…"] * (len(texts) > _MOST_NAMES)]) or "no keys"


def definition_of(target: Callable[..., Any]) -> str:
    """Return the place where a user has defined a function or class, as in "FILE, line 4, in
    Guess.step"; "" for one of others."""
    target = inspect.unwrap(target)
    try:
        file, line = inspect.getsourcefile(target), inspect.getsourcelines(target)[1]
    except (OSError, TypeError):
        return ""
    place = f"{relative(str(file))}, line {line}, in {target.__qualname__}"
    return place if is_users(str(file)) else ""


def relative(file: str) -> str:
    """Return the path of a file, relative to the current folder if it is in there."""
    return file.removeprefix(os.getcwd() + os.sep)


def user_frames(error: BaseException) -> list[FrameSummary]:
    """Return the frames of the user's code in an error's traceback, the outermost first; if there
    are none, the innermost of installed packages. A syntax error has the place that it names."""
    if isinstance(error, SyntaxError) and error.filename:
        return [FrameSummary(error.filename, error.lineno, "", line=error.text)]
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [it for it in frames if not it.filename.startswith(_OURS)]
    theirs = [it for it in foreign if is_users(it.filename)]
    return theirs or [it for it in foreign if _INSTALLED.search(it.filename)][-1:]


def is_users(file: str) -> bool:
    """Return whether a file of Python code is neither Python's, nor installed, nor ours."""
    return not (file.startswith((*_PYTHON, *_OURS)) or _INSTALLED.search(file))


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(frame: FrameSummary) -> str:
    name = f", in {frame.name}" if frame.name else ""
    return f"{relative(frame.filename)}, line {frame.lineno}{name}"


def _source(frame: FrameSummary) -> list[str]:
    return [f"    {line}"] if (line := (frame.line or "").strip()) else []
