"""The kinds of players that installed packages register, in addition to the player of one agent.

`agentgym_rl.players`     what is played: an episode of one agent, unless a kind takes it, such as
                          games of several agents
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core import extension_names, load_extension, only_one
from agentgym_rl.gym import Env, EnvSpec

from .episode import Player

PLAYERS = "players"


class PlayerKind(ABC):
    """A kind of players of a run's training episodes, made from the player of one agent.

    Evaluations use the `single_agent` player of the result.
    """

    single_agent: ClassVar[bool] = False
    """Whether one agent plays an episode."""

    @abstractmethod
    def takes(self, rollout: RolloutConfig, spec: EnvSpec) -> bool:
        """Return whether this kind plays the episodes of such a run."""

    @abstractmethod
    def player(
        self, single_agent: Player, rollout: RolloutConfig, opponents: Mapping[str, Player]
    ) -> Player:
        """Return the player of a run; `opponents` are players of models other than the policy."""

    def check(self, rollout: RolloutConfig, spec: EnvSpec, env: Env) -> None:  # noqa: B027
        """Refuse a run that cannot work with `env`, an instance of `spec`.

        Raises:
            ConfigError: the reason.
        """

    def check_single_agent(self, spec: EnvSpec, env: Env) -> None:  # noqa: B027
        """Refuse to play `env`, an instance of `spec`, with a single agent, if this kind knows that
        it needs several.

        Raises:
            ConfigError: the reason.
        """


class _Episodes(PlayerKind):
    """The kernel's own kind: one agent plays."""

    single_agent = True

    def takes(self, rollout: RolloutConfig, spec: EnvSpec) -> bool:
        return True

    def player(
        self, single_agent: Player, rollout: RolloutConfig, opponents: Mapping[str, Player]
    ) -> Player:
        return single_agent


def player_kinds() -> Iterator[tuple[str, PlayerKind]]:
    """Yield the registered kinds of players, by name."""
    for name in extension_names(PLAYERS):
        yield name, load_extension(PLAYERS, name)


def player_kind(rollout: RolloutConfig, spec: EnvSpec) -> PlayerKind:
    """Return the registered kind that plays the episodes of a run, or else that of one agent.

    Raises:
        ConfigError: several kinds take the run.
    """
    kinds = {name: kind for name, kind in player_kinds() if kind.takes(rollout, spec)}
    found = only_one(PLAYERS, kinds, would="would both play the episodes of this run")
    return _Episodes() if found is None else found


def check_single_agent(spec: EnvSpec, env: Env) -> None:
    """Refuse to play `env`, an instance of `spec`, with a single agent, as evaluations do, if a
    registered kind knows that it needs several.

    Raises:
        ConfigError: the reason.
    """
    for _, kind in player_kinds():
        kind.check_single_agent(spec, env)
