"""Training rows: demonstrations as the token sequences a rollout would have recorded.

In a rollout the prompt is encoded once, the model samples each assistant turn, and the text after a
turn (its newline, the tool's result, the next turn's opening) is encoded separately. Pieces are
never merged and encoded again; a row is built the same way, so the model is trained on exactly the
token boundaries it will meet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from family import Conversation, Family, Stage
from tokenizer import render
from torch import Tensor
from transformers import PreTrainedTokenizerFast

OPENING = "<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation in tokens; `loss_mask` marks the assistant's tokens."""

    ids: list[int]
    loss_mask: list[bool]


def row_of(tokenizer: PreTrainedTokenizerFast, shown: Conversation) -> Row:
    """Return the row of a conversation that ends with an assistant message."""
    ids: list[int] = []
    mask: list[bool] = []
    for text, is_sampled in segments(tokenizer, shown):
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        mask += [is_sampled] * len(piece)
    return Row(ids, mask)


def segments(tokenizer: PreTrainedTokenizerFast, shown: Conversation) -> Iterator[tuple[str, bool]]:
    """Return the pieces of a conversation that are encoded separately: (text, whether it is
    sampled).

    This relies on the template's prefix property, and on turns that render the same at any place.
    """
    whole = render(tokenizer, shown.messages, shown.tools, generate=False)
    done = 0
    for message in shown.messages[shown.num_given :]:
        if message["role"] == "assistant":
            turn = render(tokenizer, [message], (), generate=False).rstrip("\n")
            start = whole.rindex(turn) if shown.num_given else whole.index(turn, done)
            said = start + len(OPENING)
            yield whole[done:said], False
            done = start + len(turn)
            yield whole[said:done], True


def demonstrated_rows(
    family: Family, tokenizer: PreTrainedTokenizerFast, *, seed: int, clean: bool
) -> Iterator[Row]:
    """Yield endless rows of training tasks, all right (`clean`) or with the usual habits."""
    rng = random.Random(f"rows/{seed}/{clean}")
    while True:
        yield row_of(tokenizer, family.conversation(rng, Stage.CLEAN if clean else Stage.MIXED))


def collate(rows: list[Row], *, pad: int) -> tuple[Tensor, Tensor]:
    """Return rows as `ids` [B, T] and `loss_mask` [B, T], padded on the right."""
    length = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        mask[i, : len(row.ids)] = torch.tensor(row.loss_mask)
    return ids, mask
