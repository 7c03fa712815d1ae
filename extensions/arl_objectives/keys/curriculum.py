"""The keys of the curriculum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import PlayKeys, is_function_path

CURRICULA = ("", "task", "level", "env")
"""The values of `rollout.curriculum`, other than `module:Class`."""


class CurriculumKeys(PlayKeys):
    """The keys `rollout.curriculum` and `rollout.curriculum_options`, added to `rollout`."""

    after = "max_retries"

    curriculum: str = ""
    """The choice among the tasks by measured rewards. "task", "level" or "env" (a member of a mix):
    the unit of a pass rate, and tasks near a rate of one half are preferred; or a strategy of your
    own, `module:Class`. Empty: every task."""
    curriculum_options: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments of that class; aim, floor, window, low and high of the built-in one."""

    @field_validator("curriculum")
    @classmethod
    def _known_curriculum(cls, name: str) -> str:
        if name not in CURRICULA and not is_function_path(name):
            known = ", ".join(CURRICULA[1:])
            raise ValueError(f"expected {known}, a class as module:Class, or nothing at all")
        return name

    @model_validator(mode="after")
    def _options_of_a_curriculum(self) -> Self:
        if self.curriculum_options and not self.curriculum:
            raise ValueError(
                f"curriculum_options {self.curriculum_options} without a curriculum: leave them "
                "out, or set curriculum"
            )
        return self

    def refused_for_clients(self) -> Iterator[str]:
        yield from super().refused_for_clients()
        if self.curriculum:
            yield (
                "rollout.curriculum: in `arl serve` other programs choose their tasks; leave the "
                "key out"
            )

    def not_simulated(self) -> Iterator[tuple[str, str]]:
        yield from super().not_simulated()
        if self.curriculum:
            yield "rollout.curriculum", "all tasks are drawn alike"
