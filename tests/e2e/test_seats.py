"""Games with an agent at each seat, from the command line to the log."""

import asyncio
import json
import os
import signal
import threading
from contextlib import closing

import pytest
from arl_audit.exactly_once import audit_ledger

from agentgym_rl.runtime import serving
from agentgym_rl.storage import EpisodeReader
from tests.kit.someones_model import Refusal, SomeonesModel

from .forked import arl

pytestmark = pytest.mark.slow

GAMES = ("--env=tictactoe", "--env.options.seat=any", "--steps=3", "--eval.num_tasks=16")


SELF_PLAY = ("--rollout.seats.x=policy", "--rollout.seats.o=policy")
LEAGUE = (
    "--rollout.seats.x=policy",
    "--rollout.seats.o=league",
    "--rollout.rotate_seats=true",
    "--rollout.league_every=1",
    "--weights.keep_versions=all",
)


def games(folder):
    with closing(EpisodeReader(folder / "episodes.db")) as log:
        return [log.trajectory(name) for name in log.episode_ids(untrained=True)]


def test_self_play_trains_both_seats_exactly_once(start):
    run = start(*GAMES, *SELF_PLAY)
    assert run.result()["steps"] == 3
    found = games(run.folder)
    assert all([seat.player for seat in game.seats] == ["policy"] * 2 for game in found)
    assert all(sum(seat.reward for seat in game.seats) == 0 for game in found)
    # A seat has no turn where the other one loses by its first reply.
    assert all(bool(it.num_trained) == bool(it.num_turns) for game in found for it in game.seats)
    assert {seat.seat for game in found for seat in game.seats if seat.num_turns} == {"x", "o"}
    assert {"episode/reward_x", "episode/reward_o"} <= set(run.metrics()[-1])
    report = json.loads(arl("ledger", "--json", run.folder).stdout)
    assert (report["faults"], report["finished"]) == ([], True)


def test_frozen_models_and_past_versions_do_not_train(start):
    run = start(*GAMES, *LEAGUE)
    assert run.result()["steps"] == 3
    found = games(run.folder)
    assert {tuple(seat.player for seat in game.seats) for game in found} == {
        ("policy", "league"),
        ("league", "policy"),
    }
    league = [seat for game in found for seat in game.seats if seat.player == "league"]
    assert not any(seat.num_trained for seat in league)
    assert all(bool(seat.num_sampled) == bool(seat.num_turns) for seat in league)
    assert any(seat.num_turns for seat in league)
    assert any("league/version" in step for step in run.metrics())
    assert "engine ready" in (run.folder / "logs" / "engine-1.log").read_text()
    report = json.loads(arl("audit", "--json", run.folder).stdout)
    assert report["passed"]


@pytest.mark.parametrize("seats", [SELF_PLAY, LEAGUE], ids=["self-play", "league"])
def test_a_killed_run_of_games_goes_on_and_trains_each_game_once(start, seats):
    kept = ("--weights.keep_versions=all", "--trainer.checkpoint_every=2")
    run = start(*GAMES, *seats, *kept, "--steps=8", "--eval.num_tasks=2")
    run.wait_for_step(2)  # then the checkpoint of two is complete
    run.process.send_signal(signal.SIGKILL)
    run.wait(60)
    before = {game.episode_id: game.pack() for game in games(run.folder)}
    done = arl("train", "--resume", run.folder, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed_from"] in (2, 4, 6)
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 2)
    assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
    found = {game.episode_id: game for game in games(run.folder)}
    assert all(found[name].pack() == packed for name, packed in before.items())
    assert all([seat.seat for seat in game.seats] == ["x", "o"] for game in found.values())
    assert json.loads(arl("audit", "--json", run.folder).stdout)["passed"]


def test_a_frozen_model_whose_engine_is_killed_plays_on(start):
    run = start(*GAMES, "--rollout.seats.x=policy", "--rollout.seats.o=frozen:bundled", "--steps=6")
    run.wait_for_step(0)
    os.kill(run.child("--index 1"), signal.SIGKILL)
    result = run.result()
    assert (result["steps"], set(result["outcomes"])) == (6, {"completed"})
    assert {seat.player for game in games(run.folder) for seat in game.seats} == {
        "policy",
        "frozen:bundled/tictactoe",
    }


class Outside(SomeonesModel):
    """A model at a URL, which may be down, or not know its name; it plays the first free cell."""

    def __init__(self):
        super().__init__(self.answer)
        self.fails_after, self.knows = 10**9, "someone"

    def answer(self, messages):
        if self.requests[-1]["model"] != self.knows:
            raise Refusal(404, {"error": {"message": "no such model", "code": "model_not_found"}})
        if len(self.requests) > self.fails_after:
            raise Refusal(503, b"down")
        board = messages[-1]["content"].split("\n")[-3:]
        return {"content": next(cell for row in board for cell in row if cell.isdecimal())}


@pytest.fixture
def outside(monkeypatch):
    """A running `Outside`, with its `url`."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model, up, down = Outside(), threading.Event(), asyncio.Event()

    async def serve():
        async with serving(model, host="127.0.0.1", port=0) as model.url:
            model.loop = asyncio.get_running_loop()
            up.set()
            await down.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert up.wait(30)
    yield model
    model.loop.call_soon_threadsafe(down.set)
    thread.join(30)


def against(model, name="someone"):
    seats = ("--rollout.seats.x=policy", f"--rollout.seats.o=url:{model.url}/v1#{name}")
    return (*GAMES, *seats, "--steps=8", "--rollout.max_retries=0", "--trainer.checkpoint_every=2")


def test_a_model_at_a_url_plays_and_its_end_costs_no_game(start, outside):
    outside.fails_after = 150  # eight batches of 16 games take more
    run = start(*against(outside))
    code, _, err = run.wait()
    assert code == 1
    assert f"seat o: someone at {outside.url}/v1: it answered 503: down" in err
    with closing(EpisodeReader(run.folder / "episodes.db")) as log:
        trained = [log.trajectory(name) for name in log.episode_ids()]
    assert {game.outcome for game in trained} <= {"completed"}
    outside.fails_after = 10**9
    done = arl("train", "--resume", run.folder, "--json")
    assert (done.returncode, json.loads(done.stdout)["steps"]) == (0, 8), done.stderr
    report = audit_ledger(run.folder)
    assert (report["faults"], report["finished"]) == ([], True)


def test_a_model_that_the_url_does_not_have_ends_the_run_at_once(start, outside):
    code, _, err = start(*against(outside, name="nobody")).wait()
    assert (code, "it answered 404: no such model" in err) == (2, True)
    assert f"the player url:{outside.url}/v1#nobody (rollout.seats)" in err
    assert "OPENAI_API_KEY is not set" in err
