"""The sampling policy of a session."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_rl.core import SamplingParams, derived_seed
from agentgym_rl.gateway.request.chat_request import ChatRequest

_LEAST_TOP_P = 1e-6
"""The `top_p` sent to engines in place of 0, which they refuse: only the most likely token
remains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSampling:
    """The session's sampling policy, which takes precedence over the client's request.

    `temperature` None: the client decides (default 1). `max_tokens` limits every turn. The seed of
    each turn is derived from `seed`.
    """

    max_tokens: int
    temperature: float | None = None
    seed: int | None = None
    train: bool = True

    def turn_seed(self, request: int) -> int | None:
        """Return a request's seed: 48 bits, a function of only `seed` and the request's number."""
        return None if self.seed is None else derived_seed(self.seed, str(request))

    def params(
        self,
        request: ChatRequest,
        *,
        number: int,
        index: int,
        room: int,
        stop_token_ids: tuple[int, ...],
        grammar: str | None,
        experts_from: int = 0,
    ) -> SamplingParams:
        """Return the parameters of sample `index` of request `number`; `room` is the context left,
        `experts_from` the number of leading tokens whose experts are known.

        The samples of one request never share a seed.
        """
        seed, temperature = request.seed, self.temperature
        if self.seed is not None:
            seed = self.turn_seed(number)
        elif seed is not None and index:
            seed = derived_seed(seed, f"sample/{index}")
        if temperature is None:
            temperature = 1.0 if request.temperature is None else request.temperature
        return SamplingParams(
            max_tokens=min(self.max_tokens, request.max_tokens or self.max_tokens, room),
            temperature=temperature,
            top_p=max(request.top_p, _LEAST_TOP_P),
            top_k=request.top_k,
            min_p=request.min_p,
            seed=seed,
            stop=request.stop,
            stop_token_ids=stop_token_ids,
            grammar=grammar,
            experts_from=experts_from if self.train and temperature > 0 else None,
            reports_support=self.train,
        )
