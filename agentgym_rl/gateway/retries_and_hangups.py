"""The answer to one request, when its client hangs up or sends the request again.

A client that hangs up has some time to retry; after it, the turn is aborted (`Exchange.outlive`).
OpenAI's SDKs send a request again when a connection breaks or takes too long, and mark it
(`x-stainless-retry-count`). Sampling again would leave two turns where the agent knows of only one.
A marked copy therefore joins the answer in progress, or gets the finished one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from agentgym_rl.runtime import ENGINE_CLOCK, LruDict, Receive, Scope, Send, together
from agentgym_rl.runtime.http_server import header, reply

from .errors import ApiError, bad_request
from .session.nodes import Lineage

NO_RETRIES = "x-arl-no-retries"
"""A header whose value "true" means that the client never sends a request again."""
LINEAGE = b"x-arl-lineage"
"""The header by which a client names the lineage of a request as the main one, or as one that does
not train."""
_LINEAGES = get_args(Lineage)
_EVENTS = b"text/event-stream"
_KEPT = 16
"""The number of finished answers kept per session for retries; few requests run at once."""
_KEPT_BYTES = 256_000


class ClientGone(ConnectionError):
    """The error that no client waits for the reply any more."""


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """The identity of a request: a retry has the same identity."""

    digest: bytes
    is_retry: bool
    idempotency_key: str
    may_come_again: bool
    """Whether the client may send the request again if it gets no answer."""
    num_new: int = 0
    """The number of bytes of its body that have to be parsed (`Bodies.num_new`)."""
    lineage: Lineage = ""
    """The lineage that the client names in the header `LINEAGE`."""

    @classmethod
    def of(cls, scope: Scope, path: str, body_digest: bytes, num_new: int) -> RequestIdentity:
        """Return the identity of a request whose body has been read.

        Raises:
            ApiError: 400, a header has an unknown value.
        """
        digest = path.encode() + body_digest
        retries = header(scope, b"x-stainless-retry-count")
        marked = retries.isdecimal() and int(retries) > 0
        again = header(scope, NO_RETRIES.encode()) != "true"
        key = header(scope, b"idempotency-key")
        lineage = header(scope, LINEAGE)
        if lineage not in _LINEAGES:
            name = LINEAGE.decode()
            allowed = ", ".join(filter(None, _LINEAGES))
            raise bad_request(f"{name}: got {lineage!r}, allowed: {allowed}", param=name)
        named = cast("Lineage", lineage)
        return cls(digest, marked, key, may_come_again=again, num_new=num_new, lineage=named)


class Exchange:
    """An answer in progress. It is sent to its first client directly; other clients follow.

    The callbacks in `on_delivery` run once a client that is still connected has the full answer.
    """

    def __init__(self, identity: RequestIdentity, send: Send) -> None:
        self.identity = identity
        self.started = False
        self.num_followers = 0
        self.on_delivery: list[Callable[[], None]] = []
        self.size_bytes = 0
        self.ended_well = False
        self.given_up = False
        """Whether no client came back in time, so that later retries are answered anew."""
        self.error_event: Callable[[ApiError], bytes | None] = lambda error: None
        """A function that returns the writer's own event for an error; it returns None for the
        default event."""
        self._send: Send | None = send
        self._sent: list[MutableMapping[str, Any]] = []
        self._over = False
        self._news = asyncio.Event()
        self._company = asyncio.Event()
        """The event that is set when a follower comes or leaves."""

    @property
    def num_sent(self) -> int:
        """Return the number of messages sent so far; it grows as long as there is progress."""
        return len(self._sent)

    async def whole(self, body: bytes) -> None:
        """Send a JSON body, and mark the answer as successful."""
        self.ended_well = True
        await reply(self._put, 200, body)

    async def events(self, data: bytes, *, last: bool = False) -> None:
        """Send events. The stream begins with the first; before it, errors keep their status."""
        if not self.started:
            headers = [(b"content-type", _EVENTS), (b"cache-control", b"no-cache")]
            await self._put({"type": "http.response.start", "status": 200, "headers": headers})
        self.ended_well = last
        await self._put({"type": "http.response.body", "body": data, "more_body": not last})

    async def fail(self, error: ApiError, *, body: bytes, event: bytes) -> None:
        """End with an error: as `body` with its own status, or as `event` of a stream that has
        begun."""
        if self._over:
            return
        if self.started:
            await self._put({"type": "http.response.body", "body": event, "more_body": False})
        else:
            await reply(self._put, error.status, body, headers=error.headers)

    def close(self) -> None:
        """Stop sending: followers of an unfinished answer are released."""
        self._over = True
        self._send = None
        self._news.set()
        if not self.ended_well:
            self._sent.clear()

    async def outlive(self, receive: Receive, *, grace_s: float) -> None:
        """Wait until the client has hung up and no other has followed for `grace_s`; never return.

        Raises:
            ClientGone: the time is up.
        """
        await hang_up(receive)
        self._send = None
        while True:
            self._company.clear()
            if self.num_followers:
                await self._company.wait()  # ends with them: each has a deadline
                continue
            try:
                async with asyncio.timeout(grace_s):
                    await self._company.wait()
            except TimeoutError:
                if self.num_followers:  # a follower came just as the time was up
                    continue
                self.given_up = True
                raise ClientGone("the client hung up before its reply was complete") from None

    async def follow(self, receive: Receive, send: Send, *, timeout_s: float) -> None:
        """Send another client the messages sent so far and all later ones.

        Raises:
            ClientGone: this client hung up, or the answer was given up.
            TimeoutError: the answer did not end within `timeout_s`.
        """
        self.num_followers += 1
        self._company.set()
        try:
            async with ENGINE_CLOCK.timeout(timeout_s), together() as tasks:
                watcher = tasks.create_task(_raise_when_gone(receive), name="client")
                await self._replay(send)
                watcher.cancel()
        finally:
            self.num_followers -= 1
            self._company.set()

    async def _replay(self, send: Send) -> None:
        count = 0
        while True:
            for message in self._sent[count:]:
                await send(message)
                count += 1
                if _is_last(message):
                    # no await before: a client may close the session once it has the message
                    self._delivered()
                    return
            if self._over:
                raise ClientGone("the answer was given up")
            if count == len(self._sent):
                self._news.clear()
                await self._news.wait()  # the caller has the deadline

    async def _put(self, message: MutableMapping[str, Any]) -> None:
        self._sent.append(message)
        self.started = True
        self._over = _is_last(message)
        self.size_bytes += len(message.get("body", b""))
        self._news.set()
        if self._send is not None:
            await self._send(message)
            if self._over and self._send is not None:
                self._delivered()

    def _delivered(self) -> None:
        if self.ended_well:
            for callback in self.on_delivery:
                callback()
            self.on_delivery.clear()


class Exchanges:
    """The answers of one session: those in progress, and the last finished ones."""

    def __init__(self) -> None:
        self._open: set[Exchange] = set()
        self._kept: LruDict[Exchange, Exchange] = LruDict(
            _KEPT, most_size=_KEPT_BYTES, size_of=lambda exchange: exchange.size_bytes
        )

    @property
    def num_open(self) -> int:
        """Return the number of answers in progress."""
        return len(self._open)

    def open(self, identity: RequestIdentity, send: Send) -> Exchange:
        """Begin a new answer."""
        exchange = Exchange(identity, send)
        self._open.add(exchange)
        return exchange

    def close(self, exchange: Exchange) -> None:
        """Close an answer; a successful one is kept for a while."""
        exchange.close()
        self._open.discard(exchange)
        if exchange.ended_well:
            self._kept[exchange] = exchange

    def earlier(self, identity: RequestIdentity) -> Exchange | None:
        """Return the answer to which a retried request belongs; None for a new request.

        Raises:
            ApiError: 400, two different requests have the same idempotency key.
        """
        if not (identity.is_retry or identity.idempotency_key):
            return None
        going_on = (exchange for exchange in self._open if not exchange.given_up)
        for exchange in (*going_on, *reversed(self._kept.values())):
            if (
                identity.idempotency_key
                and identity.idempotency_key == exchange.identity.idempotency_key
            ):
                if identity.digest != exchange.identity.digest:
                    raise bad_request("This idempotency-key came with another request before.")
                return exchange
            if identity.is_retry and identity.digest == exchange.identity.digest:
                return exchange
        return None


def _is_last(message: MutableMapping[str, Any]) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body")


async def hang_up(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _raise_when_gone(receive: Receive) -> None:
    await hang_up(receive)
    raise ClientGone("the client hung up before its reply was complete")
