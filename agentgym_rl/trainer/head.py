"""Log-probs and entropies from hidden states, computed a few tokens at a time.

The logits of a micro-batch, [tokens, vocabulary], are often the largest tensor of a pass. With this
module they exist for only one chunk of tokens at a time, in forward and again in backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agentgym_rl.algo.packing import PackedRows
from agentgym_rl.core.errors import TrainerError


class ChunkedHead:
    """An output layer's forward that returns each given token's log-prob and the entropy of its
    distribution instead of logits.

    Raises TrainerError if the output layer is not a Linear without a bias.
    """

    def __init__(self, head: nn.Module, chunk_tokens: int):
        if not isinstance(head, nn.Linear) or head.bias is not None:
            raise TrainerError(
                f"trainer.head_chunk_tokens: the output layer is {head}, expected a Linear "
                "without a bias; set it to 0"
            )
        self._head = head
        self._chunk_tokens = chunk_tokens
        self._packed: PackedRows | None = None

    def expect(self, packed: PackedRows) -> None:
        """Set the rows of the next forward, on the device of that forward."""
        self._packed = packed

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return [1, N, 2], log-probs and entropies, for hidden states [1, N, H] at
        `packed.positions`."""
        assert self._packed is not None
        weight, targets = self._head.weight, self._packed.targets
        scores: Any = _ChunkedScores.apply
        return scores(
            hidden[0].to(weight.dtype), weight, targets, self._packed.temperatures,
            self._chunk_tokens,
        )  # fmt: skip


class _ChunkedScores(torch.autograd.Function):
    """The autograd function for [1, N, 2] log-probs and entropies; backward recomputes the
    logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        targets: Tensor,  # [N]
        temperatures: Tensor,  # [N]
        chunk_tokens: int,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets, temperatures)
        ctx.chunk_tokens = chunk_tokens
        wide = torch.promote_types(hidden.dtype, torch.float32)
        scores = hidden.new_empty(1, len(hidden), 2, dtype=wide)
        for part in _chunks(len(hidden), chunk_tokens):
            logprobs = _logprobs(hidden[part], weight, temperatures[part])
            scores[0, part, 0] = logprobs.gather(1, targets[part, None])[:, 0]
            scores[0, part, 1] = _entropies(logprobs)
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients: for p = softmax(z), ∂ log p_y/∂z = 1_y − p and ∂H/∂z = −p · (log p +
        H)."""
        hidden, weight, targets, temperatures = ctx.saved_tensors
        of_logprob, of_entropy = gradients[0][0].unbind(-1)
        to_hidden, to_weight = torch.empty_like(hidden), None
        if ctx.needs_input_grad[1]:
            to_weight = torch.zeros_like(weight)
        for part in _chunks(len(hidden), ctx.chunk_tokens):
            logprobs = _logprobs(hidden[part], weight, temperatures[part])
            inner = logprobs + _entropies(logprobs)[:, None]
            pull = of_logprob[part, None] + of_entropy[part, None] * inner
            to_logits = logprobs.exp_().mul_(pull).neg_()
            to_logits.scatter_add_(1, targets[part, None], of_logprob[part, None])
            to_logits /= temperatures[part, None]
            to_logits = to_logits.to(weight.dtype)
            to_hidden[part] = to_logits @ weight
            if to_weight is not None:
                to_weight.addmm_(to_logits.T, hidden[part])
        return to_hidden, to_weight, None, None, None


def _chunks(num_tokens: int, chunk_tokens: int) -> list[slice]:
    return [slice(i, i + chunk_tokens) for i in range(0, num_tokens, chunk_tokens)]


def _logprobs(hidden: Tensor, weight: Tensor, temperatures: Tensor) -> Tensor:
    """Return log-probs [C, V], in float32 or better."""
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits / temperatures[:, None].to(logits.dtype), -1)


def _entropies(logprobs: Tensor) -> Tensor:
    return -(logprobs.exp() * logprobs).sum(-1)
