"""The critic as part of a training batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from arl_objectives.critic import Critic
from arl_objectives.keys.critic import CriticConfig
from arl_objectives.keys.kl import KlConfig
from test_step import SPLITS, make_stepper, weights_of
from trainer_samples import make_items, make_shards, replaced, reproducible, save_checkpoint

from agentgym_rl.algo import Tally
from agentgym_rl.config import AlgoConfig, load_config
from agentgym_rl.core import Row, TrainerError
from agentgym_rl.trainer import Phases, ShardTokens, Stepper
from agentgym_rl.trainer.checkpoint import load_checkpoint

ROW_ARRAYS = (
    *("tokens", "loss_mask", "behavior_logprobs", "policy_versions", "admitted_versions"),
    *("temperatures", "turn_ids", "times_s"),
)
ALGO = AlgoConfig(
    baseline="critic", scale="none", critic=CriticConfig(gae_lambda=0.9, value_clip=0.2)
)


def critic_stepper(tiny_model, world, algo: AlgoConfig = ALGO, **options: Any) -> Stepper:
    return make_stepper(tiny_model, world, algo=algo, **options)


def critic_of(stepper: Stepper) -> Critic:
    (critic,) = [term for term in stepper.terms if isinstance(term, Critic)]
    return critic


def critic_weights(stepper: Stepper) -> torch.Tensor:
    state = critic_of(stepper).value_model.full_state()
    return torch.cat([t.flatten() for t in state.values()]).clone()


def train(stepper: Stepper, num_steps: int = 2) -> list[dict[str, float]]:
    return [
        reproducible(
            stepper.train_shard(make_shards(*make_items(step=step), step=step)[0], Phases())
        )
        for step in range(num_steps)
    ]


@pytest.mark.slow
def test_micro_batches_do_not_matter_to_a_critic(tiny_model, world):
    """Two steps: in the second, values are no longer zero and advantages hang on them."""
    found = []
    for split in SPLITS.values():
        stepper = critic_stepper(tiny_model, world, **split)
        metrics = train(stepper)
        found.append((metrics, weights_of(stepper), critic_weights(stepper)))
    for metrics, policy, critic in found[1:]:
        for mine, theirs in zip(metrics, found[0][0], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-9)
        torch.testing.assert_close(policy, found[0][1], rtol=0, atol=1e-9)
        torch.testing.assert_close(critic, found[0][2], rtol=0, atol=1e-9)
    assert found[0][0][1]["critic/value_mean"] != 0


@pytest.mark.slow
def test_a_critic_learns_what_comes_of_tokens(tiny_model, world):
    stepper = critic_stepper(
        tiny_model,
        world,
        ALGO.model_copy(update={"critic": CriticConfig()}),
        learning_rate=0.0,
        critic_learning_rate=1e-2,
        schedule="constant",
        epochs=4,
    )
    (shard,) = make_shards(*make_items())
    before = weights_of(stepper)
    metrics = [stepper.train_shard(shard, Phases()) for _ in range(4)]
    assert torch.equal(weights_of(stepper), before)
    assert metrics[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-9)
    assert metrics[-1]["critic/explained_variance"] > 0.5
    assert metrics[-1]["critic/value_loss"] < 0.5 * metrics[0]["critic/value_loss"]


def test_a_critic_learns_where_groups_say_nothing(tiny_model, world):
    """Equal rewards in every group: relative advantages are zero, these are not."""
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, [1.0] * len(rewards), groups)
    stepper = critic_stepper(tiny_model, world)
    assert stepper.train_shard(shard, Phases())["grad_norm"] > 0


def test_a_warm_up_teaches_the_critic_alone(tiny_model, world):
    algo = ALGO.model_copy(update={"critic": CriticConfig(warmup_steps=1)})
    stepper = critic_stepper(tiny_model, world, algo)
    policy, critic = weights_of(stepper), critic_weights(stepper)
    train(stepper, 1)
    assert torch.equal(weights_of(stepper), policy)
    assert not torch.equal(critic_weights(stepper), critic)
    train(stepper, 2)
    assert not torch.equal(weights_of(stepper), policy)


def test_batch_std_gives_advantages_of_mean_zero_and_deviation_one(tiny_model, world):
    stepper = critic_stepper(tiny_model, world, ALGO.model_copy(update={"scale": "batch_std"}))
    (shard,) = make_shards(*make_items())
    seen: list[torch.Tensor] = []
    stepper.train_shard(
        shard, Phases(), on_tokens=lambda tokens, proximal, found: seen.append(found)
    )
    (advantages,) = seen
    assert (advantages.mean().item(), advantages.std().item()) == pytest.approx((0, 1), abs=1e-5)


def test_a_penalty_of_each_token_is_part_of_its_return(tiny_model, other_model, world):
    kl = KlConfig(coef=0.5, estimator="k1", placement="reward", reference="initial")
    (shard,) = make_shards(*make_items())
    plain = critic_stepper(tiny_model, world).train_shard(shard, Phases())
    paying = critic_stepper(
        tiny_model, world, ALGO.model_copy(update={"kl": kl}), reference_dir=other_model
    ).train_shard(shard, Phases())
    assert paying["critic/return_mean"] != pytest.approx(plain["critic/return_mean"])


def test_the_future_of_a_truncated_episode_is_worth_its_last_value(tiny_model, world):
    """With a critic that has learned, of two truncated episodes; without, nothing changes."""
    (shard,) = make_shards(*make_items())
    stepper = critic_stepper(tiny_model, world, critic_learning_rate=1e-2)
    stepper.train_shard(shard, Phases())
    critic = critic_of(stepper)
    tokens = ShardTokens.from_shard(shard, vocab_size=stepper.policy.vocab_size)
    rewards = torch.zeros(len(tokens.episodes), dtype=torch.float64)
    critic.config = CriticConfig(bootstrap_truncated=True, return_lambda=1.0, gae_lambda=0.0)
    found = critic.judge(tokens, rewards, Tally(), truncated=shard.truncated)
    lasts = torch.tensor(tokens.starts[1:]) - 1
    after = found.returns[lasts]
    cut = torch.tensor(shard.truncated)[tokens.episodes[lasts]]
    assert cut.any()
    assert torch.equal(after[~cut], torch.zeros(int((~cut).sum())).double())
    assert (after[cut] != 0).all()
    for r in torch.nonzero(cut)[:, 0].tolist():  # what follows does not matter to it
        row = tokens.rows[r]
        length = int(np.flatnonzero(row.loss_mask)[-1]) + 1
        arrays = {name: getattr(row, name)[:length] for name in ROW_ARRAYS}
        longer = Row(**{name: np.append(of, of[-1:]) for name, of in arrays.items()})
        longer = replaced(longer, loss_mask=np.arange(length + 1) == length)
        (packed,) = [pack for _, pack in critic.value_model.micro_batches([longer])]
        value = critic.value_model.values(packed).item()
        assert value == pytest.approx(after[r].item(), abs=1e-9)
    with pytest.raises(TrainerError, match="has no truncations"):
        critic.judge(tokens, rewards, Tally())


def test_turn_rewards_and_weights_of_tasks_reach_the_policy(tiny_model, world):
    (plain,) = make_shards(*make_items())
    count = len(plain.rewards)
    changed = (
        plain,
        replace(plain, turn_returns=[[0.5, -0.5]] * count),
        replace(plain, weights=[2.0 if episode % 2 else 1.0 for episode in range(count)]),
    )
    found = []
    for shard in changed:
        stepper = critic_stepper(tiny_model, world)
        stepper.train_shard(shard, Phases())
        found.append((weights_of(stepper), critic_weights(stepper)))
    assert not torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][0], found[2][0])
    assert all(torch.equal(found[0][1], critic) for _, critic in found[1:])


@pytest.mark.slow
def test_a_checkpoint_has_the_critic(tiny_model, world, tmp_path):
    straight, resumed = critic_stepper(tiny_model, world), critic_stepper(tiny_model, world)
    train(straight, 1)
    path = save_checkpoint(
        tmp_path,
        straight.policy,
        straight.optimizer,
        step=1,
        config_hash="h",
        keep=1,
        terms=straight.model_terms,
    )
    load_checkpoint(path, resumed.policy, resumed.optimizer, terms=resumed.model_terms)
    assert torch.equal(critic_weights(resumed), critic_weights(straight))
    (shard,) = make_shards(*make_items(step=1), step=1)
    found, expected = (reproducible(it.train_shard(shard, Phases())) for it in (resumed, straight))
    assert found == expected
    assert torch.equal(critic_weights(resumed), critic_weights(straight))


def test_an_empty_batch_is_no_trouble(tiny_model, world):
    (shard,) = make_shards(*make_items(), num_minibatches=40)
    assert any(not part for part in shard.minibatches)
    critic_stepper(tiny_model, world).train_shard(shard, Phases())
    empty = replace(shard, rewards=[], group_ids=[], lengths=[], minibatches=[[], []])
    assert critic_stepper(tiny_model, world).train_shard(empty, Phases())["loss"] == 0


def test_a_critic_without_a_model_is_refused(tiny_model, world):
    stepper = critic_stepper(tiny_model, world)
    how: dict[str, Any] = {"trainer": stepper._trainer, "num_steps": 1, "seed": 1}
    with pytest.raises(TrainerError, match="Critic has no model"):
        Stepper(stepper.policy, stepper.optimizer, algo=ALGO, **how)


def test_the_preset_is_a_critic():
    algo = load_config(None, {"preset": "ppo-critic"}).algo
    assert (algo.baseline, algo.scale, algo.critic.value_clip) == ("critic", "batch_std", 0.2)
