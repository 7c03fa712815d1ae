"""The state of one request: its parameters, its output so far, and the search for stop strings in
it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from agentgym_rl.core import FinishReason
from agentgym_rl.engines import VersionSpan, protocol
from agentgym_rl.runtime import Constraint


class StopStrings:
    """A detector that decodes a reply token by token and reports the first stop string to appear.

    Special tokens are part of the text. A stop string may span tokens and may begin inside one;
    text of an incomplete UTF-8 character is seen once the character is complete.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._stream = DecodeStream(skip_special_tokens=False)
        self.longest = max(len(text) for text in self._stop)
        """The length of the longest stop string, in characters."""
        self._keep = self.longest - 1
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


class ReplyText:
    """The text of a reply as it grows. A stop string, and the token that ended the reply, are not
    part of it, so the beginning of a possible stop string is held back."""

    def __init__(self, tokenizer: Tokenizer, request: Request, *, skip_special: bool) -> None:
        self._tokenizer, self._request = tokenizer, request
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        stop = request.stop_strings
        self._keep = 0 if stop is None else stop.longest - 1
        self._held = ""
        self._offset = 0
        """The number of characters before the next token, held back or not."""

    def grown(self, start: int, end: int, *, last: bool) -> tuple[str, list[int]]:
        """Return the text that tokens [start, end) add, and the offset of each of them."""
        request = self._request
        ended = last and request.finish_reason == "stop"
        text, offsets = self._held, []
        for at in range(start, end):
            offsets.append(self._offset)
            if ended and at == end - 1 and not isinstance(request.stop_reason, str):
                break
            piece = self._stream.step(self._tokenizer, request.token_ids[at]) or ""
            self._offset += len(piece)
            text += piece
        if ended and isinstance(request.stop_reason, str):
            found = text.rfind(request.stop_reason)  # absent: it was of special tokens
            text = text[:found] if found >= 0 else text
        keep = 0 if last else min(self._keep, len(text))
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], offsets


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
    forced: Sequence[int] = ()
    """The tokens of a given reply, whose log-probs are computed instead of sampling."""
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
        """Return the number of tokens that are in the cache before the last token is fed."""
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


class CompletionWriter:
    """A writer of the choices of one completion (`/v1/completions`), one for each request."""

    def __init__(
        self,
        requests: Sequence[Request],
        tokenizer: Tokenizer,
        asked: protocol.CompletionBody,
        head: tuple[str, int, str],
    ) -> None:
        """Set up the writer; `head` is the id, the time and the model of the completion."""
        self.requests, self.stream = requests, asked.stream
        self._tokenizer, self._asked, self._head = tokenizer, asked, head
        special = asked.skip_special_tokens
        self._texts = [ReplyText(tokenizer, one, skip_special=special) for one in requests]

    def part(self, number: int, start: int, end: int) -> protocol.Completion:
        """Return a chunk with tokens [start, end) of one choice; each token is written once."""
        return self._completion([self._choice(number, start, end)])

    def whole(self) -> protocol.Completion:
        """Return the completion, once all requests are done."""
        choices = [self._choice(n, 0, len(one.token_ids)) for n, one in enumerate(self.requests)]
        return self._completion(choices, usage=self._usage())

    def last(self, error: protocol.ErrorDetail | None) -> list[protocol.Completion]:
        """Return the end of a stream, after its parts: an error, or the usage if it was
        requested."""
        if error is not None:
            return [self._completion([], error=error)]
        options = self._asked.stream_options
        wanted = options is not None and options.include_usage
        return [self._completion([], usage=self._usage())] if wanted else []

    def _completion(
        self,
        choices: list[protocol.CompletionChoice],
        *,
        usage: protocol.Usage | None = None,
        error: protocol.ErrorDetail | None = None,
    ) -> protocol.Completion:
        id, created, model = self._head
        return protocol.Completion(
            id=id, created=created, model=model, choices=choices, usage=usage, error=error
        )

    def _choice(self, number: int, start: int, end: int) -> protocol.CompletionChoice:
        request = self.requests[number]
        if request.forced:
            return self._echoed(number, request)
        last = request.done and end == len(request.token_ids)
        text, offsets = self._texts[number].grown(start, end, last=last)
        with_ids = self._asked.return_token_ids
        return protocol.CompletionChoice(
            index=number,
            text=text,
            logprobs=self._logprobs(request, start, offsets) if request.with_logprobs else None,
            finish_reason=request.finish_reason if last else None,
            stop_reason=request.stop_reason if last else None,
            token_ids=request.token_ids[start:end] if with_ids else None,
            prompt_token_ids=request.prompt if with_ids and start == 0 else None,
        )

    def _echoed(self, number: int, request: Request) -> protocol.CompletionChoice:
        """Return the choice for a prompt whose own log-probs were requested."""
        ids = request.tokens
        tokens = [self._tokenizer.decode([one], skip_special_tokens=False) for one in ids]
        offsets = [0, *accumulate(map(len, tokens[:-1]))]
        logprobs = [None, *request.logprobs]
        top = [
            None if logprob is None else {token: logprob}
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]
        return protocol.CompletionChoice(
            index=number,
            text=self._tokenizer.decode(ids, skip_special_tokens=self._asked.skip_special_tokens),
            logprobs=protocol.CompletionLogprobs(tokens, logprobs, top, offsets),
            finish_reason=request.finish_reason,
            prompt_token_ids=ids if self._asked.return_token_ids else None,
        )

    def _logprobs(
        self, request: Request, start: int, offsets: list[int]
    ) -> protocol.CompletionLogprobs:
        part = slice(start, start + len(offsets))
        logprobs = request.logprobs[part]
        tokens = [
            self._tokenizer.decode([token], skip_special_tokens=False)
            for token in request.token_ids[part]
        ]
        top = [{token: logprob} for token, logprob in zip(tokens, logprobs, strict=True)]
        return protocol.CompletionLogprobs(tokens, [*logprobs], [*top], offsets)

    def _usage(self) -> protocol.Usage:
        # Each prompt counts once, however many replies it has.
        prompts = sum(len(one.prompt) + len(one.forced) for one in self.requests[:: self._asked.n])
        sampled = sum(len(one.token_ids) for one in self.requests if not one.forced)
        return protocol.Usage(prompts, sampled, prompts + sampled)
