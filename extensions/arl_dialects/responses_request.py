"""Requests of the Responses API: parameters, tools, and what they continue.

Parameters that are ignored, because they cannot change a reply here: user, metadata,
client_metadata (Codex has it), service_tier, safety_identifier, prompt_cache_key,
prompt_cache_retention, prompt_cache_options, max_tool_calls (of tools that the service itself
runs), text.verbosity, `strict` of a tool. Every other parameter is honoured or refused by name.

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentgym_rl.gateway import (
    ApiError,
    ChatRequest,
    Offer,
    Session,
    bad_request,
    given_fields,
    left_to_session,
    refuse_unknown,
    unsupported,
    without_billing,
)
from agentgym_rl.gateway.request.body import boolean, integer, number, string
from agentgym_rl.gateway.request.chat_request import effort_kwargs
from agentgym_rl.gateway.request.reply_form import form_of, read_format

from .responses_items import ItemReader, string_field
from .stored import Conversation, Conversations, Responses, StoredResponse, stored_item

_IGNORED = frozenset(
    {
        *("user", "metadata", "client_metadata", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "max_tool_calls"),
    }
)
_READ = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "store", "stream"),
        *("tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature"),
        *("top_p", "text", "reasoning", "include", "truncation", "background"),
        *("stream_options", "top_logprobs", "conversation"),
    }
)
_THOUGHTS = "reasoning.encrypted_content"
_INCLUDED = (
    _THOUGHTS,
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    "code_interpreter_call.outputs",
)
"""The values of `include`; except thoughts, each concerns a tool or a part that no reply has."""
_CONTEXTS = ("auto", "current_turn", "all_turns")
"""The values of `reasoning.context`, on which `gateway.thinking_history` decides."""
_PLAIN = {"type": "text"}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request: the `offer` to the model, and `echo` for the response to repeat."""

    offer: Offer = field(default_factory=Offer)
    echo: list[Any] = field(default_factory=list[Any])
    namespaces: dict[str, str] = field(default_factory=dict[str, str])
    """The namespaces of the functions that have one. Models call a function by its own name."""


def _read_tools(value: Any, more: Sequence[Any]) -> Tools:
    """Check `tools`, and `more` of them, which items offer."""
    tools = Tools()
    for entry in _entries(value, "tools"):
        tools.echo.append(_add_any(tools, *entry))
    for entry in _entries(list(more), "additional_tools.tools"):
        _add_any(tools, *entry)
    return tools


def _add_any(tools: Tools, item: Mapping[str, Any], where: str) -> Any:
    """Add a tool or a namespace, and return what the response repeats."""
    if item.get("type") != "namespace":
        return _add(tools.offer, item, where)
    name = string_field(item, "name", where, empty=False)
    description = _description(item, where) or ""
    before = len(tools.offer.functions)
    inner = [_add(tools.offer, *entry) for entry in _entries(item.get("tools"), f"{where}.tools")]
    added = tools.offer.functions[before:]
    tools.namespaces.update((tool["function"]["name"], name) for tool in added)
    return {"type": "namespace", "name": name, "description": description, "tools": inner}


