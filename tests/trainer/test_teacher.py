"""Distillation on the policy's own tokens: from models in folders, alone or beside rewards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from arl_objectives.clamp import ClampCorrection
from test_choices import _set
from test_step import SPLITS, gradient_of, make_stepper, weights_of
from trainer_samples import (
    VOCAB,
    make_items,
    make_row,
    make_shards,
    make_tree,
    replaced,
    save_tiny_model,
    wide_norm,
)
from transformers import AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import BatchRow, BatchShard, Choices, Row, TrainerError
from agentgym_rl.core.token_records import ALL, TeacherLogprobs
from agentgym_rl.trainer import Phases, Policy, Stepper

WIDE = {"max_grad_norm": 1e9}
ALONE: dict[str, Any] = {"reward_coef": 0}


def algo_of(*, loss: str = "ppo", models: int = 1, **teacher: Any) -> AlgoConfig:
    given = {"models": ["m"] * models, **teacher}
    return AlgoConfig.model_validate(
        {"loss": loss, "teacher": given, "behavior_correction": {"type": "clamp", "cap": 1e9}}
    )


def taught_shard(weights: list[list[float]] | None = None, **how: Any) -> BatchShard:
    items, rewards, groups = make_items()
    (shard,) = make_shards(items, rewards, groups, **{"num_minibatches": 1, **how})
    return replace(shard, of_tasks={"teacher": weights or [[1.0]] * len(rewards)})


@pytest.mark.parametrize(
    "how",
    [{}, {"horizon": "row"}, {"placement": "loss"}, {"placement": "loss", "top_k": 6}],
    ids=["token", "row", "loss", "top"],
)
def test_micro_batches_do_not_matter(tiny_model, other_model, world, how):
    algo, shard = algo_of(coef=0.3, **how), taught_shard()
    found = [
        gradient_of(
            make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model], **WIDE, **split),
            shard,
        )
        for split in [*SPLITS.values(), {"head_chunk_tokens": 5}]
    ]
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-9)
        torch.testing.assert_close(gradient, found[0][1], rtol=0, atol=1e-9)
    assert found[0][1].abs().max() > 1e-4


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("allowed", [tuple(range(VOCAB)), (3, 5, 8, 13, 21)], ids=["all", "some"])
@pytest.mark.parametrize(
    "algo",
    [
        algo_of(loss="reinforce", **ALONE),
        algo_of(placement="loss", **ALONE),
        algo_of(placement="loss", top_k=VOCAB + 9, **ALONE),
    ],
    ids=["reward", "loss", "all"],
)
def test_the_mean_gradient_is_that_of_the_reverse_kl(
    tiny_model, other_model, world, algo, allowed, temperature
):
    """Every token that could follow a prompt, drawn once by a uniform policy: with behavior weights
    the sum is the gradient of the KL, among the tokens that a grammar allows, if there is one."""
    rows = [one_token_row(token, allowed, temperature) for token in allowed]
    items = [BatchRow(row, episode) for episode, row in enumerate(rows)]
    groups = [f"g{n}" for n in range(len(items))]  # groups of one
    (shard,) = make_shards(items, [0.0] * len(items), groups, num_minibatches=1)
    shard = replace(shard, of_tasks={"teacher": [[1.0]] * len(items)})
    stepper = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model], **WIDE)
    _, gradient = gradient_of(stepper, shard)
    policy, teacher = (
        Policy.load(folder, world, master_dtype=torch.float64)
        for folder in (tiny_model, other_model)
    )
    x, t = (
        torch.cat([model.logprobs(pack_rows([row])) for row in rows]) for model in (policy, teacher)
    )
    assert x.exp().sum().item() == pytest.approx(1)
    (x.exp() * (x - t.detach())).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    # Behavior log-probs are recorded in float32.
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-2


def one_token_row(token: int, allowed: tuple[int, ...], temperature: float):
    row = make_row(np.random.default_rng(0), 9, temperature=temperature)
    trained = np.arange(9) == 8
    behavior = np.where(trained, -np.log(len(allowed)), 0).astype(np.float32)
    tokens = np.where(trained, token, np.arange(9)).astype(np.int32)
    heat = np.where(trained, temperature, 0).astype(np.float32)
    row = replaced(
        *(row,), tokens=tokens, loss_mask=trained, behavior_logprobs=behavior, temperatures=heat
    )
    if len(allowed) == VOCAB:
        return row
    return replace(
        row, choices=Choices(np.where(trained, 0, ALL).astype(np.int32), [_set(allowed)])
    )


def test_the_likeliest_tokens_teach_what_a_grammar_of_them_would(tiny_model, other_model, world):
    """Among K of a teacher's tokens and any other, written down from the logits of both models."""
    stepper = make_stepper(
        tiny_model,
        world,
        algo=algo_of(placement="loss", top_k=4, coef=0.3, **ALONE),
        teacher_dirs=[other_model],
        **WIDE,
    )
    shard = taught_shard()
    loss, gradient = gradient_of(stepper, shard)
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        for folder in (tiny_model, other_model)
    ]
    total = torch.zeros((), dtype=torch.float64)
    for item in shard.minibatches[0]:
        p, q = (plain_probs(model, item.row) for model in models)
        top = q.detach().topk(4).indices
        p, q = (
            torch.cat([of.gather(1, top), 1 - of.gather(1, top).sum(1, True)], 1) for of in (p, q)
        )
        total = total + (p * (p.log() - q.detach().log())).sum()
    expected = 0.3 * total / shard.num_trained_tokens
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-7)
    grads = [p.grad.flatten() for p in models[0].parameters() if p.grad is not None]
    torch.testing.assert_close(gradient, torch.cat(grads), rtol=0, atol=1e-7)
    assert gradient.abs().max() > 1e-3


