"""The replies of a foreign endpoint that are empty for the environment: the endpoint filters them,
takes all of them for thoughts, or finds no calls in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from arl_parsers.calls_in_text import has_call

from agentgym_rl.core import is_dict, is_list
from agentgym_rl.gateway import thoughts_of, without_thoughts
from agentgym_rl.gateway.messages import text_of
from agentgym_rl.runtime import Repeated

Odd = Literal["filtered_turns", "empty_turns", "text_calls"]

_FILTERED = (
    *("content_filter", "content_filtered", "safety", "recitation", "refusal", "blocklist"),
    *("prohibited_content", "spii", "guardrail_intervened", "sensitive"),
)
"""The finish reasons of replies that a provider withholds (OpenAI, Gemini, Bedrock, GLM)."""
_WITHHOLDING = frozenset(
    {
        *("content_filter", "content_policy_violation", "invalid_prompt"),
        *("responsibleaipolicyviolation", "data_inspection_failed"),
    }
)
"""The codes and types, in lower case, of errors in place of a reply that is withheld (OpenAI,
Azure, Moonshot, Alibaba)."""
_WITHHOLDING_TEXTS = (
    "content filtering policy",
    "content management policy",
    "content exists risk",
)
"""The texts of such errors that have no code (Anthropic, Azure, DeepSeek)."""
_CALLED = ("tool_calls", "function_call", "tool_use")
"""The finish reasons of replies with calls."""
ADVICE: Mapping[str, str] = {
    "filtered_turns": "replies were withheld by a content filter of the endpoint: another endpoint "
    "or other tasks do not have it",
    "empty_turns": "replies had neither text nor calls, only thoughts or nothing: if thoughts fill "
    "the reply, raise rollout.max_tokens; if the server takes answers for thoughts, choose another "
    "reasoning parser there (vLLM, SGLang: --reasoning-parser), or none",
    "text_calls": "replies had a tool call in their text, or ended with one that the server does "
    "not give as `tool_calls`; no environment looks for it there: the server has no parser of this "
    "model's calls (vLLM: --enable-auto-tool-choice --tool-call-parser NAME; SGLang: "
    "--tool-call-parser NAME; llama.cpp: --jinja)",
}
"""What each kind means, and what helps."""

_log = logging.getLogger(__name__)


def oddity(
    request: Mapping[str, Any], reply: Mapping[str, Any], finish_reason: str | None
) -> Odd | None:
    """Return the kind of an odd reply to `request`; None: it is an ordinary one."""
    ended = (finish_reason or "").lower()
    if ended in _FILTERED:
        return "filtered_turns"
    if reply.get("tool_calls"):
        return None
    names = set(_offered(request))
    if names and (ended in _CALLED or reply.get("function_call")):
        return "text_calls"
    text = text_of(reply.get("content")) or text_of(reply.get("refusal"))
    rest = without_thoughts(text).strip()
    if not rest or (rest.startswith("<think>") and "</think>" not in rest):
        return "empty_turns"
    return "text_calls" if names and has_call(without_thoughts(text), names) else None


def withholds(error: Any) -> bool:
    """Return whether an error, as an endpoint's body has it, says that a content filter withholds
    the reply."""
    fields = error if is_dict(error) else {"message": error}
    inner, details = fields.get("innererror"), fields.get("metadata")
    named = [fields.get("code"), fields.get("type"), inner.get("code") if is_dict(inner) else None]
    if any(isinstance(name, str) and name.lower() in _WITHHOLDING for name in named):
        return True
    if is_dict(details) and "flagged_input" in details:  # OpenRouter's moderation, a 403
        return True
    message = str(fields.get("message") or "").lower()
    return any(text in message for text in _WITHHOLDING_TEXTS)


def _offered(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the functions that the model may call."""
    tools = request.get("tools")
    if request.get("tool_choice") == "none" or not is_list(tools):
        return
    for tool in tools:
        function = tool.get("function") if is_dict(tool) else None
        if is_dict(function) and isinstance(function.get("name"), str):
            yield function["name"]


class OddReplies:
    """The warnings of one endpoint's odd replies: the first of each kind at once."""

    def __init__(self) -> None:
        self._warnings = Repeated(_log)

    def warn(self, odd: Odd, reply: Mapping[str, Any]) -> None:
        """Warn of a reply."""
        text = text_of(reply.get("content")) or thoughts_of(reply)
        self._warnings.warn("%s; the reply: %.120r", ADVICE[odd], text, why=odd)
