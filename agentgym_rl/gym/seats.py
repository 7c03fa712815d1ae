"""Environments of several seats: games in which players act in turns, each with its own
observations and rewards.

    MultiSeatEnv ◄── Table ◄── SeatEnv ◄── an agent, one for each seat that is not the game's own

As an ordinary environment a game is played from one seat, and plays the others itself. With
`rollout.seats` an episode has an agent, or a player of the game, at each seat
(arl_selfplay/game.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from agentgym_rl.core import ConfigError, EnvError, Message, checked_task, derived_number

from .env import Env, Step
from .step_clock import OffTheClock

ANY_SEAT = "any"
"""The value of the option `seat` with which the seed of the task chooses the seat."""
LEFT = "left"
"""The `stop_reason` of a game that ended because the agent of another seat ended."""
_ROUNDING = 1e-9
_MOST_OWN = 10_000
"""The maximum number of consecutive actions of the game's own players: without a limit, a game that
never passes the turn on would block the process."""


class MultiSeatEnv(Env):
    """A game for several seats, one of which acts at a time (the agent environment cycle of
    PettingZoo, Terry et al. 2021, https://arxiv.org/abs/2009.14471).

    Subclasses implement `start`, `act`, `observe` and `own_action`, and keep `turn` and `rewards`.
    Every random draw comes from the seed of `start` and the position, so that the same actions give
    the same game. `seat` and `opponent` are for a game that is played as an ordinary environment:
    the agent's seat (the first one by default; "any": chosen by the task's seed) and the player of
    the other seats.

    Raises:
        ConfigError: the game has no such seat, or does not offer such a player.
    """

    seats: Sequence[str] = ()
    """The names of the seats."""
    players: Sequence[str] = ()
    """The names of the players that the game itself offers, the usual one first."""
    zero_sum: bool = False
    """Whether the rewards of all seats must add up to 0 whenever a seat has acted, which is
    checked."""
    reward_range = None
    """An open range: any play may win a game."""

    turn: str | None = None
    """The seat that acts next; None: the game is over."""
    truncated: Collection[str] = ()
    """The seats whose episodes the game itself truncated, once it is over."""
    rewards: Mapping[str, float]
    """The sum of the rewards of each seat so far."""

    def __init__(self, *, seat: str = "", opponent: str = "") -> None:
        self._seat = seat and chosen("seat", seat, (*self.seats, ANY_SEAT))
        self._opponent = chosen("opponent", opponent, self.players or ("",))
        self._alone: SeatEnv | None = None

    @abstractmethod
    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        """Start a game; `options` are those of `reset`."""

    @abstractmethod
    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        """Play the assistant message of the seat whose turn it is; return the `info` of its step.
        Hostile input never raises."""

    @abstractmethod
    def observe(self, seat: str) -> list[Message]:
        """Return the messages since the seat observed last; the first ones explain the game."""

    @abstractmethod
    def own_action(self, seat: str, player: str) -> Message:
        """Return the action of one of the game's own `players` at a seat whose turn it is."""

    def ending(self, seat: str) -> dict[str, Any]:
        """Return the `info` of a seat's last step, such as metrics."""
        return {}

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        number, given = _seed(seed, options), dict(options or {})
        at = self._seat or self.seats[0]
        if at == ANY_SEAT:  # not the seed itself, one of whose bits is the split
            at = self.seats[derived_number(f"{number}/seat") % len(self.seats)]
        others = {seat: self._opponent for seat in self.seats if seat != at}
        if others and not self._opponent:
            raise EnvError(
                f"the game has no players of its own for the seats {', '.join(others)}: give every "
                "seat a player (rollout.seats), and leave out evaluations (eval.num_tasks=0)"
            )
        self._alone = SeatEnv(Table(self, others), at)
        return await self._alone.reset(seed=number, options=given)

    async def step(self, action: Message) -> Step:
        """Play an action, and those of the other seats up to the agent's next turn.

        Raises:
            EnvError: there is no game, or it breaks its contract.
        """
        if self._alone is None:
            raise EnvError("step without an episode: call reset first")
        return await self._alone.step(action)


def chosen(option: str, value: str, allowed: Sequence[str]) -> str:
    """Return the value of an option, by default the first one that is allowed.

    Raises:
        ConfigError: the value is not allowed.
    """
    if value and value not in allowed:
        raise ConfigError(f"{option}: got {value!r}, allowed: {', '.join(allowed)}")
    return value or allowed[0]


def _seed(seed: int | None, options: Mapping[str, Any] | None) -> int:
    """Return the seed of a game: the task's, if there is a task, or 0."""
    if options and (task := options.get("task")) is not None:
        return checked_task(task).seed
    return 0 if seed is None else seed


