"""The result of reading a row in its format, before the step to a problem."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.gym.data import RowRefused, shorten
from arl_envs.code.problem import CallTest, TextTest

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def file_name(value: Any, what: str) -> str:
    """Return the name of a file that a program reads or writes; "" for the standard streams.

    Raises:
        RowRefused: it is no plain name.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in _STREAMS):
        return ""
    if not isinstance(value, str) or not _FILE_NAME.fullmatch(value.strip()):
        raise RowRefused(f"{what}: got {shorten(value)}, expected the name of a file")
    return value.strip()


_STREAMS = ("", "stdin", "stdout", "standard input", "standard output", "-")

Tests = Sequence[CallTest] | Sequence[TextTest]


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a problem, as they are in the row."""

    statement: str
    """The statement, as it is in the row."""
    tests: Tests
    """The tests of the row, perhaps with the shown ones."""
    entry: str = ""
    """The function to write; "": a program."""
    starter: str = ""
    """The code to start from: a signature, a class with an empty method."""
    shown: Tests = ()
    """The tests that the row's author shows to the solver."""
    helpers: str = ""
    """The code that the row provides, besides the usual imports."""
    input_file: str = ""
    output_file: str = ""
    """The files that a program reads and writes; "": standard input and output."""
    checker: str = ""
    """The program that decides whether an output is right."""
    time_limit: Any = None
    """The time limit as it is in the row: seconds, or text such as "2.0 seconds"."""
