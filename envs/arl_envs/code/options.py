"""The user's options of the code environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from .families import FAMILIES, Family, Topic
from .generated import Form

Reward = Literal["all", "fraction"]
_LEAST = {"num_hidden": 10, "tool_output_chars": 80}


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword arguments of the environment (`--env.options.reward=fraction`)."""

    reward: Reward = "all"
    """The reward. `all`: 1 if every hidden test passes, else 0. `fraction`: the share of tests
    passed beyond those that the best constant answer, or an echo of the input, would pass."""
    tool: bool = True
    """Whether there is a tool that runs programs."""
    tool_output_chars: int = 1000
    """The most characters of a program's output that the agent sees; the middle is left out."""
    num_hidden: int = 20
    """The number of hidden tests of a generated task."""
    topics: Sequence[str] = ()
    """The topics of generated tasks; empty: all."""
    families: Sequence[str] = ()
    """The families of generated tasks; empty: all."""
    form: Literal["call", "text", "any"] = "any"
    """The form of generated tasks: a function to write, or a program that reads standard input."""
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The source of tasks in a file or data set instead of generated ones: the arguments of
    `rows.row_tasks`, for example `--env.options.rows.path=FILE`."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TypeError(f"{name}: got {value!r}, expected a whole number from {least}")
        for name, allowed in (
            ("reward", get_args(Reward)),
            ("form", (*get_args(Form), "any")),
        ):
            if getattr(self, name) not in allowed:
                raise TypeError(f"{name}: got {getattr(self, name)!r}; allowed: {allowed}")
        if not isinstance(self.tool, bool):
            raise TypeError(f"tool: got {self.tool!r}; allowed: true, false")
        _check_names("topics", self.topics, get_args(Topic))
        _check_names("families", self.families, FAMILIES)
        self._check_source()

    def _check_source(self) -> None:
        if not isinstance(self.rows, Mapping):
            raise TypeError(f'rows: got {self.rows!r}, expected a table such as {{"path": FILE}}')
        about_generated = ("topics", "families", "form", "num_hidden")
        values = {name: getattr(self, name) for name in about_generated}
        chosen = [name for name, value in values.items() if value and value != _DEFAULTS[name]]
        if self.rows and chosen:
            raise TypeError(f"{', '.join(chosen)}: only for generated tasks, not for rows")
        if not self.rows and not self.chosen_families():
            raise TypeError("no family is of these topics and these families")

    def chosen_families(self) -> list[Family]:
        """Return the families that generated tasks are taken from."""
        return [
            family
            for family in FAMILIES.values()
            if (not self.topics or family.topic in self.topics)
            and (not self.families or family.name in self.families)
        ]


def _check_names(what: str, names: Any, known: Any) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f'{what}: got {names!r}, expected a list such as ["{next(iter(known))}"]')
    for name in names:
        if name not in known:
            raise TypeError(f"{what}: there is no {name!r}; there are {', '.join(known)}")


_DEFAULTS = {each.name: each.default for each in fields(Options)}