def plain_probs(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """[trained tokens, vocabulary], one row, plain transformers."""
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
    trained = torch.from_numpy(np.flatnonzero(row.loss_mask))
    heat = torch.from_numpy(row.temperatures)[trained]
    logits = model(tokens, use_cache=False).logits[0, trained - 1]
    return torch.softmax(logits / heat[:, None], -1)


def test_tokens_that_rows_share_have_the_same_likeliest_ones(tiny_model, other_model, world):
    """A tree of rows and rows one by one: the same loss, with the entropy bonus beside it."""
    algo = algo_of(placement="loss", top_k=5, **ALONE).model_copy(update={"entropy_coef": 0.1})
    items, rewards, groups = make_tree(0)
    (shard,) = make_shards(items, rewards, groups, num_minibatches=1)
    shard = replace(shard, of_tasks={"teacher": [[1.0]] * len(rewards)})
    found = []
    with mock.patch.object(Qwen3RMSNorm, "forward", wide_norm):
        for shares in (True, False):
            stepper = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model], **WIDE)
            for model in stepper._models:
                model.shares_prefixes = shares
            found.append(gradient_of(stepper, shard))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-9)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=1e-9)


def test_a_teacher_that_is_the_policy_teaches_nothing(tiny_model, world):
    algo = algo_of(**ALONE)
    stepper = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[tiny_model])
    metrics = stepper.train_shard(taught_shard(), Phases())
    assert metrics["teacher/kl"] == pytest.approx(0, abs=1e-12)
    assert metrics["grad_norm"] == pytest.approx(0, abs=1e-9)
    assert metrics["teacher/taught"] == 1


def test_rewards_count_as_much_as_they_are_told_to(tiny_model, other_model, world):
    """The update is linear in advantages: rewards alone, the teacher alone, and both."""

    def gradient(**teacher: Any) -> torch.Tensor:
        algo = algo_of(loss="reinforce", **teacher)
        stepper = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model], **WIDE)
        return gradient_of(stepper, taught_shard())[1]

    plain = AlgoConfig(loss="reinforce", behavior_correction=ClampCorrection(cap=1e9))
    (shard,) = make_shards(*make_items(), num_minibatches=1)
    rewards = gradient_of(make_stepper(tiny_model, world, algo=plain, **WIDE), shard)[1]
    alone = gradient(reward_coef=0)
    # Norms compute in float32, and rewards alone leave out a group: other packs.
    torch.testing.assert_close(gradient(), rewards + alone, rtol=0, atol=1e-5)
    both = gradient(reward_coef=0.5, coef=2)
    torch.testing.assert_close(both, 0.5 * rewards + 2 * alone, rtol=0, atol=1e-5)
    assert min(rewards.abs().max(), alone.abs().max()) > 1e-3


