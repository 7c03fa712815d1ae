"""A small server with vLLM's control routes: its states, its answers, and its refusals.

Shapes as in vllm/entrypoints/rl/online/api_router.py, .../serve/dev/rpc/api_router.py and
.../serve/exception_handling; what an update does, as in vllm/v1/worker/gpu_worker.py with our
plugin's staging.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class VllmServer:
    """`staging`: what /collective_rpc tells of its workers, call after call, the last for ever.
    `broken` routes answer HTTP 500, `slow` ones late; `has_dev_routes` False: as vLLM without
    VLLM_SERVER_DEV_MODE. `refuses_s`: like vLLM 0.33 it refuses requests while it is paused, and
    resumes by itself so long after the first refusal."""

    def __init__(
        self,
        *,
        staging: Sequence[Sequence[str | dict[str, str]]] = (),
        broken: Sequence[str] = (),
        slow: Sequence[str] = (),
        has_dev_routes: bool = True,
        refuses_s: float | None = None,
    ) -> None:
        self.seen: list[str] = []
        """Path and query of each call, in order."""
        self.label = "default"
        self.paused = False
        self.always_refuses = False
        self.updating = False
        self._path = ""
        self._staging = list(staging)
        self._broken = broken
        self._slow = slow
        self._has_dev_routes = has_dev_routes
        self._refuses_s = refuses_s
        self._resume_at = math.inf

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL while the context is open."""
        app = web.Application(middlewares=[self._note])
        posts = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/init_weight_transfer_engine": self._nothing,
            "/start_weight_update": self._start,
            "/update_weights": self._update,
            "/collective_rpc": self._rpc,
            "/finish_weight_update": self._finish,
            "/update_weight_version": self._name,
        }
        for path, handle in posts.items() if self._has_dev_routes else ():
            app.router.add_post(path, handle)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/is_paused", self._is_paused)
        app.router.add_get("/weight_info", self._info)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.seen.append(request.path_qs)
        if request.path in self._slow:
            await asyncio.sleep(1)
        if request.path in self._broken:
            if request.path == "/pause":
                return web.json_response({"error": "Failed to pause: /pause broke"}, status=500)
            return _broke(f"{request.path} broke")
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.json_response({"detail": "Not Found"}, status=404)

    async def _pause(self, request: web.Request) -> web.Response:
        self.paused = True
        return web.json_response({"status": "paused"})

    async def _is_paused(self, request: web.Request) -> web.Response:
        self.paused = self.paused and time.monotonic() < self._resume_at
        return web.json_response({"is_paused": self.paused})

    async def _generate(self, request: web.Request) -> web.Response:
        is_stream = (await request.json()).get("stream", False)
        if self.paused or self.always_refuses:
            assert self._refuses_s is not None
            self._resume_at = min(self._resume_at, time.monotonic() + self._refuses_s)
            error = {"type": "ServiceUnavailableError", "param": None, "code": 503}
            error["message"] = "Generation is paused. Please retry after it resumes."
            if not is_stream:
                return web.json_response({"error": error}, status=503)
            text = f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
            return web.Response(text=text, content_type="text/event-stream")
        content = [{"token_id": 9, "logprob": -0.5}]
        spans = [{"version": self.label, "start": 0, "end": 1}]
        choice = {"token_ids": [9], "logprobs": {"content": content}, "finish_reason": "length"}
        reply = {"choices": [choice | {"weight_versions": spans}]}
        if not is_stream:
            return web.json_response(reply)
        text = f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async def _resume(self, request: web.Request) -> web.Response:
        self.paused = False
        return web.json_response({"status": "resumed"})

    async def _nothing(self, request: web.Request) -> web.Response:
        return web.json_response({"message": "done"})

    async def _start(self, request: web.Request) -> web.Response:
        if self.updating:
            return _broke("start_weight_update called while a weight update is already active.")
        self.updating = True
        return web.json_response({"message": "Weight update started"})

    async def _update(self, request: web.Request) -> web.Response:
        info = (await request.json())["update_info"]
        if info.get("discard") or not self.updating:
            self.updating = False
            return _broke("weight update discarded on request")
        self._path = info["path"]
        return web.json_response({"message": "Weights updated"})

    async def _rpc(self, request: web.Request) -> web.Response:
        assert (await request.json()) == {"method": "arl_staging"}
        states = self._staging.pop(0) if len(self._staging) > 1 else self._staging[0]
        plain = [{"state": state} if isinstance(state, str) else state for state in states]
        results = [{"error": "", "path": self._path, **state} for state in plain]
        return web.json_response({"results": results})

    async def _finish(self, request: web.Request) -> web.Response:
        assert self.updating
        assert self.paused
        self.updating = False
        self.label = (await request.json())["weight_version"]
        return web.json_response({"message": "Weight update finished"})

    async def _name(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "policy", "object": "model", "root": "/m", "max_model_len": 64}
        return web.json_response({"object": "list", "data": [card]})


def _broke(reason: str) -> web.Response:
    message = f"Call to collective_rpc method failed: {reason}"
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return web.json_response({"error": error}, status=500)
