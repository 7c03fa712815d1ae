"""The routers of a mixture of experts: their choices are recorded while an engine samples, and
replayed while the trainer computes the same tokens (routing replay, R3, arXiv:2510.11370).

Engine and trainer round differently, so they choose different experts for some tokens, whose
log-probs then differ by far more than rounding. A router that replays computes its own scores, and
with them the weights of the experts that were recorded, so gradients flow as usual.

Legend: [T] tokens of a forward, flat; [L] decoder layers; [k] experts of a token.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agentgym_rl.core import UNKNOWN_EXPERT, ConfigError

_log = logging.getLogger(__name__)

_ROUTER = re.compile("(TopKRouter|TopkRouter|Gate)$")
"""The classes of transformers whose forward chooses by `topk` and returns (logits, weights,
experts)."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")
_PROBE = (3, 1, 4, 1, 5, 9, 2, 6)


class Routers:
    """The routers of one model, whose forwards record and replay from now on."""

    def __init__(self, routers: Mapping[int, Any], *, num_layers: int) -> None:
        """Change the forwards of `routers`, which are given by their layers."""
        self.shape = (num_layers, next(iter(routers.values())).top_k)
        """The numbers of layers and of experts of a token: the shape of a token's experts."""
        self._routers = routers
        self._before = {layer: it.__dict__.get("forward") for layer, it in routers.items()}
        self._given: Tensor | None = None
        self._chosen: dict[int, Tensor] = {}
        self._differs: dict[int, Tensor] = {}
        compiler: Any = torch.compiler
        for layer, router in routers.items():
            routed = partial(self._routed, layer, router, router.forward)
            router.forward = compiler.disable(routed)  # outside of a compiled block

    @staticmethod
    def named(model: Any) -> dict[str, Any]:
        """Return the routers of a model by their names, also those that cannot replay."""
        return {name: m for name, m in model.named_modules() if _is_router(m)}

    @classmethod
    def of(cls, model: Any) -> Routers | str:
        """Return the routers of a causal language model, or the reason why it has none that can
        replay, found by trial."""
        experts = _experts(model)
        named = cls.named(model)
        layers = {int(it[1]): m for name, m in named.items() if (it := _LAYER.search(name))}
        if not experts and not named:
            return f"{type(model).__name__} has no experts"
        odd = type(experts[0]).__name__ if experts else type(next(iter(named.values()))).__name__
        if not len(experts) == len(named) == len(layers):
            return f"the router before {odd} is none of the known ones"
        if len({m.top_k for m in layers.values()}) > 1:
            return f"its layers give {odd} different numbers of experts"
        if any(getattr(m, "topk_method", "").startswith("group") for m in layers.values()):
            return f"{odd} are weighted by the groups that their router chose itself"
        routers = cls(layers, num_layers=model.config.get_text_config().num_hidden_layers)
        if why := routers._fault(model):
            routers._leave()
            return f"{type(next(iter(layers.values()))).__name__}: {why}"
        return routers

    def _leave(self) -> None:
        """Restore the routers' own forwards."""
        for layer, router in self._routers.items():
            del router.forward
            if self._before[layer] is not None:
                router.forward = self._before[layer]

    @property
    def chosen(self) -> Tensor:
        """Return the experts of all tokens of the last forward, [T, L, k] int16; zeros in layers
        without experts."""
        some = next(iter(self._chosen.values()))
        found = some.new_zeros(len(some), *self.shape, dtype=torch.int16)
        for layer, ids in self._chosen.items():
            found[:, layer] = ids
        return found

    def give(self, experts: Tensor | None) -> None:
        """Replay `experts`, [T, L, k], UNKNOWN_EXPERT where the router chooses itself, in all
        forwards from now on, also those that a backward pass repeats; None: replay nothing."""
        self._given = experts
        self._differs.clear()

    @property
    def differs(self) -> Tensor:
        """Return a mask, [T], of the tokens of the last forward that got a recorded expert which
        their router would not have chosen."""
        return torch.stack(list(self._differs.values())).any(0)

    @contextmanager
    def replaying(self, experts: Tensor | None) -> Generator[None]:
        """Replay `experts` while the context is open."""
        before, self._given = self._given, experts
        try:
            yield
        finally:
            self._given = before

    def _routed(self, layer: int, router: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if self._given is None:
            found = forward(*args, **kwargs)
        else:
            given = self._given[:, layer]
            with _Forced(given, num_experts=_num_experts(router)) as mode:
                found = forward(*args, **kwargs)
            self._differs[layer] = mode.differs
            if mode.times != 1 or found[2] is not mode.forced:
                raise RuntimeError(f"{type(router).__name__} did not take the recorded experts")
        self._chosen[layer] = found[2].detach()
        return found

    @torch.no_grad()
    def _fault(self, model: Any) -> str:
        """Return how the routers of `model` do not record or replay; "" if they do."""
        tokens = torch.tensor([_PROBE], device=model.device)

        def compute(experts: Tensor | None) -> Tensor:
            with self.replaying(experts):
                return model(tokens, use_cache=False).logits

        try:
            expected = compute(None)
            own = self.chosen
            same = compute(own)
            others = own.clone()
            count = min(map(_num_experts, self._routers.values()))
            for layer in self._chosen:
                others[:, layer] = (own[:, layer] + 1) % count
            different = compute(others)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        if own.shape != (len(_PROBE), *self.shape):
            return f"experts of shape {tuple(own.shape)}, expected {(len(_PROBE), *self.shape)}"
        if not torch.equal(self.chosen, others) or not bool(torch.isfinite(different).all()):
            return "it does not compute with experts that it has not chosen itself"
        if not torch.allclose(same.float(), expected.float(), rtol=1e-3, atol=1e-3):
            return "it computes otherwise when its own choice is replayed"
        return ""


def routers_of(model: Any, wanted: Literal["auto", "on", "off"]) -> Routers | None:
    """Return the routers of a causal language model, if `wanted`, the value of
    `engine.routing_replay`, selects them.

    Raises:
        ConfigError: `wanted` is "on", and the model has no routers that can replay.
    """
    if wanted == "off":
        return None
    found = Routers.of(model)
    if isinstance(found, Routers):
        return found
    if wanted == "on":
        raise ConfigError(
            f"engine.routing_replay 'on' has no effect on this model: {found}. Allowed: 'auto', "
            "which replays where a model can, or 'off'"
        )
    if _experts(model):
        _log.warning("routing is not replayed (engine.routing_replay): %s", found)
    return None


def is_experts(module: Any) -> bool:
    """Return whether a module has the experts of a layer, as stacked parameters."""
    return type(module).__name__.endswith("Experts")


def _experts(model: Any) -> list[Any]:
    return [*filter(is_experts, model.modules())]


def _is_router(module: Any) -> bool:
    named = _ROUTER.search(type(module).__name__) is not None
    return named and isinstance(getattr(module, "top_k", None), int) and bool(_num_experts(module))


def _num_experts(router: Any) -> int:
    """Return the number of experts that a router chooses from; 0 if it is not a router."""
    found = getattr(router, "num_experts", None)
    weight = getattr(router, "weight", None)
    return int(found or (len(weight) if isinstance(weight, Tensor) else 0))


class _Forced(TorchFunctionMode):
    """A replacement for the results of `topk` over all experts, while its context is open."""

    def __init__(self, given: Tensor, *, num_experts: int) -> None:
        super().__init__()
        self.times = 0
        self.forced: Tensor | None = None
        self.differs = given.new_zeros(len(given), dtype=torch.bool)
        self._given, self._num_experts = given, num_experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return found
        scores: Tensor = args[0] if args else kwargs["input"]
        shape = (len(self._given), self._num_experts)
        if tuple(scores.shape) != shape or found[1].shape != self._given.shape:
            return found  # of groups of experts, or of another number
        self.times += 1
        given = self._given.to(found[1].dtype)
        self.forced = torch.where(given == UNKNOWN_EXPERT, found[1], given)
        own, taken = (ids.detach().sort(-1).values for ids in (found[1], self.forced))
        self.differs = (own != taken).any(-1)
        return torch.return_types.topk((scores.gather(-1, self.forced), self.forced))
