"""The transcript of the actions given to an environment, byte for byte, to replay an episode."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .chat import is_mapping
from .errors import AgentError

_UNKNOWN_TO_MSGSPEC = (TypeError, ValueError, OverflowError, RecursionError)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Transcript:
    """The actions of an episode, and a checksum of the environment's answer to each."""

    def __init__(self) -> None:
        self.actions: list[bytes] = []
        """The assistant messages as JSON, encoded at once: the agent may change its own objects
        later."""
        self.answers: list[int] = []
        """The CRC-32 of the first messages as JSON, then of the answer to each action."""

    def act(self, action: object) -> None:
        """Record an action.

        Raises:
            AgentError: the action is not a mapping of JSON values, as OpenAI messages are.
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
    """Return the action as `json` encodes it, which supports unpaired surrogates and huge numbers;
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
