"""Kuhn poker in text, and its equilibria.

Three cards, one for each of two players, and one chip each in the pot. The first player checks or
bets one chip; after a check the second one may bet; after a bet the other one calls or folds.
Kuhn 1950, A simplified two-person poker: the game is worth -1/18 to the first player.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from agentgym_rl import Message
from agentgym_rl.gym.seats import MultiSeatEnv
from agentgym_rl.gym.tool_env import text_of

CARDS = "JQK"
FIRST, SECOND = "first", "second"
_OPEN, _FACING_BET = ("check", "bet"), ("fold", "call")
_WORDS = re.compile(r"\b(check|bet|fold|call)\b\W*\Z", re.IGNORECASE)
_BLUFF = Fraction(1, 6)
"""The share of bets with a jack, from 0 to 1/3: each gives one equilibrium of the first player."""
RULES = (
    "Kuhn poker with the cards J < Q < K. Each player has one card and has paid one chip; a bet is "
    "one chip. You are the {seat} player and have the {card}."
)


class KuhnPoker(MultiSeatEnv):
    """Kuhn poker; the reward is the chips won or lost. A reply that is no possible action folds.

    The task's seed deals the cards. The game's own players: `nash`, an equilibrium, and `random`.
    `seat` and `opponent`: see `MultiSeatEnv`.
    """

    seats = (FIRST, SECOND)
    players = ("nash", "random")
    zero_sum = True
    max_turns = 2

    def __init__(self, *, seat: str = "", opponent: str = "") -> None:
        super().__init__(seat=seat, opponent=opponent)
        self._seed = 0
        self.cards: Mapping[str, str] = {}
        """The card of each seat."""
        self.history: tuple[str, ...] = ()
        """The actions so far."""
        self._seen: dict[str, int] = {}

    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        dealt = random.Random(seed).sample(CARDS, 2)
        self._seed, self.cards = seed, dict(zip(self.seats, dealt, strict=True))
        self.history, self._seen = (), {}
        self.turn, self.rewards = FIRST, dict.fromkeys(self.seats, 0.0)

    def observe(self, seat: str) -> list[Message]:
        seen, self._seen[seat] = self._seen.get(seat), len(self.history)
        lines = [RULES.format(seat=seat, card=self.cards[seat])] if seen is None else []
        if self.history[seen or 0 :]:
            lines.append(f"The other player: {self.history[-1]}.")
        if self.turn == seat:
            lines.append(f"Reply with {' or '.join(actions(self.history))}.")
        return [{"role": "user", "content": " ".join(lines)}] if lines else []

    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        found = _WORDS.search(text_of(action))
        word = found[1].lower() if found else ""
        info: dict[str, Any] = {}
        if word not in actions(self.history):
            info["invalid_action"] = f"expected {' or '.join(actions(self.history))}"
            word = "fold"
        self.history = (*self.history, word)
        chips = payoff(self.history, self.cards[FIRST], self.cards[SECOND])
        if chips is None:
            self.turn = SECOND if seat == FIRST else FIRST
        else:
            self.turn, self.rewards = None, {FIRST: float(chips), SECOND: float(-chips)}
        return info

    def own_action(self, seat: str, player: str) -> Message:
        chance = random.Random(f"{self._seed}/{self.history}/{self.cards[seat]}")
        passive, active = actions(self.history)
        share = equilibrium(self.cards[seat], self.history) if player == "nash" else 0.5
        return {"role": "assistant", "content": active if chance.random() < share else passive}


def actions(history: tuple[str, ...]) -> tuple[str, str]:
    """Return the passive and the active action of the player whose turn it is."""
    return _FACING_BET if history[-1:] == ("bet",) else _OPEN


def payoff(history: tuple[str, ...], first: str, second: str) -> int | None:
    """Return the chips that the first player, with the card `first`, wins; None: not over."""
    if history[-1:] == ("fold",):
        return -1 if len(history) % 2 else 1
    if history[-1:] == ("call",) or history == ("check", "check"):
        stake = 2 if history[-1] == "call" else 1
        return stake if CARDS.index(first) > CARDS.index(second) else -stake
    return None


def equilibrium(card: str, history: tuple[str, ...]) -> Fraction:
    """Return the probability of the active action, to bet or to call, in an equilibrium."""
    third, never, always = Fraction(1, 3), Fraction(0), Fraction(1)
    by_card = {
        (): (_BLUFF, never, 3 * _BLUFF),
        ("check",): (third, never, always),
        ("bet",): (never, third, always),
        ("check", "bet"): (never, _BLUFF + third, always),
    }
    return by_card[history][CARDS.index(card)]
