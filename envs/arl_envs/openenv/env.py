"""An environment behind an OpenEnv server, for chat agents; the server's JSON schema gives the form
of an action."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from agentgym_rl import ConfigError, Env, EnvError, InfraError, Message, Step, Task, ToolSpec
from agentgym_rl.core.chat import is_url
from agentgym_rl.gym.tool_env import listed, reply_to, text_of
from agentgym_rl.runtime.http_client import read_json

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

    If an action is one text, the reply is the action; else the agent calls the tool `act`, whose
    arguments are the fields of the server's action schema (`tool=True`: in any case). An action
    that the server refuses costs a turn. OpenEnv has no truncation: `done` terminates.
    `instructions` is the system message, `reset_options` go to the server's `reset`.

    Raises:
        ConfigError: `url` is no http(s) address.
    """

    max_turns = 50
    step_timeout_s = 60.0

    def __init__(
        self,
        *,
        url: str = "",
        instructions: str = "",
        reset_options: Mapping[str, Any] | None = None,
        tool: bool = False,
    ) -> None:
        if not is_url(url):
            raise ConfigError(
                f"url: got {url.rpartition('@')[2]!r}, expected the address of an OpenEnv server, "
                "without a user or password, as in --env openenv:http://localhost:8000"
            )
        self._url = url.rstrip("/")
        self._instructions = instructions
        self._reset_options = dict(reset_options or {})
        self._as_tool = tool
        self._form: ActionForm | None = None
        self._session: Session | None = None
        self._info: dict[str, Any] = {}
        self._invalid = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start the episode of `options["task"]`'s seed, or of `seed`.

        Raises:
            EnvError: the environment's own code raised, or the options are unknown.
            InfraError: the server failed, cannot be reached, or has no session left.
        """
        options = dict(options or {})
        task = options.pop("task", None)
        if options or not isinstance(task, Task | None):
            raise EnvError(f"reset options: got {sorted(options)}, task {task!r}; allowed: a task")
        seed = seed if task is None else task.seed
        data = self._reset_options | ({} if seed is None else {"seed": seed % _SEEDS})
        if self._form is None:
            self._form = form_of(await schema(self._url))
            by_tool = self._as_tool or self._form.text_field is None
            self.tools = (self._form.tool,) if by_tool else ()
        try:
            found = await self._call("reset", data)
        except BadAction as error:
            raise EnvError(f"reset at {self._url} with {data}: {error}") from error
        self._info = {} if task is None else {"task_id": task.id}
        self._invalid = 0
        first = [{"role": "system", "content": self._instructions}] if self._instructions else []
        said = {"role": "user", "content": self._said(found)}
        return [*first, said], dict(self._info)

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
        message = {"role": "user", "content": self._said(found)}
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
            replies.append(reply_to(call, self._said(found)))
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

    def _said(self, found: Mapping[str, Any]) -> str:
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

    async def _call(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a call in this instance's session, or in a new one after a failure."""
        if self._session is None:
            self._session = await Session.open(self._url)
        try:
            return await self._session.call(kind, data)
        except (BadAction, EnvError):
            raise
        except BaseException:  # also if cancelled: the answer to this call may still come
            session, self._session = self._session, None
            await session.close()
            raise


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
