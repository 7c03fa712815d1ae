"""Ranks that train a row which none of them has memory for: each is limited to what one rank needs
for a shorter row, and together they are compared with one rank that has no limit.

    python scripts/long_row.py [--tokens=32768 --fits=10240 --mesh=c4 --hidden=256 --layers=2]

The model is random. First, one rank trains a row of `--fits` tokens: its peak, beyond what its
imports take, is the limit of every rank of the mesh (RLIMIT_DATA); peaks are measured by VmHWM. A
single rank with the long row under this limit has to die.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arl_parallel import parallel as parallel  # before memory is counted, as other imports
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import NOT_SAMPLED, Row
from agentgym_rl.runtime import give_back_large_pieces
from agentgym_rl.trainer import Policy, join_world, make_optimizer, take_step
from agentgym_rl.trainer.optim import set_learning_rate

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
        alone = run(folder, args.tokens, 1, "", limit, may_die=True)
        print(json.dumps({"tokens": args.tokens, "ranks": 1, "died": not alone}), flush=True)
        found = run(folder, args.tokens, args.ranks, args.mesh, limit)
        print(json.dumps({"tokens": args.tokens, "mesh": args.mesh, **found}), flush=True)
        whole = run(folder, args.tokens, 1, "", None)
        print(json.dumps({"tokens": args.tokens, "ranks": 1, **whole}), flush=True)
    pairs = zip(whole["numbers"], found["numbers"], strict=True)
    worst = max(abs(one - other) / abs(one) for one, other in pairs)
    print(json.dumps({"largest_relative_difference": worst}))
    if alone or worst > 1e-5:
        sys.exit("one rank had the memory, or the ranks did not compute what one computes")


def run(
    folder: Path, tokens: int, size: int, mesh: str, limit: int | None, *, may_die: bool = False
) -> dict[str, Any]:
    """Train as `size` forked ranks; return what rank 0 found, and the largest memory of any; {} if
    a rank died, and that `may_die`."""
    meeting, children = folder / f"meet-{os.urandom(4).hex()}", list[int]()
    for rank in range(size):
        if child := os.fork():
            children.append(child)
            continue
        try:
            if may_die:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            found = train(folder, meeting, tokens, rank, size, mesh, limit)
            (folder / f"found-{rank}.json").write_text(json.dumps(found))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    died = False
    while children:
        child, code = os.wait()
        children.remove(child)
        if code and not died:
            died = True
            for other in children:  # they would wait for it
                os.kill(other, signal.SIGKILL)
    if died:
        if may_die:
            return {}
        sys.exit(f"a rank of {size} died under its limit of memory")
    its = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(size)]
    return {**its[0], "peak_bytes": max(it["peak_bytes"] for it in its)}


def train(
    folder: Path, meeting: Path, tokens: int, rank: int, size: int, mesh: str, limit: int | None
) -> dict[str, Any]:
    """Take optimizer steps on one row as one rank."""
    give_back_large_pieces()  # or gaps between tensors would count, which differ between runs
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins at what the process has now
    before = status("VmHWM")
    if limit is not None:
        most = status("VmData") + limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    trainer = TrainerConfig(
        mesh=mesh, num_ranks=size, max_tokens_per_microbatch=tokens, head_chunk_tokens=1024
    )
    meets: Any = {"rank": rank, "size": size, "rendezvous": f"file://{meeting}"}
    numbers: list[float] = []
    with join_world(**meets, unit=trainer.ranks_per_row, timeout_s=3600) as world:
        policy = Policy.load(folder, world, trainer=trainer)
        optimizer = make_optimizer(policy.model, trainer)
        set_learning_rate(optimizer, 1e-4)
        packed = pack_rows([row(tokens)])
        for _ in range(_STEPS):
            policy.synchronize_gradients(True)
            loss = policy.logprobs(packed).mean()
            loss.backward()
            numbers += [loss.item(), take_step(optimizer, 1.0)]
    return {"numbers": numbers, "peak_bytes": status("VmHWM") - before}


def row(tokens: int) -> Row:
    """Return a row of random tokens."""
    rng = np.random.default_rng(0)
    sampled = np.arange(tokens) >= tokens // 2
    versions = np.where(sampled, 0, NOT_SAMPLED).astype(np.int32)
    return Row(
        tokens=rng.integers(0, _VOCAB, tokens).astype(np.int32),
        loss_mask=sampled,
        behavior_logprobs=np.where(sampled, -3.0, 0).astype(np.float32),
        policy_versions=versions,
        admitted_versions=versions,
        temperatures=sampled.astype(np.float32),
        turn_ids=np.where(sampled, 0, -1).astype(np.int32),
        times_s=np.zeros(tokens),
    )


def status(name: str) -> int:
    """Return a number of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) << 10


if __name__ == "__main__":
    main()
