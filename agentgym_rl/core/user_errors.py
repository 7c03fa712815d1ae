"""The text of an error in a user's code: first what failed, where in the user's own files, and what
to do; then the calls that led there, without the frames of this package, of libraries and of
Python.

    KeyError: 'anwser' (rewards.py, line 2, in score)
        return float(row["anwser"] in completion)
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from traceback import FrameSummary
from typing import Any

from .errors import ArlError, leaves

_MOST_FRAMES, _MOST_CHARS = 4, 2000
_ROOT = Path(__file__).parents[2]
_OURS = tuple(
    f"{_ROOT / folder}{os.sep}"
    for folder in ("agentgym_rl", "arl_isolation", "extensions", "envs", "agents", "sandboxes")
)
"""The folders of this package in a source checkout; elsewhere it is among the installed ones."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ", "<__array_function__")
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"can't be used in 'await' expression",
        "the call after `await` returned a value at once: leave `await` out, or write `async def`",
    ),
    (r"\bcoroutine\b", "a call of an `async def` needs `await` before it, as in `await call()`"),
    (
        r"'dict' object has no attribute '(content|role|tool_calls|reasoning_content)'",
        'messages are dictionaries: read a field as in action["content"]',
    ),
)
"""A pattern of Python's own message, and what to do."""


def explain(error: BaseException) -> str:
    """Return the text of an error of a user's code: a line with its type, message, file, line and
    function; the source line; what to do, if that is known; and the callers among the user's
    functions. An `ArlError` is shown with its message alone: that is complete."""
    try:
        return _explained(leaves(error)[0])[:_MOST_CHARS]
    except BaseException:  # its own __str__ is foreign code
        return type(error).__name__


def _explained(error: BaseException) -> str:
    """Return the text, whatever `str(error)` raises."""
    chain = list(_chain(error))
    found = (user_frames(each) for each in chain)
    frames: list[FrameSummary] = next(filter(None, found), [])
    first, *rest = headline(error).split("\n")
    if not frames and isinstance(error, ArlError):
        return "\n".join([first, *rest])
    if not frames:  # the fault may be in a library, or ours: all that is known
        last = traceback.format_exception(error, limit=-_MOST_FRAMES)
        return "".join([first, *(f"\n{line}" for line in rest), "\n", *last]).strip()
    inner, *callers = frames[::-1]
    lines = [f"{first} ({_place(inner)})", *rest, *_source(inner)]
    lines += [f"{hint[0].upper()}{hint[1:]}" for hint in [_hint(error)] if hint]
    causes = chain[1:] if not isinstance(error, ArlError) else []
    lines += [f"caused by {headline(each)}" for each in causes[:1]]
    for caller in callers[: _MOST_FRAMES - 1]:
        lines += [f"  called by {_place(caller)}", *(f"  {line}" for line in _source(caller))]
    return "\n".join(lines)


def failures(text: str, *, what: str, outcome: str, env_id: str) -> str:
    """Return the message of a run that ends for failed episodes: the last error, their number
    (`what`), and for errors of an environment the command that tries it by itself."""
    hint = f"\n`arl check {env_id}` tries the environment by itself"
    return f"{text}\n{what}{hint if outcome == 'env_error' and env_id else ''}"


def headline(error: BaseException) -> str:
    """Return the type and message of an error; of an `ArlError` only the message."""
    text = str(error)
    if isinstance(error, ArlError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def definition_of(target: Callable[..., Any]) -> str:
    """Return the place where a function, method or class is defined, as in "guess.py, line 4, in
    Guess.step"; "" for one of C."""
    target = inspect.unwrap(target)
    code = getattr(target, "__code__", None)
    try:
        line = code.co_firstlineno if code else inspect.getsourcelines(target)[1]
        file = code.co_filename if code else inspect.getsourcefile(target)
    except (OSError, TypeError):
        return ""
    name = getattr(target, "__qualname__", "").rpartition("<locals>.")[2]
    return f"{relative(str(file))}, line {line}, in {name}"


def relative(file: str) -> str:
    """Return the path of a file, relative to the current folder if it is in there."""
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def is_users(file: str) -> bool:
    """Return whether a file of Python code is neither Python's, nor installed, nor ours."""
    return not (file.startswith((*_PYTHON, *_OURS)) or _INSTALLED.search(file))


def user_frames(error: BaseException) -> list[FrameSummary]:
    """Return the frames of the user's code in an error's traceback, the outermost first; if there
    are none, those of an installed package that is not ours; a syntax error adds its own place."""
    if isinstance(error, SyntaxError) and error.filename:
        return [FrameSummary(error.filename, error.lineno, "", line=error.text)]
    found = list(traceback.extract_tb(error.__traceback__))
    theirs = [frame for frame in found if is_users(frame.filename)]
    ours = (*_PYTHON, *_OURS, str(_ROOT / "arl_"), str(_ROOT / "agentgym_rl"))
    return theirs or [frame for frame in found if not frame.filename.startswith(ours)]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(frame: FrameSummary) -> str:
    name = f", in {frame.name}" if frame.name else ""
    return f"{relative(frame.filename)}, line {frame.lineno}{name}"


def _source(frame: FrameSummary) -> Sequence[str]:
    return [f"    {line}"] if (line := (frame.line or "").strip()) else []


def _hint(error: BaseException) -> str:
    text = "" if isinstance(error, ArlError) else str(error)
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")
