from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agentgym_rl.algo import pack_rows
from agentgym_rl.algo.packing import lay_out
from agentgym_rl.core import UNKNOWN_EXPERT, Choices, Row
from agentgym_rl.core.token_records import ALL, FORCED, Experts, packed_set


def row(tokens: list[int], mask: list[int], temperature: float = 1.0) -> Row:
    n = len(tokens)
    return Row(
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, np.bool_),
        behavior_logprobs=np.zeros(n, np.float32),
        policy_versions=np.zeros(n, np.int32),
        admitted_versions=np.zeros(n, np.int32),
        temperatures=np.full(n, temperature, np.float32),
        turn_ids=np.zeros(n, np.int32),
        times_s=np.zeros(n),
    )


def test_rows_lie_end_to_end():
    packed = pack_rows([row([5, 6, 7], [0, 1, 1]), row([8, 9], [0, 1], temperature=0.7)])
    assert packed.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert packed.cu_seqlens.tolist() == [0, 3, 5]
    assert packed.positions.tolist() == [0, 1, 3]
    assert packed.targets.tolist() == [6, 7, 9]
    assert packed.temperatures.tolist() == pytest.approx([1, 1, 0.7])


def test_rows_that_cannot_train_are_refused():
    with pytest.raises(ValueError, match="nothing predicts"):
        pack_rows([row([1, 2], [0, 1]), row([3, 4], [1, 0])])
    with pytest.raises(ValueError, match="temperature 0"):
        pack_rows([row([1, 2], [0, 1], temperature=0.0)])
    with pytest.raises(ValueError, match="temperature nan"):
        pack_rows(
            [row([1, 2], [0, 1], temperature=0.5), row([1, 2], [0, 1], temperature=float("nan"))]
        )
    with pytest.raises(ValueError, match="no rows"):
        pack_rows([])


def chosen(index: list[int], mask: list[int], allowed: list[list[int]]) -> Row:
    """Return a row with the tokens that were allowed at each place."""
    sets = []
    for one in allowed:
        bits = np.zeros(8, np.bool_)
        bits[one] = True
        sets.append(packed_set(np.packbits(bits, bitorder="little").tobytes()))
    choices = Choices(np.array(index, np.int32), tuple(sets))
    return replace(row(list(range(len(index))), mask), choices=choices)


def test_a_prediction_excludes_what_its_own_set_does_not_hold():
    """The first set, the second one, none; beyond the bits of a set every token is excluded."""
    packed = pack_rows([chosen([ALL, 0, 1, ALL], [0, 1, 1, 1], [[1, 2], [2, 7]])])
    assert packed.allowed is not None
    barred = packed.allowed.barred(slice(0, 3), 10)
    assert [torch.nonzero(~one).flatten().tolist() for one in barred] == [
        [1, 2],
        [2, 7],
        list(range(10)),
    ]


def test_a_token_without_an_alternative_does_not_train():
    with pytest.raises(ValueError, match="no alternative"):
        pack_rows([chosen([ALL, FORCED], [0, 1], [[1, 2]])])
    assert pack_rows([chosen([ALL, FORCED, 0], [0, 0, 1], [[1, 2]])]).allowed is not None


def test_only_rows_that_share_a_beginning_have_branches():
    rows = [np.arange(4), np.arange(10, 14), np.array([0, 1, 2, 9])]
    assert lay_out(rows[:2], least=2).branches is None
    layout = lay_out(rows, least=2)
    assert layout.branches is not None
    assert [layout.tokens[path].tolist() for path in layout.paths] == [it.tolist() for it in rows]
    assert len(layout.branches.paths) == 4  # those of the one row that continues another


def test_tokens_of_a_row_without_experts_have_unknown_ones():
    ids = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    known = replace(row([1, 2, 3], [0, 1, 1]), experts=Experts(ids))
    packed = pack_rows([row([4, 5], [0, 1]), known])
    assert packed.experts is not None
    assert (packed.experts[:2] == UNKNOWN_EXPERT).all()
    assert packed.experts[2:].numpy().tolist() == ids.tolist()
