"""Replies of the wire protocol as deltas of the engine contract."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast, get_args

import msgspec

from agentgym_rl.engine import Delta, FinishReason, parse_version
from agentgym_rl.errors import EngineError

from . import failures, wire

T = TypeVar("T")

_FINISH_REASONS = get_args(FinishReason)
_NO_LOGPROB = -9999.0
"""What vLLM reports in place of a log-prob that is missing, infinite or not a number."""
_decode_reply = msgspec.json.Decoder(wire.GenerateReply).decode


def decode(raw: bytes, kind: type[T], url: str) -> T:
    """`raw` JSON as `kind`; raises EngineError naming `url` when it is not one."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"{url}: malformed reply ({len(raw)} bytes): {error}") from error


def whole(raw: bytes, url: str, *, has_spans: bool = True) -> Delta:
    """The one delta of a reply that was not streamed.

    Raises:
        EngineError: malformed, unfinished, or tokens without log-prob or version.
    """
    choice = _choice(raw, url)
    if choice.finish_reason is None:
        raise EngineError(f"{url}: the reply has no finish_reason")
    return _Output(url, has_spans=has_spans).take(choice)


class EventStream:
    """A server-sent event stream as deltas, up to and with the one that has a finish_reason.

    Tokens come as they arrive, each version once the engine has said it (vLLM: at the end).
    With `has_spans` False no version comes at all.
    """

    def __init__(self, url: str, *, has_spans: bool = True) -> None:
        self._url = url
        self._output = _Output(url, has_spans=has_spans)
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """The deltas that `piece` completes; b"" is the end of the stream.

        Raises:
            EngineError: after what came, that the stream ended early, carried an error, or was
                malformed; or that versions do not match the tokens.
            ContextLengthError, RequestRefused: as `failures.py` says.
        """
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for payload in _payloads(events):
            yield self._output.take(_choice(payload, self._url))
        if not piece:
            raise EngineError(
                f"{self._url}: the stream ended after {self._output.num_tokens} tokens without a "
                "finish_reason"
            )


def _payloads(events: Sequence[bytes]) -> Iterator[bytes]:
    """What the `data:` events carry, `[DONE]` left out."""
    for event in events:
        payload = event.removeprefix(b"data:").strip()
        if event.startswith(b"data:") and payload != wire.DONE:
            yield payload


def _choice(raw: bytes, url: str) -> wire.Choice:
    try:
        reply = _decode_reply(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"{url}: malformed reply ({len(raw)} bytes): {error}") from error
    if reply.error is not None:
        raise failures.streamed(url, reply.error)
    if len(reply.choices) != 1:
        raise EngineError(f"{url}: expected one choice, got {len(reply.choices)}")
    return reply.choices[0]


class _Output:
    """The output of one request so far: each token gets its version once, in token order."""

    def __init__(self, url: str, *, has_spans: bool) -> None:
        self.num_tokens = 0
        self._url = url
        self._has_spans = has_spans
        self._versions: list[int] = []

    def take(self, choice: wire.Choice) -> Delta:
        """The next tokens, and the versions that have become known."""
        token_ids = choice.token_ids or []
        logprobs = [item.logprob for item in choice.logprobs.content] if choice.logprobs else []
        times = choice.decode_times
        if times is None:  # not reported: time of arrival
            times = [time.monotonic()] * len(token_ids)
        start, self.num_tokens = self.num_tokens, self.num_tokens + len(token_ids)
        if not len(token_ids) == len(logprobs) == len(times):
            raise EngineError(
                f"{self._url}: from token {start}: {len(token_ids)} token_ids, {len(logprobs)} "
                f"logprobs, {len(times)} decode_times"
            )
        if min(logprobs, default=0.0) <= _NO_LOGPROB:
            raise EngineError(
                f"{self._url}: a token from {start} on has no log-prob (the engine says "
                f"{_NO_LOGPROB:g}); do the weights give finite logits?"
            )
        if choice.finish_reason is not None and choice.finish_reason not in _FINISH_REASONS:
            raise EngineError(f"{self._url}: unknown finish_reason {choice.finish_reason!r}")
        return Delta(
            token_ids=token_ids,
            logprobs=logprobs,
            versions=self._stamped(choice) if self._has_spans else [],
            times_s=times,
            finish_reason=cast("FinishReason | None", choice.finish_reason),
            stop_reason=choice.stop_reason,
        )

    def _stamped(self, choice: wire.Choice) -> list[int]:
        """Versions of tokens that had none; spans may repeat what was said before."""
        known = len(self._versions)
        for span in choice.weight_versions or ():
            version = self._version(span)
            before = self._versions[span.start : span.end]
            fits = 0 <= span.start <= len(self._versions) and span.end <= self.num_tokens
            if not fits or any(stamp != version for stamp in before):
                raise EngineError(
                    f"{self._url}: version {version} is said to have sampled tokens "
                    f"[{span.start}, {span.end}) of {self.num_tokens}, which does not go with "
                    f"the {len(self._versions)} versions before"
                )
            self._versions += [version] * (span.end - len(self._versions))
        if choice.finish_reason is not None and len(self._versions) != self.num_tokens:
            raise EngineError(
                f"{self._url}: weight_versions cover {len(self._versions)} of {self.num_tokens} "
                "tokens; this engine cannot say which policy sampled the rest"
            )
        return self._versions[known:]

    def _version(self, span: wire.VersionSpan) -> int:
        try:
            return parse_version(span.version)
        except ValueError as error:
            raise EngineError(f"{self._url}: {error}") from error
