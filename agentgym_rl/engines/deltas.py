"""Replies of the wire protocol as deltas of the engine contract."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import TypeVar, cast, get_args

import msgspec

from agentgym_rl.engine import Delta, FinishReason, parse_version
from agentgym_rl.errors import EngineError

from . import wire

T = TypeVar("T")

_FINISH_REASONS = get_args(FinishReason)
_decode_reply = msgspec.json.Decoder(wire.GenerateReply).decode


def decode(raw: bytes, kind: type[T], url: str) -> T:
    """`raw` JSON as `kind`; raises EngineError naming `url` when it is not one."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise EngineError(f"{url}: malformed reply ({len(raw)} bytes): {error}") from error


def whole(raw: bytes, url: str) -> Delta:
    """The one delta of a reply that was not streamed.

    Raises:
        EngineError: malformed, unfinished, or tokens without log-prob or version.
    """
    choice = _choice(raw, url)
    if choice.finish_reason is None:
        raise EngineError(f"{url}: the reply has no finish_reason")
    return _delta(choice, 0, url)


async def streamed(chunks: AsyncIterator[bytes], url: str) -> AsyncGenerator[Delta, None]:
    """Deltas of a server-sent event stream, up to and with the one that has a finish_reason.

    Tokens whose version is not known yet (vLLM reports spans on the last chunk only) are held
    back until it is.

    Raises:
        EngineError: the stream ends early, carries an error, or is malformed.
    """
    held: list[wire.Choice] = []
    count = 0
    buffer = b""
    async for chunk in chunks:
        *events, buffer = (buffer + chunk).split(b"\n\n")
        for payload in _payloads(events):
            choice = _choice(payload, url)
            _stamp_arrival(choice)
            held.append(choice)
            if choice.weight_versions is None and choice.finish_reason is None:
                continue
            delta = _delta(_joined(held), count, url)
            yield delta
            count += len(delta.token_ids)
            held.clear()
            if choice.finish_reason is not None:
                return
    raise EngineError(f"{url}: the stream ended after {count} tokens without a finish_reason")


def _payloads(events: Sequence[bytes]) -> Iterator[bytes]:
    """What the `data:` events carry, `[DONE]` left out."""
    for event in events:
        payload = event.removeprefix(b"data:").strip()
        if event.startswith(b"data:") and payload != wire.DONE:
            yield payload


def _choice(raw: bytes, url: str) -> wire.Choice:
    try:
        reply = _decode_reply(raw)
    except msgspec.DecodeError as error:
        raise EngineError(f"{url}: malformed reply ({len(raw)} bytes): {error}") from error
    if reply.error is not None:
        raise EngineError(f"{url}: the stream failed: {reply.error.message}")
    if len(reply.choices) != 1:
        raise EngineError(f"{url}: expected one choice, got {len(reply.choices)}")
    return reply.choices[0]


def _stamp_arrival(choice: wire.Choice) -> None:
    if choice.decode_times is None:
        choice.decode_times = [time.monotonic()] * len(choice.token_ids or ())


def _joined(choices: Sequence[wire.Choice]) -> wire.Choice:
    if len(choices) == 1:
        return choices[0]
    last = choices[-1]
    return wire.Choice(
        token_ids=[t for c in choices for t in c.token_ids or ()],
        logprobs=wire.Logprobs([p for c in choices if c.logprobs for p in c.logprobs.content]),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        weight_versions=last.weight_versions,
        decode_times=[t for c in choices for t in c.decode_times or ()],
    )


def _versions(choice: wire.Choice, start: int, url: str) -> list[int]:
    """Policy version of each token of `choice`, whose first token is output token `start`."""
    end = start + len(choice.token_ids or ())
    versions: list[int] = []
    for span in choice.weight_versions or ():
        count = min(span.end, end) - max(span.start, start)
        try:
            versions += [parse_version(span.version)] * max(count, 0)
        except ValueError as error:
            raise EngineError(f"{url}: {error}") from error
    if len(versions) != end - start:
        raise EngineError(
            f"{url}: weight_versions cover {len(versions)} of tokens [{start}, {end}); "
            "this engine cannot say which policy sampled them"
        )
    return versions


def _delta(choice: wire.Choice, start: int, url: str) -> Delta:
    versions = _versions(choice, start, url)
    _stamp_arrival(choice)
    token_ids = choice.token_ids or []
    content = choice.logprobs.content if choice.logprobs else []
    times = choice.decode_times or []
    if not len(token_ids) == len(content) == len(times):
        raise EngineError(
            f"{url}: from token {start}: {len(token_ids)} token_ids, {len(content)} logprobs, "
            f"{len(times)} decode_times"
        )
    if choice.finish_reason is not None and choice.finish_reason not in _FINISH_REASONS:
        raise EngineError(f"{url}: unknown finish_reason {choice.finish_reason!r}")
    return Delta(
        token_ids=token_ids,
        logprobs=[item.logprob for item in content],
        versions=versions,
        times_s=times,
        finish_reason=cast(FinishReason | None, choice.finish_reason),
        stop_reason=choice.stop_reason,
    )
