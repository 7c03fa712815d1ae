"""The requests of trainer ranks to the run: private HTTP, a bearer token, JSON bodies.

    POST /ready {"rank", "url", "version", "build"}
                        the rank, of this build of the package, has loaded its model, and serves
                        commands, which is tried; rank 0 has to publish this version first (or null)
    POST /current {}    200 if these ranks are still the run's, else 401

All other requests go from the run to its ranks (`ranks.py`). The token of replaced ranks is
refused.
"""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentgym_rl.runtime import MSGPACK, Api, is_secret, read_body
from agentgym_rl.runtime.http_server import bearer
from agentgym_rl.storage.run_folder import build

from .ranks import HttpRanks

log = logging.getLogger(__name__)

_LIMIT_BYTES = 10_000


class _Ready(msgspec.Struct, forbid_unknown_fields=True):
    rank: int
    url: str
    version: int | None
    build: str


class RanksApi(Api):
    """The ASGI app that ranks of a run call."""

    def __init__(self, ranks: HttpRanks) -> None:
        routes = {"POST /ready": self._ready, "POST /current": self._current}
        super().__init__(routes, statuses={ValueError: 400, ConnectionError: 424})
        self._ranks = ranks
        self._build = build()

    def check(self, request: Request) -> None:
        if not is_secret(bearer(request), self._ranks.token):
            raise HTTPException(401, "unknown token")
        self._ranks.seen()

    async def _ready(self, request: Request) -> Response:
        body = await read_body(request.receive, limit_bytes=_LIMIT_BYTES)
        ready = msgspec.json.decode(body, type=_Ready)
        if not 0 <= ready.rank < self._ranks.num_ranks:
            raise ValueError(f"rank {ready.rank} of {self._ranks.num_ranks}")
        await self._ranks.reach(ready.rank, ready.url)
        self.check(request)  # the ranks may have been replaced meanwhile
        if ready.build != self._build:
            log.warning(
                "trainer-%d has the package in the build %s, and this process has %s: the run is "
                "trained by the code of both. If that is not meant, stop it, and continue with "
                "`arl train --resume`",
                *(ready.rank, ready.build, self._build),
            )
        self._ranks.join(ready.rank, ready.url, first=ready.version)
        return Response(media_type=MSGPACK)

    async def _current(self, request: Request) -> Response:
        return Response(media_type=MSGPACK)
