"""A session's token tree: the messages of its conversations, and their exact tokens.

    Root(system, tools) ─ Context ─ Sampled ─ Context ─ Sampled      a pure conversation: one path
                               └─── Sampled ─ …                      a retry or an edit: a fork
    Root(others) ─ …                                                 a helper: a lineage of its own

Contexts hold tokens fed to the engine (prompts, tool output, template glue); Sampled nodes hold the
tokens of its replies. A node holds only the tokens it adds. The tokens from the root of a path to a
node are exactly the engine's input and output. Nodes are keyed by messages, never by text, and
never change once added, so concurrent turns of a session need no lock.

The search for the sampled turn that a client's assistant message echoes is remembered for a
session's last conversations, to continue there. A cached result stays valid: each reply on the way
was the only one with its content, and turns are never removed. Only a second reply to the same
messages can invalidate it. `Walks` therefore drops all results when there is one, and rejects
results of searches that began before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Literal

from agentgym_rl.gateway.messages import MessageKey, message_key, num_leading, root_key
from agentgym_rl.gateway.template.template import NO_KWARGS

from .client_defaults import echoed, edit_of, quoted, restored, rewritten, until_next_reply
from .joined_turns import taken_apart
from .nodes import (
    _OF_IDS,
    Context,
    ForkCause,
    Lineage,
    Messages,
    Root,
    Sample,
    Sampled,
    SiblingOf,
    _Sibling,
)

EditedCalls = Literal["fork", "trust"]
_WALKS_KEPT = 4
"""The number of conversations that go on at the same time."""
_BEGUN = "begun"
"""The kind of a key of a reply's beginning, which the client wrote (a prefill)."""
_CONTINUED: tuple[MessageKey, ...] = ((_BEGUN,),)
"""The keys of a context that only continues a reply that was cut."""
_SIBLINGS: Mapping[SiblingOf | None, _Sibling] = {
    None: "sibling",
    "n": "n_sibling",
    "retry": "retry_sibling",
}


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a search: the beginning of a conversation, up to the reply `anchor`."""

    tools: Messages | None
    template_kwargs: Mapping[str, Any]
    sent: Messages
    """The messages as the client sent them."""
    recorded: Messages
    """The same messages, with the turns found as they were sampled."""
    root: Root
    anchor: Root | Sampled
    num_cleared: int
    """The value of `Walks.num_cleared` when the search began."""
    trusted: bool = False
    """Whether the client rewrote the anchor, and the edit was accepted."""

    def to(
        self, sent: Messages, recorded: Messages, count: int, anchor: Sampled, trusted: bool
    ) -> Walk:
        """Return the walk extended to `anchor`, by the first `count` messages of `said`."""
        sent, recorded = [*self.sent, *sent[:count]], [*self.recorded, *recorded[:count]]
        return replace(self, sent=sent, recorded=recorded, anchor=anchor, trusted=trusted)

    def begins(
        self, sent: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> bool:
        """Return whether a conversation begins with this walk, compared by object identity."""
        return (
            tools is self.tools
            and template_kwargs is self.template_kwargs
            and len(sent) >= len(self.sent)
            and all(map(is_, self.sent, sent))
        )


class Walks:
    """The last walks of one session; a longer one replaces its beginning."""

    def __init__(self) -> None:
        self._last: list[Walk] = []
        self.num_cleared = 0
        """The number of second replies so far; a search that began before the last one is not
        kept."""

    def clear(self) -> None:
        """Drop all walks, because the same messages got a second reply."""
        self._last = []
        self.num_cleared += 1

    def longest(
        self, sent: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> Walk | None:
        """Return the longest walk with which a conversation begins."""
        found = (walk for walk in self._last if walk.begins(sent, tools, template_kwargs))
        return max(found, key=lambda walk: len(walk.sent), default=None)

    def keep(self, walk: Walk, longer: Walk) -> None:
        """Remember the extension of a walk, unless a second reply was given meanwhile."""
        if longer.num_cleared == self.num_cleared:
            others = [other for other in self._last if other is not walk]
            self._last = [*others[1 - _WALKS_KEPT :], longer]


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a conversation: the last sampled turn found (`anchor`), and the messages
    after it (`tail`)."""

    root: Root
    anchor: Root | Sampled
    messages: Messages
    """The complete conversation; the turns found are as sampled, including their thoughts."""
    tail: Messages
    tail_keys: tuple[MessageKey, ...]
    edited: ForkCause | None
    """The kind of edit, if an assistant message differs from the sampled one."""
    guessed: bool
    """Whether the last turn found was a guess among several with the same content."""
    trusted: bool
    """Whether the client rewrote the last turn found, and the edit was accepted."""
    step: tuple[Walk, Walk] | None = None
    """A walk and its extension, which `Tree.remember` keeps for a faster search the next time."""

    def beginning(self, begun: Mapping[str, Any], cut: Sampled | None) -> Location:
        """Return the location of a reply that continues `begun`; if this repeats the reply `cut`,
        its exact tokens are continued."""
        if cut is None:
            return replace(self, tail_keys=(*self.tail_keys, (_BEGUN, *message_key(begun))))
        recorded = [*self.messages, cut.message]
        return replace(
            self, anchor=cut, messages=recorded, tail=(), tail_keys=_CONTINUED, edited=None
        )

    @property
    def known(self) -> Context | None:
        """Return the context of an earlier request with exactly these messages; None if there is
        none."""
        return self.anchor.next.get(self.tail_keys)


