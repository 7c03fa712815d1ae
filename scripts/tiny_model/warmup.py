"""Supervised warm-up in two stages: first clean demonstrations, then the usual habits.

Clean demonstrations are first, because copying numbers digit by digit has to be learned before the
noise of guessed answers starts: with only the mixture it is never learned.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import torch
from family import PAD, Family, WarmUp
from rows import Row, collate, demonstrated_rows
from tokenizer import token_id
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


def warm_up(
    network: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    family: Family,
    plan: WarmUp,
    *,
    seed: int,
    report: Callable[[int, float], None],
) -> None:
    """Train `network` in place; `report(step, loss)` is called after every step."""
    optimizers = _optimizers(network, plan.learning_rate)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(plan, step))
        for optimizer in optimizers
    ]
    network.train()
    pad = token_id(tokenizer, PAD)
    for step, rows in enumerate(_batches(family, tokenizer, plan, seed=seed), start=1):
        ids, mask = collate(rows, pad=pad)
        hidden = network.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = network.lm_head(hidden[:, :-1][mask[:, 1:]])
        total = cross_entropy(logits, ids[:, 1:][mask[:, 1:]], reduction="sum")
        loss = total / (plan.rows_per_step * plan.tokens_per_row)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for stepper in (*optimizers, *schedules):
            stepper.step()
        report(step, loss.item())
    network.eval()


def _optimizers(network: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices (it learns to copy in half the steps), and AdamW for the
    rest."""
    named = list(network.named_parameters())
    hidden = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(hidden, lr=10 * learning_rate, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _rate(plan: WarmUp, step: int) -> float:
    total = plan.clean_steps + plan.mixed_steps
    return min(1.0, (step + 1) / plan.rise_steps) * max(plan.floor, 1 - step / total)


def _batches(
    family: Family, tokenizer: PreTrainedTokenizerFast, plan: WarmUp, *, seed: int
) -> Iterator[list[Row]]:
    for clean, steps in ((True, plan.clean_steps), (False, plan.mixed_steps)):
        rows = demonstrated_rows(family, tokenizer, seed=seed, clean=clean)
        yield from itertools.islice(_alike(rows, plan.rows_per_step, seed=seed), steps)


def _alike(rows: Iterator[Row], size: int, *, seed: int) -> Iterator[list[Row]]:
    """Yield batches of rows of similar length (less padding), in shuffled order."""
    rng = random.Random(f"batches/{seed}")
    while True:
        pool = sorted(itertools.islice(rows, 8 * size), key=lambda row: len(row.ids))
        batches = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(batches)
        yield from batches
