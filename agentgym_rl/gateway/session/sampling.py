"""A session's sampling policy, and the sampling parameters it gives to a request."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_rl.core.engine import SamplingParams
from agentgym_rl.core.task import derived_seed
from agentgym_rl.gateway.errors import unsupported
from agentgym_rl.gateway.request.chat_request import ChatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSampling:
    """The session's sampling policy, which takes precedence over the client's request.

    `temperature` None lets the client decide (default 1). `max_tokens` limits every turn. `seed`
    gives each turn its own seed. With `train`, top_p and top_k are refused, because log-probs of a
    truncated distribution cannot be trained on.
    """

    max_tokens: int
    temperature: float | None = None
    seed: int | None = None
    train: bool = True

    def turn_seed(self, request: int) -> int | None:
        """Return a request's seed: 48 bits, a function of only `seed` and the request's number."""
        return None if self.seed is None else derived_seed(self.seed, str(request))


def check_cuts(policy: SessionSampling, request: ChatRequest) -> None:
    """Refuse a truncated distribution in a session that trains. Raises ApiError, 400."""
    if not policy.train:
        return
    for name, value, off in (("top_p", request.top_p, 1.0), ("top_k", request.top_k, 0)):
        if value != off:
            raise unsupported(name, f"got {value}; a training session samples all tokens")


def turn_sampling(
    policy: SessionSampling,
    request: ChatRequest,
    *,
    number: int,
    index: int,
    room: int,
    stop_token_ids: tuple[int, ...],
    grammar: str | None,
) -> SamplingParams:
    """Return the parameters of sample `index` of request `number`; `room` is the context left."""
    max_tokens = min(policy.max_tokens, request.max_tokens or policy.max_tokens, room)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_temperature(policy, request),
        top_p=request.top_p,
        top_k=request.top_k,
        seed=_seed(policy, request, number, index),
        stop=request.stop,
        stop_token_ids=stop_token_ids,
        grammar=grammar,
    )


def _seed(policy: SessionSampling, request: ChatRequest, number: int, index: int) -> int | None:
    """Return the seed; the samples of one request never share one."""
    if policy.seed is not None:
        return policy.turn_seed(number)
    if request.seed is None or index == 0:
        return request.seed
    return derived_seed(request.seed, f"sample/{index}")


def _temperature(policy: SessionSampling, request: ChatRequest) -> float:
    if policy.temperature is not None:
        return policy.temperature
    return 1.0 if request.temperature is None else request.temperature
