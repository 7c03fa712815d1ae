"""The engine contract over HTTP: one client for the embedded engine and for vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import aiohttp
import msgspec

from agentgym_rl.engine import (
    Delta,
    Engine,
    EngineInfo,
    SamplingParams,
    parse_version,
    version_label,
)
from agentgym_rl.errors import ContextLengthError, EngineError, WeightsError

from . import wire
from .deltas import decode, streamed, whole

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class HttpEngine(Engine):
    """An engine behind a URL. Safe for any number of concurrent requests of one event loop.

    Each call ends by its deadline. A failed transport, a 5xx, a malformed reply, or a stream
    without a finish_reason is an EngineError naming the URL. A request that a pooled connection
    lost before anything came back is sent once more, on a fresh connection.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 120.0,
        control_timeout_s: float = 120.0,
        incarnation: int = 0,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._control_timeout_s = control_timeout_s
        self._incarnation = incarnation
        self._transfer_ready = False
        self._pooled: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"HttpEngine({self.url})"

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        session_id: str,
        stream: bool = False,
    ) -> AsyncIterator[Delta]:
        """See `Engine.generate`.

        Raises:
            ContextLengthError: the prompt fills the engine's context.
            EngineError: anything else that went wrong.
        """
        body = _encode(
            wire.GenerateBody(
                token_ids=list(token_ids),
                sampling_params=_sampling_body(sampling),
                request_id=request_id,
                stream=stream,
            )
        )
        headers = {"Content-Type": "application/json", "X-Session-ID": session_id}
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        url = self.url + wire.GENERATE
        async with self._post_generate(url, body, headers, deadline) as response:
            if stream:
                async with (
                    aclosing(_chunks(response, url, deadline)) as chunks,
                    aclosing(streamed(chunks, url)) as deltas,
                ):
                    async for delta in deltas:
                        yield delta
                return
            async with _attributed(url, self._timeout_s, deadline):
                raw = await response.read()
        yield whole(raw, url)

    async def pause(self, *, recompute: bool) -> None:
        clear = "true" if recompute else "false"
        await self._call("POST", f"/pause?mode=keep&clear_cache={clear}")

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def update_weights(self, path: str, *, version: int) -> None:
        """See `Engine.update_weights`.

        Raises:
            WeightsError: the engine refused the file; it keeps serving the old version.
            EngineError: the engine could not be reached or failed.
        """
        label = version_label(version, incarnation=self._incarnation)
        if not self._transfer_ready:
            await self._call("POST", "/init_weight_transfer_engine", {"init_info": {}})
            self._transfer_ready = True
        await self._call("POST", "/start_weight_update")
        await self._call("POST", "/update_weights", {"update_info": {"path": path}})
        await self._call("POST", "/finish_weight_update", {"weight_version": label})

    async def info(self) -> EngineInfo:
        models = await self._get("/v1/models", wire.ModelList)
        weights = await self._get("/weight_info", wire.WeightInfo)
        version = await self._get("/version", wire.VersionInfo)
        if not models.data:
            raise EngineError(f"{self.url}/v1/models lists no model")
        try:
            served = parse_version(weights.weight_version)
        except ValueError as error:
            raise EngineError(f"{self.url}/weight_info: {error}") from error
        card = models.data[0]
        return EngineInfo(card.id, card.max_model_len, served, version.tokenizer_hash)

    async def close(self) -> None:
        for session in (self._pooled, self._unpooled):
            if session is not None:
                await session.close()
        self._pooled = self._unpooled = None

    async def _get(self, path: str, kind: type[T]) -> T:
        raw = await self._call("GET", path)
        return decode(raw, kind, self.url + path)

    async def _call(self, method: str, path: str, body: Any = None) -> bytes:
        """One control call on a connection of its own, so that a stale pool cannot lose it."""
        url = self.url + path
        deadline = asyncio.get_running_loop().time() + self._control_timeout_s
        data = None if body is None else _encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with (
            _attributed(url, self._control_timeout_s, deadline),
            self._session(pooled=False).request(method, url, data=data, headers=headers) as reply,
        ):
            raw = await reply.read()
            if reply.status >= 300:
                _raise_status(url, reply.status, raw)
            return raw

    @asynccontextmanager
    async def _post_generate(
        self, url: str, body: bytes, headers: dict[str, str], deadline: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, once its status is known to be good; closing it aborts the request."""
        response: aiohttp.ClientResponse | None = None
        async with _attributed(url, self._timeout_s, deadline):
            trace = SimpleNamespace(reused=False)
            try:
                response = await self._session(pooled=True).post(
                    url, data=body, headers=headers, trace_request_ctx=trace
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not trace.reused:
                    raise
                response = await self._session(pooled=False).post(url, data=body, headers=headers)
            if response.status >= 300:
                raw = await response.read()
                _raise_status(url, response.status, raw)
        assert response is not None
        try:
            yield response
        finally:
            response.close() if not response.content.at_eof() else response.release()

    def _session(self, *, pooled: bool) -> aiohttp.ClientSession:
        """Made on first use, because aiohttp wants a running event loop."""
        session = self._pooled if pooled else self._unpooled
        if session is not None:
            return session
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=not pooled),
            timeout=aiohttp.ClientTimeout(total=None),  # deadlines are ours
            trace_configs=[trace],
            auto_decompress=False,
        )
        if pooled:
            self._pooled = session
        else:
            self._unpooled = session
        return session


async def _note_reuse(_session: Any, context: Any, _params: Any) -> None:
    request = context.trace_request_ctx
    if request is not None:
        request.reused = True


@asynccontextmanager
async def _attributed(url: str, timeout_s: float, deadline: float) -> AsyncIterator[None]:
    """Transport failures and the deadline become EngineErrors that name `url`."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        raise EngineError(f"{url}: no complete reply within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineError(f"{url}: {type(error).__name__}: {error}") from error


async def _chunks(
    response: aiohttp.ClientResponse, url: str, deadline: float
) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. No timeout spans a `yield`: it would cancel the consumer."""
    timeout_s = deadline - asyncio.get_running_loop().time()
    while True:
        async with _attributed(url, timeout_s, deadline):
            chunk = await response.content.readany()
        if not chunk:
            return
        yield chunk


def _sampling_body(sampling: SamplingParams) -> wire.SamplingBody:
    return wire.SamplingBody(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        stop=list(sampling.stop) or None,
        stop_token_ids=list(sampling.stop_token_ids) or None,
        logprobs=0,
    )


def _raise_status(url: str, status: int, raw: bytes) -> NoReturn:
    try:
        detail = msgspec.json.decode(raw, type=wire.ErrorReply).error
    except msgspec.DecodeError:  # not an engine's own error body: a proxy, a crash page
        raise EngineError(f"{url}: HTTP {status}: {raw[:200].decode(errors='replace')}") from None
    if detail.code == wire.CONTEXT_LENGTH_EXCEEDED or "maximum context length" in detail.message:
        raise ContextLengthError(detail.message)
    if detail.type == WeightsError.__name__:
        raise WeightsError(f"{url}: {detail.message}")
    raise EngineError(f"{url}: HTTP {status}: {detail.message}")
