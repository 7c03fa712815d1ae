"""The listening ports through which programs reach one address of the host each.

The host does the connecting; here each piece of data becomes an event, a message with the number
-1. Both sides wait for each other: after a piece the runner reads on only after the host's request
`more`, and the host sends the next one only after the event `sent`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket

from .loop import Feed, Loop, b64

MAX_OPEN, CHUNK_BYTES = 256, 1 << 16


class Ports:
    def __init__(self, loop: Loop, send_event) -> None:
        self._loop, self._send_event = loop, send_event
        self._servers: dict = {}
        self._open: dict = {}
        """The (port, socket) of each connection, by its number."""
        self._count = 0

    def op_listen(self, request: dict) -> dict:
        server = socket.create_server(("127.0.0.1", request["port"]))
        server.setblocking(False)
        self._servers[request["port"]] = server
        self._loop.watch(server.fileno(), lambda: self._accept(request["port"]))
        return {}

    def op_unlisten(self, request: dict) -> dict:
        server = self._servers.pop(request["port"], None)
        if server is not None:
            self._loop.forget(server.fileno())
            server.close()
        for number in [n for n, (port, _) in self._open.items() if port == request["port"]]:
            self.op_drop({"conn": number})
        return {}

    def op_more(self, request: dict) -> dict:
        number = request["conn"]
        if number in self._open:
            self._loop.watch(self._open[number][1].fileno(), lambda: self._read(number))
        return {}

    def op_send(self, request: dict) -> dict:
        number = request["conn"]
        if number in self._open:
            end = os.dup(self._open[number][1].fileno())

            def done() -> None:
                os.close(end)
                self._send_event({"sent": number})

            Feed(self._loop, end, base64.b64decode(request["data"]), done)
        return {}

    def op_shut(self, request: dict) -> dict:
        if request["conn"] in self._open:
            with contextlib.suppress(OSError):  # its program has gone
                self._open[request["conn"]][1].shutdown(socket.SHUT_WR)
        return {}

    def op_drop(self, request: dict) -> dict:
        _, conn = self._open.pop(request["conn"], (0, None))
        if conn is not None:
            self._loop.forget(conn.fileno())
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)  # what is still being sent ends, too
            conn.close()
        return {}

    def _accept(self, port: int) -> None:
        try:
            conn, _ = self._servers[port].accept()
        except OSError:  # it has gone already
            return
        if len(self._open) >= MAX_OPEN:
            conn.close()
            return
        conn.setblocking(False)
        self._count += 1
        self._open[self._count] = port, conn
        self._send_event({"open": self._count, "port": port})

    def _read(self, number: int) -> None:
        conn = self._open[number][1]
        try:
            data = conn.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._loop.forget(conn.fileno())
        self._send_event({"conn": number, "data": b64(data)})
