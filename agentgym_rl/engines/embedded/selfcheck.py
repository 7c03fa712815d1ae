"""Does a decoder give the logits of the model's own forward? Asked once, at start."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from .batch import segments
from .decoder import Decoder

log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference of a logit, per unit of the largest logit where that exceeds 1."""
_STEPS = 3


def self_check(decoder: Decoder, module: Any, length: int, *, rows: int) -> bool:
    """True when all logits agree; else a warning says by how much, or what was raised.

    Plays what a batch does: prompts of different lengths, a row that joins later, and a row
    that leaves, whose slot the last row takes over. Up to `rows` rows of up to `length` tokens.
    """
    try:
        with torch.inference_mode():
            difference, scale = _compare(decoder, module, length, rows)
    except Exception as error:  # any architecture may fail in its own way: try the next decoder
        log.warning("the %s decoder failed its self-check: %r", decoder.name, error)
        return False
    allowed = _TOLERANCE[module.dtype] * max(1.0, scale)
    if difference <= allowed:
        log.debug("self-check of the %s decoder: max |d logit| %.2g", decoder.name, difference)
        return True
    log.warning(
        "the %s decoder differs from the model's own forward by %.3g (allowed: %.3g)",
        decoder.name,
        difference,
        allowed,
    )
    return False


def _compare(decoder: Decoder, module: Any, length: int, rows: int) -> tuple[float, float]:
    """(largest difference, largest logit) over a few decode steps."""
    vocab = module.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    starts = [max(1, length // divisor - _STEPS) for divisor in (2, 1, 3)][:rows]
    rows_tokens = [
        torch.randint(vocab, (start + _STEPS,), generator=generator).tolist() for start in starts
    ]
    expected = [
        module(input_ids=torch.tensor([row], device=module.device), use_cache=False).logits[0]
        for row in rows_tokens
    ]
    at = list(starts)  # tokens of each row that are cached before the next step
    slots = list(range(len(starts)))[:2]
    decoder.prefill(0, _prompts(rows_tokens, at, slots))
    worst = _step(decoder, rows_tokens, expected, at, slots)
    if len(starts) > 2:
        decoder.prefill(2, _prompts(rows_tokens, at, [2]))
        slots.append(2)
        worst = max(worst, _step(decoder, rows_tokens, expected, at, slots))
    if len(slots) > 1:
        leaving = slots.index(0)
        decoder.move(len(slots) - 1, leaving, at[slots[-1]])
        slots[leaving] = slots.pop()
        worst = max(worst, _step(decoder, rows_tokens, expected, at, slots))
    return worst, max(float(logits.abs().max()) for logits in expected)


def _prompts(rows: list[list[int]], at: list[int], which: list[int]) -> list[list[int]]:
    return [rows[index][: at[index]] for index in which]


def _step(
    decoder: Decoder,
    rows: list[list[int]],
    expected: list[Tensor],
    at: list[int],
    slots: list[int],
) -> float:
    """Feed the next known token of each row; the largest difference of what follows."""
    positions = [at[row] for row in slots]
    tokens = [rows[row][at[row]] for row in slots]
    logits = decoder.decode(
        torch.tensor(tokens, device=decoder.device),
        torch.tensor(positions, device=decoder.device),
        segments(positions, worth=0),
    )
    worst = 0.0
    for got, row in zip(logits, slots, strict=True):
        difference = float((got - expected[row][at[row]].float()).abs().max())
        worst = max(worst, difference if difference == difference else float("inf"))
        at[row] += 1
    return worst
