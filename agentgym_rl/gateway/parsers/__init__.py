"""The model's text, as it streams in, as content, reasoning and tool calls: one file a family.

    events → blocks → hermes, qwen3_xml     <tool_call> … </tool_call>
           → llama3_json                    the whole message is a call
           → response_template              what the tokenizer says of it
           → think                          thoughts first, the rest by one of the others
    families                                which of them a model needs
    grammars, qwen3_grammar                 what holds a reply to what these read

A call that has closed is a call, whatever is in it: a malformed one reaches the environment,
which answers with an error the model can learn from. A call that never closes is content.
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
