"""A transformers model sharded over the trainer's ranks and fed with packed rows."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from agentgym_rl.algo.packing import PackedRows, lay_out
from agentgym_rl.config import LoraConfig, TrainerConfig
from agentgym_rl.core.errors import ConfigError, TrainerError
from agentgym_rl.weights.source import SourceNames, load_whole, set_own_attention

from .attention import SEGMENT_SDPA, VARLEN
from .lora import Adapter
from .sharding import KeptByLight, shard
from .usage import FlopCount
from .world import World

_log = logging.getLogger(__name__)

_ALONE = "alone"
"""The way to compute rows of models that no attention packs correctly: each in a pass of its own,
as transformers computes it."""


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
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self._trainer = trainer or TrainerConfig()
        self._own_attention = set_own_attention(self.model)
        self._attention, self.shares_prefixes = _choose_attention(
            self.model,
            self._own_attention,
            wanted=self._trainer.attention,
            longest=self._trainer.max_tokens_per_microbatch,
        )
        """The attention, and whether it computes rows with a common beginning as a tree."""
        self.packs = self._attention != _ALONE
        """A flag, false if a pass must hold a single row."""
        self._flops = FlopCount.of(self.model)  # needed while `_change_head` runs the model
        self.flops = 0.0
        """The operations of all passes so far, on this rank."""
        self.microbatch_tokens, light = self._most_tokens(compute_dtype)
        """The number of packed tokens of one forward, except for a row that alone has more."""
        self.computed_tokens = self.row_tokens = 0
        """The tokens of all passes so far, on this rank: those computed, and those of all rows."""
        self._change_head()
        self._flops = FlopCount.of(self.model)
        shard(self.model, world, compute_dtype, self._trainer, light=light)

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

    def _most_tokens(self, compute_dtype: str) -> tuple[int, bool]:
        """Return `trainer.max_tokens_per_microbatch`, and whether blocks are `light`.

        On a CPU they are if the activations of so many tokens would need more memory than `_SHARE`
        of the weights, or `_ROOM`, and then a micro-batch has as many tokens as fit. Neither
        changes a result.
        """
        most, trainer = self._trainer.max_tokens_per_microbatch, self._trainer
        learns = any(p.requires_grad for p in self.model.parameters())
        if not learns or trainer.activation_checkpointing or trainer.compile:
            return most, False
        if self.world.device.type != "cpu" or not self.packs:
            return most, False
        weights = sum(p.nbytes for p in self.model.parameters())
        room = max(_SHARE * weights, _ROOM) * (2 if compute_dtype == "bfloat16" else 1)
        segmented = self._attention != self._own_attention
        each, light = _activation_bytes(self.model, segmented=segmented)
        if most * each <= room:
            return most, False
        return max(_FEWEST_TOKENS, min(most, int(room / max(1, light)))), True

    def budget(self, lengths: Sequence[int]) -> int:
        """Return the budget in tokens of a micro-batch of rows of such lengths. A row longer than
        `trainer.max_tokens_per_microbatch` exceeds it, any other fits."""
        longest = max(lengths, default=0)
        return min(self._trainer.max_tokens_per_microbatch, max(self.microbatch_tokens, longest))

    def _change_head(self) -> None:
        """Change the output layer before the model is sharded; for subclasses."""

    def outputs(self, packed: PackedRows) -> Tensor:
        """Return outputs [P, …] of the output layer at the predictions, on the model's device.

        Gradients flow unless disabled. Collective: every rank calls this equally often.
        """
        self.flops += self._flops.of_pass(packed, gradients=torch.is_grad_enabled())
        self.computed_tokens += packed.tokens.shape[1]
        self.row_tokens += packed.num_row_tokens
        if self._attention == _ALONE:
            return _alone(self.model, packed)
        return _outputs(self.model, packed, segmented=self._attention != self._own_attention)

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Compute as transformers does, meanwhile, for comparison with packing. A pack must then
        hold a single row."""
        chosen, self._attention = self._attention, _ALONE
        self.model.set_attn_implementation(self._own_attention)
        try:
            yield
        finally:
            self._attention = chosen
            if self.packs:
                self.model.set_attn_implementation(chosen)

    def idle(self) -> Tensor:
        """Return a scalar 0 with zero gradients, to match another rank's extra micro-batch."""
        return self.outputs(_TWO_TOKENS.to(self.world.device)).sum() * 0.0

    def synchronize_gradients(self, enabled: bool) -> None:
        """Set whether the next backward reduces gradients over ranks, or only accumulates them."""
        if isinstance(self.model, FSDPModule):
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
    """Return [P, V] at `packed.positions`, by the only forward that a root-sharded model has."""
    boundaries: dict[str, Any] = {}
    if segmented:
        longest = max(packed.lengths)
        boundaries = {
            "cu_seq_lens_q": packed.cu_seqlens,
            "cu_seq_lens_k": packed.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    if packed.branches is not None:
        boundaries["branches"] = packed.branches.fresh(packed.tokens.device)
    # use_cache=False and no attention mask: with either, transformers treats the packed rows as one
    # sequence, and the log-probs are silently wrong.
    return model(
        packed.tokens,
        position_ids=packed.position_ids,
        use_cache=False,
        logits_to_keep=packed.positions,
        **boundaries,
    ).logits[0]


def _alone(model: Any, packed: PackedRows) -> Tensor:
    """Return [N, V] at `packed.positions` of a single row, by a forward without any of our own
    arguments about rows."""
    (_,) = packed.lengths
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kept = packed.positions
        return model(packed.tokens, use_cache=False, logits_to_keep=kept).logits[0]
    return model(packed.tokens, use_cache=False).logits[0, packed.positions]


def _activation_bytes(model: Any, *, segmented: bool) -> tuple[int, int]:
    """Return the bytes that the model's blocks keep for the gradient of one token, by trial, as
    they are and if they are light."""
    packed = _packed(_PROBES).to(model.device)
    one = replace(packed, positions=packed.positions[:1])  # the head's logits are no activation
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        alive = _outputs(model, one, segmented=segmented)  # and so are all tensors that it keeps
    with torch.no_grad(), KeptByLight(model) as light:
        _outputs(model, one, segmented=segmented)
    total = sum(kept.values())
    del alive
    return total // packed.tokens.numel(), light.total // packed.tokens.numel()


@torch.no_grad()
def _choose_attention(model: Any, own: str, *, wanted: str, longest: int) -> tuple[str, bool]:
    """Set, and return, the fastest attention that packs this model correctly, or the `wanted` one:
    a function that gets the row boundaries, or the model's `own`; `_ALONE`, with the model's own,
    if none does. Return also whether it packs rows with a common beginning as a tree. No trained
    row or pack has more than `longest` tokens.

    The choice is an experiment (packed against unpacked logits). A model that ignores row
    boundaries gives no error, only wrong log-probs. A model with local attention gives wrong ones
    only in rows that are longer than its windows.
    """
    rows = _rows_to_try(model, own, longest)
    kind = type(model).__name__
    failures: list[str] = []
    for name in (VARLEN,) if wanted == "varlen" else (SEGMENT_SDPA, own):
        if not (why := _wrong(model, name, own, rows)):
            return name, _packs_trees(model, name, own, rows)
        failures.append(f"{name}: {why}")
    if wanted == "varlen":
        raise TrainerError(
            f"{kind} cannot be packed with trainer.attention 'varlen': {'; '.join(failures)}. "
            "Remedy: trainer.attention 'rows'"
        )
    _log.warning(
        "rows of %s are computed one by one, which takes longer than packed: %s",
        kind,
        "; ".join(failures),
    )
    model.set_attn_implementation(own)
    return _ALONE, False


_FAILURES = (TrainerError, TypeError, ValueError, LookupError, RuntimeError, AttributeError)


def _rows_to_try(model: Any, own: str, longest: int) -> Sequence[Sequence[int]]:
    """Return rows of the lengths at which a model may compute differently.

    Raises:
        TrainerError: with the attention `own`, the tokens of such a row depend on later ones.
    """
    config = model.config.get_text_config().to_dict()
    limits = {n for name in _POSITIONS if (n := config.get(name)) and n < longest}
    spans = {span for span in _local_spans(config) if span < longest} | limits
    vocab_size = int(model.config.get_text_config().vocab_size)
    rows = list(_PROBES)
    if spans:
        # Together with the short rows, the pack is also longer than a table of positions.
        length = min(longest, max(spans) + 2 * _MOST_PROBED, *limits)
        rows.insert(1, _long_row(length, vocab_size))
    if not (changed := _changed_by_later_tokens(model, own, rows)):
        return rows
    what_to_do = "train another model"
    if getattr(model.config, "is_decoder", True) is False:
        what_to_do = 'set "is_decoder" to true in its config.json, which makes it causal'
    shorter = (_long_row(span, vocab_size) for span in sorted(spans, reverse=True) if span >= 16)
    longest_right = (len(row) for row in shorter if not _changed_by_later_tokens(model, own, [row]))
    if (length := next(longest_right, 0)) and not _changed_by_later_tokens(model, own, _PROBES):
        what_to_do += (
            f", or set trainer.max_tokens_per_microbatch to {length}, the length beyond which this "
            "one computes otherwise"
        )
    raise TrainerError(
        f"{type(model).__name__} cannot be trained, tried with rows of up to "
        f"{max(map(len, rows))} tokens: {changed}. Remedy: {what_to_do}"
    )


def _packs_trees(model: Any, name: str, own: str, rows: Sequence[Sequence[int]]) -> bool:
    """Return whether rows that branch off from these `rows` are right if common beginnings are
    packed once, under the attention `name`, which is set; log if not. They branch near the end, in
    the middle, and from a branch; one is the beginning of another."""
    tree = [*rows]
    for row in rows[:2]:  # with long rows, one of them
        middle, late = len(row) // 2, row[: len(row) - min(len(row) // 4, 20)]
        branch = (*row[:middle], *reversed(row[middle:][:20]))
        tree += [(*late, 6, 5, 8, 3), late, branch, (*branch[:-2], 4, 7)]
    why = f"its attention is {name}"
    if name == SEGMENT_SDPA and not (why := _wrong(model, name, own, tree, share=True)):
        return True
    _log.info(
        "%s computes what rows have in common once for each row: %s", type(model).__name__, why
    )
    return False


def _changed_by_later_tokens(model: Any, own: str, rows: Sequence[Sequence[int]]) -> str:
    """Return how the logits of a row's first tokens change with the tokens after them, under the
    attention `own`; "" if they do not, as in a causal model, whose engine has no later tokens."""
    model.set_attn_implementation(own)
    # Rows of other lengths are multiplied in other blocks, which shows in half precision.
    exact = model.dtype in (torch.float32, torch.float64)
    allowed = _PACKING_TOLERANCE if exact else _HALF_TOLERANCE
    for row in rows:
        half = len(row) // 2
        try:
            whole = _packed([row]).to(model.device)
            found = _alone(model, replace(whole, positions=torch.arange(half, device=model.device)))
            for length in {min(8, half), half}:
                expected = _alone(model, _packed([row[:length]]).to(model.device))
                difference = _difference(found[:length], expected)
                if not difference < allowed:
                    return (
                        f"the logits of the first {length} tokens of {len(row)} differ by "
                        f"{difference:.1e} from those without the others"
                    )
        except _FAILURES as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _wrong(
    model: Any, name: str, own: str, rows: Sequence[Sequence[int]], *, share: bool = False
) -> str:
    """Return how the packed rows' logits, under the attention `name`, which is set, differ from
    those of each row alone under the model's `own`; "" if they do not. With `share`, common
    beginnings of rows are packed once."""
    try:
        model.set_attn_implementation(own)
        expected = torch.cat([_alone(model, _probed([row]).to(model.device)) for row in rows])
        model.set_attn_implementation(name)
        packed = _probed(rows, share=share).to(model.device)
        found = _outputs(model, packed, segmented=name != own)
        difference = _difference(found, expected)
    except _FAILURES as error:
        return f"{type(error).__name__}: {error}"
    if difference < (_HALF_TOLERANCE if name == VARLEN else _PACKING_TOLERANCE):
        return ""
    return f"packed logits differ by {difference:.1e}"


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, in units of the largest expected value."""
    return float((found - expected).abs().max() / expected.abs().max())


_PACKING_TOLERANCE = 1e-4
_HALF_TOLERANCE = 0.05
_PROBES: Sequence[tuple[int, ...]] = ((3, 1, 4, 1, 5, 9, 2, 6), (5, 3, 5, 8), (9, 7, 9, 3, 2, 3))
_SPAN_NAMES = re.compile(
    "window|chunk|block|local|stride|span|index_topk|distance|bucket|floor_scale|original_max"
)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""The config attributes that name the longest row a model can compute."""
_NO_LENGTH = 2**31
_SHARE = 0.75
"""The memory of a micro-batch's activations on a CPU, as a share of the weights', which take four
times their own with gradients and Adam."""
_ROOM = 384 << 20
"""The bytes of activations below which a micro-batch on a CPU is not made smaller."""
_FEWEST_TOKENS = 64
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


def _probed(rows: Sequence[Sequence[int]], *, share: bool = False) -> PackedRows:
    """Return the rows packed; of long rows, only the last tokens and some earlier ones are
    compared."""
    half = _MOST_PROBED // 2
    kept: list[list[int]] = []
    for length in map(len, rows):
        seen = {*range(0, length, max(1, length // half)), *range(max(0, length - half), length)}
        kept.append(sorted(seen))
    return _packed(rows, kept, share=share)


def _packed(
    rows: Sequence[Sequence[int]],
    kept: Sequence[Sequence[int]] | None = None,
    *,
    share: bool = False,
) -> PackedRows:
    """Return the rows packed, with a prediction at the `kept` tokens of each row; None: all."""
    layout = lay_out([np.array(row) for row in rows], least=1 if share else None)
    each = kept or [range(len(row)) for row in rows]
    positions = np.concatenate([p[list(k)] for p, k in zip(layout.paths, each, strict=True)])
    count = len(positions)
    return layout.packed(
        positions, layout.tokens[positions], np.ones(count, np.float32), np.arange(count)
    )


def probe(device: torch.device) -> PackedRows:
    """Return a short row, at two temperatures."""
    packed = _packed(_PROBES[:1])
    packed.temperatures[::2] = 0.7
    return packed.to(device)


_TWO_TOKENS = _packed(((0, 0),))
