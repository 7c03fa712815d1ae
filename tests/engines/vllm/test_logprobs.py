"""Replies of vLLM under `top_k` and the like have the tokens that were left, and one more."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from arl_vllm.logprobs import trimmed

from tests.kit.cases import cases

OUT = -np.inf


class Lists(NamedTuple):
    """As vLLM's LogprobsLists."""

    logprob_token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    sampled_token_ranks: npt.NDArray[np.int32]


@cases(
    "rows, columns",
    [
        ([[-1.0, -0.5, -1.0, OUT, OUT, OUT]], 4),
        ([[-0.5, -0.5, -1.0, -2.0, -3.0, -4.0]], 6),
        ([[0.0, 0.0, OUT, OUT]], 3),
        ([[-1.0, -0.5, -1.0, OUT, OUT], [0.0, 0.0, OUT, OUT, OUT]], 4),
        ([[-1.0]], 1),
        ([[np.nan, np.nan, np.nan, np.nan]], 2),
    ],
)
def test_one_excluded_token_stays(rows, columns):
    logprobs = np.array(rows, np.float32)
    ids = np.arange(logprobs.size, dtype=np.int32).reshape(logprobs.shape)
    ranks = np.ones(len(rows), np.int32)
    found = trimmed(Lists(ids, logprobs, ranks))
    assert np.array_equal(found.logprobs, logprobs[:, :columns], equal_nan=True)
    assert np.array_equal(found.logprob_token_ids, ids[:, :columns])
    assert found.sampled_token_ranks is ranks
