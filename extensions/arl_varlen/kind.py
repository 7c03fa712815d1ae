"""The registered attention, and the trial of its gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AttentionInterface

from agentgym_rl.algo import relative_difference
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import GpuAttention, Pieces, pack_tokens, segment_attention

from .attention import EFFICIENT, VARLEN

_FAILURES = (TrainerError, TypeError, ValueError, LookupError, RuntimeError, AttributeError)
_TOLERANCES = {VARLEN: 0.05, EFFICIENT: 1e-4}


class VarlenAttention(GpuAttention):
    """The attention by kernels for rows of variable length."""

    bfloat16: ClassVar[str] = VARLEN
    float32: ClassVar[str] = EFFICIENT

    @torch.enable_grad()
    def wrong(self, name: str, model: Any) -> str:
        """Return how the gradients of a function differ from those of one row at a time, with
        shared beginnings and a window; "" if they do not."""
        config, device = model.config.get_text_config(), model.device
        heads = int(config.num_attention_heads)
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        grouped = getattr(config, "num_key_value_heads", None) or heads
        row = tuple(3 + i * i % 91 for i in range(300))
        rows = [(*row[:shared], *row[shared // 2 :: -1]) for shared in (40, 90, 300)]
        packed = pack_tokens([*rows, (5, 3, 5)], share=True)
        pieces = Pieces(packed.lengths, packed.branches, device)
        draw = torch.Generator().manual_seed(0)
        shape = (1, heads + 2 * grouped, packed.tokens.shape[1], int(size))
        drawn = torch.randn(shape, generator=draw).bfloat16().float().to(device).requires_grad_()
        for window in (None, 60):
            found: list[Tensor] = []
            functions: tuple[Any, ...] = (AttentionInterface()[name], segment_attention)
            for compute in functions:
                parts = drawn.split((heads, grouped, grouped), 1)
                try:
                    output = compute(model, *parts, None, pieces=pieces, sliding_window=window)[0]
                    pull = output.detach().cos()
                    found += torch.autograd.grad(output, drawn, pull)
                except _FAILURES as error:
                    return f"{type(error).__name__}: {error}"
            if not (difference := relative_difference(*found)) < _TOLERANCES[name]:
                return f"gradients differ by {difference:.1e} with a window of {window}"
        return ""


ATTENTION = VarlenAttention()
