"""Errors that are planted in ranks: the comparison with one rank has to show each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from arl_parallel import attention, collectives, experts, head, parallel
from torch import Tensor, nn
from transformers import AttentionInterface

from agentgym_rl.trainer import optim
from agentgym_rl.trainer.sharding import local


def rows_cut_one_token_late() -> None:
    """Let the first row of a pack end one token late for all attention."""
    right = parallel.PartPieces

    def wrong(lengths: Any, *others: Any, **more: Any) -> Any:
        if len(lengths) > 1:
            lengths = (lengths[0] + 1, lengths[1] - 1, *lengths[2:])
        return right(lengths, *others, **more)

    parallel.PartPieces = wrong


def own_tokens_one_late() -> None:
    """Let a rank take the queries of its own tokens for those one token later."""
    right = attention.OwnPieces

    def wrong(*args: Any, first: int, end: int) -> Any:
        return (
            right(*args, first=first + 1, end=end + 1)
            if first == 0
            else right(*args, first=first - 1, end=end - 1)
        )

    attention.OwnPieces = wrong


def positions_restart() -> None:
    """Let the positions of a rank's tokens begin anew."""
    right = parallel.replace

    def wrong(packed: Any, **changes: Any) -> Any:
        if "position_ids" in changes and "positions" in changes:
            its = changes["position_ids"]
            changes["position_ids"] = (its - its[0, 0]).clamp(min=0)
        return right(packed, **changes)

    parallel.replace = wrong


def _of_first_rank_alone(ending: str) -> None:
    """Let some layers have the gradients of the first rank that shares a matrix alone."""
    right = parallel.Parallel._cut_matrices

    def wrong(self: Any, module: nn.Module, *others: Any) -> None:
        right(self, module, *others)
        for name, part in module.named_modules():
            if name.endswith(ending) and self._meshes.tensor.rank():
                part.forward = _without_gradient(part, part.forward)

    parallel.Parallel._cut_matrices = wrong


def _without_gradient(part: Any, compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        weight = part._parameters["weight"]
        part._parameters["weight"] = weight.detach()
        try:
            return compute(x) + 0 * weight.sum()
        finally:
            part._parameters["weight"] = weight

    return forward


def query_norm_not_added_up() -> None:
    """Leave out the gradients of the norms of queries from other heads than the first rank's."""
    _of_first_rank_alone(".q_norm")


def adapter_not_added_up() -> None:
    """Leave out the gradients of LoRA's A from other rows of B than the first rank's."""
    _of_first_rank_alone(".q_proj.lora_A.default")


def padding_of_vocabulary_counts() -> None:
    """Let the last rank's shorter part of the vocabulary have one more logit, of 0."""
    right = head.CutVocabulary.log_softmax

    def wrong(self: Any, logits: Tensor) -> Tensor:
        if self.start == 0:
            return right(self, logits)
        padded = torch.cat([logits, logits.new_zeros(len(logits), 1)], -1)
        return right(self, padded)[:, :-1]

    head.CutVocabulary.log_softmax = wrong


def token_of_experts_dropped() -> None:
    """Drop one token of those that a rank's experts have."""
    right = experts.CutExperts.__init__

    def wrong(self: Any, *args: Any) -> None:
        right(self, *args)
        compute = self._compute

        def dropping(hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            kept = torch.ones_like(weights)
            kept[0] = 0
            return compute(hidden, ids, weights * kept)

        self._compute = dropping

    experts.CutExperts.__init__ = wrong


def copies_count_in_the_norm() -> None:
    """Count gradients in the norm once for each copy of the model."""
    add = torch.distributed.all_reduce

    def wrong(grads: Any) -> float:
        total = sum(float(local(grad).double().square().sum()) for grad in grads)
        everywhere = torch.tensor(total, dtype=torch.float64)
        add(everywhere)
        return math.sqrt(float(everywhere))

    optim._norm = wrong


def replicated_vectors_count_twice_in_the_norm() -> None:
    """Count the gradients of vectors, which all ranks of a matrix share, once more."""
    right = optim._norm

    def wrong(grads: Any) -> float:
        grads = [*grads]
        return right([*grads, *(grad for grad in grads if grad.ndim == 1)])

    optim._norm = wrong


def sinks_dropped() -> None:
    """Leave out the sinks of attention."""

    def wrong(*args: Any, s_aux: Any = None, **more: Any) -> Any:
        return attention.parallel_attention(*args, **more)

    AttentionInterface.register(attention.NAME, wrong)


def sinks_of_other_heads() -> None:
    """Take the sinks of the heads in reverse."""

    def wrong(*args: Any, s_aux: Any = None, **more: Any) -> Any:
        return attention.parallel_attention(*args, s_aux=s_aux.flip(0), **more)

    AttentionInterface.register(attention.NAME, wrong)


def bias_added_to_other_outputs() -> None:
    """Let each rank add its part of a bias to the outputs of another part."""
    right = parallel._pad_bias

    def wrong(layer: Any, pads: tuple[int, int]) -> None:
        right(layer, (pads[1], pads[0]))

    parallel._pad_bias = wrong


def gradient_of_gathering_not_added_up() -> None:
    """Let each rank keep its own gradient of gathered tokens, without those of the others."""

    def wrong(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dim = 1 if ctx.batched else 0
        parts = gradient.chunk(ctx.group.size(), dim)
        return parts[ctx.group.rank()].contiguous(), None, None

    collectives._Gather.backward = staticmethod(wrong)


def predictions_in_another_order() -> None:
    """Return predictions in the order of ranks."""
    right = parallel._Predictions.of.__func__

    def wrong(cls: Any, *args: Any, **more: Any) -> Any:
        its = right(cls, *args, **more)
        return its._replace(order=its.order.flip(0))

    parallel._Predictions.of = classmethod(wrong)


def experts_replayed_of_other_tokens() -> None:
    """Give each rank the recorded experts of the first rank's tokens."""
    right = parallel.replace

    def wrong(packed: Any, **changes: Any) -> Any:
        if changes.get("experts") is not None and "positions" in changes:
            own = len(changes["experts"])
            changes["experts"] = packed.experts[:own]
        return right(packed, **changes)

    parallel.replace = wrong


PLANTS: Mapping[str, Callable[[], None]] = {
    it.__name__.replace("_", " "): it
    for it in (
        rows_cut_one_token_late,
        own_tokens_one_late,
        positions_restart,
        query_norm_not_added_up,
        adapter_not_added_up,
        padding_of_vocabulary_counts,
        token_of_experts_dropped,
        copies_count_in_the_norm,
        replicated_vectors_count_twice_in_the_norm,
        sinks_dropped,
        sinks_of_other_heads,
        bias_added_to_other_outputs,
        gradient_of_gathering_not_added_up,
        predictions_in_another_order,
        experts_replayed_of_other_tokens,
    )
}
