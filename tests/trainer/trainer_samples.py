"""Small random models and batches for the trainer's tests (imported by a child process too)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM, Zamba2Config

from agentgym_rl.algo import PackedRows
from agentgym_rl.config import AlgoConfig, load_config
from agentgym_rl.core import NOT_SAMPLED, BatchRow, BatchShard, Row
from agentgym_rl.storage import Retention
from agentgym_rl.trainer import ModelTerm, Policy
from agentgym_rl.trainer.checkpoint import Checkpoints

VOCAB = 40


def save_tiny_model(folder: Path, *, tied: bool = True, seed: int = 0, vocab: int = VOCAB) -> Path:
    """A random Qwen3 of two layers, large enough in scale for its log-probs to differ."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def save_recurrent_model(folder: Path) -> Path:
    """A random Zamba 2: rows cannot be packed, and two of its blocks share their parameters."""
    torch.manual_seed(0)
    config = Zamba2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=4,
        layers_block_type=["mamba", "hybrid"] * 2,
        num_mem_blocks=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=48,
        n_mamba_heads=8,
        mamba_d_state=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def make_row(
    rng: np.random.Generator,
    length: int,
    *,
    version: int = 0,
    temperature: float | None = None,
    vocab: int = VOCAB,
) -> Row:
    """A row of two sampled turns; behavior log-probs are plausible, not the model's."""
    sampled = np.zeros(length, np.bool_)
    sampled[length // 4 : length // 2] = sampled[3 * length // 4 :] = True
    heat = rng.choice([0.7, 1.0, 1.3]) if temperature is None else temperature
    turns = np.where(np.arange(length) < 3 * length // 4, 0, 1)
    return Row(
        tokens=rng.integers(0, vocab, length).astype(np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.where(sampled, -rng.uniform(2, 5, length), 0).astype(np.float32),
        policy_versions=np.where(sampled, version, NOT_SAMPLED).astype(np.int32),
        admitted_versions=np.where(sampled, version, NOT_SAMPLED).astype(np.int32),
        temperatures=np.where(sampled, heat, 0).astype(np.float32),
        turn_ids=np.where(sampled, turns, -1).astype(np.int32),
        times_s=np.zeros(length),
    )


def replaced(row: Row, **changes: np.ndarray) -> Row:
    """The row with other arrays."""
    return replace(row, **changes)


def with_behavior(row: Row, logprobs: np.ndarray) -> Row:
    """The row with other behavior log-probs of its trained tokens."""
    behavior = np.zeros(len(row), np.float32)
    behavior[row.loss_mask] = logprobs
    return replaced(row, behavior_logprobs=behavior)


def plain_logprobs(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """[trained tokens] the unpacked, unsharded way: one row, all logits, plain transformers."""
    tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
    logits = model(tokens, use_cache=False).logits[0, :-1]
    heat = torch.from_numpy(np.where(row.loss_mask, row.temperatures, 1).astype(np.float32))[1:]
    logprobs = torch.log_softmax(logits / heat[:, None], -1)
    chosen = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
    return chosen[torch.from_numpy(row.loss_mask)[1:]]


def make_items(
    num_groups: int = 4, group_size: int = 3, *, step: int = 0, seed: int = 0
) -> tuple[list[BatchRow], list[float], list[str]]:
    """Rows (some episodes have two), rewards and group ids of a batch; group 1 has no spread."""
    rng = np.random.default_rng([seed, step])
    items: list[BatchRow] = []
    rewards: list[float] = []
    groups: list[str] = []
    for group in range(num_groups):
        for _ in range(group_size):
            episode = len(rewards)
            for _ in range(1 + episode % 2):
                length = int(rng.integers(8, 24))
                items.append(BatchRow(make_row(rng, length, version=max(0, step - 1)), episode))
            rewards.append(1.0 if group == 1 else float(rng.integers(0, 2)))
            groups.append(f"g{group}")
        if group != 1:
            rewards[-1] = 1.0 - rewards[-2]
    return items, rewards, groups


def recipe(name: str) -> AlgoConfig:
    """The objective of a preset, without the batches that train only its critic."""
    algo = load_config(None, {"preset": name, "steps": 99}).algo
    at_once = algo.critic.model_copy(update={"warmup_steps": 0})
    return algo.model_copy(update={"critic": at_once})


def wide_norm(norm: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """The forward of Qwen3's norms, in the model's dtype: transformers rounds to float32 there, and
    the rounded gradient of a shared token is not the sum of those rounded row by row."""
    spread = hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon
    return norm.weight * hidden * torch.rsqrt(spread)


def make_tree(step: int, *, num_groups: int = 3) -> tuple[list[BatchRow], list[float], list[str]]:
    """A batch like `make_items` whose rows have beginnings in common: all a system prompt, groups a
    question, two episodes of each group their whole row, and some episodes an earlier row."""
    rng = np.random.default_rng([7, step])
    system, items, rewards, groups = rng.integers(0, VOCAB, 18), [], [], []
    for group in range(num_groups):
        question, answer = rng.integers(0, VOCAB, 6), rng.integers(0, VOCAB, 30)
        for member in range(4):
            own = answer if member < 2 else rng.integers(0, VOCAB, 30)
            tokens = np.concatenate((system, question, own)).astype(np.int32)
            row = make_row(rng, len(tokens), version=max(0, step - 1), temperature=1.0)
            row = replaced(row, tokens=tokens)
            parts = [row]
            if member == 3:  # an agent that asked twice
                parts = [row.head(40), replaced(row, loss_mask=row.loss_mask & (row.turn_ids > 0))]
            items += [BatchRow(part, len(rewards)) for part in parts]
            rewards.append(float(member % 2))
            groups.append(f"g{group}")
    return items, rewards, groups


def make_shards(
    items: list[BatchRow],
    rewards: list[float],
    groups: list[str],
    *,
    step: int = 0,
    num_minibatches: int = 2,
    num_ranks: int = 1,
) -> list[BatchShard]:
    """Minibatch of an episode: its index modulo their number; ranks take turns in each of them, so
    groups are on several ranks."""
    parts: list[list[list[BatchRow]]] = [
        [[] for _ in range(num_minibatches)] for _ in range(num_ranks)
    ]
    for item in items:
        rank = item.episode // num_minibatches % num_ranks
        parts[rank][item.episode % num_minibatches].append(item)
    trained = [item for item in items if item.row.num_trained]
    lengths = [0] * len(rewards)
    for item in items:
        lengths[item.episode] += item.row.num_trained
    return [
        BatchShard(
            step=step,
            rewards=rewards,
            group_ids=groups,
            num_trained_tokens=sum(item.row.num_trained for item in trained),
            num_episodes=len({item.episode for item in trained}),
            minibatches=minibatches,
            lengths=lengths,
            truncated=[episode % 5 == 4 for episode in range(len(rewards))],
        )
        for minibatches in parts
    ]


def saved_bytes(policy: Policy, packed: PackedRows) -> int:
    """Kept for the backward pass of one forward."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = policy.logprobs(packed).sum()
    loss.backward()
    return sum(seen.values())


def reproducible(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics without those that say how long things took, or how busy ranks were."""
    of_time = ("throughput/", "trainer/idle_share")
    return {name: x for name, x in metrics.items() if not name.startswith(of_time)}


def save_checkpoint(
    folder: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    config_hash: str,
    keep: int,
    terms: Sequence[ModelTerm] = (),
) -> Path:
    """Writes `folder`/step-<step> and removes all but the newest `keep` (collective)."""
    kept = Retention(keep)
    checkpoints = Checkpoints(
        folder,
        policy,
        optimizer,
        config_hash=config_hash,
        retention=kept,
        terms=terms,
    )
    try:
        checkpoints.begin(step)
        checkpoints.reported({})
        checkpoints.finish()
        policy.world.barrier()
    finally:
        checkpoints.close()
    return folder / f"step-{step}"
