"""The keys of prices, which this extension adds to `eval`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from agentgym_rl.core import EvalKeys, InEval


class PriceKeys(EvalKeys):
    """The prices of tokens."""

    price_prompt: InEval[float | None] = Field(default=None, ge=0)
    """The USD per million prompt tokens; a cost needs `price_completion` too."""
    price_completion: InEval[float | None] = Field(default=None, ge=0)
    """The USD per million tokens of replies."""
    price_cached: InEval[float | None] = Field(default=None, ge=0)
    """The USD per million prompt tokens from a cache, if the endpoint counts them (default:
    `price_prompt`)."""

    @model_validator(mode="after")
    def _prices_together(self) -> Self:
        if (self.price_prompt is None) != (self.price_completion is None):
            raise ValueError("give price_prompt and price_completion together, or neither")
        if self.price_cached is not None and self.price_prompt is None:
            raise ValueError("price_cached needs price_prompt and price_completion")
        return self

    def cost_usd(self, *, prompt: int, cached: int, completion: int) -> float | None:
        if self.price_prompt is None or self.price_completion is None:
            return super().cost_usd(prompt=prompt, cached=cached, completion=completion)
        price_cached = self.price_prompt if self.price_cached is None else self.price_cached
        full = prompt - cached
        return 1e-6 * (
            self.price_prompt * full + price_cached * cached + self.price_completion * completion
        )
