"""The choice of the parser for a model's replies: by the config, or by the chat template."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.template.template import OPENING

from .grammars import Grammars
from .hermes import HermesParser
from .llama3_json import Llama3JsonParser
from .parser import Event, Parser, ToolCall
from .qwen3_coder_xml import Qwen3XmlParser
from .response_template import ResponseTemplate, ResponseTemplateParser
from .think import CLOSE, OPEN, ThinkParser

_log = logging.getLogger(__name__)

Tools = Sequence[Mapping[str, Any]]
ParserFactory = Callable[[Tools | None, str], Parser]
"""A function that makes the parser of one reply from the tools (None if calls are not to be read)
and the end of the prompt as text. `PROMPT_END_TOKENS` tokens of the prompt are enough."""
PROMPT_END_TOKENS = 32


class TextParser(Parser):
    """A parser that returns content only: for requests without tools."""

    def feed(self, text: str) -> list[Event]:
        return [text] if text else []

    def finish(self) -> list[Event]:
        return []


FAMILIES: Mapping[str, Callable[[Tools], Parser]] = {
    "qwen3_xml": Qwen3XmlParser,
    "hermes": lambda tools: HermesParser(),
    "llama3_json": lambda tools: Llama3JsonParser(),
}
_MENTIONS = {"qwen3_xml": "<function=", "hermes": "<tool_call>", "llama3_json": "<|python_tag|>"}


def readers_of(chat: ChatFormat, config: GatewayConfig) -> tuple[ParserFactory, Grammars]:
    """Return parsers for the replies of the model with format `chat`, and matching grammars.

    Raises:
        ConfigError: the config names a parser that does not fit the model.
    """
    family = detect(chat) if config.tool_parser == "auto" else config.tool_parser
    thinks = _thinks(chat, config)
    grammars = Grammars(chat, family=family, thinks=thinks)
    warn = _warning(chat, unread=family == "none" and config.tool_parser == "auto")
    if family == "response_template":
        make = _by_template(chat, config)
    else:
        make = _by_family(family, thinks=thinks)

    def open_parser(tools: Tools | None, prompt_end: str) -> Parser:
        if tools is not None:
            warn()
        return make(tools, prompt_end)

    return open_parser, grammars


def _by_family(family: str, *, thinks: bool) -> ParserFactory:
    _log.info(
        "tool calls are read as %s, thoughts as %s",
        "content" if family == "none" else family,
        "reasoning" if thinks else "content",
    )
    make = FAMILIES.get(family, lambda tools: TextParser())

    def open_parser(tools: Tools | None, prompt_end: str) -> Parser:
        inner = TextParser() if tools is None else make(tools)
        opened = prompt_end.rstrip().endswith(OPEN)
        return ThinkParser(inner, opened=opened) if thinks else inner

    return open_parser


def _thinks(chat: ChatFormat, config: GatewayConfig) -> bool:
    return config.reasoning_parser == "think" or (
        config.reasoning_parser == "auto" and chat.template.mentions(CLOSE)
    )


def _warning(chat: ChatFormat, *, unread: bool) -> Callable[[], None]:
    """Return a function that warns once why offered tools cannot work with this model."""

    @functools.cache
    def warn() -> None:
        if unread:
            _log.warning(
                "tools are offered, but in the chat template no format of tool calls was "
                "recognised: calls stay text; if the model writes them in one of these, set "
                "gateway.tool_parser: %s",
                ", ".join(FAMILIES),
            )
        if not _shows_tools(chat):
            _log.warning(
                "tools are offered, but the chat template does not write them into the prompt: "
                "the model is never told of them. Use a model whose template knows tools, or "
                "describe them, and how to call them, in the system message"
            )

    return warn


def _shows_tools(chat: ChatFormat) -> bool:
    """Return whether the name of an offered tool is in the prompt."""
    for head in ([], [{"role": "system", "content": "."}]):
        try:
            if _NAME in chat.render([*head, OPENING], _TOOLS):
                return True
        except ValueError:  # some templates have no system message
            continue
    return False


def _by_template(chat: ChatFormat, config: GatewayConfig) -> ParserFactory:
    spec = chat.template.response_template
    if spec is None:
        raise ConfigError(
            "gateway.tool_parser is 'response_template', but the model's tokenizer_config.json "
            f"has none; allowed: auto, {', '.join(FAMILIES)}, none"
        )
    if config.reasoning_parser != "auto":
        raise ConfigError(
            f"gateway.reasoning_parser is {config.reasoning_parser!r}, but with a response "
            "template (gateway.tool_parser) the template says what a thought is; allowed: auto"
        )
    template = ResponseTemplate(spec)
    _log.info("replies are read by the tokenizer's response template")
    return functools.partial(ResponseTemplateParser, template)


def detect(chat: ChatFormat) -> str:
    """Return the family in which the chat template writes calls: the first that reads a call back.

    If the template writes no call into a conversation but mentions a family's tag, return that
    family; else the tokenizer's response template; else "none".
    """
    written = _written_call(chat)
    for family, make in FAMILIES.items():
        if _reads(make(_TOOLS), written):
            return family
    if _NAME not in written:
        for family, mention in _MENTIONS.items():
            if chat.template.mentions(mention):
                return family
    return "none" if chat.template.response_template is None else "response_template"


def _reads(parser: Parser, text: str) -> bool:
    calls = [e for e in [*parser.feed(text), *parser.finish()] if isinstance(e, ToolCall)]
    return [(call.name, call.malformed) for call in calls] == [(_NAME, False)] and (
        msgspec.json.decode(calls[0].arguments) == _ARGUMENTS
    )


_NAME = "probe_call"
_ARGUMENTS = {"text": "\u00e9 <b>", "count": 3}
_SAID = "\ue004said\ue005"
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
            },
        },
    }
]


def _written_call(chat: ChatFormat) -> str:
    """Return the template's text of a reply that is one call; "" if it refuses or ignores calls."""
    function = {"name": _NAME, "arguments": msgspec.json.encode(_ARGUMENTS).decode()}
    call = {"type": "function", "id": "call_0_0", "function": function}
    said = {"role": "assistant", "content": _SAID}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        head, found, _ = chat.render([OPENING, said], _TOOLS).partition(_SAID)
        whole = chat.render([OPENING, calls], _TOOLS)
    except ValueError:
        return ""
    if not found:
        return ""
    pairs = enumerate(zip(head, whole, strict=False))
    end = next((at for at, (one, other) in pairs if one != other), min(len(head), len(whole)))
    tag = whole.rfind("<", 0, end)  # the template may open a thought in only one of them
    return whole[tag if tag > whole.rfind(">", 0, end) else end :]
