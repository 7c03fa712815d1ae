"""A session of an OpenEnv server: one WebSocket, with its own instance of the environment.

The protocol is OpenEnv's (0.3): {"type": "reset" | "step", "data": ...} is answered by
{"type": "observation", "data": {observation, reward, done}} or {"type": "error", ...}.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentgym_rl import ConfigError, EnvError, InfraError
from agentgym_rl.core import install_command
from agentgym_rl.runtime import HttpClient, read_json

MAX_BYTES = 16 << 20
"""The longest answer of the server."""
SCHEMA_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 15.0


class BadAction(Exception):
    """A refusal of an action by a server that works otherwise."""


class NoSession(InfraError):
    """The refusal of a session by a server with its maximum number of sessions."""

    def __init__(self, message: str, active: int | None = None, most: int | None = None) -> None:
        super().__init__(message)
        self.active = active
        """The number of sessions in use, as the server reports it, if it does."""
        self.most = most
        """The maximum number of sessions, as the server reports it, if it does."""


async def schema(url: str) -> Mapping[str, Any]:
    """Return the JSON schema of the server's actions.

    Raises:
        InfraError: the server cannot be reached, or is no OpenEnv server.
    """
    try:
        async with HttpClient(pooled=False) as http:
            status, data = await http.call(
                *(url, "GET", "/schema"), timeout_s=CONNECT_TIMEOUT_S, max_bytes=SCHEMA_BYTES
            )
        if status != 200:
            raise ValueError(f"it answered {status}: {data[:200].decode(errors='replace')}")
        match read_json(data):
            case {"action": dict() as action}:
                return action
            case found:
                raise ValueError(f"expected an object with the schema of an action: {found!r:.200}")
    except (OSError, ValueError) as error:
        raise InfraError(
            f"GET {url}/schema: {type(error).__name__}: {error}; is an OpenEnv server there?"
        ) from error


class Session:
    """An open session; `close` frees the server's slot."""

    def __init__(self, url: str, socket: Any) -> None:
        self._url = url
        self._socket = socket
        self.on_close: Callable[[], None] = _nothing
        """The function to call once the session is closed."""

    @classmethod
    async def open(cls, url: str) -> Session:
        """Connect to the server.

        Raises:
            ConfigError: the websockets package is missing.
            InfraError: the server cannot be reached.
        """
        try:
            from websockets.asyncio.client import connect  # it answers pings without a reader
        except ImportError as error:
            raise ConfigError(f"websockets is missing: {install_command('openenv')}") from error
        from websockets.exceptions import WebSocketException

        address = f"ws{url.removeprefix('http')}/ws"
        try:
            socket = await connect(
                address,
                open_timeout=CONNECT_TIMEOUT_S,
                max_size=MAX_BYTES,
                ping_interval=None,
                close_timeout=2,
                proxy=None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            raise InfraError(f"{address}: {type(error).__name__}: {error}") from error
        return cls(url, socket)

    async def call(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's observation: {observation, reward, done}.

        Raises:
            BadAction: the server does not take this data.
            EnvError: the environment's code raised.
            NoSession: the server has its maximum number of sessions.
            InfraError: the connection or the server failed.
        """
        from websockets.exceptions import ConnectionClosed, WebSocketException

        # A lone surrogate, which JSON could carry, would end the session at the server.
        try:
            message = json.dumps({"type": kind, "data": data}, ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            raise BadAction("a number is not finite") from error
        try:
            with contextlib.suppress(ConnectionClosed):  # the reason is still to be read
                await self._socket.send(message.encode("utf-8", "replace").decode())
            answer = read_json(await self._socket.recv())
        except (OSError, WebSocketException, ValueError) as error:
            raise InfraError(f"{kind} at {self._url}: {type(error).__name__}: {error}") from error
        match answer:
            case {"type": "observation", "data": dict() as found}:
                return found
            case {"type": "error", "data": dict() as found}:
                raise _error(f"{kind} at {self._url}", found)
            case _:
                raise InfraError(
                    f"{kind} at {self._url}: expected the type observation or error, and an object "
                    f"as data: {answer!r:.200}"
                )

    async def close(self) -> None:
        on_close, self.on_close = self.on_close, _nothing
        try:
            await self._socket.close()
            await self._socket.wait_closed()
        finally:
            on_close()


def _nothing() -> None:
    pass


def _error(what: str, found: Mapping[str, Any]) -> Exception:
    code, message = found.get("code"), found.get("message")
    if code == "VALIDATION_ERROR":
        errors = found.get("errors")
        problems = [
            f"{_place(each.get('loc'))}: {each.get('msg')}"
            for each in (errors if isinstance(errors, list) else [])
            if isinstance(each, Mapping)
        ]
        return BadAction("; ".join(problems) or str(message))
    if code == "EXECUTION_ERROR":
        return EnvError(f"{what}: {message}")
    if code == "CAPACITY_REACHED":
        most = _at_least(1, found.get("max_sessions"))
        active = _at_least(0, found.get("active_sessions"))
        return NoSession(f"{what}: {code}: {message}", active, most)
    return InfraError(f"{what}: {code}: {message}")


def _at_least(least: int, number: Any) -> int | None:
    """Return a count of the server, None if the value is not a count."""
    is_count = isinstance(number, int) and not isinstance(number, bool)
    return number if is_count and least <= number < 1 << 31 else None


def _place(loc: Any) -> str:
    return ".".join(map(str, loc)) if isinstance(loc, list) else str(loc or "")
