"""Replies read by a parser, and what the tests of several families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from agentgym_rl.gateway import Reasoning, ToolCall
from agentgym_rl.gateway.parsers import Parser


@dataclass(frozen=True)
class Read:
    """What a reply adds up to."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


def read(parser: Parser, *pieces: str) -> Read:
    """The reply that comes as `pieces`."""
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    return Read(
        "".join(event for event in events if isinstance(event, str)),
        tuple(event for event in events if isinstance(event, ToolCall)),
        "".join(event.text for event in events if isinstance(event, Reasoning)),
    )


def check_cuts(make: Callable[[], Parser], text: str, cuts: Iterable[int]) -> None:
    """`text` reads the same whole, in single characters, and in pieces of these lengths."""
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = read(make(), text)
    assert read(make(), *pieces, rest) == whole
    assert read(make(), *text) == whole


def texts(*pieces: str, most: int = 12) -> st.SearchStrategy[str]:
    """Texts put together of these pieces."""
    return st.lists(st.sampled_from(pieces), max_size=most).map("".join)


CUTS = st.lists(st.integers(1, 9), max_size=40)


def tool(name: str = "f", **properties: Any) -> dict[str, Any]:
    """A tool with these parameters."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
