"""Chat completion requests: the parameters that are read, refused and ignored.

Parameters that are ignored, because they cannot change a reply here: user, metadata, store,
service_tier, safety_identifier, prompt_cache_key, prompt_cache_retention, prompt_cache_options,
verbosity, prediction (of a reply, for speed), `strict` of a tool. So are unknown parameters with a
value that has no effect (`min_tokens` 0, empty lists). Every other parameter is honoured or refused
by name: an agent must not rely on an option without effect.

A request may demand a form of its reply: JSON of a schema, or calls of some of the tools. Three
APIs express this in three ways; here they become one `ReplyForm`. Its grammar depends on the
model's format (`parsers.grammars`).

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from agentgym_rl.core import text_message
from agentgym_rl.gateway.errors import bad_request, unsupported
from agentgym_rl.gateway.messages import text_of, without_billing
from agentgym_rl.gateway.template.template import RESERVED

from .body import boolean, given_fields, integer, number, refuse_unknown, string
from .client_sampling import BIASED, Sampling, is_neutral, is_off, left_to_session, refused
from .offered_tools import BUILT_IN, Offer, OmittedTool, ToolChoice, arguments_of_text
from .reply_form import ReplyForm, form_of, read_format
from .unreadable import LEFT_OUT, PartReader, Unreadable

_IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "verbosity"),
        "prediction",
    }
)
_READ = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "parallel_tool_calls"),
        *("stream", "stream_options", "max_tokens", "max_completion_tokens"),
        *("web_search_options", "continue_final_message", "add_generation_prompt"),
        "search_parameters",
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
    """The functions that the model sees."""
    text_tools: frozenset[str] = frozenset()
    """The names of the functions whose call is a text to the client."""
    omitted_tools: Sequence[OmittedTool] = ()
    """The offered tools that the model does not see."""
    calls: bool = False
    """Whether tool calls are read from the reply (not with tool_choice "none")."""
    one_call: bool = False
    """Whether only the first tool call is returned (parallel_tool_calls false)."""
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
    """The text or token ids to continue without a template; `messages` is then only for display."""
    form: ReplyForm | None = None
    """The form demanded of the reply, if there is one."""
    continues: bool = False
    """Whether the last message is the beginning of the reply."""
    truncates: bool = False
    """Whether the oldest messages may be left out, if the prompt is too long otherwise."""
    truncated: bool = False
    """Whether some of the oldest messages were left out."""
    return_token_ids: bool = False
    """Whether choices carry the ids of prompt and reply."""
    ignored: frozenset[str] = frozenset()
    """The sampling parameters that the session decides, although they would have an effect
    (`client_sampling`)."""


def parse_request(
    body: bytes, *, unreadable: Unreadable = "placeholder", sampling: Sampling = "request"
) -> ChatRequest:
    """Parse and check a request."""
    return request_of(given_fields(body), unreadable=unreadable, sampling=sampling)


def request_of(
    given: Mapping[str, Any],
    *,
    before: Sequence[Mapping[str, Any]] = (),
    unreadable: Unreadable = "placeholder",
    sampling: Sampling = "request",
) -> ChatRequest:
    """Check the parameters of a request; `before` are messages that precede those given, and that
    have been checked."""
    given, ignored = left_to_session(given, sampling)
    _refuse(given)
    stream = boolean(given, "stream", False)
    offer = _offer(given)
    tools = offer.functions or None
    choice = offer.chosen(given.get("tool_choice"))
    top_p = number(given, "top_p", low=0.0, high=1.0)
    min_p = number(given, "min_p", low=0.0, high=1.0)
    max_tokens = integer(given, "max_completion_tokens", low=1)
    if max_tokens is None:
        max_tokens = integer(given, "max_tokens", low=1)
    messages = checked_messages(given.get("messages"), before, unreadable)
    return ChatRequest(
        messages=messages,
        tools=tools,
        text_tools=frozenset(offer.texts),
        omitted_tools=offer.omitted,
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
        form=(form := _form(given, choice, tools, one_call=one_call)),
        continues=continues(messages, form, asked=_continues(given)),
        ignored=ignored,
    )


def _continues(given: Mapping[str, Any]) -> bool:
    """Return whether the reply continues the last message."""
    wanted = boolean(given, "continue_final_message", False)
    opens = boolean(given, "add_generation_prompt", not wanted)
    if wanted == opens:
        raise bad_request(
            f"continue_final_message {_json(wanted)} with add_generation_prompt {_json(opens)}: a "
            "reply either continues the last message or begins a new one; allowed: true with "
            "false, or false with true",
            param="continue_final_message" if wanted else "add_generation_prompt",
        )
    return wanted


def _json(value: bool) -> str:
    return "true" if value else "false"


def continues(
    messages: Sequence[Mapping[str, Any]], form: ReplyForm | None, *, asked: bool
) -> bool:
    """Return whether the reply continues the last message: the client `requested` it, and the
    message is the assistant's."""
    last = messages[-1]
    if not asked or last["role"] != "assistant":
        return False
    if last.get("tool_calls") or not text_of(last.get("content")):
        has = "calls" if last.get("tool_calls") else "no text"
        why = f"prefill: the last message has {has}, and only a text can be continued"
        raise bad_request(f"{why}; send results of calls, or leave it out", param="messages")
    if form is not None:
        raise unsupported(
            form.param,
            "the reply continues the last message, and a form holds for a whole reply: leave out "
            "the last message of the assistant's, or the form",
        )
    return True


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, and values of known parameters that cannot be honoured."""
    refuse_unknown(given, _READ, _IGNORED)
    if integer(given, "top_logprobs", low=0):
        raise unsupported("top_logprobs", "only the sampled token's log-prob is recorded")
    if given.get("modalities", ["text"]) != ["text"]:
        raise unsupported("modalities", "text only")
    for name, why in BIASED.items():
        if not is_neutral(name, given.get(name)):
            raise refused(name, why)


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
    value: Any,
    before: Sequence[Mapping[str, Any]] = (),
    unreadable: Unreadable = "placeholder",
) -> list[Mapping[str, Any]]:
    """Return the checked messages of a request, after the already checked `before`."""
    if not isinstance(value, list) or not (value or before):
        raise bad_request("messages must be a non-empty array.", param="messages")
    numbered = enumerate(value, len(before))
    messages = (_message(item, f"messages[{index}]", unreadable) for index, item in numbered)
    return [*before, *messages]


def _message(value: Any, where: str, unreadable: Unreadable) -> dict[str, Any]:
    role = value.get("role") if isinstance(value, dict) else None
    if role not in _ROLES:
        raise bad_request(f"{where}.role: got {role!r}, allowed: {', '.join(_ROLES)}", param=where)
    if LEFT_OUT in value:  # only this gateway sets it
        value = {name: field for name, field in value.items() if name != LEFT_OUT}
    content = value.get("content")
    if isinstance(content, list):
        value = _readable(value, where, unreadable)
    elif content is not None and not isinstance(content, str):
        raise bad_request(f"{where}.content must be a string or an array.", param=where)
    for name in ("name", "tool_call_id"):
        if not isinstance(value.get(name) or "", str):
            raise bad_request(f"{where}.{name} must be a string.", param=where)
    if role == "assistant" and (calls := value.get("tool_calls")) is not None:
        value = {**value, "tool_calls": _calls(calls, f"{where}.tool_calls")}
    return _system(value) if role in ("system", "developer") else value


def _system(value: dict[str, Any]) -> dict[str, Any]:
    content = value.get("content") or ""
    if isinstance(content, str):
        return {**value, "role": "system", "content": without_billing(content)}
    first, *rest = content
    text = without_billing(first["text"])
    parts = rest if first["text"] and not text else [{**first, "text": text}, *rest]
    return {**value, "role": "system", "content": parts}


def _readable(value: dict[str, Any], where: str, unreadable: Unreadable) -> dict[str, Any]:
    """Return a message whose parts are texts."""
    reader = PartReader(unreadable)
    parts = [_text_part(part, where, reader) for part in value["content"]]
    message = reader.described({**value, "content": parts})
    try:
        text_message(message)
    except ValueError as error:
        raise bad_request(f"{where}.{error}", param=where) from error
    return message


def _text_part(part: Any, where: str, reader: PartReader) -> Any:
    text = reader.text(part, f"{where}.content")
    return part if text is None else {"type": "text", "text": text}


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the calls of a message; those of a text become calls of a function."""
    return [_call(item, where) for item in _array(value, where)]


