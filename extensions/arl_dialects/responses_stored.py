"""The stored responses and conversations of a session, as resources of the Responses API.

    GET, DELETE  /v1/responses/ID                     GET  /v1/responses/ID/input_items
    POST         /v1/conversations                    GET, POST, DELETE  /v1/conversations/ID
    GET, POST    /v1/conversations/ID/items           GET, DELETE  /v1/conversations/ID/items/ITEM

Lists come in pages (`limit`, `order`, `after`), the newest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from agentgym_rl.gateway import (
    ApiError,
    Session,
    bad_request,
    given_fields,
    refuse_unknown,
    unsupported,
)
from agentgym_rl.gateway.dialects import ResourceRequest, Resources

from .responses_items import ItemReader
from .responses_request import found_conversation, read_metadata
from .stored import Conversation, Conversations, Item, Responses, StoredResponse, stored_item

Query = Mapping[str, Sequence[str]]

_LIMIT, _MOST = 20, 100
"""The default and the maximum number of items in a page, as in OpenAI."""
_MOST_ITEMS = 20
"""The maximum number of items that one request adds to a conversation, as in OpenAI."""


class StoredResponses(Resources):
    """The resources below `/v1/responses`."""

    path = "/v1/responses"
    operations: ClassVar = {
        "/v1/responses/{id}": ("GET", "DELETE"),
        "/v1/responses/{id}/input_items": ("GET",),
    }

    def serve(self, session: Session, resource: ResourceRequest) -> Any:
        match resource.method, *resource.path:
            case "GET", id:
                if resource.query.get("stream", ["false"])[-1].lower() not in ("false", "0"):
                    raise unsupported("stream", "a stored response is complete; allowed: false")
                return self._found(session, id).body
            case "DELETE", id:
                self._found(session, id)
                session.state(Responses).remove(id)
                return {"id": id, "object": "response", "deleted": True}
            case "GET", id, "input_items":
                return _page(self._found(session, id).items, resource.query)
            case "POST", "compact":
                why = "the history is the client's to keep: let it make summaries of its own"
                raise unsupported("compact", why)
            case "POST", id, "cancel":
                self._found(session, id)
                why = "only background responses can be cancelled, and there are none"
                raise unsupported("cancel", f"{why}: close the connection of a running request")
            case _:
                return None

    def _found(self, session: Session, id: str) -> StoredResponse:
        found = session.state(Responses).get(id)
        if found is None:
            raise ApiError(
                404,
                f"Response with id {id!r} not found: none of this session, not stored (store "
                "false), deleted, or too long ago.",
                param="response_id",
                code="response_not_found",
            )
        return found


class StoredConversations(Resources):
    """The resources below `/v1/conversations`."""

    path = "/v1/conversations"
    operations: ClassVar = {
        "/v1/conversations": ("POST",),
        "/v1/conversations/{id}": ("GET", "POST", "DELETE"),
        "/v1/conversations/{id}/items": ("GET", "POST"),
        "/v1/conversations/{id}/items/{item}": ("GET", "DELETE"),
    }

    def serve(self, session: Session, resource: ResourceRequest) -> Any:
        if not resource.path:
            return _created(session, resource.body) if resource.method == "POST" else None
        id, *rest = resource.path
        if (resource.method, tuple(rest)) == ("DELETE", ()):
            found_conversation(session, id)
            session.state(Conversations).remove(id)
            return {"id": id, "object": "conversation.deleted", "deleted": True}
        return self._inside(session, found_conversation(session, id), rest, resource)

    def _inside(
        self, session: Session, found: Conversation, rest: Sequence[str], resource: ResourceRequest
    ) -> Any:
        match resource.method, *rest:
            case ("GET",):
                return found.shown()
            case ("POST",):
                given = given_fields(resource.body)
                refuse_unknown(given, {"metadata"}, frozenset())
                found.metadata = read_metadata(given.get("metadata", {}))
                return found.shown()
            case "GET", "items":
                return _page(found.items, resource.query)
            case "POST", "items":
                given = given_fields(resource.body)
                refuse_unknown(given, {"items"}, frozenset())
                _take_room(session, resource.body)
                added = _items(session, given.get("items"))
                found.items += added
                return _list(added, more=False)
            case "GET", "items", item:
                return _found_item(found, item)
            case "DELETE", "items", item:
                found.items.remove(_found_item(found, item))
                return found.shown()
            case _:
                return None


def _created(session: Session, body: bytes) -> dict[str, Any]:
    given = given_fields(body or b"{}")
    refuse_unknown(given, {"items", "metadata"}, frozenset())
    metadata = read_metadata(given.get("metadata", {}))
    _take_room(session, body)
    new = Conversation(metadata, list(_items(session, given.get("items", []))))
    session.state(Conversations).add(new)
    return new.shown()


def _take_room(session: Session, body: bytes) -> None:
    """Count the bytes that a client adds, which have a limit for the session."""
    conversations = session.state(Conversations)
    if len(body) > conversations.room_bytes:
        why = f"items: this session may add {conversations.room_bytes} bytes more, got {len(body)}"
        raise bad_request(f"{why}; send them as input", param="items")
    conversations.room_bytes -= len(body)


def _items(session: Session, value: Any) -> Sequence[Item]:
    """Check the items that are added to a conversation."""
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        got = f"{len(value)} of them" if isinstance(value, list) else repr(value)[:100]
        why = f"items: got {got}, expected an array of at most {_MOST_ITEMS} items"
        raise bad_request(why, param="items")
    unreadable = session.config.unreadable
    reader = ItemReader(session.number_of, partial(stored_item, session), unreadable=unreadable)
    reader.read_input(value, "items")
    return reader.items


def _found_item(found: Conversation, id: str) -> Item:
    item = found.item(id)
    if item is None:
        why = f"Item with id {id!r} not found in conversation {found.id!r}."
        raise ApiError(404, why, param="item_id", code="item_not_found")
    return item


def _page(items: Sequence[Item], query: Query) -> dict[str, Any]:
    """Return the page of a list that a query selects."""
    order, after = (query.get(name, [""])[-1] for name in ("order", "after"))
    limit = query.get("limit", [str(_LIMIT)])[-1]
    if order not in ("", "asc", "desc"):
        raise bad_request(f"order: got {order!r:.100}, allowed: asc, desc", param="order")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MOST:
        raise bad_request(f"limit: got {limit!r:.100}, allowed: 1 to {_MOST}", param="limit")
    shown = list(items) if order == "asc" else list(items)[::-1]
    if after:
        places = [index for index, item in enumerate(shown) if item["id"] == after]
        if not places:
            raise bad_request(f"after: there is no item {after!r:.100}", param="after")
        shown = shown[places[0] + 1 :]
    return _list(shown[: int(limit)], more=len(shown) > int(limit))


def _list(items: Sequence[Item], *, more: bool) -> dict[str, Any]:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    blank = {"first_id": "", "last_id": ""}
    return {"object": "list", "data": list(items), **blank, **ends, "has_more": more}
