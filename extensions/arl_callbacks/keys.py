"""The key of callbacks, which this extension adds to `logging`."""

from __future__ import annotations

from pydantic import field_validator

from agentgym_rl.core import Section, is_function_path


class CallbackKeys(Section):
    """The callbacks of a run."""

    after = "trackers"

    callbacks: tuple[str, ...] = ()
    """The objects that are called at each step, episode and evaluation of a run, each as
    module:object (arl docs python#callbacks)."""

    @field_validator("callbacks")
    @classmethod
    def _are_paths(cls, callbacks: tuple[str, ...]) -> tuple[str, ...]:
        for path in callbacks:
            if not is_function_path(path):
                raise ValueError(f"expected objects as module:object, and {path!r} is none")
        return callbacks
