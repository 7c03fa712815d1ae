"""Ranks that train a row which none of them has memory for: each is limited to what one rank needs
for a shorter row, and together they are compared with one rank that has no limit.

    python scripts/long_row.py [--tokens=32768 --fits=10240 --mesh=c4 --hidden=256 --layers=2]

The model is random. First, one rank trains a row of `--fits` tokens: its peak, beyond what its
imports take, is the limit of every rank of the mesh (RLIMIT_DATA); peaks are measured by VmHWM. A
single rank with the long row under this limit has to die. The limit counts memory that a process
was given and has not touched, too: `--margin=1.15` adds 15 %, which short rows need.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arl_parallel import parallel as parallel  # before memory is counted, as other imports
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.runtime import give_back_large_pieces
from agentgym_rl.trainer import Policy, join_world, make_optimizer, take_step
from agentgym_rl.trainer.optim import set_learning_rate
from benchmarks._memory import begin_peak, memory
from benchmarks._ranks import RankDied, forked
from benchmarks.trainer_loops.packing import half_sampled

_VOCAB, _STEPS = 512, 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = {"tokens": 32768, "fits": 10240, "hidden": 256, "layers": 2}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mesh", default="c4")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--margin", type=float, default=1.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        config = LlamaConfig(
            vocab_size=_VOCAB,
            hidden_size=args.hidden,
            intermediate_size=args.hidden * 4,
            num_hidden_layers=args.layers,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=args.tokens,
            initializer_range=0.1,
        )
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
        limit = run(folder, args.fits, 1, "", None)["peak_bytes"]
        print(json.dumps({"tokens": args.fits, "ranks": 1, "peak_bytes": limit}), flush=True)
        limit = int(args.margin * limit)
        died = dies(folder, args.tokens, limit)
        print(json.dumps({"tokens": args.tokens, "ranks": 1, "died": died}), flush=True)
        try:
            found = run(folder, args.tokens, args.ranks, args.mesh, limit)
        except RankDied as error:
            sys.exit(f"{error} under its limit of memory")
        print(json.dumps({"tokens": args.tokens, "mesh": args.mesh, **found}), flush=True)
        whole = run(folder, args.tokens, 1, "", None)
        print(json.dumps({"tokens": args.tokens, "ranks": 1, **whole}), flush=True)
    pairs = zip(whole["numbers"], found["numbers"], strict=True)
    worst = max(abs(one - other) / abs(one) for one, other in pairs)
    print(json.dumps({"largest_relative_difference": worst}))
    if not died or worst > 1e-5:
        sys.exit("one rank had the memory, or the ranks did not compute what one computes")


def run(folder: Path, tokens: int, size: int, mesh: str, limit: int | None) -> dict[str, Any]:
    """Train as `size` ranks; return what rank 0 found, and the largest memory of any."""
    its = forked(folder, size, partial(train, folder, tokens, mesh, limit))
    return {**its[0], "peak_bytes": max(it["peak_bytes"] for it in its)}


def dies(folder: Path, tokens: int, limit: int) -> bool:
    """Return whether a single rank dies under the limit; what it says is left out."""
    before = os.dup(2)
    with open(os.devnull, "w") as silent:
        os.dup2(silent.fileno(), 2)
    try:
        run(folder, tokens, 1, "", limit)
    except RankDied:
        return True
    finally:
        os.dup2(before, 2)
    return False


def train(
    folder: Path, tokens: int, mesh: str, limit: int | None, place: dict[str, Any]
) -> dict[str, Any]:
    """Take optimizer steps on one row as one rank."""
    give_back_large_pieces()  # or gaps between tensors would count, which differ between runs
    begin_peak()
    before = memory()
    if limit is not None:
        most = memory("VmData") + limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    trainer = TrainerConfig(
        mesh=mesh, num_ranks=place["size"], max_tokens_per_microbatch=tokens, head_chunk_tokens=1024
    )
    numbers: list[float] = []
    with join_world(**place, unit=trainer.ranks_per_row, timeout_s=3600) as world:
        policy = Policy.load(folder, world, trainer=trainer)
        optimizer = make_optimizer(policy.model, trainer)
        set_learning_rate(optimizer, 1e-4)
        packed = pack_rows([half_sampled(np.random.default_rng(0), tokens, _VOCAB)])
        for _ in range(_STEPS):
            policy.synchronize_gradients(True)
            loss = policy.logprobs(packed).mean()
            loss.backward()
            numbers += [loss.item(), take_step(optimizer, 1.0)]
    return {"numbers": numbers, "peak_bytes": memory() - before}


if __name__ == "__main__":
    main()