class Table:
    """One game with all of its players; the seats in `own` have players of the game, which act at
    once.

    One event loop only. Waits for the turn of a seat do not count for the time limit of a step.
    They end at the latest when the other agents end, each of which has the deadlines of an episode:
    the code that runs the agents calls `leave` when one of them ends, for any reason. A game that
    fails once has failed for all seats.
    """

    def __init__(self, game: MultiSeatEnv, own: Mapping[str, str]) -> None:
        self.game = game
        self.left = ""
        """The seat whose agent ended before the game; empty: none did."""
        self._own = own
        self._starting = asyncio.Lock()
        self._started = False
        self._failure = ""
        """The reason why the game cannot continue; empty: it can."""
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Return whether no seat acts any more."""
        return self._started and (self.game.turn is None or bool(self.left))

    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        """Start the game, unless the agent of another seat has done so.

        Raises:
            EnvError: the game breaks its contract, or has failed at another seat.
        """
        async with self._starting:
            self._check_alive()
            if self._started:
                return
            with self._whole("the game could not start"):
                await self.game.start(seed=seed, options=options)
                await self._play_own()
            self._started = True
        self._notify()

    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        """Play an action of the seat whose turn it is, and those of the game's own players.

        Raises:
            EnvError: the game breaks its contract, or has failed at another seat.
        """
        self._check_alive()
        if self.is_over:
            return {}
        if self.game.turn != seat:
            raise EnvError(f"seat {seat} acted at the turn of seat {self.game.turn}")
        with self._whole(f"it failed when seat {seat} acted"):
            info = await self.game.act(seat, action)
            await self._play_own()
        self._notify()
        return info

    def observe(self, seat: str) -> list[Message]:
        """Return the messages since the seat observed last.

        Raises:
            EnvError: the game changes the turn in `observe`, which the other seats would not
                notice.
        """
        turn = self.game.turn
        with self._whole(f"it failed when seat {seat} looked"):
            seen = self.game.observe(seat)
            if self.game.turn != turn:
                raise EnvError(
                    f"observe changed the turn from {turn!r} to {self.game.turn!r}: act alone may"
                )
        return seen

    async def wait_turn(self, seat: str) -> None:
        """Wait until it is the seat's turn, or the game is over.

        Raises:
            EnvError: the game has failed at another seat.
        """
        with OffTheClock():
            while not (self._failure or self.is_over or self._is_turn(seat)):
                await self._changed.wait()
        self._check_alive()

    def _is_turn(self, seat: str) -> bool:
        return self._started and self.game.turn == seat

    def leave(self, seat: str) -> None:
        """End the game because the agent of a seat has ended; this has no effect once the game is
        over."""
        if not self.is_over and not self.left:
            self.left = seat
        self._notify()

    @contextlib.contextmanager
    def _whole(self, what: str) -> Generator[None]:
        """End the game for all seats after an error or a cancellation in this context, since the
        state of the game is then unknown."""
        try:
            yield
        except BaseException as error:
            cut = isinstance(error, asyncio.CancelledError)
            why = "it was cut off in the middle (a time limit, or the end of the agent)"
            why = why if cut else f"{type(error).__name__}: {error}"
            self._failure = f"{what}: {why}"
            self._notify()
            raise

    def _check_alive(self) -> None:
        """Check that the game has not failed.

        Raises:
            EnvError: it has failed.
        """
        if self._failure:
            raise EnvError(f"the game is over for all seats: {self._failure}")

    async def _play_own(self) -> None:
        self._check()
        for _ in range(_MOST_OWN):
            seat = self.game.turn
            if seat is None or seat not in self._own:
                return
            await self.game.act(seat, self.game.own_action(seat, self._own[seat]))
            self._check()
        raise EnvError(
            f"the game's own players acted {_MOST_OWN:,} times in a row, last at seat "
            f"{self.game.turn}: act has to pass the turn on, or to end the game (turn = None)"
        )

    def _check(self) -> None:
        """Check that the state of the game keeps the contract.

        Raises:
            EnvError: it does not.
        """
        game, seats = self.game, list(self.game.seats)
        if game.turn is not None and game.turn not in seats:
            raise EnvError(f"turn: got {game.turn!r}, expected one of {seats} or None")
        if set(game.rewards) != set(seats):
            raise EnvError(f"rewards: got {dict(game.rewards)}, expected one of each of {seats}")
        total = math.fsum(game.rewards.values())
        if game.zero_sum and not abs(total) <= _ROUNDING:
            raise EnvError(f"the game is zero_sum, and its rewards {dict(game.rewards)} are not")

    def _notify(self) -> None:
        """Wake the seats that wait for their turn."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class SeatEnv(Env):
    """The environment of one seat: `reset` and `step` end when it is the seat's turn, or the game
    is over. `close` gives the seat up, and leaves the game itself to its owner."""

    def __init__(self, table: Table, seat: str) -> None:
        game = table.game
        self.table = table
        self._seat = seat
        self._paid = 0.0
        self.spec = game.spec
        self.max_turns, self.step_timeout_s = game.max_turns, game.step_timeout_s
        self.needs_sandboxes, self.holds_sandboxes = game.needs_sandboxes, game.holds_sandboxes
        self.uses_verifier, self.reward_range = game.uses_verifier, game.reward_range

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        await self.table.start(seed=_seed(seed, options), options=dict(options or {}))
        await self.table.wait_turn(self._seat)
        game = self.table.game
        self.tools = game.tools
        info: dict[str, Any] = {"seat": self._seat}
        if self.table.is_over:
            self._paid = game.rewards[self._seat]
            info |= {"over": self._paid} | (game.ending(self._seat) if game.turn is None else {})
        return self.table.observe(self._seat), info

    async def step(self, action: Message) -> Step:
        info = dict(await self.table.act(self._seat, action))
        await self.table.wait_turn(self._seat)
        game = self.table.game
        self.tools = game.tools
        reward = game.rewards[self._seat] - self._paid
        self._paid += reward
        is_over = game.turn is None
        is_left = not is_over and self.table.is_over
        is_cut = is_left or (is_over and self._seat in game.truncated)
        if is_left:
            info["stop_reason"] = LEFT
        if is_over:
            info |= game.ending(self._seat)
        seen = self.table.observe(self._seat)
        return Step(seen, reward, not is_cut and is_over, is_cut, info)

    async def close(self) -> None:
        self.table.leave(self._seat)
