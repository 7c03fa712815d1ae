"""Connected components and consistency of graphs, of the topic graphs."""

from __future__ import annotations

from .family import Args, Draw, Family, family


def _islands(draw: Draw) -> Args:
    """Return groups of a few nodes each, with and without cycles."""
    nodes = draw.size * 3 // 2
    order = draw.rng.sample(range(nodes), nodes)
    pairs: list[list[int]] = []
    start = 0
    while start < nodes:
        size = min(draw.integer(2, 6), nodes - start)
        pairs += [[start + draw.integer(0, i - 1), start + i] for i in range(1, size)]
        for _ in range(draw.integer(0, 2)):
            pairs.append(draw.integers(start, start + size - 1, length=2))
        start += size
    draw.rng.shuffle(pairs)
    return nodes, [[order[a], order[b]] for a, b in pairs]


@family(
    "graphs",
    least=range(1, 5),
    shape=("fewer edges than nodes", "at least as many edges as nodes"),
    inputs=_islands,
    edges=lambda draw: [
        (0, []),
        (1, []),
        (1, [[0, 0]]),
        (5, [[0, 1], [1, 0]]),
        (6, [[i, i + 1] for i in range(int(draw.parameters["least"]) - 1)]),
        (9, [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 4], [7, 8], [8, 7]]),
    ],
)
def list_groups(nodes: int, edges: list[list[int]], *, least: int, shape: str) -> list[int]:
    """A graph has nodes 0 to `nodes` - 1. Each [a, b] of `edges` joins a and b; a may be b, and an
    edge that occurs twice counts as two. Nodes that are joined, directly or through others, form a
    group. Return the sizes, in ascending order, of the groups that have at least {least} nodes and
    {shape}.
    """
    group = list(range(nodes))
    for a, b in edges:
        old, new = group[a], group[b]
        group = [new if g == old else g for g in group]
    sizes: list[int] = []
    for g in set(group):
        size = group.count(g)
        num_edges = sum(group[a] == g for a, _ in edges)
        if size >= least and (num_edges < size) == (shape == "fewer edges than nodes"):
            sizes.append(size)
    return sorted(sizes)


def _claims(draw: Draw) -> Args:
    """Return claims that are mostly true."""
    nodes, modulus = draw.size // 3 + 1, int(draw.parameters["modulus"])
    values = draw.integers(0, modulus - 1, length=nodes)
    pairs = draw.pairs(nodes, draw.size)
    errors = [draw.integer(0, 1) and draw.integer(0, modulus) for _ in pairs]
    return nodes, [
        [a, b, (values[b] - values[a] + error) % modulus]
        for (a, b), error in zip(pairs, errors, strict=True)
    ]


@family(
    "graphs",
    modulus=range(2, 10),
    inputs=_claims,
    edges=lambda draw: [
        (0, []),
        (1, [[0, 0, 0], [0, 0, 1]]),
        (2, [[0, 1, 1], [1, 0, 1], [0, 1, 1]]),
        (3, [[0, 1, 1], [1, 2, 1], [0, 2, 2], [2, 0, 1]]),
        (4, [[0, 1, 1], [2, 3, 1], [0, 2, 1], [1, 3, 1], [3, 1, 1]]),
        (2, [[0, 1, int(draw.parameters["modulus"])], [0, 1, 0]]),
    ],
)
def find_contradictions(nodes: int, edges: list[list[int]], *, modulus: int) -> list[int]:
    """Each node 0 to `nodes` - 1 has an unknown whole value. Each [a, b, d] of `edges` claims that
    b's value minus a's value leaves the same remainder as d when divided by {modulus}. Go through
    the edges in order; a claim that cannot be true together with the claims kept so far is
    dropped. Return the positions (from 0) of the dropped edges, in order.
    """
    group = list(range(nodes))
    shift = [0] * nodes
    dropped: list[int] = []
    for i, (a, b, d) in enumerate(edges):
        change = d - (shift[b] - shift[a])
        if group[a] == group[b]:
            if change % modulus:
                dropped.append(i)
            continue
        old = group[b]
        for node in range(nodes):
            if group[node] == old:
                group[node] = group[a]
                shift[node] += change
    return dropped


