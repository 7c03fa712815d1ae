"""The user's options of the math environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from agentgym_rl.core.chat import ToolSpec
from agentgym_rl.core.errors import ConfigError

from .calculator import WHOLE_EXPRESSION, Calculator
from .final import Mark
from .levels import level_of

_TURNS_OF_ROWS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword arguments of the environment (`--env.options.level=2`).

    Raises:
        ConfigError: an option is out of range, or does not go with another one.
    """

    level: int = 1
    """The level of generated problems: 1 short word problems (the calculator does one operation a
    call), 2 arithmetic expressions, 3 long word problems, 4 fractions and decimals."""
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The source of problems in a file or data set instead of generated ones: the arguments of
    `rows.row_tasks`, for example `--env.options.rows.path=FILE`."""
    calculator_for_rows: bool = False
    """The switch for a calculator with rows; generated problems always have one."""
    mark: Mark = "boxed"
    """The mark of the final answer in replies to rows (see `final.py`)."""
    verify_timeout_s: float = 5.0
    """The time limit for the algebra of one answer to a row, in seconds; there are two attempts."""

    def __post_init__(self) -> None:
        level_of(self.level)
        if not isinstance(self.rows, Mapping):
            raise ConfigError(f'rows: got {self.rows!r}, expected a table such as {{"path": FILE}}')
        if self.rows and self.level != 1:
            raise ConfigError("level: of generated problems, not of rows")
        if self.mark not in get_args(Mark):
            raise ConfigError(f"mark: got {self.mark!r}; allowed: {', '.join(get_args(Mark))}")
        if not isinstance(self.calculator_for_rows, bool):
            raise ConfigError(f"calculator_for_rows: got {self.calculator_for_rows!r}")
        seconds: Any = self.verify_timeout_s
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 < seconds <= 20
        ):
            raise ConfigError(f"verify_timeout_s: got {seconds!r}, allowed: above 0, up to 20")

    @property
    def calculator(self) -> Calculator | None:
        """Return the calculator that works out tool calls; None if there is no tool."""
        if self.rows:
            return WHOLE_EXPRESSION if self.calculator_for_rows else None
        return level_of(self.level).calculator

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the agent is offered."""
        return () if self.calculator is None else (self.calculator.tool,)

    @property
    def max_turns(self) -> int:
        return _TURNS_OF_ROWS if self.rows else level_of(self.level).max_turns

    def given(self) -> dict[str, Any]:
        """Return the keyword arguments that make the same options."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
