"""The sleep mode of the embedded engine, as in vLLM: it releases and restores memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

import torch

from agentgym_rl.core.engine import Memory, SleepLevel

from .admission import Refused
from .decoder import Decoder

_ALL: frozenset[Memory] = frozenset(get_args(Memory))


class Sleep:
    """A manager that frees and restores a decoder's memory. All methods run on the decode
    thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.asleep: frozenset[Memory] = frozenset()
        """The memory that has been released."""
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

    def wake(self, tags: Iterable[Memory]) -> None:
        """Restore the memory of `tags`, except memory that is there already.

        Raises:
            Refused: all would be awake, and there are no weights.
        """
        rest = self.asleep - set(tags)
        if not rest and not self._has_weights:
            raise Refused(
                "the weights were dropped (sleep of level 2), and no new ones have come: POST "
                "/wake_up?tags=weights, update the weights, then POST /wake_up?tags=kv_cache",
                status=409,
                kind="ConflictError",
            )
        if "weights" in self.asleep - rest and self._has_weights:
            self._decoder.move_weights(self._decoder.device)
        self.asleep = rest

    def check_swap(self) -> None:
        """Check that new weights have memory; else raise Refused."""
        if "weights" in self.asleep:
            raise Refused(
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
        Refused: there is no such tag.
    """
    tags = frozenset(found)
    if unknown := sorted(tags - _ALL):
        raise Refused(f"wake_up tag {unknown[0]!r}; allowed: weights, kv_cache", param="tags")
    return cast("frozenset[Memory]", tags) or _ALL
