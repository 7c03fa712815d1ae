"""A game of TextArena, with a seat for each of its players.

TextArena (https://github.com/LeonGuertler/TextArena) draws from the random numbers of the process,
Python's and numpy's, some of which it seeds itself. Each game gets numbers of its own here: they
are put in place for the time of a call, and those of the process are put back, so that games in one
process do not disturb each other, and the same seed and actions give the same game.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from agentgym_rl import ConfigError, Message
from agentgym_rl.core import install_command
from agentgym_rl.gym.seats import MultiSeatEnv
from agentgym_rl.gym.tool_env import text_of

_YOUR_TURN = "It is your turn."
_RAW = "-raw"
"""The ending of the id of a game without TextArena's wrappers, which repeat the whole history."""


class TextArenaEnv(MultiSeatEnv):
    """The game `id` of TextArena for `num_players` players, whose seats are "0", "1" and so on.

    The rewards are the game's own, paid at its end: mostly 1, 0 or -1. A game for several players
    has no players of its own: each seat needs one (`rollout.seats`). `options` are those of
    `textarena.make`; `seat`: see `MultiSeatEnv`.

    Raises:
        ConfigError: TextArena is not installed, or cannot make the game.
    """

    def __init__(
        self, *, id: str = "", num_players: int = 2, seat: str = "", **options: Any
    ) -> None:
        if num_players < 1:
            raise ConfigError(f"num_players: got {num_players}, expected at least 1")
        self.seats = tuple(str(number) for number in range(num_players))
        super().__init__(seat=seat)
        self._id, self._options = id, dict(options)
        self._numbers = _Numbers(0)
        with self._numbers.in_place():
            self._game = _made(id, options)
        self._draws_when_made = self._numbers.used(0)

    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        self._numbers = _Numbers(seed)
        with self._numbers.in_place():
            if self._draws_when_made:  # Countdown draws its task then
                self._game = _made(self._id, self._options)
            self._game.reset(num_players=len(self.seats), seed=seed % 2**32)
        _accept_any_order(self._game.state)
        _leave_out_the_eliminated(self._game.state)
        self.rewards = dict.fromkeys(self.seats, 0.0)
        self.turn = str(self._game.state.current_player_id)

    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        with self._numbers.in_place():
            done, _ = self._game.step(action=text_of(action))
        if not done:
            self.turn = str(self._game.state.current_player_id)
            return {}
        rewards, about = self._game.close()
        self.turn, self.rewards = None, {at: float(rewards[int(at)]) for at in self.seats}
        is_invalid = about[int(seat)].get("invalid_move", False)
        return {"invalid_action": str(about[int(seat)].get("reason", ""))} if is_invalid else {}

    def observe(self, seat: str) -> list[Message]:
        number, state = int(seat), self._game.state
        new, state.observations[number] = state.observations[number], []
        lines = [f"{state.role_mapping.get(who, who)}: {text}" if who >= 0 else text
                for who, text, _ in new if who != number]  # fmt: skip
        if not lines and seat == self.turn:
            lines = [_YOUR_TURN]  # a model needs a message to reply to
        return [{"role": "user", "content": "\n".join(lines)}] if lines else []

    def own_action(self, seat: str, player: str) -> Message:
        raise ConfigError(f"seat {seat}: TextArena has no player {player!r}")


class _Numbers:
    """The random numbers of one game: the states of `random` and of `numpy.random`."""

    def __init__(self, seed: int) -> None:
        self._states = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
        )

    def used(self, seed: int) -> bool:
        """Return whether a number was drawn since `_Numbers(seed)`."""
        return repr(self._states) != repr(_Numbers(seed)._states)

    @contextlib.contextmanager
    def in_place(self) -> Generator[None]:
        """Put these numbers in the place of the process's own, and keep how far they were used."""
        before = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])


def _accept_any_order(state: Any) -> None:
    """Let a game's state take the arguments of two of its methods by their types.

    Countdown, Cryptarithm, Slitherlink and ThreeCardMonte of TextArena 0.7.4 pass a player before
    a message, and a reward before its reason, which the state takes for each other.
    """
    add, refuse = state.add_observation, state.set_invalid_move

    def add_observation(*given: Any, **named: Any) -> None:
        if len(given) == 3 and isinstance(given[0], int) and isinstance(given[1], str):
            who, message, kind = given
            return add(message=message, observation_type=kind, from_id=who, **named)
        return add(*given, **named)

    def set_invalid_move(*given: Any, **named: Any) -> None:
        if len(given) == 2 and isinstance(given[0], int | float) and isinstance(given[1], str):
            given = given[::-1]
        return refuse(*given, **named)

    state.add_observation, state.set_invalid_move = add_observation, set_invalid_move


def _leave_out_the_eliminated(state: Any) -> None:
    """Let the turn pass from a player who is eliminated, and the game end with the last of them.

    The state of TextArena 0.7.4 leaves the turn with such a player, or looks for the next player
    for ever if there is none.
    """
    step = state.step

    def step_of_the_others(*given: Any, **named: Any) -> Any:
        players = range(state.num_players)
        left = [pid for pid in players if pid not in state.elimination_order]
        if not left and not state.done:
            state.set_game_outcome(dict.fromkeys(players, -1.0), "All players are eliminated.")
        found = step(*given, **named)
        if not state.done and state.current_player_id not in left:
            later = [pid for pid in left if pid > state.current_player_id]
            state.manually_set_current_player_id((later or left)[0], force=True)
        return found

    if hasattr(state, "elimination_order"):
        state.step = step_of_the_others


def _made(id: str, options: Mapping[str, Any]) -> Any:
    """Return the game, without wrappers.

    Raises:
        ConfigError: TextArena is not installed, or cannot make the game.
    """
    try:
        textarena = import_module("textarena")
    except ImportError as error:
        raise ConfigError(
            f"textarena cannot be imported ({error}): {install_command('textarena')}"
        ) from error
    if not id:
        raise ConfigError("which game of TextArena? Name it, as in textarena:TicTacToe-v0")
    name = id if id.endswith(_RAW) else f"{id}{_RAW}"
    try:
        return textarena.make(name, **options)
    except Exception as error:
        raise ConfigError(f"textarena.make({name!r}, {dict(options)}): {error!r}") from error
