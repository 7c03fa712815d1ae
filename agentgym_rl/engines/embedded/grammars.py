"""The grammars of replies, each compiled once for all replies that use it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from agentgym_rl.runtime.lru_dict import LruDict

from .admission import Refused
from .request import Constraint

_PARAM = "structured_outputs"
_KEPT = 64
"""The number of compiled grammars that are kept."""
_QUIET = 0


class Grammars:
    """A cache of compiled grammars for one tokenizer. Any thread may compile."""

    def __init__(self, tokenizer_file: Path, *, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer_file = tokenizer_file
        self._vocab_size = vocab_size
        self._eos_id = next(iter(eos_ids), None)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: LruDict[str, Constraint] = LruDict(_KEPT)
        self._lock = threading.Lock()

    def begin(self, grammar: str) -> Constraint:
        """Return the constraint at the beginning of a reply. The time is milliseconds, a second for
        a big schema, and possibly unlimited for some grammars.

        Raises:
            Refused: it is no grammar, or one that no text matches; or the model folder has no
                tokenizer to apply it with.
        """
        with self._lock:
            known = self._compiled.get(grammar)
            tokenizer = self._loaded()
        compiled = known or self._compile(grammar, tokenizer)
        with self._lock:
            self._compiled[grammar] = compiled
            return compiled.copy()

    def begin_aside(self, grammar: str) -> Future[Constraint]:
        """Run `begin` in a thread of its own, which keeps no other and no process from ending."""
        begun: Future[Constraint] = Future()

        def run() -> None:
            try:
                begun.set_result(self.begin(grammar))
            except BaseException as error:
                begun.set_exception(error)

        begun.set_running_or_notify_cancel()  # cannot be cancelled; callers may stop waiting
        threading.Thread(target=run, name="grammar", daemon=True).start()
        return begun

    def _compile(self, grammar: str, tokenizer: LLTokenizer) -> Constraint:
        source = LLMatcher.grammar_from_lark(grammar)
        matcher = LLMatcher(tokenizer, source, log_level=_QUIET)
        compiled = Constraint(matcher, self._vocab_size)
        tried = compiled.copy()
        tried.allowed()  # some grammars show only now that no text matches them
        if tried.error:
            raise Refused(f"the grammar cannot be followed: {tried.error}", param=_PARAM)
        return compiled

    def _loaded(self) -> LLTokenizer:
        if self._tokenizer is None:
            if not self._tokenizer_file.exists():
                name = self._tokenizer_file.name
                raise Refused(
                    f"a grammar needs {name}, which this model folder lacks", param=_PARAM
                )
            text = self._tokenizer_file.read_text(encoding="utf-8")
            self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos_id)
        return self._tokenizer
