"""A session's token tree: the messages of its conversations, and their exact tokens.

    Root(system, tools) ─ Context ─ Sampled ─ Context ─ Sampled      a pure conversation: one path
                               └─── Sampled ─ …                      a retry or an edit: a fork
    Root(others) ─ …                                                 a helper: a lineage of its own

Contexts hold tokens fed to the engine (prompts, tool output, template glue); Sampled nodes hold the
tokens of its replies. A node holds only the tokens it adds. The tokens from the root of a path to a
node are exactly the engine's input and output. Nodes are keyed by messages, never by text, and
never change once added, so concurrent turns of a session need no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_rl.gateway.messages import MessageKey, message_key, num_leading, root_key
from agentgym_rl.gateway.template.template import NO_KWARGS

from .locate import Step, Walk, Walks, echoed, restored, rewritten, until_next_reply
from .nodes import Context, ForkCause, Root, Sample, Sampled

SiblingOf = Literal["n", "retry"]
EditedCalls = Literal["fork", "trust"]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a conversation: `tail` are the messages after the last sampled turn found."""

    root: Root
    anchor: Root | Sampled
    messages: Sequence[Mapping[str, Any]]
    """The complete conversation; the turns found are as sampled, including their thoughts."""
    tail: Sequence[Mapping[str, Any]]
    tail_keys: tuple[MessageKey, ...]
    edited: ForkCause | None
    """The kind of edit, if an assistant message differs from the sampled one."""
    guessed: bool
    """The flag that the last turn found was a guess among several with the same content."""
    trusted: bool
    """The flag that the client rewrote the last turn found, and the edit was accepted."""
    step: Step | None = None
    """The step that `Tree.remember` keeps for a faster search the next time."""

    @property
    def known(self) -> Context | None:
        """Return the context, if exactly these messages were asked before."""
        return self.anchor.next.get(self.tail_keys)


