"""Parsers of the model's text stream to content, reasoning and tool calls, a file per family.

    parser → hermes, qwen3_coder_xml        <tool_call> … </tool_call>
           → llama3_json                    the whole message is a call
           → response_template              the tokenizer's description of replies
           → think                          thoughts first, the rest by one of the others
    families                                the choice of a model's parser
    grammars, lark                          grammars of the replies these parsers accept

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
