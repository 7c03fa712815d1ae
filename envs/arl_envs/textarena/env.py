"""A game of TextArena, with a seat for each of its players.

TextArena (https://github.com/LeonGuertler/TextArena) draws from the random numbers of the process,
which it seeds itself. Each game gets numbers of its own here: they are put in place for the time of
a call, and those of the process are put back, so that games in one process do not disturb each
other, and the same actions give the same game.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Mapping
from typing import Any

from agentgym_rl import ConfigError, Message
from agentgym_rl.gym.seats import MultiSeatEnv
from agentgym_rl.gym.tool_env import text_of

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
        self._game = _made(id, options)
        self._numbers = random.Random(0)

    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        self._numbers = random.Random(seed)
        with self._own_numbers():
            self._game.reset(num_players=len(self.seats), seed=seed % 2**32)
        self.rewards = dict.fromkeys(self.seats, 0.0)
        self.turn = str(self._game.state.current_player_id)

    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        with self._own_numbers():
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
        said = [f"{state.role_mapping.get(who, who)}: {text}" if who >= 0 else text
                for who, text, _ in new if who != number]  # fmt: skip
        return [{"role": "user", "content": "\n".join(said)}] if said else []

    def own_action(self, seat: str, player: str) -> Message:
        raise ConfigError(f"seat {seat}: TextArena has no player {player!r}")

    @contextlib.contextmanager
    def _own_numbers(self) -> Generator[None]:
        before = random.getstate()
        random.setstate(self._numbers.getstate())
        try:
            yield
        finally:
            self._numbers.setstate(random.getstate())
            random.setstate(before)


def _made(id: str, options: Mapping[str, Any]) -> Any:
    """Return the game, without wrappers.

    Raises:
        ConfigError: TextArena is not installed, or cannot make the game.
    """
    try:
        import textarena  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"textarena cannot be imported ({error}): pip install 'agentgym-rl[textarena]'"
        ) from error
    if not id:
        raise ConfigError("which game of TextArena? Name it, as in textarena:TicTacToe-v0")
    name = id if id.endswith(_RAW) else f"{id}{_RAW}"
    try:
        return textarena.make(name, **options)
    except Exception as error:
        raise ConfigError(f"textarena.make({name!r}, {dict(options)}): {error!r}") from error
