"""The controller's API for trainer ranks: private HTTP, a bearer token, msgpack bodies.

    POST /ready  {"rank": r}          the rank has loaded its model
    GET  /batch/{step}?rank=r         200 a BatchShard | 204 not complete yet | 410 run is ending
                                      rank 0: 205 publish the current version again, first
    POST /publish/begin {"version"}   200 {"engines": {name: url}} | 204 none serves yet | 410
    POST /publish/end   {"version", "served": [name], "failed": {name: why}}
    POST /report                      a StepReport, once its version is on every engine; after it
                                      is logged: 200 {metric: value}, all metrics of the step
    POST /failed {"why"}              an error that would happen again: the run ends with it
    POST /warn   {"text"}             a warning for the console of the run
    POST /current {}                  200 if these ranks are still the run's, else 401
    POST /checkpoint {"step", "folder"}   a complete checkpoint of the first `step` batches

The token of ranks that have been replaced is no longer known.
"""

from __future__ import annotations

import logging
import time

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentgym_rl.core.batch import StepReport
from agentgym_rl.core.errors import ConfigError, TrainerError
from agentgym_rl.runtime.http_server import (
    MSGPACK,
    Api,
    bearer,
    is_secret,
    json_response,
    read_body,
)

from .controller import Controller

log = logging.getLogger(__name__)

MAX_REPORT_BYTES = 1_000_000


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


class ControllerApi(Api):
    """The ASGI app of a controller."""

    def __init__(self, controller: Controller, *, num_ranks: int) -> None:
        routes = {
            "GET /batch/{step:int}": self._get_batch,
            "POST /ready": self._ready,
            "POST /publish/begin": self._begin_publication,
            "POST /publish/end": self._end_publication,
            "POST /report": self._report,
            "POST /failed": self._end_run,
            "POST /warn": self._warn,
            "POST /current": self._current,
            "POST /checkpoint": self._checkpoint,
        }
        super().__init__(routes, statuses={ValueError: 400})
        self._controller = controller
        self._num_ranks = num_ranks

    def check(self, request: Request) -> None:
        if not is_secret(bearer(request), self._controller.token):
            raise _unknown()
        self._controller.progress_s = time.monotonic()

    def failed(self, request: Request, error: Exception) -> str:
        self._controller.fail(error)  # not the rank's fault: the run ends with this error
        return f"the controller failed: {error!r}"

    def answer_to(self, request: Request, error: Exception) -> Response:
        """Return the answer to an error; a ConfigError ends the run. Such an error shows only in
        episodes, and a rank that is started again would get it again."""
        if isinstance(error, ConfigError):
            self._controller.fail(error)
            error = _ending()
        return super().answer_to(request, error)

    async def _get_batch(self, request: Request) -> Response:
        controller, step = self._controller, request.path_params["step"]
        rank = int(request.query_params.get("rank", "0"))
        if not 0 <= rank < self._num_ranks:
            raise ValueError(f"rank {rank} of {self._num_ranks}")
        is_new = step >= controller.version
        if rank == 0 and controller.publications.wanted and is_new and not controller.is_closing:
            return _done(205)
        shard = await controller.batch(step, rank)
        if shard is not None:
            return Response(shard.pack(), media_type=MSGPACK)
        if controller.is_over(step):
            raise _ending()
        return _done(202 if controller.samples() else 204)

    async def _ready(self, request: Request) -> Response:
        self._controller.ready(int(msgspec.json.decode(await self._read(request))["rank"]))
        await self._controller.all_ready()
        return _done()

    async def _begin_publication(self, request: Request) -> Response:
        begin = msgspec.json.decode(await self._read(request), type=_PublishBegin)
        if self._controller.is_closing:
            raise _ending()
        engines = await self._controller.publications.begin_publication(begin.version)
        return json_response({"engines": engines}) if engines else _done(204)

    async def _end_publication(self, request: Request) -> Response:
        end = msgspec.json.decode(await self._read(request), type=_PublishEnd)
        await self._controller.publications.end_publication(
            end.version, served=end.served, failed=end.failed
        )
        return _done()

    async def _report(self, request: Request) -> Response:
        report = StepReport.unpack(await self._read(request))
        found = await self._controller.report(report, token=bearer(request))
        if found is None:
            raise _unknown()
        return json_response(found)

    async def _end_run(self, request: Request) -> Response:
        failed = msgspec.json.decode(await self._read(request), type=_Failed)
        self._controller.fail(TrainerError(failed.why))
        return _done()

    async def _warn(self, request: Request) -> Response:
        log.warning("%s", msgspec.json.decode(await self._read(request), type=_Warning).text)
        return _done()

    async def _current(self, request: Request) -> Response:
        await self._read(request)  # checks the token
        return _done()

    async def _checkpoint(self, request: Request) -> Response:
        done = msgspec.json.decode(await self._read(request), type=_Checkpoint)
        await self._controller.episodes.checkpointed(done.step, done.folder)
        return _done()

    async def _read(self, request: Request) -> bytes:
        body = await read_body(request.receive, limit_bytes=MAX_REPORT_BYTES)
        if bearer(request) != self._controller.token:  # the ranks have been replaced meanwhile
            raise _unknown()
        return body


def _done(status: int = 200) -> Response:
    return Response(status_code=status, media_type=MSGPACK)


def _unknown() -> HTTPException:
    return HTTPException(401, "unknown token")


def _ending() -> HTTPException:
    return HTTPException(410, "the run is ending")
