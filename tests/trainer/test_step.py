"""One training batch: what must not matter, and what must hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arl_objectives.clamp import ClampCorrection
from arl_objectives.critic import Critic, ValueModel
from arl_objectives.keys.kl import KlConfig
from arl_objectives.keys.rewards import RewardConfig
from arl_objectives.reference import Reference
from arl_objectives.teachers import TeacherTerm
from trainer_samples import (
    VOCAB,
    make_items,
    make_row,
    make_shards,
    recipe,
    replaced,
    save_tiny_model,
    with_behavior,
)
from transformers import AutoModelForCausalLM

from agentgym_rl.algo import all_terms, episode_advantages, pack_rows
from agentgym_rl.config import (
    AlgoConfig,
    TrainerConfig,
    preset_names,
)
from agentgym_rl.core import BatchRow, BatchShard, Row, TrainerError
from agentgym_rl.trainer import Phases, Policy, Stepper, make_optimizer

SPLITS: dict[str, dict[str, Any]] = {
    "one row a micro-batch": {"max_tokens_per_microbatch": 24},
    "two or three micro-batches": {"max_tokens_per_microbatch": 80},
    "all packed": {"max_tokens_per_microbatch": 4096},
}


def make_stepper(
    model_dir,
    world,
    *,
    algo: AlgoConfig | None = None,
    dtype: torch.dtype = torch.float64,
    reference_dir: Path | None = None,
    teacher_dirs: Sequence[Path | None] = (),
    **trainer: Any,
) -> Stepper:
    config = TrainerConfig(**{"learning_rate": 1e-3, "num_minibatches": 2, **trainer})
    policy = Policy.load(model_dir, world, master_dtype=dtype, trainer=config)
    optimizer = make_optimizer(policy.model, config)
    reference = (
        Policy.load(reference_dir, world, master_dtype=dtype, frozen=True)
        if reference_dir
        else None
    )
    algo = algo or AlgoConfig(behavior_correction=ClampCorrection())
    teachers = [
        folder and Policy.load(folder, world, master_dtype=dtype, frozen=True, trainer=config)
        for folder in teacher_dirs
    ]
    terms = all_terms(algo)
    for term in terms:
        if isinstance(term, Reference) and reference is not None:
            term.use(reference, policy)
        if isinstance(term, TeacherTerm):
            term.use(teachers, policy)
        if isinstance(term, Critic):
            model = ValueModel.load(model_dir, world, master_dtype=dtype, trainer=config)
            term.use(model, config, num_steps=4)
    return Stepper(
        policy,
        optimizer,
        algo=algo,
        trainer=config,
        num_steps=4,
        seed=1,
        terms=terms,
    )


def weights_of(stepper: Stepper) -> torch.Tensor:
    return torch.cat([t.flatten() for t in stepper.policy.full_state().values()]).clone()


def gradient_of(stepper: Stepper, shard: BatchShard) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a batch of one minibatch: what the optimizer was handed."""
    seen: list[torch.Tensor] = []

    def look(optimizer, args, kwargs) -> None:
        grads = [p.grad for p in stepper.policy.model.parameters()]
        seen.append(torch.cat([g.flatten() for g in grads]).clone())

    handle = stepper.optimizer.register_step_pre_hook(look)
    metrics = stepper.train_shard(shard, Phases())
    handle.remove()
    assert len(seen) == 1
    return metrics["loss"], seen[0]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_micro_batches_do_not_matter(tiny_model, world, aggregation):
    algo = AlgoConfig(aggregation=aggregation, behavior_correction=ClampCorrection())
    (shard,) = make_shards(*make_items(), num_minibatches=1)
    found = [
        gradient_of(make_stepper(tiny_model, world, algo=algo, max_grad_norm=1e9, **split), shard)
        for split in SPLITS.values()
    ]
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-9)
        torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=1e-9)
    assert found[0][1].abs().max() > 1e-4


@pytest.mark.parametrize("name", preset_names())
def test_micro_batches_do_not_matter_to_any_preset(tiny_model, other_model, world, name):
    algo = recipe(name)
    (shard,) = make_shards(*make_items(), num_minibatches=1)
    found = [
        gradient_of(
            make_stepper(
                tiny_model,
                world,
                algo=algo,
                reference_dir=other_model if algo.kl.coef else None,
                max_grad_norm=1e9,
                **split,
            ),
            shard,
        )
        for split in SPLITS.values()
    ]
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-9)
        torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=1e-9)
    assert found[0][1].abs().max() > 1e-5


