"""A reward model, a sequence classifier with one label, behind the route /classify of vLLM, or of
`arl engine --reward-model FOLDER`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl import ConfigError, EnvError, InfraError
from agentgym_rl.gym.tool_env import text_of

from .endpoint import LITELLM, Endpoint, JudgeRefusal
from .question import NEUTRAL, defused
from .watch import Watch


class RewardModel:
    """A reward model at `base_url`, such as http://HOST:8000 (without /v1).

    Raises:
        ConfigError: a value that cannot work.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key_env: str | None = None,
        timeout_s: float = 60.0,
        max_retries: int = 3,
        max_text_bytes: int = 24_000,
        lowest: float = -20.0,
    ) -> None:
        if model.startswith(LITELLM) or max_text_bytes < 1 or not math.isfinite(lowest):
            raise ConfigError(
                f"reward model {model!r} with max_text_bytes {max_text_bytes} and lowest {lowest}: "
                "expected a model of the server at base_url, max_text_bytes from 1, and a finite "
                "number"
            )
        self._max_text_bytes = max_text_bytes
        self._lowest = lowest
        self._watch = Watch(model, warn_usd=math.inf)
        self._endpoint = Endpoint(
            model,
            base_url=base_url,
            api_key_env=api_key_env,
            timeout_s=timeout_s,
            max_retries=max_retries,
        )

    @property
    def longest_s(self) -> float:
        """Return the longest time of a score."""
        return 3 * self._endpoint.longest_s

    async def score(self, question: str, answer: str) -> dict[str, float]:
        """Return the score of an answer, a number of any size, as `reward`, with the costs.

        Raises:
            InfraError: the server cannot be reached, or fails.
            EnvError: the server refuses the request with any answer, or its model has several
                labels.
        """
        turns = [("user", question), ("assistant", answer)]
        return await self.score_messages([{"role": r, "content": text} for r, text in turns])

    async def score_messages(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the score of a conversation; see `score`. Texts are defused as for judges: the
        server's tokenizer would read special tokens in them.

        A last message that the server refuses twice, although it takes a neutral one between, gets
        `lowest`, or the lowest score so far: else a policy could choose not to be scored.
        """
        *before, last = [
            {**message, "content": defused(text_of(message), max_text_bytes=self._max_text_bytes)}
            for message in messages
        ]
        try:
            return await self._scored([*before, last])
        except JudgeRefusal as error:
            refusal = error
        try:
            await self._scored([*before, {**last, "content": NEUTRAL}])
        except JudgeRefusal:
            raise refusal from None
        try:
            return await self._scored([*before, last])
        except JudgeRefusal as error:
            self._watch.blamed(error.metric, str(error))
        return {"reward": self._lowest, "judge_calls": 3.0, "judge_refused": 1.0}

    async def _scored(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        # The logit: a sigmoid would flatten high scores.
        body = {"messages": messages, "use_activation": False}
        reply = await self._endpoint.ask("/classify", body)
        match reply:
            case {"data": [{"probs": [int() | float() as score]}]} if not isinstance(score, bool):
                if not abs(score) <= sys.float_info.max:
                    raise InfraError(f"reward model: its score is no number: {score!r:.80}")
                self._lowest = min(self._lowest, float(score))
                tokens = self._endpoint.tokens(reply, "prompt_tokens")
                found = {"judge_calls": 1.0, "judge_tokens": float(tokens)}
                return {"reward": float(score), **found}
        raise EnvError(
            f"reward model: expected one label, got {reply.get('data', reply)!r:.200}; a reward "
            "model is a sequence classifier with num_labels 1"
        )
