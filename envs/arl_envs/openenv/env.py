"""An environment behind an OpenEnv server, for chat agents; the server's JSON schema gives the form
of an action."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentgym_rl import ConfigError, Env, EnvError, InfraError, Message, Step, Task, ToolSpec
from agentgym_rl.core import is_url
from agentgym_rl.gym.tool_env import listed, reply_to, text_of
from agentgym_rl.runtime import read_json

from .servers import line_here
from .session import BadAction, Session, schema

TOOL = "act"
METADATA = "metadata"
"""A field of every OpenEnv action and observation that is not for the agent."""


@dataclass(frozen=True, slots=True)
class ActionForm:
    """The form of an agent's actions: the text of a reply, or calls of a tool."""

    text_field: str | None
    """The field for the text of a reply; None: actions are calls of `tool`."""
    tool: ToolSpec


class _Schema(msgspec.Struct):
    """The part of an action's JSON schema that is read."""

    properties: dict[str, dict[str, Any]] = {}
    required: list[str] = []
    defs: dict[str, Any] | None = msgspec.field(name="$defs", default=None)
    description: Any = None


def form_of(schema: Mapping[str, Any]) -> ActionForm:
    """Return the text form if the only field (or required one) is a string, else the tool form.

    Raises:
        InfraError: it is no JSON schema of an object.
    """
    try:
        found = msgspec.convert(dict(schema), _Schema)
    except msgspec.ValidationError as error:
        raise InfraError(
            f"the server's schema of an action is no JSON schema of an object: {error}: "
            f"{schema!r:.200}"
        ) from error
    fields = {name: field for name, field in found.properties.items() if name != METADATA}
    required = [name for name in found.required if name in fields]
    only = required if len(required) == 1 else list(fields)
    is_text = len(only) == 1 and _is_string(fields[only[0]]) and len(required) <= 1
    parameters: dict[str, Any] = {"type": "object", "properties": fields, "required": required}
    if found.defs is not None:
        parameters["$defs"] = found.defs
    description = str(found.description or "Act in the environment.")
    function = {"name": TOOL, "description": description, "parameters": parameters}
    return ActionForm(only[0] if is_text else None, {"type": "function", "function": function})


def _is_string(field: Mapping[str, Any]) -> bool:
    return field.get("type") == "string" and "enum" not in field


_SEEDS = 2**31
"""The bound of seeds for other generators, which take smaller ones; a seed keeps its split."""


