"""The section `eval`: held-out evaluation."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from .section import Fitted, InEval, Section


class EvalConfig(Section):
    """The held-out evaluation of `arl eval` and of a run: before the first batch and after the last
    on the run's own engines, and on schedule on an additional one."""

    num_tasks: Fitted[int] = Field(default=1024, ge=0)
    """The number of held-out tasks; 0 skips evaluation."""
    every: InEval[int] = Field(default=0, ge=0)
    """The steps between evaluations during training, each of one version; 0: none by steps."""
    every_minutes: InEval[float] = Field(default=0.0, ge=0)
    """The minutes between evaluations, each after the next step; 0: none by time."""
    temperature: float = Field(default=1.0, ge=0)
    """The sampling temperature; 0 is greedy."""
    max_concurrent: InEval[Fitted[int]] = Field(default=128, ge=1)
    """The maximum number of concurrent episodes."""
    seed: int = 0
    """The seed of the held-out tasks (the same for every run, so that runs compare)."""
    samples_per_task: int = Field(default=1, ge=1)
    """The number n of episodes of each task."""
    pass_at: InEval[tuple[int, ...]] = ()
    """The k of pass@k, each at most n (`--eval.pass_at=1,8`); empty: the powers of two up to n."""
    success_reward: InEval[float] = 1.0
    """The lowest reward of a success, for pass@k."""
    price_prompt: InEval[float | None] = Field(default=None, ge=0)
    """The USD per million prompt tokens; a cost needs `price_completion` too."""
    price_completion: InEval[float | None] = Field(default=None, ge=0)
    """The USD per million tokens of replies."""
    price_cached: InEval[float | None] = Field(default=None, ge=0)
    """The USD per million prompt tokens from a cache, if the endpoint counts them (default:
    `price_prompt`)."""

    @property
    def scheduled(self) -> bool:
        """Return whether there are evaluations while a run trains."""
        return self.every > 0 or self.every_minutes > 0

    @property
    def ks(self) -> tuple[int, ...]:
        """Return `pass_at`, or its default."""
        n = self.samples_per_task
        return self.pass_at or tuple(1 << i for i in range(n.bit_length()))

    @field_validator("pass_at", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """Convert `--eval.pass_at=1,8` and `--eval.pass_at=8` into lists."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _consistent(self) -> EvalConfig:
        n = self.samples_per_task
        if self.scheduled and not self.num_tasks:
            raise ValueError(
                "every and every_minutes ask for evaluations, and num_tasks is 0; set num_tasks, "
                "or leave them at 0"
            )
        if any(not 1 <= k <= n for k in self.pass_at):
            raise ValueError(
                f"pass_at {list(self.pass_at)} has a k outside 1..samples_per_task ({n}): pass@k "
                "needs at least k episodes of each task; raise samples_per_task"
            )
        if len(set(self.pass_at)) < len(self.pass_at):
            raise ValueError(f"pass_at names a k twice: {list(self.pass_at)}")
        if (self.price_prompt is None) != (self.price_completion is None):
            raise ValueError("give price_prompt and price_completion together, or neither")
        if self.price_cached is not None and self.price_prompt is None:
            raise ValueError("price_cached needs price_prompt and price_completion")
        return self
