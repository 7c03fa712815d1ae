"""The interface of a decoder (fill the cache, decode one token per row, change weights), and the
release of its memory in sleep mode, as in vLLM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentgym_rl.core import SleepLevel, WeightsError
from agentgym_rl.core.engine import Memory
from agentgym_rl.runtime import give_back_memory
from agentgym_rl.weights import LazyTensors, SourceNames, check_finite

from .admission import HttpError
from .cache import CopyableKV

Swap = Callable[[], None]


class Segment(NamedTuple):
    """A run of neighbouring slots [start, stop) that attend to at most `length` positions."""

    start: int
    stop: int
    length: int


class Decoder(ABC):
    """A causal model with a cache of rows in slots 0..b-1. One thread, in inference mode."""

    name: str
    device: torch.device
    reusable: CopyableKV | None = None
    """The cache, if rows can begin with tokens copied from it; None: `prefill` takes no starts."""

    @abstractmethod
    def prefill(
        self, first: int, rows: Sequence[Sequence[int]], starts: Sequence[int] | None = None
    ) -> None:
        """Cache the tokens of `rows` (none empty) in slots first, first+1, ...

        `starts`: the position of each row's first token, with all earlier ones in the cache
        already; None: 0.
        """

    @abstractmethod
    def decode(self, tokens: Tensor, positions: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Feed one token per row and return float32 logits [b, V] of the next token.

        Args:
            tokens: [b] token of slots 0..b-1.
            positions: [b] their positions; earlier ones of each slot are cached.
            segments: a partition of the slots in order, each with its max(positions) + 1, which the
                caller knows without a copy from the device.
        """

    def experts(self, slot: int, start: int, stop: int) -> Sequence[npt.NDArray[np.int16]]:
        """Return the experts, [stop - start, layers, k], that computed the tokens [start, stop) of
        a slot; nothing for a decoder that does not know them."""
        return ()

    @abstractmethod
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cached tokens of slot `source` to slot `target`."""

    @abstractmethod
    def free_cache(self) -> None:
        """Free the memory of the cache, which no row uses any more."""

    @abstractmethod
    def move_weights(self, device: torch.device | None) -> None:
        """Move the weights to `device`; they cannot decode unless it is `self.device`. None: drop
        them until a swap brings others."""

    @property
    @abstractmethod
    def weights_bytes(self) -> int:
        """Return the memory in bytes of the present weights, on any device."""

    @property
    @abstractmethod
    def cache_bytes(self) -> int:
        """Return the memory in bytes of the cache."""

    @abstractmethod
    def stage(self, tensors: Mapping[str, Tensor], same: Collection[str] = ()) -> Swap:
        """Prepare new weights while the old ones serve; calling the result puts them in place.

        The call comes from another thread than `decode`; the returned call is quick and cannot
        fail. `tensors` come from `WeightLayout.check`: every one is read once, one after the other,
        so that few are in memory in addition to the weights made of them. They are the decoder's
        own, which may keep them. Tensors that have the `same` numbers as those in place at the time
        of the call, complete blocks of them, need not be read.
        """


class WeightLayout:
    """The names, shapes and ties of a model's weights, which a weight file has to match. The file's
    names are those of the folder that the model was loaded from."""

    def __init__(self, module: torch.nn.Module, *, names: SourceNames) -> None:
        self._names = names
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._aliases: dict[str, str] = {}
        """The first name of each tied tensor, by its second name."""
        self._buffers = {name for name, _ in module.named_buffers()}
        first_name: dict[int, str] = {}
        for name, tensor in module.state_dict(keep_vars=True).items():
            known = first_name.setdefault(id(tensor), name)
            if known != name:
                self._aliases[name] = known
            else:
                self._shapes[name] = tuple(tensor.shape)

    @property
    def has_names_of_folder(self) -> bool:
        """Return whether the model's own names and tensors are those of its folder."""
        return not self._names.converts

    def check(self, tensors: Mapping[str, Tensor], *, source: str) -> Mapping[str, Tensor]:
        """Return `tensors` under the model's first names, each checked when it is read.

        Both float32 and bfloat16 files are accepted: rounding to the engine's dtype is what the
        engine would have done itself.

        Raises:
            WeightsError: a name is missing or unknown; for a tensor that is read, also if its
                shape, dtype or a value is wrong.
        """
        tensors = self._names.back(tensors, source=source)
        found: dict[str, list[str]] = {}
        for name in tensors:
            found.setdefault(self._aliases.get(name, name), []).append(name)
        if unknown := sorted(found.keys() - self._shapes.keys()):
            raise WeightsError(f"{source}: {unknown[0]} is no weight of this model")
        missing = sorted(set(self._shapes) - set(found) - self._buffers)
        if missing:
            raise WeightsError(
                f"{source}: {len(missing)} of {len(self._shapes)} weights are missing: "
                f"{', '.join(missing[:3])}"
            )

        def read(first: str) -> Tensor:
            name, *tied = found[first]
            tensor = tensors[name]
            self._check_one(name, first, tensor, source)
            for other in tied:
                if not torch.equal(tensor, tensors[other]):
                    raise WeightsError(f"{source}: {other} and {name} are tied but differ")
            return tensor

        return LazyTensors(found, read)

    def _check_one(self, name: str, first: str, tensor: Tensor, source: str) -> None:
        if tuple(tensor.shape) != self._shapes[first]:
            raise WeightsError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, expected {self._shapes[first]}"
            )
        if tensor.dtype not in (torch.float32, torch.bfloat16) and first not in self._buffers:
            raise WeightsError(
                f"{source}: {name} is {tensor.dtype}; allowed: torch.float32, torch.bfloat16"
            )
        check_finite(name, tensor, what=source)


