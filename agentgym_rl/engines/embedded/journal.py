"""The journal: an append-only record of each request's prompt and sampled tokens, for audits."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from agentgym_rl.engines.protocol import VersionSpan

from .request import Request


class JournalLine(msgspec.Struct, kw_only=True):
    """A record of one request, written when it ends, before its reply is sent."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    weight_versions: list[VersionSpan]
    decode_times: list[float]
    temperature: float
    recomputed_at: list[int]
    """The output lengths at which the KV cache was rebuilt under the weights served then."""
    finish_reason: str | None
    error: str | None


class Journal:
    """A file of JSON lines at `path`, one per request; opened for appending, flushed line by line.

    Requests still open when the engine stops or dies get no reply and have no line.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, request: Request) -> None:
        line = JournalLine(
            request_id=request.id,
            prompt_token_ids=request.prompt,
            token_ids=request.token_ids,
            logprobs=request.logprobs,
            weight_versions=request.spans(0, len(request.token_ids)),
            decode_times=request.times_s,
            temperature=request.sampling.temperature,
            recomputed_at=request.recomputed_at,
            finish_reason=request.finish_reason,
            error=request.error,
        )
        self._file.write(msgspec.json.encode(line) + b"\n")


def read_journal(path: Path) -> list[JournalLine]:
    """Return all lines of a journal; raise msgspec.DecodeError on a damaged one."""
    decoder = msgspec.json.Decoder(JournalLine)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
