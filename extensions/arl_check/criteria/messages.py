"""The criteria for an environment's messages: valid in any chat API, and only new ones.

The formats are those of OpenAI's chat API. A problem is returned as a sentence; "": there is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from agentgym_rl.core import is_list, is_mapping
from arl_check.report import NotJudged, Violation, criterion
from arl_check.subject import Play, Subject

ROLES = ("system", "developer", "user", "assistant", "tool")
_PARTS = {"text": "text", "image_url": "image_url", "input_audio": "input_audio", "file": "file"}
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def json_problem(value: Any) -> str:
    """Return the reason why `value` cannot be sent as JSON in UTF-8."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError as error:
        return f"no Unicode text: {error.object[error.start : error.end]!r} is a lone surrogate"
    except (TypeError, ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return "" if json.loads(text) == value else "JSON changes it: keys must be text, no tuples"


def messages_problem(messages: Iterable[Any], roles: Sequence[str] = ROLES) -> str:
    """Return the fault of the first message that is not a valid message of one of `roles`."""
    for index, message in enumerate(messages):
        if problem := message_problem(message, roles):
            return f"message {index}: {problem} (it is {message!r:.120})"
    return ""


def message_problem(message: Any, roles: Sequence[str]) -> str:
    """Return the fault of a message."""
    if not is_mapping(message):
        return f"got {type(message).__name__}, expected a mapping"
    role = message.get("role")
    if role not in roles:
        return f"role {role!r}; allowed: {', '.join(roles)}"
    if problem := json_problem(dict(message)):
        return problem
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return f"tool_call_id {message.get('tool_call_id')!r}; expected the id of a call"
    return _content_problem(message.get("content"), optional=role == "assistant")


def _content_problem(content: Any, *, optional: bool) -> str:
    if isinstance(content, str) or (content is None and optional):
        return ""
    if not is_list(content):
        return f"content {content!r:.60}; expected text or a list of parts"
    for part in content:
        kind = part.get("type") if is_mapping(part) else None
        if kind not in _PARTS or _PARTS[kind] not in part:
            return f"content part {part!r:.60}; expected one with a type of {', '.join(_PARTS)}"
        if kind == "text" and not isinstance(part["text"], str):
            return f"content part {part!r:.60}; expected text as its text"
    return ""


def tools_problem(tools: Any) -> str:
    """Return the fault of the tools that an environment offers."""
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        return f"env.tools is {type(tools).__name__}, expected a list of function schemas"
    names: set[str] = set()
    for index, tool in enumerate(cast(Sequence[Any], tools)):
        if problem := _tool_problem(tool):
            return f"tool {index}: {problem}"
        name = tool["function"]["name"]
        if name in names:
            return f"tool {index}: there are two called {name!r}"
        names.add(name)
    return ""


def _tool_problem(tool: Any) -> str:
    form = 'expected {"type": "function", "function": {"name", "description", "parameters"}}'
    if not is_mapping(tool) or tool.get("type") != "function":
        return f"got {tool!r:.80}, {form}"
    function = tool.get("function")
    if not is_mapping(function):
        return f"function is {function!r:.60}, {form}"
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"name {name!r}; allowed: 1 to 64 of a-z, A-Z, 0-9, _ and -"
    if not isinstance(function.get("description", ""), str):
        return f"{name}: description is {function['description']!r:.60}, expected text"
    if problem := json_problem(dict(tool)):
        return f"{name}: {problem}"
    parameters = function.get("parameters", {"type": "object"})
    if not is_mapping(parameters) or parameters.get("type", "object") != "object":
        return f'{name}: parameters {parameters!r:.80}; expected a schema of type "object"'
    return f"{name}: {problem}" if (problem := _schema_problem(parameters, "parameters")) else ""


def _schema_problem(schema: Any, where: str) -> str:
    """Return the fault of the JSON Schema keywords that chat templates and servers read."""
    if isinstance(schema, bool):
        return ""
    if not is_mapping(schema):
        return f"{where} is {schema!r:.60}, expected a JSON Schema"
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _TYPES:
            return f"{where} has type {kind!r}; allowed: {', '.join(_TYPES)}"
    if not is_list(schema.get("enum", [])):
        return f"{where}.enum is no list"
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not is_mapping(properties) or not is_list(required):
        return f"{where}: properties must be a table and required a list"
    if missing := [name for name in required if name not in properties]:
        return f"{where} requires {missing}, which properties do not have"
    inner = [(f"{where}.{name}", each) for name, each in properties.items()]
    inner += [(f"{where}.items", schema["items"])] if "items" in schema else []
    return next((p for at, each in inner if (p := _schema_problem(each, at))), "")


_IN_STEPS = ("system", "developer", "user", "tool", "assistant")  # assistant: `new-messages`


@criterion(
    "first-messages",
    "reset's messages are valid OpenAI chat messages, and JSON",
    fix='say {"role": "system" | "user", "content": text}; text must be valid Unicode',
    needs=("reset-tuple",),
)
async def first_messages(subject: Subject) -> None:
    for play in await subject.plays():
        if problem := messages_problem(play.first or ()):
            raise Violation(f"task {play.task.id}: {problem}")


@criterion(
    "tools",
    "tools are OpenAI function schemas with valid JSON Schema as parameters",
    fix="agentgym_rl.ToolEnv makes schemas from type hints; by hand: a name, a description, and "
    'parameters of type "object" whose required names are all in properties',
    needs=("reset-tuple",),
)
async def tools(subject: Subject) -> None:
    for play in await subject.plays():
        if problem := tools_problem(play.env.tools):
            raise Violation(problem)


@criterion(
    "observations",
    "step's messages are valid OpenAI messages, and JSON, whatever the action is",
    fix="make content text (str(…), repr(…) or ascii(…) of what the model sent: it may hold lone "
    "surrogates); a tool message needs the tool_call_id of its call, as text",
    needs=("step-tuple",),
)
async def observations(subject: Subject) -> None:
    for play in await subject.plays():
        for raw in play.raw_steps:
            if problem := messages_problem(raw[0], _IN_STEPS):
                raise Violation(f"{play}: {problem}")


@criterion(
    "tool-results",
    "every tool call is answered by one tool message with its id, in order",
    fix="answer each of action['tool_calls'], unknown tools and bad arguments included, with "
    '{"role": "tool", "tool_call_id": call["id"], "content": …}, or end the episode',
    needs=("tools", "observations"),
)
async def tool_results(subject: Subject) -> None:
    called = 0
    for play in await subject.plays():
        if not play.env.tools:
            raise NotJudged("the environment offers no tools")
        if play.unsendable:
            raise Violation(f"{play}: {play.unsendable}", fix=_SENDABLE)
        for action, step in zip(play.actions, play.steps, strict=False):
            got = [m.get("tool_call_id") for m in step.observation if m.get("role") == "tool"]
            wanted = _ids(action)
            called += len(wanted or ())
            if wanted is None or got == wanted or (not got and step.terminated):
                continue
            raise Violation(f"{play}: calls {wanted!r:.200} were answered as {got!r:.200}")
    _check_failures(await subject.plays())
    if not called:
        raise NotJudged("no agent called a tool")


def _check_failures(plays: Sequence[Play]) -> None:
    """Refuse a tool whose calls have all raised an exception that is no ToolError."""
    ran = set[str]().union(*(play.tools_that_ran for play in plays))
    for play in plays:
        for tool, error in play.tool_failures.items():
            if tool not in ran:
                raise Violation(
                    f"{play}: tool {tool!r} raised {error}; every call failed", fix=_WORKING
                )


_WORKING = "correct the tool; a fault of the arguments is a ToolError(text), which the agent reads"
_SENDABLE = "return text from the tool, such as str(result), or what pydantic can write as JSON"


def _ids(action: Mapping[str, Any]) -> list[str] | None:
    """Return the ids of the action's tool calls; None if any call is malformed."""
    calls: Any = action.get("tool_calls") or []
    if not is_list(calls) or not all(is_mapping(call) for call in calls):
        return None
    ids = [call.get("id") for call in calls]
    well = all(isinstance(id, str) and id for id in ids) and len(set(ids)) == len(ids)
    return ids if well and all(is_mapping(call.get("function")) for call in calls) else None


@criterion(
    "new-messages",
    "an observation holds only new messages: none of the agent's, and no earlier ones",
    fix="return only the messages of this step; the agent keeps the conversation",
    needs=("step-tuple",),
)
async def new_messages(subject: Subject) -> None:
    for play in await subject.plays():
        for action, raw in zip(play.actions, play.raw_steps, strict=False):
            if problem := _old(play, action, raw[0]):
                raise Violation(f"{play}: the observation {problem}: {raw[0]!r:.200}")


def _old(play: Play, action: Any, observation: list[Any]) -> str:
    if action in observation:
        return "repeats the action"
    if any(message.get("role") == "assistant" for message in observation):
        return "speaks for the assistant"
    first = play.first or []
    is_repeated = first and len(observation) > 1 and observation[: len(first)] == first
    return "begins with the first messages again" if is_repeated else ""


@criterion(
    "nothing-mutated",
    "actions are not changed by step, nor messages after they were returned",
    fix="copy what you keep: `dict(action)`, `list(messages)`; never append to a list that was "
    "returned",
    needs=("reset-tuple",),
)
async def nothing_mutated(subject: Subject) -> None:
    for play in await subject.plays():
        if problem := play.spy.changed():
            raise Violation(f"{play}: {problem}")
