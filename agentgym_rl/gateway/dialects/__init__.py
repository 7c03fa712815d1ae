"""Dialects: the wire formats in which clients ask, all of them for the same kind of turn.

A dialect reads a request of its own into a `ChatRequest` and writes what was sampled for it; how
turns are prepared, sampled, recorded, retried and refused is the same for all of them.
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
    """Writes the reply to one request: either `whole`, or `begin`, `events`…, `end`."""

    @abstractmethod
    def whole(self) -> bytes:
        """The body of a reply that is not streamed; all turns are committed."""

    def take(self, turn: Reply, events: Sequence[Event]) -> None:  # noqa: B027 (most need none)
        """What a delta adds to a reply that is not streamed: for writers to whom the order
        matters in which text and calls come."""

    @abstractmethod
    def begin(self) -> bytes:
        """The events before anything was sampled."""

    @abstractmethod
    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        """What a delta of one of the turns adds; possibly nothing."""

    @abstractmethod
    def end(self) -> bytes:
        """The events that end a stream; all turns are committed."""

    def error_event(self, error: ApiError) -> bytes | None:
        """An error after a stream has begun; None: the dialect's, whatever was sent before."""
        return None


class Route(ABC):
    """One path of the API, whose key opens a session."""

    path: ClassVar[str]
    """After POST."""
    request_id: ClassVar[str] = "x-request-id"
    """The header of a reply that names the request."""

    @abstractmethod
    def error(self, error: ApiError) -> bytes:
        """The body of an error reply."""

    def check_size(self, body: bytes) -> None:
        """Refuse a large body that should not even be read.

        Raises:
            ApiError: 400.
        """
        check_values(body)

    async def reading(self, body: bytes, num_new: int, read: Callable[[], _T]) -> _T:
        """Return what `read` makes of a body, of which `num_new` bytes have to be read: a large one
        is checked, and read beside the event loop."""

        def checked() -> _T:
            self.check_size(body)
            return read()

        return await beside(num_new, checked if num_new >= INLINE_SIZE else read)


class Question(Route):
    """A path that is answered at once: nothing is sampled, and nothing recorded."""

    @abstractmethod
    async def answer(self, session: Session, body: bytes) -> bytes:
        """The body of the reply.

        Raises:
            ApiError: 400, naming what is wrong or not supported.
        """


class Dialect(Route):
    """A path that is answered with what is sampled for it."""

    @abstractmethod
    def read(self, session: Session, body: bytes) -> ChatRequest:
        """What a request asks for.

        Raises:
            ApiError: 400, naming what is wrong or not supported.
        """

    @abstractmethod
    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        """Of the reply to `request`: one turn for each of its `n` samples."""

    @abstractmethod
    def error_event(self, error: ApiError) -> bytes:
        """An error after a stream has begun; clients raise it."""
