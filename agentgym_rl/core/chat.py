"""The chat messages and tools of OpenAI's API, and type tests for their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:  # in `typing` only from Python 3.13 on
    from typing_extensions import TypeIs


def is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    """Return whether `value` is a mapping; test dict first, as abstract classes are slow."""
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def is_dict(value: object) -> TypeIs[dict[str, Any]]:
    """Return whether `value` is a dict."""
    return isinstance(value, dict)


def is_tuple(value: object) -> TypeIs[tuple[Any, ...]]:
    """Return whether `value` is a tuple; values that do not come from JSON may have tuples in place
    of lists."""
    return isinstance(value, tuple)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Return whether `value` is a list."""
    return isinstance(value, list)


def is_url(text: str) -> bool:
    """Return whether a text is the URL of a server: http or https, a host, and a port that exists,
    if there is one; no user or password, which would be shown and recorded with the URL."""
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:  # a port beyond 65535, or no number; half of an IPv6 address
        return False
    is_plain = bool(re.match(r"https?://\S+$", text)) and "@" not in parts.netloc
    return bool(is_plain and parts.hostname and has_port)


Message = Mapping[str, Any]
"""An OpenAI chat message; never mutated by the framework."""


ToolSpec = Mapping[str, Any]
"""An OpenAI function tool: {"type": "function", "function": {name, description, parameters}}."""


_TEXT_PARTS = ("text", "input_text", "output_text")
"""The types of a message's content parts that are text, in OpenAI's APIs."""


PIECE = 32_768
"""The number of characters of an untrusted text that are searched at once: a search keeps all other
threads from running."""
RENDERED = (
    "a prompt that is rendered already, by a chat template: its control tokens would become text "
    "of a user's message inside another template's. Give the messages (a list of objects with "
    "role and content), or the user's text alone"
)
"""The reason to refuse a text for which `is_rendered` is true, and the remedy."""
_TOKEN = (
    r"(?:<[|\uff5c][^<>\n]{1,40}[|\uff5c]>|<[\w:]{1,20}_of_turn>"
    r"|<[\w:]{0,20}(?:bos|BOS)[\w:]{0,20}>|<s>)"
)
_BEGINS = re.compile(rf"{_TOKEN}|\[gMASK\]|\[INST\]")
_ANSWERS = re.compile(
    rf"{_TOKEN}\s?(?:assistant|model|bot|ai)\b|\[/INST\]"
    r"|<[|\uff5c][^<>\n]{0,20}(?:assistant|chatbot|bot|model)[^<>\n]{0,20}[|\uff5c]>",
    re.IGNORECASE,
)
_WORDS = ("assistant", "bot", "model", "ai", "[/inst]")
"""The words of which each match of `_ANSWERS` contains at least one."""
_LONGEST = 64
"""A number larger than the length of any match of these patterns and the character behind it."""


def is_rendered(text: str) -> bool:
    """Return whether a text looks like a conversation rendered by a chat template: it begins with a
    control token, and opens a turn of the assistant."""
    if not _BEGINS.match(text.lstrip()[:_LONGEST]):
        return False
    pieces = (text[start : start + PIECE + _LONGEST] for start in range(0, len(text), PIECE))
    return any(map(_opens_answer, pieces))


def _opens_answer(piece: str) -> bool:
    """Return whether a turn of the assistant is opened within the first `PIECE` characters; the
    text after them may be cut off, and is in the next piece."""
    if piece.isascii():  # else other letters may match these words
        lower = piece.lower()
        if not any(word in lower for word in _WORDS):
            return False
    match = _ANSWERS.search(piece)
    return match is not None and match.start() < PIECE


def text_message(message: Message) -> Message:
    """Return the message with its content as one text, if it is a list of text parts.

    Parts are joined without a separator, as chat templates do.

    Raises:
        ValueError: a part is not text, such as an image.
    """
    content = message.get("content")
    return {**message, "content": _joined(content)} if is_list(content) else message


def _joined(parts: Sequence[Any]) -> str:
    texts: list[str] = []
    for part in parts:
        fields: Mapping[str, Any] = part if is_mapping(part) else {}
        kind, text = fields.get("type", "text"), fields.get("text")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise ValueError(
                f"content: got the part {part!r:.60}, expected text: a string, or a list of "
                '{"type": "text", "text": ...}; images and other media cannot be played'
            )
        texts.append(text)
    return "".join(texts)
