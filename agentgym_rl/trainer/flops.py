"""How much arithmetic a model's passes need, and what a device could do in that time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from agentgym_rl.algo.packing import PackedRows

PEAK_TFLOPS: Mapping[str, float] = {
    "A100": 312,
    "A800": 312,
    "L40S": 362,
    "L4": 121,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H800": 989,
    "H200": 989,
    "H20": 148,
    "B200": 2250,
    "GB200": 2500,
}
"""Dense bfloat16 teraFLOP/s by a part of the device's name, from NVIDIA's data sheets (half of
what they give "with sparsity"); the longest name that fits counts."""


@dataclass(frozen=True, slots=True)
class FlopCount:
    """Floating-point operations of a causal transformer, as "model FLOPs" are counted: two for
    each weight a token meets, and what causal attention needs; nothing for what is computed again
    (activation checkpointing) or for padding.

    PaLM, Chowdhery et al. 2022, appendix B (https://arxiv.org/abs/2204.02311); there attention is
    counted without the causal half, and the output layer at every token.
    """

    body: float
    """Weights that each token is multiplied with, the output layer's not among them."""
    head: float
    """Weights of the output layer: only trained tokens meet it."""
    learning_body: float
    learning_head: float
    """Those of them that have gradients."""
    attention: float
    """Sum of heads x head size over layers."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Of a transformers causal LM that is not sharded yet.

        Of experts those count that a token is sent to.
        """
        config = model.config.get_text_config()
        share = _expert_share(config)
        head = model.get_output_embeddings()
        apart = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        apart |= {id(p) for p in head.parameters()}
        body = [
            (p.numel() * (share if p.ndim == 3 else 1.0), p.requires_grad)
            for p in model.parameters()
            if p.ndim > 1 and id(p) not in apart
        ]
        heads = config.num_attention_heads
        # Where layers have heads of several sizes, the attribute is refused.
        width = config.to_dict().get("head_dim") or config.hidden_size // heads
        matrices = [p for p in head.parameters() if p.ndim == 2]
        return cls(
            body=sum(number for number, _ in body),
            head=sum(p.numel() for p in matrices),
            learning_body=sum(number for number, learns in body if learns),
            learning_head=sum(p.numel() for p in matrices if p.requires_grad),
            attention=config.num_hidden_layers * heads * width,
        )

    def of_pass(self, packed: PackedRows, *, gradients: bool) -> float:
        """Of one pass over packed rows, with its backward or without."""
        tokens, predicted = sum(packed.lengths), len(packed.targets)
        dense = 2.0 * (self.body * tokens + self.head * predicted)
        # Scores and values: two products of length x length, of which causality needs half.
        attention = 2.0 * self.attention * sum(length**2 for length in packed.lengths)
        if not gradients:
            return dense + attention
        learned = 2.0 * (self.learning_body * tokens + self.learning_head * predicted)
        return 2.0 * dense + learned + 3.0 * attention


def peak_tflops(device: torch.device, said: float | None) -> float | None:
    """What `device` could do at best, in dense bfloat16: as the configuration says, or by its
    name; None if neither is known."""
    if said is not None or device.type != "cuda":
        return said
    name = torch.cuda.get_device_name(device)
    fitting = [known for known in PEAK_TFLOPS if known in name]
    return PEAK_TFLOPS[max(fitting, key=len)] if fitting else None


def _expert_share(config: Any) -> float:
    chosen = getattr(config, "num_experts_per_tok", None)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        number = getattr(config, name, None)
        if chosen and number:
            return chosen / number
    return 1.0