def reference_stepper(tiny_model, other_model, world, **kl) -> Stepper:
    algo = AlgoConfig(kl=KlConfig(**{"coef": 0.5, "reference": "initial", **kl}))
    return make_stepper(tiny_model, world, algo=algo, reference_dir=other_model, max_grad_norm=1e9)


def test_a_reference_pulls_without_any_reward(tiny_model, other_model, world):
    """Where no advantage is, the gradient is that of the KL term alone."""
    items, _, groups = make_items()
    (shard,) = make_shards(items, [1.0] * len(groups), groups, num_minibatches=1)
    stepper = reference_stepper(tiny_model, other_model, world)
    loss, gradient = gradient_of(stepper, shard)
    policy = make_stepper(tiny_model, world).policy
    reference = Policy.load(other_model, world, master_dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for item in items:
        x = policy.logprobs(pack_rows([item.row]))
        log_ratio = reference.logprobs(pack_rows([item.row])).detach() - x
        expected = expected + (log_ratio.exp() - log_ratio - 1).sum()
    expected = 0.5 * expected / shard.num_trained_tokens
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-9)
    grads = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    torch.testing.assert_close(gradient, grads, rtol=0, atol=1e-9)


def test_a_reference_as_a_reward_moves_advantages(tiny_model, other_model, world):
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, [1.0] * len(rewards), groups, num_minibatches=1)
    stepper = reference_stepper(tiny_model, other_model, world, placement="reward", estimator="k1")
    phases = Phases()
    before = weights_of(stepper)
    metrics = stepper.train_shard(shard, phases)
    assert metrics["policy/kl_reference"] != 0
    assert not torch.equal(weights_of(stepper), before)
    assert phases.seconds()["time/reference"] > 0


def test_the_passes_of_a_reference_count_too(tiny_model, other_model, world):
    """A trainer that is busy with the reference model is no silent one."""
    stepper = reference_stepper(tiny_model, other_model, world)
    stepper.train_shard(make_shards(*make_items())[0], Phases())
    assert stepper.flops > stepper.policy.flops > 0


def test_a_reference_that_is_the_policy_costs_nothing_at_first(tiny_model, world):
    stepper = reference_stepper(tiny_model, tiny_model, world)
    metrics = stepper.train_shard(make_shards(*make_items())[0], Phases())
    assert metrics["policy/kl_reference"] == pytest.approx(0, abs=1e-12)


def test_a_missing_or_foreign_reference_is_refused(tiny_model, world, tmp_path):
    with pytest.raises(TrainerError, match="Reference has no model"):
        make_stepper(tiny_model, world, algo=AlgoConfig(kl=KlConfig(coef=1, reference="initial")))
    foreign = save_tiny_model(tmp_path / "foreign", vocab=VOCAB + 1)
    with pytest.raises(TrainerError, match="41 tokens, the policy 40"):
        reference_stepper(tiny_model, foreign, world)


def test_an_entropy_bonus_has_the_gradient_of_the_entropy(tiny_model, world):
    """Where no advantage is, the gradient is that of the bonus alone; here by the plain model."""
    items, _, groups = make_items()
    (shard,) = make_shards(items, [1.0] * len(groups), groups, num_minibatches=1)
    algo = AlgoConfig(entropy_coef=0.3, aggregation="sequence")
    stepper = make_stepper(tiny_model, world, algo=algo, max_grad_norm=1e9)
    loss, gradient = gradient_of(stepper, shard)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    counts = np.bincount([it.episode for it in items], [it.row.num_trained for it in items])
    expected = torch.zeros((), dtype=torch.float64)
    for item in items:
        entropies = plain_entropies(plain, item.row)
        expected = expected - 0.3 * entropies.sum() / (counts[item.episode] * len(groups))
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-9)
    grads = [p.grad.flatten() for p in plain.parameters() if p.grad is not None]
    torch.testing.assert_close(gradient, torch.cat(grads), rtol=0, atol=1e-9)


