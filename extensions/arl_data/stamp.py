"""The stamp that detects a file's changes after its rows were counted; and the import of packages
that read files, with the command that installs them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError, install_command


@dataclass(frozen=True, slots=True)
class Stamp:
    """The size and modification time of a file."""

    path: Path
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Return the current stamp of a file; raise OSError if there is no file."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Compare the stamp with the file.

        Raises:
            ConfigError: the file has changed since, or is gone.
        """
        try:
            same = Stamp.of(self.path) == self
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read any more: {error}") from error
        if not same:
            raise ConfigError(f"{self.path} has changed since its rows were counted: start again")


def require(module: str, purpose: str) -> Any:
    """Import and return `module`.

    Raises:
        ConfigError: `module` cannot be imported; the message has the command to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ConfigError(
            f"{package} is needed {purpose}, and cannot be imported ({error}): "
            f"{install_command('hf')}"
        ) from error
