"""A `GPTModel` of Megatron-Core as a policy: packed rows in one sequence, kept apart by a mask."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu

from agentgym_rl.algo import PackedRows
from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, read_json, tensor_heads
from agentgym_rl.trainer import Policy, World
from agentgym_rl.weights import Piece
from agentgym_rl.weights.files import Kind

from .layout import Layout


class MegatronPolicy(Policy):
    """The policy. Of `Policy` it takes what follows from logits, and the packing of rows; it holds,
    computes and gathers the weights itself."""

    def __init__(self, config: Config, world: World, model_dir: Path) -> None:
        """Load the model in `model_dir` (collective).

        Raises:
            ConfigError: this backend cannot compute it, or not over so many ranks.
        """
        self.world, self._trainer = world, config.trainer
        self.adapter = self.names = None
        self.layout = Layout(_qwen3(model_dir, world.unit), world.rank % world.unit, world.unit)
        self._shapes = {name: head.shape for name, head in tensor_heads(model_dir).items()}
        self.vocab_size = int(self.layout.hf["vocab_size"])
        self.packs, self.shares_prefixes, self._light = True, False, False
        self.microbatch_tokens = config.trainer.max_tokens_per_microbatch
        self.flops, self.computed_tokens, self.row_tokens, self.fullest_tokens = 0.0, 0, 0, 0
        if parallel_state.model_parallel_is_initialized():
            parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=world.unit)
        model_parallel_cuda_manual_seed(config.seed)
        model = _model(self.layout).eval().to(world.device)
        self.own = dict(model.named_parameters())
        """The parameters, by Megatron-Core's names."""
        self.take(self.own, _read(model_dir))
        options = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        self.copies: Any = DistributedDataParallel(model.config, options, model)
        self.model = model

    def outputs(self, packed: PackedRows) -> Tensor:
        self.flops += packed.num_row_tokens  # a sign of life, not a count of operations
        self.computed_tokens += packed.tokens.shape[1]
        self.row_tokens += packed.num_row_tokens
        rows = torch.repeat_interleave(torch.tensor(packed.lengths, device=packed.tokens.device))
        others = rows[:, None] != rows
        barred = others | torch.ones_like(others).triu(1)  # other rows, and later tokens
        found = self.copies(packed.tokens, packed.position_ids, barred[None, None])
        return found[0, packed.positions]

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        yield

    def synchronize_gradients(self, last: bool) -> None:
        """Do nothing: Megatron-Core reduces gradients before a step."""

    @property
    def rounded_matrices(self) -> frozenset[str]:
        return frozenset(
            n for n, way, _ in self.layout.parameters() if way not in ("whole", "rows")
        )

    def pieces(self) -> list[Piece]:
        return [
            Piece((name,), {n: Kind(torch.float32, self._shapes[n]) for n in names})
            for name, _, names in self.layout.parameters()
        ]

    def gathered(self, owners: Sequence[int] | None = None) -> Iterator[dict[str, Tensor]]:
        for number, found in enumerate(self.whole(self.own)):
            yield found if self.world.rank == (owners[number] if owners else 0) else {}

    def whole(self, values: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Yield for each parameter the tensors of the folder that are made of values of its shape
        (collective)."""
        group, size = parallel_state.get_tensor_model_parallel_group(), self.layout.size
        for name, way, names in self.layout.parameters():
            own = values[name].detach().contiguous()
            parts = [own]
            if size > 1 and way != "whole":
                parts = [torch.empty_like(own) for _ in range(size)]
                dist.all_gather(parts, own, group=group)
            yield dict(zip(names, self.layout.tensors(way, parts), strict=True))

    @torch.no_grad()
    def take(self, values: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Fill values of the parameters' shapes from tensors with the folder's names."""
        for name, way, names in self.layout.parameters():
            values[name].copy_(self.layout.part(way, [tensors[n] for n in names]))


def _qwen3(model_dir: Path, size: int) -> Mapping[str, Any]:
    """Return the configuration of a model that `size` ranks can compute together.

    Raises:
        ConfigError: this backend cannot, or not over so many ranks.
    """
    hf = read_json(model_dir / "config.json")
    kind, rope = hf.get("model_type"), hf.get("rope_parameters") or {}
    if kind != "qwen3" or rope.get("rope_type", "default") != "default":
        raise ConfigError(f"trainer.backend 'megatron' computes Qwen3 alone, not {kind} {rope}")
    for name in ("vocab_size", "num_key_value_heads", "intermediate_size"):
        if hf[name] % size:
            raise ConfigError(
                f"trainer.mesh: t{size} does not divide the model's {name} {hf[name]}"
            )
    return hf


def _read(model_dir: Path) -> dict[str, Tensor]:
    files = {head.file for head in tensor_heads(model_dir).values()}
    return {name: it for file in files for name, it in load_file(file).items()}


def _model(layout: Layout) -> Any:
    """Return the model, its parameters as they come; attention and norms are Megatron-Core's own,
    which need no Transformer Engine."""
    hf = layout.hf
    config = TransformerConfig(
        num_layers=hf["num_hidden_layers"],
        hidden_size=hf["hidden_size"],
        num_attention_heads=hf["num_attention_heads"],
        num_query_groups=hf["num_key_value_heads"],
        kv_channels=hf["head_dim"],
        ffn_hidden_size=hf["intermediate_size"],
        layernorm_epsilon=hf["rms_norm_eps"],
        normalization="RMSNorm",
        qk_layernorm=True,  # or ranks would not add up the gradients of these norms
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.size,
        calculate_per_token_loss=True,  # gradients are added up, not averaged
        use_cpu_initialization=True,
        # The fusions need kernels of Apex or of Transformer Engine.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=hf["vocab_size"],
        max_sequence_length=hf["max_position_embeddings"],
        position_embedding_type="rope",
        rotary_base=hf["rope_parameters"]["rope_theta"],
        share_embeddings_and_output_weights=hf["tie_word_embeddings"],
        parallel_output=False,  # logits of the complete vocabulary
    )
