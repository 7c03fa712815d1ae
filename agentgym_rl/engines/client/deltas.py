"""The conversion of an engine's replies: streams to deltas of the engine contract, error replies to
errors with a reason, and metrics in Prometheus' text format to counters."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import NamedTuple, TypeVar, cast, get_args

import msgspec

from agentgym_rl.core import (
    ArlError,
    ContextLengthError,
    Delta,
    EngineError,
    FinishReason,
    RequestRefused,
    RoutedTokens,
    SamplingParams,
    WeightsError,
    parse_version,
)
from agentgym_rl.engines import protocol
from agentgym_rl.runtime import MAX_ANSWER_BYTES


def read_counters(text: str) -> dict[str, float]:
    """Return the counters by name; series of one name (with different labels) are summed.

    Raises:
        ValueError: a line is not in that format.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        series, _, rest = line.rpartition("}") if "}" in line else line.partition(" ")
        name = series.partition("{")[0].strip()
        value = (rest or "").split()
        if not name or not value:
            raise ValueError(f"not Prometheus' text format: {line[:100]!r}")
        found[name] = found.get(name, 0.0) + float(value[0])
    return found


class Words(NamedTuple):
    """The texts of errors for which a kind of engine has no code."""

    too_long: tuple[str, ...] = ("maximum context length",)
    """The texts of errors about a prompt that fills the context; by default OpenAI's."""
    paused: str = ""
    """The beginning of the refusal of a request during a pause; "": requests are accepted and
    wait."""


_NOT_NOW = (408, 429)
_REASON_CHARS = 2000


class PausedError(EngineError):
    """The refusal of a request by a paused engine; no token was sampled."""


def failure(where: str, status: int, detail: protocol.ErrorDetail, words: Words) -> ArlError:
    """Return the error to raise: a ContextLengthError if the prompt fills the engine's context, a
    WeightsError if the embedded engine reports one, a PausedError if the engine is paused, a
    RequestRefused for any other 4xx that does not mean "not now", else an EngineError."""
    text = detail.message
    too_long = any(some in text for some in words.too_long)
    if too_long or detail.code == protocol.CONTEXT_LENGTH_EXCEEDED:
        return ContextLengthError(text)
    if detail.type == WeightsError.__name__:
        return WeightsError(f"{where}: {text}")
    is_paused = bool(words.paused) and text.startswith(words.paused)
    if is_paused and status == HTTPStatus.SERVICE_UNAVAILABLE:
        return PausedError(f"{where}: {text}")
    refused = 400 <= status < 500 and status not in _NOT_NOW
    return (RequestRefused if refused else EngineError)(f"{where}: {text}")


def answered(url: str, status: int, raw: bytes, words: Words) -> ArlError:
    """Return the error for a status that is not 2xx and its body."""
    return failure(f"{url}: HTTP {status}", status, _detail(raw), words)


def streamed(url: str, error: protocol.ErrorDetail | str, words: Words) -> ArlError:
    """Return the error for a chunk of a stream that began with status 200. Servers may check a
    streamed request only after that, and send the proper status as the chunk's code."""
    detail = (
        error if isinstance(error, protocol.ErrorDetail) else protocol.ErrorDetail(message=error)
    )
    status = detail.code if isinstance(detail.code, int) else 500
    return failure(f"{url}: the stream failed", status, detail, words)


def _detail(raw: bytes) -> protocol.ErrorDetail:
    """Return the reason in an error's body: an engine's, FastAPI's, or a proxy's crash page."""
    text = raw[:_REASON_CHARS].decode(errors="replace")
    try:
        reply = msgspec.json.decode(raw, type=protocol.ErrorReply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return protocol.ErrorDetail(message=text)
    if isinstance(reply.error, protocol.ErrorDetail):
        return reply.error
    return protocol.ErrorDetail(message=reply.error or str(reply.detail or text))


T = TypeVar("T")

_FINISH_REASONS = get_args(FinishReason)
NO_LOGPROB = -9999.0
"""The number in place of a log-prob that is missing, infinite or not a number."""
_decoder = functools.cache(msgspec.json.Decoder)


def decode(raw: bytes, kind: type[T], url: str) -> T:
    """Return the JSON `raw` as `kind`; raise EngineError naming `url` if it is not one."""
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"{url}: malformed reply ({len(raw)} bytes): {error}") from error


