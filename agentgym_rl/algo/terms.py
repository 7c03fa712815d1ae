"""The contract of a term of the objective.

A term is a class that a package registers by an entry point of the group `agentgym_rl.objectives`.
It is on in the runs whose configuration has its section, `algo.NAME`. Processes without torch
import it for the keys of its section.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from agentgym_rl.config import NoKeys, Section

if TYPE_CHECKING:
    from torch import Tensor

    from .aggregation import Tally
    from .needs import Need
    from .own_advantage import TokenBatch
    from .own_loss import LossTokens


class Term:
    """A term of the objective. A subclass has a `section` of keys, and any of the methods."""

    section: ClassVar[type[Section]] = NoKeys
    """The keys of the term, below `algo.NAME`."""
    needs: Collection[Need] = ()
    """The things that the term needs; an instance may set its own."""

    def __init__(self, keys: Section) -> None:
        """Keep the values of the term's keys, as `self.keys`."""
        self.keys = keys

    def advantages(self, batch: TokenBatch) -> Tensor | None:
        """Return what is added to the advantages of the tokens, [N]; collective."""
        return None

    def begin(self, batch: TokenBatch) -> None:
        """Prepare for a batch whose advantages are complete; collective."""

    def weights(self, batch: TokenBatch) -> Tensor | None:
        """Return factors of the behavior weights of the tokens, [N], after `begin`; 0 drops a
        token."""
        return None

    def objective(self, tokens: LossTokens) -> Tensor | None:
        """Return what is added to the objective of each token, [N]: larger is better. The behavior
        weight and the aggregation weight of the token apply to it."""
        return None

    def loss(self, tokens: LossTokens, tally: Tally) -> Tensor | None:
        """Return what is added to the loss of these tokens, a scalar: smaller is better. A sum over
        tokens, times `tokens.weights`, depends neither on packing nor on ranks."""
        return None

    def measure(self, batch: TokenBatch, used: Tensor, tally: Tally) -> None:
        """Add metrics of the tokens at the indices `used`, whose proximal log-probs are known."""
