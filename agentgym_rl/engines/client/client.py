"""The client of the engine contract over HTTP: what all engines have in common, and the routes of
the embedded engine and vLLM. Those of SGLang are in `extensions/arl_sglang/client.py`."""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from agentgym_rl.core.engine import (
    PAUSE_PATHS,
    UNKNOWN_VERSION,
    Delta,
    Engine,
    EngineInfo,
    Interrupt,
    Memory,
    SamplingParams,
    SleepLevel,
    parse_version,
    sleep_path,
    version_label,
    wake_path,
)
from agentgym_rl.core.errors import EngineError, RequestRefused, WeightsError, too_slow
from agentgym_rl.core.prompt import Prompt
from agentgym_rl.engines import protocol
from agentgym_rl.runtime.pausable_clock import ENGINE_CLOCK

from .deltas import (
    EventStream,
    PausedError,
    Read,
    Terms,
    decode,
    longest_reply,
    read_choice,
    read_counters,
    whole,
)
from .http import Connection

T = TypeVar("T")
Route = tuple[str, dict[str, Any] | None]
"""A route to be posted to, and the body."""

_encode = msgspec.json.Encoder().encode
_POLL_S = 0.02
"""The pause between two polls of the staging progress, or of a pause."""
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


class EngineClient(Engine):
    """An engine behind a URL. Safe for any number of concurrent requests of one event loop.

    Each call ends by its deadline. A failed transport, a 5xx, a malformed reply, or a stream
    without a finish_reason is an EngineError naming the URL; a 4xx is a RequestRefused. A request
    that a paused engine refuses (vLLM 0.33) waits here as it would wait there.

    Args:
        has_spans: The engine reports which version sampled which token. False (vLLM before 0.32,
            SGLang before 0.5.20): deltas have no versions, and `info` has none.
        incarnation: The first part of the version labels it gives; may be changed later.
        kind: The name of the kind of server, for other processes that make a client of it.
    """

    health_path: ClassVar[str] = "/health"
    """The route that answers 200 at once while the server is well, even while it is paused."""

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
        self._connection = Connection(url)
        self.url = self._connection.url
        self._timeout_s = timeout_s
        self._control_timeout_s = control_timeout_s
        self.has_spans = has_spans
        self.incarnation = incarnation
        self.asleep = False
        """A flag, true after a sleep call here until all memory has been woken."""
        self._asking = asyncio.Lock()
        self._ran_s = -math.inf
        """The last time at which the engine was asked whether it is paused and was not."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    async def move(self, url: str) -> None:
        """Use this URL for the engine from now on; requests under way to the old one fail."""
        await self._connection.close()
        self._connection = Connection(url)
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
        asked = await self._asked(
            token_ids, sampling, request_id=request_id, stream=stream, cache_salt=cache_salt
        )
        terms = Terms(
            self.has_spans,
            num_prompt=len(token_ids),
            truncated=bool(sampling.truncated_by),
            experts_from=self._experts_from(sampling),
            max_bytes=longest_reply(len(token_ids), sampling),
        )
        deadline, begun = None, False
        while True:
            try:
                sampled = self._sampled(asked, terms, session_id=session_id, stream=stream)
                async with aclosing(sampled) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
                return
            except PausedError as refusal:
                if begun:  # what was sampled cannot be sampled again
                    raise
                deadline = deadline or ENGINE_CLOCK.time() + self._timeout_s
                await self._resumed(refusal, deadline)

    async def _sampled(
        self, asked: TokenRequest, terms: Terms, *, session_id: str, stream: bool
    ) -> AsyncGenerator[Delta, None]:
        """Send a request once, and yield its reply."""
        url = self.url + asked.path
        headers = {"X-Session-ID": session_id}
        async with self._connection.post(
            asked.path,
            asked.body,
            headers=headers,
            timeout_s=self._timeout_s,
            max_bytes=terms.max_bytes,
        ) as reply:
            if not stream:
                yield whole(await reply.whole(), url, read=asked.read, terms=terms)
                return
            events = EventStream(url, read=asked.read, terms=terms)
            while True:
                for delta in events.feed(await reply.piece()):
                    if delta.finish_reason is not None:  # only the stream's end follows
                        await reply.drain(timeout_s=_END_TIMEOUT_S)
                        yield delta
                        return
                    yield delta

    def _experts_from(self, sampling: SamplingParams) -> int | None:
        """Return the position from which on the engine is asked for experts; None: it cannot tell
        them."""
        return None

    @abstractmethod
    async def _asked(
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
        """Wait until the engine has said, after its refusal, that it is not paused. One of all
        waiting requests asks it.

        Raises:
            EngineError: it could not be asked, or was paused until `deadline` (on the clock
                `ENGINE_CLOCK`).
        """
        refused_s = time.monotonic()
        try:
            async with ENGINE_CLOCK.timeout(deadline - ENGINE_CLOCK.time()), self._asking:
                while self._ran_s < refused_s:
                    await asyncio.sleep(_POLL_S)
                    asked_s = time.monotonic()
                    if not (await self._get("/is_paused", protocol.Paused)).is_paused:
                        self._ran_s = asked_s
        except TimeoutError:
            late = too_slow(f"{refusal} A resume", "engine.request_timeout_s", self._timeout_s)
            raise EngineError(late) from refusal

    async def name_version(self, version: int) -> None:
        """Label the served weights as `version`, from the next token on. An engine without labels
        is left alone.

        Raises:
            EngineError: the engine could not be reached or failed.
        """
        if not self.has_spans:
            return
        label = version_label(version, incarnation=self.incarnation)
        await self._call("POST", "/update_weight_version", {"new_version": label} | self._naming)

    _naming: ClassVar[dict[str, Any]] = {}
    """More fields of a request that names the served version."""
    _label_path: ClassVar[str] = "/weight_info"
    """The route that tells the label of the served version."""

    async def served_version(self) -> int:
        """Return the version served now; UNKNOWN_VERSION while the engine has no label of ours.

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
        """Resume the engine after a failure; add a failure of this to it as a note."""
        path, body = self._resuming
        try:
            data = None if body is None else _encode(body)
            await self._connection.call("POST", path, data, timeout_s=_RESUME_TIMEOUT_S)
        except EngineError as error:
            failure.add_note(f"resuming failed too: {error}")

    async def _weights(self, path: str, body: Any = None) -> None:
        """Do one step of an update; a refusal by the engine is a WeightsError."""
        try:
            await self._call("POST", path, body)
        except RequestRefused as error:
            raise WeightsError(str(error)) from error

    async def _get(self, path: str, kind: type[T]) -> T:
        return decode(await self._call("GET", path), kind, self.url + path)

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else _encode(body)
        return await self._connection.call(method, path, data, timeout_s=self._control_timeout_s)