def _support(choice: protocol.Choice, url: str) -> list[list[int]]:
    """Return, for each token, the ids from which it was drawn: as the engine reports them, or else
    from the log-probs of the most likely tokens; empty if these are too few."""
    if choice.sampling_mask is not None:
        return choice.sampling_mask
    support: list[list[int]] = []
    for item in choice.logprobs.content if choice.logprobs else ():
        likely = decode(bytes(item.top_logprobs) or b"[]", list[protocol.Alternative], url)
        left = [one.token_id for one in likely if one.logprob > NO_LOGPROB]
        if len(left) == len(likely):
            return []
        support.append(left)
    return support


Read = Callable[[bytes, str, int], protocol.Choice]
"""A function that reads a reply, or one chunk of a stream, from its JSON, the URL for messages, and
the number of earlier tokens. It raises the errors of `EventStream.feed`."""


class Terms(NamedTuple):
    """The properties of a request and its engine on which the reading of the reply depends."""

    has_spans: bool = True
    """Whether the engine reports policy versions."""
    num_prompt: int = 0
    """The number of tokens of the prompt."""
    truncated: bool = False
    """Whether deltas have the sets from which tokens were drawn."""
    experts_from: int | None = None
    """The first position whose experts were requested; None: none were."""
    max_bytes: int = MAX_ANSWER_BYTES
    """The maximum size of the reply, in bytes."""


_PLAIN = Terms()
_TOKEN_BYTES, _EXPERTS_BYTES, _ID_BYTES = 4096, 8192, 64
"""The maximum sizes of parts of a reply, in bytes: a token with its event of the stream; the
experts of a token (94 layers of 8 are 1,003 bytes); one id of the set from which it was drawn."""
_MOST_IDS = 1 << 18
"""The size of the largest vocabulary."""


def longest_reply(num_prompt: int, sampling: SamplingParams) -> int:
    """Return the maximum size of a reply, in bytes, far above what engines send."""
    ids = (sampling.top_k or _MOST_IDS) if sampling.truncated_by else 1
    found = MAX_ANSWER_BYTES + sampling.max_tokens * (_TOKEN_BYTES + ids * _ID_BYTES)
    if sampling.experts_from is not None:
        found += (num_prompt + sampling.max_tokens) * _EXPERTS_BYTES
    return found


def whole(raw: bytes, url: str, *, read: Read, terms: Terms = _PLAIN) -> Delta:
    """Return the only delta of a reply that was not streamed.

    Raises:
        EngineError: it is malformed, unfinished, or has tokens without log-prob or version.
    """
    choice = read(raw, url, 0)
    if choice.finish_reason is None:
        raise EngineError(f"{url}: the reply has no finish_reason")
    return _Output(url, terms).take(choice)


class EventStream:
    """A server-sent event stream as deltas, up to and with the one that has a finish_reason.

    Tokens come as they arrive, each version once the engine has reported it (some: at the end).
    """

    def __init__(self, url: str, *, read: Read, terms: Terms = _PLAIN) -> None:
        self._url = url
        self._read = read
        self._output = _Output(url, terms)
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """Yield the deltas that `piece` completes; b"" is the end of the stream.

        Raises:
            EngineError: after these deltas, the stream ended early, carried an error, or was
                malformed; or versions do not match the tokens.
            ContextLengthError, RequestRefused: see `failure`.
        """
        # A part without an end is not searched again: it may grow by many pieces.
        seen = max(0, len(self._rest) - 1)
        self._rest += piece
        events: list[bytes] = []
        if (end := self._rest.rfind(b"\n\n", seen)) >= 0:
            events = bytes(self._rest[:end]).split(b"\n\n")
            del self._rest[: end + 2]
        for payload in _payloads(events):
            yield self._output.take(self._read(payload, self._url, self._output.num_tokens))
        if not piece:
            raise EngineError(
                f"{self._url}: the stream ended after {self._output.num_tokens} tokens without a "
                "finish_reason"
            )