class Tree:
    """The turns of one session.

    `edited_calls`: the treatment of a sampled tool call that returns with other arguments.
    """

    def __init__(self, *, edited_calls: EditedCalls = "fork") -> None:
        self._roots: dict[str, Root] = {}
        self._trusts = edited_calls == "trust"
        self.named_main: Root | None = None
        """The root of the lineage that a client has named as the main one."""
        self._walks = Walks()
        self.turns: list[Sampled] = []
        self._by_request: dict[int, Sampled] = {}

    def locate(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        template_kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> Location:
        """Follow `messages` down the tree as far as they match recorded messages and turns.

        A thread may do this while turns are committed: existing nodes do not change.
        """
        num_cleared = self._walks.num_cleared
        walk = self._walks.longest(messages, tools, template_kwargs)
        if walk is None:
            leading = messages[: num_leading(messages)]
            root = self._root(leading, tools, template_kwargs)
            walk = Walk(tools, template_kwargs, leading, leading, root, root, num_cleared)
        return self._go_on(walk, messages[len(walk.sent) :])

    def remember(self, place: Location) -> None:
        """Keep the result of a search for the next request; do not call this from a thread."""
        if place.step is not None:
            self._walks.keep(*place.step)

    def taken_apart(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        template_kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> Messages:
        """Return a conversation in which turns that a client has joined are split again."""
        walk = self._walks.longest(messages, tools, template_kwargs)
        start = 0 if walk is None else len(walk.sent)
        return taken_apart(messages, start, tools, of_request=self.of_request, following=_replies)

    def _go_on(self, walk: Walk, new: Messages) -> Location:
        """Follow `new` messages from the end of a walk."""
        keys = [message_key(message) for message in new]
        recorded, start = list(new), 0
        anchor, trusted = walk.anchor, walk.trusted
        edited: ForkCause | None = None
        guessed, certain = False, True
        sure: tuple[int, Sampled, bool] | None = None
        lengths = _lengths(anchor)
        for index, message in enumerate(new):
            if message["role"] != "assistant":
                continue
            # no key is made if no request ended here: there may be thousands of messages
            found_context = index - start in lengths
            replies = _replies(anchor, tuple(keys[start:index])) if found_context else []
            same = [node for node in replies if node.key == keys[index]]
            other = None if same else rewritten(replies, message)
            edit: ForkCause | None = "history_edit"
            if other is not None:
                edit = edit_of(other, message, keys[index], walk.tools)
                if edit is None or self._trusts:
                    same = [other]
            certain = certain and len(same) == 1
            if not same:
                edited = edit
                continue
            behind = until_next_reply(new, keys, index) if len(same) > 1 else None
            anchor, guessed = echoed(same, message, behind)
            lengths = _lengths(anchor)
            recorded[index] = restored(anchor.message, message)
            trusted = other is not None and edit is not None
            edited, start = None, index + 1
            if certain:
                sure = start, anchor, trusted
        step = None if sure is None else (walk, walk.to(new, recorded, *sure))
        recorded = [*walk.recorded, *recorded]
        tail, tail_keys = recorded[len(walk.sent) + start :], tuple(keys[start:])
        return Location(
            walk.root, anchor, recorded, tail, tail_keys, edited, guessed, trusted, step
        )

    def continued(self, place: Location, begun: Mapping[str, Any]) -> Sampled | None:
        """Return the reply to the messages at `place` whose text is that of `begun`; None if there
        is none."""
        key = message_key(begun)
        same = [node for node in _replies(place.anchor, place.tail_keys) if node.key == key]
        return echoed(same, begun, None)[0] if same else None

    def longest_beginning(self, ids: list[int]) -> tuple[Sampled | None, int]:
        """Return the turn with the longest path with which `ids` begin, and the path's length; None
        and 0 if there is none. A thread may do this while turns are committed."""
        ends: dict[int, int] = {}
        found: tuple[Sampled | None, int] = (None, 0)
        for node in tuple(self.turns):  # a turn comes before those that follow it
            base = node.context.base
            start = 0 if base is None else ends.get(base.turn)
            if start is None:
                continue
            fed, sampled = node.context.ids, node.ids
            middle = start + len(fed)
            end = middle + len(sampled)
            if end > len(ids) or (sampled and ids[end - 1] != sampled[-1]):
                continue
            if ids[middle:end] == sampled and ids[start:middle] == fed:
                ends[node.turn] = end
                found = max(found, (node, end), key=lambda one: one[1])
        return found

    def continue_ids(self, ids: list[int], base: Sampled | None, start: int) -> Context:
        """Return the context of a prompt of token ids: the ids after the path to `base`, their
        `longest_beginning` with length `start`, or a path of its own."""
        root = self._roots.setdefault(_OF_IDS, Root()) if base is None else base.context.root
        place = Location(root, base or root, (), (), (("ids", *ids[start:]),), None, False, False)
        return self.extend(place, ids[start:], base=base)

    def extend(
        self,
        place: Location,
        ids: list[int],
        *,
        base: Sampled | None,
        cause: ForkCause | None = None,
    ) -> Context:
        """Add the tokens of `place`'s tail, after `base` or as a new prompt.

        `cause`: the reason why they do not follow the turn before.
        """
        edited = place.edited or cause
        context = Context(place.root, base, ids, place.anchor, edited, self._quoted(place, base))
        return place.anchor.next.setdefault(place.tail_keys, context)

    def _quoted(self, place: Location, base: Sampled | None) -> Sampled | None:
        """Return the turn whose text the new messages contain, if they do not continue the path
        before them."""
        if not self.turns or (base is not None and base is place.anchor):
            return None
        return quoted(self.turns, place.messages)

    def commit(
        self,
        context: Context,
        sample: Sample,
        message: Mapping[str, Any],
        *,
        request: int,
        sibling_of: SiblingOf | None = None,
    ) -> tuple[Sampled, ForkCause | None]:
        """Add an answered turn; return it and the reason for its fork, if it forks.

        `sibling_of`: the reason why the same messages were sampled again, if known.
        """
        cause = self._fork_cause(context, sibling_of)
        node = Sampled(context, len(self.turns), request, sample, message, message_key(message))
        if context.replies:
            self._walks.clear()
        self.turns.append(node)
        self._by_request[request] = node
        context.root.turns.append(node)
        context.replies.append(node)
        return node, cause

    def name(self, root: Root, lineage: Lineage) -> None:
        """Record the name that a client gives to a lineage."""
        if lineage == "main":
            self.named_main = root
        root.trains = root.trains and lineage != "untrained"

    def of_request(self, request: int) -> Sampled | None:
        """Return the turn that answered a request."""
        return self._by_request.get(request)

    def lineages(self, main_tools: Sequence[str] = ()) -> list[Root]:
        """Return the roots that have turns, the main one first, the others in the order of their
        first turns.

        The main root is the one that a client has named. Else it is chosen among those that train:
        it offers all of `main_tools`, if any does; then the most turns decide, then whether it
        offers tools, then the order.
        """
        roots = sorted((r for r in self._roots.values() if r.turns), key=lambda r: r.turns[0].turn)

        def rank(root: Root) -> tuple[bool, bool, bool, int, bool]:
            named, mains = root is self.named_main, bool(main_tools)
            mains = mains and _offers(root.tools, main_tools)
            return named, root.trains, mains, len(root.turns), bool(root.tools)

        main = max(roots, key=rank, default=None)
        return sorted(roots, key=lambda root: root is not main)

    def _root(
        self,
        leading: Messages,
        tools: Messages | None,
        template_kwargs: Mapping[str, Any],
    ) -> Root:
        key = root_key(leading, tools, template_kwargs)
        found = self._roots.get(key)
        if found is None:
            new = Root(tuple(tool["function"]["name"] for tool in tools or ()))
            found = self._roots.setdefault(key, new)  # a thread may have been faster
        return found

    def _fork_cause(self, context: Context, sibling_of: SiblingOf | None) -> ForkCause | None:
        if not self.turns:
            return None
        if context.replies:
            return _SIBLINGS[sibling_of]
        if not context.root.turns:
            return "new_root"
        others = [
            other
            for other in context.anchor.next.values()
            if other.replies and other.base is context.base  # others follow other tokens
        ]
        if context.base is context.anchor and not others:
            return None  # even if a client inserted messages
        cause = context.cause or "history_edit"
        return "summary" if cause == "history_edit" and context.quoted else cause


def _lengths(anchor: Root | Sampled) -> set[int]:
    """Return the numbers of messages after which replies follow an anchor."""
    return {len(keys) - _is_begun(keys) for keys in list(anchor.next)}


def _is_begun(keys: tuple[MessageKey, ...]) -> bool:
    return bool(keys) and keys[-1][0] == _BEGUN


def _replies(anchor: Root | Sampled, keys: tuple[MessageKey, ...]) -> list[Sampled]:
    """Return the replies to messages, including replies whose beginning the client wrote, and
    continuations of replies that were cut."""
    found_context = anchor.next.get(keys)
    found = list(found_context.replies) if found_context else []
    for other, context in list(anchor.next.items()):
        if _is_begun(other) and other[:-1] == keys and other != _CONTINUED:
            found += context.replies
    for node in found:  # grows meanwhile
        found += node.next[_CONTINUED].replies if _CONTINUED in node.next else ()
    return found


def _offers(offered: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether all `wanted` tools are offered, perhaps with a prefix (`mcp__env__look`)."""
    return all(any(o == w or o.endswith(f"_{w}") for o in offered) for w in wanted)
