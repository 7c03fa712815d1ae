"""The option `algo.loss = "module:function"`: a user's own objective.

    def loss(tokens: LossTokens, log_ratio: Tensor, **options) -> Tensor | TokenObjective

The function gets the trained tokens of one micro-batch and log u, [N]. The result is the objective
of each token, [N]: larger is better, before multiplication by behavior weight and aggregation
weight. `options` are those of `algo.loss_options`. The input and the output of the losses of this
package are the same classes. A function that reads `tokens.reference` declares it:

    @needs("reference")
    def loss(tokens, log_ratio): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from agentgym_rl.config import AlgoConfig
from agentgym_rl.core import ConfigError, explain, is_function_path
from agentgym_rl.runtime import import_function

from .inputs import LossTokens, TokenObjective
from .terms import provider

Need = Literal["reference", "every_row", "proximal", "entropy", "first"]
"""The data that a part of the objective may need. reference: log-probs of the reference model;
every_row: rows whose advantages are all 0 are computed too; proximal: log-probs of all tokens of
the batch under the weights at its start, before the first update; entropy: the entropy at each
token; first: the first token of each prediction. Terms may provide more (`Term.provides`)."""

_MARK = "needs"
"""The attribute of a function or term that holds its needs."""

F = TypeVar("F", bound=Callable[..., Any])


def needs(*things: Need | str) -> Callable[[F], F]:
    """Return a decorator that declares what a function for `algo.loss` or `algo.advantage` needs
    of a batch."""
    others = [thing for thing in things if thing not in get_args(Need)]
    if unknown := [thing for thing in others if provider(thing) is None]:
        raise ValueError(f"needs {unknown}; expected some of {', '.join(get_args(Need))}")

    def declare(function: F) -> F:
        setattr(function, _MARK, frozenset(things))
        return function

    return declare


def needs_of(part: object) -> frozenset[str]:
    """Return the needs of a term or function of the objective. A loss that reads the reference may
    have a gradient where the advantage is 0: it needs every row, too."""
    found: frozenset[str] = frozenset(getattr(part, _MARK, ()))
    return found | {"every_row"} if "reference" in found else found


def own_objective(tokens: LossTokens, log_ratio: Tensor, algo: AlgoConfig) -> TokenObjective:
    """Return the objective of the tokens by the function `algo.loss`; `log_ratio` is 0 for a
    dropped one.

    Raises:
        ConfigError: there is no such function, it raised, or it returned something else; the
            message has the value, and what is allowed.
    """
    function = _function(algo.loss, tuple(algo.loss_options))
    try:
        found = function(tokens, log_ratio, **algo.loss_options)
    except Exception as error:
        raise ConfigError(f"algo.loss={algo.loss!r} raised {explain(error)}") from error
    if isinstance(found, Tensor):
        found = TokenObjective(found, torch.zeros_like(tokens.live))
    if not isinstance(found, TokenObjective):
        raise _returned(algo, f"a {type(found).__name__}")
    for name, part in found._asdict().items():
        if not isinstance(part, Tensor) or part.shape != tokens.logprobs.shape:
            got = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise _returned(algo, f"{got} as {name} of {len(tokens.logprobs)} tokens")
    return found


def check_loss(algo: AlgoConfig) -> None:
    """Try a user's own function on six synthetic tokens, one of them dropped.

    Raises:
        ConfigError: see `own_objective`; or value or gradient is not finite, or the gradient is 0.
    """
    if not is_function_path(algo.loss):
        return
    tokens = made_up_tokens()
    if "reference" not in loss_needs(algo):
        tokens = replace(tokens, reference=None)
    found = own_objective(tokens, tokens.log_ratio, algo)
    gained = found.value[tokens.live]
    if not bool(torch.isfinite(gained).all()):
        raise _returned(algo, f"{list(map(float, gained.detach()))}, not all finite")
    if not gained.requires_grad:
        raise _returned(algo, "an objective without gradient: compute it from tokens.logprobs")
    (gradient,) = torch.autograd.grad(gained.sum(), tokens.logprobs)
    if not bool(torch.isfinite(gradient).all() and gradient.any()):
        raise _returned(algo, f"an objective with the gradient {list(map(float, gradient))}")


def loss_needs(algo: AlgoConfig) -> frozenset[str]:
    """Return the needs of the user's own function `algo.loss`; empty for a built-in loss.

    Raises:
        ConfigError: see `own_objective`.
    """
    if not is_function_path(algo.loss):
        return frozenset()
    return needs_of(_function(algo.loss, tuple(algo.loss_options)))


@functools.cache
def _function(path: str, options: tuple[str, ...]) -> Callable[..., object]:
    return import_function(
        "algo.loss", path, gets="tokens, log_ratio", options=dict.fromkeys(options)
    )


def _returned(algo: AlgoConfig, what: str) -> ConfigError:
    return ConfigError(
        f"algo.loss={algo.loss!r} returned {what}; expected the objective of each token, a tensor "
        "[N] like tokens.logprobs, or a TokenObjective (arl docs algorithms#a-loss-of-your-own)"
    )


def made_up_tokens() -> LossTokens:
    """Return six tokens of two rows for a trial, one of them dropped."""
    logprobs = torch.tensor([-1.0, -0.5, -2.0, -0.1, -1.5, -3.0], requires_grad=True)
    anchor = torch.tensor([-1.1, -0.5, -1.7, -0.3, -1.5, -3.0])
    kept = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    return LossTokens(
        logprobs=logprobs,
        anchor=anchor,
        behavior_logprobs=anchor - 0.05,
        behavior_weight=kept,
        advantages=torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5, -0.5]),
        weights=torch.full((6,), 1 / 6),
        rows=torch.tensor([0, 0, 0, 1, 1, 1]),
        turns=torch.tensor([0, 0, 1, 0, 1, 1]),
        reference=anchor - 0.1,
        entropies=-logprobs,
        index=torch.arange(6),
        first=torch.arange(6),
    )
