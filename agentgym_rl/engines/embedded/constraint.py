"""A reply that is held to a grammar, token by token. The work is llguidance's, as in vLLM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

_NO_FIT = "doesn't satisfy the grammar"
"""llguidance's words for a token that `allowed` did not have."""


class Constraint:
    """Where one reply is in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    @property
    def error(self) -> str:
        """Why the grammar cannot be followed any further; "" while it can."""
        return self._matcher.get_error().partition("\n<state>")[0]  # a page of its innards

    @property
    def is_too_complex(self) -> bool:
        """Whether the grammar itself is the reason: an expression that was compiled may grow
        beyond all limits as it is followed. A token that does not fit is another's fault."""
        return bool(self.error) and _NO_FIT not in self.error

    def allowed(self) -> npt.NDArray[np.bool_]:
        """[V]: which tokens may come next; the end of sequence where nothing else can."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Go on by a sampled token; see `error`."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def copy(self) -> Constraint:
        """Another reply, as far as this one."""
        return Constraint(self._matcher.deep_copy(), self._vocab_size)
