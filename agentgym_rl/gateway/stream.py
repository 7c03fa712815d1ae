"""A turn as server-sent events: text as it is sampled, tool calls as their blocks close."""

from __future__ import annotations

from contextlib import aclosing

from agentgym_rl.asgi import Send
from agentgym_rl.engine import Sampler

from .errors import ApiError
from .parsers import ToolCall
from .replies import DONE, Reply, delta_of, error_event
from .turn import Turn

_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class EventStream:
    """An event stream that begins with its first event: until then errors keep their status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send events."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def fail(self, error: ApiError) -> None:
        """End a stream that has begun with an error, which clients raise."""
        await self.write(error_event(error.body), last=True)


async def stream_turn(turn: Turn, sampler: Sampler, reply: Reply, stream: EventStream) -> None:
    """Sample a turn and send it: role, content and calls, finish, usage if asked, [DONE].

    The turn is recorded before its finish is sent. Log-probs come with the finish, all at once.

    Raises:
        EngineError: the engine failed, perhaps after some events were sent.
    """
    begun = False
    position = 0
    async with aclosing(turn.events(sampler)) as batches:
        async for events in batches:
            chunks: list[bytes] = []
            if not begun:
                begun = True
                chunks.append(reply.chunk({"role": "assistant", "content": ""}))
            for event in events:
                delta = delta_of(event, position, id=turn.call_id(position))
                position += isinstance(event, ToolCall)
                chunks.append(reply.chunk(delta))
            if chunks:
                await stream.write(b"".join(chunks))
    turn.commit()
    await stream.write(_ending(turn, reply), last=True)


def _ending(turn: Turn, reply: Reply) -> bytes:
    chunks = [reply.chunk({}, finish_reason=turn.finish_reason, logprobs=turn.logprobs())]
    if turn.request.include_usage:
        chunks.append(reply.usage(turn.usage()))
    return b"".join((*chunks, DONE))
