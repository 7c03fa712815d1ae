"""A relay in front of an engine, which forwards everything unchanged and keeps the replies."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

_GENERATE = "/inference/v1/generate"
_HOP = {"transfer-encoding", "content-length", "connection", "keep-alive", "date", "server"}


class Relay:
    """A relay; `exchanges` are the (body, reply) of every request for tokens, as bytes; the reply
    of a client that left early is as long as the relay received."""

    def __init__(self, upstream: str) -> None:
        self.exchanges: list[tuple[bytes, bytes]] = []
        self._upstream = upstream

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve while the context is open; yields the URL."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self._http:
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                port = runner.addresses[0][1]
                yield f"http://127.0.0.1:{port}"
            finally:
                await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body, kept = await request.read(), bytearray()
        headers = {n: v for n, v in request.headers.items() if n.lower() not in _HOP | {"host"}}
        asking = self._http.request(
            request.method, self._upstream + request.raw_path, data=body or None, headers=headers
        )
        try:
            async with asking as reply:
                passed = {n: v for n, v in reply.headers.items() if n.lower() not in _HOP}
                response = web.StreamResponse(status=reply.status, headers=passed)
                with contextlib.suppress(ConnectionResetError):  # the client has left
                    await response.prepare(request)
                    async for chunk in reply.content.iter_any():
                        kept += chunk
                        await response.write(chunk)
                    await response.write_eof()
                return response
        finally:
            if request.path == _GENERATE:
                self.exchanges.append((body, bytes(kept)))