class HttpEngine(EngineClient):
    """The embedded engine or vLLM behind a URL; see `EngineClient`.

    Args:
        send_seed: False: sampling seeds are not sent (a seed kills vLLM's CPU build).
        polls_staging: Weights are staged after the reply to `/update_weights`, as our vLLM
            plugin does, so the client has to poll until they are.
        num_alternatives: The number of log-probs per token that tell what was left to draw from
            under `top_p`, `top_k` or `min_p`; 0: the engine reports that by itself.
        adapter: The name of the adapter that requests are for; empty: the model itself.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 120.0,
        control_timeout_s: float = 120.0,
        has_spans: bool = True,
        send_seed: bool = True,
        polls_staging: bool = False,
        num_alternatives: int = 0,
        adapter: str = "",
        incarnation: int = 0,
        kind: str = "",
    ) -> None:
        super().__init__(
            url,
            timeout_s=timeout_s,
            control_timeout_s=control_timeout_s,
            has_spans=has_spans,
            incarnation=incarnation,
            kind=kind,
        )
        self._send_seed = send_seed
        self._polls_staging = polls_staging
        self._num_alternatives = num_alternatives
        self._adapter = adapter or None

    async def _asked(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        stream: bool,
        cache_salt: str,
    ) -> TokenRequest:
        body = protocol.GenerateBody(
            token_ids=wired(token_ids),
            sampling_params=self._sampling_body(sampling),
            request_id=request_id,
            model=self._adapter,
            stream=stream,
            cache_salt=cache_salt or None,
        )
        return TokenRequest(protocol.GENERATE, _encode(body), read_choice)

    async def pause(self, *, interrupt: Interrupt) -> None:
        await self._call("POST", PAUSE_PATHS[interrupt])

    async def sleep(self, *, level: SleepLevel = 1) -> None:
        self.asleep = True  # or will be soon: no resume is allowed from here on
        await self._call("POST", sleep_path(level))

    async def wake_up(self, *tags: Memory) -> None:
        path = wake_path(tags)
        raw = await self._call("POST", path)
        self.asleep = decode(raw, protocol.Woken, self.url + path).status != "awake"

    async def is_sleeping(self) -> bool:
        return (await self._get("/is_sleeping", protocol.Sleeping)).is_sleeping

    async def update_weights(self, path: str, *, version: int) -> None:
        """Load a version; see `Engine.update_weights`. The engine samples until the weights are
        staged and pauses for the swap. Afterwards it runs, even if it was paused before, unless it
        sleeps.

        Raises:
            WeightsError: the engine refused the weights, or did not load them in time.
            EngineError: the engine could not be reached or failed, and was asked to resume.
        """
        label = version_label(version, incarnation=self.incarnation)
        info = {"path": path}
        await self._weights("/init_weight_transfer_engine", {"init_info": {}})
        await self._start_update(info)
        await self._weights("/update_weights", {"update_info": info})
        if self._polls_staging:
            await self._staged(path)
        if self.asleep:
            await self._weights("/finish_weight_update", {"weight_version": label})
            return
        try:
            await self.pause(interrupt="recompute")
            await self._weights("/finish_weight_update", {"weight_version": label})
        except BaseException as error:  # cancellation too: no other code knows of the pause
            await self._resume_after(error)
            raise
        await self.resume()

    async def info(self) -> EngineInfo:
        name, context = await self._card()
        version = await self._get("/version", protocol.VersionInfo)
        served = await self.served_version()
        return EngineInfo(name, context, served, version.tokenizer_hash)

    async def _start_update(self, info: dict[str, Any]) -> None:
        try:
            await self._weights("/start_weight_update")
        except (EngineError, WeightsError):
            if not self._polls_staging:
                raise
            # vLLM starts no update while an unfinished one is open. Our plugin drops that one when
            # told to, and answers with an error so that vLLM forgets it too.
            with suppress(EngineError):
                await self._call(
                    "POST", "/update_weights", {"update_info": info | {"discard": True}}
                )
            await self._weights("/start_weight_update")

    async def _staged(self, path: str) -> None:
        """Wait until every worker of the engine has staged the file."""
        states: list[str] = []
        try:
            async with asyncio.timeout(self._control_timeout_s):
                while states.count("ready") < max(len(states), 1):
                    await asyncio.sleep(_POLL_S)
                    raw = await self._call("POST", "/collective_rpc", {"method": "arl_staging"})
                    workers = decode(
                        raw, protocol.StagingReply, f"{self.url}/collective_rpc"
                    ).results
                    for worker in workers:
                        _check_staging(worker, path, self.url)
                    states = [worker.state for worker in workers]
        except TimeoutError as error:
            raise WeightsError(
                f"{self.url}: {path} was not staged within {self._control_timeout_s:g} s; "
                f"the workers say {states}"
            ) from error

    def no_support(self, sampling: SamplingParams) -> str:
        most = self._num_alternatives - 1
        if most < 0 or 0 < sampling.top_k <= most:
            return ""
        return f"reports {most} of them at most: set top_k, to {most} or less"

    def _sampling_body(self, sampling: SamplingParams) -> protocol.SamplingBody:
        grammar = sampling.grammar
        return protocol.SamplingBody(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed if self._send_seed else None,
            stop=list(sampling.stop) or None,
            stop_token_ids=list(sampling.stop_token_ids) or None,
            structured_outputs=None if grammar is None else protocol.StructuredOutputs(grammar),
            logprobs=self._num_logprobs(sampling),
            routed_experts_prompt_start=self._experts_from(sampling),
            detokenize=bool(sampling.stop),
        )

    def _experts_from(self, sampling: SamplingParams) -> int | None:
        """Return the position from which on to ask for experts; vLLM before 0.32, which has no
        spans, does not know the parameter."""
        return sampling.experts_from if self.has_spans else None

    def _num_logprobs(self, sampling: SamplingParams) -> int:
        """Return the number of tokens to get log-probs of. From those of a truncated distribution
        it follows what was left to draw from, if one beyond it is among them."""
        if not sampling.truncated_by:
            return 0
        return min(sampling.top_k + 1 if sampling.top_k else 2**31, self._num_alternatives)


def wired(token_ids: Sequence[int]) -> list[int]:
    """Return token ids to be encoded. Those of a `Prompt` are JSON already: encoding copies it."""
    if isinstance(token_ids, Prompt):
        return cast("list[int]", msgspec.Raw(token_ids.json()))
    return list(token_ids)


def _check_staging(worker: protocol.Staging, path: str, url: str) -> None:
    """Raise WeightsError if a worker will never be ready with `path`."""
    if worker.state in ("failed", "idle"):
        why = worker.error or "it knows of no update (was it restarted?)"
        raise WeightsError(f"{url}: staging {path}: {why}")
    if worker.path not in ("", path):
        raise WeightsError(f"{url}: {worker.path} is being staged, another update than {path}")
