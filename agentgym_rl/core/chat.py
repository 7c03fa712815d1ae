"""Chat messages and tools, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

Message = Mapping[str, Any]
"""An OpenAI chat message; never mutated by the framework."""


ToolSpec = Mapping[str, Any]
"""An OpenAI function tool: {"type": "function", "function": {name, description, parameters}}."""


_TEXT_PARTS = ("text", "input_text", "output_text")
"""The types of a message's content parts that are text, in OpenAI's APIs."""


def text_message(message: Message) -> Message:
    """Return the message with its content as one text, if it is a list of text parts.

    Parts are joined without a separator, as chat templates do.

    Raises:
        ValueError: a part is not text, such as an image.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": _joined(cast(list[Any], content))}


def _joined(parts: Sequence[Any]) -> str:
    texts: list[str] = []
    for part in parts:
        fields = cast(Mapping[str, Any], part if isinstance(part, Mapping) else {})
        kind, text = fields.get("type", "text"), fields.get("text")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise ValueError(
                f"content: got the part {part!r:.60}, expected text: a string, or a list of "
                '{"type": "text", "text": ...}; images and other media cannot be played'
            )
        texts.append(text)
    return "".join(texts)
