"""The key of the picture of a run, which this extension adds to `logging`."""

from __future__ import annotations

from agentgym_rl.core import Section


class PictureKeys(Section):
    """The picture that a run leaves."""

    after = "progress"

    plot: bool = True
    """The switch to write `reward.png` when the run ends."""
