"""Batches as the controller deals them to ranks: their losses, gradients and weights do not depend
on the number of ranks, and the ranks' rounds are as few and as even as they can be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dealt_child import JOBS, trained
from trainer_samples import VOCAB, make_row

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import BatchRow, BatchShard
from agentgym_rl.trainer import Policy, ShardTokens, World, in_rounds
from tests.e2e.forked import run_all
from tests.kit.cases import cases

CHILD = Path(__file__).with_name("dealt_child.py")


@pytest.fixture(scope="module")
def one_rank(tiny_model, world) -> dict:
    return trained(tiny_model, world)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_ranks_computes_the_same(tiny_model, one_rank, tmp_path, size):
    run_all(CHILD, *((tiny_model, tmp_path, rank, size) for rank in range(size)))
    others = [json.loads((tmp_path / f"dealt-{size}-{r}.json").read_text()) for r in range(size)]
    for name in JOBS:
        expected = one_rank[name]
        for found in others:
            for mine, theirs in zip(expected["metrics"], found[name]["metrics"], strict=True):
                assert theirs == pytest.approx(mine, rel=1e-9, abs=1e-11), name
        weights = others[0][name]["weights"]
        assert weights.keys() == expected["weights"].keys()
        for key, numbers in expected["weights"].items():
            gap = torch.tensor(numbers).double() - torch.tensor(weights[key]).double()
            assert float(gap.abs().max()) <= 1e-12, (name, key)


@pytest.mark.slow
def test_idle_ranks_are_counted(one_rank, tiny_model, tmp_path):
    """Each minibatch has one row at most: the other rank waits, with a pass over two tokens."""
    run_all(
        CHILD, *((tiny_model, tmp_path, rank, 2, "more minibatches than rows") for rank in "01")
    )
    found = json.loads((tmp_path / "dealt-2-0.json").read_text())["more minibatches than rows"]
    assert found["idle"] == [pytest.approx(0.5, abs=0.1)] * 2


class Beside(World):
    """A world in which another rank has these numbers, one list for each exchange."""

    def maxima(self, numbers):
        theirs = OTHERS.pop(0)
        return [max(pair) for pair in zip(numbers, theirs, strict=True)]


OTHERS: list[list[int]] = []


def tokens_of(*lengths: int, share: int = 0) -> ShardTokens:
    rows = [make_row(np.random.default_rng(n), length) for n, length in enumerate(lengths)]
    for row in rows[1:]:
        row.tokens[:share] = rows[0].tokens[:share]
    items = [BatchRow(row, episode) for episode, row in enumerate(rows)]
    count = sum(row.num_trained for row in rows)
    shard = BatchShard(0, [0.0] * len(rows), ["g"] * len(rows), count, len(rows), [items])
    return ShardTokens.from_shard(shard, vocab_size=VOCAB)


@cases(
    "theirs, sizes, waited",
    [
        ([2, 100, 95], [90, 90], 195),
        ([3, 100, 95, 70], [60, 60, 60], 265),
        ([1, 100], [90, 90], 190),
        ([8, *[100] * 8], [30] * 6, 800),
    ],
)
def test_a_rank_makes_its_micro_batches_smaller_if_another_has_more(
    tiny_model, world, theirs, sizes, waited
):
    """Six rows of 30 tokens fit into two micro-batches of 100."""
    trainer = TrainerConfig(max_tokens_per_microbatch=100)
    policy = Policy.load(tiny_model, world, trainer=trainer)
    policy.world = Beside(0, 2, world.device, world.mesh)
    most = max(theirs[0], 2)
    OTHERS[:] = [theirs[:1], [*theirs[1:], *[0] * most][:most]]
    (plan,), rounds = in_rounds([range(6)], tokens_of(*[30] * 6), policy, passes=3)
    assert rounds == [most]
    assert [sum(batch.packed.lengths) for batch in plan] == sizes
    assert policy.fullest_tokens == 3 * waited
    assert not OTHERS


def test_each_row_of_a_group_gets_a_round(tiny_model, world):
    """Another rank has two micro-batches; halves of this one would be six, a row in each."""
    policy = Policy.load(tiny_model, world, trainer=TrainerConfig(max_tokens_per_microbatch=300))
    policy.world = Beside(0, 2, world.device, world.mesh)
    tokens = tokens_of(*[90] * 6, share=80)
    OTHERS[:] = [[2], [90, 90]]
    (plan,), rounds = in_rounds([range(6)], tokens, policy)
    assert policy.shares_prefixes
    assert len(plan) <= rounds[0] == 2
    index = torch.cat([batch.index for batch in plan])
    assert sorted(index.tolist()) == list(range(len(tokens.episodes)))


def test_one_rank_waits_for_nobody(tiny_model, world):
    policy = Policy.load(tiny_model, world, trainer=TrainerConfig(max_tokens_per_microbatch=100))
    (plan,), rounds = in_rounds([range(6)], tokens_of(*[30] * 6), policy)
    assert (len(plan), rounds, policy.fullest_tokens) == (2, [2], 0)
