"""The output layer whose vocabulary is cut: each rank has the logits of some tokens."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from agentgym_rl.trainer import Vocabulary


class CutVocabulary(Vocabulary):
    """The tokens `start` to `end` of a vocabulary that the ranks of a group share."""

    def __init__(self, group: ProcessGroup, start: int, end: int) -> None:
        self.start, self.end, self._group = start, end, group
        self._size = end - start

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Return the log-probs of this rank's tokens, given their logits, [C, V of the rank]."""
        most = logits.max(-1, keepdim=True).values
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._group)
        total = (logits - most).exp_().sum(-1, keepdim=True)
        dist.all_reduce(total, group=self._group)
        return logits - (most + total.log_())

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over ranks."""
        dist.all_reduce(numbers, group=self._group)
        return numbers

    def likeliest(self, logprobs: Tensor, count: int, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return the `count` largest log-probs of each row, with the ids of their tokens."""
        own = logprobs[:, : max(0, min(self._size, vocab_size - self.start))]
        top = own.topk(min(count, own.shape[1]), dim=1)
        values = logprobs.new_full((len(logprobs), count), -torch.inf)
        ids = torch.zeros(len(logprobs), count, dtype=torch.int64, device=logprobs.device)
        values[:, : top.values.shape[1]] = top.values
        ids[:, : top.values.shape[1]] = top.indices + self.start
        parts: list[list[Tensor]] = []
        for x in (values, ids):
            found = [torch.empty_like(x) for _ in range(self._group.size())]
            dist.all_gather(found, x, group=self._group)
            parts.append(found)
        every, names = (torch.cat(found, 1) for found in parts)
        best = every.topk(count, dim=1)
        return best.values, names.gather(1, best.indices)
