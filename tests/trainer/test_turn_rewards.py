"""Rewards of single turns: from the log to the gradient, they reach the tokens they are for."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from test_step import gradient_of, make_stepper
from trainer_samples import VOCAB, make_items, make_row, make_shards

from agentgym_rl.algo import Tally
from agentgym_rl.config import AlgoConfig
from agentgym_rl.controller import split_batch
from agentgym_rl.core import Credit, Group, Outcome, Task, TrainerError, Trajectory
from agentgym_rl.core.credit import NO_CREDIT
from agentgym_rl.storage import EpisodeLog
from agentgym_rl.trainer import Phases, ShardTokens
from agentgym_rl.trainer.objective import all_advantages, rank_batch


def _advantages(stepper, shard):
    """[N] with the episode and the turn of each trained token."""
    tokens = ShardTokens.from_shard(shard, vocab_size=VOCAB)
    turns = [turn for row in tokens.rows for turn in row.turn_ids[row.loss_mask].tolist()]
    algo, world = stepper._algo, stepper.policy.world
    how = {"seed": 0, "phases": Phases(), "tally": Tally(), "terms": stepper.terms}
    batch = rank_batch(*(algo, shard, tokens), world=world, **how)
    found = all_advantages(algo, batch, stepper.terms, world=world)
    return found, tokens.episodes.tolist(), turns


def _logged(tmp_path, credit):
    """A group of two episodes of two turns each, the first one paid `credit`, out of the log."""
    members = [
        Trajectory(
            episode_id=f"g-{number}",
            group_id="g",
            task_id="t",
            outcome=Outcome.COMPLETED,
            reward=float(number),
            rows=[make_row(np.random.default_rng(number), 16)],
            num_turns=2,
            credit=NO_CREDIT if number else credit,
        )
        for number in range(2)
    ]
    with closing(EpisodeLog(tmp_path / "episodes.db")) as log:
        asyncio.run(log.add_group(Task("t", 1), 0, Group("g", "t", members)))
        return Group("g", "t", log.trajectories())


def _shard(group, **options):
    (shard,) = split_batch([group], step=0, num_ranks=1, num_minibatches=1, **options)
    return type(shard).unpack(shard.pack())


FIRST = Credit(parents=[-1, 0], lineages=[0, 0], turn_rewards=[0.5, 0.0], lineage_rewards=[0.0])
LAST = replace(FIRST, turn_rewards=[0.0, 0.5])
SIDE = Credit(parents=[-1, -1], lineages=[0, 1], turn_rewards=[0, 0], lineage_rewards=[0, -2])


@pytest.mark.parametrize(
    ("credit", "paid"),
    [(FIRST, {0: 0.5}), (LAST, {0: 0.25, 1: 0.5}), (SIDE, {1: -2.0})],
    ids=["first turn", "last turn", "side lineage"],
)
def test_a_turns_reward_changes_its_tokens_and_those_before_it(
    tiny_model, world, tmp_path, credit, paid
):
    stepper, group = make_stepper(tiny_model, world), _logged(tmp_path, credit)
    found, episodes, turns = _advantages(stepper, _shard(group, turn_discount=0.5))
    members = [replace(member, credit=NO_CREDIT) for member in group.members]
    plain, *_ = _advantages(stepper, _shard(replace(group, members=members)))
    expected = [
        paid.get(turn, 0.0) if episode == 0 else 0.0
        for episode, turn in zip(episodes, turns, strict=True)
    ]
    assert (found - plain).tolist() == pytest.approx(expected)
    assert {*turns} == {0, 1}


def test_the_gradient_is_that_of_both_parts(tiny_model, world):
    items, rewards, groups = make_items()
    (plain,) = make_shards(items, rewards, groups, num_minibatches=1)
    returns = [[0.3 * episode, -0.2] if episode % 3 else [] for episode in range(len(rewards))]
    equal = [1.0] * len(rewards)

    def gradient(shard):
        stepper = make_stepper(tiny_model, world, algo=algo, max_grad_norm=1e9)
        return gradient_of(stepper, shard)[1]

    algo = AlgoConfig(behavior_clip=1.0)  # that clip looks at the sign of the sum
    both = gradient(replace(plain, turn_returns=returns))
    turns = gradient(replace(plain, rewards=equal, turn_returns=returns))
    torch.testing.assert_close(both, gradient(plain) + turns, rtol=0, atol=1e-6)
    assert turns.abs().max() > 1e-4


def test_a_weight_multiplies_turn_rewards_too(tiny_model, world, tmp_path):
    stepper, shard = make_stepper(tiny_model, world), _shard(_logged(tmp_path, LAST))
    once, *_ = _advantages(stepper, shard)
    twice, *_ = _advantages(stepper, replace(shard, weights=[2.0, 2.0]))
    torch.testing.assert_close(twice, 2 * once)


def test_the_negative_control_knows_no_turn_rewards(tiny_model, world, tmp_path):
    stepper = make_stepper(tiny_model, world, algo=AlgoConfig(shuffle_advantages=True))
    shard = _shard(_logged(tmp_path, LAST))
    found, *_ = _advantages(stepper, shard)
    plain, *_ = _advantages(stepper, replace(shard, turn_returns=()))
    assert torch.equal(found, plain)


def test_trajectories_of_before_turns_were_paid_can_be_read(tmp_path):
    member = _logged(tmp_path, LAST).members[0]
    old = msgspec.msgpack.decode(member.pack())
    del old["credit"], old["rows"][0]["lineage"]
    found = Trajectory.unpack(msgspec.msgpack.encode(old))
    assert (found.credit, found.rows[0].lineage) == (NO_CREDIT, 0)
    assert found.rows[0].tokens.tolist() == member.rows[0].tokens.tolist()


BAD = {
    "too few turns": ([[0.5], []], "has turn 1, its episode 1 turns"),
    "too few episodes": ([[0.5, 0.5]], "2 rewards but turns of 1 episodes"),
    "not a number": ([[float("inf"), 0.0], []], "not finite"),
}


@pytest.mark.parametrize(("returns", "reason"), BAD.values(), ids=BAD)
def test_returns_that_contradict_the_batch_are_refused(
    tiny_model, world, tmp_path, returns, reason
):
    shard = replace(_shard(_logged(tmp_path, LAST)), turn_returns=returns)
    with pytest.raises(TrainerError, match=reason):
        make_stepper(tiny_model, world).train_shard(shard, Phases())
