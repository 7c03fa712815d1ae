"""The client of the engine contract over HTTP: what all engines have in common, and the routes of
`protocol`. The kinds of engines have clients of their own."""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, get_args

import msgspec

from agentgym_rl.core import (
    UNKNOWN_VERSION,
    Delta,
    Engine,
    EngineError,
    RequestRefused,
    SamplingParams,
    WeightsError,
    parse_version,
    too_slow,
    version_label,
)
from agentgym_rl.engines import protocol
from agentgym_rl.runtime import ENGINE_CLOCK

from .deltas import (
    EventStream,
    PausedError,
    Read,
    Terms,
    Words,
    decode,
    longest_reply,
    read_counters,
    whole,
)
from .http import Connection

T = TypeVar("T")
Total = Literal["tokens", "put_back", "prompts", "prefilled", "reused"]
Measure = Literal["running", "waiting", "kv_use"] | Total
"""A number of `core.engine.EngineLoad`; totals count from the start of the server."""
MEASURES: Sequence[Measure] = (
    *("running", "waiting", "kv_use"),
    *get_args(Total),
)
Route = tuple[str, dict[str, Any] | None]
"""The path and the body of a POST request."""

_encode = msgspec.json.Encoder().encode
_POLL_S = 0.02
"""The pause between two polls of a pause."""
_END_TIMEOUT_S = 0.1
"""The longest wait for the end of a stream whose last token has arrived."""
_RESUME_TIMEOUT_S = 5.0
"""The longest wait for a resume after a failure."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request for tokens: its route, its body, and the reader of its reply."""

    path: str
    body: bytes
    read: Read


class ClientOptions(TypedDict, total=False):
    """The options that clients of all kinds have; see `EngineClient`."""

    timeout_s: float
    control_timeout_s: float
    has_spans: bool
    incarnation: int
    kind: str