def plain_entropies(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """[trained tokens], one row, all logits, plain transformers."""
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
    trained = torch.from_numpy(np.flatnonzero(row.loss_mask))
    heat = torch.from_numpy(row.temperatures)[trained]
    logits = model(tokens, use_cache=False).logits[0, trained - 1] / heat[:, None]
    return torch.distributions.Categorical(logits=logits).entropy()


def test_long_episodes_are_paid_less(tiny_model, world):
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, rewards, groups, num_minibatches=1)
    algo = AlgoConfig(reward=RewardConfig(overlong_penalty=1, overlong_limit=20))
    plain, penalized = (
        gradient_of(make_stepper(tiny_model, world, algo=a, max_grad_norm=1e9), shard)[1]
        for a in (AlgoConfig(), algo)
    )
    assert not torch.allclose(plain, penalized)


def test_the_gradient_is_that_of_the_formula(tiny_model, world):
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, rewards, groups, num_minibatches=1)
    stepper = make_stepper(tiny_model, world, max_grad_norm=1e9)
    _, gradient = gradient_of(stepper, shard)
    other = make_stepper(tiny_model, world).policy
    loss = torch.zeros((), dtype=torch.float64)
    advantages = episode_advantages(rewards, groups)
    for item in items:
        x = other.logprobs(pack_rows([item.row]))
        b = torch.from_numpy(item.row.behavior_logprobs[item.row.loss_mask]).double()
        w = (x.detach() - b).exp().clamp(max=5.0)
        if advantages[item.episode] < 0:  # the behavior clip
            w = torch.where(w < 0.8, 0.0, w)
        loss = loss - (w * advantages[item.episode] * (x - x.detach()).exp()).sum()
    (loss / shard.num_trained_tokens).backward()
    expected = [p.grad.flatten() for p in other.model.parameters()]
    torch.testing.assert_close(gradient, torch.cat(expected), rtol=0, atol=1e-9)


def test_a_weight_multiplies_what_its_episodes_contribute(tiny_model, world):
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, rewards, groups, num_minibatches=1)

    def gradient(in_g0: float, elsewhere: float) -> torch.Tensor:
        weights = [in_g0 if group == "g0" else elsewhere for group in groups]
        stepper = make_stepper(tiny_model, world, max_grad_norm=1e9)
        return gradient_of(stepper, replace(shard, weights=weights))[1]

    plain = gradient_of(make_stepper(tiny_model, world, max_grad_norm=1e9), shard)[1]
    assert torch.equal(gradient(1, 1), plain)
    torch.testing.assert_close(gradient(2, 2), 2 * plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(2, 1) - plain, gradient(1, 0), rtol=0, atol=1e-12)
    assert gradient(1, 0).abs().max() > 1e-4


def test_learning_rate_zero_leaves_every_bit(tiny_model, world):
    stepper = make_stepper(
        tiny_model, world, dtype=torch.float32, learning_rate=0.0, epochs=2, weight_decay=0.1
    )
    before = weights_of(stepper)
    for step in range(2):
        metrics = stepper.train_shard(make_shards(*make_items(step=step), step=step)[0], Phases())
    assert torch.equal(weights_of(stepper), before)
    assert metrics["grad_norm"] > 0
    assert metrics["lr"] == 0


def on_policy(stepper: Stepper, items: list[BatchRow]) -> list[BatchRow]:
    with torch.no_grad():
        return [
            BatchRow(
                with_behavior(it.row, stepper.policy.logprobs(pack_rows([it.row])).numpy()),
                it.episode,
            )
            for it in items
        ]


def test_on_policy_the_ratio_is_one_and_naive_equals_decoupled(tiny_model, world):
    items, rewards, groups = make_items()
    steppers = [
        make_stepper(tiny_model, world, algo=AlgoConfig(naive=naive)) for naive in (False, True)
    ]
    (shard,) = make_shards(on_policy(steppers[0], items), rewards, groups, num_minibatches=2)
    results = [stepper.train_shard(shard, Phases()) for stepper in steppers]
    for name, value in {
        "token_mult_prob_error": 1,
        "sampling_importance_ratio": 1,
        "max_abs": 0,
    }.items():
        assert results[0][f"mismatch/{name}"] == pytest.approx(value, abs=1e-6)
    assert results[0]["policy/behavior_weight_mean"] == pytest.approx(1, abs=1e-6)
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], abs=1e-6)
    torch.testing.assert_close(*map(weights_of, steppers), rtol=0, atol=1e-5)


