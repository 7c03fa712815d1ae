"""The replies of a trial: the messages of the environment's own solution if there is one, or else a
call of each tool in turn, and then a short text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from arl_endpoints.upstream import Upstream

from agentgym_rl.config import EndpointConfig
from agentgym_rl.core import is_list, is_mapping
from agentgym_rl.gateway import checked_messages

MOST_REQUESTS = 12
_VALUES: Mapping[str, Any] = {
    "string": "1",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
}


class TrialConfig(EndpointConfig):
    """The endpoint of a trial, which imposes no parameters."""

    type: str = "trial"
    base_url: str = ""
    api_key_env: str = ""


class Script(Upstream):
    """The model of a trial; `solution` returns the solution of the present episode, if known."""

    def __init__(
        self, model: str, *, text: str, solution: Callable[[], Sequence[Mapping[str, Any]] | None]
    ) -> None:
        super().__init__(TrialConfig(), model=model, api_key="", timeout_s=60.0)
        self._text, self._solution = text, solution
        self.begin()

    def begin(self) -> None:
        """Begin the script for another episode."""
        self.num_requests = 0
        self.ended = asyncio.Event()
        """The event of a request after the script."""

    async def _close(self) -> None:
        return None

    def _secrets(self) -> list[str]:
        return []

    def _what_to_check(self) -> str:
        return ""

    async def whole(self, request: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        message = self._next(request)
        choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
        completion = self._about("chat.completion") | {"choices": [choice], "usage": _USAGE}
        return msgspec.json.encode(completion), completion

    async def events(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        message = self._next(request)
        about = self._about("chat.completion.chunk")
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or [])]
        delta = {**message, "tool_calls": calls} if calls else message
        yield about | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        end = {"index": 0, "delta": {}, "finish_reason": _finish(message)}
        yield about | {"choices": [end], "usage": _USAGE}

    def _about(self, kind: str) -> dict[str, Any]:
        id = f"trial-{self.num_requests}"
        return {"id": id, "object": kind, "created": 0, "model": self.model}

    def _next(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next reply; refuse messages that the gateway would refuse."""
        checked_messages(request.get("messages"))
        number, self.num_requests = self.num_requests, self.num_requests + 1
        if self.num_requests > MOST_REQUESTS:
            self.ended.set()
        solution = None if _demands(request) else self._solution()
        if solution is not None and number < len(solution):
            return {"content": None, **dict(solution[number])}
        tool = _tool_of(request, number)
        if tool is not None:
            return {"role": "assistant", "content": None, "tool_calls": [call_of(tool)]}
        return {"role": "assistant", "content": self._text_of(request)}

    def _text_of(self, request: Mapping[str, Any]) -> str:
        """Return a text of the form that the request demands."""
        form = request.get("response_format")
        kind = form.get("type") if is_mapping(form) else None
        if is_mapping(form) and kind == "json_schema":
            return json.dumps(value_of(form["json_schema"].get("schema") or {"type": "object"}))
        return "{}" if kind == "json_object" else self._text


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _demands(request: Mapping[str, Any]) -> bool:
    """Return whether a request demands a form of its reply."""
    form = request.get("response_format")
    is_form = is_mapping(form) and form.get("type") in ("json_schema", "json_object")
    return is_form or request.get("tool_choice") not in (None, "auto")


def _tool_of(request: Mapping[str, Any], number: int) -> Mapping[str, Any] | None:
    """Return the tool that reply `number` calls: the demanded one, or else each of them once."""
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not is_list(tools) or not tools or choice == "none":
        return None
    if is_mapping(choice) and is_mapping(function := choice.get("function")):
        named = (it for it in tools if it.get("function", it).get("name") == function.get("name"))
        return next(named, None)
    if number < len(tools) or choice == "required":
        return tools[number % len(tools)]
    return None


def _finish(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def call_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of a tool, with arguments of the types in its schema."""
    function = tool.get("function", tool)
    arguments = value_of(function.get("parameters") or {"type": "object"})
    name = str(function.get("name"))
    return {
        "id": f"call_{name}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def value_of(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a JSON schema, of its required properties alone."""
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return value_of(options[0])
    properties = schema.get("properties")
    if is_mapping(properties):
        required = schema.get("required") or ()
        return {name: value_of(properties[name]) for name in required if name in properties}
    kind = schema.get("type")
    return _VALUES.get(kind[0] if is_list(kind) else str(kind), "1")
