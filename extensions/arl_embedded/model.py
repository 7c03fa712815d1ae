"""The loading of a model folder, and the choice of its fastest correct decoder. A self-check, once
at start, compares a decoder's logits with those of the model's own forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym_rl.algo import Routers, rounding, routers_of
from agentgym_rl.core import ConfigError
from agentgym_rl.models import weights_size
from agentgym_rl.runtime import give_back_memory
from agentgym_rl.weights import (
    LazyTensors,
    inner_linears,
    is_linear,
    load_whole,
    multiply_in,
    wide_linear,
)

from .batch import SlotKV, segments
from .cache import KVPiece
from .decoder import Decoder, WeightLayout
from .fused import FusedDecoder, FusedShape, Fusion, rope_tables
from .linear import gains_by_bfloat16
from .module_decoder import CachedDecoder, ModuleDecoder, UncachedDecoder
from .section import EmbeddedEngineConfig

log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""The `tolerance` of the self-check."""
_STEPS = 3
_LARGE = 100_000_000
"""The bytes of weights from which reading them, and not the overhead of operations, takes most of
the time."""


Comparison = Callable[[Decoder, Any, int, int], tuple[float, float]]


def self_check(
    decoder: Decoder,
    module: Any,
    length: int,
    *,
    rows: int,
    tolerance: float,
    compare: Comparison | None = None,
) -> bool:
    """Return True if all logits agree; else log a warning with the difference, or with the
    exception.

    The check does what a batch does: prompts of different lengths, a row that joins later, and a
    row that leaves, whose slot the last row takes over. Up to `rows` rows of up to `length` tokens.
    `tolerance` is the largest difference of a logit, per unit of the largest logit if that exceeds
    1, unless the model is found to amplify rounding. `compare` makes it another check.
    """
    try:
        with torch.inference_mode():
            difference, scale = (compare or _compare)(decoder, module, length, rows)
            unit = max(1.0, scale)
            samples = partial(_logits, module, [length] * rows)
            allowed = unit * rounding.tolerance(module, difference / unit, tolerance, samples)
    except Exception as error:  # architectures fail in different ways: try the next decoder
        log.warning("the %s decoder failed its self-check: %r", decoder.name, error)
        return False
    if difference <= allowed:
        log.debug("self-check of the %s decoder: max |d logit| %.2g", decoder.name, difference)
        return True
    log.warning(
        "the %s decoder differs from the model's own forward by %.3g (allowed: %.3g)",
        decoder.name,
        difference,
        allowed,
    )
    return False


