"""Packages that come with the extra `hf`, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from agentgym_rl.errors import ConfigError


def require(module: str, purpose: str) -> Any:
    """
    Raises:
        ConfigError: `module` is not installed; says what to do.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ConfigError(
            f"{package} is needed {purpose}, and cannot be imported ({error}): "
            'pip install "agentgym-rl[hf]"'
        ) from error
