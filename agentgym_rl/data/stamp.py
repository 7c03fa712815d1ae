"""Whether a file is still the one whose rows were counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentgym_rl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size and time of a file."""

    path: Path
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """As it is now; raises OSError where there is none."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """
        Raises:
            ConfigError: the file has changed since, or is gone.
        """
        try:
            same = Stamp.of(self.path) == self
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read any more: {error}") from error
        if not same:
            raise ConfigError(f"{self.path} has changed since its rows were counted: start again")
