"""The play of one game with an agent and a session for each seat, and one record for all of them.

    GamePlayer ─► Table ─► the game's own players
               └► Player, one for each other seat: its agent in a SeatEnv, its session at a gateway

A game is one episode: all of its seats are logged, trained and played again together, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from agentgym_rl.config import ModelConfig, RolloutConfig
from agentgym_rl.core import (
    ConfigError,
    Credit,
    EnvError,
    Outcome,
    Task,
    Trajectory,
    derived_number,
    derived_seed,
    near_match,
)
from agentgym_rl.core.trajectory import POLICY
from agentgym_rl.gateway import SessionSampling
from agentgym_rl.gym import Env, EnvSpec
from agentgym_rl.gym.seats import MultiSeatEnv, SeatEnv, Table
from agentgym_rl.gym.specs import wrapped
from agentgym_rl.models import model_folder
from agentgym_rl.rollout import EpisodeEnv, Player, PlayerKind

from .keys import SeatKeys

OWN = "env:"
"""The prefix of a seat that a player of the game itself takes."""
FROZEN = "frozen:"
"""The prefix of a seat that a model takes which stays as it is."""

_WORST_FIRST = (
    *(Outcome.INFRA_ERROR, Outcome.NO_IMAGE, Outcome.ENV_ERROR, Outcome.AGENT_ERROR),
    *(Outcome.ABORTED, Outcome.TOO_LONG, Outcome.TRUNCATED, Outcome.COMPLETED),
)
"""The outcomes of seats: the first one that a seat has is the outcome of the game."""


@dataclass(frozen=True, slots=True)
class GamePlayer(Player):
    """The player of games: every seat has its own agent, session and deadlines."""

    seats: Mapping[str, str] = field(default_factory=dict[str, str])
    """The player of each seat, as in `rollout.seats`."""
    rotates: bool = False
    """The key `rollout.rotate_seats`."""
    opponents: Mapping[str, Player] = field(default_factory=dict[str, Player])
    """The players of models other than the policy, whose gateways are used."""

    @property
    def single_agent(self) -> Player:
        return Player(**{each.name: getattr(self, each.name) for each in fields(Player)})

    async def play(
        self, task: Task, *, episode_id: str, group_id: str, sampling: SessionSampling
    ) -> Trajectory:
        """Play `task` once, with all seats. Errors of a seat become the outcome of the game."""
        seats = self._seats_of(task)
        game = _Game(self.make_env, seats)
        try:
            async with asyncio.TaskGroup() as tasks:
                playing = {
                    seat: tasks.create_task(
                        game.left_after(
                            seat,
                            self._at(game, seat, seats[seat]).play(
                                task,
                                episode_id=f"{episode_id}.{seat}",
                                group_id=group_id,
                                sampling=_sampling(sampling, seat, seats[seat]),
                            ),
                        ),
                        name=f"seat {seat} of {episode_id}",
                    )
                    for seat in game.agents
                }
        finally:
            if game.env is not None:
                await EpisodeEnv(game.env, task, self.services, self.warnings).close()
        played = [
            replace(done.result(), seat=seat, player=seats[seat]) for seat, done in playing.items()
        ]
        return _joined(played, episode_id=episode_id)

    def _seats_of(self, task: Task) -> Mapping[str, str]:
        """Return the player of each seat: the same ones for all games of a task."""
        if not self.rotates:
            return self.seats
        names, players = [*self.seats], [*self.seats.values()]
        first = derived_number(f"{task.seed}/seats") % len(names)
        return dict(zip(names, players[first:] + players[:first], strict=True))

    def _at(self, game: _Game, seat: str, who: str) -> Player:
        """Return the player of one seat."""
        player = replace(self.single_agent, make_env=lambda: game.env_of(seat))
        other = self.opponents.get(who)
        if other is None:
            return player
        return replace(
            player,
            gateway=other.gateway,
            clients=other.clients,
            model_name=other.model_name,
            input_limit=None,  # in tokens of the policy
        )


def seated(
    player: Player,
    seats: Mapping[str, str],
    *,
    rotates: bool = False,
    opponents: Mapping[str, Player] = MappingProxyType({}),
) -> GamePlayer:
    """Return the player of games whose policy is that of `player`; see `GamePlayer`."""

    async def wait_ready() -> None:
        for each in (player, *opponents.values()):
            await each.wait_ready()

    parts = {each.name: getattr(player, each.name) for each in fields(Player)}
    parts["wait_ready"] = wait_ready
    return GamePlayer(**parts, seats=seats, rotates=rotates, opponents=opponents)


class _Game:
    """A game with its table, made when the environment of the first seat is requested."""

    def __init__(self, make_env: Callable[[], Env], seats: Mapping[str, str]) -> None:
        self._make = make_env
        self._own = {
            seat: who.removeprefix(OWN) for seat, who in seats.items() if who.startswith(OWN)
        }
        self.agents = [seat for seat in seats if seat not in self._own]
        """The seats that agents play."""
        self.env: Env | None = None
        self._table: Table | None = None
        self._gone = list[str]()
        """The seats that were given up already."""

    def env_of(self, seat: str) -> Env:
        """Return the environment of a seat, in the wrappers of the configured environment."""
        if self.env is None:
            self.env = self._make()
        spec, game = self.env.spec, self.env.unwrapped
        if not (isinstance(game, MultiSeatEnv) and isinstance(spec, EnvSpec)):
            raise EnvError(f"{game!r} has no seats")
        if self._table is None:
            self._table = Table(game, self._own)
            for gone in self._gone:
                self._table.leave(gone)
        return wrapped(SeatEnv(self._table, seat), spec)

    async def left_after(self, seat: str, playing: Coroutine[Any, Any, Trajectory]) -> Trajectory:
        """Return the result of `playing`, and end the game for the other seats with it: if an
        environment cannot be made or closed, they must not wait for a seat that nobody plays."""
        try:
            return await playing
        finally:
            if self._table is not None:
                self._table.leave(seat)
            self._gone.append(seat)


def _sampling(sampling: SessionSampling, seat: str, who: str) -> SessionSampling:
    """Return the sampling of a seat's session: seeds of its own; only seats of the policy train."""
    seed = None if sampling.seed is None else derived_seed(sampling.seed, seat)
    return replace(sampling, seed=seed, train=sampling.train and who == POLICY)