def test_minibatches_and_epochs_are_optimizer_steps_at_the_batchs_rate(tiny_model, world):
    stepper = make_stepper(tiny_model, world, num_minibatches=3, epochs=2, schedule="linear")
    rates: list[float] = []
    stepper.optimizer.register_step_post_hook(
        lambda optimizer, args, kwargs: rates.append(optimizer.param_groups[0]["lr"])
    )
    for step in (0, 3):
        (shard,) = make_shards(*make_items(step=step), step=step, num_minibatches=3)
        stepper.train_shard(shard, Phases())
    assert rates == pytest.approx([1e-3] * 6 + [1e-4] * 6)


def test_a_batch_without_signal_takes_neither_a_pass_nor_a_step(tiny_model, world):
    stepper = make_stepper(tiny_model, world, weight_decay=0.1)
    items, rewards, groups = make_items()
    before, seen, phases = weights_of(stepper), [], Phases()
    (shard,) = make_shards(items, [1.0] * len(rewards), groups, num_minibatches=1)
    metrics = stepper.train_shard(shard, phases, on_tokens=lambda *found: seen.append(found))
    assert torch.equal(weights_of(stepper), before)
    nothing = ("loss", "grad_norm", "policy/clip_fraction", "policy/approx_kl")
    assert [metrics[name] for name in nothing] == [0, 0, 0, 0]
    assert metrics["policy/computed_share"] == 0
    assert stepper.policy.flops == 0
    assert not phases.intervals
    ((tokens, proximal, advantages),) = seen
    assert len(tokens.rows) == len(items)
    assert proximal.isnan().all()
    assert not advantages.any()


def test_rows_without_an_advantage_cost_nothing(tiny_model, world):
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, rewards, groups, num_minibatches=1)
    useful = [item for item in items if groups[item.episode] != "g1"]
    alone = replace(shard, minibatches=[useful])
    found = []
    for which in (shard, alone):
        stepper = make_stepper(tiny_model, world)
        metrics = stepper.train_shard(which, Phases())
        found.append((stepper.policy.flops, weights_of(stepper), metrics["policy/computed_share"]))
    assert found[0][0] == found[1][0] > 0
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] < found[1][2] == 1


@pytest.mark.parametrize("num_minibatches", [1, 3])
def test_the_first_minibatch_has_no_pass_for_proximal_logprobs(tiny_model, world, num_minibatches):
    """Its own are the same, so they are computed once."""
    seen, passes = [], []
    stepper = make_stepper(tiny_model, world, epochs=2)
    outputs = stepper.policy.outputs

    def count(packed):
        passes.append((torch.is_grad_enabled(), len(packed.targets)))
        return outputs(packed)

    stepper.policy.outputs = count
    (shard,) = make_shards(*make_items(), num_minibatches=num_minibatches)
    with torch.no_grad():
        first = make_stepper(tiny_model, world).policy
        expected = [first.logprobs(pack_rows([r.row])) for m in shard.minibatches for r in m]
    stepper.train_shard(shard, Phases(), on_tokens=lambda *found: seen.append(found))
    ((_, proximal, advantages),) = seen
    used = advantages != 0
    torch.testing.assert_close(proximal[used], torch.cat(expected)[used], rtol=0, atol=1e-9)
    by_gradient = {kind: sum(n for k, n in passes if k is kind) for kind in (False, True)}
    first_minibatch = sum(
        item.row.num_trained for item in shard.minibatches[0] if item.episode // 3 != 1
    )
    assert by_gradient[True] == 2 * used.sum()
    assert by_gradient[False] == used.sum() - first_minibatch


def test_episodes_and_minibatches_may_be_empty(tiny_model, world):
    row = make_row(np.random.default_rng(0), 9)
    untrained = replaced(row, loss_mask=np.zeros(9, np.bool_))
    items, rewards, groups = make_items()
    (shard,) = make_shards([*items, BatchRow(untrained, 0)], rewards, groups, num_minibatches=40)
    assert any(not part for part in shard.minibatches)
    metrics = make_stepper(tiny_model, world).train_shard(shard, Phases())
    assert all(np.isfinite(value) for value in metrics.values())
    empty = BatchShard(0, [], [], 0, 0, [[], []])
    assert make_stepper(tiny_model, world).train_shard(empty, Phases())["loss"] == 0


