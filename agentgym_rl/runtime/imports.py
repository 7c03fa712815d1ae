"""The import of objects that a user names as `module:attr`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from agentgym_rl.core.errors import ConfigError


def import_object(path: str) -> Any:
    """Return the object named `module:attr`; raise ConfigError when it cannot be imported."""
    module, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for name in attribute.split("."):
            target = getattr(target, name)
    except (Exception, SystemExit) as error:  # foreign code runs: it can raise anything
        raise ConfigError(
            f"cannot import {path!r} (module:attr): {type(error).__name__}: {error}"
        ) from error
    return target


def check_findable(path: str, key: str) -> None:
    """Refuse a `module:attr` whose package is not installed, without importing anything.

    Raises:
        ConfigError: names `key`, and where a module has to be.
    """
    package = path.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{key}={path!r}: no module {package!r} in the current folder, in PYTHONPATH or among "
            "the installed packages"
        )
