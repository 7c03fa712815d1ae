"""The base class of environments with tools: tools are methods; `begin` and `finish` are the only
other hooks."""

from __future__ import annotations

import asyncio
import inspect
import random
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

from agentgym_rl.core import (
    ConfigError,
    EnvError,
    Message,
    Task,
    checked_task,
    definition_of,
    first_task,
)
from agentgym_rl.gym.env import Env, Step
from agentgym_rl.gym.sandbox import SandboxBackend

from .calls import BadCall, Call, answer_calls, text_of
from .schema import Tool, is_tool

_call_number: ContextVar[int] = ContextVar("_call_number", default=0)
"""The number, in its episode, of the call that runs in this context; concurrent calls differ."""


class BadResult(EnvError, TypeError):
    """The error of a `finish` that returned no reward and no Step."""


class ToolEnv(Env):
    """A base class: write the tools as methods decorated with `@tool`, and `begin` and `finish`.

    A message with tool calls is answered by tool messages, one per call. The error of a call is in
    its message, which starts with "error:", and in `info["tool_errors"]`. The text of a message
    without calls is passed to `finish`. `info["metrics"]` counts `tool_calls` and `tool_errors`.

    Tools end an episode by `self.end(reward)`. Exceptions of tools become tool messages, except
    InfraError, and errors for a lack of memory, handles, disk or a connection, which become
    InfraError: neither the agent nor the tool causes them.

    >>> import asyncio
    >>> from agentgym_rl import ToolEnv, make, tool
    >>> class Shop(ToolEnv):
    ...     def begin(self, task):
    ...         return "Buy a lamp."
    ...     @tool
    ...     def buy(self, item: str) -> str:
    ...         self.end(float(item == "lamp"))
    ...         return "bought"
    >>> call = {"id": "1", "function": {"name": "buy", "arguments": '{"item": "lamp"}'}}
    >>> async def main():
    ...     env = Shop()
    ...     await env.reset(seed=1)
    ...     return await env.step({"role": "assistant", "tool_calls": [call]})
    >>> asyncio.run(main()).reward
    1.0

    Raises:
        TypeError: at the class definition: two tools share a name, or a method is not a valid tool.
    """

    max_calls_per_message: ClassVar[int] = 32
    max_concurrent_calls: ClassVar[int] = 8
    """The maximum number of concurrent calls of one message; calls of plain `def` tools run one by
    one."""

    task: Task
    """The task of the episode; set from `begin` on."""
    random: random.Random
    """The random generator, newly seeded with each task; set from `begin` on."""
    sandboxes: SandboxBackend | None = None
    """The started sandboxes; set from `begin` on if `needs_sandboxes`."""
    verifier: Any = None
    """The run's `VerifierPool`; set from `begin` on if `uses_verifier`. If it is None,
    `Verifier(self.verifier)` starts a pool of its own, which `close` must close."""

    _all_tools: ClassVar[Mapping[str, Tool]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._all_tools = _tools_of(cls)
        if "tools" not in vars(cls):
            cls.tools = tuple(found.spec for found in cls._all_tools.values())

    @abstractmethod
    def begin(self, task: Task) -> str | list[Message] | Awaitable[str | list[Message]]:
        """Set up the episode and return the first messages, or the text of a single one of the
        user. May be `async def`."""

    def finish(self, text: str) -> float | Step | Awaitable[float | Step]:
        """Return the result of a message without tool calls: a reward, which ends the episode, or a
        full Step.

        May be `async def`. The default ends the episode without a reward.
        """
        return 0.0

    def task_options(self) -> Mapping[str, Any]:
        """Return the environment's own options for `task_source`, for a `reset` without a task."""
        return {}

    def use_tools(self, names: Iterable[str]) -> None:
        """Offer only the tools with these names, in this order.

        Raises:
            ConfigError: there is no such tool.
        """
        names = list(names)
        if unknown := [name for name in names if name not in self._all_tools]:
            raise ConfigError(
                f"{type(self).__name__} has no tools {unknown}; it has {list(self._all_tools)}"
            )
        self.tools = tuple(self._all_tools[name].spec for name in names)

    def end(self, reward: float, **info: Any) -> None:
        """End the episode with the answers to this message; a tool calls this method.

        If several tools call it, the first in the order of the calls counts, regardless of which
        finishes first. Calls that have not begun are then answered with an error, and not run.
        """
        number = _call_number.get()
        if self._ended is None or number < self._ended[0]:
            self._ended = (number, reward, info)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start `options["task"]`, or else the first training task of `seed`.

        `options["sandboxes"]` and `options["verifier"]` become `self.sandboxes` and
        `self.verifier`.

        Raises:
            EnvError: an option is unknown, the task is not a Task, or sandboxes are needed and
                missing.
        """
        options = dict(options or {})
        task = options.pop("task", None)
        self.sandboxes = options.pop("sandboxes", None)
        self.verifier = options.pop("verifier", None)
        if options:
            allowed = "task, sandboxes, verifier"
            raise EnvError(f"unknown reset options {sorted(options)}; allowed: {allowed}")
        if self.needs_sandboxes and self.sandboxes is None:
            raise EnvError(
                "options['sandboxes']: got none, expected a started SandboxBackend: "
                "async with agentgym_rl.make_sandbox('local') as sandboxes"
            )
        if task is None:
            seed = random.getrandbits(53) if seed is None else seed
            read = partial(type(self).task_source, "train", seed=seed, **self.task_options())
            task = first_task(await asyncio.to_thread(read))
        task = checked_task(task)
        self._playing = False
        self.task, self.random = task, random.Random(task.seed)
        self._tool_calls = self._tool_errors = self._begun = 0
        self._ended: tuple[int, float, dict[str, Any]] | None = None
        begun = self.begin(task)
        messages = await begun if inspect.isawaitable(begun) else begun
        self._playing = True
        text: list[Message] = [{"role": "user", "content": messages}]
        return text if isinstance(messages, str) else messages, {"task_id": task.id}

    _playing = False

    async def step(self, action: Message) -> Step:
        """Execute the tool calls of `action`, or pass its text to `finish`.

        Raises:
            EnvError: there is no episode: before `reset`, or after its end.
            InfraError: a tool raised it.
        """
        if not self._playing:
            raise EnvError("step without an episode: call reset first")
        calls = action.get("tool_calls")
        step = await (self._call(calls) if calls else self._finish(text_of(action)))
        self._playing = not (step.terminated or step.truncated)
        return step

    async def close(self) -> None:
        """Release the resources of `begin`; an override must call this method."""
        self._playing = False

    async def _call(self, calls: Any) -> Step:
        answered = await answer_calls(
            calls,
            self._run,
            max_calls=self.max_calls_per_message,
            max_concurrent=self.max_concurrent_calls,
        )
        self._tool_calls += len(answered.messages)
        self._tool_errors += len(answered.errors)
        errors = {"tool_errors": answered.errors} if answered.errors else {}
        if self._ended is None:
            return Step(answered.messages, 0.0, False, False, self._info() | errors)
        _, reward, info = self._ended
        info = self._info({"stop_reason": "tool"} | info) | errors
        return Step(answered.messages, reward, True, False, info)

    def _run(self, call: Call) -> Any:
        offered = [each["function"]["name"] for each in self.tools]
        if call.name not in offered:
            raise BadCall(f"no such tool; expected one of: {', '.join(offered) or 'none'}")
        if self._ended is not None:
            raise BadCall("not run: a call before it has ended the episode")
        found = self._all_tools[call.name]
        arguments = found.read(call.arguments)
        self._begun += 1
        _call_number.set(self._begun)
        return found.function(self, **arguments)

    async def _finish(self, text: str) -> Step:
        finished = self.finish(text)
        if inspect.isawaitable(finished):
            finished = await finished
        if not isinstance(finished, Step):
            if not hasattr(finished, "__float__"):  # numbers, those of numpy and torch included
                place = definition_of(self.finish)
                raise BadResult(
                    f"{type(self).__name__}.finish returned {finished!r:.200}, expected a number, "
                    f"the reward, or a Step{f' ({place})' if place else ''}"
                )
            return Step([], finished, True, False, self._info({"stop_reason": "answer"}))
        ended = {"stop_reason": "answer"} if finished.terminated else {}
        return finished._replace(info=self._info(ended | finished.info))

    def _info(self, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
        info = dict(info or {})
        counted = {"tool_calls": self._tool_calls, "tool_errors": self._tool_errors}
        metrics = counted | info.pop("metrics", {})
        return {"task_id": self.task.id, "metrics": metrics, **info}


def _tools_of(cls: type) -> dict[str, Tool]:
    """Return the tools by name, those of base classes first.

    A method that overrides a tool without being a tool removes it."""
    methods: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        methods |= {
            name: value for name, value in vars(each).items() if name in methods or is_tool(value)
        }
    tools: dict[str, Tool] = {}
    for method, value in methods.items():
        if not is_tool(value):
            continue
        found = Tool.of(value, method=True)
        if (other := tools.get(found.name)) and other.function is not found.function:
            raise TypeError(
                f"{cls.__name__}: the methods {other.function.__name__} and {method} are both the "
                f"tool {found.name!r}; give one of them another name"
            )
        tools[found.name] = found
    return tools
