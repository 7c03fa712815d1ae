"""Parsers of the model's text stream to content, reasoning and tool calls.

    families                    the choice of a model's parser, of the formats that are installed
    formats                     the contract of a format of calls, and the registry
    json_calls                  the format of the bundled models: JSON objects in blocks
    think                       thoughts first, the rest by one of the others
    grammars                    the contract of grammars of the replies these parsers accept

The formats of other families, and the grammars, are in `extensions/arl_parsers`.

A closed call is a call, whatever its content: a malformed one reaches the environment, which
answers with an error from which the model can learn. A call that never closes is content.
"""

from .families import readers_of
from .grammars import Grammars
from .parser import (
    PROMPT_END_TOKENS,
    Event,
    Parser,
    ParserFactory,
    Reasoning,
    TextParser,
    ToolCall,
)

__all__ = [
    "PROMPT_END_TOKENS",
    "Event",
    "Grammars",
    "Parser",
    "ParserFactory",
    "Reasoning",
    "TextParser",
    "ToolCall",
    "readers_of",
]
