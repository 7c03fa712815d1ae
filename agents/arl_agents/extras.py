"""The import of optional packages when an agent is made, so that a missing one is reported before
anything starts."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from agentgym_rl import ConfigError
from agentgym_rl.core import install_command


def import_extra(module: str, *, extra: str, needed_by: str) -> ModuleType:
    """Import and return a module.

    Raises:
        ConfigError: it is not installed, or cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{needed_by} needs the package {module} ({error}): {install_command(extra)}"
        ) from error
