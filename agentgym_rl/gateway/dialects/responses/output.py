"""What was sampled as output items, and the events that tell of them.

An item ends before the next one begins: text, a call and more text are three items, in the order
in which they were sampled. They are the same whether or not anybody listens to the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_rl.gateway.parsers import Event, Reasoning, ToolCall

from .items import item_id

OutputEvent = tuple[str, dict[str, Any]]
"""The type of an event, and its fields."""
Status = Literal["completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class _TextKind:
    """An item with one part, which is text that comes in pieces."""

    id: str
    events: str
    item: Mapping[str, Any]
    part: Mapping[str, Any]
    delta: Mapping[str, Any]


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


class Output:
    """The items of one turn; `items` are those that have ended."""

    def __init__(
        self,
        turn_id: str,
        call_id: Callable[[int], str],
        *,
        namespaces: Mapping[str, str],
        seals_thoughts: bool,
    ) -> None:
        self.items: list[dict[str, Any]] = []
        self._turn_id = turn_id
        self._call_id = call_id
        self._namespaces = namespaces
        self._seals_thoughts = seals_thoughts
        self._num_calls = 0
        self._open: _TextKind | None = None
        self._text: list[str] = []

    def add(self, event: Event) -> Iterator[OutputEvent]:
        """What a piece of the reply adds."""
        if isinstance(event, ToolCall):
            yield from self._end("completed")
            yield from self._call(event)
            return
        thought = isinstance(event, Reasoning)
        kind, text = (_REASONING, event.text) if thought else (_MESSAGE, event)
        if self._open is not kind:
            yield from self._end("completed")
            yield from self._begin(kind)
        yield from self._delta(text)

    def finish(self, status: Status) -> Iterator[OutputEvent]:
        """What the end of the reply adds; a reply of nothing is an empty message, or clients
        could not send it back."""
        yield from self._end(status)
        if not any(item["type"] in ("message", "function_call") for item in self.items):
            yield from self._begin(_MESSAGE)
            yield from self._end(status)

    def _begin(self, kind: _TextKind) -> Iterator[OutputEvent]:
        self._open, self._text = kind, []
        item = {"id": self._id(kind.id), **kind.item, "content": []}
        yield self._item_event("added", item | _IN_PROGRESS)
        yield "response.content_part.added", {**self._place(kind), "part": _part(kind, "")}

    def _delta(self, text: str) -> Iterator[OutputEvent]:
        assert self._open is not None
        self._text.append(text)
        kind = self._open
        yield f"{kind.events}.delta", {**self._place(kind), "delta": text, **kind.delta}

    def _end(self, status: Status) -> Iterator[OutputEvent]:
        """End the item that is open, if one is."""
        if self._open is None:
            return
        kind, text, self._open = self._open, "".join(self._text), None
        place, part = self._place(kind), _part(kind, text)
        yield f"{kind.events}.done", {**place, "text": text, **kind.delta}
        yield "response.content_part.done", {**place, "part": part}
        item = {"id": place["item_id"], **kind.item, "content": [part], "status": status}
        if kind is _REASONING and self._seals_thoughts:
            item["encrypted_content"] = item["id"]  # clients keep this of them, if nothing else
        yield self._ended(item)

    def _call(self, call: ToolCall) -> Iterator[OutputEvent]:
        """A call comes whole: its block has closed."""
        call_id = self._call_id(self._num_calls)
        self._num_calls += 1
        item = {"id": self._id("fc"), "type": "function_call", "call_id": call_id}
        item = {**item, "name": call.name, "arguments": ""}
        if call.name in self._namespaces:
            item["namespace"] = self._namespaces[call.name]
        place = {"item_id": item["id"], "output_index": len(self.items)}
        yield self._item_event("added", item | _IN_PROGRESS)
        stem, arguments = "response.function_call_arguments", call.arguments
        yield f"{stem}.delta", {**place, "delta": arguments}
        yield f"{stem}.done", {**place, "name": call.name, "arguments": arguments}
        yield self._ended({**item, "arguments": arguments, "status": "completed"})

    def _ended(self, item: dict[str, Any]) -> OutputEvent:
        event = self._item_event("done", item)
        self.items.append(item)
        return event

    def _item_event(self, what: str, item: dict[str, Any]) -> OutputEvent:
        return f"response.output_item.{what}", {"output_index": len(self.items), "item": item}

    def _place(self, kind: _TextKind) -> dict[str, Any]:
        index = len(self.items)
        return {"item_id": self._id(kind.id), "output_index": index, "content_index": 0}

    def _id(self, kind: str) -> str:
        return item_id(kind, self._turn_id, len(self.items))


def _part(kind: _TextKind, text: str) -> dict[str, Any]:
    return {**kind.part, "text": text}
