"""Calls in the text of a complete reply, in whatever family's notation."""

from __future__ import annotations

import re

from agentgym_rl.gateway import Format, Parser, ToolCall, call_formats

_CALL = (
    r"""["'](?:name|function|tool|tool_name|recipient_name)["']\s*:\s*["'](?:functions\.)?"""
    r"""(?:{names})["']|<function=(?:{names})>|<invoke name="(?:{names})">"""
    r"""|```tool_code\s[^`]*\b(?:{names})\(|^\s*Action:\s*(?:{names})\s*$"""
)
"""Calls of these functions in JSON or as a dictionary, in XML, as Gemma writes them, and as ReAct
does."""
_LONGEST = 32_000
"""The number of characters of a reply that are searched for calls."""


def has_call(text: str, names: set[str]) -> bool:
    """Return whether some family's parser finds a call of one of these functions in the begin of
    `text`, or JSON looks like one."""
    text = text[:_LONGEST]
    either = "|".join(map(re.escape, names))
    if re.search(_CALL.format(names=either), text, re.MULTILINE):
        return True
    return any(_finds(family, text, names) for family in call_formats().values())


def _finds(family: Format, text: str, names: set[str]) -> bool:
    parser = family(())
    calls = calls_of(parser, text)
    marked = any(tag in text for tag in parser.begins)
    return any(call.name in names or (marked and call.malformed) for call in calls)


def has_tagged_call(text: str) -> bool:
    """Return whether the begin of `text` has a complete call between some family's tags, whatever
    the functions are."""
    text = text[:_LONGEST]
    parsers = (family(()) for family in call_formats().values())
    tagged = (parser for parser in parsers if any(tag in text for tag in parser.begins))
    return any(not call.malformed for parser in tagged for call in calls_of(parser, text))


def calls_of(parser: Parser, text: str) -> list[ToolCall]:
    """Return the calls that a parser finds in a complete reply."""
    events = [*parser.feed(text), *parser.finish(ended=True)]
    return [event for event in events if isinstance(event, ToolCall)]
