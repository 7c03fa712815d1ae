"""The folders that a wheel has inside of this package, and a clone beside it."""

from __future__ import annotations

from pathlib import Path

from agentgym_rl.core import ConfigError

_INSIDE = Path(__file__).parent
_CLONE = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "requirements")


def shipped(name: str) -> Path:
    """Return the folder with one of the names of `FOLDERS`.

    Raises:
        ConfigError: the installation has no such folder.
    """
    for place in (_INSIDE, _CLONE):
        if (place / name).is_dir():
            return place / name
    raise ConfigError(
        f"this installation has no folder {name}: neither {_INSIDE / name} nor {_CLONE / name} is "
        "there; install the package again, from its wheel or a clone"
    )
