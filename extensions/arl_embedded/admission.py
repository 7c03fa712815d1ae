"""The admission of requests: their parameters are checked and converted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from tokenizers import Tokenizer

from agentgym_rl.engines import protocol
from agentgym_rl.runtime import Constraint

from .request import Request, Sampling, StopStrings
from .sampler import random_key

T = TypeVar("T")

_MIN_TEMPERATURE = 1e-3
"""The lowest temperature: division by a smaller one loses the order of float32 logits."""
_MAX_TEMPERATURE = 1e3
_MAX_STOP_STRINGS = 16
_MAX_REPLIES = 512
"""The maximum number of replies to one request for completions."""


class HttpError(Exception):
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
            HttpError: names the parameter, the value and what is allowed.
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
            experts_from=self._experts_from(params, len(body.token_ids)),
        )

    def completion(self, body: protocol.CompletionBody) -> list[protocol.GenerateBody]:
        """Return the requests for the replies that `body` demands: `n` for the first prompt, then
        for the next.

        Raises:
            HttpError: there is no prompt, or `body` demands too many replies.
        """
        if body.max_tokens == 0:
            raise HttpError("max_tokens 0; allowed: 1 or more, or 0 with echo", param="max_tokens")
        prompts = self._prompts(body.prompt, special=body.add_special_tokens)
        if len(prompts) * body.n > _MAX_REPLIES:
            raise HttpError(
                f"{len(prompts)} prompts with n {body.n}; allowed: {_MAX_REPLIES} replies in all",
                param="n",
            )
        shared = {
            name: getattr(body, name)
            for name in ("max_tokens", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos")
        }
        return [
            protocol.GenerateBody(
                token_ids=prompt,
                sampling_params=protocol.SamplingBody(
                    **shared,
                    temperature=1.0 if body.temperature is None else body.temperature,
                    top_p=1.0 if body.top_p is None else body.top_p,
                    seed=None if body.seed is None else body.seed + number,
                    logprobs=body.logprobs,
                ),
                stream=body.stream,
                cache_salt=body.cache_salt,
            )
            for prompt in prompts
            for number in range(body.n)
        ]

    def echo(self, body: protocol.CompletionBody) -> list[list[int]]:
        """Return the prompts whose own log-probs `body` demands.

        Raises:
            HttpError: `body` also demands a reply, or a prompt has a single token, or too many.
        """
        wanted = {
            "max_tokens": (0,),
            "logprobs": (0, 1),
            "n": (1,),
            "stream": (False,),
            "temperature": (None, 1),
        }
        for name, allowed in wanted.items():
            if (got := getattr(body, name)) not in allowed:
                raise HttpError(
                    f"echo with {name} {got}; allowed: {' or '.join(map(str, allowed))} (the "
                    "log-probs of the prompt itself, without a reply)",
                    param=name,
                )
        prompts = self._prompts(body.prompt, special=body.add_special_tokens)
        for tokens in prompts:
            if not 2 <= len(tokens) <= self.max_model_len:
                raise HttpError(
                    f"a prompt of {len(tokens)} tokens with echo; allowed: 2 to "
                    f"{self.max_model_len}, the model's context",
                    param="prompt",
                    code=protocol.CONTEXT_LENGTH_EXCEEDED if len(tokens) > 1 else None,
                )
            self._check_ids("prompt", tokens)
        return prompts

    def _prompts(self, prompt: object, *, special: bool) -> list[list[int]]:
        """Return the token ids of each prompt of a completion."""
        found: list[str] | list[list[int]]
        match prompt:
            case str():
                found = [prompt]
            case [int(), *_]:
                found = [_converted(prompt, list[int])]
            case [str(), *_]:
                found = _converted(prompt, list[str])
            case [_, *_]:
                found = _converted(prompt, list[list[int]])
            case _:
                raise _no_prompt()
        return [
            self.tokenizer("a text as prompt", param="prompt")
            .encode(one, add_special_tokens=special)
            .ids
            if isinstance(one, str)
            else one
            for one in found
        ]

    def tokenizer(self, what: str, *, param: str) -> Tokenizer:
        """Return the model's tokenizer; raise `HttpError` if `what` needs it and the folder has
        none."""
        if self._tokenizer is None:
            if not self.tokenizer_file.exists():
                raise HttpError(
                    f"{what} needs {self.tokenizer_file.name}, which this model folder lacks; "
                    "use token ids",
                    param=param,
                )
            self._tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        return self._tokenizer

    def _check_prompt(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise HttpError("token_ids is empty; give at least one token", param="token_ids")
        if len(token_ids) >= self.max_model_len:
            raise HttpError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"the prompt has {len(token_ids)} tokens, which leaves no room to sample.",
                param="token_ids",
                code=protocol.CONTEXT_LENGTH_EXCEEDED,
            )
        self._check_ids("token_ids", token_ids)

    def _experts_from(self, params: protocol.SamplingBody, num_prompt: int) -> int | None:
        start = params.routed_experts_prompt_start
        if start is not None and start > num_prompt:
            raise HttpError(
                f"routed_experts_prompt_start {start}; allowed: 0 to {num_prompt}, the prompt's "
                "length",
                param="routed_experts_prompt_start",
            )
        return start

    def _check_ids(self, param: str, ids: Iterable[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise HttpError(
                    f"{param} contains {token}; allowed: 0 to {self.vocab_size - 1}", param=param
                )

    def _sampling(self, params: protocol.SamplingBody, request_id: str) -> Sampling:
        if params.temperature and not (_MIN_TEMPERATURE <= params.temperature <= _MAX_TEMPERATURE):
            raise HttpError(
                f"temperature {params.temperature} is not served; allowed: 0 (greedy), or "
                f"{_MIN_TEMPERATURE} to {_MAX_TEMPERATURE:g}",
                param="temperature",
            )
        if params.logprobs not in (None, 0):
            raise HttpError(
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
            raise HttpError(
                f"stop must be 1 to {_MAX_STOP_STRINGS} strings, none empty; got {len(strings)}",
                param="stop",
            )
        return StopStrings(self.tokenizer("a stop string", param="stop"), strings)


def _converted(prompt: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(prompt, kind)
    except msgspec.ValidationError:
        raise _no_prompt() from None


def _no_prompt() -> HttpError:
    return HttpError(
        "prompt must be a text, token ids, a list of texts, or a list of lists of token ids, none "
        "of them empty",
        param="prompt",
    )