class OpenEnvEnv(Env):
    """An environment at `url`; each instance is a session of the server.

    Several servers of the same environment (`url` is a list, or has commas) share the episodes. If
    all their sessions are in use, `reset` waits for one, outside the limit of a step: until none
    has become free for `session_timeout_s`.

    If an action is one text, the reply is the action; else the agent calls the tool `act`, whose
    arguments are the fields of the server's action schema (`tool=True`: in any case). An action
    that the server refuses costs a turn. OpenEnv has no truncation: `done` terminates.
    `instructions` is the system message, `reset_options` go to the server's `reset`.

    Raises:
        ConfigError: `url` has no http(s) address, or one twice; or the timeout is no time.
    """

    max_turns = 50
    step_timeout_s = 60.0

    def __init__(
        self,
        *,
        url: str | Sequence[str] = "",
        session_timeout_s: float = 600.0,
        instructions: str = "",
        reset_options: Mapping[str, Any] | None = None,
        tool: bool = False,
    ) -> None:
        self._urls = _addresses(url)
        if not _is_time(session_timeout_s):
            raise ConfigError(
                f"session_timeout_s: got {session_timeout_s!r}, expected the longest wait for a "
                "free session in seconds, above 0"
            )
        self._session_timeout_s = session_timeout_s
        self._instructions = instructions
        self._reset_options = dict(reset_options or {})
        self._as_tool = tool
        self._form: ActionForm | None = None
        self._form_of: str = ""
        """The server from which the form of actions was read."""
        self._session: Session | None = None
        self._info: dict[str, Any] = {}
        self._invalid = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start the episode of `options["task"]`'s seed, or of `seed`.

        Raises:
            EnvError: the environment's own code raised, or the options are unknown.
            InfraError: a server failed, none can be reached, or no session became free.
            ConfigError: the servers have different actions.
        """
        options = dict(options or {})
        task = options.pop("task", None)
        if options or not isinstance(task, Task | None):
            raise EnvError(f"reset options: got {sorted(options)}, task {task!r}; allowed: a task")
        seed = seed if task is None else task.seed
        data = self._reset_options | ({} if seed is None else {"seed": seed % _SEEDS})
        try:
            found = await self._begin(data)
        except BadAction as error:
            where = ", ".join(self._urls)
            raise EnvError(f"reset at {where} with {data}: {error}") from error
        self._info = {} if task is None else {"task_id": task.id}
        self._invalid = 0
        first = [{"role": "system", "content": self._instructions}] if self._instructions else []
        message = {"role": "user", "content": self._text_of(found)}
        return [*first, message], dict(self._info)

    async def step(self, action: Message) -> Step:
        """Take the action, or the calls of `act` one after the other.

        Raises:
            EnvError: there is no episode, or the environment's own code raised.
            InfraError: the server or the connection failed.
        """
        if self._form is None or self._session is None:
            raise EnvError("step without an episode: call reset first")
        calls = action.get("tool_calls")
        if calls:
            return await self._take_calls(listed(calls))
        if self.tools or self._form.text_field is None:
            reply = {"role": "user", "content": f"Call the tool {TOOL}."}
            return self._step([reply], 0.0, False, ["no tool call"])
        try:
            found = await self._call("step", {self._form.text_field: text_of(action)})
        except BadAction as error:
            return self._step([{"role": "user", "content": f"error: {error}"}], 0.0, False, [error])
        message = {"role": "user", "content": self._text_of(found)}
        return self._step([message], _reward(found), _done(found), [])

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _take_calls(self, calls: list[Mapping[str, Any]]) -> Step:
        replies: list[Message] = []
        problems: list[Any] = []
        reward, done = 0.0, False
        for call in calls:
            try:
                if done:
                    raise BadAction("the episode is over")
                found = await self._call("step", self._arguments(call))
            except BadAction as error:
                problems.append(error)
                replies.append(reply_to(call, f"error: {error}"))
                continue
            reward, done = reward + _reward(found), _done(found)
            replies.append(reply_to(call, self._text_of(found)))
        return self._step(replies, reward, done, problems)

    def _arguments(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not self.tools or not isinstance(function, Mapping) or function.get("name") != TOOL:
            raise BadAction(f"the only tool is {TOOL}" if self.tools else "there are no tools")
        arguments = function.get("arguments")
        try:
            found = read_json(arguments) if isinstance(arguments, str) else arguments
        except ValueError as error:
            raise BadAction("arguments are no JSON") from error
        if not isinstance(found, Mapping):
            raise BadAction("arguments are no JSON object")
        return found

    def _text_of(self, found: Mapping[str, Any]) -> str:
        """Return an observation as text: a single text unchanged, several fields on a line each.

        The `metadata` of an observation is not for the agent; it goes to `info`.
        """
        observation = found.get("observation")
        self._info.pop(METADATA, None)
        if not isinstance(observation, Mapping):
            return (
                "" if observation is None else _whole(json.dumps(observation, ensure_ascii=False))
            )
        fields = dict(observation)
        if metadata := fields.pop(METADATA, None):
            self._info[METADATA] = metadata
        values = list(fields.values())
        if len(values) == 1 and isinstance(values[0], str):
            return _whole(values[0])
        return _whole("\n".join(f"{name}: {_inline(value)}" for name, value in fields.items()))

    def _step(self, replies: list[Message], reward: float, done: bool, problems: list[Any]) -> Step:
        self._invalid += len(problems)
        info = {**self._info, "metrics": {"invalid_actions": self._invalid}}
        if problems:
            info["invalid_action"] = "; ".join(map(str, problems))
        if done:
            info["stop_reason"] = "done"
        return Step(replies, reward, done, False, info)

    async def _begin(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Reset this instance's session, or begin a new one."""
        if self._session is not None:
            return await self._call("reset", data)
        self._session, found = await line_here().begin(
            self._urls, data, timeout_s=self._session_timeout_s, prepare=self._learn_form
        )
        return found

    async def _learn_form(self, url: str) -> ActionForm:
        """Read the form of actions at a server."""
        if self._form is None or self._form_of != url:
            self._form, self._form_of = form_of(await schema(url)), url
        by_tool = self._as_tool or self._form.text_field is None
        self.tools = (self._form.tool,) if by_tool else ()
        return self._form

    async def _call(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a call in this instance's session, which ends if the call fails."""
        assert self._session is not None
        try:
            return await self._session.call(kind, data)
        except (BadAction, EnvError):
            raise
        except BaseException:  # also if cancelled: the answer to this call may still come
            session, self._session = self._session, None
            await session.close()
            raise


def _addresses(url: str | Sequence[str]) -> Sequence[str]:
    found = url.split(",") if isinstance(url, str) else list(url)
    addresses = [each.strip().rstrip("/") if isinstance(each, str) else each for each in found]
    if not addresses or not all(isinstance(each, str) and is_url(each) for each in addresses):
        shown = [each.rpartition("@")[2] if isinstance(each, str) else each for each in addresses]
        raise ConfigError(
            f"url: got {', '.join(map(repr, shown))}, expected the address of an OpenEnv server, "
            "without a user or password, as in --env openenv:http://localhost:8000, or several "
            "with commas between them"
        )
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"url: got {', '.join(addresses)}, expected each server once")
    return addresses


def _is_time(seconds: Any) -> bool:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return is_number and 0 < seconds <= sys.float_info.max


def _reward(found: Mapping[str, Any]) -> float:
    reward = found.get("reward")
    if reward is None:
        return 0.0
    if not isinstance(reward, int | float) or not abs(reward) <= sys.float_info.max:
        raise InfraError(f"the server's reward is no finite number: {reward!r:.80}")
    return float(reward)


def _done(found: Mapping[str, Any]) -> bool:
    done = found.get("done")
    if not isinstance(done, bool | None):
        raise InfraError(f"the server's done is neither true nor false: {done!r:.80}")
    return bool(done)


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _whole(text: str) -> str:
    """Return a text without lone surrogates, which JSON can carry and tokenizers cannot."""
    return text.encode("utf-8", "replace").decode()
