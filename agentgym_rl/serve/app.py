"""The desk over HTTP, beside the OpenAI endpoint; the admin key opens it, and no session.

    POST   /admin/v1/sessions                {"task", "data", "temperature"} → id, api_key, base_url
    GET    /admin/v1/sessions/ID
    POST   /admin/v1/sessions/ID/rewards     {"reward", "turn" or "lineage"}: added up
    POST   /admin/v1/sessions/ID/close       {"reward", "outcome", "error"}
    GET    /admin/v1/status

429 with Retry-After means: not now. Closing is safe to repeat: it answers the same again.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

from agentgym_rl.core.trajectory import Outcome
from agentgym_rl.gateway.errors import ApiError, bad_request, engine_failed, unknown_key
from agentgym_rl.gateway.request.fields import json_object
from agentgym_rl.gateway.server.intake import body_of, key_of
from agentgym_rl.runtime.http_server import App, Receive, Scope, Send, reply

from .desk import CLOSED_AS, Desk, NoRoom, Refused, Seat

PREFIX = "/admin/v1/"
_LIMIT_BYTES = 1_000_000
_RETRY_AFTER_S = 1


class AdminApp:
    """Answers what is under `PREFIX`, and leaves the rest to `inner`."""

    def __init__(self, inner: App, desk: Desk, *, admin_key: str) -> None:
        self.base_url = ""
        """Of the OpenAI endpoint, as it is told to whoever opens a session."""
        self._inner = inner
        self._desk = desk
        self._key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if not path.startswith(PREFIX):
            return await self._inner(scope, receive, send)
        try:
            self._authenticate(scope)
            body = json_object(await body_of(receive, limit_bytes=_LIMIT_BYTES) or b"{}")
            status, answer = await self._answer(scope["method"], path.removeprefix(PREFIX), body)
            await reply(send, status, msgspec.json.encode(answer))
        except ApiError as error:
            body = msgspec.json.encode(error.body)
            await reply(send, error.status, body, headers=error.headers)
        except Exception as error:  # it ends the run as well: see `Desk.run`
            failed = engine_failed(f"The run has failed: {error}")
            await reply(send, failed.status, msgspec.json.encode(failed.body))

    def _authenticate(self, scope: Scope) -> None:
        given = key_of(scope).encode(errors="surrogateescape")
        if not hmac.compare_digest(given, self._key.encode()):
            raise unknown_key()

    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        try:
            match method, path.split("/"):
                case "GET", ["status"]:
                    return 200, self._desk.status()
                case "POST", ["sessions"]:
                    return 201, self._open(body)
                case "GET", ["sessions", session_id]:
                    found = self._found(session_id)
                    return 200, self._desk.describe(found) if isinstance(found, Seat) else found
                case "POST", ["sessions", session_id, "rewards"]:
                    return 200, self._pay(session_id, body)
                case "POST", ["sessions", session_id, "close"]:
                    return 200, await self._close(session_id, body)
        except NoRoom as error:
            raise ApiError(
                429,
                str(error),
                kind="rate_limit_error",
                code="no_room",
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        except Refused as error:
            raise bad_request(str(error)) from error
        raise ApiError(404, f"No route {method} {PREFIX}{path}.", code="not_found")

    def _open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        _known(body, "task", "data", "temperature")
        task, data, temperature = body.get("task"), body.get("data", {}), body.get("temperature")
        if not isinstance(task, str | None) or task == "":
            raise Refused(f"task: got {task!r}, expected a text, the same for a whole group")
        if not isinstance(data, dict):
            raise Refused("data: expected an object; it is kept with the episode")
        if temperature is not None and not 0 < _number("temperature", temperature) <= 2:
            raise Refused(f"temperature: got {temperature}, expected more than 0, at most 2")
        seat = self._desk.open(task=task, data=data, temperature=temperature)
        return self._desk.describe(seat) | {
            "api_key": seat.session.key,
            "base_url": self.base_url,
            "anthropic_base_url": self.base_url.removesuffix("/v1"),
        }

    def _found(self, session_id: str) -> Seat | dict[str, Any]:
        found = self._desk.find(session_id)
        if found is None:
            raise ApiError(404, f"No session {session_id}.", code="not_found")
        return found

    def _pay(self, session_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        _known(body, "reward", "turn", "lineage")
        if "reward" not in body:
            raise Refused("reward is missing")
        turn, lineage = body.get("turn"), body.get("lineage")
        if isinstance(turn, bool) or not isinstance(turn, int | str | None):
            raise Refused(f"turn: got {turn!r}, expected a turn's number or the id of its reply")
        if isinstance(lineage, bool) or not isinstance(lineage, int | None):
            raise Refused(f"lineage: got {lineage!r}, expected a number; 0 is the main one")
        reward, seat = _number("reward", body["reward"]), self._found(session_id)
        if not isinstance(seat, Seat):
            raise ApiError(410, f"Session {session_id} is closed.", code="session_closed")
        self._desk.pay(seat, reward, turn=turn, lineage=lineage)
        return self._desk.describe(seat)

    async def _close(self, session_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        _known(body, "reward", "outcome", "error")
        said, error = body.get("outcome", Outcome.COMPLETED.value), body.get("error") or ""
        if said not in CLOSED_AS:
            raise Refused(f"outcome: got {said!r}, allowed: {', '.join(CLOSED_AS)}")
        if not isinstance(error, str):
            raise Refused("error: expected a text")
        reward = _number("reward", body["reward"]) if "reward" in body else None
        seat = self._found(session_id)
        if not isinstance(seat, Seat):
            return seat
        if reward is not None:
            self._desk.pay(seat, reward)
        return await self._desk.close(seat, Outcome(said), error=error)


def _known(body: Mapping[str, Any], *names: str) -> None:
    if unknown := sorted(body.keys() - set(names)):
        raise Refused(f"unknown: {', '.join(unknown)}; allowed: {', '.join(names)}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refused(f"{name}: got {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError as error:
        raise Refused(f"{name}: got a number of {len(str(value))} digits") from error
