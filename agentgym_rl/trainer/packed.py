"""A transformers model sharded over the trainer's ranks and fed with packed rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from agentgym_rl.algo.packing import PackedRows
from agentgym_rl.config import LoraConfig, TrainerConfig
from agentgym_rl.core.errors import ConfigError, TrainerError
from agentgym_rl.weights.source import SourceNames, load_whole

from .attention import SEGMENT_SDPA, VARLEN
from .lora import Adapter
from .sharding import shard
from .usage import FlopCount
from .world import World


class PackedModel:
    """A causal language model, sharded with FSDP2; a subclass defines its outputs per token."""

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
        """Take over `model` (a transformers causal LM, which may have an `adapter`): choose its
        attention, and shard it as configured by `trainer`."""
        # eval: dropout would make two log-probs of the same token differ.
        self.model = model.to(world.device).eval()
        self.world = world
        self.adapter = adapter
        """The adapter, which alone is trained if there is one."""
        self.names = names
        """The tensor names of the model's folder; None after a change of the model."""
        self.vocab_size = int(model.config.vocab_size)
        self._trainer = trainer or TrainerConfig()
        self._own_attention = _own_attention(self.model)
        self._attention = _choose_attention(
            self.model,
            self._own_attention,
            wanted=self._trainer.attention,
            longest=self._trainer.max_tokens_per_microbatch,
        )
        self._flops = FlopCount.of(self.model)  # needed while `_change_head` runs the model
        self.flops = 0.0
        """The operations of all passes so far, on this rank."""
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
        """Load the model in `model_dir`, as saved by transformers; a `frozen` one is never trained.
        If `lora` has a rank, only an adapter is trained, initialized from `seed`.

        Parameters are kept as `master_dtype`. `compute_dtype` bfloat16 computes the blocks in
        bfloat16, everything outside the blocks (the head included) in `master_dtype`, and reduces
        gradients in float32.

        Raises:
            TrainerError: there is no model that transformers can load and this module can pack.
            ConfigError: `lora` needs peft, which is not installed.
        """
        try:
            model, names = load_whole(model_dir, dtype=master_dtype)
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
        """Change the output layer before the model is sharded; for subclasses."""

    def outputs(self, packed: PackedRows) -> Tensor:
        """Return outputs [N, …] of the output layer at the trained tokens, on the model's device.

        Gradients flow unless disabled. Collective: every rank calls this equally often.
        """
        self.flops += self._flops.of_pass(packed, gradients=torch.is_grad_enabled())
        return _outputs(self.model, packed, segmented=self._attention != self._own_attention)

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Compute as transformers does, meanwhile, for comparison with packing. A pack must then
        hold a single row."""
        chosen, self._attention = self._attention, self._own_attention
        self.model.set_attn_implementation(self._own_attention)
        try:
            yield
        finally:
            self._attention = chosen
            self.model.set_attn_implementation(chosen)

    def idle(self) -> Tensor:
        """Return a scalar 0 with zero gradients, to match another rank's extra micro-batch."""
        return self.outputs(_TWO_TOKENS.to(self.world.device)).sum() * 0.0

    def synchronize_gradients(self, enabled: bool) -> None:
        """Set whether the next backward reduces gradients over ranks, or only accumulates them."""
        self.model.set_requires_gradient_sync(enabled)

    def full_state(self) -> dict[str, Tensor]:
        """Return the unsharded weights on the CPU, with an adapter merged: every tensor of the
        model's folder, by its name there. A changed model uses its own names, and has tied tensors
        only once.

        Collective. Every rank takes part, only rank 0 gets the tensors (the others get {}); they
        may share memory with the parameters.
        """
        state = self.trained_state()
        return self.adapter.merged(state) if self.adapter and state else state

    def trained_state(self) -> dict[str, Tensor]:
        """Return what engines load besides the model's folder: the adapter (weights/adapter.py) if
        there is one, or else the `full_state`. Collective."""
        if self.adapter is not None:
            self._reshard()
            parameters = self.model.named_parameters()
            state = self._whole({name: p for name, p in parameters if p.requires_grad})
            return self.adapter.version(state) if state else {}
        state = self._whole(self.tensors())
        return self.names.of(state) if self.names and state else state

    def tensors(self) -> dict[str, Tensor]:
        """Return the shards of parameters and saved buffers, by the model's own names."""
        self._reshard()
        saved = self.model.state_dict().keys()
        buffers = {name: b for name, b in self.model.named_buffers() if name in saved}
        return {**dict(self.model.named_parameters()), **buffers}

    def _reshard(self) -> None:
        """Free gathered parameters: a forward without a backward leaves them in memory that the
        next gathering or checkpoint frees, so returned tensors must come from the shards."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, part in parts.items():
            whole = part.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            if self.world.rank == 0:
                state[name] = whole.cpu()
        return state


def _outputs(model: Any, packed: PackedRows, *, segmented: bool) -> Tensor:
    """Return [N, V] at `packed.positions`, by the only forward that a root-sharded model has."""
    boundaries: dict[str, Any] = {}
    if segmented:
        longest = max(packed.lengths)
        boundaries = {
            "cu_seq_lens_q": packed.cu_seqlens,
            "cu_seq_lens_k": packed.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    # use_cache=False and no attention mask: with either, transformers treats the packed rows as one
    # sequence, and the log-probs are silently wrong.
    return model(
        packed.tokens,
        position_ids=packed.position_ids,
        use_cache=False,
        logits_to_keep=packed.positions,
        **boundaries,
    ).logits[0]


def _own_attention(model: Any) -> str:
    """Set, and return, the attention that the model uses for rows that are not packed."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # SDPA cannot compute this model's attention
        model.set_attn_implementation("eager")
        return "eager"
    return "sdpa"


