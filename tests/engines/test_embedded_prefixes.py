"""The tree of stored tokens against a plain list of sequences."""

import random

import pytest
import torch
from arl_embedded.batch import SlotKV
from arl_embedded.prefixes import Prefixes, common_length

BYTES = 2 * (2 * 3 + 2 * 5) * 4  # layers, (key heads x dim + value heads x dim), float32


def _kv(transposed_keys):
    kv = SlotKV(
        max_slots=4,
        max_length=64,
        dtype=torch.float32,
        device=torch.device("cpu"),
        transposed_keys=transposed_keys,
    )
    for _ in range(2):
        kv.add_layer((2, 3), (2, 5))
    kv.reserve(4, 40)
    return kv


def _content(kv, slot, count):
    """The stored numbers of tokens [0, count), in an order that does not depend on the layout."""
    piece = kv.read(slot, 0, count)
    return [
        (keys.movedim(piece.key_axis, 0).flatten(1), values.movedim(1, 0).flatten(1))
        for keys, values in piece.layers
    ]


def _write(kv, slot, tokens):
    """Keys and values that tell which tokens stand before them."""
    for layer, (keys, values) in enumerate(kv.layers):
        keys[slot], values[slot] = -1.0, -1.0
        for at in range(len(tokens)):
            number = hash((layer, *tokens[: at + 1])) % 100_000
            keys[slot].select(kv._key_axis - 1, at).fill_(number)
            values[slot, :, at] = number + 1


@pytest.mark.parametrize("transposed_keys", [False, True])
@pytest.mark.parametrize("room", [10**9, 60])
def test_it_finds_the_longest_beginning_and_its_numbers(transposed_keys, room):
    draw = random.Random(room)
    kv = _kv(transposed_keys)
    prefixes = Prefixes(kv, max_bytes=room * BYTES)
    stored: list[tuple[str, list[int]]] = []
    reused = 0
    for _ in range(400):
        salt = draw.choice(["", "a"])
        base = draw.choice([known for _, known in stored] or [[]])
        tokens = base[: draw.randint(0, len(base))]
        tokens = (tokens + [draw.randrange(3) for _ in range(draw.randint(0, 9))])[:40]
        length = prefixes.length(salt, tokens)
        best = max((common_length(t, tokens) for s, t in stored if s == salt), default=0)
        assert length == best if room > 60 else length <= best
        for layer in kv.layers:
            for tensor in layer:
                tensor[1] = -9.0
        assert prefixes.fill(1, salt, tokens) == length
        _write(kv, 0, tokens)
        for got, want in zip(_content(kv, 1, length), _content(kv, 0, length), strict=True):
            assert all(map(torch.equal, got, want))
        reused += length
        prefixes.store(0, salt, tokens)
        stored.append((salt, tokens))
        _check(prefixes, room)
    assert reused > 400
    prefixes.clear()
    assert (prefixes.num_bytes, prefixes.length("", stored[-1][1])) == (0, 0)


def _check(prefixes, room):
    """Every node is in the order of use, before the nodes above it; its memory is counted once."""
    nodes, waiting = [], [(node, None) for node in prefixes._top.values()]
    places = {node: place for place, node in enumerate(prefixes._by_use)}
    while waiting:
        node, parent = waiting.pop()
        nodes.append(node)
        assert parent is None or places[node] < places[parent]
        assert node.siblings[node.key] is node
        assert node.piece.num_bytes == len(node.tokens) * BYTES
        waiting += [(child, node) for child in node.children.values()]
    assert len(nodes) == len(places)
    assert prefixes.num_bytes == sum(len(node.tokens) for node in nodes) * BYTES <= room * BYTES


@pytest.mark.parametrize("count", range(40))
def test_common_length(count):
    row = list(range(40))
    assert common_length(row, [*row[:count], -1, *row[count + 1 :]]) == count
    assert common_length(row, row[:count]) == common_length(row[:count], row) == count
