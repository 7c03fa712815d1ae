"""Chat completion requests: the parameters that are read, refused and ignored.

Parameters that are ignored, because they cannot change a reply here: user, metadata, store,
service_tier, safety_identifier, prompt_cache_key, prompt_cache_retention, verbosity, `strict` of a
tool. So are unknown parameters with a value that changes nothing (`min_tokens` 0, empty lists).
Every other parameter is honoured or refused by name: an agent must not rely on an option without
effect.

A request may demand a form of its reply: JSON of a schema, or calls of some of the tools. Three
APIs express this in three ways; here they become one `ReplyForm`. Its grammar depends on the
model's format (`parsers.grammars`).

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, field

from agentgym_rl.core.chat import text_message
from agentgym_rl.gateway.errors import bad_request, unsupported
from agentgym_rl.gateway.template.template import RESERVED

from .body import boolean, given_fields, integer, number, refuse_unknown

Tools = Sequence[Mapping[str, Any]]
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

_IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "verbosity"),
    }
)
_READ = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "parallel_tool_calls"),
        *("stream", "stream_options", "max_tokens", "max_completion_tokens"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "logprobs", "top_logprobs"),
        *("n", "response_format", "modalities"),
        *("presence_penalty", "frequency_penalty", "logit_bias"),
        *("chat_template_kwargs", "enable_thinking", "reasoning_effort"),
    }
)
MAX_SAMPLES = 128
"""The maximum of `n`, as in OpenAI."""
MAX_KWARGS_BYTES = 10_000
"""The maximum size of the template's arguments, as JSON."""
MAX_TOP_K = 2**31 - 1
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
"""The limits of engines, which read these parameters as numbers of 32 and 64 bits."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A request that this gateway can honour in full."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    calls: bool = False
    """The flag that tool calls are read from the reply (not with tool_choice "none")."""
    one_call: bool = False
    """The flag that only the first tool call is returned (parallel_tool_calls false)."""
    n: int = 1
    """The number of samples: each is a choice and a turn of its own."""
    stream: bool = False
    include_usage: bool = True
    logprobs: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the chat template: `chat_template_kwargs`, `enable_thinking`,
    `reasoning_effort`."""
    prompt: str | Sequence[int] | None = None
    """The text or token ids to continue without a template; `messages` then only shows the prompt
    to people."""
    form: ReplyForm | None = None
    """The form demanded of the reply, if there is one."""
    return_token_ids: bool = False
    """The flag that choices carry the ids of prompt and reply."""


def parse_request(body: bytes) -> ChatRequest:
    """Parse and check a request."""
    return request_of(given_fields(body))


def request_of(
    given: Mapping[str, Any], *, before: Sequence[Mapping[str, Any]] = ()
) -> ChatRequest:
    """Check the parameters of a request; `before` are messages that precede those given, and that
    have been checked."""
    _refuse(given)
    stream = boolean(given, "stream", False)
    tools = _tools(given.get("tools"))
    choice = read_tool_choice(given.get("tool_choice"), tools)
    top_p = number(given, "top_p", low=0.0, high=1.0)
    min_p = number(given, "min_p", low=0.0, high=1.0)
    max_tokens = integer(given, "max_completion_tokens", low=1)
    if max_tokens is None:
        max_tokens = integer(given, "max_tokens", low=1)
    return ChatRequest(
        messages=checked_messages(given.get("messages"), before),
        tools=tools,
        calls=tools is not None and choice.reads,
        one_call=(one_call := not boolean(given, "parallel_tool_calls", True)),
        n=_samples(given),
        stream=stream,
        include_usage=_include_usage(given, stream),
        logprobs=boolean(given, "logprobs", False),
        max_tokens=max_tokens,
        temperature=number(given, "temperature", low=0.0, high=2.0),
        top_p=1.0 if top_p is None else top_p,
        top_k=max(integer(given, "top_k", low=-1, high=MAX_TOP_K) or 0, 0),
        min_p=min_p or 0.0,
        seed=integer(given, "seed", low=MIN_SEED, high=MAX_SEED),
        stop=_stop(given.get("stop")),
        template_kwargs=_template_kwargs(given),
        form=_form(given, choice, tools, one_call=one_call),
    )


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, and values of known parameters that cannot be honoured."""
    refuse_unknown(given, _READ, _IGNORED)
    if integer(given, "top_logprobs", low=0):
        raise unsupported("top_logprobs", "only the sampled token's log-prob is recorded")
    if given.get("modalities", ["text"]) != ["text"]:
        raise unsupported("modalities", "text only")
    for name in ("presence_penalty", "frequency_penalty"):
        if given.get(name, 0) != 0:
            raise unsupported(name, "penalties would bias the recorded log-probs; allowed: 0")
    if given.get("logit_bias"):
        raise unsupported("logit_bias", "it would bias the recorded log-probs")


def _form(
    given: Mapping[str, Any],
    choice: ToolChoice,
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    one_call: bool,
) -> ReplyForm | None:
    wanted = given.get("response_format", {"type": "text"})
    schema = read_format(wanted, "response_format", nested=True)
    return form_of(choice, tools, schema, one_call=one_call, schema_param="response_format")


def checked_messages(
    value: Any, before: Sequence[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """Return the checked messages of a request, after the already checked `before`."""
    if not isinstance(value, list) or not (value or before):
        raise bad_request("messages must be a non-empty array.", param="messages")
    numbered = enumerate(value, len(before))
    return [*before, *(_message(item, f"messages[{index}]") for index, item in numbered)]


def _message(value: Any, where: str) -> dict[str, Any]:
    role = value.get("role") if isinstance(value, dict) else None
    if role not in _ROLES:
        raise bad_request(f"{where}.role: got {role!r}, allowed: {', '.join(_ROLES)}", param=where)
    content = value.get("content")
    if isinstance(content, list):
        try:
            text_message(value)
        except ValueError as error:
            raise bad_request(f"{where}.{error}", param=where) from error
    elif content is not None and not isinstance(content, str):
        raise bad_request(f"{where}.content must be a string or an array.", param=where)
    for name in ("name", "tool_call_id"):
        if not isinstance(value.get(name) or "", str):
            raise bad_request(f"{where}.{name} must be a string.", param=where)
    if role == "assistant":
        _check_functions(value.get("tool_calls"), f"{where}.tool_calls")
    return {**value, "role": "system"} if role == "developer" else value


def _tools(value: Any) -> list[dict[str, Any]] | None:
    _check_functions(value, "tools")
    return [_shown(tool) for tool in value or ()] or None


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool without `strict`, which some SDKs add and which means nothing to a model."""
    function = tool["function"]
    if "strict" not in function:
        return tool
    return {**tool, "function": {k: v for k, v in function.items() if k != "strict"}}


