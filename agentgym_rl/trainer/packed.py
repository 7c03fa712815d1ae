"""A transformers model over the trainer's ranks, fed packed rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from agentgym_rl.algo.packing import PackedRows
from agentgym_rl.config import LoraConfig, TrainerConfig
from agentgym_rl.errors import ConfigError, TrainerError
from agentgym_rl.weights.source import SourceNames, load_whole

from .attention import SEGMENT_SDPA, VARLEN
from .flops import FlopCount
from .lora import Adapter
from .sharding import shard
from .world import World


class PackedModel:
    """A causal language model, sharded with FSDP2; what it says of a token is its subclass's."""

    def __init__(
        self,
        model: Any,
        world: World,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        trainer: TrainerConfig | None = None,
        adapter: Adapter | None = None,
        names: SourceNames | None = None,
    ):
        """Takes over `model` (a transformers causal LM, which may have an `adapter`): chooses its
        attention, shards it as `trainer` says."""
        # eval: dropout would make two log-probs of the same token differ.
        self.model = model.to(world.device).eval()
        self.world = world
        self.adapter = adapter
        """All that trains, where there is one."""
        self.names = names
        """Those of the folder it was loaded from, where it was, and is still the same model."""
        self.vocab_size = int(model.config.vocab_size)
        self._trainer = trainer or TrainerConfig()
        self._segmented = _choose_attention(self.model, self._trainer.attention)
        self._flops = FlopCount.of(self.model)  # of what the change of the head computes
        self.flops = 0.0
        """Of all passes so far, on this rank."""
        self._change_head()
        self._flops = FlopCount.of(self.model)
        shard(self.model, world, compute_dtype, self._trainer)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        world: World,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "float32",
        master_dtype: torch.dtype = torch.float32,
        frozen: bool = False,
        trainer: TrainerConfig | None = None,
        lora: LoraConfig | None = None,
        seed: int = 0,
    ) -> Self:
        """The model in `model_dir`, as transformers saves it; a `frozen` one never trains. With
        `lora` of a rank, an adapter of it trains alone, and begins as `seed` says.

        Parameters are kept as `master_dtype`. `compute_dtype` bfloat16 computes the blocks in
        bfloat16, the head and whatever else is outside the blocks in `master_dtype`, and reduces
        gradients in float32.

        Raises:
            TrainerError: the folder holds no model transformers can load or this module pack.
            ConfigError: `lora` needs peft, which is not installed.
        """
        try:
            model, names = load_whole(model_dir, dtype=master_dtype, attention="sdpa")
        except ConfigError as error:
            raise TrainerError(str(error)) from error
        model.requires_grad_(not frozen)
        adapter = None
        if lora is not None and lora.rank:
            adapter = Adapter.on(model, lora, model_dir=model_dir, seed=seed)
        return cls(
            model,
            world,
            compute_dtype=compute_dtype,
            trainer=trainer,
            adapter=adapter,
            names=names,
        )

    def _change_head(self) -> None:
        """What a subclass does to the output layer before the model is sharded."""

    def outputs(self, packed: PackedRows) -> Tensor:
        """[N, …] of the output layer at the trained tokens, on the model's device.

        Carries the gradient unless it is disabled. Collective: every rank calls it equally often.
        """
        self.flops += self._flops.of_pass(packed, gradients=torch.is_grad_enabled())
        return _outputs(self.model, packed, segmented=self._segmented)

    def idle(self) -> Tensor:
        """A scalar 0 with zero gradients: keeps pace with ranks that have a micro-batch more."""
        return self.outputs(_TWO_TOKENS.to(self.world.device)).sum() * 0.0

    def synchronize_gradients(self, enabled: bool) -> None:
        """Whether the next backward reduces gradients over ranks, or only accumulates them."""
        self.model.set_requires_gradient_sync(enabled)

    def full_state(self) -> dict[str, Tensor]:
        """Unsharded weights on the CPU, an adapter merged: every tensor of the folder that the
        model was loaded from, by its name there. Of another model by its own, tied ones once.

        Collective. Every rank takes part, only rank 0 gets the tensors (the others get {});
        they may share memory with the parameters.
        """
        state = self.trained_state()
        return self.adapter.merged(state) if self.adapter and state else state

    def trained_state(self) -> dict[str, Tensor]:
        """What there is to know of the model beside the folder it was loaded from, as engines get
        it: the adapter (weights/adapter.py) if there is one, or else `full_state`. Collective."""
        # A forward without a backward leaves parameters gathered, in memory that the next gathering
        # or checkpoint frees: what is handed out must be the shards, or made of them.
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        parameters = self.model.named_parameters()
        if self.adapter is not None:
            state = self._whole({name: p for name, p in parameters if p.requires_grad})
            return self.adapter.version(state) if state else {}
        saved = self.model.state_dict().keys()
        buffers = {name: b for name, b in self.model.named_buffers() if name in saved}
        state = self._whole({**dict(parameters), **buffers})
        return self.names.of(state) if self.names and state else state

    def _whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, part in parts.items():
            whole = part.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            if self.world.rank == 0:
                state[name] = whole.cpu()
        return state


def _outputs(model: Any, packed: PackedRows, *, segmented: bool) -> Tensor:
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
def _choose_attention(model: Any, wanted: str) -> bool:
    """Set the fastest attention that packs this model correctly, or the one `wanted`; True if it
    is told where rows end.

    Decided by experiment (packed against unpacked logits), since a model that ignores row
    boundaries gives no error, only wrong log-probs.
    """
    model.set_attn_implementation("sdpa")
    alone = [_outputs(model, _packed(rows).to(model.device), segmented=False) for rows in _PROBES]
    expected = torch.cat(alone)
    together = _packed(tuple(row for rows in _PROBES for row in rows)).to(model.device)
    failures: list[str] = []
    for name in (VARLEN,) if wanted == "varlen" else (SEGMENT_SDPA, "sdpa"):
        try:
            model.set_attn_implementation(name)
            found = _outputs(model, together, segmented=name != "sdpa")
        except (TrainerError, TypeError, ValueError, KeyError, RuntimeError) as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        difference = float((found - expected).abs().max() / expected.abs().max())
        if difference < (_HALF_TOLERANCE if name == VARLEN else _PACKING_TOLERANCE):
            return name != "sdpa"
        failures.append(f"{name}: packed logits differ by {difference:.1e}")
    raise TrainerError(f"{type(model).__name__} cannot be packed: {'; '.join(failures)}")


_PACKING_TOLERANCE = 1e-4
_HALF_TOLERANCE = 0.05
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


def probe(device: torch.device) -> PackedRows:
    """A few short rows, at two temperatures."""
    packed = _packed(tuple(row for rows in _PROBES for row in rows))
    packed.temperatures[::2] = 0.7
    return packed.to(device)


_TWO_TOKENS = _packed(((0, 0),))
