"""The keys of games with several seats, which this extension adds to `rollout`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from agentgym_rl.core import PlayKeys, is_url, near_match

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import Config

_PLAYER = re.compile(r"policy|league|env:.+|frozen:.+|url:(?P<url>https?://[^#]+)#.+")
"""The players of a seat."""


class SeatKeys(PlayKeys):
    """The players of the seats of a game, in training."""

    after = "max_rejected"

    seats: dict[str, str] = Field(default_factory=dict)
    """The player of each seat of a game in training: `policy`; `env:NAME`, a player of the game
    itself; `frozen:MODEL`, a model that stays as it is; `league`, past versions of the policy; or
    `url:URL#NAME`, a model served elsewhere. Empty: the environment is played from one seat."""
    rotate_seats: bool = False
    """The switch to move the players on to other seats from task to task, by the task's seed."""
    league_every: int = Field(default=5, ge=1)
    """The number N of versions after which `league` draws another one, out of 0, N, 2·N, …"""

    @property
    def other_models(self) -> list[str]:
        """Return the players of seats that are models other than the policy."""
        return sorted({who for who in self.seats.values() if not re.match("policy$|env:", who)})

    @property
    def other_engines(self) -> list[str]:
        """Return the players of seats that need an engine of their own."""
        own = [who for who in self.other_models if not who.startswith("url:")]
        return super().other_engines + own

    def refused_for_clients(self) -> Iterator[str]:
        yield from super().refused_for_clients()
        if self.seats:
            yield (
                "rollout.seats: `arl serve` plays no games; leave the key out (the program that "
                "plays one opens a session for each seat)"
            )

    def located(self, folder_of: Callable[[str], str], *, env_id: str) -> Self:
        from agentgym_rl.config import ModelConfig
        from agentgym_rl.models import model_name

        def placed(who: str) -> str:
            kind, _, path = who.partition(":")
            if kind != "frozen":
                return who
            return f"{kind}:{folder_of(model_name(ModelConfig(path=path), env_id))}"

        found = super().located(folder_of, env_id=env_id)
        seats = {seat: placed(who) for seat, who in self.seats.items()}
        return found.model_copy(update={"seats": seats})

    def conflicts(self, config: Config) -> Iterator[str]:
        if not self.other_engines:
            return
        seats, weights = f"the seats of {', '.join(self.other_engines)}", config.weights
        if "league" in self.other_engines and (
            weights.keep_versions != "all" or not weights.leaves_files
        ):
            yield (
                "the seats of the league (rollout.seats) need weights.keep_versions 'all' and "
                "weights.transport 'shm', which keep past versions as files"
            )
        if config.cluster.shares_devices:
            yield (
                f"{seats} (rollout.seats) need engines that do not sleep: leave out "
                "cluster.colocated"
            )
        yield from self._beside_servers(config)

    def _beside_servers(self, config: Config) -> Iterator[str]:
        """Yield the reasons why the players of seats cannot have servers of their own."""
        from agentgym_rl.config import ServerEngineConfig

        engine, others = config.engine, self.other_engines
        if not isinstance(engine, ServerEngineConfig):
            return
        seats = f"the seats of {', '.join(others)} (rollout.seats)"
        if engine.urls:
            yield (
                f"{seats} need more servers, and engine.urls names servers that somebody else "
                "starts; ask one of those by url:URL#NAME"
            )
        more = len(others) + config.eval.scheduled
        need = (engine.num_servers + more) * engine.gpus_per_server
        if engine.gpus and len(engine.gpus) < need:
            yield f"{seats}: engine.gpus needs {need} GPUs, got {len(engine.gpus)}"

    @model_validator(mode="after")
    def _seats_have_players(self) -> Self:
        players = set(self.seats.values())
        for seat, who in self.seats.items():
            found = _PLAYER.fullmatch(who)
            if found is None or (found["url"] and not is_url(found["url"])):
                raise ValueError(
                    f"seats.{seat} {who!r}: allowed are policy, env:NAME, frozen:MODEL, league and "
                    f"url:http://HOST/v1#NAME{near_match(who, ('policy', 'league'))}"
                )
        if self.seats and "policy" not in players:
            raise ValueError(
                f"seats {self.seats}: nothing would be trained; give a seat to the policy"
            )
        if self.rotate_seats and len(players) < 2:
            raise ValueError(f"rotate_seats changes nothing with seats {self.seats}; leave it out")
        usual = type(self).model_fields["league_every"].default
        if self.league_every != usual and "league" not in players:
            raise ValueError(f"league_every {self.league_every} without a seat of the league")
        workers, _ = self.player_processes
        if workers and self.other_models:
            raise ValueError(
                f"workers {workers} with the seats of {', '.join(self.other_models)}: only "
                "`arl train` itself can ask other models; set workers to 0"
            )
        return self
