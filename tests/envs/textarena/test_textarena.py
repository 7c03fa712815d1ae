"""Games of TextArena, where it is installed."""

import asyncio
import random

import numpy as np
import pytest

from agentgym_rl import ConfigError, EnvError, make
from agentgym_rl.gym.seats import Table
from tests.kit.cases import cases

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


@cases(
    "id, options",
    [
        ("Countdown-v0", {"num_players": 1, "numbers": None, "target": None}),
        ("SpellingBee-v0", {}),
    ],
)
def test_a_seed_is_one_game_whatever_draws_it(id, options, tmp_path, monkeypatch):
    """Countdown draws as it is made, the other one by numpy."""
    (tmp_path / "corpora/words").mkdir(parents=True, exist_ok=True)
    for name in ("en", "en-basic"):
        (tmp_path / "corpora/words" / name).write_text("apple\nbanana\n")
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    monkeypatch.setattr("nltk.download", lambda name: True)
    before = np.random.get_state()[1].tolist()

    def opening(seed):
        return asyncio.run(_game(id=f"textarena:{id}", seed=seed, **options))[1]

    first = opening(3)
    random.random()
    assert opening(3) == first
    assert any(opening(seed) != first for seed in range(4, 9))
    assert np.random.get_state()[1].tolist() == before


@cases("id", ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0", "ThreeCardMonte-v0"])
def test_a_game_that_mixes_up_its_arguments_is_paid_a_number(id):
    game, _ = asyncio.run(_game("hm", "hm", id=f"textarena:{id}", num_players=1))
    assert game.turn is None
    assert 0.0 <= game.rewards["0"] < 1.0


def test_a_game_whose_players_are_all_eliminated_ends():
    async def main():
        game, _ = await _game(id="textarena:MarketEntryGame-v0", num_players=4)
        for _ in range(100):
            if game.turn is not None:
                await game.act(game.turn, say("hm"))
        return game

    game = asyncio.run(main())
    assert (game.turn, set(game.rewards.values())) == (None, {-1.0})


def test_a_turn_without_news_has_a_message():
    game, _ = asyncio.run(_game(id="textarena:TicTacToe-v0"))
    assert game.observe(game.turn) == [{"role": "user", "content": "It is your turn."}]
