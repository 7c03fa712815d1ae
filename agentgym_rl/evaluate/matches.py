"""The contract of games between models, `arl eval --round-robin`, which an installed package
registers by an entry point of the group `agentgym_rl.matches`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.core import load_extensions, not_installed, only_one
from agentgym_rl.report import Progress

from .folder import EvalTarget

GROUP = "matches"


class Matches(ABC):
    """Games in which models play each other."""

    @abstractmethod
    async def play(self, targets: Sequence[EvalTarget], progress: Progress) -> dict[str, Any]:
        """Let the models play; return the JSON object of the results.

        Raises:
            ConfigError: some configuration cannot work, or is of no such game.
        """

    @abstractmethod
    def show(self, result: Mapping[str, Any]) -> None:
        """Print the results on stderr."""


def matches() -> Matches:
    """Return the registered games between models.

    Raises:
        ConfigError: there are none, or several.
    """
    members = load_extensions(GROUP, of=Matches)
    found = only_one(GROUP, members, would="would both let the models play each other")
    if found is None:
        raise not_installed(GROUP, "--round-robin", "lets models play each other")
    return found
