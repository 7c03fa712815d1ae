"""The tic-tac-toe family: demonstrators who know the rules, and mostly move at random.

Every demonstrated move is legal. Three in ten are the best there are; the others are drawn from all
free cells. Self-play has to find the moves that win.
"""

from __future__ import annotations

import asyncio
import random

from arl_envs.games.tictactoe import TicTacToe
from family import PAD, TURN_END, Family, Size, Stage, Vocabulary, WarmUp

from agentgym_rl.core import Message, SeededTasks

BEST_SHARE = {Stage.EVEN: 0.5, Stage.CLEAN: 1.0, Stage.MIXED: 0.3}
"""The share of best moves; the others are random."""


def demonstrate(rng: random.Random, stage: Stage) -> list[Message]:
    """Play a game of a training task from one seat to its end; return the conversation."""
    return asyncio.run(_game(rng, BEST_SHARE[stage]))


async def _game(rng: random.Random, share: float) -> list[Message]:
    task = SeededTasks("train", seed=rng.getrandbits(32))[0]
    env = TicTacToe(seat="any", opponent=rng.choice(["random", "erring"]), error_rate=0.5)
    messages, _ = await env.reset(options={"task": task})
    while env.turn is not None:
        player = "oracle" if rng.random() < share else "random"
        said = env.own_action(env.turn, player)
        step = await env.step(said)
        messages += [said, *step.observation]
    while messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


TICTACTOE = Family(
    "tictactoe",
    "tictactoe",
    tools=(),
    demonstrate=demonstrate,
    options={"seat": "any", "opponent": "erring"},
    plan=WarmUp(clean_steps=1200, mixed_steps=200, tokens_per_row=8),
    size=Size(hidden=96, layers=3, heads=3, key_value_heads=3, feed_forward=256),
    # Every cell of the board is a token of its own; the headers of turns merge.
    vocabulary=Vocabulary(splits=("[1-9XO]",), control=(PAD, TURN_END), tags=()),
)