@torch.no_grad()
def _choose_attention(model: Any, own: str, *, wanted: str, longest: int) -> str:
    """Set, and return, the fastest attention that packs this model correctly, or the `wanted` one:
    a function that gets the row boundaries, or the model's `own`. No trained row or pack has more
    than `longest` tokens.

    The choice is an experiment (packed against unpacked logits). A model that ignores row
    boundaries gives no error, only wrong log-probs. A model with local attention gives wrong ones
    only in rows that are longer than its windows.
    """
    config = model.config.to_dict()
    limits = {n for name in _POSITIONS if (n := config.get(name)) and n < longest}
    spans = {span for span in _local_spans(config) if span < longest} | limits
    rows = list(_PROBES)
    if spans:
        # Together with the short rows, the pack is also longer than a table of positions.
        length = min(longest, max(spans) + 2 * _MOST_PROBED, *limits)
        rows.insert(1, _long_row(length, int(model.config.vocab_size)))
    names = (VARLEN,) if wanted == "varlen" else (SEGMENT_SDPA, own)
    failures: list[str] = []
    for name in names:
        if not (why := _wrong(model, name, own, rows)):
            return name
        failures.append(f"{name}: {why}")
    what_to_do = "train another model"
    lengths = sorted(span for span in spans if span >= 16)
    if lengths and not all(_wrong(model, name, own, _PROBES) for name in names):
        what_to_do += (
            ", or set trainer.max_tokens_per_microbatch to the length beyond which this one "
            f"computes otherwise: {' or '.join(map(str, lengths))}"
        )
    raise TrainerError(
        f"{type(model).__name__} cannot be packed, tried with rows of up to {max(map(len, rows))} "
        f"tokens: {'; '.join(failures)}. Remedy: {what_to_do}"
    )


def _wrong(model: Any, name: str, own: str, rows: Sequence[Sequence[int]]) -> str:
    """Return how the packed rows' logits, under the attention `name`, which is set, differ from
    those of each row alone under the model's `own`; "" if they do not."""
    try:
        model.set_attn_implementation(own)
        alone = [_outputs(model, _probed([row]).to(model.device), segmented=False) for row in rows]
        expected = torch.cat(alone)
        model.set_attn_implementation(name)
        found = _outputs(model, _probed(rows).to(model.device), segmented=name != own)
    except (TrainerError, TypeError, ValueError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    difference = float((found - expected).abs().max() / expected.abs().max())
    if difference < (_HALF_TOLERANCE if name == VARLEN else _PACKING_TOLERANCE):
        return ""
    return f"packed logits differ by {difference:.1e}"


_PACKING_TOLERANCE = 1e-4
_HALF_TOLERANCE = 0.05
_PROBES: Sequence[tuple[int, ...]] = ((3, 1, 4, 1, 5, 9, 2, 6), (5, 3, 5, 8), (9, 7, 9, 3, 2, 3))
_SPAN_NAMES = re.compile(
    "window|chunk|block|local|stride|span|index_topk|distance|bucket|floor_scale|original_max"
)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""The config attributes that name the longest row a model can compute."""
_NO_LENGTH = 2**31
_MOST_PROBED = 32
"""The number of tokens of a row whose logits are compared."""


def _local_spans(config: Mapping[str, Any]) -> set[int]:
    """Return the lengths in tokens at which a model may begin to compute differently, found by the
    names of config attributes: windows, chunks and blocks of attention, the number of tokens it
    attends to, the length that its positions are scaled from. A number that is no such length makes
    the probe longer, and no less correct."""
    spans: set[int] = set()
    for name, value in config.items():
        if isinstance(value, Mapping):
            spans |= _local_spans(value)
        elif _SPAN_NAMES.search(str(name)):
            values = value if isinstance(value, list | tuple) else [value]
            spans |= {int(it) for it in values if type(it) in (int, float) and 1 < it < _NO_LENGTH}
    return spans


def _long_row(length: int, vocab_size: int) -> tuple[int, ...]:
    """Return a row of varied tokens."""
    return tuple(3 + i * i % min(vocab_size - 3, 91) for i in range(length))


def _probed(rows: Sequence[Sequence[int]]) -> PackedRows:
    """Return the rows packed; of long rows, only the last tokens and some earlier ones are
    compared."""
    packed = _packed(rows)
    kept: list[int] = []
    start = 0
    for length in packed.lengths:
        half = _MOST_PROBED // 2
        step = max(1, length // half)
        seen = {*range(0, length, step), *range(max(0, length - half), length)}
        kept += [start + i for i in sorted(seen)]
        start += length
    return replace(packed, positions=torch.tensor(kept))


def _packed(rows: Sequence[Sequence[int]]) -> PackedRows:
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
    """Return a few short packed rows, at two temperatures."""
    packed = _packed(_PROBES)
    packed.temperatures[::2] = 0.7
    return packed.to(device)


_TWO_TOKENS = _packed(((0, 0),))
