"""The HTTP routes of sessions, next to the OpenAI endpoint, for the holder of the admin key.

    POST   /admin/v1/sessions                {"task", "data", "temperature"} → id, api_key, base_url
    GET    /admin/v1/sessions/ID
    POST   /admin/v1/sessions/ID/rewards     {"reward", "turn" or "lineage"}: added up
    POST   /admin/v1/sessions/ID/close       {"reward", "outcome", "error"}
    GET    /admin/v1/status

Status 429 with Retry-After: try again later. Closing is idempotent and returns the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agentgym_rl.core import Outcome
from agentgym_rl.gateway import ApiError, bad_request, json_object
from agentgym_rl.gateway.errors import engine_failed, unknown_key
from agentgym_rl.gateway.request.body import body_of, key_of
from agentgym_rl.runtime import Api, App, Receive, Scope, Send, is_secret, json_response

from .session_groups import CLOSED_AS, CapacityReached, ClientSession, InvalidRequest, SessionGroups

PREFIX = "/admin/v1/"
_LIMIT_BYTES = 1_000_000
_RETRY_AFTER_S = 1


class AdminApp(Api):
    """The ASGI app that answers routes under `PREFIX`, and leaves all others to `inner`."""

    def __init__(self, inner: App, session_groups: SessionGroups, *, admin_key: str) -> None:
        routes = {
            "GET status": self._status,
            "POST sessions": self._open,
            "GET sessions/{session_id}": self._describe,
            "POST sessions/{session_id}/rewards": self._pay,
            "POST sessions/{session_id}/close": self._close,
        }
        super().__init__({r.replace(" ", f" {PREFIX}"): h for r, h in routes.items()}, statuses={})
        self.base_url = ""
        """The URL of the OpenAI endpoint that is sent to a program that opens a session."""
        self._inner = inner
        self._session_groups = session_groups
        self._key = admin_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["path"].startswith(PREFIX)
        await (super().__call__ if ours else self._inner)(scope, receive, send)

    def check(self, request: Request) -> None:
        if not is_secret(key_of(request.scope, ("x-api-key",)), self._key):
            raise unknown_key()

    def answer_to(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            path = request.scope["path"]
            error = ApiError(404, f"No route {request.method} {path}.", code="not_found")
        elif isinstance(error, CapacityReached):
            kind, after_s = "rate_limit_error", _RETRY_AFTER_S
            error = ApiError(429, str(error), kind=kind, code="no_room", retry_after_s=after_s)
        elif isinstance(error, InvalidRequest):
            error = bad_request(str(error))
        elif not isinstance(
            error, ApiError
        ):  # the error ends the run as well: see `SessionGroups.run`
            error = engine_failed(f"The run has failed: {error}")
        answer = json_response(error.body, error.status)
        answer.headers.update(error.headers)
        return answer

    async def _status(self, request: Request) -> Response:
        return json_response(self._session_groups.status())

    async def _open(self, request: Request) -> Response:
        body = await _body(request)
        _known(body, "task", "data", "temperature", "main_tools")
        task, data, temperature = body.get("task"), body.get("data", {}), body.get("temperature")
        if not isinstance(task, str | None) or task == "":
            raise InvalidRequest(f"task: got {task!r}, expected a text, the same for a whole group")
        if not isinstance(data, dict):
            raise InvalidRequest("data: expected an object; it is kept with the episode")
        if temperature is not None and not 0 < _number("temperature", temperature) <= 2:
            raise InvalidRequest(f"temperature: got {temperature}, expected more than 0, at most 2")
        tools = body.get("main_tools", [])
        if not isinstance(tools, list) or not all(isinstance(name, str) for name in tools):
            raise InvalidRequest(
                f"main_tools: got {tools!r}, expected a list of names of functions"
            )
        client = self._session_groups.open(task=task, data=data, temperature=temperature)
        client.session.main_tools = tools
        opened = self._session_groups.describe(client) | {
            "api_key": client.session.key,
            "base_url": self.base_url,
            "anthropic_base_url": self.base_url.removesuffix("/v1"),
        }
        return json_response(opened, 201)

    async def _describe(self, request: Request) -> Response:
        found = self._found(request)
        return json_response(
            self._session_groups.describe(found) if isinstance(found, ClientSession) else found
        )

    def _found(self, request: Request) -> ClientSession | dict[str, Any]:
        session_id = request.path_params["session_id"]
        found = self._session_groups.find(session_id)
        if found is None:
            raise ApiError(404, f"No session {session_id}.", code="not_found")
        return found

    async def _pay(self, request: Request) -> Response:
        body = await _body(request)
        _known(body, "reward", "turn", "lineage")
        if "reward" not in body:
            raise InvalidRequest("reward is missing")
        turn, lineage = body.get("turn"), body.get("lineage")
        if isinstance(turn, bool) or not isinstance(turn, int | str | None):
            raise InvalidRequest(
                f"turn: got {turn!r}, expected a turn's number or the id of its reply"
            )
        if isinstance(lineage, bool) or not isinstance(lineage, int | None):
            raise InvalidRequest(f"lineage: got {lineage!r}, expected a number; 0 is the main one")
        reward, client = _number("reward", body["reward"]), self._found(request)
        if not isinstance(client, ClientSession):
            raise ApiError(410, f"Session {client['id']} is closed.", code="session_closed")
        self._session_groups.pay(client, reward, turn=turn, lineage=lineage)
        return json_response(self._session_groups.describe(client))

    async def _close(self, request: Request) -> Response:
        body = await _body(request)
        _known(body, "reward", "outcome", "error")
        said, error = body.get("outcome", Outcome.COMPLETED.value), body.get("error") or ""
        if said not in CLOSED_AS:
            raise InvalidRequest(f"outcome: got {said!r}, allowed: {', '.join(CLOSED_AS)}")
        if not isinstance(error, str):
            raise InvalidRequest("error: expected a text")
        reward = _number("reward", body["reward"]) if "reward" in body else None
        client = self._found(request)
        if not isinstance(client, ClientSession):
            return json_response(client)
        if reward is not None:
            self._session_groups.pay(client, reward)
        return json_response(await self._session_groups.close(client, Outcome(said), error=error))


async def _body(request: Request) -> Mapping[str, Any]:
    body = await body_of(request.scope, request.receive, limit_bytes=_LIMIT_BYTES)
    return json_object(body or b"{}")


def _known(body: Mapping[str, Any], *names: str) -> None:
    if unknown := sorted(body.keys() - set(names)):
        raise InvalidRequest(f"unknown: {', '.join(unknown)}; allowed: {', '.join(names)}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(f"{name}: got {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidRequest(f"{name}: got a number of {len(str(value))} digits") from error