def _numbered(seats: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the seats with turns, lineages and rows that are numbered throughout the game, and
    with the credit of the complete game."""
    found: list[Trajectory] = []
    parents, lineages = list[int](), list[int]()
    turn_rewards, lineage_rewards = list[float](), list[float]()
    num_rows = 0
    for seat in seats:
        first, credit = len(parents), seat.credit
        number = len(lineage_rewards)
        rows = [
            replace(
                row,
                turn_ids=np.where(row.turn_ids < 0, row.turn_ids, row.turn_ids + first),
                lineage=row.lineage + number,
                parent=row.parent if row.parent < 0 else row.parent + num_rows,
            )
            for row in seat.rows
        ]
        found.append(replace(seat, rows=rows))
        num_rows += len(rows)
        parents += [turn if turn < 0 else turn + first for turn in credit.parents]
        lineages += [lineage + number for lineage in credit.lineages]
        turn_rewards += credit.turn_rewards or [0.0] * len(credit.parents)
        num_lineages = max(credit.lineages, default=-1) + 1
        lineage_rewards += credit.lineage_rewards or [0.0] * num_lineages
    if not any(turn_rewards) and not any(lineage_rewards):
        turn_rewards, lineage_rewards = [], []
    whole = Credit(0.0, parents, lineages, turn_rewards, lineage_rewards)
    return [replace(seat, credit=whole) for seat in found]


def _joined(seats: Sequence[Trajectory], *, episode_id: str) -> Trajectory:
    """Return the record of a game from those of its seats."""
    seats = _numbered(seats)
    worst = min(seats, key=lambda seat: _WORST_FIRST.index(seat.outcome))
    ours = [seat for seat in seats if seat.player == POLICY] or seats
    values: dict[str, list[float]] = {}
    for name, number in (item for seat in ours for item in seat.metrics.items()):
        values.setdefault(name, []).append(number)
    metrics = {name: sum(found) / len(found) for name, found in values.items()}
    return Trajectory(
        episode_id=episode_id,
        group_id=worst.group_id,
        task_id=worst.task_id,
        outcome=worst.outcome,
        reward=sum(seat.reward for seat in ours) / len(ours),
        rows=[row for seat in seats for row in seat.rows],
        num_turns=sum(seat.num_turns for seat in seats),
        metrics=metrics | {f"reward_{seat.seat}": seat.reward for seat in seats},
        error=f"seat {worst.seat}: {worst.error}" if worst.error else "",
        env_id=worst.env_id,
        credit=worst.credit,
        seats=seats,
    )


def check_seats(seats: Mapping[str, str], spec: EnvSpec, env: Env) -> None:
    """Refuse players for seats that `env`, an instance of `spec`, does not have.

    Raises:
        ConfigError: the environment has other seats or only one, no such player of its own, or
            attempts; or there is no such model.
    """
    game, said = env.unwrapped, f"rollout.seats {dict(seats)}"
    if not isinstance(game, MultiSeatEnv):
        raise ConfigError(f"{said}: {spec.id} has no seats (it is no MultiSeatEnv); leave it out")
    if len(game.seats) == 1:
        raise ConfigError(f"{said}: {spec.id} has one seat, the policy's own; leave it out")
    if set(seats) != set(game.seats):
        unknown = min(set(seats) - set(game.seats), default="")
        raise ConfigError(
            f"{said}: {spec.id} has the seats {', '.join(game.seats)}; name a player for each"
            f"{near_match(unknown, game.seats)}"
        )
    for seat, who in seats.items():
        if who.startswith(FROZEN):
            model_folder(ModelConfig(path=who.removeprefix(FROZEN)), spec.id)
        if who.startswith(OWN) and who.removeprefix(OWN) not in game.players:
            raise ConfigError(
                f"rollout.seats.{seat} {who!r}: the players of {spec.id} are "
                f"{', '.join(OWN + player for player in game.players) or 'none'}"
                f"{near_match(who, [OWN + player for player in game.players])}"
            )
    if spec.max_attempts > 1:
        raise ConfigError(
            f"{said} with max_attempts {spec.max_attempts}: a seat cannot begin the game of the "
            "others again; leave one of them out"
        )


def check_single_agent(spec: EnvSpec, env: Env) -> None:
    """Refuse to play `env`, an instance of `spec`, from one seat, as evaluations do, if it cannot
    play the others itself.

    Raises:
        ConfigError: it is a game of several seats without players of its own.
    """
    game = env.unwrapped
    if isinstance(game, MultiSeatEnv) and len(game.seats) > 1 and not game.players:
        raise ConfigError(
            f"{spec.id} has no players of its own for its seats, {', '.join(game.seats)}: give "
            "each of them a player in training (rollout.seats), and leave out evaluations, which "
            "play from one seat (--eval.num_tasks=0; `arl eval` has --round-robin)"
        )


class Games(PlayerKind):
    """The kind of players of runs with a player for each seat (`rollout.seats`)."""

    def takes(self, rollout: RolloutConfig, spec: EnvSpec) -> bool:
        return bool(rollout.part(SeatKeys).seats)

    def check(self, rollout: RolloutConfig, spec: EnvSpec, env: Env) -> None:
        check_seats(rollout.part(SeatKeys).seats, spec, env)

    def check_single_agent(self, spec: EnvSpec, env: Env) -> None:
        check_single_agent(spec, env)

    def player(
        self, single_agent: Player, rollout: RolloutConfig, opponents: Mapping[str, Player]
    ) -> Player:
        keys = rollout.part(SeatKeys)
        return seated(single_agent, keys.seats, rotates=keys.rotate_seats, opponents=opponents)


def seats_of(env: Env) -> Sequence[str]:
    """Return the seats of a game; none: the environment is no game."""
    game = env.unwrapped
    return game.seats if isinstance(game, MultiSeatEnv) else ()


def match_of(seats: Sequence[str], players: Sequence[Player]) -> Player:
    """Return the player of games between `players`, one for each of `seats`, in that order."""
    first, *others = players
    opponents = {f"model {number}": each for number, each in enumerate(others, start=2)}
    places = dict(zip(seats, (POLICY, *opponents), strict=True))
    return seated(first, places, opponents=opponents)


KIND = Games()
