"""The engine protocol over ASGI, and OpenAI's completions. Routes, fields and defaults are vLLM's.

The routes are a table of its own, not `runtime.http_server.Api`: every turn passes here, and
Starlette takes 5 µs of CPU longer for a request than the look-up, 10 µs with the server (of 140).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np

import agentgym_rl
from agentgym_rl.core import EngineError, WeightsError
from agentgym_rl.engines import protocol
from agentgym_rl.models import tokenizer_hash
from agentgym_rl.runtime import BodyTooLarge, Receive, Scope, Send, read_body
from agentgym_rl.runtime.http_server import reply

from .admission import HttpError
from .decoder import read_tags
from .engine import EmbeddedEngine
from .request import CompletionWriter, Request

T = TypeVar("T")
Query = Mapping[str, str]
Handler = Callable[[Query, bytes], Awaitable[Any]]

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 16_000_000
_encode = msgspec.json.Encoder().encode
_decode_generate = msgspec.json.Decoder(protocol.GenerateBody).decode
_decode_completion = msgspec.json.Decoder(protocol.CompletionBody).decode
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_LAST_EVENT = b"data: " + protocol.DONE + b"\n\n"


class App:
    """An ASGI application of one engine."""

    def __init__(self, engine: EmbeddedEngine, *, served_model_name: str) -> None:
        self._engine = engine
        self._name = served_model_name
        self._created = int(time.time())
        self._tokenizer_hash = tokenizer_hash(engine.model_dir)
        self._sampling = {
            protocol.GENERATE: self._generate,
            protocol.COMPLETIONS: self._complete,
        }
        self._routes: dict[str, tuple[str, Handler]] = {
            protocol.ABORT_REQUESTS: ("POST", self._abort),
            "/pause": ("POST", self._pause),
            "/resume": ("POST", self._resume),
            "/is_paused": ("GET", self._is_paused),
            "/sleep": ("POST", self._sleep),
            "/wake_up": ("POST", self._wake_up),
            "/is_sleeping": ("GET", self._is_sleeping),
            "/init_weight_transfer_engine": ("POST", self._init_transfer),
            "/start_weight_update": ("POST", self._start_update),
            "/update_weights": ("POST", self._update),
            "/finish_weight_update": ("POST", self._finish_update),
            "/update_weight_version": ("POST", self._name_version),
            "/weight_info": ("GET", self._weight_info),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/version": ("GET", self._version),
            "/v1/models": ("GET", self._models),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._dispatch(scope, receive, send)
        except HttpError as error:
            await _fail(send, error)
        except BodyTooLarge as error:
            await _fail(send, HttpError(str(error), status=413))
        except ConnectionError as error:
            log.debug("%s", error)
        except WeightsError as error:
            log.warning("weight update refused: %s", error)
            await _fail(send, HttpError(str(error), kind="WeightsError"))
        except EngineError as error:
            await _fail(send, HttpError(str(error), status=500, kind="EngineError"))
        except TimeoutError:
            message = f"{scope['path']} did not finish in time"
            await _fail(send, HttpError(message, status=504, kind="TimeoutError"))

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        method, handler = self._routes.get(path, ("POST", None))
        sample = self._sampling.get(path)
        if handler is None and sample is None:
            raise HttpError(f"no route {path}", status=404, kind="NotFoundError")
        if scope["method"] != method:
            raise HttpError(f"{path} takes {method}, not {scope['method']}", status=405)
        body = await read_body(receive, limit_bytes=_MAX_BODY_BYTES)
        if sample is not None:
            await sample(body, receive, send)
            return
        assert handler is not None
        query = _query(scope["query_string"])
        result = await handler(query, body)
        if isinstance(result, str):
            await reply(send, 200, result.encode(), content_type="text/plain; version=0.0.4")
        else:
            await reply(send, 200, _encode(result))

    # Generation.

    async def _generate(self, body: bytes, receive: Receive, send: Send) -> None:
        asked = _parsed(_decode_generate, body)
        constraint = await self._engine.constraint(asked.sampling_params)
        request = self._engine.submit(asked, constraint)
        respond = self._respond_stream if request.stream else self._respond
        await self._until_hung_up([request], receive, respond(request, send))

    async def _complete(self, body: bytes, receive: Receive, send: Send) -> None:
        """Serve `/v1/completions`."""
        asked = _parsed(_decode_completion, body)
        if asked.model not in (None, self._name):
            message = f"the model {asked.model!r} is not served; allowed: {self._name!r}"
            raise HttpError(message, status=404, param="model", kind="NotFoundError")
        admission = self._engine.admission
        tokenizer = admission.tokenizer("the text of a reply", param="prompt")
        requests: list[Request] = []
        try:
            if asked.echo:
                requests += map(self._engine.submit_known, admission.echo(asked))
            else:
                requests += map(self._engine.submit, admission.completion(asked))
        except HttpError:
            for request in requests:
                self._engine.release(request)
            raise
        head = (f"cmpl-{requests[0].id}", self._created, self._name)
        writer = CompletionWriter(requests, tokenizer, asked, head)
        await self._until_hung_up(requests, receive, self._written(writer, send))

    async def _written(self, writer: CompletionWriter, send: Send) -> None:
        """Send the replies to all requests of a completion, as they grow or once they are
        complete."""

        failures: list[HttpError] = []

        async def follow(number: int) -> None:
            request = writer.requests[number]
            try:
                async for start, end in self._engine.parts(request):
                    if writer.stream and request.error is None:
                        await _event(send, writer.part(number, start, end))
            except HttpError as error:
                failures.append(error)
            if request.error is not None:
                failures.append(_failed(request))

        if writer.stream:
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        async with asyncio.TaskGroup() as tasks:
            for number in range(len(writer.requests)):
                tasks.create_task(follow(number))
        if writer.stream:
            for message in writer.last(failures[0].detail if failures else None):
                await _event(send, message)
            await send({"type": "http.response.body", "body": _LAST_EVENT})
        elif failures:
            await _fail(send, failures[0])
        else:
            await reply(send, 200, _encode(writer.whole()))

    async def _until_hung_up(
        self, requests: Sequence[Request], receive: Receive, response: Coroutine[Any, Any, None]
    ) -> None:
        """Await the response; the requests are released at its end, or when the client hangs up."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            release()

        def release() -> None:
            for request in requests:
                self._engine.release(request)

        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch())
                await response
                watching.cancel()
        finally:
            release()

    async def _respond(self, request: Request, send: Send) -> None:
        try:
            async for _ in self._engine.parts(request):
                pass
        except HttpError as error:
            await _fail(send, error)
            return
        if request.error is not None:
            await _fail(send, _failed(request))
            return
        choice = _choice(request, 0, len(request.token_ids))
        await reply(
            send, 200, _encode(protocol.GenerateReply(request_id=request.id, choices=[choice]))
        )

    async def _respond_stream(self, request: Request, send: Send) -> None:
        """Send server-sent events; a failure after the headers is an event with `error`."""
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        failure: protocol.ErrorDetail | None = None
        try:
            async for start, end in self._engine.parts(request):
                if request.error is None:
                    choice = _choice(request, start, end)
                    await _event(
                        send, protocol.GenerateReply(request_id=request.id, choices=[choice])
                    )
        except HttpError as error:
            failure = error.detail
        if request.error is not None:
            failure = _failed(request).detail
        if failure is not None:
            await _event(send, protocol.GenerateReply(request_id=request.id, error=failure))
        await send({"type": "http.response.body", "body": _LAST_EVENT})

    async def _abort(self, query: Query, body: bytes) -> Any:
        # vLLM puts a prefix before the given id of a request, and clients send the prefixed id.
        names = [
            name.removeprefix("generate-tokens-")
            for name in _json(body, protocol.AbortBody).request_ids
        ]
        return {"aborted": await self._engine.abort(names)}

    # Pausing and weights.

    async def _pause(self, query: Query, body: bytes) -> Any:
        mode = query.get("mode", "abort")
        clear = query.get("clear_cache", "true").lower()
        if clear not in ("true", "false"):
            raise HttpError(f"clear_cache {clear!r}; allowed: true, false", param="clear_cache")
        match mode:
            case "keep":
                await self._engine.freeze(recompute=clear == "true")
            case "abort":
                await self._engine.cut_off()
            case "wait":
                await self._engine.drain()
            case _:
                raise HttpError(f"pause mode {mode!r}; allowed: keep, abort, wait", param="mode")
        if clear == "true":
            await self._engine.forget()
        return {"status": "paused"}

    async def _resume(self, query: Query, body: bytes) -> Any:
        await self._engine.resume()
        return {"status": "resumed"}

    async def _is_paused(self, query: Query, body: bytes) -> Any:
        return {"is_paused": self._engine.loop.paused}

    async def _sleep(self, query: Query, body: bytes) -> Any:
        level, mode = query.get("level", "1"), query.get("mode", "abort")
        if level not in ("1", "2"):
            raise HttpError(f"sleep level {level!r}; allowed: 1, 2", param="level")
        if mode not in ("keep", "abort", "wait"):
            raise HttpError(f"sleep mode {mode!r}; allowed: keep, abort, wait", param="mode")
        await self._engine.sleep(level=2 if level == "2" else 1, mode=mode)
        return {"status": "sleeping", "level": int(level)}

    async def _wake_up(self, query: Query, body: bytes) -> Any:
        # The only parameter that may be repeated.
        named = query.get("tags", "").split(",")
        awake = await self._engine.wake_up(read_tags(filter(None, named)))
        return {"status": "awake" if awake else "sleeping", "tags": list(filter(None, named))}

    async def _is_sleeping(self, query: Query, body: bytes) -> Any:
        return protocol.Sleeping(self._engine.loop.asleep or self._engine.loop.paused)

    async def _init_transfer(self, query: Query, body: bytes) -> Any:
        return {"status": "ok"}  # a file needs no rendezvous

    async def _start_update(self, query: Query, body: bytes) -> Any:
        self._engine.start_update()
        return {"status": "ok"}

    async def _update(self, query: Query, body: bytes) -> Any:
        await self._engine.stage(Path(_json(body, protocol.UpdateBody).update_info.path))
        return {"status": "ok"}

    async def _finish_update(self, query: Query, body: bytes) -> Any:
        label = _json(body, protocol.FinishBody).weight_version
        await self._engine.finish_update(label)
        return protocol.WeightInfo(label)

    async def _name_version(self, query: Query, body: bytes) -> Any:
        label = _json(body, protocol.NewVersionBody).new_version
        await self._engine.name_version(label)
        return {"success": True, "new_version": label}

    async def _weight_info(self, query: Query, body: bytes) -> Any:
        return protocol.WeightInfo(self._engine.loop.weight_version)

    # Server information.

    async def _health(self, query: Query, body: bytes) -> Any:
        if not self._engine.loop.alive:
            failure = self._engine.loop.failure
            raise HttpError(f"the engine decodes no more: {failure!r}", status=503)
        return {"status": "ok"}

    async def _metrics(self, query: Query, body: bytes) -> Any:
        return self._engine.metrics()

    async def _version(self, query: Query, body: bytes) -> Any:
        return {
            "version": agentgym_rl.__version__,
            "engine": "embedded",
            "decoder": self._engine.model.decoder.name,
            "tokenizer_hash": self._tokenizer_hash,
        }

    async def _models(self, query: Query, body: bytes) -> Any:
        length = self._engine.model.max_model_len
        return protocol.ModelList([protocol.ModelCard(self._name, length, created=self._created)])


