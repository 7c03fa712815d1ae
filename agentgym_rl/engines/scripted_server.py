"""The server of `engine.type = "scripted"`: the routes that runs use, with given texts as replies.

The log-prob of each token is that of a uniform choice in a vocabulary of `_UNIFORM` tokens: a run
records and trains on it as on any other, and the metrics show that no model sampled it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from agentgym_rl.models import tokenizer_hash
from agentgym_rl.runtime import Api, json_response, serving, stop_signal

_UNIFORM = 1000
_LOGPROB = -math.log(_UNIFORM)


class ScriptedServer:
    """The state of the server, the label of its weights, and the routes."""

    def __init__(
        self, replies: Sequence[Sequence[int]], *, model_dir: Path, label: str, max_model_len: int
    ) -> None:
        self._replies, self._label, self._paused = replies, label, False
        self._about = {"version": "1", "tokenizer_hash": tokenizer_hash(model_dir)}
        self._card = {"id": model_dir.name, "max_model_len": max_model_len}
        self._count = 0

    def app(self) -> Api:
        """Return the routes; those of weight updates accept any version, and keep only its
        label."""
        routes = {
            "GET /health": self._ok,
            "GET /version": self._version,
            "GET /v1/models": self._models,
            "GET /weight_info": self._weight_info,
            "GET /is_paused": self._is_paused,
            "GET /is_sleeping": self._is_sleeping,
            "POST /inference/v1/generate": self._generate,
            "POST /pause": self._pause,
            "POST /resume": self._resume,
        }
        others = ("inference/v1/abort_requests", "init_weight_transfer_engine")
        others += ("start_weight_update", "update_weights", "finish_weight_update")
        for name in (*others, "update_weight_version"):
            routes[f"POST /{name}"] = self._updated
        return Api(routes, statuses={msgspec.DecodeError: 400, KeyError: 400})

    async def _ok(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def _version(self, request: Request) -> Response:
        return json_response(self._about)

    async def _models(self, request: Request) -> Response:
        return json_response({"data": [self._card]})

    async def _weight_info(self, request: Request) -> Response:
        return json_response({"weight_version": self._label})

    async def _is_paused(self, request: Request) -> Response:
        return json_response({"is_paused": self._paused})

    async def _is_sleeping(self, request: Request) -> Response:
        return json_response({"is_sleeping": False})

    async def _pause(self, request: Request) -> Response:
        self._paused = True
        return await self._ok(request)

    async def _resume(self, request: Request) -> Response:
        self._paused = False
        return await self._ok(request)

    async def _updated(self, request: Request) -> Response:
        body = await _json(request)
        self._label = body.get("weight_version") or body.get("new_version") or self._label
        return await self._ok(request)

    async def _generate(self, request: Request) -> Response:
        body = await _json(request)
        sampling = body["sampling_params"]
        seed = sampling.get("seed")
        self._count += 1
        reply = self._replies[(self._count if seed is None else seed) % len(self._replies)]
        limit = sampling.get("max_tokens") or len(reply)
        ids = list(reply[:limit])
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": id, "logprob": _LOGPROB} for id in ids]},
            "weight_versions": [{"version": self._label, "start": 0, "end": len(ids)}],
            "finish_reason": "stop" if limit >= len(reply) else "length",
        }
        answer = msgspec.json.encode({"choices": [choice]})
        if not body.get("stream"):
            return Response(answer, media_type="application/json")
        events = b"data: " + answer + b"\n\ndata: [DONE]\n\n"
        return Response(events, media_type="text/event-stream")


def serve(
    replies: Sequence[str],
    *,
    model_dir: Path,
    host: str,
    port: int,
    label: str,
    max_model_len: int,
) -> None:
    """Serve the texts, as tokens of the model's tokenizer, until SIGTERM or SIGINT."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in replies]
    server = ScriptedServer(ids, model_dir=model_dir, label=label, max_model_len=max_model_len)
    asyncio.run(_serve(server.app(), host, port))


async def _serve(app: Api, host: str, port: int) -> None:
    stopped = stop_signal()
    async with serving(app, host=host, port=port) as url:
        sys.stdout.write(f"engine ready on {url}\n")
        sys.stdout.flush()
        await stopped.wait()


async def _json(request: Request) -> dict[str, Any]:
    body = await request.body()
    return msgspec.json.decode(body) if body else {}
