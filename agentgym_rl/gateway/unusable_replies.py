"""The replies of an external endpoint that the environment cannot use, because of the endpoint: its
filter withheld them, its parser took all text for thoughts, or it did not parse their calls."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agentgym_rl.core.chat import is_dict, is_list
from agentgym_rl.gateway.messages import text_of, thoughts_of, without_thoughts
from agentgym_rl.gateway.parsers import Parser, ToolCall
from agentgym_rl.gateway.parsers.formats import FORMATS
from agentgym_rl.runtime.log import Repeated

Unusable = Literal["filtered_turns", "empty_turns", "text_calls"]

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
"""The words of such errors without a code of their own (Anthropic, Azure, DeepSeek)."""
_CALLED = ("tool_calls", "function_call", "tool_use")
"""The finish reasons of replies with calls."""
_CALL = (
    r"""["'](?:name|function|tool|tool_name|recipient_name)["']\s*:\s*["'](?:functions\.)?"""
    r"""(?:{names})["']|<function=(?:{names})>|<invoke name="(?:{names})">"""
    r"""|```tool_code\s[^`]*\b(?:{names})\(|^\s*Action:\s*(?:{names})\s*$"""
)
"""Calls of these functions in JSON or as a dictionary, in XML, as Gemma writes them, and as ReAct
does."""
_LONGEST = 32_000
"""The number of characters at the beginning of a reply that are searched for calls."""
ADVICE: Mapping[Unusable, str] = {
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
"""The meaning of each kind, and its remedy."""

_log = logging.getLogger(__name__)


def unusable_kind(
    request: Mapping[str, Any], reply: Mapping[str, Any], finish_reason: str | None
) -> Unusable | None:
    """Return the reason why the reply to `request` is unusable; None: it is usable."""
    ended = (finish_reason or "").lower()
    if ended in _FILTERED:
        return "filtered_turns"
    if reply.get("tool_calls"):
        return None
    names = set(_offered(request))
    if names and (ended in _CALLED or reply.get("function_call")):
        return "text_calls"
    text = text_of(reply.get("content")) or text_of(reply.get("refusal"))
    answer = without_thoughts(text).strip()
    if not answer or (answer.startswith("<think>") and "</think>" not in answer):
        return "empty_turns"
    return "text_calls" if names and has_call(without_thoughts(text), names) else None


def withholds(error: Any) -> bool:
    """Return whether an endpoint's error object means that a content filter withheld the reply."""
    fields = error if is_dict(error) else {"message": error}
    inner, details = fields.get("innererror"), fields.get("metadata")
    named = [fields.get("code"), fields.get("type"), inner.get("code") if is_dict(inner) else None]
    if any(isinstance(name, str) and name.lower() in _WITHHOLDING for name in named):
        return True
    if is_dict(details) and "flagged_input" in details:  # OpenRouter's moderation, a 403
        return True
    message = str(fields.get("message") or "").lower()
    return any(part in message for part in _WITHHOLDING_TEXTS)


def _offered(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the functions that the model may call."""
    tools = request.get("tools")
    if request.get("tool_choice") == "none" or not is_list(tools):
        return
    for tool in tools:
        function = tool.get("function") if is_dict(tool) else None
        if is_dict(function) and isinstance(function.get("name"), str):
            yield function["name"]


def has_call(text: str, names: set[str]) -> bool:
    """Return whether some family's parser finds a call of one of these functions at the beginning
    of `text`, or JSON there looks like one."""
    text = text[:_LONGEST]
    either = "|".join(map(re.escape, names))
    if re.search(_CALL.format(names=either), text, re.MULTILINE):
        return True
    return any(_finds(family, text, names) for family in FORMATS)


def _finds(family: str, text: str, names: set[str]) -> bool:
    parser = FORMATS[family](())
    calls = calls_of(parser, text)
    marked = any(tag in text for tag in parser.begins)
    return any(call.name in names or (marked and call.malformed) for call in calls)


def has_tagged_call(text: str) -> bool:
    """Return whether the beginning of `text` has a complete call between some family's tags, of any
    function."""
    text = text[:_LONGEST]
    parsers = (FORMATS[family](()) for family in FORMATS)
    tagged = (parser for parser in parsers if any(tag in text for tag in parser.begins))
    return any(not call.malformed for parser in tagged for call in calls_of(parser, text))


def calls_of(parser: Parser, text: str) -> list[ToolCall]:
    """Return the calls that a parser finds in a complete reply."""
    events = [*parser.feed(text), *parser.finish(ended=True)]
    return [event for event in events if isinstance(event, ToolCall)]


class UnusableReplies:
    """The warnings about one endpoint's unusable replies: the first of each kind is logged at
    once."""

    def __init__(self) -> None:
        self._warnings = Repeated(_log)

    def warn(self, kind: Unusable, reply: Mapping[str, Any]) -> None:
        """Log a warning about a reply, if it is the first of its kind."""
        shown = text_of(reply.get("content")) or thoughts_of(reply)
        self._warnings.warn("%s; the reply: %.120r", ADVICE[kind], shown, why=kind)