def _entries(value: Any, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{where} must be an array.", param=where)
    for index, item in enumerate(value or ()):
        if not isinstance(item, dict):
            raise bad_request(f"{where}[{index}] must be an object.", param=f"{where}[{index}]")
        yield item, f"{where}[{index}]"


def _add(offer: Offer, item: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Add a tool, under a name that no other has, and return what the response repeats."""
    kind = item.get("type")
    if kind not in ("function", "custom"):
        offer.add_other(item, where, allowed="function, custom, namespace")
        return item
    if not isinstance(item.get("strict"), bool | None):
        raise bad_request(f"{where}.strict must be true or false.", param=where)
    if not isinstance(item.get("parameters"), dict | None):
        raise bad_request(f"{where}.parameters must be an object.", param=where)
    name = string_field(item, "name", where, empty=False)
    description = _description(item, where)
    if any(tool["function"]["name"] == name for tool in offer.functions):
        raise bad_request(f"{where}: there is another function named {name!r}", param=where)
    if item.get("defer_loading"):
        offer.omit(name)
    elif kind == "custom":
        offer.add_text(name, description, item.get("format"), where)
    else:
        offer.add({key: item.get(key) for key in ("name", "description", "parameters")})
    if kind == "custom":
        return item
    echo = {key: item.get(key) for key in ("parameters", "strict")}
    return {"type": "function", "name": name, "description": description, **echo}


def _description(item: Mapping[str, Any], where: str) -> str | None:
    description = item.get("description")
    if not isinstance(description, str | None):
        raise bad_request(f"{where}.description must be a string.", param=where)
    return description


class ResponsesRequest(ChatRequest, frozen=True, kw_only=True):
    """A request that this gateway can honour in full; `messages` begin with its instructions."""

    store: bool
    """Whether later requests may name the response."""
    seals_thoughts: bool
    """Whether reasoning items name their turn in `encrypted_content`."""
    num_instructions: int
    """The number of messages that belong only to this request: 1 with instructions."""
    namespaces: Mapping[str, str]
    """The namespaces of the functions that have one."""
    items: Sequence[Mapping[str, Any]]
    """The input items, including those of the continued conversation."""
    num_earlier: int
    """The number of these that the conversation already has."""
    item_tools: Sequence[Any]
    """The tools that the items offer."""
    conversation: Conversation | None
    """The conversation that grows by the new items and those of the reply."""
    echo: Mapping[str, Any]
    """The parameters that the response repeats."""


def read_request(session: Session, body: bytes) -> ResponsesRequest:
    """Parse and check a request."""
    given, ignored = left_to_session(given_fields(body), session.config.sampling)
    _refuse(given)
    instructions = string(given, "instructions")
    leading: list[dict[str, Any]] = []
    if instructions is not None:
        leading = [{"role": "system", "content": without_billing(instructions)}]
    said = _read_items(session, given)
    if not said.messages:
        raise bad_request("input must not be empty.", param="input")
    tools = _read_tools(given.get("tools"), said.tools)
    functions = tools.offer.functions or None
    choice = tools.offer.chosen(given.get("tool_choice"))
    schema = read_format(_object(given, "text").get("format", _PLAIN), "text.format", nested=False)
    one_call = not boolean(given, "parallel_tool_calls", True)
    top_p = number(given, "top_p", low=0.0, high=1.0)
    return ResponsesRequest(
        messages=[*leading, *said.messages],
        tools=functions,
        text_tools=frozenset(tools.offer.texts),
        omitted_tools=tools.offer.omitted,
        calls=functions is not None and choice.reads,
        one_call=one_call,
        stream=boolean(given, "stream", False),
        max_tokens=integer(given, "max_output_tokens", low=1),
        temperature=number(given, "temperature", low=0.0, high=2.0),
        top_p=1.0 if top_p is None else top_p,
        template_kwargs=effort_kwargs(
            _object(given, "reasoning").get("effort"), "reasoning.effort"
        ),
        form=form_of(choice, functions, schema, one_call=one_call, schema_param="text.format"),
        truncates=given.get("truncation") == "auto",
        store=boolean(given, "store", True),
        seals_thoughts=_THOUGHTS in given.get("include", ()),
        num_instructions=len(leading),
        namespaces=tools.namespaces,
        items=said.items,
        num_earlier=said.num_earlier,
        item_tools=said.tools,
        conversation=said.conversation,
        echo=_echo(given, tools, said.conversation),
        ignored=ignored,
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """The conversation of a request: the messages that it continues, and its input."""

    messages: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]
    tools: Sequence[Any]
    num_earlier: int
    conversation: Conversation | None = None


def _read_items(session: Session, given: Mapping[str, Any]) -> _Said:
    """Read the conversation or response that the request continues, and the input after it."""
    reader = ItemReader(
        session.number_of, partial(stored_item, session), unreadable=session.config.unreadable
    )
    conversation = _conversation(session, given)
    if conversation is not None:
        for item in list(conversation.items):
            reader.read_stored(item)
        num_earlier = len(reader.items)
        reader.read_input(given.get("input", []))
        return _Said(reader.messages, reader.items, reader.tools, num_earlier, conversation)
    reader.read_input(given.get("input", []))
    earlier = _earlier(session, given)
    if earlier is None:
        return _Said(reader.messages, reader.items, reader.tools, 0)
    before = [*earlier.items, *earlier.output]
    return _Said(
        [*earlier.messages, *reader.messages],
        [*before, *reader.items],
        [*earlier.tools, *reader.tools],
        len(before),
    )


def _conversation(session: Session, given: Mapping[str, Any]) -> Conversation | None:
    """Return the conversation that the request names."""
    value = given.get("conversation")
    id = value.get("id") if isinstance(value, dict) else value
    if value is None:
        return None
    if not isinstance(id, str):
        why = f"conversation: got {value!r:.100}, expected an id, or an object with an id"
        raise bad_request(why, param="conversation")
    if given.get("previous_response_id") is not None:
        why = "conversation and previous_response_id both name what is continued: give only one"
        raise bad_request(why, param="conversation")
    return found_conversation(session, id)


def found_conversation(session: Session, id: str) -> Conversation:
    """Return a conversation of the session.

    Raises:
        ApiError: 404, there is none of this id.
    """
    found = session.state(Conversations).get(id)
    if found is None:
        raise ApiError(
            404,
            f"Conversation with id {id!r} not found: none of this session, or deleted. Create it "
            "with POST /v1/conversations.",
            param="conversation",
            code="conversation_not_found",
        )
    return found


def _earlier(session: Session, given: Mapping[str, Any]) -> StoredResponse | None:
    """Return the response that the request continues, if it names one."""
    response_id = string(given, "previous_response_id")
    if response_id is None:
        return None
    found = session.state(Responses).get(response_id)
    if found is None:
        raise ApiError(
            400,
            f"Previous response with id {response_id!r} not found: no response of this session "
            "that was stored, or one too long ago. Send the conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, and values of known parameters that cannot be honoured."""
    refuse_unknown(given, _READ, _IGNORED)
    if boolean(given, "background", False):
        raise unsupported(
            "background", "background replies are not supported; wait for the reply, or stream it"
        )
    if (value := given.get("truncation", "disabled")) not in ("auto", "disabled"):
        why = f"truncation: got {value!r:.100}, allowed: 'auto', 'disabled'"
        raise bad_request(why, param="truncation")
    if integer(given, "top_logprobs", low=0):
        raise unsupported("top_logprobs", "only the sampled token's log-prob is recorded")
    _check_text(_object(given, "text"))
    _check_reasoning(_object(given, "reasoning"))
    _check_include(given.get("include", []))
    options = _object(given, "stream_options")
    if options and not boolean(given, "stream", False):
        raise bad_request("stream_options needs stream.", param="stream_options")
    for name, value in options.items():
        if name != "include_obfuscation" or value:
            raise unsupported(f"stream_options.{name}", "allowed: include_obfuscation false")


def _check_text(text: Mapping[str, Any]) -> None:
    for name in text:
        if name not in ("format", "verbosity"):
            raise unsupported(f"text.{name}", "this endpoint does not know it")
    if text.get("verbosity", "low") not in ("low", "medium", "high"):
        raise bad_request("text.verbosity: allowed: low, medium, high", param="text.verbosity")


def _check_reasoning(reasoning: Mapping[str, Any]) -> None:
    for name, value in reasoning.items():
        if name in ("summary", "generate_summary"):
            if value != "auto":
                why = "thoughts are sent complete, without a summary; allowed: 'auto'"
                raise unsupported(f"reasoning.{name}", why)
        elif name == "context":
            if value not in _CONTEXTS:
                why = f"reasoning.context: got {value!r:.100}, allowed: {', '.join(_CONTEXTS)}"
                raise bad_request(why, param="reasoning.context")
        elif name != "effort":
            raise unsupported(f"reasoning.{name}", "allowed: effort, summary and context")


def _check_include(include: Any) -> None:
    if not isinstance(include, list):
        raise bad_request("include must be an array.", param="include")
    for name in include:
        if name == "message.output_text.logprobs":
            raise unsupported(f"include {name}", "chat completions have log-probs (`logprobs`)")
        if name not in _INCLUDED:
            allowed = ", ".join(_INCLUDED)
            raise unsupported(f"include {name!s:.100}", f"allowed: {allowed}")


def _object(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object's fields that are not null; none if the object was left out."""
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object.", param=name)
    return {key: field for key, field in value.items() if field is not None}


def _echo(
    given: Mapping[str, Any], tools: Tools, conversation: Conversation | None
) -> dict[str, Any]:
    """Return the request parameters that the response repeats."""
    names = ("user", "safety_identifier", "prompt_cache_key")
    return {
        **{name: string(given, name) for name in names},
        "instructions": given.get("instructions"),
        "previous_response_id": given.get("previous_response_id"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": integer(given, "max_tool_calls"),
        "metadata": read_metadata(given.get("metadata", {})),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "reasoning": {"effort": None, "summary": None, **_object(given, "reasoning")},
        "store": given.get("store", True),
        "text": {"format": _PLAIN, **_object(given, "text")},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": tools.echo,
        "truncation": given.get("truncation", "disabled"),
        "conversation": None if conversation is None else {"id": conversation.id},
    }


def read_metadata(value: Any) -> dict[str, str]:
    """Return metadata: an object of strings."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise bad_request("metadata must be an object of strings.", param="metadata")
    return value