def _call(item: Any, where: str) -> dict[str, Any]:
    if _kind(item) == "custom":
        said = item.get("custom")
        name, text = ((said or {}).get(key) for key in ("name", "input"))
        if not (isinstance(name, str) and isinstance(text, str)):
            raise bad_request(f"{where}: a custom call needs custom.name and .input.", param=where)
        kept = {key: field for key, field in item.items() if key != "custom"}
        function = {"name": name, "arguments": arguments_of_text(text)}
        return {**kept, "type": "function", "function": function}
    if _kind(item) not in (None, "function"):
        got = item["type"]
        raise bad_request(f"{where}: got type {got!r}, allowed: function, custom", param=where)
    return _function(item, where)


def _function(item: Any, where: str) -> dict[str, Any]:
    function = item.get("function") if isinstance(item, dict) else None
    if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise bad_request(f"{where}: every entry needs function.name.", param=where)
    return item


def _array(value: Any, where: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{where} must be an array.", param=where)
    return value or []


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _offer(given: Mapping[str, Any]) -> Offer:
    offer = Offer()
    for item in _array(given.get("tools"), "tools"):
        kind = _kind(item)
        if kind == "custom":
            custom = item.get("custom")
            custom = custom if isinstance(custom, dict) else {}
            name, description = string(custom, "name"), string(custom, "description")
            if not name:
                raise bad_request("tools: a custom tool needs custom.name.", param="tools")
            offer.add_text(name, description, custom.get("format"), "tools")
        elif kind not in (None, "function"):
            offer.add_other(item, "tools", allowed="function, custom")
        else:
            _add_function(offer, _function(item, "tools"))
    for name in ("web_search_options", "search_parameters"):  # of OpenAI, of xAI
        value = given.get(name, {})
        if not isinstance(value, dict):
            raise bad_request(f"{name} must be an object.", param=name)
        if name in given and not is_off(name, value):
            offer.omit(name, BUILT_IN)
    return offer


def _add_function(offer: Offer, tool: Mapping[str, Any]) -> None:
    """Add a function, without `strict`, which has no meaning for a model."""
    function = tool["function"]
    if tool.get("defer_loading") or function.get("defer_loading"):
        return offer.omit(function["name"])
    hidden = {"strict", "defer_loading"} & function.keys()
    shown = {key: field for key, field in function.items() if key not in hidden}
    offer.functions.append({**tool, "function": shown} if hidden else tool)


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
