"""Which sampled turn an assistant message of a client is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .messages import MessageKey, request_of, text_of
from .nodes import Sampled


def rewritten(replies: Sequence[Sampled], message: Mapping[str, Any]) -> Sampled | None:
    """The turn whose tool-call ids a message carries that says something else."""
    request = request_of(message)
    return next((node for node in replies if node.request == request), None)


def echoed(
    same: Sequence[Sampled], message: Mapping[str, Any], behind: tuple[MessageKey, ...] | None
) -> tuple[Sampled, bool]:
    """Which of several turns that say the same a client echoes, and whether that is a guess.

    Its tool-call ids tell; else its exact text; else that these messages have followed it before
    (`behind`); else it is the last one that reached the client.
    """
    if len(same) == 1:
        return same[0], False
    request, text = request_of(message), text_of(message.get("content"))
    for node in same:
        if node.request == request:
            return node, False
    exact = [node for node in same if text_of(node.message.get("content")) == text] or same
    if len(exact) == 1:
        return exact[0], False
    followed = [node for node in exact if behind is not None and behind in node.next]
    reached = [node for node in exact if node.delivered]
    return (followed or reached or exact)[-1], True


def until_next_reply(
    messages: Sequence[Mapping[str, Any]], keys: Sequence[MessageKey], index: int
) -> tuple[MessageKey, ...] | None:
    """The keys between the assistant message `index` and the next one; None: there is none."""
    for later in range(index + 1, len(messages)):
        if messages[later]["role"] == "assistant":
            return tuple(keys[index + 1 : later])
    return None


def restored(ours: Mapping[str, Any], echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was sampled, under the tool-call ids that the client knows it by."""
    theirs = echo.get("tool_calls") or ()
    if not theirs or len(theirs) != len(ours.get("tool_calls") or ()):
        return ours
    calls = zip(ours["tool_calls"], theirs, strict=True)
    return {**ours, "tool_calls": [{**call, "id": other.get("id")} for call, other in calls]}
