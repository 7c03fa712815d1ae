"""The user's options of the math environment, the levels of difficulty that they choose from, and
the check that a task can be played with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from agentgym_rl import ConfigError, EnvError, ToolSpec
from agentgym_rl.core import checked_task
from arl_envs.math.symbolic.expression import Unreadable

from .answers import Kind, Mark, read_number
from .calculator import ONE_OPERATION, WHOLE_EXPRESSION, Calculator
from .generated import Problem, expression, long_story, rational, short_story
from .judge import check_gold


@dataclass(frozen=True, slots=True)
class Level:
    """A difficulty level."""

    number: int
    generate: Callable[[random.Random], Problem]
    calculator: Calculator
    max_turns: int
    """The most assistant messages in an episode, the final answer included."""

    def problem(self, seed: int) -> Problem:
        """Return the problem of `seed`: a pure function of level and seed, in any process."""
        return self.generate(random.Random(f"arl-math/{self.number}/{seed}"))


LEVELS = {
    level.number: level
    for level in (
        Level(1, short_story, ONE_OPERATION, 4),
        Level(2, expression, WHOLE_EXPRESSION, 8),
        Level(3, long_story, WHOLE_EXPRESSION, 10),
        Level(4, rational, WHOLE_EXPRESSION, 8),
    )
}


def level_of(number: object) -> Level:
    """Return the level with this `number`.

    Raises:
        ConfigError: there is no such level.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in LEVELS:
        raise ConfigError(f"math has no level {number!r}; allowed: {', '.join(map(str, LEVELS))}")
    return LEVELS[number]


SYSTEM_PROMPT = "Solve the problem. Put the final answer in \\boxed{}."
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
    data: str | None = None
    eval_data: str | None = None
    """The short forms of `rows.path` (`--data FILE`) and `rows.eval_path`."""
    system_prompt: str = SYSTEM_PROMPT
    """The first message of every episode; "": there is none."""
    calculator_for_rows: bool = False
    """Whether there is a calculator with rows; generated problems always have one."""
    mark: Mark = "boxed"
    """The mark of the final answer in replies to rows (see `answers.py`)."""
    verify_timeout_s: float = 5.0
    """The time limit for the algebra of one answer to a row, in seconds; there are two attempts."""

    def __post_init__(self) -> None:
        level_of(self.level)
        if not isinstance(self.rows, Mapping):
            raise ConfigError(f'rows: got {self.rows!r}, expected a table such as {{"path": FILE}}')
        if not isinstance(self.system_prompt, str):
            raise ConfigError(f"system_prompt: got {self.system_prompt!r}, expected text")
        if self.has_rows and self.level != 1:
            raise ConfigError("level: only for generated problems, not for rows")
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
    def has_rows(self) -> bool:
        """Return whether problems come from rows; else they are generated."""
        return bool(self.rows) or self.data is not None or self.eval_data is not None

    @property
    def calculator(self) -> Calculator | None:
        """Return the calculator that works out tool calls; None if there is no tool."""
        if self.has_rows:
            return WHOLE_EXPRESSION if self.calculator_for_rows else None
        return level_of(self.level).calculator

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the agent is offered."""
        return () if self.calculator is None else (self.calculator.tool,)

    @property
    def max_turns(self) -> int:
        return _TURNS_OF_ROWS if self.has_rows else level_of(self.level).max_turns

    def given(self) -> dict[str, Any]:
        """Return the keyword arguments that make the same options."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


KINDS = (*get_args(Kind), "symbolic")


def check_task(task: object, options: Options) -> None:
    """Check that an environment with these options can play `task`.

    Raises:
        EnvError: `task` cannot be played.
    """
    task = checked_task(task)
    data = task.data
    level = data.get("level", options.level)
    if level != options.level:
        raise EnvError(f"task {task.id} is of level {level}, not {options.level}")
    if not isinstance(data.get("question"), str) or data.get("kind") not in KINDS:
        raise EnvError(f"task {task.id}: expected question, answer and kind {KINDS}")
    answer, kind = data.get("answer"), data["kind"]
    if not isinstance(answer, str):
        raise EnvError(f"task {task.id}: answer {answer!r} is no text")
    if kind != "symbolic":
        if read_number(answer, kind) is None:
            raise EnvError(f"task {task.id}: {answer!r} is no {kind}")
        return
    try:
        check_gold(answer, data["question"])
    except Unreadable as error:
        raise EnvError(f"task {task.id}: the answer {answer!r} cannot be read: {error}") from error
