"""The key of the trial, which this extension adds to `rollout`."""

from __future__ import annotations

from pydantic import Field

from agentgym_rl.core import Anytime, Section


class TrialKeys(Section):
    """The key of the trial before a run."""

    after = "tool_timeout_s"

    trial_s: Anytime[float] = Field(default=10.0, ge=0)
    """The longest time, in seconds, for which your environment and agent are tried before engines
    start: one episode against scripted replies. Time without a CPU does not count. A trial that
    takes longer is left, with a warning; 0: none."""
