"""LoRA on experts that a layer has as stacked parameters, [E, out, in] or [E, in, out]: for each
such parameter A [E, r, in] and B [E, out, r], a pair for each expert.

Tokens are sorted by their experts, and multiplied by the matrices of each in one call, as
transformers does it. Only the small products are added: W + scaling · B A of all experts, which
peft computes for its `target_parameters`, would be a second copy of a layer's experts that the
backward pass needs, and its gradient a third.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.integrations import moe

from agentgym_rl.algo import is_experts
from agentgym_rl.core import TrainerError, tensor_heads

_UNIT = 8
"""The number that the rank is filled up to a multiple of: grouped products on GPUs need rows of 16
bytes."""
_WIDTH = 3
"""The number of inputs of the numbered parameter by which the folder's tensors are found."""


class Part(NamedTuple):
    """A tensor of the model's folder that is a part of a stacked parameter."""

    layer: str
    """Its name in an adapter."""
    expert: int | None
    """The expert whose matrix it is; None: it has those of all, [E, …]."""
    rows: slice
    """The outputs of the parameter that it has."""
    is_transposed: bool
    """Whether it is [in, out] in the folder."""

    def pair(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matrices of the tensor, A and B of `weights.adapter`, from those of the
        parameter."""
        if self.expert is not None:
            a, b = a[self.expert], b[self.expert]
        b = b[..., self.rows, :]
        return (b.mT, a.mT) if self.is_transposed else (a, b)

    def put(self, pair: tuple[Tensor, Tensor], a: Tensor, b: Tensor) -> None:
        """Undo `pair`: write the matrices of the tensor into those of the parameter."""
        first, second = (pair[1].mT, pair[0].mT) if self.is_transposed else pair
        at = slice(None) if self.expert is None else self.expert
        a[at] = first
        b[at][..., self.rows, :] = second


class Stack:
    """An adapter of one stacked parameter."""

    def __init__(self, experts: Any, leaf: str, name: str, parts: list[Part]) -> None:
        """Store the arguments; `name` is the parameter's."""
        self.experts, self.leaf, self.name, self.parts = experts, leaf, name, parts
        shape = experts.get_parameter(leaf).shape
        outputs, inputs = shape[:0:-1] if experts.is_transposed else shape[1:]
        self.num_experts, self.outputs, self.inputs = (
            len(experts.get_parameter(leaf)),
            outputs,
            inputs,
        )

    def add(self, rank: int) -> None:
        """Add the matrices to the module: random A, and B of zeros."""
        weight = self.experts.get_parameter(self.leaf)
        how = {
            "dtype": torch.promote_types(weight.dtype, torch.float32),
            "device": weight.device,
        }
        bound = 1 / math.sqrt(self.inputs)  # as that of a linear layer
        a = torch.empty(self.num_experts, rank, self.inputs, **how).uniform_(-bound, bound)
        b = torch.zeros(self.num_experts, self.outputs, rank, **how)
        for kind, matrix in zip("AB", (a, b), strict=True):
            self.experts.register_parameter(f"lora_{kind}_{self.leaf}", nn.Parameter(matrix))

    def matrices(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return A and B, given the parameters of the model by name."""
        module = self.name.removesuffix(self.leaf)
        return parameters[f"{module}lora_A_{self.leaf}"], parameters[f"{module}lora_B_{self.leaf}"]

    def saved(self, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return A [E · r, in] and B [out, r · E] in the form of peft, given those of the folder's
        tensors."""
        first = pairs[self.parts[0].layer]
        rank = first[0].shape[-2]
        a = first[0].new_empty(self.num_experts, rank, self.inputs)
        b = first[0].new_empty(self.num_experts, self.outputs, rank)
        for part in self.parts:
            part.put(pairs[part.layer], a, b)
        return a.flatten(0, 1), b.permute(1, 2, 0).flatten(1).contiguous()


def stacks(model: Any, model_dir: Path) -> Iterator[Stack]:
    """Yield the stacked parameters of a model's experts that can be adapted.

    Raises:
        TrainerError: some experts compute in a way of their own, or the folder has their tensors in
            another form.
    """
    files = tensor_heads(model_dir)
    for name, module in model.named_modules():
        if not is_experts(module):
            continue
        kind = type(module).__name__
        if not hasattr(module, "is_transposed") or not hasattr(module, "_apply_gate"):
            raise TrainerError(f"{kind} ({name}) compute in a way of their own")
        for leaf in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj"):
            its = f"{name}.{leaf}"
            parts = list(_parts(model, module, its, files.keys()))
            shape = tuple(module.get_parameter(leaf).shape)
            if not _covers(parts, shape, module.is_transposed):
                raise TrainerError(f"the folder has the matrices of {its} in another form")
            yield Stack(module, leaf, its, parts)


def _parts(model: Any, experts: Any, name: str, files: Any) -> Iterator[Part]:
    """Yield the folder's tensors that are made of a parameter, found by numbering its rows."""
    weight = experts.get_parameter(name.rpartition(".")[2])
    count, outputs = len(weight), weight.shape[2 if experts.is_transposed else 1]
    numbers = torch.arange(count * outputs * _WIDTH).view(count, outputs, _WIDTH)
    own = numbers.mT.contiguous() if experts.is_transposed else numbers
    made: Mapping[str, Tensor] = revert_weight_conversion(model, {name: own})
    prefix = f"{model.base_model_prefix}."
    for its, found in made.items():
        choices = (its, its.removeprefix(prefix), prefix + its)
        saved = next((it for it in choices if it in files), None)
        if saved is None or found.ndim not in (2, 3) or _WIDTH not in found.shape[-2:]:
            return
        is_transposed = found.shape[-1] != _WIDTH
        rows = (found.mT if is_transposed else found)[..., 0] // _WIDTH  # [..., n]
        expert = int(rows[0]) // outputs if found.ndim == 2 else None
        first = int(rows.flatten()[0]) % outputs
        taken = slice(first, first + rows.shape[-1])
        expected = numbers[:, taken] if expert is None else numbers[expert, taken]
        if torch.equal(found, expected.mT if is_transposed else expected):
            yield Part(saved.removesuffix(".weight"), expert, taken, is_transposed)


def _covers(parts: list[Part], shape: tuple[int, ...], is_transposed: bool) -> bool:
    """Return whether the parts are the complete parameter."""
    count, outputs = shape[0], shape[2 if is_transposed else 1]
    sizes = [it.rows.stop - it.rows.start for it in parts]
    each = [
        size * (count if it.expert is None else 1) for it, size in zip(parts, sizes, strict=True)
    ]
    return sum(each) == count * outputs


class ExpertAdapter:
    """The adapters of the stacked parameters of one module, and its forward."""

    def __init__(self, experts: Any, leaves: frozenset[str], scaling: float) -> None:
        """Compute with adapters of the parameters `leaves` from now on."""
        self._leaves, self._scaling = leaves, scaling
        self.is_on = True
        experts.forward = partial(self._forward, experts)

    def _forward(self, experts: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return [n, H] for hidden states [n, H], with the ids and weights of each token's experts,
        [n, k]: what `grouped_mm_experts_forward` of transformers returns, and the adapters'."""
        k = ids.shape[-1]
        its, order = ids.reshape(-1).sort()
        counts = torch.bincount(its, minlength=len(experts.down_proj))
        ends = counts.cumsum(0, dtype=torch.int32)
        if experts.has_gate:
            x = self._product(experts, "gate_up_proj", hidden[order // k], its, ends)
            x = experts._apply_gate(x)
        else:
            x = self._product(experts, "up_proj", hidden[order // k], its, ends)
            x = experts.act_fn(x)
        x = self._product(experts, "down_proj", x, its, ends)
        if experts.has_post_expert_norm:
            x = experts.post_expert_norm(x)
        x = x * weights.reshape(-1)[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return x[back].unflatten(0, (-1, k)).sum(1).to(hidden.dtype)

    def _product(self, experts: Any, leaf: str, x: Tensor, its: Tensor, ends: Tensor) -> Tensor:
        """Return the outputs of a parameter for tokens that are sorted by their experts."""
        bias = getattr(experts, f"{leaf}_bias")[its] if experts.has_bias else None
        linear: Any = moe._grouped_linear
        found = linear(x, getattr(experts, leaf), ends, bias, experts.is_transposed)
        if not self.is_on or leaf not in self._leaves:
            return found
        a, b = (getattr(experts, f"lora_{kind}_{leaf}") for kind in "AB")
        fill = -a.shape[1] % _UNIT
        inner = linear(x, F.pad(a, (0, 0, 0, fill)), ends)
        return found + linear(inner, F.pad(b, (0, fill)), ends).to(found.dtype) * self._scaling
