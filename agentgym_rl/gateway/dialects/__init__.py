"""Dialects: the wire formats of clients' requests, all of them for the same kind of turn.

A dialect reads its own requests into a `ChatRequest`, and its `Writer` writes the sampled `Reply`,
which `deliver` sends. Turns are prepared, sampled, recorded, retried and refused in the same way
for all dialects, and a reply may come from our own engine or from a model served elsewhere.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec

from agentgym_rl.gateway.errors import ApiError
from agentgym_rl.gateway.messages import call_id, reasoning_keys
from agentgym_rl.gateway.parsers import Event, ToolCall
from agentgym_rl.gateway.request.body import (
    INLINE_SIZE,
    TOKEN_SIZE,
    check_values,
    in_thread_if_large,
)
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.retries_and_hangups import Exchange
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.runtime import together


class Reply(ABC):
    """A sample for a request. A stream's counts and `finish_reason` are known only at its end."""

    id: str
    """The unique id, from which the ids of responses, items and thoughts are made."""
    number: int
    """The number of its request in the session."""
    index: int
    """The index among the request's samples."""
    temperature: float
    """The temperature of the sample."""
    message: dict[str, Any]
    """The chat message for the client; complete at the end."""

    @property
    @abstractmethod
    def finish_reason(self) -> str:
        """Return the finish reason, as in OpenAI."""

    @property
    @abstractmethod
    def stop_string(self) -> str | None:
        """Return the stop string that ended the message."""

    @property
    @abstractmethod
    def num_prompt_tokens(self) -> int:
        """Return the number of prompt tokens."""

    @property
    @abstractmethod
    def num_sampled_tokens(self) -> int:
        """Return the number of tokens in the reply, including its end token."""

    @property
    def num_cached_tokens(self) -> int:
        """Return how many prompt tokens were reported to be in a cache."""
        return 0

    @abstractmethod
    def reasoning_tokens(self) -> int:
        """Return the number of sampled tokens up to the end of the thoughts."""

    def logprobs(self) -> dict[str, Any] | None:
        """Return the log-probs in OpenAI's format, if requested."""
        return None

    def call_id(self, position: int, call: ToolCall) -> str:
        """Return the id of the tool call number `position`."""
        return call_id(self.number, position, call.id)

    def spelled(self, content: str, thoughts: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """Return the chat message with this content."""
        reasoning = reasoning_keys(thoughts)
        if not calls:
            return {"role": "assistant", "content": content, **reasoning}
        called = [
            {
                "id": self.call_id(position, call),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for position, call in enumerate(calls)
        ]
        return {"role": "assistant", "content": content or None, **reasoning, "tool_calls": called}


OnEvents = Callable[[Reply, Sequence[Event]], Awaitable[None]]
"""A callback for the events that are added to a reply, possibly none."""


def total_usage(replies: Sequence[Reply]) -> dict[str, int]:
    """Return the token counts of a request: its prompt, once, and all sampled tokens, including the
    tokens that end replies."""
    prompt = replies[0].num_prompt_tokens
    sampled = sum(reply.num_sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def typed_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Write one server-sent event whose data repeats its type."""
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


_T = TypeVar("_T")


class Writer(ABC):
    """A writer of the reply to one request: either `whole`, or `begin`, `events`…, `end`."""

    ending_size: int = 0
    """The size of the work of `whole` or `end` that does not grow with the reply; see
    `in_thread_if_large`."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the body of a reply that is not streamed; all turns are committed."""

    def take(self, turn: Reply, events: Sequence[Event]) -> None:  # noqa: B027 (most need none)
        """Add a delta of a reply that is not streamed. Only writers that need the order of text and
        calls implement it."""

    @abstractmethod
    def begin(self) -> bytes:
        """Return the events that precede all samples."""

    @abstractmethod
    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        """Return the events for a delta of one of the turns; possibly none."""

    @abstractmethod
    def end(self) -> bytes:
        """Return the events that end a stream; all turns are committed."""

    def error_event(self, error: ApiError) -> bytes | None:
        """Return the event of an error after a stream has begun; None: the dialect's own event."""
        return None


class Route(ABC):
    """A path of the API; the request's API key names its session."""

    path: ClassVar[str]
    """The path of the POST request."""
    request_id: ClassVar[str] = "x-request-id"
    """The reply header with the request's id."""

    def error(self, error: ApiError) -> bytes:
        """Return the body of an error reply; here in OpenAI's format."""
        return msgspec.json.encode(error.body)

    def check_size(self, body: bytes) -> None:
        """Refuse a large body that should not even be parsed."""
        check_values(body)

    async def reading(self, body: bytes, num_new: int, read: Callable[[], _T]) -> _T:
        """Return the result of `read`, for a body of which `num_new` bytes have to be parsed. A
        large body is checked first, and parsed off the event loop."""

        def checked() -> _T:
            self.check_size(body)
            return read()

        return await in_thread_if_large(num_new, checked if num_new >= INLINE_SIZE else read)


class Question(Route):
    """A path whose requests are answered at once: nothing is sampled or recorded."""

    @abstractmethod
    async def answer(self, session: Session, body: bytes) -> bytes:
        """Return the body of the reply.

        Raises:
            ApiError: 400, naming what is wrong or not supported.
        """


Count = Callable[[Session, ChatRequest, int], Awaitable[Mapping[str, Any]]]
"""A function that counts the prompt tokens of a request of the given number of bytes; it returns
the fields of the answer: `input_tokens` and, of an estimate, `estimated`."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request for a resource: its verb, the parts of its path behind the resources' own, and the
    parameters of its query."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, Sequence[str]]
    body: bytes


class Resources(Route):
    """The resources of a session, with paths of their own below `path`: they are read, changed and
    deleted without sampling."""

    operations: ClassVar[Mapping[str, tuple[str, ...]]]
    """The methods that a path accepts, by the path with braces around its variable parts."""

    @abstractmethod
    def serve(self, session: Session, resource: ResourceRequest) -> Any:
        """Return the JSON object of the reply; None: there is no such path or method.

        Raises:
            ApiError: 400 or 404.
        """


class Dialect(Route):
    """A path whose requests are answered with samples."""

    @abstractmethod
    def read(self, session: Session, body: bytes) -> ChatRequest:
        """Parse a request.

        Raises:
            ApiError: 400, naming what is wrong or not supported.
        """

    @abstractmethod
    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        """Return the writer of the reply to `request`: one turn for each of its `n` samples."""

    def error_event(self, error: ApiError) -> bytes:
        """Return the event of an error after a stream has begun; clients raise it."""
        return b"data: " + self.error(error) + b"\n\n"


_KEEP_ALIVE = b": still sampling\n"
"""A comment, which clients skip; without an empty line, which some would take for an event."""


async def deliver(
    exchange: Exchange,
    writer: Writer,
    produce: Callable[[OnEvents], Awaitable[int]],
    *,
    stream: bool,
    keep_alive_s: float,
) -> None:
    """Send the reply that `produce` generates. `produce` calls its argument with events, at least
    once, and records the reply before it returns the number of sampled tokens."""
    exchange.error_event = writer.error_event
    begun = False

    async def send(reply: Reply, events: Sequence[Event]) -> None:
        nonlocal begun
        opening = b"" if begun else writer.begin()
        begun = True
        data = opening + writer.events(reply, events)
        if data:
            await exchange.events(data)

    async def keep(reply: Reply, events: Sequence[Event]) -> None:
        writer.take(reply, events)

    if not stream:
        size = TOKEN_SIZE * await produce(keep) + writer.ending_size
        return await exchange.whole(await in_thread_if_large(size, writer.whole))
    async with kept_alive(exchange, every_s=keep_alive_s):
        size = TOKEN_SIZE * await produce(send) + writer.ending_size
    await exchange.events(await in_thread_if_large(size, writer.end), last=True)


@asynccontextmanager
async def kept_alive(exchange: Exchange, *, every_s: float) -> AsyncIterator[None]:
    """Send comments into a stream that has been silent for `every_s` seconds while the body runs:
    proxies would cut it."""
    async with together() as tasks:
        keeper = tasks.create_task(_keep_alive(exchange, every_s), name="keep alive")
        yield
        keeper.cancel()


async def _keep_alive(exchange: Exchange, every_s: float) -> None:
    while True:
        num_sent = exchange.num_sent
        await asyncio.sleep(every_s)
        if exchange.num_sent == num_sent:
            await exchange.events(_KEEP_ALIVE)
