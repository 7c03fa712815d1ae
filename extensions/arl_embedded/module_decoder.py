"""Decoding by the model's own forward, for architectures that the fused path does not support."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from agentgym_rl.algo import Routers
from agentgym_rl.core import UNKNOWN_EXPERT

from .batch import SlotKV
from .cache import causal_mask, token_places
from .decoder import Decoder, Segment, Swap


def cache_argument(module: Any) -> str:
    """Return the name of the KV cache argument of `module.forward`; transformers 5.24 renamed
    it."""
    accepted = inspect.signature(module.forward).parameters
    return "cache" if "cache" in accepted else "past_key_values"


class ModuleDecoder(Decoder):
    """A base of the decoders that run a transformers module: its weights."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.device = module.device

    def stage(self, tensors: Mapping[str, Tensor], same: Collection[str] = ()) -> Swap:
        owners = self._module.state_dict(keep_vars=True)
        staged: dict[str, Tensor] = {}
        for name in tensors:
            if name in same:
                continue
            tensor = tensors[name]
            dtype = owners[name].dtype if tensor.is_floating_point() else tensor.dtype
            staged[name] = tensor.to(self.device, dtype)

        def swap() -> None:
            for name, tensor in staged.items():
                owners[name].data = tensor  # tied names share one parameter, so they follow

        return swap

    def move_weights(self, device: torch.device | None) -> None:
        for parameter in self._module.parameters():
            old = parameter.data
            parameter.data = old.to(device) if device is not None else old.new_empty(0)

    @property
    def weights_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self._module.parameters())


