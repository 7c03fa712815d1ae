"""What parts of the objective may need of a batch, and how a function of a user declares it:

    @needs("reference")
    def loss(tokens, log_ratio): ...

A module of its own without torch: terms, losses and advantages all import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

Need = Literal["reference", "every_row", "proximal", "teacher", "entropy"]
"""The things that a part of the objective may need. reference: log-probs of the reference model
(`algo.kl.reference`); every_row: rows whose advantages are all 0 are computed too; proximal:
log-probs of the whole batch under the weights at its start, before the first update; teacher: the
teaching of `algo.teacher.models`; entropy: the entropy at each token."""

_MARK = "needs"
"""The attribute of a function, and of a term, with what it needs."""

F = TypeVar("F", bound=Callable[..., Any])


def needs(*things: Need) -> Callable[[F], F]:
    """Return a decorator that declares what a function for `algo.loss` or `algo.advantage` needs
    of a batch."""
    if unknown := [thing for thing in things if thing not in get_args(Need)]:
        raise ValueError(f"needs {unknown}; expected some of {', '.join(get_args(Need))}")

    def declare(function: F) -> F:
        setattr(function, _MARK, frozenset(things))
        return function

    return declare


def needs_of(part: object) -> frozenset[str]:
    """Return what a term or a function of the objective needs. A loss that reads the reference may
    have a gradient where the advantage is 0: it needs every row, too."""
    found: frozenset[str] = frozenset(getattr(part, _MARK, ()))
    return found | {"every_row"} if "reference" in found else found
