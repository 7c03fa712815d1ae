"""The trial by which a model's way to compute packed rows is chosen when it is loaded: packed rows
are compared with single rows, and so are shared beginnings; the memory of a token is measured."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from agentgym_rl.algo import PackedRows, relative_difference
from agentgym_rl.algo.packing import lay_out
from agentgym_rl.algo.rounding import tolerance
from agentgym_rl.core import TrainerError

from .attention import SEGMENT_SDPA, gpu_attentions
from .sharding import KeptByLight, blocks_of
from .spans import Pieces

_log = logging.getLogger(__name__)

ROW_BY_ROW = "alone"
"""The way to compute rows of models that no attention packs correctly: each in a pass of its own,
as transformers computes it."""
_FAILURES = (TrainerError, TypeError, ValueError, LookupError, RuntimeError, AttributeError)
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


def forward_packed(
    model: Any, packed: PackedRows, *, segmented: bool, pieces: Pieces | None = None
) -> Tensor:
    """Return [P, V] at `packed.positions`, by the only forward that a root-sharded model has.
    `pieces` are those of all tokens, if `packed` has some of them only."""
    boundaries: dict[str, Any] = {}
    if segmented:
        longest = max(packed.lengths)
        boundaries = {
            "cu_seq_lens_q": packed.cu_seqlens,
            "cu_seq_lens_k": packed.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
            "pieces": pieces or Pieces(packed.lengths, packed.branches, packed.tokens.device),
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


def forward_row_by_row(model: Any, packed: PackedRows) -> Tensor:
    """Return [N, V] at `packed.positions` of a single row, by a forward without any of our own
    arguments about rows."""
    (_,) = packed.lengths
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kept = packed.positions
        return model(packed.tokens, use_cache=False, logits_to_keep=kept).logits[0]
    return model(packed.tokens, use_cache=False).logits[0, packed.positions]


def activation_bytes(model: Any, *, segmented: bool) -> tuple[int, int]:
    """Return the bytes that the model's blocks keep for the gradient of one token, by trial, as
    they are and if they are light."""
    packed = pack_tokens(_PROBES).to(model.device)
    one = replace(packed, positions=packed.positions[:1])  # the head's logits are not activations
    kept, weights = dict[int, int](), set[int]()

    def look(*_: Any) -> None:
        weights.clear()
        weights.update(p.untyped_storage().data_ptr() for p in model.parameters())

    def note(tensor: Tensor) -> Tensor | None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in weights:
            return None
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    look()  # and again whenever memory changes hands: a block may be whole only while it computes
    hooks = [(it.register_forward_pre_hook, it.register_forward_hook) for it in blocks_of(model)]
    handles = [register(look) for pair in hooks for register in pair]
    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        # As long as this is alive, so are all tensors that it keeps, except weights.
        alive = forward_packed(model, one, segmented=segmented)
    for handle in handles:
        handle.remove()
    with torch.no_grad(), KeptByLight(model) as light:
        forward_packed(model, one, segmented=segmented)
    total = sum(kept.values())
    del alive
    return total // packed.tokens.numel(), light.total // packed.tokens.numel()


@torch.no_grad()
def choose_attention(
    model: Any, own: str, *, wanted: str, longest: int, half: bool = False
) -> tuple[str, bool]:
    """Set, and return, the fastest attention that packs this model correctly, or the `wanted` one:
    a function that gets the row boundaries, or the model's `own`; `ROW_BY_ROW`, with the model's
    own, if none does. Return also whether it packs rows with a common beginning as a tree. No
    trained row or pack has more than `longest` tokens. Blocks compute in bfloat16 if `half`.

    The choice is an experiment (packed against unpacked logits). A model that ignores row
    boundaries gives no error, only wrong log-probs. A model with local attention gives wrong ones
    only in rows that are longer than its windows.
    """
    on_gpu, kind = _on_gpu(model), type(model).__name__
    demanded = wanted not in ("auto", "rows")
    if demanded and not on_gpu:
        raise TrainerError(
            f"trainer.attention {wanted!r} needs a GPU, and the model is on {model.device}; use "
            "rows"
        )
    rows = _rows_to_try(model, own, longest)
    found = gpu_attentions(wanted) if on_gpu else []
    at_once = {it.bfloat16 if half else it.float32: it for it in found}
    failures: list[str] = []
    for name in at_once if demanded else (*at_once, SEGMENT_SDPA, own):
        why = at_once[name].wrong(name, model) if name in at_once else ""
        rounds = half and name in at_once
        if not (why := why or _wrong(model, name, own, rows, rounds=rounds)):
            return name, _packs_trees(model, name, own, rows, rounds=rounds)
        failures.append(f"{name}: {why}")
        _log.info("%s is not packed with %s", kind, failures[-1])
    if demanded:
        raise TrainerError(
            f"{kind} cannot be packed with trainer.attention {wanted!r}: {'; '.join(failures)}. "
            "Remedy: trainer.attention 'rows'"
        )
    _log.warning(
        "rows of %s are computed one by one, which takes longer than packed: %s",
        kind,
        "; ".join(failures),
    )
    model.set_attn_implementation(own)
    return ROW_BY_ROW, False


def _on_gpu(model: Any) -> bool:
    return model.device.type == "cuda"


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


def _packs_trees(
    model: Any, name: str, own: str, rows: Sequence[Sequence[int]], *, rounds: bool
) -> bool:
    """Return whether rows that branch off from these `rows` are right if common beginnings are
    packed once, under the attention `name`, which is set; log if not. They branch near the end, in
    the middle, and from a branch; one is the beginning of another."""
    tree = [*rows]
    for row in rows[:2]:  # with long rows, one of them
        middle, late = len(row) // 2, row[: len(row) - min(len(row) // 4, 20)]
        branch = (*row[:middle], *reversed(row[middle:][:20]))
        tree += [(*late, 6, 5, 8, 3), late, branch, (*branch[:-2], 4, 7)]
    why = f"its attention is {name}"
    if name != own and not (why := _wrong(model, name, own, tree, share=True, rounds=rounds)):
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
    least = _PACKING_TOLERANCE if exact else _HALF_TOLERANCE
    for row in rows:
        half = len(row) // 2
        try:
            complete = pack_tokens([row]).to(model.device)
            complete = replace(complete, positions=torch.arange(half, device=model.device))
            compute = partial(forward_row_by_row, model, complete)
            found = compute()
            for length in {min(8, half), half}:
                expected = forward_row_by_row(model, pack_tokens([row[:length]]).to(model.device))
                difference = relative_difference(found[:length], expected)
                if not difference < tolerance(model, difference, least, compute):
                    return (
                        f"the logits of the first {length} tokens of {len(row)} differ by "
                        f"{difference:.1e} from those without the others"
                    )
        except _FAILURES as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _wrong(
    model: Any,
    name: str,
    own: str,
    rows: Sequence[Sequence[int]],
    *,
    share: bool = False,
    rounds: bool,
) -> str:
    """Return how the packed rows' logits, under the attention `name`, which is set, differ from
    those of each row by itself under the model's `own`; "" if they do not. With `share`, shared
    beginnings of rows are packed once; the attention `rounds` to bfloat16."""

    def compute() -> Tensor:
        model.set_attn_implementation(own)
        return torch.cat(
            [forward_row_by_row(model, _probed([row]).to(model.device)) for row in rows]
        )

    try:
        expected = compute()
        model.set_attn_implementation(name)
        packed = _probed(rows, share=share).to(model.device)
        found = forward_packed(model, packed, segmented=name != own)
        difference = relative_difference(found, expected)
        least = _HALF_TOLERANCE if rounds else _PACKING_TOLERANCE
        allowed = tolerance(model, difference, least, compute)
        model.set_attn_implementation(name)
    except _FAILURES as error:
        return f"{type(error).__name__}: {error}"
    return "" if difference < allowed else f"packed logits differ by {difference:.1e}"


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
    return pack_tokens(rows, kept, share=share)


def pack_tokens(
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
    packed = pack_tokens(_PROBES[:1])
    packed.temperatures[::2] = 0.7
    return packed.to(device)
