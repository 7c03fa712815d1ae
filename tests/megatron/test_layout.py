"""The parameters of Megatron-Core and the tensors of a folder are the same numbers."""

import torch
from arl_megatron.layout import Layout

from tests.kit.cases import cases

HF = {
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 3,
    "tie_word_embeddings": False,
}
ROWS = {"q_proj": 24, "k_proj": 12, "v_proj": 12, "gate_proj": 16, "up_proj": 16}


@cases("size", [1, 2, 4])
def test_what_ranks_have_is_what_the_folder_has(size):
    ranks = [Layout(HF, rank, size) for rank in range(size)]
    seen = set()
    for _, way, names in ranks[0].parameters():
        shapes = [(ROWS.get(name.split(".")[-2], 8), 4) for name in names]
        tensors = [torch.rand(shape) for shape in shapes]
        parts = [rank.part(way, tensors) for rank in ranks]
        numbers = sum(part.numel() for part in parts) / (size if way == "whole" else 1)
        assert numbers == sum(it.numel() for it in tensors)
        found = ranks[0].tensors(way, parts)
        assert all(torch.equal(a, b) for a, b in zip(found, tensors, strict=True))
        seen |= set(names)
    assert len(seen) == 2 * 11 + 3


def test_a_group_of_heads_is_together():
    """A key-value head follows its queries: [q0 q1 k0 v0 q2 q3 k1 v1 ...]."""
    tensors = [
        torch.arange(rows * 4.0).view(rows, 4) + 1000 * k for k, rows in enumerate((24, 12, 12))
    ]
    first = Layout(HF, 0, 4).part("heads", tensors)
    q, k, v = tensors
    assert torch.equal(first, torch.cat([q[:6], k[:3], v[:3]]))