class CachedDecoder(ModuleDecoder):
    """A decoder by the model's forward on a slot cache, with explicit positions and masks."""

    name = "cached"

    def __init__(self, module: Any, kv: SlotKV, routers: Routers | None = None) -> None:
        super().__init__(module)
        self._routers = routers
        if routers is not None:  # experts are kept, copied and dropped with keys and values
            kv.add_layer((1, math.prod(routers.shape)), (1, 0), dtype=torch.int16)
        self._cache = SlotCache(kv)
        self._kv = kv
        accepted = inspect.signature(module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._cached = {cache_argument(module): self._cache}
        self.reusable = kv

    @staticmethod
    def obstacle(module: Any, max_model_len: int) -> str | None:
        """Return why `module` cannot be decoded like this; None if it can."""
        if "position_ids" not in inspect.signature(module.forward).parameters:
            return "its forward takes no position_ids"
        config = module.config
        kinds = set(getattr(config, "layer_types", None) or ())
        if not kinds <= {"full_attention", "sliding_attention"}:
            return f"layer types {sorted(kinds)}"
        window = getattr(config, "sliding_window", None)
        active = "sliding_attention" in kinds or (not kinds and window is not None)
        if active and (window is None or window < max_model_len):
            return f"a sliding window of {window} tokens within a context of {max_model_len}"
        return None

    def prefill(
        self, first: int, rows: Sequence[Sequence[int]], starts: Sequence[int] | None = None
    ) -> None:
        tokens, positions, length = token_places(rows, starts, self.device)
        dtype = self._module.dtype
        mask = None if starts is None else causal_mask(positions, length, dtype)
        self._kv.reserve(first + len(rows), length)
        self._cache.begin(first, positions, length, whole=starts is None)
        self._forward(tokens, positions, mask)

    def decode(self, tokens: Tensor, positions: Tensor, segments: Sequence[Segment]) -> Tensor:
        length = max(segment.length for segment in segments)
        self._kv.reserve(len(tokens), length)
        self._cache.begin(0, positions[:, None], length)
        mask = causal_mask(positions[:, None], length, self._module.dtype)
        return self._forward(tokens[:, None], positions[:, None], mask)[:, -1].float()

    def experts(self, slot: int, start: int, stop: int) -> Sequence[npt.NDArray[np.int16]]:
        if self._routers is None:
            return ()
        found = self._kv.layers[0][0][slot, 0, start:stop].cpu().numpy().copy()
        return (found.reshape(stop - start, *self._routers.shape),)

    def move(self, source: int, target: int, length: int) -> None:
        self._kv.move(source, target, length)

    def free_cache(self) -> None:
        self._kv.clear()

    @property
    def cache_bytes(self) -> int:
        return self._kv.num_bytes

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        logits = self._module(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **self._cached,
            **self._last_only,
        ).logits
        if self._routers is not None:
            chosen = self._routers.chosen.view(len(tokens), 1, tokens.shape[1], -1)
            self._cache.store(0, chosen, chosen[..., :0])
        return logits


class SlotCache(Cache):
    """A transformers cache over `SlotKV`: prompts fill slots, decode steps append one token."""

    def __init__(self, kv: SlotKV) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._others = len(kv.layers)
        """The number of layers before those of the model."""
        self._rows = slice(0, 0)
        self._slots = self._positions = torch.zeros(0, 0)
        self._length = 0
        self._whole = False

    def begin(self, first: int, positions: Tensor, length: int, *, whole: bool = False) -> None:
        """Prepare for a forward over tokens of slots first, first+1, ... at `positions` [n, L];
        `length` positions are attended to. With `whole`, nothing was cached before."""
        last = first + len(positions)
        if self._rows != slice(first, last):
            self._rows = slice(first, last)
            self._slots = torch.arange(first, last, device=positions.device)[:, None]
        self._positions, self._length, self._whole = positions, length, whole

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Store [b, heads, L, dim] and return all that the forward may attend to."""
        layer = layer_idx + self._others
        while len(self._kv.layers) <= layer:
            heads = (key_states.shape[1], key_states.shape[3])
            self._kv.add_layer(heads, (value_states.shape[1], value_states.shape[3]))
        return self.store(layer, key_states, value_states)

    def store(self, layer: int, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Do as `update` for a layer of the `SlotKV`."""
        keys, values = self._kv.layers[layer]
        if self._whole:
            keys[self._rows, :, : self._length] = key_states
            values[self._rows, :, : self._length] = value_states
            return key_states, value_states
        keys[self._slots, :, self._positions] = key_states.transpose(1, 2)
        values[self._slots, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self._whole else self._length - self._positions.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length, 0


class UncachedDecoder(ModuleDecoder):
    """A decoder that computes the complete sequence for every token: slow, but right for any causal
    model.

    There is no KV cache to keep, so after a weight update tokens are always sampled as if it had
    been recomputed.
    """

    name = "uncached"

    def __init__(
        self, module: Any, *, max_slots: int, max_length: int, routers: Routers | None = None
    ) -> None:
        super().__init__(module)
        size = max_slots, max_length
        self._tokens = torch.zeros(size, dtype=torch.long, device=self.device)
        self._routers = routers
        width = 0 if routers is None else math.prod(routers.shape)
        self._experts = torch.zeros(*size, width, dtype=torch.int16, device=self.device)
        self._known = torch.zeros(max_slots, dtype=torch.long, device=self.device)
        """The number of tokens of each slot whose experts are stored."""

    def prefill(
        self, first: int, rows: Sequence[Sequence[int]], starts: Sequence[int] | None = None
    ) -> None:
        assert starts is None, "there is no cache to begin with"
        tokens, _, length = token_places(rows, None, self.device)
        self._tokens[first : first + len(rows), :length] = tokens
        self._known[first : first + len(rows)] = 0

    def decode(self, tokens: Tensor, positions: Tensor, segments: Sequence[Segment]) -> Tensor:
        length = max(segment.length for segment in segments)
        rows = torch.arange(len(tokens), device=self.device)
        self._tokens[rows, positions] = tokens
        logits = self._module(
            input_ids=self._tokens[: len(tokens), :length], use_cache=False
        ).logits
        if self._routers is not None:  # a token keeps those of its first step
            chosen = self._routers.chosen.view(len(tokens), length, -1)
            places = torch.arange(length, device=self.device)
            new = (places >= self._known[: len(tokens), None]) & (places <= positions[:, None])
            self._experts[: len(tokens), :length][new] = chosen[new]
            self._known[: len(tokens)] = positions + 1
        return logits[rows, positions].float()

    def experts(self, slot: int, start: int, stop: int) -> Sequence[npt.NDArray[np.int16]]:
        if self._routers is None:
            return ()
        found = self._experts[slot, start:stop].cpu().numpy().copy()
        found[max(0, int(self._known[slot]) - start) :] = UNKNOWN_EXPERT
        return (found.reshape(stop - start, *self._routers.shape),)

    def move(self, source: int, target: int, length: int) -> None:
        self._tokens[target, :length] = self._tokens[source, :length]
        self._experts[target, :length] = self._experts[source, :length]
        self._known[target] = self._known[source]

    def free_cache(self) -> None:
        """Do nothing: there is no cache, only token ids."""

    @property
    def cache_bytes(self) -> int:
        return 0
