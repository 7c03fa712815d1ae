"""The admission of requests, and the meaning of their parameters. A grammar is compiled once for
all replies that use it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from agentgym_rl.engines import protocol
from agentgym_rl.runtime.lru_dict import LruDict
from agentgym_rl.runtime.tasks import in_thread

from .request import Constraint, Request, Sampling, StopStrings
from .sampler import random_key

_MIN_TEMPERATURE = 1e-3
"""The lowest temperature: division by a smaller one loses the order of float32 logits."""
_MAX_TEMPERATURE = 1e3
_MAX_STOP_STRINGS = 16
_PARAM = "structured_outputs"
_KEPT = 64
"""The number of compiled grammars that are kept."""
_QUIET = 0


class Refused(Exception):
    """A request that cannot be served, as an HTTP status with an OpenAI-style error body."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: int | str | None = None,
        kind: str = "BadRequestError",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = protocol.ErrorDetail(
            message=message, type=kind, param=param, code=status if code is None else code
        )


@dataclass(slots=True)
class Admission:
    """A converter of request bodies to requests of one model, which refuses invalid ones."""

    vocab_size: int
    max_model_len: int
    eos_ids: Sequence[int]
    """The end-of-sequence tokens; the first one gives no `stop_reason`, as in vLLM."""
    seed: int
    tokenizer_file: Path
    _tokenizer: Tokenizer | None = None

    def request(
        self, body: protocol.GenerateBody, request_id: str, constraint: Constraint | None = None
    ) -> Request:
        """Check `body` and make it a request under `constraint`.

        Raises:
            Refused: names the parameter, the value and what is allowed.
        """
        params = body.sampling_params
        self._check_prompt(body.token_ids)
        room = self.max_model_len - len(body.token_ids)
        return Request(
            id=request_id,
            prompt=body.token_ids,
            max_tokens=min(params.max_tokens or room, room),
            sampling=self._sampling(params, request_id),
            stop_ids=self._stop_ids(params),
            stop_strings=self._stop_strings(params.stop),
            constraint=constraint,
            stream=body.stream,
            with_logprobs=params.logprobs is not None,
            cache_salt=body.cache_salt or "",
        )

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise Refused("token_ids is empty; give at least one token", param="token_ids")
        if len(token_ids) >= self.max_model_len:
            raise Refused(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"the prompt has {len(token_ids)} tokens, which leaves no room to sample.",
                param="token_ids",
                code=protocol.CONTEXT_LENGTH_EXCEEDED,
            )
        self._check_ids("token_ids", token_ids)

    def _check_ids(self, param: str, ids: Iterable[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise Refused(
                    f"{param} contains {token}; allowed: 0 to {self.vocab_size - 1}", param=param
                )

    def _sampling(self, params: protocol.SamplingBody, request_id: str) -> Sampling:
        if params.temperature and not (_MIN_TEMPERATURE <= params.temperature <= _MAX_TEMPERATURE):
            raise Refused(
                f"temperature {params.temperature} is not served; allowed: 0 (greedy), or "
                f"{_MIN_TEMPERATURE} to {_MAX_TEMPERATURE:g}",
                param="temperature",
            )
        if params.logprobs not in (None, 0):
            raise Refused(
                f"logprobs {params.logprobs} is not served; allowed: 0 (the sampled token)",
                param="logprobs",
            )
        parts = ("seed", params.seed) if params.seed is not None else (self.seed, request_id)
        return Sampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(params.top_k, 0),
            min_p=params.min_p,
            key=random_key(*parts),
        )

    def _stop_ids(self, params: protocol.SamplingBody) -> dict[int, int | None]:
        asked = params.stop_token_ids or ()
        self._check_ids("stop_token_ids", asked)
        stop: dict[int, int | None] = {token: token for token in asked}
        if not params.ignore_eos and self.eos_ids:
            stop |= {token: token for token in self.eos_ids[1:]}
            stop[self.eos_ids[0]] = None
        return stop

    def _stop_strings(self, stop: str | list[str] | None) -> StopStrings | None:
        strings = [stop] if isinstance(stop, str) else list(stop or ())
        if not strings:
            return None
        if "" in strings or len(strings) > _MAX_STOP_STRINGS:
            raise Refused(
                f"stop must be 1 to {_MAX_STOP_STRINGS} strings, none empty; got {len(strings)}",
                param="stop",
            )
        if self._tokenizer is None:
            if not self.tokenizer_file.exists():
                raise Refused(
                    f"stop strings need {self.tokenizer_file.name}, which this model folder lacks; "
                    "use stop_token_ids",
                    param="stop",
                )
            self._tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        return StopStrings(self._tokenizer, strings)


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
        return in_thread(partial(self.begin, grammar), name="grammar")

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
