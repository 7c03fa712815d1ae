"""The Responses API: `POST /v1/responses`, one sampled turn for each request.

A sampled reply becomes output items and their events. An item ends before the next one begins:
text, a call and more text are three items, in the order in which they were sampled. The items are
the same whether or not the reply is streamed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agentgym_rl.gateway import (
    ApiError,
    ChatRequest,
    Dialect,
    Event,
    Question,
    Reasoning,
    Reply,
    Route,
    Session,
    ToolCall,
    WireFormat,
    Writer,
    typed_event,
)
from agentgym_rl.gateway.dialects import Count, total_usage
from agentgym_rl.gateway.dialects.formats import Served
from agentgym_rl.gateway.messages import TURN
from agentgym_rl.gateway.request.offered_tools import text_of_call

from .responses_items import item_id
from .responses_request import ResponsesRequest, read_request
from .responses_stored import StoredConversations, StoredResponses
from .stored import KEPT_SIZE, Responses, StoredResponse

Status = Literal["completed", "incomplete"]
OutputEvent = tuple[str, dict[str, Any]]
"""The type of an event, and its fields."""

_encode = msgspec.json.Encoder().encode
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reason why a response is incomplete, by its turn's finish reason."""


@dataclass(frozen=True, slots=True)
class _TextKind:
    """An item with one part, whose text comes in pieces."""

    id: str
    events: str
    item: Mapping[str, Any]
    part: Mapping[str, Any]
    delta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _CallKind:
    """An item that is a call, whose `field` has what the model wrote."""

    id: str
    type: str
    events: str
    field: str


_CALL = _CallKind("fc", "function_call", "response.function_call_arguments", "arguments")
_TEXT_CALL = _CallKind("ctc", "custom_tool_call", "response.custom_tool_call_input", "input")
_CALLS = ("message", _CALL.type, _TEXT_CALL.type)
"""The types of items of which a client has to send back one."""
_MESSAGE = _TextKind(
    "msg",
    "response.output_text",
    {"type": "message", "role": "assistant"},
    {"type": "output_text", "annotations": [], "logprobs": []},
    {"logprobs": []},
)
_REASONING = _TextKind(
    "rs",
    "response.reasoning_text",
    {"type": "reasoning", "summary": []},
    {"type": "reasoning_text"},
    {},
)
_IN_PROGRESS = {"status": "in_progress"}


def _part(kind: _TextKind, text: str) -> dict[str, Any]:
    return {**kind.part, "text": text}


