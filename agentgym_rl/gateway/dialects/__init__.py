"""Dialects: the wire formats of clients' requests, all of them for the same kind of turn.

A dialect reads its own requests into a `ChatRequest` and writes the sampled reply. Turns are
prepared, sampled, recorded, retried and refused in the same way for all dialects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from agentgym_rl.gateway.errors import ApiError
from agentgym_rl.gateway.parsers import Event
from agentgym_rl.gateway.reply import Reply
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.server.intake import INLINE_SIZE, beside, check_values
from agentgym_rl.gateway.session.session import Session

_T = TypeVar("_T")


class Writer(ABC):
    """A writer of the reply to one request: either `whole`, or `begin`, `events`…, `end`."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the body of a reply that is not streamed; all turns are committed."""

    def take(self, turn: Reply, events: Sequence[Event]) -> None:  # noqa: B027 (most need none)
        """Take in a delta of a reply that is not streamed. Only writers that need the order of text
        and calls implement it."""

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

    @abstractmethod
    def error(self, error: ApiError) -> bytes:
        """Return the body of an error reply."""

    def check_size(self, body: bytes) -> None:
        """Refuse a large body that should not even be parsed.

        Raises:
            ApiError: 400.
        """
        check_values(body)

    async def reading(self, body: bytes, num_new: int, read: Callable[[], _T]) -> _T:
        """Return the result of `read`, for a body of which `num_new` bytes have to be parsed. A
        large body is checked first, and parsed off the event loop."""

        def checked() -> _T:
            self.check_size(body)
            return read()

        return await beside(num_new, checked if num_new >= INLINE_SIZE else read)


class Question(Route):
    """A path that is answered at once: nothing is sampled or recorded."""

    @abstractmethod
    async def answer(self, session: Session, body: bytes) -> bytes:
        """Return the body of the reply.

        Raises:
            ApiError: 400, naming what is wrong or not supported.
        """


class Dialect(Route):
    """A path that is answered with samples."""

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

    @abstractmethod
    def error_event(self, error: ApiError) -> bytes:
        """Return the event of an error after a stream has begun; clients raise it."""
