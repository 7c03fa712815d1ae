"""Load a model folder and choose the fastest way to decode it that is right."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentgym_rl.config import EmbeddedEngineConfig
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.weights.source import load_whole

from .decoder import Decoder, WeightLayout
from .fused import FusedShape, FusedWeights
from .fused_decoder import FusedDecoder, rope_tables
from .kv import SlotKV
from .module_decoder import CachedDecoder, UncachedDecoder
from .selfcheck import self_check

log = logging.getLogger(__name__)

_MOVING_ROPE = {
    "dynamic": "max_position_embeddings",
    "longrope": "original_max_position_embeddings",
}
"""RoPE variants whose frequencies change beyond a length, which rows of a batch would share."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to decode."""

    decoder: Decoder
    layout: WeightLayout
    vocab_size: int
    max_model_len: int
    eos_ids: Sequence[int]


def load_model(folder: Path, config: EmbeddedEngineConfig) -> LoadedModel:
    """Load `folder` and check the decoder chosen against the model's own forward.

    Raises:
        ConfigError: no model there, no GPU where one is asked for, or no decoder agrees with
            the model.
    """
    device = pick_device(config.device)
    dtype = getattr(torch, config.dtype)
    module, names = load_whole(folder, dtype=dtype)
    module = module.to(device).eval().requires_grad_(False)
    limit = context_limit(module.config, config.max_model_len)
    return LoadedModel(
        decoder=choose_decoder(module, config, limit),
        layout=WeightLayout(module, dtype=dtype, names=names),
        vocab_size=module.get_input_embeddings().weight.shape[0],
        max_model_len=limit,
        eos_ids=_eos_ids(module),
    )


def pick_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one; raises ConfigError where `cuda` finds none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device is cuda, but this machine has no GPU torch can use")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def context_limit(config: Any, wanted: int) -> int:
    """`wanted`, cut to the positions the model has."""
    rope = getattr(config, "rope_parameters", None) or {}
    limits = [wanted, getattr(config, "max_position_embeddings", None)]
    moving = _MOVING_ROPE.get(rope.get("rope_type", "default"))
    if moving is not None:
        limits.append(rope.get(moving) or getattr(config, moving, None))
    return min(limit for limit in limits if limit)


def choose_decoder(module: Any, config: EmbeddedEngineConfig, max_model_len: int) -> Decoder:
    """The first of fused, cached, uncached that fits the model and passes its self-check.

    Raises:
        ConfigError: not even the last one agrees with the model's own forward.
    """
    slots = config.decoded_together
    for make in (_fused, _cached, _uncached):
        decoder = make(module, config, max_model_len)
        if isinstance(decoder, str):
            log.info("not decoding by the %s path: %s", make.__name__.strip("_"), decoder)
        elif self_check(decoder, module, min(max_model_len, 48), rows=min(slots, 3)):
            log.info("decoding by the %s path", decoder.name)
            return decoder
    raise ConfigError(
        f"no decoder reproduces {type(module).__name__}; see the warnings above. "
        "Is it a causal language model in a supported dtype (engine.dtype)?"
    )


def _fused(module: Any, config: EmbeddedEngineConfig, max_model_len: int) -> Decoder | str:
    """The decoder, or the reason why it does not fit; so for the other two."""
    if config.fused == "never":
        return "engine.fused is never"
    shape = FusedShape.of(module)
    if isinstance(shape, str):
        return shape
    weights = FusedWeights.of(dict(module.named_parameters()), shape)
    rope = rope_tables(module, max_model_len, module.dtype)
    return FusedDecoder(weights, shape, rope, _cache(module, config, max_model_len, True))


def _cached(module: Any, config: EmbeddedEngineConfig, max_model_len: int) -> Decoder | str:
    obstacle = CachedDecoder.obstacle(module, max_model_len)
    if obstacle is not None:
        return obstacle
    return CachedDecoder(module, _cache(module, config, max_model_len, False))


def _uncached(module: Any, config: EmbeddedEngineConfig, max_model_len: int) -> Decoder | str:
    return UncachedDecoder(module, max_slots=config.decoded_together, max_length=max_model_len)


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
