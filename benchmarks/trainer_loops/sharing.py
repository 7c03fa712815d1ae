"""Shared beginnings of rows, computed once, compared with the same rows one by one: computed
tokens, and CPU seconds of forward and backward, in turn in one process with one thread.

    python -m benchmarks.trainer_loops.sharing --model FOLDER

measures the model in a folder; `arl bench trainer` a small random one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentgym_rl.algo import micro_batches
from agentgym_rl.core import Row
from agentgym_rl.trainer import MicroBatch, Policy, World, accumulate, join_world
from benchmarks._toy import sized

from .packing import VOCAB, row

BUDGET = 4096
ROUNDS = sized(5, toy=1)
_WAYS = {"shared": True, "one by one": False}


def samples(seed: int = 0) -> Mapping[str, list[Row]]:
    """Return rows: groups with a prompt of their own, and turns whose agent sends its history
    again."""
    draw = np.random.default_rng(seed)
    groups = [_group(draw, 8, prompt=150, sampled=60) for _ in range(2)]
    return {
        "2 groups of 8, prompt 150, sampled 60": [row for group in groups for row in group],
        "10 turns of one conversation": _turns(draw, 10, prompt=150, sampled=60, between=20),
        "10 turns, thoughts left out of the history": _turns(
            draw, 10, prompt=150, sampled=60, between=20, forgotten=40
        ),
        "nothing in common": [row for _ in range(8) for row in _group(draw, 1, prompt=150)],
    }


def compare(
    model: Path, world: World, *, rounds: int = sized(5, toy=1)
) -> Iterator[dict[str, Any]]:
    """Yield two rows for each sample: computed once, and one by one."""
    policy = Policy.load(model, world)
    assert policy.shares_prefixes
    for name, rows in samples().items():
        plans = {way: _plan(rows, share=share) for way, share in _WAYS.items()}
        seconds: dict[str, list[float]] = {way: [] for way in plans}
        losses: dict[str, float] = {}
        for turn in range(rounds + 1):  # the first warms up
            for way, plan in plans.items():
                start = time.process_time()
                losses[way] = _train(policy, plan)
                if turn:
                    seconds[way].append(time.process_time() - start)
        for way, plan in plans.items():
            yield {
                "rows": name,
                "system": way,
                "micro_batches": len(plan),
                "tokens_computed": sum(it.packed.tokens.shape[1] for it in plan),
                "cpu_s": round(statistics.median(seconds[way]), 4),
                "loss": losses[way],
            }


def ratios(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the time of one by one over that of sharing."""
    return {
        f"one by one / shared, {ours['rows']}": round(theirs["cpu_s"] / ours["cpu_s"], 2)
        for ours, theirs in zip(found[::2], found[1::2], strict=True)
    }


def _plan(rows: Sequence[Row], *, share: bool) -> list[MicroBatch]:
    nowhere = torch.zeros(0, dtype=torch.int64)
    return [MicroBatch(packed, nowhere) for _, packed in micro_batches(rows, BUDGET, share=share)]


def _train(policy: Policy, plan: Sequence[MicroBatch]) -> float:
    loss = accumulate(policy, plan, len(plan), lambda it: -policy.logprobs(it.packed).sum())
    policy.model.zero_grad()
    return loss


def _group(draw: np.random.Generator, size: int, *, prompt: int, sampled: int = 60) -> list[Row]:
    head = draw.integers(0, VOCAB, prompt)
    return [_row((head, draw.integers(0, VOCAB, sampled)), trained=sampled) for _ in range(size)]


def _turns(
    draw: np.random.Generator,
    turns: int,
    *,
    prompt: int,
    sampled: int,
    between: int,
    forgotten: int = 0,
) -> list[Row]:
    """Return a row for each turn, which trains its reply; the history has replies without their
    first `forgotten` tokens."""
    history = [draw.integers(0, VOCAB, prompt)]
    rows: list[Row] = []
    for _ in range(turns):
        reply = draw.integers(0, VOCAB, sampled)
        rows.append(_row((*history, reply), trained=sampled))
        history += [reply[forgotten:], draw.integers(0, VOCAB, between)]
    return rows


def _row(parts: Sequence[Any], *, trained: int) -> Row:
    tokens = np.concatenate(parts).astype(np.int32)
    return replace(row(len(tokens), trained), tokens=tokens)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with join_world() as world:
        found = list(compare(args.model, world, rounds=args.rounds))
    sys.stdout.write(json.dumps({"rows": found, "ratios": ratios(found)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
