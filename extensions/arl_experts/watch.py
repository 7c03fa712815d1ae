"""The watch over the routers of a policy: the experts that they choose in its passes, and their
scores.

What counts is the trained tokens: for each of them the experts of the token before it, whose pass
predicts it. So a number of them is the same however rows are packed, whether or not rows share a
beginning, and however ranks divide rows, tokens, matrices and experts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentgym_rl.algo import PackedRows, Routers
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import Policy


class Pass(NamedTuple):
    """The part of a pass that this rank computed."""

    logits: Sequence[Tensor | None]
    """The logits of each router, [n, experts], with their gradient; None: it was not used."""
    counts: Tensor
    """The number of trained tokens that each of the n tokens predicts, [n] float64."""


class Watch:
    """A watch over all passes of one policy from now on."""

    def __init__(self, policy: Policy) -> None:
        """Begin; `of` makes one for each policy."""
        self.routers = Routers.named(policy.model)
        """The routers by their names, in the order of layers."""
        self.frozen: list[Tensor | None] = [None] * len(self.routers)
        """The number of tokens of each expert, for each router, in passes without gradients since
        they were cleared; on this rank alone."""
        self.trained: list[Tensor | None] = [None] * len(self.routers)
        """The same in passes with gradients."""
        self.keeps_passes = False
        """Whether the latest pass with gradients is kept."""
        self._latest: Pass | None = None
        self._world = policy.world
        self._seen: list[Any] | None = None
        """The results of routers in the present pass; None: there is none."""
        self._idles = False
        if self.routers:
            self._join(policy)

    @classmethod
    def of(cls, policy: Policy) -> Watch:
        """Return the watch over a policy, made if there is none."""
        if policy not in _WATCHES:
            _WATCHES[policy] = cls(policy)
        return _WATCHES[policy]

    def _join(self, policy: Any) -> None:
        compiler: Any = torch.compiler
        for place, router in enumerate(self.routers.values()):
            look = compiler.disable(partial(self._look, place))
            router.register_forward_hook(look)
        # Of this policy alone; its class is that of models without experts, too.
        policy.outputs = partial(self._outputs, policy.outputs)
        policy.idle = partial(self._idle, policy.idle)

    def clear(self, *, frozen: bool) -> None:
        """Forget the numbers of passes without gradients (`frozen`), or with them."""
        numbers = self.frozen if frozen else self.trained
        numbers[:] = [None] * len(numbers)

    @contextmanager
    def looking(self) -> Generator[list[Any]]:
        """Collect the results of routers, by layer, while the context is open; None for a router
        that is not used."""
        self._seen = [None] * len(self.routers)
        try:
            yield self._seen
        finally:
            self._seen = None

    def _look(self, place: int, router: Any, inputs: Any, found: Any) -> None:
        if self._seen is not None:  # a backward pass may compute the forward again
            self._seen[place] = found

    def _idle(self, compute: Callable[[], Tensor]) -> Tensor:
        """Compute tokens that are none of the batch."""
        self._idles = True
        try:
            return compute()
        finally:
            self._idles = False

    def _outputs(self, compute: Callable[[PackedRows], Tensor], packed: PackedRows) -> Tensor:
        """Compute a pass, and note what its routers chose."""
        if self._idles:
            return compute(packed)
        with self.looking() as seen:
            outputs = compute(packed)
        counts, with_gradients = self._counts(packed), torch.is_grad_enabled()
        numbers = self.trained if with_gradients else self.frozen
        for place, (name, found) in enumerate(zip(self.routers, seen, strict=True)):
            if found is not None:
                logits, ids = read(name, found, len(counts))
                its = load(ids, counts, logits.shape[1])
                before = numbers[place]
                numbers[place] = its if before is None else before + its
        if with_gradients and self.keeps_passes:
            logits = [None if found is None else found[0] for found in seen]
            self._latest = Pass(logits, counts)
        return outputs

    def taken(self) -> Pass:
        """Return the latest pass with gradients, once."""
        assert self._latest is not None
        found, self._latest = self._latest, None
        return found

    def _counts(self, packed: PackedRows) -> Tensor:
        """Return the number of trained tokens that each token of this rank predicts."""
        unit = self._world.unit
        own = -(-packed.tokens.shape[1] // unit)
        places = packed.positions[packed.index]
        ones = torch.ones(len(places), dtype=torch.float64, device=places.device)
        found = ones.new_zeros(own * unit).index_add_(0, places, ones)
        return found[self._world.rank % unit * own :][:own]


_WATCHES: WeakKeyDictionary[Policy, Watch] = WeakKeyDictionary()


def read(name: str, found: Any, count: int) -> tuple[Tensor, Tensor]:
    """Return the logits [n, experts] and the ids [n, k] in the result of a router.

    Raises:
        TrainerError: it returned something else.
    """
    if isinstance(found, tuple) and len(found) == 3:
        logits, _, ids = found
        shapes = [tuple(it.shape[:-1]) for it in (logits, ids)]
        if shapes == [(count,)] * 2 and not ids.is_floating_point():
            return logits, ids
    raise TrainerError(
        f"the router {name} does not return the logits and experts of {count} tokens"
    )


def load(ids: Tensor, counts: Tensor, num_experts: int) -> Tensor:
    """Return the number of tokens of each expert, [experts] float64, for the ids [n, k] of tokens
    that count `counts` [n] times."""
    each = counts[:, None].expand(ids.shape).reshape(-1)
    return counts.new_zeros(num_experts).index_add_(0, ids.detach().reshape(-1).long(), each)
