"""The search for an environment that can pay no reward: a `ToolEnv` without `finish`, in whose code
nothing calls `end`."""

from __future__ import annotations

import inspect
import re
import sys

from agentgym_rl.core import definition_of
from agentgym_rl.gym import ToolEnv

_PAYING = ("finish", "step", "end", "_finish", "_call")
_END = re.compile(r"""\.end\b|["']end["']""")


def never_pays(cls: object) -> str:
    """Return why the environments of a class can never pay; "" if they may."""
    if not isinstance(cls, type) or not issubclass(cls, ToolEnv):
        return ""
    if any(getattr(cls, name) is not getattr(ToolEnv, name) for name in _PAYING):
        return ""
    theirs = cls.__mro__[: cls.__mro__.index(ToolEnv)]
    if any(map(_calls_end, {each.__module__ for each in theirs})):
        return ""
    place = definition_of(cls)
    return (
        f"{cls.__name__}{f' ({place})' if place else ''} never pays: it has no `finish`, and none "
        "of its tools calls self.end(reward), so that every reward is 0 and nothing can be "
        "learned"
    )


def _calls_end(module: str) -> bool:
    """Return whether the code of a module calls `end`, or cannot be read."""
    try:
        return bool(_END.search(inspect.getsource(sys.modules[module])))
    except (KeyError, OSError, TypeError):
        return True
