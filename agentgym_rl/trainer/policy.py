"""The policy being trained: a transformers model, sharded with FSDP2, and its log-probs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from agentgym_rl.algo.packing import PackedRows
from agentgym_rl.errors import TrainerError

from .attention import SEGMENT_SDPA
from .world import World


class Policy:
    """A causal language model over the ranks of `world`; float32 master weights."""

    def __init__(
        self,
        model: Any,
        world: World,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
    ):
        """Takes over `model` (a transformers causal LM): chooses its attention, shards it."""
        # eval: dropout would make two log-probs of the same token differ.
        self.model = model.to(world.device).eval()
        self.world = world
        self.vocab_size = int(model.config.vocab_size)
        self._segmented = _choose_attention(self.model)
        _shard(self.model, world, compute_dtype)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        world: World,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        master_dtype: torch.dtype = torch.float32,
        frozen: bool = False,
    ) -> Policy:
        """The model in `model_dir`, as transformers saves it; a `frozen` one never trains.

        `compute_dtype` bfloat16 computes forward and backward in bfloat16 and reduces gradients
        in float32 (experimental: not measured yet).

        Raises:
            TrainerError: the folder holds no model transformers can load or this module pack.
        """
        transformers_logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                model_dir, dtype=master_dtype, attn_implementation="sdpa", local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise TrainerError(f"cannot load the model in {model_dir}: {error}") from error
        return cls(model.requires_grad_(not frozen), world, compute_dtype=compute_dtype)

    def logprobs(self, packed: PackedRows) -> Tensor:
        """[N] log-probs of the packed trained tokens at the temperatures they were sampled at.

        Carries the gradient unless it is disabled. Collective: every rank calls it equally often.
        """
        packed = packed.to(self.world.device)
        logits = _logits(self.model, packed, segmented=self._segmented)
        if logits.dtype != torch.float64:
            logits = logits.float()
        logits = logits / packed.temperatures.to(logits.dtype)[:, None]
        return -F.cross_entropy(logits, packed.targets, reduction="none")

    def idle(self) -> Tensor:
        """A scalar 0 with zero gradients: keeps pace with ranks that have a micro-batch more."""
        return self.logprobs(_TWO_TOKENS).sum() * 0.0

    def synchronize_gradients(self, enabled: bool) -> None:
        """Whether the next backward reduces gradients over ranks, or only accumulates them."""
        self.model.set_requires_gradient_sync(enabled)

    def full_state(self) -> dict[str, Tensor]:
        """Unsharded weights on the CPU under their Hugging Face names; tied weights once.

        Collective. Every rank takes part, only rank 0 gets the tensors (the others get {});
        they may share memory with the parameters.
        """
        saved = self.model.state_dict().keys()
        parts: Mapping[str, Tensor] = {
            **dict(self.model.named_parameters()),
            **{name: buffer for name, buffer in self.model.named_buffers() if name in saved},
        }
        state: dict[str, Tensor] = {}
        for name, part in parts.items():
            whole = part.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            if self.world.rank == 0:
                state[name] = whole.cpu()
        return state


def _shard(model: nn.Module, world: World, compute_dtype: str) -> None:
    options: dict[str, Any] = {"mesh": world.mesh}
    if compute_dtype == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    if world.size == 1:
        options["reshard_after_forward"] = False  # nothing to save: the shard is the whole
    blocks = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in blocks:
            fully_shard(module, **options)
    fully_shard(model, **options)
    assert isinstance(model, FSDPModule)


def _logits(model: Any, packed: PackedRows, *, segmented: bool) -> Tensor:
    """[N, V] at `packed.positions`; the only way in, since a root-sharded model has but one."""
    boundaries: dict[str, Any] = {}
    if segmented:
        longest = max(packed.lengths)
        boundaries = {
            "cu_seq_lens_q": packed.cu_seqlens,
            "cu_seq_lens_k": packed.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    # use_cache=False and no attention mask: with either, transformers takes the packed rows for
    # one sequence, and the log-probs are silently wrong.
    return model(
        packed.tokens,
        position_ids=packed.position_ids,
        use_cache=False,
        logits_to_keep=packed.positions,
        **boundaries,
    ).logits[0]


@torch.no_grad()
def _choose_attention(model: Any) -> bool:
    """Set the fastest attention that packs this model correctly; True if it is segmented.

    Decided by experiment (packed against unpacked logits), since a model that ignores row
    boundaries gives no error, only wrong log-probs.
    """
    model.set_attn_implementation("sdpa")
    alone = [_logits(model, _packed(rows).to(model.device), segmented=False) for rows in _PROBES]
    expected = torch.cat(alone)
    together = _packed(tuple(row for rows in _PROBES for row in rows)).to(model.device)
    failures: list[str] = []
    for name in (SEGMENT_SDPA, "sdpa"):
        try:
            model.set_attn_implementation(name)
            found = _logits(model, together, segmented=name == SEGMENT_SDPA)
        except (TrainerError, TypeError, ValueError, KeyError, RuntimeError) as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        difference = float((found - expected).abs().max() / expected.abs().max())
        if difference < _PACKING_TOLERANCE:
            return name == SEGMENT_SDPA
        failures.append(f"{name}: packed logits differ by {difference:.1e}")
    raise TrainerError(f"{type(model).__name__} cannot be packed: {'; '.join(failures)}")


_PACKING_TOLERANCE = 1e-4
_PROBES = (((3, 1, 4, 1, 5, 9, 2, 6),), ((5, 3, 5, 8),), ((9, 7, 9, 3, 2, 3),))


def _packed(rows: tuple[tuple[int, ...], ...]) -> PackedRows:
    lengths = tuple(len(row) for row in rows)
    tokens = torch.tensor([token for row in rows for token in row])
    return PackedRows(
        tokens=tokens[None],
        position_ids=torch.cat([torch.arange(n) for n in lengths])[None],
        cu_seqlens=torch.tensor((0, *lengths)).cumsum(0).int(),
        lengths=lengths,
        positions=torch.arange(len(tokens)),
        targets=tokens,
        temperatures=torch.ones(len(tokens)),
    )


_TWO_TOKENS = _packed(((0, 0),))
