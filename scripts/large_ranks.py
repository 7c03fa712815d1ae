"""Ranks that train two batches of a model whose state none of them may hold: each is under a limit
of memory, and is compared with one rank that has no limit.

    python scripts/large_ranks.py [--hidden=2048 --layers=24 --vocab=32000 --ranks=4 --share=0.45]

The model is random, and is written tensor by tensor in bfloat16. Weights, gradients and AdamW's two
states are kept in bfloat16, with stochastic rounding (8 bytes a number), and computed in float32;
with --masters=float32 all are float32 (16 bytes). A rank may take `--share` of them (at least
`--least` MB), beyond what its imports take. Its memory is limited by RLIMIT_DATA and measured by
VmHWM. With --whole-gradients, ranks keep the gradients of micro-batches whole, and die. With
--load-only they do not train: the peaks of reading the slices alone, and of loading with trials,
are compared with what a rank keeps.

Ranks and the single one add up the same rows in each round: the sum of a round is rounded to the
dtype of the gradients, and another sum would be rounded otherwise.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import BatchRow, BatchShard
from agentgym_rl.core.model_folder import header_of
from agentgym_rl.runtime.memory import give_back_memory
from agentgym_rl.trainer import Policy, join_world, make_optimizer, take_step
from agentgym_rl.trainer.optim import set_learning_rate
from agentgym_rl.trainer.shard_tensors import ShardTokens, accumulate
from agentgym_rl.trainer.sharding import local
from agentgym_rl.trainer.slices import Slices
from agentgym_rl.weights import bytes_of
from benchmarks._memory import begin_peak, memory
from benchmarks._ranks import RankDied, forked
from benchmarks.trainer_loops.packing import half_sampled

_ROWS, _LENGTH, _BATCHES = 8, 32, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("hidden", 2048), ("layers", 24), ("vocab", 32000), ("ranks", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=0.45)
    parser.add_argument("--least", type=int, default=256, help="MB")
    parser.add_argument("--masters", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--whole-gradients", action="store_true")
    parser.add_argument("--load-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        state = (8 if args.masters == "bfloat16" else 16) * write_model(folder, args)
        limit = max(args.share * state, args.least << 20)
        print(json.dumps({"state_bytes": state, "limit_bytes": int(limit)}), flush=True)
        found = {}
        for size in sorted({1, args.ranks}, reverse=True):
            most = limit if size > 1 else None
            found[size] = run(folder, size, most, args)
            print(json.dumps({"ranks": size, **found[size]}), flush=True)
    if args.load_only:
        return
    worst = max(
        abs(one - other) / abs(one)
        for one, other in zip(found[1]["numbers"], found[args.ranks]["numbers"], strict=True)
    )
    print(json.dumps({"largest_relative_difference": worst}))
    if worst > 1e-6:
        sys.exit("the ranks did not compute what one computes")


def write_model(folder: Path, args: argparse.Namespace) -> int:
    """Write a random model, never whole in memory; return the number of its parameters."""
    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 43 // 16,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64 or 1,
        num_key_value_heads=args.hidden // 64 or 1,
        max_position_embeddings=2 * _LENGTH,
        tie_word_embeddings=True,
    )
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [(name, "BF16", tuple(s), 2 * s.numel()) for name, s in shapes.items()]
    generator = torch.Generator().manual_seed(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_of(sizes)[0])
        for name, shape in shapes.items():
            tensor = torch.empty(shape, dtype=torch.bfloat16)
            tensor.normal_(std=0.05, generator=generator)
            if name.endswith("norm.weight"):
                tensor.fill_(1.0)
            file.write(bytes_of(tensor).numpy())
    return sum(shape.numel() for shape in shapes.values())


def run(folder: Path, size: int, limit: float | None, args: argparse.Namespace) -> dict[str, Any]:
    """Train as `size` forked ranks; return what rank 0 found, and the largest memory of any."""
    try:
        all_found = forked(folder, size, partial(train, folder, limit, args))
    except RankDied as error:
        sys.exit(f"{error} under its limit of memory")
    first = ("numbers", "kept_bytes")
    return {
        name: value if name in first else max(it[name] for it in all_found)
        for name, value in all_found[0].items()
    }


def train(
    folder: Path, limit: float | None, args: argparse.Namespace, place: dict[str, Any]
) -> dict[str, Any]:
    """Load the model and train two batches as one rank."""
    rank, size = place["rank"], place["size"]
    begin_peak()
    before = memory()
    if limit is not None:
        most = int(memory("VmData") + limit)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    halves, width = args.masters == "bfloat16", args.ranks // size  # rows of a rank in a round
    numbers: list[float] = []
    with join_world(**place, timeout_s=3600) as world:
        trainer = TrainerConfig(
            max_tokens_per_microbatch=_LENGTH * width,
            num_ranks=size,
            activation_checkpointing=True,
            optimizer="adamw_bf16" if halves else "adamw",
        )
        dtype = torch.bfloat16 if halves else torch.float32
        if args.load_only:
            Slices.load(folder, world, dtype=dtype, rounded=lambda model: ())
            read = memory() - before
            give_back_memory()
            begin_peak()
        policy = Policy.load(folder, world, trainer=trainer, master_dtype=dtype)
        kept = sum(local(p).nbytes for p in policy.model.parameters())
        load = memory() - before
        sizes = {"kept_bytes": kept, "load_bytes": load, "load_peak_of_kept": load / kept}
        if args.load_only:
            return {**sizes, "read_bytes": read, "read_peak_of_kept": read / kept}
        policy.shards_gradients = not args.whole_gradients
        optimizer = make_optimizer(policy.model, trainer)
        set_learning_rate(optimizer, 1e-5)
        for batch in range(_BATCHES):
            tokens = ShardTokens.from_shard(
                shard(batch, rank, size, policy.vocab_size), vocab_size=policy.vocab_size
            )
            rows, rounds = range(len(tokens.rows)), -(-_ROWS // args.ranks)
            turns = [rows[n : n + width] for n in rows[::width]]
            plan = [part for turn in turns for part in tokens.micro_batches(turn, policy)]
            loss = accumulate(
                policy, plan, rounds, lambda it: policy.logprobs(it.packed).sum() / _ROWS
            )
            numbers += [sum(world.gather(loss)), take_step(optimizer, 1.0)]
    return {
        "numbers": numbers,
        **sizes,
        "peak_bytes": memory() - before,
    }


def shard(batch: int, rank: int, size: int, vocab: int) -> BatchShard:
    """Return a rank's rows of a batch: of each round, it has those that are in turn."""
    items = [
        BatchRow(half_sampled(np.random.default_rng([batch, number]), _LENGTH, vocab), number)
        for number in range(rank, _ROWS, size)
    ]
    return BatchShard(
        step=batch,
        rewards=[0.0] * _ROWS,
        group_ids=[str(number) for number in range(_ROWS)],
        num_trained_tokens=_ROWS * _LENGTH // 2,
        num_episodes=_ROWS,
        minibatches=[items],
    )


if __name__ == "__main__":
    main()
