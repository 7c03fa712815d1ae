"""The keys and values of token sequences that were computed already: later requests that begin with
the same tokens copy them instead of computing them again.

The sequences form a radix tree, as in SGLang's RadixAttention (arXiv:2312.07104): common beginnings
are stored once, at the granularity of tokens. The store holds KV of one set of weights: call
`clear` when they change. Only the decode thread uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .cache import CopyableKV, KVPiece
from .request import Request

_WORTH = 16
"""The tokens that a request must save to wait for another forward pass."""


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens after those of the nodes above it."""

    tokens: list[int]
    piece: KVPiece
    siblings: dict[tuple[str, int], _Node]
    """The dict that holds this node."""
    key: tuple[str, int]
    """The key in it: the salt, and the first token."""
    children: dict[tuple[str, int], _Node] = field(default_factory=dict)


class Prefixes:
    """A store of at most `max_bytes` of keys and values; the least recently used are dropped."""

    def __init__(self, kv: CopyableKV, *, max_bytes: int) -> None:
        self.num_bytes = 0
        """The memory of all stored keys and values."""
        self._kv = kv
        self._max_bytes = max_bytes
        self._top: dict[tuple[str, int], _Node] = {}
        self._by_use: dict[_Node, None] = {}
        """All nodes, the least recently used one first; a node stands before those above it."""

    def length(self, salt: str, tokens: Sequence[int]) -> int:
        """Return the number of first `tokens` that are stored under `salt`."""
        return sum(count for _, count in self._path(salt, tokens))

    def fill(self, slot: int, salt: str, tokens: Sequence[int]) -> int:
        """Copy the first tokens, as far as they are stored, to a slot; return their number."""
        path, at = self._path(salt, tokens), 0
        for node, count in path:
            self._kv.write(slot, at, node.piece.part(0, count))
            at += count
        self._use([node for node, _ in path])
        return at

    def store(self, slot: int, salt: str, tokens: Sequence[int]) -> None:
        """Store the keys and values that a slot holds of `tokens`, except those known already."""
        path = self._path(salt, tokens)
        nodes, at = [node for node, _ in path], sum(count for _, count in path)
        if at < len(tokens):
            if path and path[-1][1] < len(nodes[-1].tokens):
                nodes[-1] = self._split(*path[-1])
            siblings = nodes[-1].children if nodes else self._top
            key = (salt, tokens[at])
            piece = self._kv.read(slot, at, len(tokens))
            siblings[key] = node = _Node(list(tokens[at:]), piece, siblings, key)
            self.num_bytes += piece.num_bytes
            nodes.append(node)
        self._use(nodes)
        while self.num_bytes > self._max_bytes:
            oldest = next(iter(self._by_use))
            del oldest.siblings[oldest.key], self._by_use[oldest]
            self.num_bytes -= oldest.piece.num_bytes

    def clear(self) -> None:
        """Drop everything."""
        self._top.clear()
        self._by_use.clear()
        self.num_bytes = 0

    def leaders(self, requests: Sequence[Request]) -> tuple[list[Request], list[Request]]:
        """Split requests into those to compute now, and those that wait for the prompt of one of
        these, whose beginning they share. The first part is never empty."""
        now: list[Request] = []
        later: list[Request] = []
        # In lexicographic order, no earlier row has a longer common beginning than the last one.
        ordered = sorted(requests, key=lambda request: (request.cache_salt, request.tokens))
        for request in ordered:
            fed = request.tokens[:-1]
            if now and now[-1].cache_salt == request.cache_salt:
                shared = common_length(now[-1].fed_prompt, fed)
                saved = shared - self.length(request.cache_salt, fed)
                if saved > 0 and (saved >= _WORTH or shared == len(fed)):
                    later.append(request)
                    continue
            now.append(request)
        return now, later

    def _path(self, salt: str, tokens: Sequence[int]) -> list[tuple[_Node, int]]:
        """Return the nodes that `tokens` lead through, each with the number of its tokens that
        agree: all of them, except perhaps in the last node."""
        path: list[tuple[_Node, int]] = []
        level, at = self._top, 0
        while at < len(tokens) and (node := level.get((salt, tokens[at]))) is not None:
            count = common_length(node.tokens, tokens[at : at + len(node.tokens)])
            path.append((node, count))
            if count < len(node.tokens):
                break
            level, at = node.children, at + count
        return path

    def _split(self, node: _Node, count: int) -> _Node:
        """Give the first `count` tokens of a node a node of their own, above it; return that."""
        piece, size = node.piece, len(node.tokens)
        upper = _Node(node.tokens[:count], piece.part(0, count).copy(), node.siblings, node.key)
        node.siblings[node.key] = upper
        node.tokens, node.piece = node.tokens[count:], piece.part(count, size).copy()
        node.siblings, node.key = upper.children, (node.key[0], node.tokens[0])
        upper.children[node.key] = node
        return upper

    def _use(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._by_use.pop(node, None)
            self._by_use[node] = None


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of equal tokens before the first difference."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
