"""Models that play each other: both seats, every task, and ratings that follow the results."""

import asyncio
import math
import random

import pytest
from arl_envs.games.tictactoe import best_moves, free
from arl_selfplay.ratings import ratings
from arl_selfplay.round_robin import print_ratings, round_robin

from agentgym_rl.cli import eval_targets
from agentgym_rl.cli import main as cli
from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError
from agentgym_rl.evaluate import EvalTarget
from agentgym_rl.evaluate.target import first_engines
from agentgym_rl.report import make_progress
from agentgym_rl.runtime import serving
from tests.kit.cases import cases
from tests.kit.someones_eval import QUICK
from tests.kit.someones_model import SomeonesModel

TASKS = 3


class Players(SomeonesModel):
    """Models of one URL: `best` plays perfectly, `first` takes the first free cell, `bad` none."""

    def __init__(self) -> None:
        super().__init__(self.answer)

    def answer(self, messages):
        seat = "x" if "You are X" in messages[0]["content"] else "o"
        board = "".join(messages[-1]["content"].split("\n")[-3:]).lower()
        said = {"best": best_moves(board, seat)[:1], "first": free(board)[:1], "bad": "pass"}
        return {"content": said[self.requests[-1]["model"]]}


def asked(url, *names, env="tictactoe"):
    values = QUICK | {"engine.base_url": f"{url}/v1", "eval.num_tasks": TASKS}
    flags = [f"--{key}={value}" for key, value in values.items() if key != "model.path"]
    models = [f"--model={name}" for name in names]
    return eval_targets.evaluated(cli.parse(["eval", f"--env={env}", *flags, *models]))


def played(*names):
    async def main():
        async with serving(Players(), host="127.0.0.1", port=0) as url:
            quiet = make_progress("none", total_steps=0)
            return await round_robin(asked(url, *names), quiet)

    return asyncio.run(main())


@pytest.mark.usefixtures("key")
def test_every_pair_plays_every_task_at_both_seats():
    found = played("bad", "first", "best")
    assert (found["seats"], found["tasks"], len(found["pairs"])) == (["x", "o"], TASKS, 6)
    results = {(p["first"], p["second"]): (p["won"], p["drawn"], p["lost"]) for p in found["pairs"]}
    assert results["best", "bad"] == results["first", "bad"] == (TASKS, 0, 0)
    assert results["bad", "best"] == (0, 0, TASKS)
    assert results["first", "best"] == (0, 0, TASKS) or results["first", "best"][1] == TASKS
    bad, first, best = found["models"]
    assert (bad["elo"], bad["ci"]) == (0.0, None)
    assert 0 < first["elo"] < best["elo"]


@pytest.mark.usefixtures("key")
def test_only_a_game_of_two_seats_has_ratings():
    models = asked("http://127.0.0.1:1", "best", "first", env="math")
    with pytest.raises(ConfigError, match="math is no game of two seats"):
        asyncio.run(round_robin(models, make_progress("none", total_steps=0)))


@pytest.mark.usefixtures("key")
def test_the_table_has_results_at_both_seats(capsys):
    print_ratings(played("bad", "best"))
    head, bad, best = capsys.readouterr().err.splitlines()[:3]
    assert head.split("as ")[1:] == ["x: won/drawn/lost  ", "o: won/drawn/lost"]
    assert bad.split() == ["bad", "+0", "0/0/3", "0/0/3"]
    assert (best.split()[0], best.split()[-2:]) == ("best", ["3/0/0", "3/0/0"])


@cases("more", [["--model=bundled"], ["--model=a", "--model=b", "--out=kept"]])
def test_the_command_needs_two_models_and_keeps_nothing(capsys, more):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["eval", "--env=tictactoe", "--round-robin", *more])
    assert "name two or more (--model), and no --out" in capsys.readouterr().err


def listed(engine, count=2):
    return [EvalTarget(Config.model_validate({"engine": engine}))] * count


def test_models_that_are_served_at_once_share_the_gpus_out():
    vllm = {"type": "vllm", "gpus": [4, 5, 6, 7]}
    assert first_engines(listed(vllm)) == [0, 1]
    wide = listed(vllm | {"tensor_parallel_size": 2}, 1)
    assert first_engines(listed(vllm, 1) + wide) == [0, 1]
    staged = listed(vllm | {"pipeline_parallel_size": 2}, 1)
    assert first_engines(listed(vllm, 1) + staged) == [0, 1]
    assert first_engines(listed(vllm, 1) + listed(vllm | {"gpus": [0]}, 1)) == [0, 0]
    assert first_engines(listed({"type": "embedded"}, 3)) == [0, 0, 0]
    with pytest.raises(ConfigError, match=r"gpus \[4, 5, 6, 7\].* need 6 GPUs"):
        first_engines(listed(vllm, 1) + wide * 2)


@cases("points", [0.75, 0.5, 0.25])
def test_a_rating_is_the_log_odds_of_the_score(points):
    """A drawn game is added to the thousand."""
    tasks = [{(1, 0): points, (0, 1): 1 - points}] * 1000
    first, second = ratings(tasks, 2)
    score = (1000 * points + 0.5) / (1000 * (1 - points) + 0.5)
    assert first.elo == 0.0
    assert second.elo == pytest.approx(400 * math.log10(score), abs=0.01)


def test_ratings_of_three_explain_their_odds_and_are_finite_for_a_winner():
    tasks = [{(0, 1): 1.0, (1, 0): 0.0, (1, 2): 1.0, (2, 1): 0.0}] * 20
    rated = ratings(tasks, 3)
    assert rated[0].elo > rated[1].elo > rated[2].elo > -3000
    assert rated[1].ci is not None


def test_an_interval_covers_the_rating_as_often_as_it_says():
    inside, chance = 0, random.Random(1)
    for number in range(60):
        drawn = [float(chance.random() < 0.64) for _ in range(80)]
        tasks = [{(1, 0): point, (0, 1): 1 - point} for point in drawn]
        low, high = ratings(tasks, 2, seed=number)[1].ci
        inside += low <= 99.95 <= high  # 400 lg(0.64 / 0.36)
    assert 50 <= inside <= 60
