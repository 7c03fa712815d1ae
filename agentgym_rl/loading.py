"""Importing what a user names as `module:attr`."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import ConfigError


def import_object(path: str) -> Any:
    """What `module:attr` names; raises ConfigError when it cannot be imported."""
    module, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for name in attribute.split("."):
            target = getattr(target, name)
    except (Exception, SystemExit) as error:  # foreign code runs: anything can come out
        raise ConfigError(
            f"cannot import {path!r} (module:attr): {type(error).__name__}: {error}"
        ) from error
    return target
