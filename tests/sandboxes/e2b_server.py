"""A protocol-level fake of E2B: the real `e2b` SDK talks to it over HTTP on loopback.

    with E2BServer() as server:
        backend = E2BBackend(api_key=server.key, api_url=server.url, sandbox_url=server.url)

Both planes are on one port: the control plane (`/v2/sandboxes`, ...) and each sandbox's daemon
(`/process.Process/...`, `/files`, `/health`), told apart by path, as the SDK sends them. What it
says on the wire is E2B's; what it runs commands in is not: `e2b_vm.py`, namespaces of the test
machine. A test that passes says "the e2b SDK against a protocol fake", and no more.

Faults: `server.faults["create"] = [429, 503]` answers the next two with these statuses, then works
again. Beside statuses: "hang" (no answer), "lose" (does it, and gives no answer), "swallow" (says
it has done it, and has not), "cut" (the connection is closed). Operations: create, list, kill,
renew, health, files, start, input, signal; of templates: alias, template, link, upload, build,
status.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self

import uvicorn
from e2b.envd.process.process_connect import ProcessASGIApplication
from e2b_envd import Box, Envd
from e2b_templates import Templates, Unknown, started

ENVD_VERSION = "0.6.7"
_RPC = {"Start": "start", "SendInput": "input", "SendSignal": "signal"}


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


class E2BServer:
    """Runs in a thread, from `with` to its end; then every machine it made is gone."""

    def __init__(self) -> None:
        self.key = "e2b_" + secrets.token_hex(20)
        self.boxes: dict[str, Box] = {}
        self.faults: defaultdict[str, list[int | str]] = defaultdict(list)
        self.requests: Counter[str] = Counter()
        """Requests by operation, refused ones too."""
        self.created_at: list[float] = []
        """Seconds on the monotonic clock; refused ones too."""
        self.keys: list[str] = []
        """Idempotency keys of the creations."""
        self.templates = Templates()
        self._envd = ProcessASGIApplication(Envd(self.boxes))
        self._streams: list[Any] = []
        config = uvicorn.Config(
            self._app,
            host="127.0.0.1",
            port=0,
            log_level="error",
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="e2b fake", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until = time.monotonic() + 60
        while not self._server.started:
            if time.monotonic() > until:
                raise RuntimeError("the fake did not start within 10 s")
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        if self._thread.is_alive():
            raise RuntimeError("the fake did not stop within 10 s")

    @contextmanager
    def clean(self) -> Iterator[Self]:
        """Itself, for one test: no faults, no machines, at the beginning and at the end; and no
        templates but E2B's own, at the beginning."""
        self.faults.clear()
        self.requests.clear()
        self.created_at.clear()
        self.keys.clear()
        self.templates = Templates()
        yield self
        assert not self.boxes, f"machines left over: {list(self.boxes)}"
        assert not any(self.faults.values()), f"not all faults came about: {self.faults}"

    def kill_all(self) -> None:
        """What an outage, or the end of their time, does to the sandboxes."""
        asyncio.run_coroutine_threadsafe(self._kill_all(), self._loop).result(20)

    def cut_streams(self) -> None:
        """Close every connection on which a command's output is read; the commands go on."""
        streams, self._streams = self._streams, []
        for transport in streams:
            self._loop.call_soon_threadsafe(transport.abort)

    # ------------------------------------------------------------------ inside
    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            self._loop = runner.get_loop()
            runner.run(self._server.serve())

    async def _kill_all(self) -> None:
        for id in list(self.boxes):
            self._drop(id)

    def _drop(self, id: str) -> None:
        self.boxes.pop(id).kill()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        operation = _operation(scope["method"], scope["path"])
        self.requests[operation] += 1
        if operation == "create":
            self.created_at.append(time.monotonic())
        fault = self.faults[operation].pop(0) if self.faults[operation] else None
        if fault == "hang":
            await _hang(receive)
        elif fault == "cut":
            receive.__self__.transport.abort()
        elif fault == "swallow":
            await _answer(send, 200, {})
        elif isinstance(fault, int):
            await _answer(send, fault, {"code": fault, "message": "injected by the test"})
        else:
            try:
                await self._play(operation, scope, receive, _deaf if fault == "lose" else send)
            except Refused as error:
                await _answer(send, error.status, {"code": error.status, "message": error.message})
            if fault == "lose":
                await _hang(receive)

    async def _play(self, operation: str, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        if scope["path"].startswith("/process.Process/"):
            self._box(headers)
            if operation == "start":
                self._streams.append(receive.__self__.transport)
            await self._envd(scope, receive, send)
        elif operation == "health":
            self._box(headers, token=False)
            await _answer(send, 204)
        elif operation == "files":
            await self._write(scope, headers, await _body(receive))
            await _answer(send, 200, [{"name": "file", "type": "file", "path": "/"}])
        elif operation == "upload":
            self.templates.upload(scope["path"].rpartition("/")[2], await _body(receive))
            await _answer(send, 200)
        elif headers.get("x-api-key") != self.key:
            raise Refused(401, "Invalid API key")
        else:
            body = await _body(receive)
            try:
                status, answer = await self._control(operation, scope, headers, body)
            except Unknown as error:
                raise Refused(404, str(error)) from None
            await _answer(send, status, answer)

    async def _control(
        self, operation: str, scope: Any, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any]:
        id = (scope["path"] + "//").split("/")[2]
        match operation:
            case "create":
                box = await self._create(json.loads(body), headers)
                return 201, _described(box) | {"envdAccessToken": box.token, "domain": None}
            case "list":
                wanted = urllib.parse.parse_qs(scope["query_string"].decode()).get("metadata", [""])
                pairs = dict(urllib.parse.parse_qsl(wanted[0]))
                boxes = [b for b in self.boxes.values() if pairs.items() <= _metadata(b).items()]
                return 200, [_described(box) for box in boxes]
            case "kill" | "renew" if id not in self.boxes:
                raise Refused(404, f"sandbox {id} not found")
            case "kill":
                self._drop(id)
                return 204, None
            case "renew":
                self.boxes[id].ends_at = time.time() + json.loads(body)["timeout"]
                self.boxes[id].num_renewals += 1
                return 204, None
        return self._template(operation, scope, body)

    def _template(self, operation: str, scope: Any, body: bytes) -> tuple[int, Any]:
        _, *_, build = scope["path"].removesuffix("/status").split("/")
        match operation:
            case "alias":
                return 200, {"templateID": self.templates.find(build).id, "public": False}
            case "template":
                return 202, self.templates.request(json.loads(body))
            case "link":
                return 201, self.templates.link(build, self.url)
            case "build":
                self.templates.begin(build, json.loads(body))
                return 202, None
            case "status":
                query = urllib.parse.parse_qs(scope["query_string"].decode())
                return 200, self.templates.status(build, int(query["logsOffset"][0]))
        raise Refused(404, f"the fake has no {scope['method']} {scope['path']}")

    async def _create(self, order: dict, headers: dict[str, str]) -> Box:
        files = self.templates.find(order["templateID"]).files
        if files is None:
            raise Refused(400, f"template '{order['templateID']}' has no ready build")
        self.keys.append(headers.get("idempotency-key", ""))
        ends_at = time.time() + order.get("timeout", 15)
        box = Box("i" + secrets.token_hex(9), secrets.token_hex(16), order, ends_at)
        self.boxes[box.id] = box
        return await started(box, files)

    def _box(self, headers: dict[str, str], *, token: bool = True) -> Box:
        """Raises as the proxy in front of the sandboxes does."""
        id = headers.get("e2b-sandbox-id", "")
        if id in self.boxes and time.time() > self.boxes[id].ends_at:
            self._drop(id)
        if id not in self.boxes:
            raise Refused(502, "The sandbox was not found")
        if token and headers.get("x-access-token") != self.boxes[id].token:
            raise Refused(401, "unauthorized access, please provide a valid access token")
        return self.boxes[id]

    async def _write(self, scope: Any, headers: dict[str, str], data: bytes) -> None:
        if scope["method"] != "POST" or headers["content-type"] != "application/octet-stream":
            raise Refused(400, "the fake takes uploads as octet-stream only")
        query = urllib.parse.parse_qs(scope["query_string"].decode())
        script = 'mkdir -p "$(dirname "$0")" && cat > "$0"'
        argv = ["/bin/sh", "-c", script, query["path"][0]]
        box = self._box(headers)
        user = query.get("username", ["user"])[0]
        child = box.commands.pop(await box.spawn(argv, user=user, cwd="/", stdin=True))
        _, complaint = await child.communicate(data)
        if child.returncode:
            raise Refused(400, complaint.decode())


def _operation(method: str, path: str) -> str:
    if path.startswith("/process.Process/"):
        name = path.rpartition("/")[2]
        return _RPC.get(name, name)
    if path in ("/files", "/health"):
        return path[1:]
    if path == "/v2/sandboxes":
        return "create" if method == "POST" else "list"
    if "templates" in path or path.startswith("/uploads/"):
        return _template_operation(method, path)
    return "kill" if method == "DELETE" else "renew" if path.endswith("/timeout") else path


def _template_operation(method: str, path: str) -> str:
    if path == "/v3/templates":
        return "template"
    if path.startswith("/templates/aliases/"):
        return "alias"
    if method == "PUT":
        return "upload"
    if "/files/" in path:
        return "link"
    return "build" if method == "POST" else "status" if path.endswith("/status") else path


def _described(box: Box) -> dict:
    now, end = datetime.now(UTC).isoformat(), datetime.fromtimestamp(box.ends_at, UTC).isoformat()
    return {
        "sandboxID": box.id, "templateID": box.order["templateID"], "clientID": "fake",
        "envdVersion": ENVD_VERSION, "state": "running", "startedAt": now, "endAt": end,
        "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024, "metadata": _metadata(box),
    }  # fmt: skip


def _metadata(box: Box) -> dict[str, str]:
    return box.order.get("metadata") or {}


async def _answer(send: Any, status: int, body: Any = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"0")]
    if status != 204:
        headers.append((b"content-length", str(len(data)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _body(receive: Any) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return data


async def _deaf(message: Any) -> None:
    """Where an answer goes that nobody is to get."""


async def _hang(receive: Any) -> None:
    """Until the client gives up."""
    while (await receive())["type"] != "http.disconnect":
        pass
