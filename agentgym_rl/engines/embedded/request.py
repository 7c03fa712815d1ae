"""The state of one request: its parameters, its output so far, and the search for stop strings in
it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from agentgym_rl.core.engine import FinishReason
from agentgym_rl.engines.protocol import VersionSpan
from agentgym_rl.runtime.grammars import Constraint


class StopStrings:
    """A detector that decodes a reply token by token and reports the first stop string to appear.

    Special tokens are part of the text. A stop string may span tokens and may begin inside one;
    text of an incomplete UTF-8 character is seen once the character is complete.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._stream = DecodeStream(skip_special_tokens=False)
        self._keep = max(len(text) for text in self._stop) - 1
        self._tail = ""

    def feed(self, token: int) -> str | None:
        """Return the stop string that `token` completes, if any; of several, the one that ends
        first."""
        text = self._stream.step(self._tokenizer, token)
        if not text:
            return None
        seen = self._tail + text
        found = [
            (at + len(stop), order, stop)
            for order, stop in enumerate(self._stop)
            if (at := seen.find(stop)) >= 0
        ]
        self._tail = seen[-self._keep :] if self._keep else ""
        return min(found)[2] if found else None


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of one row. `top_k` 0 and `top_p` 1 are off; `temperature` 0 is
    greedy."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    key: int
    """The random key, 64 bits: token i is drawn with uniform(key, i), whatever the other rows."""

    @property
    def restricted(self) -> bool:
        """Return True if some tokens of the vocabulary are excluded before sampling."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@dataclass(slots=True, eq=False)
class Request:
    """A request that only the decode thread writes; the event loop reads its `visible` first
    tokens."""

    id: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop_ids: dict[int, int | None]
    """The tokens that end the reply, each with its `stop_reason`."""
    stop_strings: StopStrings | None = None
    constraint: Constraint | None = None
    stream: bool = False
    with_logprobs: bool = True
    cache_salt: str = ""
    experts_from: int | None = None
    """The first position whose experts are wanted, and not noted yet; None: none are wanted."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    support: list[list[int]] = field(default_factory=list)
    """The ids that each token was drawn from, for a `restricted` request."""
    experts: list[npt.NDArray[np.int16]] = field(default_factory=list)
    """The experts of the tokens from the first `experts_from` on, in parts of [n, layers, k]."""
    version_starts: list[tuple[str, int]] = field(default_factory=list)
    """The pairs (label, index of the first token sampled under it), one per change of weights."""
    recomputed_at: list[int] = field(default_factory=list)
    """The token counts at which the KV cache was rebuilt under other weights."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    visible: int = 0
    done: bool = False
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    _label: str | None = None

    @property
    def num_fed(self) -> int:
        """Return the number of tokens in the cache when the last one is about to be fed."""
        return len(self.prompt) + len(self.token_ids) - 1

    @property
    def tokens(self) -> list[int]:
        """Return prompt and output."""
        return self.prompt + self.token_ids

    @property
    def fed_prompt(self) -> list[int]:
        """Return the tokens of the prompt that are in the cache then."""
        return self.prompt[: self.num_fed]

    @property
    def last_token(self) -> int:
        """Return the token to feed next."""
        return self.token_ids[-1] if self.token_ids else self.prompt[-1]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def append(
        self, token: int, logprob: float, time_s: float, label: str, support: list[int] | None
    ) -> bool:
        """Record a sampled token, drawn from `support` (None: from all); return True if it was the
        last one."""
        if label is not self._label:
            self._label = label
            self.version_starts.append((label, len(self.token_ids)))
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.times_s.append(time_s)
        if support is not None:
            self.support.append(support)
        if self.constraint is not None:
            self.constraint.accept(token)
            if error := self.constraint.error:
                self.error = f"the grammar cannot be followed any further: {error}"
        if token in self.stop_ids:
            self.finish_reason, self.stop_reason = "stop", self.stop_ids[token]
        elif self.stop_strings is not None and (found := self.stop_strings.feed(token)):
            self.finish_reason, self.stop_reason = "stop", found
        elif len(self.token_ids) >= self.max_tokens:
            self.finish_reason = "length"
        return self.finished

    def spans(self, start: int, end: int) -> list[VersionSpan]:
        """Return the version spans of output tokens [start, end), in indices of the complete
        output."""
        return [
            VersionSpan(label, max(first, start), min(last, end))
            for (label, first), (_, last) in pairwise([*self.version_starts, ("", end)])
            if max(first, start) < min(last, end)
        ]
