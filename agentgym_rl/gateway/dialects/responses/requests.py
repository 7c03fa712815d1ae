"""Requests of the Responses API: the parameters that are read, refused and ignored.

Parameters that are ignored, because they cannot change a reply here: user, metadata,
client_metadata (Codex has it), service_tier, safety_identifier, prompt_cache_key,
prompt_cache_retention, prompt_cache_options, max_tool_calls (of tools that the service itself
runs), text.verbosity, `strict` of a tool. Every other parameter is honoured or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gateway.errors import ApiError, bad_request, unsupported
from agentgym_rl.gateway.request.chat_request import ChatRequest, effort_kwargs
from agentgym_rl.gateway.request.fields import boolean, given_fields, integer, number, string
from agentgym_rl.gateway.request.reply_form import form_of, read_format, read_tool_choice
from agentgym_rl.gateway.session.session import Session

from .items import Tools, read_items, read_tools

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
        *("stream_options", "top_logprobs"),
    }
)
_THOUGHTS = "reasoning.encrypted_content"
_PLAIN = {"type": "text"}


class ResponsesRequest(ChatRequest, frozen=True, kw_only=True):
    """A request that this gateway can honour in full; `messages` begin with its instructions."""

    store: bool
    """The flag that lets later requests name the response."""
    seals_thoughts: bool
    """The flag that makes reasoning items name their turn in `encrypted_content`."""
    num_instructions: int
    """The number of messages that belong to this request alone: 1 with instructions."""
    namespaces: Mapping[str, str]
    """The namespaces of the functions that have one."""
    echo: Mapping[str, Any]
    """The parameters that the response repeats."""


def read_request(session: Session, body: bytes) -> ResponsesRequest:
    """Parse and check a request.

    Raises:
        ApiError: 400, naming the parameter.
    """
    given = given_fields(body)
    _refuse(given)
    tools = read_tools(given.get("tools"))
    functions = tools.functions or None
    choice = read_tool_choice(given.get("tool_choice"), functions)
    schema = read_format(_object(given, "text").get("format", _PLAIN), "text.format", nested=False)
    one_call = not boolean(given, "parallel_tool_calls", True)
    top_p = number(given, "top_p", low=0.0, high=1.0)
    instructions = string(given, "instructions")
    leading = [] if instructions is None else [{"role": "system", "content": instructions}]
    said = read_items(given.get("input", []), session.number_of)
    messages = [*leading, *_earlier(session, given), *said]
    if len(messages) == len(leading):
        raise bad_request("input must say something.", param="input")
    return ResponsesRequest(
        messages=messages,
        tools=functions,
        calls=functions is not None and choice.reads,
        one_call=one_call,
        n=1,
        stream=boolean(given, "stream", False),
        include_usage=True,
        logprobs=False,
        max_tokens=integer(given, "max_output_tokens", low=1),
        temperature=number(given, "temperature", low=0.0, high=2.0),
        top_p=1.0 if top_p is None else top_p,
        top_k=0,
        seed=None,
        stop=(),
        template_kwargs=effort_kwargs(
            _object(given, "reasoning").get("effort"), "reasoning.effort"
        ),
        form=form_of(choice, functions, schema, one_call=one_call, schema_param="text.format"),
        store=boolean(given, "store", True),
        seals_thoughts=_THOUGHTS in given.get("include", ()),
        num_instructions=len(leading),
        namespaces=tools.namespaces,
        echo=_echo(given, tools),
    )


def _earlier(session: Session, given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the conversation that the request continues, if it names a response."""
    response_id = string(given, "previous_response_id")
    if response_id is None:
        return ()
    messages = session.conversations.get(response_id)
    if messages is None:
        raise ApiError(
            400,
            f"Previous response with id {response_id!r} not found: no response of this session "
            "that was stored, or one too long ago. Send the conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return messages


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, and values of known parameters that cannot be honoured."""
    for name in given:
        if name not in _READ and name not in _IGNORED:
            raise unsupported(name, "this endpoint does not know it")
    if boolean(given, "background", False):
        raise unsupported("background", "a reply is waited for, or streamed")
    if given.get("truncation", "disabled") != "disabled":
        raise unsupported("truncation", "messages are never left out; allowed: 'disabled'")
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
                why = "thoughts are sent as they are, nobody sums them up; allowed: 'auto'"
                raise unsupported(f"reasoning.{name}", why)
        elif name != "effort":
            raise unsupported(f"reasoning.{name}", "allowed: effort and summary")


def _check_include(include: Any) -> None:
    if not isinstance(include, list):
        raise bad_request("include must be an array.", param="include")
    for name in include:
        if name == "message.output_text.logprobs":
            raise unsupported(f"include {name}", "chat completions have log-probs (`logprobs`)")
        if name != _THOUGHTS:
            raise unsupported(f"include {name}", f"allowed: {_THOUGHTS}")


def _object(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object's fields that are not null; none if the object was left out."""
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object.", param=name)
    return {key: field for key, field in value.items() if field is not None}


def _echo(given: Mapping[str, Any], tools: Tools) -> dict[str, Any]:
    """Return the request parameters that the response repeats."""
    names = ("user", "safety_identifier", "prompt_cache_key")
    return {
        **{name: string(given, name) for name in names},
        "instructions": given.get("instructions"),
        "previous_response_id": given.get("previous_response_id"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": integer(given, "max_tool_calls"),
        "metadata": _metadata(given.get("metadata", {})),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "reasoning": {"effort": None, "summary": None, **_object(given, "reasoning")},
        "store": given.get("store", True),
        "text": {"format": _PLAIN, **_object(given, "text")},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": tools.echo,
        "truncation": "disabled",
    }


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise bad_request("metadata must be an object of strings.", param="metadata")
    return value
