"""Tic-tac-toe: its rules, its players, and the value of its positions."""

import asyncio
import random

import pytest
from arl_envs.games import tictactoe
from arl_envs.games.tictactoe import (
    EMPTY,
    TicTacToe,
    best_moves,
    free,
    opening,
    value,
    winner,
)

from agentgym_rl import ConfigError, make
from agentgym_rl.gym.seats import SeatEnv, Table


def say(text):
    return {"role": "assistant", "content": text}


async def _won(*moves, seed=1, **options):
    env = make("tictactoe", **options)
    await env.reset(seed=seed)
    for move in moves:
        step = await env.step(say(move))
        if step.terminated:
            return step
    raise AssertionError("the game goes on")


async def _game(one, other, seed):
    """The rewards of a game between two players of the game itself."""
    env = TicTacToe()
    await env.start(seed=seed, options={})
    while env.turn is not None:
        await env.act(env.turn, env.own_action(env.turn, one if env.turn == "x" else other))
    return env.rewards


def test_perfect_play_draws_and_never_loses():
    assert value(EMPTY, "x") == 0
    games = [asyncio.run(_game("oracle", "oracle", seed)) for seed in range(20)]
    assert all(rewards == {"x": 0.0, "o": 0.0} for rewards in games)
    against = [asyncio.run(_game("oracle", "random", seed))["x"] for seed in range(60)]
    assert min(against) >= 0
    assert sum(against) > 40


def test_the_erring_player_loses_sometimes_and_errs_as_often_as_told():
    erring = [asyncio.run(_game("oracle", "erring", seed))["x"] for seed in range(200)]
    assert 0.1 < sum(erring) / 200 < 0.6
    never = TicTacToe(error_rate=0.0)
    asyncio.run(never.start(seed=1, options={}))
    assert never.own_action("x", "erring")["content"] in best_moves(EMPTY, "x")


def test_a_line_wins_and_a_taken_cell_loses():
    assert best_moves("xx3oo6789", "x") == "3"
    assert tictactoe.winner("xxx456789") == "x"
    for reply in ("0", "ten", "", "10", None):
        step = asyncio.run(_won(reply))
        assert (step.reward, step.info["metrics"]["illegal"]) == (-1.0, 1.0)
    assert "invalid_action" in asyncio.run(_won("5", "5")).info


def test_the_reply_ends_with_the_cell():
    async def board(reply):
        env = make("tictactoe", opponent="oracle")
        await env.reset(seed=1)
        return (await env.step(say(reply))).observation[0]["content"]

    assert asyncio.run(board("I take 1, no: cell 5.")).replace("\n", "")[4] == "X"


def test_the_agent_may_have_either_seat():
    async def first(**options):
        env = make("tictactoe", **options)
        tasks = TicTacToe.task_source("train", seed=0)
        return [(await env.reset(options={"task": tasks[i]}))[0][0]["content"] for i in range(8)]

    assert all("You are X" in text and "123" in text for text in asyncio.run(first()))
    assert all("You are O" in text and "X" in text[-11:] for text in asyncio.run(first(seat="o")))
    assert {"You are X" in text for text in asyncio.run(first(seat="any"))} == {True, False}


def test_options_are_checked():
    for options in ({"seat": "z"}, {"opponent": "god"}, {"error_rate": 2}, {"openings": 7}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("tictactoe", **options)


def test_openings_are_positions_of_games_that_go_on():
    seen = {opening(number, random.Random(seed)) for seed in range(30) for number in range(7)}
    assert {9 - len(free(board)) for board in seen} == set(range(7))
    for board in seen:
        assert not winner(board)
        assert 0 <= board.count("x") - board.count("o") <= 1


def test_the_task_decides_how_far_a_game_is_opened():
    async def openings(most):
        env = make("tictactoe", openings=most)
        return [len(free(env.unwrapped._board)) for i in range(40) if await env.reset(seed=i)]

    assert min(asyncio.run(openings(6))) < 4
    assert set(asyncio.run(openings(0))) == {9}


def test_a_game_that_ends_before_the_seats_turn_is_over_at_reset():
    async def reset(seed):
        env = TicTacToe(seat="x", opponent="oracle")
        await env.start(seed=seed, options={})
        env._board, env.turn = "xoxxo6789", "o"
        table = Table(env, {"o": "oracle"})
        table._started = True
        await table._play_own()
        return (await SeatEnv(table, "x").reset())[1]

    assert asyncio.run(reset(1))["over"] == -1.0
