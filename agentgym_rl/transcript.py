"""What an environment was told, byte for byte: enough to play the episode again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .errors import AgentError

_encode = msgspec.json.Encoder(order="deterministic").encode


class Transcript:
    """The actions of an episode, and a checksum of what each was answered."""

    def __init__(self) -> None:
        self.actions: list[bytes] = []
        """Assistant messages as JSON, taken down as they came: the agent may go on to change its
        own."""
        self.answers: list[int] = []
        """`checksum` of the first messages, then of the answer to each action."""

    def act(self, action: object) -> None:
        """Take down an action.

        Raises:
            AgentError: it is no JSON object, as OpenAI messages are.
        """
        try:
            encoded = _json(action)
        except (TypeError, ValueError, RecursionError) as error:
            raise AgentError(_refusal(action, str(error))) from error
        if not encoded.startswith(b"{"):
            raise AgentError(_refusal(action, "it is no object"))
        self.actions.append(encoded)

    def answered(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Take down what the environment said."""
        self.answers.append(checksum(messages))


def checksum(messages: Sequence[Mapping[str, Any]]) -> int:
    """CRC-32 of the messages, whatever the order of their keys; of what is no JSON, its repr."""
    try:
        return zlib.crc32(_json(messages))
    except (TypeError, ValueError, RecursionError):
        return zlib.crc32(repr(messages).encode("utf-8", "surrogatepass"))


def _json(value: object) -> bytes:
    """msgspec is ten times faster, and knows no lone surrogates, which models do write."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError):
        return json.dumps(value, sort_keys=True, default=_plain).encode()


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is no JSON")


def _refusal(action: object, why: str) -> str:
    hint = "; use its model_dump()" if hasattr(action, "model_dump") else ""
    return (
        f"env.step takes an assistant message as a dict of JSON, got {type(action).__name__} "
        f"({why}){hint}"
    )
