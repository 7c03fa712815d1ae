"""The import paths from before the package had folders, with a DeprecationWarning until 0.2.

`agentgym_rl.env` is now `agentgym_rl.gym.env`. Old modules that are imported already need no
finder: a small stand-in for each is put into `sys.modules`, and looks a name up where it is now.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_PACKAGE = "agentgym_rl"
_SMALL = ("order", "passive", "record", "rewards", "turn_limit", "wrapper")
MOVED = {
    "agent": "gym.agent",
    "asgi": "runtime.http_server",
    "batch": "core.batch",
    "check": "gym.check",
    "check.run": "gym.check.run",
    "data": "gym.data",
    "data.content": "gym.data.rows",
    "data.epochs": "gym.data.epochs",
    "data.fields": "gym.data.fields",
    "data.hub": "gym.data.readers",
    "data.index": "gym.data.index",
    "data.loader": "gym.data.epochs",
    "data.reader": "gym.data.readers",
    "data.refusal": "gym.data.fields",
    "data.rows": "gym.data.rows",
    "data.tasks": "gym.data.index",
    "engine": "core.engine",
    "env": "gym.env core.chat",
    "errors": "core.errors",
    "loading": "runtime.imports",
    "log": "runtime.log",
    "model": "models.resolve",
    "registry": "gym.registry",
    "sandbox": "gym.sandbox",
    "services": "gym.services",
    "specs": "gym.specs",
    "step_clock": "gym.step_clock",
    "sync_env": "gym.sync_env",
    "sync_gym": "gym.gymnasium",
    "sync_gym.env": "gym.gymnasium",
    "task": "core.task",
    "tool_env": "gym.tool_env",
    "tool_env.answers": "gym.tool_env.calls",
    "tool_env.calls": "gym.tool_env.calls",
    "tool_env.env": "gym.tool_env.env",
    "tool_env.schema": "gym.tool_env.schema gym.tool_env.calls",
    "trajectory": "core.trajectory",
    "verifier": "gym.verifier gym.services",
    "verifier.handle": "gym.services",
    "verifier.pool": "gym.verifier.pool",
    "vital": "runtime.frozen",
    "wrappers": "gym.wrappers",
    "wrappers.attempts": "gym.wrappers.attempts",
    "wrappers.timeout": "gym.wrappers.timeout",
    **{f"wrappers.{name}": "gym.wrappers.wrapper" for name in _SMALL},
}
"""The old modules, each with the modules that have its names now."""
_RENAMED = {"VerifierHandle": "Verifier"}


class _Moved(ModuleType):
    """A module under its old name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # programs that look through sys.modules read these
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        import warnings

        new_name = _RENAMED.get(name, name)
        moved = MOVED[self.__name__.removeprefix(f"{_PACKAGE}.")].split()
        homes = [f"{_PACKAGE}.{home}" for home in moved]
        for home in homes:
            value = getattr(import_module(home), new_name, self)
            if value is not self:
                break
        else:
            raise AttributeError(f"module {homes[0]!r}, once {self.__name__}, has no {name!r}")
        public = sys.modules[_PACKAGE]
        if new_name in public.__all__ and getattr(public, new_name) is value:
            home = _PACKAGE
        warnings.warn(
            f"{self.__name__}.{name} is now {home}.{new_name}; version 0.2 removes the old path",
            DeprecationWarning,
            stacklevel=2,
        )
        return value


def install() -> None:
    """Make the old modules importable."""
    for name in MOVED:
        sys.modules.setdefault(f"{_PACKAGE}.{name}", _Moved(f"{_PACKAGE}.{name}"))
