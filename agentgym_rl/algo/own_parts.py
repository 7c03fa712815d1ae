"""The trial of the user's own parts of the objective before training, and the needs of all
parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import get_args

import torch

from agentgym_rl.config import AlgoConfig, type_of
from agentgym_rl.core import ConfigError, explain, not_installed

from .aggregation import Tally
from .behavior import LogWeights
from .losses import correction_of
from .own_advantage import advantage_needs, check_advantage, made_up_batch
from .own_loss import Need, check_loss, loss_needs, made_up_tokens
from .terms import GROUP, Term, our_terms, provider, registered_terms

_ALWAYS_MET = {*get_args(Need)} - {"reference"}
"""The needs that the trainer meets itself; a term provides for any other."""


def check_own_parts(algo: AlgoConfig) -> frozenset[str]:
    """Try the functions of `algo.loss` and `algo.advantage`, and the terms of other packages, on
    made-up tokens; return the needs of all parts of the objective.

    Raises:
        ConfigError: one does not keep its contract, or needs models that the configuration does not
            name; or nothing needs what one provides.
    """
    ours, others = our_terms(algo), registered_terms(algo)
    terms = (*ours, *others.values())
    provided = _ALWAYS_MET | {term.provides for term in terms}
    wanted: dict[str, Collection[str]] = {
        f"algo.loss={algo.loss!r}": loss_needs(algo),
        f"algo.advantage={algo.advantage!r}": advantage_needs(algo),
        **{f"algo.{name}": term.needs for name, term in others.items()},
    }
    for who, its in wanted.items():
        for need in sorted(set(its) - provided):
            if (kind := provider(need)) is not None:
                raise ConfigError(f"{who} needs {kind.lacking}")
            raise not_installed(GROUP, f"{who} with the need {need!r}", "provides it")
    found = frozenset[str]().union(*wanted.values(), *(it.needs for it in ours))
    if idle := next((it.unused for it in terms if it.unused and it.provides not in found), ""):
        raise ConfigError(idle)
    check_loss(algo)
    check_advantage(algo)
    _check_correction(algo)
    for name, term in others.items():
        _check_term(f"algo.{name}", term)
    return found | {"proximal"} if algo.corrects_by_batch else found


def _check_correction(algo: AlgoConfig) -> None:
    """Try the correction of behavior weights on made-up tokens.

    Raises:
        ConfigError: there is none, it raised, or it returned other than weights and a mask.
    """
    if algo.naive:
        return
    tokens, keys = made_up_tokens(), algo.behavior_correction
    correction, logs = correction_of(keys), tokens.anchor - tokens.behavior_logprobs
    who = f"algo.behavior_correction.type={type_of(type(keys))!r}"
    try:
        number = correction.of_batch(logs, keys) if correction.needs_batch else math.inf
        found = correction.weights(LogWeights(logs, tokens.rows, logs.isfinite(), number), keys)
        shapes = [list(part.shape) for part in found]
    except Exception as error:  # foreign code runs: it can raise anything
        raise ConfigError(f"{who} raised {explain(error)}") from error
    if shapes != [[len(logs)]] * 2:
        raise ConfigError(
            f"{who} returned {shapes} for {len(logs)} tokens; expected BehaviorWeights, two "
            "tensors [N]"
        )


def _check_term(name: str, term: Term) -> None:
    """Try a term of another package, unless it has models or needs those of another term, which no
    trial has.

    Raises:
        ConfigError: a method raised, or returned a value that its contract does not allow.
    """
    if term.has_models or set(term.needs) - {*get_args(Need)}:
        return
    batch, tokens = made_up_batch(term.needs), made_up_tokens()
    tally, size = Tally(), len(batch.rows)
    batch.advantages = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)
    tokens = replace(
        tokens,
        reference=tokens.reference if "reference" in term.needs else None,
        entropies=tokens.entropies if "entropy" in term.needs else None,
    )
    used = torch.arange(size)
    trials: list[tuple[str, Callable[[], object], list[int]]] = [
        ("shaped", lambda: term.shaped(batch, batch.rewards), [len(batch.rewards)]),
        ("compared", lambda: term.compared(batch, torch.zeros_like), [len(batch.rewards)]),
        ("of_episodes", lambda: term.of_episodes(batch, batch.rewards), [len(batch.rewards)]),
        ("rewards", lambda: term.rewards(batch), [size]),
        ("returns", lambda: term.returns(batch), [size]),
        ("advantages", lambda: term.advantages(batch), [size]),
        ("begin", lambda: term.begin(batch), []),
        ("weights", lambda: term.weights(batch), [size]),
        ("uses", lambda: term.uses(batch), [size]),
        ("objective", lambda: term.objective(tokens), [len(tokens.logprobs)]),
        ("loss", lambda: term.loss(tokens, tally), []),
        ("measure", lambda: term.measure(batch, used, batch.behavior_logprobs, tally), []),
        ("end", lambda: term.end(batch), []),
    ]
    for method, act, shape in trials:
        try:
            found = act()
        except Exception as error:  # foreign code runs: it can raise anything
            raise ConfigError(f"{name}: {method} raised {explain(error)}") from error
        if found is None:
            continue
        got = list(found.shape) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        if got != shape:
            raise ConfigError(f"{name}: {method} returned {got}; expected a tensor {shape} or None")