@family(
    "graphs",
    groups=range(1, 5),
    best=("smallest", "largest"),
    inputs=lambda draw: (
        draw.size // 3 + 3,
        draw.weighted_pairs(draw.size // 3 + 3, draw.size + 1, near=4),
    ),
    edges=lambda draw: [
        (0, []),
        (int(draw.parameters["groups"]), []),
        (int(draw.parameters["groups"]) + 1, [[0, 0, 4]]),
        (int(draw.parameters["groups"]) + 1, [[0, 1, 5], [1, 0, 3], [0, 1, 4]]),
        (7, [[0, 1, 2], [1, 2, 7], [2, 0, 9], [3, 4, 1], [4, 5, 1], [5, 6, 6], [6, 0, 8]]),
        (int(draw.parameters["groups"]) - 1, []),
    ],
)
def connect_nodes(nodes: int, edges: list[list[int]], *, groups: int, best: str) -> int:
    """A graph has nodes 0 to `nodes` - 1; each [a, b, w] of `edges` joins a and b and weighs w.
    Choose edges that form no cycle (a = b is a cycle, and so are two edges between the same nodes)
    and leave exactly {groups} connected groups of nodes, single nodes included. Return the {best}
    possible total weight, or -1 if that is impossible.
    """
    group = list(range(nodes))
    left, total = nodes, 0
    for a, b, w in sorted(edges, key=lambda edge: edge[2], reverse=best == "largest"):
        if left > groups and group[a] != group[b]:
            old, new = group[a], group[b]
            group = [new if g == old else g for g in group]
            left -= 1
            total += w
    return total if left == groups else -1


def _sparse(draw: Draw) -> Args:
    """Return one or two trees with a few additional edges."""
    nodes = draw.size * 2 // 3 + 3
    order = draw.rng.sample(range(nodes), nodes)
    pairs = [[draw.integer(max(0, i - 3), i - 1), i] for i in range(1, nodes)]
    pairs += draw.pairs(nodes, draw.integer(0, nodes // 4), near=3)
    del pairs[: draw.integer(0, 3) // 3]
    draw.rng.shuffle(pairs)
    ends = [draw.rng.sample(pair, 2) for pair in pairs]
    return nodes, [[order[a], order[b]] for a, b in ends]


@family(
    "graphs",
    first=range(1, 4),
    second=range(1, 4),
    inputs=_sparse,
    edges=lambda draw: [
        (0, []),
        (1, [[0, 0]]),
        (2, [[1, 0]]),
        (2, [[0, 1], [1, 0]]),
        (7, [[i, i + 1] for i in range(6)]),
        (7, [[2, 1], [1, 0], [2, 3], [3, 4], [4, 2], [5, 6]]),
    ],
)
def list_bridges(nodes: int, edges: list[list[int]], *, first: int, second: int) -> list[int]:
    """A graph has nodes 0 to `nodes` - 1; an edge [a, b] joins a and b, edges may repeat, and a may
    be b. Return, in order, the positions (from 0) in `edges` of those edges without which a and b
    are not connected, a is in a connected group of at least {first} node(s), itself included, and
    b in one of at least {second}.
    """

    def reached(start: int, without: int) -> set[int]:
        found, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            for i, (a, b) in enumerate(edges):
                if i != without and node in (a, b):
                    other = a + b - node
                    if other not in found:
                        found.add(other)
                        waiting.append(other)
        return found

    bridges: list[int] = []
    for i, (a, b) in enumerate(edges):
        side = reached(a, i)
        if b not in side and len(side) >= first and len(reached(b, i)) >= second:
            bridges.append(i)
    return bridges


FAMILIES: tuple[Family, ...] = (
    list_groups,
    find_contradictions,
    connect_nodes,
    list_bridges,
)
