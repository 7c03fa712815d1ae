"""Environments whose tools are methods: schemas from type hints, answers to any malformed call.

Most environments need only `ToolEnv` and `@tool`; `read_call`, `reply_to` and `answer_calls` are
the same machinery for tools that are not methods.
"""

from .answers import Answered, Results, answer_calls, as_text
from .calls import BadCall, Call, listed, read_call, reply_to, text_of
from .env import ToolEnv
from .schema import Tool, ToolError, tool

__all__ = [
    "Answered",
    "BadCall",
    "Call",
    "Results",
    "Tool",
    "ToolEnv",
    "ToolError",
    "answer_calls",
    "as_text",
    "listed",
    "read_call",
    "reply_to",
    "text_of",
    "tool",
]
