"""The floating-point operations of a model's passes, and the peak throughput of a device."""

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
"""The dense bfloat16 teraFLOP/s by a part of the device's name, from NVIDIA's data sheets (half of
their numbers "with sparsity"); the longest name that matches is used."""


@dataclass(frozen=True, slots=True)
class FlopCount:
    """The floating-point operations of a causal transformer, counted as "model FLOPs": two for each
    weight that a token is multiplied with, and those of causal attention. Recomputation (activation
    checkpointing) and padding count nothing.

    The method is that of PaLM, Chowdhery et al. 2022, appendix B
    (https://arxiv.org/abs/2204.02311), except that PaLM counts attention without the causal half,
    and the output layer at every token.
    """

    body: float
    """The number of weights that each token is multiplied with, without the output layer's."""
    head: float
    """The number of the output layer's weights, which only trained tokens are multiplied with."""
    learning_body: float
    learning_head: float
    """The numbers of the weights above that have gradients."""
    attention: float
    """The sum of heads x head size over layers."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the counts for a transformers causal LM that is not sharded yet.

        Only the experts that a token is routed to count.
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
        # A config with several head sizes raises on access to the attribute; hence the dictionary.
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
        """Return the operations of one pass over packed rows, with or without its backward."""
        tokens, predicted = sum(packed.lengths), len(packed.targets)
        dense = 2.0 * (self.body * tokens + self.head * predicted)
        # Scores and values: two products of length x length; causality halves both.
        attention = 2.0 * self.attention * sum(length**2 for length in packed.lengths)
        if not gradients:
            return dense + attention
        learned = 2.0 * (self.learning_body * tokens + self.learning_head * predicted)
        return 2.0 * dense + learned + 3.0 * attention


def peak_tflops(device: torch.device, said: float | None) -> float | None:
    """Return the peak of `device` in dense bfloat16: the configured number, or a known one by the
    device's name; None if there is neither."""
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
