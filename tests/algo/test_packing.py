from __future__ import annotations

import numpy as np
import pytest

from agentgym_rl.algo.packing import pack_rows
from agentgym_rl.core.trajectory import Row


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
        pack_rows([row([1, 2], [0, 1], temperature=float("nan"))])
    with pytest.raises(ValueError, match="no rows"):
        pack_rows([])
