"""The requests to a model served elsewhere: chat completions, for every dialect of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.config import EndpointConfig
from agentgym_rl.gateway.errors import bad_request, unsupported
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.request.fields import json_object
from agentgym_rl.gateway.request.reply_form import ANY_OBJECT, ReplyForm, Tools
from agentgym_rl.gateway.session.sampling import SessionSampling


def passed_on(body: bytes) -> dict[str, Any]:
    """Parse a request in chat completions; the endpoint judges most of it.

    Raises:
        ApiError: 400.
    """
    asked = json_object(body)
    if not isinstance(asked.get("messages"), list):
        raise bad_request("messages must be an array.", param="messages")
    if asked.get("n") not in (None, 1):
        raise unsupported("n", "one reply per request; send more requests for more samples")
    if not isinstance(asked.get("stream_options"), dict | None):
        raise bad_request("stream_options must be an object.", param="stream_options")
    return asked


def translated(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return another dialect's request as chat completions, with `messages` as its conversation.

    Parameters for which the endpoint's defaults apply are omitted.
    """
    asked: dict[str, Any] = {"messages": list(messages)}
    if request.tools:
        asked["tools"] = list(request.tools)
        asked |= {} if request.calls else {"tool_choice": "none"}
        asked |= {"parallel_tool_calls": False} if request.one_call else {}
    asked |= _held_to(request.form, request.tools or ())
    asked |= {"top_p": request.top_p} if request.top_p != 1.0 else {}
    asked |= {"top_k": request.top_k} if request.top_k else {}
    asked |= {"stop": list(request.stop)} if request.stop else {}
    given = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "reasoning_effort": request.template_kwargs.get("reasoning_effort"),
    }
    return asked | {name: value for name, value in given.items() if value is not None}


def _held_to(form: ReplyForm | None, offered: Tools) -> dict[str, Any]:
    """Return the parameters that constrain the reply; the endpoint applies or refuses them."""
    if form is None:
        return {}
    if form.schema is not None:
        named = {"name": "reply", "schema": form.schema, "strict": True}
        free = form.schema == ANY_OBJECT
        kind = {"type": "json_object"} if free else {"type": "json_schema", "json_schema": named}
        return {"response_format": kind}
    one = {"parallel_tool_calls": False} if form.one_call else {}
    if len(form.tools) == len(offered) and not (form.one_call and len(offered) == 1):
        return {"tool_choice": "required", **one}
    chosen = [{"type": "function", "function": {"name": _name(tool)}} for tool in form.tools]
    if len(chosen) == 1:
        return {"tool_choice": chosen[0], **one}
    allowed = {"mode": "required", "tools": chosen}
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, **one}


def _name(tool: Mapping[str, Any]) -> str:
    return tool["function"]["name"]


def imposed(
    asked: Mapping[str, Any],
    config: EndpointConfig,
    policy: SessionSampling,
    *,
    model: str,
    number: int,
) -> dict[str, Any]:
    """Return the agent's request `number`, with the session's sampling parameters on top."""
    request = {**asked, **config.extra_body, "model": model}
    seed = policy.turn_seed(number)
    for name in config.send:
        if name == "temperature" and policy.temperature is not None:
            request[name] = policy.temperature
        elif name == "seed" and seed is not None:
            request[name] = seed
        elif name in ("max_tokens", "max_completion_tokens"):
            both = (request.pop("max_completion_tokens", None), request.pop("max_tokens", None))
            wanted = [limit for limit in both if isinstance(limit, int)]
            request[name] = min([policy.max_tokens, *wanted])
    return request