def _check_functions(value: Any, where: str) -> None:
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{where} must be an array.", param=where)
    for item in value or ():
        function = item.get("function") if isinstance(item, dict) else None
        if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
            raise bad_request(f"{where}: every entry needs function.name.", param=where)
        if item.get("type", "function") != "function":
            raise bad_request(f"{where}: got type {item['type']!r}, allowed: function", param=where)


def _template_kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the chat template; those in `chat_template_kwargs` take precedence
    over the parameters of Alibaba's API (`enable_thinking`) and OpenAI's (`reasoning_effort`)."""
    kwargs = given.get("chat_template_kwargs", {})
    if not isinstance(kwargs, dict):
        raise bad_request("chat_template_kwargs must be an object.", param="chat_template_kwargs")
    if taken := sorted(RESERVED & kwargs.keys()):
        raise bad_request(
            f"chat_template_kwargs: {taken[0]!r} cannot be set by the client",
            param="chat_template_kwargs",
        )
    if kwargs and (size := len(msgspec.json.encode(kwargs))) > MAX_KWARGS_BYTES:
        raise bad_request(
            f"chat_template_kwargs: got {size} bytes, allowed: {MAX_KWARGS_BYTES}; the template is "
            "tried out with them, in dozens of conversations",
            param="chat_template_kwargs",
        )
    found = effort_kwargs(given.get("reasoning_effort"), "reasoning_effort")
    if "enable_thinking" in given:
        found["enable_thinking"] = boolean(given, "enable_thinking", True)
    return {**found, **kwargs}


def effort_kwargs(effort: Any, param: str) -> dict[str, Any]:
    """Return a reasoning effort as a template argument; `param` is the name of its parameter."""
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        why = f"{param}: got {effort!r}, allowed: {', '.join(_EFFORTS)}"
        raise bad_request(why, param=param)
    return {"reasoning_effort": effort}


def _samples(given: Mapping[str, Any]) -> int:
    samples = integer(given, "n", low=1) or 1
    if samples > MAX_SAMPLES:
        raise bad_request(f"n: got {samples}, allowed: 1 to {MAX_SAMPLES}", param="n")
    return samples


def _include_usage(given: Mapping[str, Any], stream: bool) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        raise bad_request("stream_options is an object, and needs stream.", param="stream_options")
    return bool(options.get("include_usage"))


def _stop(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise bad_request("stop must be a string or an array of strings.", param="stop")
    if len(texts) > 4:
        raise bad_request(f"stop: got {len(texts)} strings, allowed: 4", param="stop")
    return tuple(texts)


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """A demand for JSON of `schema`, or for calls of `tools`; if both are given, one of the two.

    `one_call`: the reply makes a single call. Thoughts may come before either.
    """

    schema: Mapping[str, Any] | None = None
    tools: Tools = ()
    one_call: bool = False
    param: str = ""
    """The parameter of the demand, for errors."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The meaning of `tool_choice` in any API: calls are read (`reads`), and of the `forced` tools
    at least one must be called, or exactly one (`single`)."""

    reads: bool
    forced: Tools | None = None
    single: bool = False


def form_of(
    choice: ToolChoice,
    tools: Tools | None,
    schema: Mapping[str, Any] | None,
    *,
    one_call: bool,
    schema_param: str,
) -> ReplyForm | None:
    """Return the demanded form; None if the reply is free. A forced call excludes content."""
    if choice.forced is not None:
        single = one_call or choice.single
        return ReplyForm(tools=choice.forced, one_call=single, param="tool_choice")
    if schema is None:
        return None
    callable_tools = (tools or ()) if choice.reads else ()
    return ReplyForm(schema, callable_tools, one_call, schema_param)


def read_tool_choice(given: Any, tools: Tools | None) -> ToolChoice:
    """Parse OpenAI's `tool_choice`, of chat completions or Responses; None is "auto"."""
    if given in (None, "auto"):
        return ToolChoice(reads=True)
    if given == "none":
        return ToolChoice(reads=False)
    if given == "required":
        return forced_any(tools)
    kind = given.get("type") if isinstance(given, dict) else given
    if kind == "function":
        return forced_tool(_name_of(given), tools)
    if kind == "allowed_tools":
        return _allowed(given.get("allowed_tools", given), tools)
    allowed = "'auto', 'none', 'required', and objects of type 'function' or 'allowed_tools'"
    raise unsupported("tool_choice", f"got {given!r}, allowed: {allowed}")