class ResponsesWriter(Writer):
    """A writer of the one turn of a request. The response is kept for later requests just before
    its end is written. `_items` are the output items that have ended."""

    def __init__(
        self, session: Session, request: ResponsesRequest, turn: Reply, *, model: str
    ) -> None:
        self._session = session
        self._request = request
        self._turn = turn
        self._id = f"resp_{turn.id}"
        self._items: list[dict[str, Any]] = []
        self._num_calls = 0
        self._open: _TextKind | None = None
        self._text: list[str] = []
        self._num_events = 0
        if request.store:
            self.ending_size = KEPT_SIZE * (len(request.messages) + len(request.items))
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
            for _ in self._add(event):
                pass  # the events are not sent

    def whole(self) -> bytes:
        for _ in self._finish(self._status):
            pass
        return _encode(self._ended())

    def begin(self) -> bytes:
        response = msgspec.Raw(_encode(self._response("in_progress")))
        names = ("response.created", "response.in_progress")
        return self._write((name, {"response": response}) for name in names)

    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        return b"".join(self._write(self._add(event)) for event in events)

    def end(self) -> bytes:
        last = self._write(self._finish(self._status))
        return last + self._write([(f"response.{self._status}", {"response": self._ended()})])

    def error_event(self, error: ApiError) -> bytes:
        failure = {"code": "server_error", "message": error.body["error"]["message"]}
        failed = {"response": self._response("failed", error=failure)}
        begun = self._num_events > 0  # otherwise clients do not know of a response
        ends: list[OutputEvent] = [("response.failed", failed)] if begun else []
        return self._write([*ends, _error_fields(error)])

    @property
    def _status(self) -> Status:
        return "incomplete" if self._turn.finish_reason in _CUT else "completed"

    def _ended(self) -> dict[str, Any]:
        """Return the complete response, which later requests may name from now on."""
        if self._status == "incomplete":
            why = {"reason": _CUT[self._turn.finish_reason]}
            body = self._response("incomplete", incomplete_details=why, usage=self._usage())
        else:
            now = int(time.time())
            body = self._response("completed", completed_at=now, usage=self._usage())
        self._store(body)
        return body

    def _store(self, body: Mapping[str, Any]) -> None:
        asked = self._request
        if asked.store:
            said = asked.messages[asked.num_instructions :]
            reply = {**self._turn.message, TURN: self._turn.number}
            stored = StoredResponse([*said, reply], asked.items, asked.item_tools, body)
            self._session.state(Responses).keep(self._id, stored)
        if asked.conversation is not None:
            asked.conversation.items += [*asked.items[asked.num_earlier :], *self._items]

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        blank = {"error": None, "incomplete_details": None, "completed_at": None, "usage": None}
        head = {**self._head, **blank, "status": status}
        return {**head, "output": self._items, **fields}

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
        return typed_event(name, {**fields, "sequence_number": number})

    # ------------------------------------------------------------------ items
    def _add(self, event: Event) -> Iterator[OutputEvent]:
        """Yield the events of a piece of the reply."""
        if isinstance(event, ToolCall):
            yield from self._end_item("completed")
            yield from self._call(event)
            return
        thought = isinstance(event, Reasoning)
        kind, text = (_REASONING, event.text) if thought else (_MESSAGE, event)
        if self._open is not kind:
            yield from self._end_item("completed")
            yield from self._begin_item(kind)
        yield from self._delta(text)

    def _finish(self, status: Status) -> Iterator[OutputEvent]:
        """Yield the events of the end of the reply. An empty reply becomes an empty message,
        because clients could not send it back otherwise."""
        yield from self._end_item(status)
        if not any(item["type"] in _CALLS for item in self._items):
            yield from self._begin_item(_MESSAGE)
            yield from self._end_item(status)

    def _begin_item(self, kind: _TextKind) -> Iterator[OutputEvent]:
        self._open, self._text = kind, []
        item = {"id": self._item_id(kind.id), **kind.item, "content": []}
        yield self._item_event("added", item | _IN_PROGRESS)
        yield "response.content_part.added", {**self._place(kind), "part": _part(kind, "")}

    def _delta(self, text: str) -> Iterator[OutputEvent]:
        assert self._open is not None
        self._text.append(text)
        kind = self._open
        yield f"{kind.events}.delta", {**self._place(kind), "delta": text, **kind.delta}

    def _end_item(self, status: Status) -> Iterator[OutputEvent]:
        """End the item that is open, if one is."""
        if self._open is None:
            return
        kind, text, self._open = self._open, "".join(self._text), None
        place, part = self._place(kind), _part(kind, text)
        yield f"{kind.events}.done", {**place, "text": text, **kind.delta}
        yield "response.content_part.done", {**place, "part": part}
        item = {"id": place["item_id"], **kind.item, "content": [part], "status": status}
        if kind is _REASONING and self._request.seals_thoughts:
            item["encrypted_content"] = item["id"]  # some clients keep only this field
        yield self._item_ended(item)

    def _call(self, call: ToolCall) -> Iterator[OutputEvent]:
        """Yield the events of a complete call: its block has closed."""
        form = _TEXT_CALL if call.name in self._request.text_tools else _CALL
        said = text_of_call(call.arguments) if form is _TEXT_CALL else call.arguments
        call_id = self._turn.call_id(self._num_calls, call)
        self._num_calls += 1
        item = {"id": self._item_id(form.id), "type": form.type, "call_id": call_id}
        item = {**item, "name": call.name, form.field: ""}
        if call.name in self._request.namespaces:
            item["namespace"] = self._request.namespaces[call.name]
        place = {"item_id": item["id"], "output_index": len(self._items)}
        yield self._item_event("added", item | _IN_PROGRESS)
        yield f"{form.events}.delta", {**place, "delta": said}
        yield f"{form.events}.done", {**place, "name": call.name, form.field: said}
        yield self._item_ended({**item, form.field: said, "status": "completed"})

    def _item_ended(self, item: dict[str, Any]) -> OutputEvent:
        event = self._item_event("done", item)
        self._items.append(item)
        return event

    def _item_event(self, what: str, item: dict[str, Any]) -> OutputEvent:
        return f"response.output_item.{what}", {"output_index": len(self._items), "item": item}

    def _place(self, kind: _TextKind) -> dict[str, Any]:
        index = len(self._items)
        return {"item_id": self._item_id(kind.id), "output_index": index, "content_index": 0}

    def _item_id(self, kind: str) -> str:
        return item_id(kind, self._turn.id, len(self._items))


def _error_fields(error: ApiError) -> OutputEvent:
    """Return an error event. Clients read its own fields, or `error` if they raise it."""
    said = error.body["error"]
    names = ("code", "message", "param")
    return "error", {**{name: said[name] for name in names}, "error": said}


class ResponsesDialect(Dialect):
    """A dialect in which a conversation continues by full input or by `previous_response_id`."""

    path = "/v1/responses"

    def read(self, session: Session, body: bytes) -> ResponsesRequest:
        return read_request(session, body)

    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        assert isinstance(request, ResponsesRequest)
        [turn] = turns
        return ResponsesWriter(session, request, turn, model=model)

    def error(self, error: ApiError) -> bytes:
        said = error.body["error"]
        param = "input" if said["param"] == "messages" else said["param"]
        return _encode({"error": {**said, "param": param}})

    def error_event(self, error: ApiError) -> bytes:
        name, fields = _error_fields(error)
        return typed_event(name, {**fields, "sequence_number": 0})


class CountInput(Question):
    """The path `POST /v1/responses/input_tokens`: the length of the prompt of a response."""

    path = "/v1/responses/input_tokens"

    def __init__(self, count: Count) -> None:
        self._count = count

    async def answer(self, session: Session, body: bytes) -> bytes:
        size = len(body)
        request = await self.reading(body, size, lambda: read_request(session, body))
        counted = await self._count(session, request, size)
        return _encode({"object": "response.input_tokens", **counted})


class ResponsesApi(WireFormat):
    """OpenAI's Responses: replies, the count of a prompt's tokens, stored responses and
    conversations."""

    def routes(self, served: Served) -> Sequence[Route]:
        stored = StoredResponses(), StoredConversations()
        return ResponsesDialect(), CountInput(served.count), *stored


FORMAT = ResponsesApi()
