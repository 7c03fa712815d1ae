"""Environments whose tools are methods: schemas from type hints, answers to any malformed call.

Most environments need only `ToolEnv` and `@tool`; `read_call`, `reply_to` and `answer_calls` do the
same for tools that are not methods, `one_argument_tool` and `argument_of` for a tool that takes one
string.
"""

from .calls import (
    SEEN,
    Answered,
    BadCall,
    Call,
    NotJson,
    Results,
    ToolError,
    answer_calls,
    argument_of,
    as_text,
    listed,
    one_argument_tool,
    read_call,
    reply_to,
    text_of,
)
from .env import BadResult, ToolEnv
from .schema import Tool, tool

__all__ = [
    "SEEN",
    "Answered",
    "BadCall",
    "BadResult",
    "Call",
    "NotJson",
    "Results",
    "Tool",
    "ToolEnv",
    "ToolError",
    "answer_calls",
    "argument_of",
    "as_text",
    "listed",
    "one_argument_tool",
    "read_call",
    "reply_to",
    "text_of",
    "tool",
]
