"""The text after a reply as the template writes it, cut out of a rendered conversation.

    by_sentinel   renders only a stand-in for the reply and the new messages
    by_count      renders the complete conversation and counts ends of turns up to the reply

Either way the tail begins at or directly after an added token, where tokenizers never merge, so its
tokens can be appended to the sampled ones.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
Render = Callable[..., str]
"""A function (messages, tools, add_generation_prompt=True) that raises ValueError on refusal."""

SENTINEL = f"said{secrets.token_hex(8)}"
"""A stand-in for the sampled text. No text can contain it: each process draws it anew."""
OPENING: Mapping[str, Any] = {"role": "user", "content": "."}


@dataclass(frozen=True)
class TurnEnd:
    """The added tokens at the end of an assistant's turn.

    Most templates close a turn with a token of its own. Other templates end a turn at the next
    opening token, which names the next role (`opens`); models sample that token to stop.
    """

    texts: tuple[str, ...]
    opens: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern that matches any of the tokens."""
        longest_first = sorted(self.texts, key=len, reverse=True)
        return re.compile("|".join(re.escape(text) for text in longest_first))

    def tail(self, text: str, match: re.Match[str]) -> str:
        """Return the text after a turn that ends with `match`; an opening token is part of it."""
        return text[match.start() if self.opens else match.end() :]


def by_sentinel(
    render: Render, end: TurnEnd, reply: Mapping[str, Any], new: Messages, tools: Tools
) -> str:
    """Return the text after `reply` if `new` follows. Only the names of its calls matter.

    Raises:
        ValueError: the template refuses these messages, or does not show the reply.
    """
    said: dict[str, Any] = {"role": "assistant", "content": SENTINEL}
    if reply.get("tool_calls"):
        said["tool_calls"] = [_stand_in(call, end) for call in reply["tool_calls"]]
    rendered = render([OPENING, said, *new], tools)
    at = rendered.rfind(SENTINEL)
    match = end.pattern.search(rendered, at) if at >= 0 else None
    if match is None:
        raise ValueError("this chat template does not end assistant turns")
    return end.tail(rendered, match)


def by_count(render: Render, end: TurnEnd, messages: Messages, num_new: int, tools: Tools) -> str:
    """Return the text after the last reply, which precedes the last `num_new` messages.

    Raises:
        ValueError: the template refuses these messages, or the reply's end is not found.
    """
    said = messages[: len(messages) - num_new]
    count = len(end.pattern.findall(render(said, tools, add_generation_prompt=False)))
    whole = render(messages, tools)
    ends = list(end.pattern.finditer(whole))
    index = count if end.opens else count - 1
    if not 0 <= index < len(ends):
        raise ValueError("this chat template does not end assistant turns")
    return end.tail(whole, ends[index])


def _stand_in(call: Mapping[str, Any], end: TurnEnd) -> dict[str, Any]:
    """Return a call with the sentinel inside: some templates show only the calls of such a turn."""
    name = end.pattern.sub("", call["function"]["name"])  # models may use any name
    function = {"name": name, "arguments": f'{{"said": "{SENTINEL}"}}'}
    return {"id": call.get("id"), "type": "function", "function": function}