def forced_tool(name: str, tools: Tools | None) -> ToolChoice:
    """Return a choice of exactly one call of the tool `name`."""
    return ToolChoice(True, forced=_named([name], tools), single=True)


def forced_any(tools: Tools | None) -> ToolChoice:
    """Return a choice of at least one call of any tool."""
    return ToolChoice(True, forced=_offered(tools))


def read_format(given: Any, param: str, *, nested: bool) -> Mapping[str, Any] | None:
    """Return the schema in OpenAI's `response_format` or `text.format`; None: any text.

    `nested`: the schema stands in a `json_schema` object, as in chat completions.
    """
    kind = given.get("type") if isinstance(given, dict) else given
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise unsupported(param, f"got {kind!r}, allowed: text, json_schema, json_object")
    where = f"{param}.json_schema" if nested else param
    holder = given.get("json_schema") if nested else given
    if not isinstance(holder, dict) or not isinstance(holder.get("name"), str):
        raise bad_request(f"{where}.name must be a string.", param=where)
    schema = holder.get("schema")
    if schema is None:
        return ANY_OBJECT
    if not isinstance(schema, dict):
        where = f"{where}.schema"
        raise bad_request(f"{where} must be a JSON schema, an object.", param=where)
    return schema  # the engine reports whether it can enforce it


def _allowed(given: Any, tools: Tools | None) -> ToolChoice:
    mode = given.get("mode") if isinstance(given, dict) else None
    if mode not in ("auto", "required"):
        why = f"tool_choice.allowed_tools.mode: got {mode!r}, allowed: 'auto', 'required'"
        raise bad_request(why, param="tool_choice")
    listed = given.get("tools")
    if not isinstance(listed, list) or not listed:
        raise bad_request("tool_choice.allowed_tools.tools lists no tools.", param="tool_choice")
    chosen = _named([_name_of(tool) for tool in listed], tools)
    if mode == "required":
        return ToolChoice(True, forced=chosen)
    if len(chosen) < len(tools or ()):
        raise unsupported(
            "tool_choice.allowed_tools",
            "with mode 'auto' all tools must be allowed: a reply that is free to be text is not "
            "held to any grammar; use mode 'required', or offer fewer tools",
        )
    return ToolChoice(True)


def _name_of(given: Mapping[str, Any]) -> str:
    """Return the name, which stands in `function` (chat completions) or beside the type."""
    holder = given.get("function", given) if isinstance(given, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str):
        raise bad_request(f"tool_choice: {given!r} names no function.", param="tool_choice")
    return name


def _offered(tools: Tools | None) -> Tools:
    if not tools:
        raise bad_request("tool_choice forces a call, but no tools are offered.", param="tools")
    return tools


def _named(names: Sequence[str], tools: Tools | None) -> Tools:
    by_name = {tool["function"]["name"]: tool for tool in _offered(tools)}
    for name in names:
        if name not in by_name:
            why = f"tool_choice: there is no tool {name!r}, there are {', '.join(by_name)}"
            raise bad_request(why, param="tool_choice")
    return [by_name[name] for name in dict.fromkeys(names)]
