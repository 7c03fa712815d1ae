"""The commands of `arl`: those of the kernel, of extensions, and of other packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentgym_rl.core import ConfigError, entry_points_of, extension_names, is_ours, load_extension
from agentgym_rl.core.extensions import shadowed

from .command import Command

GROUP = "commands"
_LAST = 10**9


@dataclass(frozen=True)
class Listed:
    """A named command, or the error with which it could not be loaded."""

    name: str
    command: Command | None
    error: str = ""

    @property
    def summary(self) -> str:
        """Return the line of the command in `arl --help`."""
        return f"BROKEN: {self.error}" if self.command is None else self.command.summary

    @property
    def group(self) -> str:
        """Return the heading of its line there."""
        return "broken commands" if self.command is None else self.command.group


def command_names() -> list[str]:
    """Return the names of all commands, without importing any."""
    return extension_names(GROUP)


def load_command(name: str) -> Command:
    """Import and return a command.

    Raises:
        ConfigError: it cannot be imported, or is not a `Command`.
    """
    return load_extension(GROUP, name, of=Command)


def all_commands() -> list[Listed]:
    """Import all commands, and return them in the order of `arl --help`."""

    def place(row: Listed) -> tuple[int, str]:
        return (_LAST if row.command is None else row.command.order, row.name)

    return sorted(map(_listed, command_names()), key=place)


def foreign_commands() -> list[Listed]:
    """Return the commands that other packages add."""
    points = entry_points_of(GROUP)
    names = (name for name in command_names() if name not in points or not is_ours(points[name]))
    return [_listed(name) for name in names]


def warnings(name: str | None = None) -> Iterator[str]:
    """Yield a sentence for each command, or each of this name, that is left out because its name
    is taken."""
    for point, winner in shadowed(GROUP):
        if name in (None, point.name):
            theirs, its = (it.dist.name if it.dist else it.value for it in (point, winner))
            yield (
                f"the command {point.name!r} of {theirs} ({point.value}) is left out: {its} has a "
                "command of that name"
            )


def _listed(name: str) -> Listed:
    try:
        return Listed(name, load_command(name))
    except ConfigError as error:
        return Listed(name, None, str(error))