def _choice(request: Request, start: int, end: int) -> protocol.Choice:
    """Return tokens [start, end); the last part of a request also has its finish_reason."""
    last = request.done and end == len(request.token_ids)
    token_ids = request.token_ids[start:end]
    logprobs = None
    if request.with_logprobs:
        pairs = zip(token_ids, request.logprobs[start:end], strict=True)
        logprobs = protocol.Logprobs(
            [protocol.TokenLogprob(token, logprob) for token, logprob in pairs]
        )
    routed = np.concatenate(request.experts) if last and request.experts else None
    return protocol.Choice(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=request.finish_reason if last else None,
        stop_reason=request.stop_reason if last else None,
        # The last chunk of a stream repeats the spans of the complete output, as in vLLM.
        weight_versions=request.spans(0 if last else start, end),
        decode_times=request.times_s[start:end],
        sampling_mask=request.support[start:end] if request.sampling.restricted else None,
        routed_experts=None if routed is None else protocol.experts_text(routed),
    )


def _query(found: bytes) -> Query:
    """Return parameters by name; several values of one name, such as `tags`, are joined with
    commas."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(found.decode("latin-1"), keep_blank_values=True):
        query[name] = f"{query[name]},{value}" if name in query else value
    return query


async def _event(send: Send, message: protocol.GenerateReply | protocol.Completion) -> None:
    body = b"data: " + _encode(message) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _failed(request: Request) -> HttpError:
    """Return the error of a failed request: its own, or the engine's."""
    if request.constraint is not None and request.constraint.is_too_complex:
        return HttpError(str(request.error))
    return HttpError(str(request.error), status=500, kind="EngineError")


async def _fail(send: Send, error: HttpError) -> None:
    await reply(send, error.status, _encode(protocol.ErrorReply(error.detail)))


def _json(body: bytes, kind: type[T]) -> T:
    return _parsed(msgspec.json.Decoder(kind).decode, body)


def _parsed(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(f"the body is not valid: {error}") from error
