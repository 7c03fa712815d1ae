"""Parsers of the model's text stream to content, reasoning and tool calls, a file per family.

    events → blocks → hermes, qwen3_xml     <tool_call> … </tool_call>
           → llama3_json                    the whole message is a call
           → response_template              the tokenizer's description of replies
           → think                          thoughts first, the rest by one of the others
    families                                the choice of a model's parser
    grammars, lark                          grammars of the replies these parsers accept

A closed call is a call, whatever its content: a malformed one reaches the environment, which
answers with an error from which the model can learn. A call that never closes is content.
"""

from .events import Event, Parser, Reasoning, TextParser, ToolCall
from .families import PROMPT_END_TOKENS, ParserFactory, readers_of
from .grammars import Grammars
from .hermes import HermesParser, parse_call
from .llama3_json import Llama3JsonParser
from .qwen3_xml import Qwen3XmlParser
from .response_template import ResponseTemplate, ResponseTemplateParser
from .think import ThinkParser

__all__ = [
    "PROMPT_END_TOKENS",
    "Event",
    "Grammars",
    "HermesParser",
    "Llama3JsonParser",
    "Parser",
    "ParserFactory",
    "Qwen3XmlParser",
    "Reasoning",
    "ResponseTemplate",
    "ResponseTemplateParser",
    "TextParser",
    "ThinkParser",
    "ToolCall",
    "parse_call",
    "readers_of",
]