def test_staleness_and_versions_are_told_apart(tiny_model, world):
    items, rewards, groups = make_items(step=3)
    versions = items[0].row.policy_versions
    versions[np.flatnonzero(items[0].row.loss_mask)[-1]] = 3
    stepper = make_stepper(tiny_model, world, algo=AlgoConfig(entropy_coef=0.1))  # uses every row
    metrics = stepper.train_shard(make_shards(items, rewards, groups, step=3)[0], Phases())
    counts = {k: v for k, v in metrics.items() if k.startswith("mismatch/num_tokens/")}
    second_turn = items[0].row.turn_ids[items[0].row.loss_mask] == 1
    assert counts["mismatch/num_tokens/several_versions"] == second_turn.sum()
    assert sum(counts.values()) == sum(item.row.num_trained for item in items)
    assert set(counts) == {f"mismatch/num_tokens/{n}" for n in ("several_versions", "staleness_1")}


def test_shuffled_advantages_change_the_update(tiny_model, world):
    shards = make_shards(*make_items())
    plain, control = (
        make_stepper(tiny_model, world, algo=AlgoConfig(shuffle_advantages=shuffle))
        for shuffle in (False, True)
    )
    plain.train_shard(shards[0], Phases())
    control.train_shard(shards[0], Phases())
    assert not torch.equal(weights_of(plain), weights_of(control))


def test_phases_are_intervals_in_order(tiny_model, world):
    phases = Phases()
    make_stepper(tiny_model, world).train_shard(make_shards(*make_items())[0], phases)
    names = [name for name, _, _ in phases.intervals]
    assert names == ["proximal", *["forward_backward", "optimizer"] * 2]
    times = [t for _, start, end in phases.intervals for t in (start, end)]
    assert times == sorted(times)
    assert phases.seconds()["time/proximal"] > 0


def bad_shards() -> dict[str, tuple[BatchShard, str]]:
    items, rewards, groups = make_items(num_groups=2)
    row = items[0].row
    alien = replaced(row, tokens=np.full(len(row), VOCAB, np.int32))
    greedy = replaced(row, temperatures=np.zeros(len(row), np.float32))
    tuple_of = (rewards, groups)
    return {
        "token": (make_shards([BatchRow(alien, 0)], *tuple_of)[0], "the model has 0..39"),
        "temperature": (make_shards([BatchRow(greedy, 0)], *tuple_of)[0], "temperature 0"),
        "episode": (make_shards([BatchRow(row, 0)], *tuple_of)[0], "of episode 99"),
        "reward": (make_shards(items, [float("nan")] * 6, groups)[0], "not finite"),
        "long": (make_shards(items, *tuple_of)[0], "the budget is 16"),
    }


@pytest.mark.parametrize("name", ["token", "temperature", "episode", "reward", "long"])
def test_bad_batches_are_refused_with_a_reason(tiny_model, world, name):
    shard, reason = bad_shards()[name]
    if name == "episode":
        shard = BatchShard(0, [0.0], ["g"], 1, 1, [[BatchRow(shard.minibatches[0][0].row, 99)]])
    budget = 16 if name == "long" else 4096
    stepper = make_stepper(tiny_model, world, max_tokens_per_microbatch=budget)
    with pytest.raises(TrainerError, match=reason):
        stepper.train_shard(shard, Phases())


def test_a_gradient_that_is_not_finite_stops_before_the_weights(tiny_model, world):
    algo = AlgoConfig(scale="none", behavior_correction=ClampCorrection(), behavior_clip=1.0)
    stepper = make_stepper(tiny_model, world, algo=algo, dtype=torch.float32)
    before = weights_of(stepper)
    items, rewards, groups = make_items()
    rewards[4] = -1e300
    (shard,) = make_shards(items, rewards, groups)
    names = [f"g{i} of dice" for i in range(len(rewards))]
    with pytest.raises(TrainerError, match=r"gradient norm is .* of episode g4 of dice, whose"):
        stepper.train_shard(replace(shard, names=names), Phases())
    rewards[3] = rewards[4] = 1.7e308
    (shard,) = make_shards(items, rewards, groups)
    with pytest.raises(TrainerError, match=r"not finite: the largest .* of episode g[345] of dice"):
        stepper.train_shard(replace(shard, names=names), Phases())
    returns = [[0.0, 0.0]] * 7 + [[math.nan, 0.0]] + [[0.0, 0.0]] * 4
    bad = replace(shard, names=names, rewards=[0.0] * 12, turn_returns=returns)
    with pytest.raises(TrainerError, match="turn's return that is not finite: nan of episode g7"):
        stepper.train_shard(bad, Phases())
    assert torch.equal(weights_of(stepper), before)