def _compare(decoder: Decoder, module: Any, length: int, rows: int) -> tuple[float, float]:
    """Return (largest difference, largest logit) over a few decode steps."""
    starts = [max(1, length // divisor - _STEPS) for divisor in (2, 1, 3)][:rows]
    rows_tokens, expected = _samples(module, [start + _STEPS for start in starts])
    at = list(starts)  # cached tokens of each row before the next step
    slots = list(range(len(starts)))[:2]
    decoder.prefill(0, _prompts(rows_tokens, at, slots))
    worst = _step(decoder, rows_tokens, expected, at, slots)
    if len(starts) > 2:
        decoder.prefill(2, _prompts(rows_tokens, at, [2]))
        slots.append(2)
        worst = max(worst, _step(decoder, rows_tokens, expected, at, slots))
    if len(slots) > 1:
        leaving = slots.index(0)
        decoder.move(len(slots) - 1, leaving, at[slots[-1]])
        slots[leaving] = slots.pop()
        worst = max(worst, _step(decoder, rows_tokens, expected, at, slots))
    return worst, max(float(logits.abs().max()) for logits in expected)


def _compare_begun(decoder: Decoder, module: Any, length: int, rows: int) -> tuple[float, float]:
    """Return (largest difference, largest logit) of rows that begin with copied keys and values.

    A cache that also sums up its tokens, such as a recurrent state, cannot be cut at a token, nor
    can some models go on with several tokens at once: both differ here.
    """
    kv = decoder.reusable
    assert kv is not None
    ends = [max(2, length // divisor - 1) for divisor in (1, 2)][:rows]
    tokens, expected = _samples(module, [end + 1 for end in ends])
    cuts = [end // divisor for end, divisor in zip(ends, (2, 3), strict=False)]
    pieces: list[KVPiece] = []
    for row, end, cut in zip(tokens, ends, cuts, strict=True):
        decoder.prefill(0, [row[:end]])
        pieces.append(kv.read(0, 0, end).part(0, cut).copy())
    decoder.prefill(0, [row[end:0:-1] for row, end in zip(tokens, ends, strict=True)])
    for slot, piece in enumerate(pieces):
        if cuts[slot]:
            kv.write(slot, 0, piece)
    rest = [row[cut:end] for row, cut, end in zip(tokens, cuts, ends, strict=True)]
    decoder.prefill(0, rest, cuts)
    worst = _step(decoder, tokens, expected, ends, list(range(len(ends))))
    return worst, max(float(logits.abs().max()) for logits in expected)


def _samples(module: Any, lengths: Sequence[int]) -> tuple[list[list[int]], list[Tensor]]:
    """Return random rows of `lengths` tokens, and their logits by the model's own forward."""
    vocab = module.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]
    logits = [
        module(input_ids=torch.tensor([row], device=module.device), use_cache=False).logits[0]
        for row in rows
    ]
    return rows, logits


def _logits(module: Any, lengths: Sequence[int]) -> Tensor:
    """Return the logits of random rows of `lengths` tokens, one row after the other."""
    return torch.cat(_samples(module, lengths)[1]).float()


def _prompts(rows: list[list[int]], at: list[int], which: list[int]) -> list[list[int]]:
    return [rows[index][: at[index]] for index in which]


def _step(
    decoder: Decoder,
    rows: list[list[int]],
    expected: list[Tensor],
    at: list[int],
    slots: list[int],
) -> float:
    """Feed the next known token of each row; return the largest difference of the logits."""
    positions = [at[row] for row in slots]
    tokens = [rows[row][at[row]] for row in slots]
    logits = decoder.decode(
        torch.tensor(tokens, device=decoder.device),
        torch.tensor(positions, device=decoder.device),
        segments(positions, worth=0),
    )
    worst = 0.0
    for got, row in zip(logits, slots, strict=True):
        difference = float((got - expected[row][at[row]].float()).abs().max())
        worst = max(worst, difference if difference == difference else float("inf"))
        at[row] += 1
    return worst


_MOVING_ROPE = {
    "dynamic": "max_position_embeddings",
    "longrope": "original_max_position_embeddings",
}
"""The RoPE variants whose frequencies change beyond a length, which rows of a batch would share."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to decode."""

    decoder: Decoder
    layout: WeightLayout
    vocab_size: int
    max_model_len: int
    eos_ids: Sequence[int]


def load_model(folder: Path, config: EmbeddedEngineConfig) -> LoadedModel:
    """Load `folder` and check the chosen decoder against the model's own forward.

    Raises:
        ConfigError: there is no model, no GPU where one is required, or no decoder that agrees
            with the model.
    """
    device = pick_device(config.device)
    gains = gains_by_bfloat16(device)
    if config.dtype == "bfloat16" and not gains:
        log.warning(
            "engine.dtype is bfloat16, which this %s multiplies more slowly than float32",
            device.type,
        )
    elif config.dtype == "float32" and gains and weights_size(folder) > _LARGE:
        log.info(
            "this %s multiplies bfloat16 faster than float32: engine.dtype=bfloat16 would sample "
            "faster, and round (arl docs trainer)",
            device.type,
        )
    # On a CPU only the matrices of layers become bfloat16 (`Fusion`), and only for the fused path.
    wide = torch.float32 if device.type == "cpu" else getattr(torch, config.dtype)
    module, names = load_whole(folder, dtype=wide)
    module = module.to(device).eval().requires_grad_(False)
    head = module.get_output_embeddings()
    if device.type == "cuda" and is_linear(head) and head.bias is None:
        head.forward = lambda input: wide_linear(head.weight, input)  # logits are not rounded
    limit = context_limit(module.config, config.max_model_len)
    layout = WeightLayout(module, names=names)
    decoder = choose_decoder(module, config, limit)
    loaded = LoadedModel(
        decoder=decoder,
        layout=layout,
        vocab_size=module.get_input_embeddings().weight.shape[0],
        max_model_len=limit,
        eos_ids=_eos_ids(module),
    )
    if not isinstance(decoder, ModuleDecoder):
        module.to("meta")  # `names` refers to the module, whose numbers nobody needs any more
        give_back_memory()
    return loaded


def pick_device(name: str) -> torch.device:
    """Return the device; `auto` takes a GPU if there is one; raise ConfigError if `cuda` finds
    none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device is cuda, but this machine has no GPU torch can use")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def context_limit(config: Any, wanted: int) -> int:
    """Return `wanted`, limited to the positions that the model has."""
    rope = getattr(config, "rope_parameters", None) or {}
    limits = [wanted, getattr(config, "max_position_embeddings", None)]
    moving = _MOVING_ROPE.get(rope.get("rope_type", "default"))
    if moving is not None:
        limits.append(rope.get(moving) or getattr(config, moving, None))
    return min(limit for limit in limits if limit)


def choose_decoder(module: Any, config: EmbeddedEngineConfig, max_model_len: int) -> Decoder:
    """Return the first of fused, cached, uncached that fits the model and passes its self-check.

    Raises:
        ConfigError: not even the last one agrees with the model's own forward.
    """
    dtype = getattr(torch, config.dtype)
    routers = routers_of(module, config.routing_replay)
    agrees = partial(
        self_check,
        module=module,
        length=min(max_model_len, 48),
        rows=min(config.decoded_together, 3),
        tolerance=_TOLERANCE[dtype],
    )
    for make in (_fused, _cached, _uncached):
        if make is not _fused and module.dtype != dtype:
            _narrow(module, dtype)
        decoder = make(module, config, max_model_len, routers)
        if isinstance(decoder, str):
            log.info("not decoding by the %s path: %s", make.__name__.strip("_"), decoder)
        elif agrees(decoder):
            log.info("decoding by the %s path", decoder.name)
            if config.prefix_cache_bytes:
                _check_reuse(decoder, agrees)
            return decoder
    raise ConfigError(
        f"no decoder reproduces {type(module).__name__}; see the warnings above. "
        "Is it a causal language model in a supported dtype (engine.dtype)?"
    )


def _narrow(module: Any, dtype: torch.dtype) -> None:
    """Keep the weights of linear layers, except the head's, as `dtype`, and multiply in it."""
    multiply_in(module, dtype)
    for part in inner_linears(module):
        part.to(dtype)


def _check_reuse(decoder: Decoder, agrees: Callable[..., bool]) -> None:
    """Let a decoder reuse nothing if it has no cache, or one that fails the self-check."""
    if decoder.reusable is None:
        log.info("the %s decoder has no cache: every prompt is computed completely", decoder.name)
    elif not agrees(decoder, compare=_compare_begun):
        decoder.reusable = None
        log.warning("no prompt can begin with stored tokens: every prompt is computed completely")


def _fused(
    module: Any, config: EmbeddedEngineConfig, max_model_len: int, routers: Routers | None
) -> Decoder | str:
    """Return the decoder, or the reason why it does not fit; the next two functions do the same."""
    if routers is not None:
        return "it has experts"
    if config.fused == "never":
        return "engine.fused is never"
    shape = FusedShape.of(module)
    if isinstance(shape, str):
        return shape
    dtype = getattr(torch, config.dtype)
    single_rows = config.decoded_together == 1
    fusion = Fusion(
        shape, dtype=dtype, wide=module.dtype, device=module.device, single_rows=single_rows
    )
    loaded = dict(module.named_parameters())  # of memory that may be mapped from the folder
    weights = fusion.of(LazyTensors(loaded, lambda name: loaded[name].clone()))
    rope = rope_tables(module, max_model_len, module.dtype)
    return FusedDecoder(weights, fusion, rope, _cache(module, config, max_model_len, True))


def _cached(
    module: Any, config: EmbeddedEngineConfig, max_model_len: int, routers: Routers | None
) -> Decoder | str:
    obstacle = CachedDecoder.obstacle(module, max_model_len)
    if obstacle is not None:
        return obstacle
    return CachedDecoder(module, _cache(module, config, max_model_len, False), routers)


def _uncached(
    module: Any, config: EmbeddedEngineConfig, max_model_len: int, routers: Routers | None
) -> Decoder | str:
    slots = config.decoded_together
    return UncachedDecoder(module, max_slots=slots, max_length=max_model_len, routers=routers)


def _cache(
    module: Any, config: EmbeddedEngineConfig, max_model_len: int, transposed_keys: bool
) -> SlotKV:
    return SlotKV(
        max_slots=config.decoded_together,
        max_length=max_model_len,
        dtype=module.dtype,
        device=module.device,
        transposed_keys=transposed_keys,
    )


def _eos_ids(module: Any) -> list[int]:
    generation = getattr(module, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(module.config, "eos_token_id", None)
    if found is None:
        return []
    return [found] if isinstance(found, int) else list(found)
