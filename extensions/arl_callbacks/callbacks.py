"""The callbacks of a run: each event is passed to the functions for it, one after the other.

    on_step(step, metrics)             a batch is trained and recorded; the next one waits
    on_episode(episode)                a training episode has ended
    on_evaluation(version, result)     a held-out evaluation has ended

A callback is an object with any of these methods, a function with one of these names, or a mapping
from these names to functions. Each function may be async. One that raises an error ends the run
with this error; one that returns or raises `StopTraining` ends it well after the batch in progress.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentgym_rl.core import ArlError, ConfigError, Trajectory, explain, is_mapping, near_names
from agentgym_rl.evaluate import EvalResult
from agentgym_rl.run import CALLBACKS, LivePart, TrainingRun
from agentgym_rl.runtime import import_object

from .keys import CallbackKeys

EVENTS: Mapping[str, str] = {
    "on_step": "step, metrics",
    "on_episode": "episode",
    "on_evaluation": "version, result",
}
"""The events, each with its arguments."""


class StopTraining(Exception):
    """The wish of a callback that the run ends: it returns or raises this, with the reason as a
    text. The batch in progress is trained and gets a checkpoint, from which the run can be resumed.
    """


class CallbackFailed(ArlError):
    """The error of a callback that raised one."""


class Callbacks(LivePart):
    """The part of a run that calls its callbacks."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._functions: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
        for title, callback in self._given():
            for event, function in _functions(title, callback).items():
                self._functions.setdefault(event, []).append((title, function))

    def _given(self) -> Iterator[tuple[str, Any]]:
        """Yield the callbacks of the program and of the configuration, with their titles."""
        for number, callback in enumerate(CALLBACKS.get()):
            yield f"callbacks[{number}]", callback
        for path in self.run.config.logging.part(CallbackKeys).callbacks:
            title, found = f"logging.callbacks {path!r}", import_object(path)
            try:
                yield title, found() if isinstance(found, type) else found
            except Exception as error:  # foreign code
                text = f"{title} cannot be made without arguments: {explain(error)}"
                raise ConfigError(text) from error

    async def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        await self._call("on_step", step, dict(metrics))

    async def ended(self, episode: Trajectory) -> None:
        await self._call("on_episode", episode)

    async def evaluated(self, version: int, result: EvalResult) -> None:
        await self._call("on_evaluation", version, result)

    async def _call(self, event: str, *about: object) -> None:
        """Call the functions of an event.

        Raises:
            CallbackFailed: one of them raised an error.
        """
        for title, function in self._functions.get(event, ()):
            try:
                answer = function(*about)
                if inspect.isawaitable(answer):
                    answer = await answer
            except StopTraining as stop:
                answer = stop
            except Exception as error:  # foreign code
                raise CallbackFailed(f"{title}, {event} raised {explain(error)}") from error
            if isinstance(answer, StopTraining) or answer is StopTraining:
                self._stop(f"{title}, {event}", answer)

    def _stop(self, title: str, stop: object) -> None:
        reason = str(stop) if isinstance(stop, StopTraining) else ""
        if not self.run.controller.stops:
            why = f": {reason}" if reason else ""
            self.run.progress.phase(f"{title} ends the run after this batch{why}")
        self.run.controller.stops = True


def _functions(title: str, callback: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of a callback by event.

    Raises:
        ConfigError: it has none, or one that does not take the arguments of its event.
    """
    if is_mapping(callback):
        found = dict(callback)
    elif inspect.isroutine(callback):
        found = {str(getattr(callback, "__name__", "")): callback}
    else:
        named = {name: getattr(callback, name) for name in dir(callback) if name.startswith("on_")}
        found = {name: it for name, it in named.items() if name in EVENTS or callable(it)}
    unknown = sorted(found.keys() - EVENTS.keys())
    if unknown or not found:
        near = [
            f"did you mean {it}? "
            for name in unknown[:1]
            for it in near_names(name, EVENTS, cutoff=0.5)
        ]
        why = f"{unknown[0]} is no event, {''.join(near)}" if unknown else ""
        raise ConfigError(
            f"{title} is {callback!r:.100}; {why}expected an object with methods "
            f"{', '.join(EVENTS)}, a function with one of these names, or "
            "{'on_step': function}"
        )
    for event, function in found.items():
        _check(f"{title}, {event}", function, EVENTS[event])
    return found


def _check(title: str, function: Any, gets: str) -> None:
    """Refuse what cannot be called with the arguments of an event."""
    if not callable(function):
        raise ConfigError(f"{title} is {function!r:.100}; expected a function of ({gets})")
    try:
        inspect.signature(function).bind(*gets.split(", "))
    except TypeError as error:
        takes = inspect.signature(function)
        raise ConfigError(f"{title} takes {takes}; expected a function of ({gets})") from error
    except ValueError:  # a function of C code need not have a signature
        return
