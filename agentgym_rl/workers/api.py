"""How rollout workers reach the hub: private HTTP, a bearer token for each life, msgpack bodies.

    POST /ready                  the worker plays what it is given
    POST /lease                  200 a Lease | 204 none yet
    POST /member  a Trajectory   200 the log has it | 409 its group is not this worker's | 503 again
    POST /follow  Told           200 the engines, a NumberedView | 204 no news

All: 401 to whoever has been given up, 410 when the run is ending, or there is no more to play for
this worker, which is leaving.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from agentgym_rl.core.messages import Told
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.fleet.mirrors import Followers
from agentgym_rl.runtime.http_server import (
    BodyTooLarge,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    reply,
)

from .leases import Busy, Hub, NotYours, Refused

MAX_MEMBER_BYTES = 512_000_000
MAX_TOLD_BYTES = 1_000_000

_ENDING = 410, b"nothing more is to be played"
_UNKNOWN = 401, b"unknown token"


class HubApi:
    """The ASGI app of a hub. `on_error` is told of what is nobody's fault but the controller's."""

    def __init__(
        self, hub: Hub, followers: Followers, *, on_error: Callable[[Exception], None]
    ) -> None:
        self._hub = hub
        self._followers = followers
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = await self._route(scope, receive)
        except ConnectionError:
            return  # whoever asked is gone
        except BodyTooLarge as error:
            status, body = 413, str(error).encode()
        except NotYours as error:
            status, body = 409, str(error).encode()
        except Refused as error:
            status, body = 400, str(error).encode()
        except Busy as error:
            status, body = 503, str(error).encode()
        except Exception as error:  # not the worker's fault: the run ends with this very error
            status, body = 500, f"the controller failed: {error!r}".encode()
            self._on_error(error)
        await reply(send, status, body, content_type="application/msgpack")

    async def _route(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        hub = self._hub
        life = hub.find(header(scope, b"authorization").removeprefix("Bearer "))
        if life is None:
            return _UNKNOWN
        life.heard_s = time.monotonic()
        method, path = scope["method"], scope["path"]
        if method != "POST" or path not in ("/ready", "/lease", "/member", "/follow"):
            return 404, f"no route {method} {path}".encode()
        limit = MAX_MEMBER_BYTES if path == "/member" else MAX_TOLD_BYTES
        body = await read_body(receive, limit_bytes=limit)
        if not hub.is_alive(life):  # given up meanwhile
            return _UNKNOWN
        if hub.is_over(life):
            if path == "/follow":  # its last words
                self._followers.hear(life.id, _told(body))
            return _ENDING
        found = b""
        if path == "/ready":
            hub.ready(life)
        elif path == "/lease":
            lease = await hub.lease(life)
            found = msgspec.msgpack.encode(lease) if lease else b""
        elif path == "/member":
            await hub.take(life, _trajectory(body))
        else:
            view = await self._followers.follow(life.id, _told(body))
            found = msgspec.msgpack.encode(view) if view else b""
        if not found and path != "/member" and hub.is_over(life):
            return _ENDING
        if not found and not hub.is_alive(life):
            return _UNKNOWN
        return (200, found) if found or path in ("/ready", "/member") else (204, b"")


def _trajectory(body: bytes) -> Trajectory:
    try:
        return Trajectory.unpack(body)
    except ValueError as error:
        raise Refused(str(error)) from error


def _told(body: bytes) -> Told:
    try:
        return msgspec.msgpack.decode(body, type=Told)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Refused(f"no Told: {error}") from error
