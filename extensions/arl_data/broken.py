"""The broken lines of a file, of which the first is named and all are counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentgym_rl.core import ConfigError

_LISTED = 5
"""The number of further broken lines whose numbers are listed."""


@dataclass(slots=True)
class BrokenLines:
    """The errors of a file's lines so far."""

    first: str = ""
    numbers: list[int] = field(default_factory=list[int])
    """The numbers of the broken lines after the first one."""

    def add(self, number: int, error: str) -> None:
        """Add the error of a line; `error` begins with the file and the number."""
        if self.first:
            self.numbers.append(number)
        else:
            self.first = error

    def check(self) -> None:
        """Refuse a file with broken lines.

        Raises:
            ConfigError: there is one; the message has the first error and the number of all.
        """
        if not self.first:
            return
        if not self.numbers:
            raise ConfigError(self.first)
        more = ", ..." if len(self.numbers) > _LISTED else ""
        lines = ", ".join(map(str, self.numbers[:_LISTED])) + more
        raise ConfigError(f"{self.first}; {len(self.numbers) + 1} broken lines, also {lines}")
