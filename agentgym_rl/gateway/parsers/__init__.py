"""Parsers of the model's text stream to content, reasoning and tool calls, a file per family.

    families                    the choice of a model's parser
    formats                     the families' tags, as data, for these kinds of calls:
      json_calls                  JSON objects, arrays of them, or a name and JSON, in blocks
      xml_calls                   a name and tagged values, in blocks
      message_calls, literals     complete messages: JSON, or Python's notation; Gemma's notation
      harmony                     channels
    response_template           the tokenizer's own description of replies
    think                       thoughts first, the rest by one of the others
    grammars, lark              grammars of the replies these parsers accept

A closed call is a call, whatever its content: a malformed one reaches the environment, which
answers with an error from which the model can learn. A call that never closes is content.
"""

from .families import PROMPT_END_TOKENS, ParserFactory, TextParser, readers_of
from .grammars import Grammars
from .parser import Event, Parser, Reasoning, ToolCall

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