class EngineClient(Engine):
    """An engine behind a URL. Safe for any number of concurrent requests of one event loop.

    Each call ends by its deadline. A failed transport, a 5xx, a malformed reply, or a stream
    without a finish_reason is an EngineError naming the URL; a 4xx is a RequestRefused. A request
    that a paused engine refuses (`Words.paused`) waits in the client, as other engines make it
    wait.

    Args:
        has_spans: Whether the engine reports the version that sampled each token. If False (old
            releases of servers), deltas and `info` have no versions.
        incarnation: The first part of the version labels that the client sets; may be changed
            later.
        kind: The name of the kind of server, for other processes that make a client for it.
    """

    health_path: ClassVar[str] = "/health"
    """The route that answers 200 at once while the server is healthy, even while it is paused."""
    words: ClassVar[Words] = Words()
    """The texts of errors that have no code."""
    metrics: ClassVar[Mapping[Measure, str]] = {
        "running": "arl_engine_running",
        "waiting": "arl_engine_waiting",
        "tokens": "arl_engine_generated_tokens_total",
        "prompts": "arl_engine_prompt_tokens_total",
        "prefilled": "arl_engine_prefilled_tokens_total",
        "reused": "arl_engine_prefix_cache_hits_total",
    }
    """The names of its measures on /metrics; the embedded engine has no KV memory to fill."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 120.0,
        control_timeout_s: float = 120.0,
        has_spans: bool = True,
        incarnation: int = 0,
        kind: str = "",
    ) -> None:
        self.kind = kind
        self._connection = Connection(url, self.words)
        self.url = self._connection.url
        self._timeout_s = timeout_s
        self._control_timeout_s = control_timeout_s
        self.has_spans = has_spans
        self.incarnation = incarnation
        self.asleep = False
        """Whether `sleep` was called here, and not all memory has been woken since."""
        self._polling = asyncio.Lock()
        self._ran_s = -math.inf
        """The time of the last query at which the engine was not paused."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    async def move(self, url: str) -> None:
        """Use this URL for the engine from now on; requests in flight to the old one fail."""
        await self._connection.close()
        self._connection = Connection(url, self.words)
        self.url = self._connection.url
        self.asleep = False

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        stream: bool = False,
        cache_salt: str = "",
    ) -> AsyncIterator[Delta]:
        """Sample a reply; see `Sampler.generate`.

        Raises:
            ContextLengthError: the prompt fills the engine's context.
            RequestRefused: the engine does not accept such a request.
            EngineError: any other failure.
        """
        request = await self._request(
            token_ids, sampling, request_id=request_id, stream=stream, cache_salt=cache_salt
        )
        terms = Terms(
            self.has_spans,
            num_prompt=len(token_ids),
            truncated=bool(sampling.truncated_by) and sampling.reports_support,
            experts_from=self._experts_from(sampling),
            max_bytes=longest_reply(len(token_ids), sampling),
        )
        deadline, begun = None, False
        while True:
            try:
                sampled = self._sampled(request, terms, session_id=session_id, stream=stream)
                async with aclosing(sampled) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
                return
            except PausedError as refusal:
                if begun:  # sampled tokens cannot be sampled again
                    raise
                deadline = deadline or ENGINE_CLOCK.time() + self._timeout_s
                await self._resumed(refusal, deadline)

    async def _sampled(
        self, request: TokenRequest, terms: Terms, *, session_id: str, stream: bool
    ) -> AsyncGenerator[Delta, None]:
        """Send a request once, and yield its reply."""
        url = self.url + request.path
        headers = {"X-Session-ID": session_id}
        async with self._connection.post(
            request.path,
            request.body,
            headers=headers,
            timeout_s=self._timeout_s,
            max_bytes=terms.max_bytes,
        ) as reply:
            if not stream:
                yield whole(await reply.whole(), url, read=request.read, terms=terms)
                return
            events = EventStream(url, read=request.read, terms=terms)
            while True:
                for delta in events.feed(await reply.piece()):
                    if delta.finish_reason is not None:  # only the stream's end follows
                        await reply.drain(timeout_s=_END_TIMEOUT_S)
                        yield delta
                        return
                    yield delta

    def _experts_from(self, sampling: SamplingParams) -> int | None:
        """Return the first position whose experts the engine is to report; None: it cannot report
        them."""
        return None

    @abstractmethod
    async def _request(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        stream: bool,
        cache_salt: str,
    ) -> TokenRequest:
        """Return the request for a reply."""

    async def _resumed(self, refusal: PausedError, deadline: float) -> None:
        """Wait until the engine reports, after its refusal, that it is not paused. Only one of all
        waiting requests queries it.

        Raises:
            EngineError: it could not be queried, or was paused until `deadline` (on the clock
                `ENGINE_CLOCK`).
        """
        refused_s = time.monotonic()
        try:
            async with ENGINE_CLOCK.timeout(deadline - ENGINE_CLOCK.time()), self._polling:
                while self._ran_s < refused_s:
                    await asyncio.sleep(_POLL_S)
                    queried_s = time.monotonic()
                    if not (await self._get("/is_paused", protocol.Paused)).is_paused:
                        self._ran_s = queried_s
        except TimeoutError:
            late = too_slow(f"{refusal} A resume", "engine.request_timeout_s", self._timeout_s)
            raise EngineError(late) from refusal

    async def name_version(self, version: int) -> None:
        """Label the served weights as `version`, from the next token on. Do nothing for an engine
        without labels.

        Raises:
            EngineError: the engine could not be reached or failed.
        """
        if not self.has_spans:
            return
        label = version_label(version, incarnation=self.incarnation)
        await self._call("POST", "/update_weight_version", {"new_version": label} | self._naming)

    _naming: ClassVar[dict[str, Any]] = {}
    """The additional fields of a request that labels the served version."""
    _label_path: ClassVar[str] = "/weight_info"
    """The route that returns the label of the served version."""

    async def served_version(self) -> int:
        """Return the version served now; UNKNOWN_VERSION if no label has been set.

        Raises:
            EngineError: the engine could not be reached or failed, or has a foreign label.
        """
        if not self.has_spans:
            return UNKNOWN_VERSION
        label = (await self._get(self._label_path, protocol.WeightInfo)).weight_version
        if label == protocol.UNNAMED:
            return UNKNOWN_VERSION
        try:
            return parse_version(label)
        except ValueError as error:
            raise EngineError(f"{self.url}{self._label_path}: {error}") from error

    async def counters(self) -> dict[str, float]:
        """Return the metrics of /metrics (Prometheus' text format) by name; series of one name are
        summed.

        Raises:
            EngineError: the engine could not be reached or failed, or sent another format.
        """
        raw = await self._call("GET", "/metrics")
        try:
            return read_counters(raw.decode())
        except ValueError as error:
            raise EngineError(f"{self.url}/metrics: {error}") from error

    async def measures(self) -> dict[Measure, float]:
        """Return what the engine reports of its load on /metrics; 0 where it reports nothing.

        Raises:
            EngineError: see `counters`.
        """
        counters = await self.counters()
        return {key: counters.get(self.metrics.get(key, ""), 0.0) for key in MEASURES}

    async def close(self) -> None:
        await self._connection.close()

    async def _card(self) -> tuple[str, int]:
        """Return the name of the model that the engine serves, and its context length."""
        models = await self._get("/v1/models", protocol.ModelList)
        if not models.data or (context := models.data[0].max_model_len) is None:
            raise EngineError(f"{self.url}/v1/models lists no model with a max_model_len")
        return models.data[0].id, context

    _resuming: ClassVar[Route] = ("/resume", None)
    """The route that resumes, and its body."""

    async def resume(self) -> None:
        await self._call("POST", *self._resuming)

    async def _resume_after(self, failure: BaseException) -> None:
        """Resume the engine after `failure`; if that fails, too, add the reason to `failure` as a
        note."""
        path, body = self._resuming
        try:
            data = None if body is None else _encode(body)
            await self._connection.call("POST", path, data, timeout_s=_RESUME_TIMEOUT_S)
        except EngineError as error:
            failure.add_note(f"resuming failed too: {error}")

    async def _weights(self, path: str, body: Any = None) -> None:
        """Make the request of one step of an update; a refusal by the engine is a WeightsError."""
        try:
            await self._call("POST", path, body)
        except RequestRefused as error:
            raise WeightsError(str(error)) from error

    async def _get(self, path: str, kind: type[T]) -> T:
        return decode(await self._call("GET", path), kind, self.url + path)

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else _encode(body)
        return await self._connection.call(method, path, data, timeout_s=self._control_timeout_s)
