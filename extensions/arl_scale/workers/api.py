"""The API of leases for workers: private HTTP, a bearer token for each life, msgpack bodies.

    POST /ready                  the worker can play groups
    POST /lease                  200 a Lease | 204 none yet
    POST /member  a Trajectory   200 the log has it | 409 its group is not this worker's | 503 again
    POST /follow  WorkerReport           200 the engines, a NumberedView | 204 no news

All routes: 401 to a worker that was given up, 410 when the run is ending, or when this worker is
leaving and has no more to play.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentgym_rl.core import Trajectory, WorkerReport
from agentgym_rl.runtime import MSGPACK, Api, BodyTooLarge, read_body
from agentgym_rl.runtime.http_server import bearer
from arl_scale.mirrors import Followers

from .leases import Busy, InvalidRequest, Leases, NotLeased

MAX_MEMBER_BYTES = 512_000_000
MAX_REPORT_BYTES = 1_000_000


class LeasesApi(Api):
    """The ASGI app of leases. `on_error` gets each error that is the controller's own fault."""

    def __init__(
        self, leases: Leases, followers: Followers, *, on_error: Callable[[Exception], None]
    ) -> None:
        paths = ("/ready", "/lease", "/member", "/follow")
        super().__init__(
            {f"POST {path}": self._answer for path in paths},
            statuses={BodyTooLarge: 413, NotLeased: 409, InvalidRequest: 400, Busy: 503},
        )
        self._leases = leases
        self._followers = followers
        self._on_error = on_error

    def check(self, request: Request) -> None:
        life = request.state.life = self._leases.find(bearer(request))
        if life is None:
            raise _unknown()
        life.progress_s = time.monotonic()

    def failed(self, request: Request, error: Exception) -> str:
        self._on_error(error)  # not the worker's fault: the run ends with this very error
        return f"the controller failed: {error!r}"

    async def _answer(self, request: Request) -> Response:
        """Serve all routes, with the same checks before and after each."""
        leases, life, path = self._leases, request.state.life, request.scope["path"]
        limit = MAX_MEMBER_BYTES if path == "/member" else MAX_REPORT_BYTES
        body = await read_body(request.receive, limit_bytes=limit)
        if not leases.is_alive(life):  # given up meanwhile
            raise _unknown()
        if leases.is_over(life):
            if path == "/follow":  # the worker's last report
                self._followers.record(life.id, _report(body))
            raise _ending()
        found = b""
        if path == "/ready":
            leases.ready(life)
        elif path == "/lease":
            lease = await leases.lease(life)
            found = msgspec.msgpack.encode(lease) if lease else b""
        elif path == "/member":
            await leases.take(life, _trajectory(body))
        else:
            view = await self._followers.follow(life.id, _report(body))
            found = msgspec.msgpack.encode(view) if view else b""
        if not found and path != "/member" and leases.is_over(life):
            raise _ending()
        if not found and not leases.is_alive(life):
            raise _unknown()
        status = 200 if found or path in ("/ready", "/member") else 204
        return Response(found, status, media_type=MSGPACK)


def _unknown() -> HTTPException:
    return HTTPException(401, "unknown token")


def _ending() -> HTTPException:
    return HTTPException(410, "nothing more is to be played")


def _trajectory(body: bytes) -> Trajectory:
    try:
        return Trajectory.unpack(body)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _report(body: bytes) -> WorkerReport:
    try:
        return msgspec.msgpack.decode(body, type=WorkerReport)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"no WorkerReport: {error}") from error
