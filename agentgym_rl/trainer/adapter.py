"""The contract of an adapter, which is trained in place of all weights: for each of some layers two
small matrices A and B. The layer computes with W + scaling · B A, where its own weights W are
frozen.

A package registers its class of adapters by an entry point of the group `agentgym_rl.adapters`,
under the name of the section of keys that turns it on, an `AdapterKeys` (core/added_keys.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from agentgym_rl.core import AdapterKeys, ConfigError, base_checksum, load_extension
from agentgym_rl.core.added_keys import ADAPTERS
from agentgym_rl.weights import LazyTensors
from agentgym_rl.weights.adapter import merged, named


class Adapter(ABC):
    """An adapter of a model, made by `on` before the model is sharded."""

    def __init__(self, model_dir: Path, *, scaling: float) -> None:
        self._model_dir = model_dir
        self._scaling = scaling
        self.base = base_checksum(model_dir)
        """The checksum of the frozen weights."""

    @classmethod
    @abstractmethod
    def on(cls, model: Any, keys: Any, *, model_dir: Path, seed: int) -> Self:
        """Freeze `model`, loaded from `model_dir`, and add an adapter to it that changes no output
        yet; with one `seed`, the adapter is the same on every rank. `keys` are its `AdapterKeys`.

        Raises:
            ConfigError: a package that it needs is not installed.
            TrainerError: these layers cannot be adapted, or engines could not merge them later.
        """

    @abstractmethod
    def pairs(self, parameters: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the matrices A [rank, in] and B [out, rank] of each layer, by the layer's name in
        the model's folder, from the trained `parameters` of the model, unsharded."""

    @abstractmethod
    def off(self) -> AbstractContextManager[None]:
        """Disable the adapter while the context is open: the model computes as its base."""

    @abstractmethod
    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the adapter `state`, a `version`, in peft's format to a folder, made if it is not
        there.

        Raises:
            OSError: it cannot be written.
        """

    def version(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the adapter in the format that engines load; `parameters` of the model,
        unsharded."""
        return named(self.pairs(parameters), scaling=self._scaling, base=self.base)

    def merged(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return all weights of the model with the adapter `state`, a `version`, merged in; float32
        or better, except integers. Each is computed when it is read."""
        whole = merged(state, self._model_dir)

        def read(name: str) -> Tensor:
            tensor = whole[name]
            if not tensor.is_floating_point():
                return tensor
            return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

        return LazyTensors(whole, read)


def add_adapter(model: Any, keys: AdapterKeys, *, model_dir: Path, seed: int) -> Adapter:
    """Add the adapter that `keys` describe to a model; see `Adapter.on`.

    Raises:
        ConfigError: no package has adapters of that name.
    """
    kind: object = load_extension(ADAPTERS, keys.place)
    if not (isinstance(kind, type) and issubclass(kind, Adapter)):
        raise ConfigError(
            f"{ADAPTERS} has {keys.place!r}, which is {kind!r:.80}; expected a subclass of "
            "agentgym_rl.trainer.Adapter"
        )
    return kind.on(model, keys, model_dir=model_dir, seed=seed)
