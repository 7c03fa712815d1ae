"""The Response object, whole or as typed server-sent events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agentgym_rl.gateway.dialects import Writer
from agentgym_rl.gateway.errors import ApiError
from agentgym_rl.gateway.messages import TURN
from agentgym_rl.gateway.parsers import Event
from agentgym_rl.gateway.reply import Reply, total_usage
from agentgym_rl.gateway.session.session import Session

from .output import Output, OutputEvent, Status
from .requests import ResponsesRequest

_encode = msgspec.json.Encoder().encode
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by how its turn ended."""


class ResponsesWriter(Writer):
    """Writes the one turn of a request. A response is kept for those that name it just before its
    end is written."""

    def __init__(
        self, session: Session, request: ResponsesRequest, turn: Reply, *, model: str
    ) -> None:
        self._session = session
        self._request = request
        self._turn = turn
        self._id = f"resp_{turn.id}"
        self._output = Output(
            turn.id,
            turn.call_id,
            namespaces=request.namespaces,
            seals_thoughts=request.seals_thoughts,
        )
        self._num_events = 0
        self._head = {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "background": False,
            "temperature": turn.temperature,
            "top_p": request.top_p,
            "top_logprobs": 0,
            "service_tier": "default",
            **request.echo,
        }

    def take(self, turn: Reply, events: Sequence[Event]) -> None:
        for event in events:
            for _ in self._output.add(event):
                pass  # nobody listens

    def whole(self) -> bytes:
        for _ in self._output.finish(self._status):
            pass
        return _encode(self._ended())

    def begin(self) -> bytes:
        response = msgspec.Raw(_encode(self._response("in_progress")))
        names = ("response.created", "response.in_progress")
        return self._write((name, {"response": response}) for name in names)

    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        return b"".join(self._write(self._output.add(event)) for event in events)

    def end(self) -> bytes:
        last = self._write(self._output.finish(self._status))
        return last + self._write([(f"response.{self._status}", {"response": self._ended()})])

    def error_event(self, error: ApiError) -> bytes:
        failure = {"code": "server_error", "message": error.body["error"]["message"]}
        failed = {"response": self._response("failed", error=failure)}
        begun = self._num_events > 0  # else clients have not heard of a response
        ends: list[OutputEvent] = [("response.failed", failed)] if begun else []
        return self._write([*ends, error_fields(error)])

    @property
    def _status(self) -> Status:
        return "incomplete" if self._turn.finish_reason in _CUT else "completed"

    def _ended(self) -> dict[str, Any]:
        """The whole response, which may be named from now on."""
        if self._request.store:
            said = self._request.messages[self._request.num_instructions :]
            reply = {**self._turn.message, TURN: self._turn.number}
            self._session.conversations.keep(self._id, [*said, reply])
        if self._status == "incomplete":
            why = {"reason": _CUT[self._turn.finish_reason]}
            return self._response("incomplete", incomplete_details=why, usage=self._usage())
        return self._response("completed", completed_at=int(time.time()), usage=self._usage())

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        blank = {"error": None, "incomplete_details": None, "completed_at": None, "usage": None}
        output = self._output.items
        return {**self._head, **blank, "status": status, "output": output, **fields}

    def _usage(self) -> dict[str, Any]:
        usage = total_usage([self._turn])
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": self._turn.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._turn.reasoning_tokens()},
            "total_tokens": usage["total_tokens"],
        }

    def _write(self, events: Iterable[OutputEvent]) -> bytes:
        return b"".join(self._event(name, fields) for name, fields in events)

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return write_event(name, {**fields, "sequence_number": number})


def error_fields(error: ApiError) -> OutputEvent:
    """An error as an event. Clients find it in the event itself, or, to raise it, under `error`."""
    said = error.body["error"]
    names = ("code", "message", "param")
    return "error", {**{name: said[name] for name in names}, "error": said}


def write_event(name: str, fields: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))
