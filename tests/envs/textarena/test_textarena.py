"""Games of TextArena, where it is installed."""

import asyncio
import random

import pytest

from agentgym_rl import ConfigError, EnvError, make
from agentgym_rl.gym.seats import Table

pytest.importorskip("textarena")


def say(text):
    return {"role": "assistant", "content": text}


async def _game(*moves, id="textarena:TicTacToe-v0", seed=1, **options):
    """A game after some moves, and what each seat saw."""
    game = make(id, **options).unwrapped
    table = Table(game, {})
    await table.start(seed=seed, options={})
    seen = {seat: "" for seat in game.seats}
    for move in moves:
        seen[game.turn] += "\n".join(m["content"] for m in game.observe(game.turn))
        await table.act(game.turn, say(move))
    for seat in game.seats:
        seen[seat] += "\n".join(m["content"] for m in game.observe(seat))
    return game, seen


def test_a_game_is_played_to_its_end_by_two_seats():
    game, seen = asyncio.run(_game("[0]", "[3]", "[1]", "[4]", "[2]"))
    assert (game.turn, game.rewards) == (None, {"0": 1.0, "1": -1.0})
    assert "You are Player 0" in seen["0"]
    assert "You are Player 1" not in seen["0"]
    assert "[3]" in seen["0"]


def test_nonsense_twice_loses():
    game, _ = asyncio.run(_game("hm", "hm"))
    assert (game.turn, game.rewards) == (None, {"0": -1.0, "1": 1.0})


def test_the_random_numbers_of_the_process_stay_and_games_have_their_own():
    random.seed(5)
    before = random.getstate()
    one = asyncio.run(_game(id="textarena:KuhnPoker-v0", seed=3))[1]
    assert random.getstate() == before
    random.random()
    assert asyncio.run(_game(id="textarena:KuhnPoker-v0", seed=3))[1] == one


def test_a_game_for_one_is_an_ordinary_environment():
    async def main():
        env = make("textarena:GuessTheNumber-v0", num_players=1)
        await env.reset(seed=1)
        return await env.step(say("[1]"))

    assert asyncio.run(main()).observation


def test_several_seats_need_players():
    with pytest.raises(EnvError, match=r"no players of its own .*rollout\.seats"):
        asyncio.run(make("textarena:TicTacToe-v0").reset(seed=1))


def test_a_game_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="NoSuch-v0-raw"):
        make("textarena:NoSuch-v0")
