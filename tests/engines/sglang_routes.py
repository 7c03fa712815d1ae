"""A small server with SGLang 0.5.23's own routes: its states, its answers, and its refusals.

Shapes as a real server gave them (tests/sglang), and as in sglang/srt/entrypoints/http_server.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web


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


class SglangServer:
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

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL while the context is open."""
        app = web.Application(middlewares=[self._note])
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/model_info", self._model)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/continue_generation", self._resume)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_post("/update_weight_version", self._name)
        app.router.add_post("/load_lora_adapter", self._load)
        app.router.add_post("/unload_lora_adapter", self._unload)
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
