"""The result of reading a row in its format, before the step to a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arl_envs.code.problem import CallTest, TextTest

Tests = Sequence[CallTest] | Sequence[TextTest]


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a problem, as they are in the row."""

    statement: str
    """The statement in the row's own words."""
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
    time_limit: Any = None
    """The time limit as it is in the row: seconds, or text such as "2.0 seconds"."""
