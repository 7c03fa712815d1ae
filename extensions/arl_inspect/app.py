"""The page and its data over HTTP (docs/inspect.md). Nothing is written but the notes of a run, by
PUT. Changes of runs go to all listening clients as Server-Sent Events.

Routing is by hand, not by `runtime.http_server.Api`: ids may contain encoded slashes, and Starlette
matches the decoded path. The format of events is WHATWG's,
https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from agentgym_rl.core import ArlError, ConfigError, parse_json
from agentgym_rl.runtime import BodyTooLarge, Receive, Scope, Send, is_secret, read_body
from agentgym_rl.runtime.http_server import header, reply

from .detail import episode_detail, group_detail
from .folders import InspectedRun, Runs
from .notes import Notes, write_notes
from .query import HttpError, Query, missing, whole, wrong
from .timeline import timeline

log = logging.getLogger(__name__)

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
"""The content types of the files that are served from the page's folder, by suffix."""
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
PAGE = Path(__file__).parent / "page"
_LOOK_S = 1.0
_SEND_S = 0.25
_COMMENT_S = 15.0
_NOTES_BYTES = 100_000

Reading = Callable[[InspectedRun], None]


class Changes:
    """A watcher of all runs: clients share one check per second; without clients there is none."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._pulses: dict[str, Mapping[str, Any]] = {}
        self._listeners = 0

    async def watch(self) -> None:
        """Look at the runs every second while there are clients, until cancelled."""
        while True:
            if self._listeners:
                self._pulses = await asyncio.to_thread(self._look)
            await asyncio.sleep(_LOOK_S if self._listeners else _SEND_S)

    def _look(self) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for run in self._runs.all():
            try:
                found[run.id] = run.pulse()
            except (ArlError, OSError) as error:  # the run's own routes report the error
                found[run.id] = {
                    **{"run": run.id, "steps": 0, "episodes": 0, "status": "stopped"},
                    "error": str(error),
                }
        return found

    async def stream(self, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        """Send the changes after the start of the answer, until the client disconnects."""
        known = self._pulses = await asyncio.to_thread(self._look)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw.append((b"content-type", b"text/event-stream"))
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await _write(send, ": arl inspect\n\n")
        self._listeners += 1
        try:
            said_s = time.monotonic()
            while not await _has_left(receive):
                seen = self._pulses
                texts = [_event(seen[id]) for id in seen if seen[id] != known.get(id)]
                texts += [_event({"run": id, "gone": True}) for id in known if id not in seen]
                if not texts and time.monotonic() - said_s >= _COMMENT_S:
                    texts = [": alive\n\n"]
                if texts:
                    await _write(send, "".join(texts))
                    said_s = time.monotonic()
                known = seen
        finally:
            self._listeners -= 1


def _event(pulse: Mapping[str, Any]) -> str:
    return f"event: change\ndata: {msgspec.json.encode(pulse).decode()}\n\n"


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _has_left(receive: Receive) -> bool:
    """Return whether the client is gone; wait up to `_SEND_S` if it is not."""
    try:
        async with asyncio.timeout(_SEND_S):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


class InspectorApp:
    """The ASGI app that serves `runs`. If it has a token, it refuses all requests without it."""

    def __init__(
        self,
        runs: Runs,
        changes: Changes,
        *,
        token: str = "",
        on_read: Reading = lambda run: None,
        page: Path = PAGE,
        read_only: bool = False,
    ) -> None:
        """Create the app; `on_read` is called with each run whose episodes are requested. If it is
        `read_only`, it does not write notes either."""
        self._runs, self._changes, self._page = runs, changes, page
        self._token = token
        self._cookie = f"arl_{hashlib.blake2s(token.encode()).hexdigest()[:12]}"
        self._on_read = on_read
        self._read_only = read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = _parameters(scope)
            headers = {**HEADERS, **self._authenticated(scope, asked)}
            given = await self._given(scope, receive)
            if scope["path"] == "/api/events":
                return await self._changes.stream(receive, send, headers)
            kind, body = await asyncio.to_thread(self._answer, scope, asked, given)
            status = 200
        except HttpError as error:
            status, kind, body, headers = error.status, *_said(str(error)), HEADERS
        except (ConfigError, OSError) as error:  # files that vanish, are foreign, or truncated
            status, kind, body, headers = 404, *_said(str(error)), HEADERS
        except Exception as error:
            log.exception("no answer to %s", scope["path"])
            text = f"the inspector failed: {type(error).__name__}: {error}"
            status, kind, body, headers = 500, *_said(text), HEADERS
        body = b"" if scope["method"] == "HEAD" else body
        await reply(send, status, body, content_type=kind, headers=headers)

    def _authenticated(self, scope: Scope, asked: dict[str, str]) -> Mapping[str, str]:
        """Check the token, remove it from `asked`, and return the headers of the answer.

        Raises:
            HttpError: the token is missing or wrong; or, without a token, the Host is a name that
                another site made resolve to this machine (DNS rebinding).
        """
        given = asked.pop("token", "")
        if not self._token:
            if _host_name(header(scope, b"host")) not in LOOPBACK:
                raise wrong("the inspector answers only to 127.0.0.1 and localhost; see --host")
            return {}
        bearer = header(scope, b"authorization").removeprefix("Bearer ")
        for candidate in (given, bearer, self._cookie_of(scope)):
            if candidate and is_secret(candidate, self._token):
                if not given:
                    return {}
                return {
                    "set-cookie": f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                }
        raise HttpError(
            401, "the token is missing or wrong: open the URL that `arl inspect` printed"
        )

    def _cookie_of(self, scope: Scope) -> str:
        try:
            found = SimpleCookie(header(scope, b"cookie")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    async def _given(self, scope: Scope, receive: Receive) -> Notes | None:
        """Return the notes that a request writes; None if it only reads.

        Raises:
            HttpError: another method than GET, HEAD and PUT of notes; the app is read-only; the
                request comes from a page of another site; or its body is not notes.
        """
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "PUT" or not scope["path"].endswith("/notes"):
            raise wrong(f"{scope['method']} is not allowed: the inspector only reads")
        if self._read_only:
            raise HttpError(403, "notes are not written: `arl inspect` runs with --read-only")
        origin = header(scope, b"origin")
        if origin and origin.partition("://")[2] != header(scope, b"host"):
            raise HttpError(403, f"notes are not written for a page of {origin[:80]}")
        if header(scope, b"content-type").partition(";")[0].strip() != "application/json":
            raise wrong("notes are sent as application/json")
        try:
            return Notes.of(parse_json(await read_body(receive, limit_bytes=_NOTES_BYTES)))
        except BodyTooLarge as error:
            raise wrong(f"notes are too long: {error}") from None
        except ValueError as error:
            raise wrong(f"notes cannot be read: {error}") from None

    def _answer(
        self, scope: Scope, asked: dict[str, str], given: Notes | None
    ) -> tuple[str, bytes]:
        # Split before unquoting: an id may contain a slash.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        parts = [unquote(part) for part in raw.decode("latin-1").split("?")[0].split("/")[1:]]
        if parts[0] != "api":
            return self._file("/".join(parts))
        found = self._data(parts[1:], asked) if given is None else self._write(parts[1:], given)
        return TYPES[".json"], msgspec.json.encode(found)

    def _write(self, parts: list[str], given: Notes) -> Any:
        match parts:
            case ["runs", run_id, "notes"]:
                write_notes(self._runs.of(run_id).folder, given)
                return given
        raise missing(f"no route /api/{'/'.join(parts)[:80]}")

    def _data(self, parts: list[str], asked: dict[str, str]) -> Any:
        if parts == ["runs"]:
            _only(asked)
            found = [run.summary() for run in self._runs.all()]
            return {"runs": found, "can_write": not self._read_only}
        if len(parts) < 3 or parts[0] != "runs":
            raise missing(f"no route /api/{'/'.join(parts)[:80]}")
        run = self._runs.of(parts[1])
        match parts[2:]:
            case ["config"]:
                _only(asked)
                return run.config_answer()
            case ["metrics"]:
                _only(asked, "after")
                return run.metrics(after=whole(asked, "after", least=-inf, most=inf, default=-1))
            case ["timeline"]:
                _only(asked, "steps")
                return timeline(run, asked.get("steps", ""))
            case ["facets"]:
                _only(asked)
                self._on_read(run)
                return run.index.facets()
            case ["episodes"]:
                found = run.index.page(Query.of(asked))
                self._on_read(run)  # after it: then the index knows what is to be read
                return found
            case ["episodes", episode_id, "place"]:
                return run.index.place(Query.of(asked), episode_id)
            case ["episodes", episode_id]:
                _only(asked)
                return episode_detail(run, episode_id)
            case ["groups", group_id]:
                _only(asked)
                return group_detail(run, group_id)
        raise missing(f"no route /api/{'/'.join(parts)[:80]}")

    def _file(self, name: str) -> tuple[str, bytes]:
        files = page_files(self._page)
        found = files.get(name or "index.html")
        if found is None:
            raise missing(f"no file {name[:80]!r} in the page")
        content = found.read_bytes()
        if found.suffix == ".html":
            content = _with_preloads(content, files)
        return TYPES[found.suffix], content


def page_files(page: Path) -> dict[str, Path]:
    """Return the page's files by their path in its folder. Only these files are served: no path is
    ever made from a request."""
    return {
        file.relative_to(page).as_posix(): file
        for file in sorted(page.rglob("*"))
        if file.suffix in TYPES and file.is_file() and not file.is_symlink()
    }


def _with_preloads(index: bytes, files: Mapping[str, Path]) -> bytes:
    """Return index.html with links that request all modules at once: a browser finds an imported
    module only in the one that imports it, and they are five deep."""
    links = [f'<link rel="modulepreload" href="{name}">' for name in files if name.endswith(".js")]
    return index.replace(b"</head>", "\n".join([*links, "</head>"]).encode(), 1)


def _said(text: str) -> tuple[str, bytes]:
    return TYPES[".json"], msgspec.json.encode({"error": text})


def _parameters(scope: Scope) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=50,
        )
    except ValueError as error:
        raise wrong(f"the parameters cannot be read: {error}") from None
    return dict(pairs)


def _only(asked: Mapping[str, str], *known: str) -> None:
    if unknown := sorted(asked.keys() - set(known)):
        raise wrong(f"unknown parameter {unknown[0]!r}; known: {', '.join(known) or 'none'}")


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
