"""The keys of experiment trackers, which this extension adds to `logging`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from agentgym_rl.core import Section, extension_names, named_or_function

GROUP = "trackers"
"""The group of entry points of trackers."""


class TrackerKeys(Section):
    """The trackers that get a copy of the metrics."""

    after = "tokens"

    trackers: tuple[Literal["tensorboard", "wandb", "trackio"] | str, ...] = ()
    """The experiment trackers that also get the metrics; each is an extra of the package. Other
    packages register more, and `module:function` names one (arl_trackers/trackers.py)."""
    project: str = Field(default="agentgym-rl", min_length=1)
    """The project of the trackers that have projects; the run is named after its folder."""

    @field_validator("trackers")
    @classmethod
    def _known_trackers(cls, trackers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(named_or_function(name, extension_names(GROUP)) for name in trackers)
