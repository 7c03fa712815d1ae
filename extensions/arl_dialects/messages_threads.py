"""Threads of Anthropic Messages: conversations that the session keeps, by the ids of its replies.

    thread {"type": "create"}                                has the complete conversation
    thread {"type": "continue", "previous_message_id": ID}   has only messages after the reply

System text and tools are those of the thread: a continuing request need not repeat them. A reply
can be continued more than once; each time is a fork of the conversation. Both SDKs of Anthropic run
their tools in threads, and send the complete conversation again if the session no longer has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from agentgym_rl.gateway import ApiError, ChatRequest, Reply, Session, bad_request
from agentgym_rl.gateway.messages import TURN, text_of

from .stored import StoredResponse, Threads

OF_THREAD = ("system", "tools")
"""The fields of a request that a thread has been created with."""


class CreateThread(Struct, tag_field="type", tag="create"):
    pass


class ContinueThread(Struct, tag_field="type", tag="continue"):
    previous_message_id: Annotated[str, Meta(min_length=1)]


Thread = CreateThread | ContinueThread


class ThreadRequest(ChatRequest, frozen=True, kw_only=True):
    """A request whose reply can be continued by its id."""

    num_system: int
    """The number of messages that are the thread's system text."""
    created_with: Mapping[str, Any]
    """The fields `OF_THREAD`."""


def earlier_of(session: Session, thread: Thread | None) -> StoredResponse | None:
    """Return the conversation that a request continues; None if the request contains all of it.

    Raises:
        ApiError: 404, it is not kept.
    """
    if not isinstance(thread, ContinueThread):
        return None
    found = session.state(Threads).get(thread.previous_message_id)
    if found is None:
        raise ApiError(
            404,
            f"thread: no reply of this session that can be continued has the id "
            f"{thread.previous_message_id!r:.200}. Send the whole conversation, with "
            'thread {"type": "create"}.',
            param="thread",
            code="thread_not_found",
        )
    return found


def fields_of(earlier: StoredResponse, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields `OF_THREAD` of a continuing request; those `given` must be the same."""
    for name in OF_THREAD:
        if given[name] is not None and given[name] != earlier.body[name]:
            raise bad_request(
                f"{name}: got another value than the thread was created with; leave it out, or "
                'send the whole conversation with thread {"type": "create"}',
                param=name,
                code="thread_fingerprint_mismatch",
            )
    return {name: earlier.body[name] for name in OF_THREAD}


def threaded(
    request: ChatRequest, num_system: int, created_with: Mapping[str, Any]
) -> ThreadRequest:
    """Return a request whose reply is to be kept."""
    fields = msgspec.structs.asdict(request)
    return ThreadRequest(**fields, num_system=num_system, created_with=created_with)


def keep(session: Session, asked: ThreadRequest, reply: Reply, *, id: str) -> None:
    """Keep a conversation with its complete reply, which has the id `id`."""
    said = list(asked.messages[asked.num_system :])
    message = {**reply.message, TURN: reply.number}
    if asked.continues:
        begun = text_of(said.pop().get("content"))
        message["content"] = begun + (message.get("content") or "")
    session.state(Threads).keep(id, StoredResponse([*said, message], body=asked.created_with))
