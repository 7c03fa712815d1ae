"""A file that is there once it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from agentgym_rl.core.errors import ConfigError


@contextlib.contextmanager
def new_file(path: Path, *, said: str) -> Iterator[TextIO]:
    """A file that has its name once it is whole; after a failure nothing is left of it.

    Raises:
        ConfigError: something is there already, or it cannot be written; `said` is what the user
            typed.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if os.path.lexists(path):
            raise ConfigError(f"{said}: it is there already; name a new file")
        file = part.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{said}: {error}") from error
    try:
        with file:
            yield file
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