@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_each_task_has_its_teachers(tiny_model, other_model, world, tmp_path, placement):
    """A teacher of weight 0 computes nothing, and a row without a teacher takes no pass."""
    third = save_tiny_model(tmp_path, seed=2)
    algo, groups = algo_of(models=2, placement=placement, **ALONE), make_items()[2]
    weights = {"g0": [1.0, 0.0], "g1": [0.0, 3.0], "g2": [0.0, 0.0], "g3": [0.0, 0.0]}
    stepper = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model, third], **WIDE)
    shard = taught_shard([weights[group] for group in groups])
    metrics = stepper.train_shard(shard, Phases())
    of = [
        sum(it.row.num_trained for it in shard.minibatches[0] if groups[it.episode] == name)
        for name in ("g0", "g1")
    ]
    assert metrics["teacher/taught"] == pytest.approx(sum(of) / shard.num_trained_tokens)
    (term,) = stepper.model_terms
    first, second = term.models
    assert first is not None
    assert second is not None
    lengths = {
        name: sum(len(it.row) for it in shard.minibatches[0] if groups[it.episode] == name)
        for name in weights
    }
    assert (first.row_tokens, second.row_tokens) == (lengths["g0"], lengths["g1"])
    if placement == "loss":
        assert stepper.policy.row_tokens == lengths["g0"] + lengths["g1"]


def test_a_loss_term_teaches_more_than_one_minibatch(tiny_model, other_model, world):
    algo = algo_of(placement="loss", **ALONE)
    how = {"num_minibatches": 2, "epochs": 2, "learning_rate": 1e-3}
    stepper = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model], **how)
    before, found = weights_of(stepper), []
    for _ in range(8):
        found.append(stepper.train_shard(taught_shard(num_minibatches=2), Phases())["teacher/kl"])
    assert not torch.equal(weights_of(stepper), before)
    assert stepper.flops > stepper.policy.flops


@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_what_a_server_told_counts_like_a_folder(tiny_model, other_model, world, placement):
    algo = algo_of(placement=placement, **ALONE)
    here = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[other_model], **WIDE)
    shard = taught_shard()
    expected = gradient_of(here, shard)[1]
    teacher = Policy.load(other_model, world, master_dtype=torch.float64)
    items = [
        BatchRow(replace(it.row, teacher_logprobs=told_by(teacher, it.row)), it.episode)
        for it in shard.minibatches[0]
    ]
    served = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[None], **WIDE)
    found = gradient_of(served, replace(shard, minibatches=[items]))[1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3
    silent = make_stepper(tiny_model, world, algo=algo, teacher_dirs=[None], **WIDE)
    metrics = silent.train_shard(shard, Phases())
    assert (metrics["teacher/taught"], metrics["grad_norm"]) == (0, 0)
    weights = {"teacher": [[1.0, 1.0]] * len(shard.rewards)}
    others = replace(shard, minibatches=[items], of_tasks=weights)
    with pytest.raises(TrainerError, match="rows of other teachers than the batch's 2"):
        silent.train_shard(others, Phases())


def told_by(teacher: Policy, row: Row) -> TeacherLogprobs:
    found = np.full((len(row), 1), np.nan, np.float32)
    found[row.loss_mask, 0] = teacher.logprobs(pack_rows([row])).detach().numpy()
    return TeacherLogprobs(found)


def test_a_missing_or_smaller_teacher_is_refused(tiny_model, world, tmp_path):
    with pytest.raises(TrainerError, match="has 1 teachers, and 0 were given"):
        make_stepper(tiny_model, world, algo=algo_of())
    small = save_tiny_model(tmp_path, vocab=VOCAB - 20)
    stepper: Stepper = make_stepper(tiny_model, world, algo=algo_of(), teacher_dirs=[small])
    with pytest.raises(TrainerError, match="a teacher has 0 to 19"):
        stepper.train_shard(taught_shard(), Phases())


def test_a_teacher_may_have_a_larger_vocabulary(tiny_model, world, tmp_path):
    """Models of one tokenizer pad their embeddings differently."""
    large = save_tiny_model(tmp_path, vocab=VOCAB + 24)
    for how in ({}, {"placement": "loss", "top_k": VOCAB + 24}):
        stepper = make_stepper(tiny_model, world, algo=algo_of(**how), teacher_dirs=[large])
        assert stepper.train_shard(taught_shard(), Phases())["teacher/taught"] == 1
