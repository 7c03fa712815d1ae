"""Chat messages and tools, in the form of OpenAI's API: tests of their values, whose types are not
known, and the transcript of the messages given to an environment, to replay an episode."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import AgentError

if TYPE_CHECKING:  # in `typing` only from Python 3.13 on
    from typing_extensions import TypeIs


def is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    """Return whether `value` is a mapping; test dict first, as abstract classes are slow."""
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def is_dict(value: object) -> TypeIs[dict[str, Any]]:
    """Return whether `value` is a dict."""
    return isinstance(value, dict)


def is_tuple(value: object) -> TypeIs[tuple[Any, ...]]:
    """Return whether `value` is a tuple, as Python's own values may be where JSON has lists."""
    return isinstance(value, tuple)


def is_list(value: object) -> TypeIs[list[Any]]:
    """Return whether `value` is a list."""
    return isinstance(value, list)


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


_UNKNOWN_TO_MSGSPEC = (TypeError, ValueError, OverflowError, RecursionError)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Transcript:
    """The actions of an episode, and a checksum of the answer to each."""

    def __init__(self) -> None:
        self.actions: list[bytes] = []
        """The assistant messages as JSON, encoded at once: the agent may change its own objects
        later."""
        self.answers: list[int] = []
        """The CRC-32 of the first messages as JSON, then of the answer to each action."""

    def act(self, action: object) -> None:
        """Record an action.

        Raises:
            AgentError: the action is no mapping of JSON values, like OpenAI messages.
        """
        # msgspec would write dataclasses too, which environments cannot read
        if not is_mapping(action):
            raise AgentError(_refusal(action, "it is no mapping"))
        try:
            encoded = _encode(action)
        except _UNKNOWN_TO_MSGSPEC:
            encoded = _json(action)
        self.actions.append(encoded)

    def answered(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Record the checksum of the environment's answer."""
        try:
            encoded = _encode(messages)
        except _UNKNOWN_TO_MSGSPEC:
            encoded = repr(messages).encode("utf-8", "backslashreplace")
        self.answers.append(zlib.crc32(encoded))


def _json(action: object) -> bytes:
    """Return the action as `json` encodes it, which supports lone surrogates and huge numbers;
    models write both."""
    try:
        return json.dumps(action, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentError(_refusal(action, str(error))) from error


def _plain(value: object) -> dict[str, Any]:
    if is_mapping(value):
        return {str(key): item for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is no JSON")


def _refusal(action: object, why: str) -> str:
    hint = "; use its model_dump()" if hasattr(action, "model_dump") else ""
    return (
        f"env.step takes an assistant message as a dict of JSON, got {type(action).__name__} "
        f"({why}){hint}"
    )