class Tree:
    """The turns of one session.

    `edited_calls`: the treatment of a sampled tool call that returns with other arguments.
    """

    def __init__(self, *, edited_calls: EditedCalls = "fork") -> None:
        self._roots: dict[str, Root] = {}
        self._trusts = edited_calls == "trust"
        self._walks = Walks()
        self.turns: list[Sampled] = []

    def locate(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> Place:
        """Follow `messages` down the tree as far as they match recorded messages and turns.

        A thread may do this while turns are committed: existing nodes do not change.
        """
        num_cleared = self._walks.num_cleared
        walk = self._walks.longest(messages, tools, template_kwargs)
        if walk is None:
            leading = messages[: num_leading(messages)]
            root = self._root(leading, tools, template_kwargs)
            walk = Walk(tools, template_kwargs, leading, leading, root, root)
        return self._go_on(walk, messages[len(walk.said) :], num_cleared)

    def remember(self, place: Place) -> None:
        """Keep how far a conversation was found; do not call this from a thread."""
        if place.step is not None:
            self._walks.keep(place.step)

    def _go_on(self, walk: Walk, new: Sequence[Mapping[str, Any]], num_cleared: int) -> Place:
        """Follow `new` messages from the end of a walk."""
        keys = [message_key(message) for message in new]
        whole, start = list(new), 0
        anchor, trusted = walk.anchor, walk.trusted
        edited: ForkCause | None = None
        guessed, certain = False, True
        sure: tuple[int, Sampled, bool] | None = None
        lengths = set(map(len, list(anchor.next)))
        for index, message in enumerate(new):
            if message["role"] != "assistant":
                continue
            # no key is made if no request ended here: there may be thousands of messages
            asked = index - start in lengths
            context = anchor.next.get(tuple(keys[start:index])) if asked else None
            replies = context.replies if context else []
            same = [node for node in replies if node.key == keys[index]]
            edit = None if same else rewritten(replies, message)
            if edit is not None and self._trusts:
                same = [edit]
            certain = certain and len(same) == 1
            if not same:
                edited = "args_edit" if edit else "history_edit"
                continue
            behind = until_next_reply(new, keys, index) if len(same) > 1 else None
            anchor, guessed = echoed(same, message, behind)
            lengths = set(map(len, list(anchor.next)))
            whole[index] = restored(anchor.message, message)
            edited, trusted, start = None, edit is not None, index + 1
            if certain:
                sure = start, anchor, trusted
        step = None if sure is None else Step(walk, walk.to(new, whole, *sure), num_cleared)
        whole = [*walk.whole, *whole]
        tail, tail_keys = whole[len(walk.said) + start :], tuple(keys[start:])
        return Place(walk.root, anchor, whole, tail, tail_keys, edited, guessed, trusted, step)

    def longest_beginning(self, ids: list[int]) -> tuple[Sampled | None, int]:
        """Return the turn with the longest path that `ids` begin with, and the path's length; None
        and 0 if there is none. A thread may do this while turns are committed."""
        return _longest_beginning(self.turns, ids)

    def continue_ids(self, ids: list[int], base: Sampled | None, start: int) -> Context:
        """Return the context of a prompt of token ids: the ids after the path to `base`, their
        `longest_beginning` with length `start`, or a path of its own."""
        root = self._roots.setdefault(_OF_IDS, Root()) if base is None else base.context.root
        place = Place(root, base or root, (), (), (("ids", *ids[start:]),), None, False, False)
        return self.extend(place, ids[start:], base=base)

    def extend(
        self, place: Place, ids: list[int], *, base: Sampled | None, cause: ForkCause | None = None
    ) -> Context:
        """Add the tokens of `place`'s tail, after `base` or as a new prompt.

        `cause`: the reason why they do not follow the turn before.
        """
        context = Context(place.root, base, ids, place.anchor, place.edited or cause)
        return place.anchor.next.setdefault(place.tail_keys, context)

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
        context.root.turns.append(node)
        context.replies.append(node)
        return node, cause

    def leaves(self) -> list[Sampled]:
        """Return the last turn of each path, in the order in which they were sampled.

        A reply that no client got, and that no turn continues, is not part of the episode.
        """
        counted, extended = self._counted()
        return [node for node in self.turns if node.turn in counted - extended]

    @property
    def num_lost(self) -> int:
        """Return the number of turns that are on no path."""
        return len(self.turns) - len(self._counted()[0])

    def _counted(self) -> tuple[set[int], set[int]]:
        """Return the turns that are on a path, and those of them that another turn follows."""
        counted: set[int] = set()
        extended: set[int] = set()
        for node in reversed(self.turns):  # a turn comes before those that follow it
            if node.delivered or node.turn in counted:
                counted.add(node.turn)
                if node.parent is not None:  # a client that continues a reply has seen it
                    counted.add(node.parent.turn)
                if node.context.base is not None:
                    extended.add(node.context.base.turn)
        return counted, extended

    def of_request(self, request: int) -> Sampled | None:
        """Return the turn that answered a request."""
        return next((node for node in self.turns if node.request == request), None)

    def lineages(self, main_tools: Sequence[str] = ()) -> list[Root]:
        """Return the roots with turns, the main one first: of those that offer all of `main_tools`
        the one that was answered first, or else the first of all."""
        roots = sorted((r for r in self._roots.values() if r.turns), key=lambda r: r.turns[0].turn)
        mains = [root for root in roots if _offers(root.tools, main_tools)]
        return sorted(roots, key=lambda root: root is not (mains or roots)[0])

    def _root(
        self,
        leading: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
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
        return context.cause or "history_edit"


_SIBLINGS: Mapping[SiblingOf | None, ForkCause] = {
    "n": "n_sibling",
    "retry": "retry_sibling",
    None: "sibling",
}


_OF_IDS = "ids"
"""The root of prompts that are not conversations."""


def _longest_beginning(turns: Sequence[Sampled], ids: list[int]) -> tuple[Sampled | None, int]:
    """Return the turn with the longest path that `ids` begin with, and the length of its path."""
    ends: dict[int, int] = {}
    found: tuple[Sampled | None, int] = (None, 0)
    for node in tuple(turns):  # a turn comes before those that follow it
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


def _offers(offered: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether all `wanted` tools are offered, maybe with a prefix (`mcp__env__look`)."""
    return all(any(o == w or o.endswith(f"_{w}") for o in offered) for w in wanted)
