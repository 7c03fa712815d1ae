"""What an environment was told, byte for byte: enough to play the episode again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .errors import AgentError

_UNKNOWN_TO_MSGSPEC = (TypeError, ValueError, OverflowError, RecursionError)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Transcript:
    """The actions of an episode, and a checksum of what each was answered."""

    def __init__(self) -> None:
        self.actions: list[bytes] = []
        """Assistant messages as JSON, taken down as they came: the agent may go on to change its
        own."""
        self.answers: list[int] = []
        """CRC-32 of the first messages as JSON, then of the answer to each action."""

    def act(self, action: object) -> None:
        """Take down an action.

        Raises:
            AgentError: it is no mapping of JSON, as OpenAI messages are.
        """
        # msgspec would write dataclasses too, which environments cannot read
        if not isinstance(action, dict) and not isinstance(action, Mapping):
            raise AgentError(_refusal(action, "it is no mapping"))
        try:
            encoded = _encode(action)
        except _UNKNOWN_TO_MSGSPEC:
            encoded = _json(action)
        self.actions.append(encoded)

    def answered(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Take down what the environment said."""
        try:
            encoded = _encode(messages)
        except _UNKNOWN_TO_MSGSPEC:
            encoded = repr(messages).encode("utf-8", "backslashreplace")
        self.answers.append(zlib.crc32(encoded))


def _json(action: object) -> bytes:
    """As `json` writes it, which knows lone surrogates and huge numbers; models write both."""
    try:
        return json.dumps(action, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentError(_refusal(action, str(error))) from error


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
