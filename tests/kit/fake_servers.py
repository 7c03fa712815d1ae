"""A small server with the control routes of vLLM, or with SGLang 0.5.23's own: its states, its
answers, and its refusals.

vLLM's shapes as in vllm/entrypoints/rl/online/api_router.py, .../serve/dev/rpc/api_router.py and
.../serve/exception_handling; what an update does, as in vllm/v1/worker/gpu_worker.py with our
plugin's staging. SGLang's as a real server gave them (tests/sglang), and as in
sglang/srt/entrypoints/http_server.py.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web


class _FakeServer(ABC):
    """A server of one kind, at a free port."""

    @abstractmethod
    def _routes(self) -> dict[str, Callable[..., Any]]:
        """Return its handlers by method and path."""

    @abstractmethod
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Note the request, and answer it."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL while the context is open."""

        @web.middleware
        async def note(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self._note(request, handler)

        app = web.Application(middlewares=[note])
        for route, handle in self._routes().items():
            method, path = route.split()
            app.router.add_route(method, path, handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


class VllmServer(_FakeServer):
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

    def _routes(self) -> dict[str, Callable[..., Any]]:
        control = {
            "POST /pause": self._pause,
            "POST /resume": self._resume,
            "POST /init_weight_transfer_engine": self._nothing,
            "POST /start_weight_update": self._start,
            "POST /update_weights": self._update,
            "POST /collective_rpc": self._rpc,
            "POST /finish_weight_update": self._finish,
            "POST /update_weight_version": self._name,
        }
        return (control if self._has_dev_routes else {}) | {
            "POST /inference/v1/generate": self._generate,
            "GET /is_paused": self._is_paused,
            "GET /weight_info": self._info,
            "GET /version": self._version,
            "GET /v1/models": self._models,
        }

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


def chunk(
    ids: Sequence[int], total: int, *, finish: Any = None, spans: Any = None, **more: Any
) -> dict[str, Any]:
    """A chunk of a stream, or a whole reply: `total` tokens have been sampled by its end."""
    meta: dict[str, Any] = {
        "finish_reason": finish,
        "completion_tokens": total,
        "weight_version": "0.0",
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }
    if spans is not None:
        meta["weight_versions"] = [
            {"version": version, "start": start, "end": end} for version, start, end in spans
        ]
    return {"text": "", "output_ids": list(ids), "meta_info": meta | more}


class SglangServer(_FakeServer):
    """`chunks`: what a request is answered with, one after the other if it streams, else the last.
    `server`: more of its configuration; `broken` routes answer HTTP 400."""

    def __init__(
        self,
        *,
        chunks: Sequence[dict[str, Any]] = (),
        broken: Sequence[str] = (),
        **server: Any,
    ) -> None:
        self.seen: list[tuple[str, Any]] = []
        """Path and body of each call, in order."""
        self.label = "0.0"
        self.paused = ""
        """The mode of the pause; empty while it runs."""
        self.adapters: dict[str, dict[str, Any]] = {}
        """The settings of the adapters by name."""
        self._chunks = chunks
        self._broken = broken
        self._server = {
            "version": "0.5.23",
            "served_model_name": "policy",
            "dtype": "float32",
            "random_seed": 1,
            "max_req_input_len": 58,
            "disable_overlap_schedule": False,
            "incremental_streaming_output": True,
            "enable_metrics": True,
            "grammar_backend": "llguidance",
            "sampling_mask_max_tokens": 4096,
            "internal_states": [{}],
        } | server

    @property
    def calls(self) -> list[str]:
        """The paths of all calls, in order."""
        return [path for path, _ in self.seen]

    def _routes(self) -> dict[str, Callable[..., Any]]:
        return {
            "GET /server_info": self._info,
            "GET /model_info": self._model,
            "GET /v1/models": self._models,
            "GET /v1/loads": self._loads,
            "GET /metrics": self._metrics,
            "POST /generate": self._generate,
            "POST /pause_generation": self._pause,
            "POST /flush_cache": self._flush,
            "POST /continue_generation": self._resume,
            "POST /update_weights_from_disk": self._update,
            "POST /update_weight_version": self._name,
            "POST /load_lora_adapter": self._load,
            "POST /unload_lora_adapter": self._unload,
        }

    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.path, body))
        if request.path in self._broken:
            return web.json_response({"error": {"message": f"{request.path} broke"}}, status=400)
        return await handler(request)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self._server)

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _flush(self, request: web.Request) -> web.Response:
        return web.Response(text="Cache flushed.")

    async def _models(self, request: web.Request) -> web.Response:
        # The id is the folder of the last update, not the name the server began with.
        card = {"id": "/tmp/update", "object": "model", "max_model_len": 64}
        return web.json_response({"object": "list", "data": [card]})

    async def _loads(self, request: web.Request) -> web.Response:
        load = {"num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.25}
        return web.json_response({"loads": [load]})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [
            'sglang:num_running_reqs{tp_rank="0"} 0.0',
            'sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 31.0',
            'sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 13.0',
            'sglang:generation_tokens_total{is_streaming="true"} 4.0',
            'sglang:generation_tokens_total{is_streaming="false"} 16.0',
        ]
        return web.Response(text="\n".join(lines))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not (await request.json())["stream"]:
            return web.json_response(self._chunks[-1])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in self._chunks:
            await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _pause(self, request: web.Request) -> web.Response:
        self.paused = (await request.json())["mode"]
        return web.json_response({"status": "ok"})

    async def _resume(self, request: web.Request) -> web.Response:
        assert isinstance(await request.json(), dict)  # a bare POST is refused
        self.paused = ""
        return web.json_response({"status": "ok"})

    async def _update(self, request: web.Request) -> web.Response:
        assert self.paused == "retract"
        self.label = (await request.json())["weight_version"]
        return web.json_response({"success": True})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            message = f"Failed to load {body['lora_name']} because it is already loaded"
            return web.json_response({"success": False, "error_message": message}, status=400)
        settings = (Path(body["lora_path"]) / "adapter_config.json").read_text()
        self.adapters[body["lora_name"]] = json.loads(settings)
        return web.json_response({"success": True})

    async def _unload(self, request: web.Request) -> web.Response:
        del self.adapters[(await request.json())["lora_name"]]
        return web.json_response({"success": True})

    async def _name(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["abort_all_requests"] is False
        self.label = body["new_version"]
        return web.json_response({"success": True})
