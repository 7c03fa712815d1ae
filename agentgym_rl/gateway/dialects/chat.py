"""Chat completions: one JSON object, or server-sent events. Each sample is one choice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentgym_rl.gateway.dialects import Dialect, Writer
from agentgym_rl.gateway.errors import ApiError
from agentgym_rl.gateway.messages import reasoning_keys
from agentgym_rl.gateway.parsers import Event, Reasoning
from agentgym_rl.gateway.reply import Reply, total_usage
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.session.session import Session

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class ChatDialect(Dialect):
    """The dialect of `POST /v1/chat/completions`."""

    path = "/v1/chat/completions"

    def read(self, session: Session, body: bytes) -> ChatRequest:
        return session.bodies.read(body)

    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        return ChatWriter(request, turns, model=model)

    def error(self, error: ApiError) -> bytes:
        return _encode(error.body)

    def error_event(self, error: ApiError) -> bytes:
        return b"data: " + _encode(error.body) + b"\n\n"


class ChatWriter(Writer):
    """A writer that sends text as it is sampled and tool calls as their blocks close. Log-probs
    come with the finish, all at once."""

    def __init__(self, request: ChatRequest, turns: Sequence[Reply], *, model: str) -> None:
        self._request = request
        self._turns = turns
        created = int(time.time())
        self._head = {"id": f"chatcmpl-{turns[0].id}", "created": created, "model": model}
        self._num_calls = [0] * len(turns)

    def whole(self) -> bytes:
        choices = [
            {
                "index": turn.index,
                "message": turn.message,
                "logprobs": turn.logprobs(),
                "finish_reason": turn.finish_reason,
            }
            for turn in self._turns
        ]
        head = {**self._head, "object": "chat.completion"}
        return _encode({**head, "choices": choices, "usage": total_usage(self._turns)})

    def begin(self) -> bytes:
        opening = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(turn.index, opening) for turn in self._turns)

    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        return b"".join(self._chunk(turn.index, self._delta(turn, event)) for event in events)

    def end(self) -> bytes:
        chunks = [
            self._chunk(turn.index, {}, finish=turn.finish_reason, logprobs=turn.logprobs())
            for turn in self._turns
        ]
        if self._request.include_usage:
            chunks.append(self._event([], {"usage": total_usage(self._turns)}))
        return b"".join((*chunks, DONE))

    def _delta(self, turn: Reply, event: Event) -> dict[str, Any]:
        """Return the delta: a piece of content or reasoning, or a complete tool call."""
        if isinstance(event, str):
            return {"content": event}
        if isinstance(event, Reasoning):
            return reasoning_keys(event.text)
        position = self._num_calls[turn.index]
        self._num_calls[turn.index] += 1
        function = {"name": event.name, "arguments": event.arguments}
        call = {"index": position, "id": turn.call_id(position), "type": "function"}
        return {"tool_calls": [{**call, "function": function}]}

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        finish: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Write one event of one choice."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._event([choice], {})

    def _event(self, choices: list[Any], more: Mapping[str, Any]) -> bytes:
        head = {**self._head, "object": "chat.completion.chunk"}
        return b"data: " + _encode({**head, "choices": choices, **more}) + b"\n\n"
