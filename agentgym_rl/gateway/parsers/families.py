"""The choice of the parser for a model's replies: by the config, or by the chat template."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import msgspec

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import ConfigError, absent_members, in_order, load_extension
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.template.template import OPENING

from .formats import PARSERS, Format, call_formats
from .grammars import Grammars, ModelFormat, open_grammars
from .parser import Parser, ParserFactory, TextParser, ToolCall, Tools
from .think import THOUGHTS, ThinkParser, Thoughts

_log = logging.getLogger(__name__)


def readers_of(chat: ChatFormat, config: GatewayConfig) -> tuple[ParserFactory, Grammars]:
    """Return parsers for the replies of the model with format `chat`, and matching grammars.

    Raises:
        ConfigError: the config names a parser that does not fit the model, or the format of its
            replies is one whose package is not installed.
    """
    family = detect(chat) if config.tool_parser == "auto" else config.tool_parser
    calls = None if family == "none" else load_extension(PARSERS, family, of=Format)
    name, thoughts = _thoughts(chat, config)
    grammars = open_grammars(ModelFormat(chat=chat, family=family, calls=calls, thoughts=thoughts))
    warn = _warning(chat, unread=family == "none" and config.tool_parser == "auto")
    if calls is not None and calls.whole is not None:
        _check_thoughts(family, config)
        make = calls.whole(chat)
        _log.debug("replies are read as %s, thoughts included", family)
    else:
        make = _by_calls(calls or Format(), thoughts)
        shown = f"reasoning ({name})" if thoughts else "content"
        _log.debug(
            "tool calls are read as %s, thoughts as %s", family if calls else "content", shown
        )

    def open_parser(tools: Tools | None, prompt_end: str) -> Parser:
        if tools is not None:
            warn()
        return make(tools, prompt_end)

    return open_parser, grammars


def _by_calls(calls: Format, thoughts: Thoughts | None) -> ParserFactory:
    def open_parser(tools: Tools | None, prompt_end: str) -> Parser:
        inner = TextParser() if tools is None else calls(tools)
        if thoughts is None:
            return inner
        return ThinkParser(inner, opened=thoughts.opened(prompt_end), thoughts=thoughts)

    return open_parser


def _thoughts(chat: ChatFormat, config: GatewayConfig) -> tuple[str, Thoughts | None]:
    """Return the name of the parser of thoughts and their tags; None if thoughts are content."""
    name = config.reasoning_parser
    if name == "auto":
        known = in_order(THOUGHTS, of=Thoughts)
        name = next((it for it in known if chat.template.mentions(known[it].closes[0])), "none")
    return name, None if name == "none" else load_extension(THOUGHTS, name, of=Thoughts)


def _check_thoughts(family: str, config: GatewayConfig) -> None:
    if config.reasoning_parser != "auto":
        raise ConfigError(
            f"gateway.reasoning_parser is {config.reasoning_parser!r}, but with "
            f"gateway.tool_parser {family!r} the format itself says what a thought is; "
            "allowed: auto"
        )


def _warning(chat: ChatFormat, *, unread: bool) -> Callable[[], None]:
    """Return a function that warns once why offered tools cannot work with this model."""

    @functools.cache
    def warn() -> None:
        if unread:
            _log.warning(
                "tools are offered, but in the chat template no format of tool calls was "
                "recognised: calls stay text; if the model writes them in one of these, set "
                "gateway.tool_parser: %s.%s",
                ", ".join(call_formats()),
                absent_members(PARSERS),
            )
        if chat.omits_tools:
            _log.warning(
                "tools are offered, but the chat template does not write them into the prompt "
                "(gateway.hidden_tools is 'omit'): the model learns of them only if the agent "
                "describes them, and how to call them, in its messages"
            )

    return warn


def detect(chat: ChatFormat) -> str:
    """Return the family in which the chat template writes calls: `hermes` if they are text
    because it has none (`template.fitting`), else the first that reads a call back.

    If the template writes no call into a conversation but contains a family's tag, return that
    family; else the tokenizer's response template; else "none".
    """
    if chat.calls_as_text:
        return "hermes"
    written = _written_call(chat)
    formats = call_formats()
    for family, make in formats.items():
        if _reads(make(_TOOLS), written):
            return family
    if _NAME not in written:
        for family, known in formats.items():
            if known.mention and chat.template.mentions(known.mention):
                return family
    return "none" if chat.template.response_template is None else "response_template"


def _reads(parser: Parser, text: str) -> bool:
    calls = [e for e in [*parser.feed(text), *parser.finish()] if isinstance(e, ToolCall)]
    return [(call.name, call.malformed) for call in calls] == [(_NAME, False)] and (
        msgspec.json.decode(calls[0].arguments) == _ARGUMENTS
    )


_NAME = "probe_call"
_ARGUMENTS = {"text": "\u00e9 <b>", "count": 3}
_REPLY_TEXT = "\ue004said\ue005"
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "The text."},
                    "count": {"type": "integer", "description": "The number of times."},
                },
                "required": ["text", "count"],
            },
        },
    }
]


def _written_call(chat: ChatFormat) -> str:
    """Return the template's text of a reply that is one call; "" if it refuses or ignores calls."""
    function = {"name": _NAME, "arguments": msgspec.json.encode(_ARGUMENTS).decode()}
    call = {"type": "function", "id": f"call_0_0:functions.{_NAME}:0", "function": function}
    reply = {"role": "assistant", "content": _REPLY_TEXT}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        head, found, _ = chat.render([OPENING, reply], _TOOLS).partition(_REPLY_TEXT)
        whole = chat.render([OPENING, calls], _TOOLS)
    except ValueError:
        return ""
    if not found:
        return ""
    pairs = enumerate(zip(head, whole, strict=False))
    end = next((at for at, (one, other) in pairs if one != other), min(len(head), len(whole)))
    tag = whole.rfind("<", 0, end)  # the template may open a thought in only one of them
    return whole[tag if tag > whole.rfind(">", 0, end) else end :]
