"""How trainer ranks reach the controller: private HTTP, a bearer token, msgpack bodies.

    POST /ready  {"rank": r}          the rank has loaded its model
    GET  /batch/{step}?rank=r         200 a BatchShard | 204 not complete yet | 410 run is ending
                                      rank 0: 205 publish the current version again, first
    POST /publish/begin {"version"}   200 {"engines": {name: url}} | 204 none serves yet | 410
    POST /publish/end   {"version", "served": [name], "failed": {name: why}}
    POST /report                      a StepReport, once its version is on every engine; the log
                                      has it when 200 {metric: value}, all there are of the step
    POST /failed {"why"}              what failed would fail again: the run ends with it
    POST /warn   {"text"}             said on the console of the run
    POST /current {}                  whether these ranks are still the run's
    POST /checkpoint {"step", "folder"}   of the first `step` batches, complete

Ranks that have been replaced have a token that is no longer known.
"""

from __future__ import annotations

import hmac
import re
import time
from urllib.parse import parse_qs

import msgspec

from agentgym_rl.core.batch import StepReport
from agentgym_rl.core.errors import TrainerError
from agentgym_rl.runtime.http_server import Receive, Scope, Send, header, read_body, reply

from .controller import Controller

MAX_REPORT_BYTES = 1_000_000

_UNKNOWN = 401, b"unknown token"
_ENDING = 410, b"the run is ending"


class _PublishBegin(msgspec.Struct, forbid_unknown_fields=True):
    version: int


class _PublishEnd(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    served: list[str]
    failed: dict[str, str]


class _Failed(msgspec.Struct, forbid_unknown_fields=True):
    why: str


class _Warning(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    step: int
    folder: str


class ControllerApi:
    """The ASGI app of a controller."""

    def __init__(self, controller: Controller, *, num_ranks: int) -> None:
        self._controller = controller
        self._num_ranks = num_ranks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = await self._route(scope, receive)
        except ValueError as error:
            status, body = 400, str(error).encode()
        except Exception as error:  # not the rank's fault: the run ends with this very error
            status, body = 500, f"the controller failed: {error!r}".encode()
            self._controller.fail(error)
        await reply(send, status, body, content_type="application/msgpack")

    async def _route(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        controller = self._controller
        given = header(scope, b"authorization").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), controller.token.encode()):
            return _UNKNOWN
        controller.heard_s = time.monotonic()
        method, path = scope["method"], scope["path"]
        if method == "GET" and (match := re.fullmatch(r"/batch/(\d+)", path)):
            return await self._get_batch(int(match[1]), scope)
        if method != "POST":
            return 404, f"no route {method} {path}".encode()
        body = await read_body(receive, limit_bytes=MAX_REPORT_BYTES)
        if given != controller.token:  # the ranks have been replaced meanwhile
            return _UNKNOWN
        match path:
            case "/report":
                found = await controller.reported(StepReport.unpack(body), token=given)
                return _UNKNOWN if found is None else (200, msgspec.json.encode(found))
            case "/checkpoint":
                done = msgspec.json.decode(body, type=_Checkpoint)
                await controller.checkpointed(done.step, done.folder)
            case "/failed":
                failed = msgspec.json.decode(body, type=_Failed)
                controller.fail(TrainerError(failed.why))
            case "/warn":
                controller.warn(msgspec.json.decode(body, type=_Warning).text)
            case "/current":
                pass  # the token is known
            case "/ready":
                controller.ready(int(msgspec.json.decode(body)["rank"]))
                await controller.all_ready()
            case "/publish/begin":
                return await self._begin_publication(body)
            case "/publish/end":
                end = msgspec.json.decode(body, type=_PublishEnd)
                await controller.publications.end_publication(
                    end.version, served=end.served, failed=end.failed
                )
            case _:
                return 404, f"no route {method} {path}".encode()
        return 200, b""

    async def _begin_publication(self, body: bytes) -> tuple[int, bytes]:
        begin = msgspec.json.decode(body, type=_PublishBegin)
        if self._controller.is_closing:
            return _ENDING
        engines = await self._controller.publications.begin_publication(begin.version)
        return (200, msgspec.json.encode({"engines": engines})) if engines else (204, b"")

    async def _get_batch(self, step: int, scope: Scope) -> tuple[int, bytes]:
        controller = self._controller
        query = parse_qs(scope["query_string"].decode("latin-1"))
        rank = int(query.get("rank", ["0"])[0])
        if not 0 <= rank < self._num_ranks:
            return 400, f"rank {rank} of {self._num_ranks}".encode()
        is_new = step >= controller.version
        if rank == 0 and controller.publications.wanted and is_new and not controller.is_closing:
            return 205, b""
        shard = await controller.batch(step, rank)
        if shard is None:
            return _ENDING if controller.is_over(step) else (204, b"")
        return 200, shard.pack()
