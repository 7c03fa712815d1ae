"""The canary: a comparison of the engine's input with a new rendering by the chat template.

Conversations are continued on the exact sampled tokens, so the two may differ, but only in intended
ways: thoughts that were kept, and arguments with the model's own spelling.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Literal

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway import ChatFormat, Context, Fed, Sampled, TurnCheck, thoughts_of

from .keys import CanaryKeys

_log = logging.getLogger(__name__)

Mismatch = Literal["whitespace", "thinking", "arguments", "spelling", "other"]
"""The kind of the first difference: white space; a thought; a tool call's arguments; the same text
in other tokens; anything else."""

_LOOKAHEAD = 16
_THOUGHT = "<think>"


class Canary(TurnCheck):
    """A comparison of some turns with a rendering of the whole conversation."""

    counters: ClassVar[Mapping[str, str]] = {
        "canary_turns": "continued turns that were compared with a rendering of the whole",
        "canary_whitespace": "of these: the first difference is white space",
        "canary_thinking": "a thought that the template would drop or add",
        "canary_arguments": "the arguments of a call",
        "canary_spelling": "the same text in other tokens",
        "canary_other": "anything else",
    }

    def draws(self, config: GatewayConfig, name: str) -> bool:
        return zlib.crc32(name.encode()) < config.part(CanaryKeys).canary_fraction * 2**32

    def found(self, chat: ChatFormat, fed: Fed) -> Sequence[str]:
        kind = compare(chat, fed)
        return ["canary_turns", *([f"canary_{kind}"] if kind else [])]


CANARY = Canary()


def compare(chat: ChatFormat, fed: Fed) -> Mismatch | None:
    """Return the kind of the first difference; None if there is none."""
    try:
        rendered = chat.render(fed.messages, fed.tools, kwargs=fed.kwargs)
    except ValueError:
        return "other"
    if chat.encode(rendered) == fed.context.path.whole():
        return None
    pieces = _pieces(chat, fed.context)
    ours, theirs = "".join(text for text, _ in pieces), chat.unmarked(rendered)
    at = _first_difference(ours, theirs)
    found = "spelling" if at is None else _kind(pieces, ours, theirs, at)
    if at is not None:
        _log.debug("canary %s: fed %r, template %r", found, ours[at:][:40], theirs[at:][:40])
    return found


def _pieces(chat: ChatFormat, context: Context) -> list[tuple[str, Sampled | None]]:
    """Return the text of each node from the root; sampled text comes with its turn."""
    pieces: list[tuple[str, Sampled | None]] = []
    for node in context.base.chain() if context.base else ():
        pieces += [(chat.text(node.context.ids), None), (chat.text(node.ids), node)]
    return [*pieces, (chat.text(context.ids), None)]


def _first_difference(ours: str, theirs: str) -> int | None:
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def _kind(
    pieces: Sequence[tuple[str, Sampled | None]], ours: str, theirs: str, at: int
) -> Mismatch:
    ends = list(accumulate(len(text) for text, _ in pieces))
    index = next((i for i, end in enumerate(ends) if at < end), len(ends) - 1)
    text, node = pieces[index]
    offset = at - (ends[index] - len(text))
    here, there = ours[at:].lstrip(), theirs[at:].lstrip()
    if _opens_thought(ours, theirs, at) or _in_thought(text, node, offset):
        return "thinking"
    if node is not None and _in_call(text, node, offset):
        return "arguments"
    return "whitespace" if here[:_LOOKAHEAD] == there[:_LOOKAHEAD] else "other"


def _opens_thought(ours: str, theirs: str, at: int) -> bool:
    """Return whether a thought begins at the difference; another tag may begin alike."""
    tag = ours.rfind("<", max(at - len(_THOUGHT), 0), at)
    starts = (at, at if tag < 0 else tag)
    return any(said[i:].lstrip().startswith(_THOUGHT) for said in (ours, theirs) for i in starts)


def _in_thought(text: str, node: Sampled | None, offset: int) -> bool:
    thought = thoughts_of(node.message) if node else ""
    return bool(thought) and offset <= text.find(thought) + len(thought)


def _in_call(text: str, node: Sampled, offset: int) -> bool:
    """Return whether the offset is behind the name of the turn's first call."""
    calls = node.message.get("tool_calls") or ()
    return bool(calls) and offset >= text.find(calls[0]["function"]["name"]) >= 0
