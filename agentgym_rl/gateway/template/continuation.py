"""Cutting a rendered conversation behind a turn: what follows a reply, as the template writes it.

    by_sentinel   renders a stand-in for the reply and the new messages only
    by_count      renders the whole conversation and counts ends of turns up to the reply

Either way the tail begins at an added token or just behind one, where tokenizers never merge, so
that its tokens can be appended to those that were sampled.
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
"""render(messages, tools, add_generation_prompt=True); raises ValueError on what it refuses."""

SENTINEL = f"said{secrets.token_hex(8)}"
"""Stands for what was sampled. Nobody can say it: it is drawn anew in each process."""
OPENING: Mapping[str, Any] = {"role": "user", "content": "."}


@dataclass(frozen=True)
class TurnEnd:
    """The added tokens that an assistant's turn ends with.

    Most templates close a turn with a token of its own. In others it ends where the next one
    opens, with a token that says whose (`opens`), and models sample that one to stop.
    """

    texts: tuple[str, ...]
    opens: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches any of them."""
        longest_first = sorted(self.texts, key=len, reverse=True)
        return re.compile("|".join(re.escape(text) for text in longest_first))

    def tail(self, text: str, match: re.Match[str]) -> str:
        """What follows a turn that ends with `match`; an opening token is part of it."""
        return text[match.start() if self.opens else match.end() :]


def by_sentinel(
    render: Render, end: TurnEnd, reply: Mapping[str, Any], new: Messages, tools: Tools
) -> str:
    """What follows `reply` when `new` was said after it. Of it only its calls' names matter.

    Raises:
        ValueError: the template refuses these messages, or shows nothing of the reply.
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
    """What follows the last reply, the message before the last `num_new` ones.

    Raises:
        ValueError: the template refuses these messages, or the reply's end is not in the whole.
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
    """A call with the sentinel inside: some templates show nothing else of a turn that calls."""
    name = end.pattern.sub("", call["function"]["name"])  # models name functions as they like
    function = {"name": name, "arguments": f'{{"said": "{SENTINEL}"}}'}
    return {"id": call.get("id"), "type": "function", "function": function}
