"""What an engine's error answers mean, and the reason each of them gives."""

from __future__ import annotations

import msgspec

from agentgym_rl.errors import (
    ArlError,
    ContextLengthError,
    EngineError,
    RequestRefused,
    WeightsError,
)

from . import wire

_TOO_LONG = ("maximum context length", "maximum model length")
"""vLLM's words for a prompt that fills the context; it has no code for that."""
_NOT_NOW = (408, 429)
_REASON_CHARS = 2000


def failure(where: str, status: int, detail: wire.ErrorDetail) -> ArlError:
    """The error to raise: a ContextLengthError if the prompt fills the engine's context, a
    WeightsError if the embedded engine says so, a RequestRefused for any other 4xx that does not
    mean "not now", else an EngineError."""
    text = detail.message
    if detail.code == wire.CONTEXT_LENGTH_EXCEEDED or any(words in text for words in _TOO_LONG):
        return ContextLengthError(text)
    if detail.type == WeightsError.__name__:
        return WeightsError(f"{where}: {text}")
    refused = 400 <= status < 500 and status not in _NOT_NOW
    return (RequestRefused if refused else EngineError)(f"{where}: {text}")


def answered(url: str, status: int, raw: bytes) -> ArlError:
    """The error behind a status that is not 2xx and its body."""
    return failure(f"{url}: HTTP {status}", status, _detail(raw))


def streamed(url: str, error: wire.ErrorDetail | str) -> ArlError:
    """The error behind a chunk of a stream, which began with status 200: vLLM checks most of a
    streamed request after that, and gives the status it would have had as the chunk's code."""
    detail = error if isinstance(error, wire.ErrorDetail) else wire.ErrorDetail(message=error)
    status = detail.code if isinstance(detail.code, int) else 500
    return failure(f"{url}: the stream failed", status, detail)


def _detail(raw: bytes) -> wire.ErrorDetail:
    """Why, from an error's body: an engine's, FastAPI's, or a proxy's crash page."""
    text = raw[:_REASON_CHARS].decode(errors="replace")
    try:
        reply = msgspec.json.decode(raw, type=wire.ErrorReply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return wire.ErrorDetail(message=text)
    if isinstance(reply.error, wire.ErrorDetail):
        return reply.error
    return wire.ErrorDetail(message=reply.error or str(reply.detail or text))
