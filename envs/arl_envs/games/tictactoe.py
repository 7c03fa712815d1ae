"""Tic-tac-toe in text, and the value of every position."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from agentgym_rl import ConfigError, Message
from agentgym_rl.gym.seats import MultiSeatEnv
from agentgym_rl.gym.tool_env import text_of

EMPTY = "123456789"
"""The board before the first move: a free cell shows its number."""
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
MOST_OPENED = 6
"""The most moves of an opening."""
_LINES = tuple(tuple(map(int, line)) for line in LINES)
_REPLY = re.compile(r"(?<!\d)([1-9])\W*\Z")
_OTHER = {"x": "o", "o": "x"}
RULES = "Tic-tac-toe: three in a row win. You are {seat}. Reply with the number of a free cell."


class TicTacToe(MultiSeatEnv):
    """Tic-tac-toe: 1 for a win, -1 for a loss, 0 for a draw. A reply that names no free cell loses.

    The game's own players: `random`; `erring`, perfect but for a share `error_rate` of its moves,
    which are random; `oracle`, one of the best moves at random. A game begins after 0 to `openings`
    random moves, by the task. `seat` and `opponent`: see `MultiSeatEnv`.

    Raises:
        ConfigError: an option is out of range.
    """

    seats = ("x", "o")
    players = ("random", "erring", "oracle")
    zero_sum = True
    max_turns = 5

    def __init__(
        self, *, seat: str = "", opponent: str = "", error_rate: float = 0.2, openings: int = 0
    ) -> None:
        super().__init__(seat=seat, opponent=opponent)
        if not 0 <= openings <= MOST_OPENED:
            raise ConfigError(f"openings: got {openings}, expected 0 to {MOST_OPENED}")
        self._openings = openings
        if not 0 <= error_rate <= 1:
            raise ConfigError(f"error_rate: got {error_rate}, expected 0 to 1")
        self._error_rate = error_rate
        self._board, self._seed = EMPTY, 0
        self._explained = set[str]()
        self._illegal = ""

    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        chance = random.Random(f"{seed}/opening")
        number = chance.randint(0, self._openings)
        self._board, self._seed = opening(number, chance), seed
        self._explained, self._illegal = set(), ""
        self.turn, self.rewards = "xo"[number % 2], {"x": 0.0, "o": 0.0}

    def observe(self, seat: str) -> list[Message]:
        board = "\n".join(self._board[i : i + 3].upper() for i in (0, 3, 6))
        if seat not in self._explained:
            self._explained.add(seat)
            board = f"{RULES.format(seat=seat.upper())}\n{board}"
        return [{"role": "user", "content": board}]

    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        found = _REPLY.search(text_of(action))
        if found is None or found[1] not in self._board:
            self._illegal = seat
            self._end(winner=_OTHER[seat])
            return {"invalid_action": "the reply does not end with the number of a free cell"}
        self._board = self._board.replace(found[1], seat)
        if winner(self._board):
            self._end(winner=seat)
        elif not free(self._board):
            self.turn = None
        else:
            self.turn = _OTHER[seat]
        return {}

    def _end(self, *, winner: str) -> None:
        self.turn, self.rewards = None, {winner: 1.0, _OTHER[winner]: -1.0}

    def own_action(self, seat: str, player: str) -> Message:
        chance = random.Random(f"{self._seed}/{self._board}")
        errs = player == "random" or (player == "erring" and chance.random() < self._error_rate)
        cells = free(self._board) if errs else best_moves(self._board, seat)
        return {"role": "assistant", "content": chance.choice(cells)}

    def ending(self, seat: str) -> dict[str, Any]:
        reward = self.rewards[seat]
        metrics = {"won": reward > 0, "drawn": reward == 0, "lost": reward < 0}
        metrics |= {"illegal": self._illegal == seat, f"lost_as_{seat}": reward < 0}
        return {"metrics": {name: float(value) for name, value in metrics.items()}}


def opening(number: int, chance: random.Random) -> str:
    """Return the board after so many random moves, none of which wins."""
    board = EMPTY
    while len(free(board)) > 9 - number:
        moved = board.replace(chance.choice(free(board)), "xo"[(9 - len(free(board))) % 2])
        board = EMPTY if winner(moved) else moved
    return board


def free(board: str) -> str:
    """Return the numbers of the free cells."""
    return "".join(cell for cell in board if cell in EMPTY)


def winner(board: str) -> str:
    """Return the seat that has three in a row; "" if none has."""
    rows = (board[a] for a, b, c in _LINES if board[a] == board[b] == board[c])
    return next(rows, "")


@cache
def value(board: str, seat: str) -> int:
    """Return the result for `seat`, whose turn it is, if both play perfectly: 1, 0 or -1."""
    if winner(board):
        return -1  # the other seat has moved last
    return max((-value(board.replace(c, seat), _OTHER[seat]) for c in free(board)), default=0)


def best_moves(board: str, seat: str) -> str:
    """Return the free cells of the best result."""
    results = {c: -value(board.replace(c, seat), _OTHER[seat]) for c in free(board)}
    return "".join(cell for cell, result in results.items() if result == max(results.values()))
