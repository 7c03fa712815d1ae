"""The application of grammars to tokens by llguidance: by an engine while it samples, and again by
the gateway, which records the tokens that the grammar allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from agentgym_rl.core import Choices, choices_of, packed_set

from .lru_dict import LruDict

_NO_FIT = "doesn't satisfy the grammar"
"""The text of llguidance's error for a token that `allowed` excluded."""
_KEPT = 64
"""The number of compiled grammars that are kept."""
_QUIET = 0


class Constraint:
    """The position of one reply in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    @property
    def error(self) -> str:
        """Return the reason why the grammar cannot be followed any further; "" if it can."""
        return self._matcher.get_error().partition("\n<state>")[0]  # without a page of internals

    @property
    def is_too_complex(self) -> bool:
        """Return whether the grammar itself is the reason: a compiled expression may grow beyond
        all limits as it is followed. A token that does not fit is another reason."""
        return bool(self.error) and _NO_FIT not in self.error

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return a mask, [V], of the tokens allowed next; if no other is, only the end of
        sequence."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Advance by a sampled token; see `error`."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def copy(self) -> Constraint:
        """Return a copy at the same position, for another reply."""
        return Constraint(self._matcher.deep_copy(), self._vocab_size)

    def choices(self, tokens: Sequence[int]) -> Choices | None:
        """Advance by the tokens of a reply; return the set from which each was chosen. None: the
        grammar does not allow one of the tokens, so the engine followed another grammar."""
        masks: list[bytes] = []
        kept: dict[bytes, bytes] = {}  # one object for equal masks, of which there may be thousands
        for token in tokens:
            mask = self._matcher.compute_bitmask()
            if token >= 8 * len(mask) or not mask[token >> 3] >> (token & 7) & 1:
                return None
            masks.append(kept.setdefault(mask, mask))
            self.accept(token)
        return choices_of(masks, packed_set)


class GrammarError(ValueError):
    """The error of a text that is not a grammar, or of a grammar that no reply matches."""


class GrammarCompiler:
    """A cache of compiled grammars for one tokenizer. Any thread may compile."""

    def __init__(
        self, tokenizer_json: Callable[[], str], *, vocab_size: int, eos_ids: Sequence[int]
    ) -> None:
        """Store the arguments. `tokenizer_json`, the text of tokenizer.json, is first called with
        the first grammar."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_id = next(iter(eos_ids), None)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: LruDict[str, Constraint] = LruDict(_KEPT)
        self._lock = threading.Lock()

    def begin(self, grammar: str) -> Constraint:
        """Return the constraint at the beginning of a reply. The time is milliseconds, a second for
        a big schema, and possibly unlimited for some grammars.

        Raises:
            GrammarError: it is not a grammar, or no text matches it; or llguidance cannot read the
                tokenizer.
        """
        with self._lock:
            known = self._compiled.get(grammar)
            if self._tokenizer is None:
                self._tokenizer = self._read_tokenizer()
            tokenizer = self._tokenizer
        compiled = known or self._compile(grammar, tokenizer)
        with self._lock:
            self._compiled[grammar] = compiled
            return compiled.copy()

    def _read_tokenizer(self) -> LLTokenizer:
        text, size, eos = self._tokenizer_json(), self._vocab_size, self._eos_id
        try:
            return LLTokenizer(text, n_vocab=size, eos_token=eos)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # which is not a subclass of Exception
                raise
            raise GrammarError(
                "llguidance cannot read the model's tokenizer, which may have a token of more than "
                f"1024 bytes: {error}"
            ) from error

    def _compile(self, grammar: str, tokenizer: LLTokenizer) -> Constraint:
        source = LLMatcher.grammar_from_lark(grammar)
        matcher = LLMatcher(tokenizer, source, log_level=_QUIET)
        compiled = Constraint(matcher, self._vocab_size)
        tried = compiled.copy()
        tried.allowed()  # some grammars show only now that no text matches them
        if tried.error:
            raise GrammarError(f"the grammar cannot be followed: {tried.error}")
        return compiled