def _payloads(events: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the payloads of the `data:` events, without `[DONE]`."""
    for event in events:
        payload = event.removeprefix(b"data:").strip()
        if event.startswith(b"data:") and payload != protocol.DONE:
            yield payload


def read_choice(raw: bytes, url: str, before: int, *, words: Words) -> protocol.Choice:
    """Read a reply of `protocol`; see `Read`."""
    reply = decode(raw, protocol.GenerateReply, url)
    if reply.error is not None:
        raise streamed(url, reply.error, words)
    if len(reply.choices) != 1:
        raise EngineError(f"{url}: expected one choice, got {len(reply.choices)}")
    return reply.choices[0]


class _Output:
    """The output of one request so far: each token gets its version once, in token order."""

    def __init__(self, url: str, terms: Terms) -> None:
        self.num_tokens = 0
        self._url = url
        self._terms = terms
        self._versions: list[int] = []

    def take(self, choice: protocol.Choice) -> Delta:
        """Return the next tokens, and the versions that have become known."""
        token_ids = choice.token_ids or []
        logprobs = [item.logprob for item in choice.logprobs.content] if choice.logprobs else []
        times = choice.decode_times
        if times is None:  # not reported: the time of arrival is used
            times = [time.monotonic()] * len(token_ids)
        start, self.num_tokens = self.num_tokens, self.num_tokens + len(token_ids)
        if not len(token_ids) == len(logprobs) == len(times):
            raise EngineError(
                f"{self._url}: from token {start}: {len(token_ids)} token_ids, {len(logprobs)} "
                f"logprobs, {len(times)} decode_times"
            )
        support = _support(choice, self._url) if self._terms.truncated else []
        if support and len(support) != len(token_ids):
            raise EngineError(
                f"{self._url}: from token {start}: {len(token_ids)} token_ids, and a sampling_mask "
                f"of {len(support)}"
            )
        if min(logprobs, default=0.0) <= NO_LOGPROB:
            raise EngineError(
                f"{self._url}: a token from {start} on has no log-prob (the engine says "
                f"{NO_LOGPROB:g}); do the weights give finite logits?"
            )
        if choice.finish_reason is not None and choice.finish_reason not in _FINISH_REASONS:
            raise EngineError(f"{self._url}: unknown finish_reason {choice.finish_reason!r}")
        return Delta(
            token_ids=token_ids,
            logprobs=logprobs,
            versions=self._stamped(choice) if self._terms.has_spans else [],
            times_s=times,
            finish_reason=cast("FinishReason | None", choice.finish_reason),
            stop_reason=choice.stop_reason,
            support=support,
            experts=self._routed(choice),
        )

    def _routed(self, choice: protocol.Choice) -> list[RoutedTokens]:
        """Return the experts in the end of the reply, if they were requested."""
        start = self._terms.experts_from
        if start is None or choice.routed_experts is None:
            return []
        try:
            experts = protocol.read_experts(choice.routed_experts)
        except ValueError as error:
            raise EngineError(f"{self._url}: malformed routed_experts: {error}") from error
        total = self._terms.num_prompt + self.num_tokens
        if len(experts) != total - 1 - start:
            raise EngineError(
                f"{self._url}: routed_experts of {len(experts)} tokens, expected those of tokens "
                f"{start} to {total - 2} of {total}"
            )
        return [RoutedTokens(start, experts)]

    def _stamped(self, choice: protocol.Choice) -> list[int]:
        """Return the versions of tokens that had none yet; spans may repeat earlier reports."""
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

    def _version(self, span: protocol.VersionSpan) -> int:
        try:
            return parse_version(span.version)
        except ValueError as error:
            raise EngineError(f"{self._url}: {error}") from error