_ALL: frozenset[Memory] = frozenset(get_args(Memory))


class Sleep:
    """A manager that frees and restores a decoder's memory. All methods run on the decode
    thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.asleep: frozenset[Memory] = frozenset()
        """The parts of the memory that have been released."""
        self._has_weights = True

    def fall(self, level: SleepLevel) -> None:
        """Release the cache, which no request may need any more, and the weights."""
        self._decoder.free_cache()
        if "weights" not in self.asleep:
            self._decoder.move_weights(torch.device("cpu") if level == 1 else None)
            self._has_weights = self._has_weights and level == 1
        self.asleep = _ALL
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()  # so that other processes can use it
        give_back_memory()

    def wake(self, tags: Iterable[Memory]) -> None:
        """Restore the memory of `tags`, except memory that is there already.

        Raises:
            HttpError: all would be awake, and there are no weights.
        """
        rest = self.asleep - set(tags)
        if not rest and not self._has_weights:
            raise HttpError(
                "the weights were dropped (sleep of level 2), and no new ones have come: POST "
                "/wake_up?tags=weights, update the weights, then POST /wake_up?tags=kv_cache",
                status=409,
                kind="ConflictError",
            )
        if "weights" in self.asleep - rest and self._has_weights:
            self._decoder.move_weights(self._decoder.device)
        self.asleep = rest

    def check_swap(self) -> None:
        """Check that new weights have memory; else raise HttpError."""
        if "weights" in self.asleep:
            raise HttpError(
                "the engine sleeps: POST /wake_up?tags=weights before its weights are replaced",
                status=409,
                kind="ConflictError",
            )

    def swapped(self) -> None:
        """Record that new weights are in place."""
        self._has_weights = True


def read_tags(found: Iterable[str]) -> frozenset[Memory]:
    """Return the tags of a request to wake; all if there are none.

    Raises:
        HttpError: there is no such tag.
    """
    tags = frozenset(found)
    if unknown := sorted(tags - _ALL):
        raise HttpError(f"wake_up tag {unknown[0]!r}; allowed: weights, kv_cache", param="tags")
    return cast("frozenset[Memory]", tags) or _ALL
