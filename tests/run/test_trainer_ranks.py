"""Ranks that run, and do nothing: nobody but the controller can tell."""

import asyncio
import sys

import pytest

from agentgym_rl.cluster import LocalProcesses, ProcessSpec
from agentgym_rl.config import Config, TrainerConfig
from agentgym_rl.controller import HttpRanks, RanksApi
from agentgym_rl.core import ProcessDied
from agentgym_rl.engines import EngineSetup
from agentgym_rl.evaluate import EvalQueue
from agentgym_rl.fleet import Fleet
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.run import Loop, trainer_ranks
from agentgym_rl.run.trainer_ranks import TrainerGroup
from agentgym_rl.runtime import serving
from agentgym_rl.storage.recovery import NOTHING
from tests.kit.served import served

IDLE = """
import http.server, os, sys, threading, urllib.request

class Here(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()

server = http.server.HTTPServer(("127.0.0.1", 0), Here)
threading.Thread(target=server.serve_forever).start()
headers = {"authorization": "Bearer " + os.environ["ARL_TOKEN"]}
url = "http://127.0.0.1:%d" % server.server_port
body = ('{"rank": 0, "url": "%s", "version": null, "build": "other"}' % url).encode()
ready = urllib.request.Request(sys.argv[1] + "/ready", body, headers)
urllib.request.urlopen(ready).close()
"""


def idle_rank(*_: object, controller_url: str, token: str, **__: object) -> list[ProcessSpec]:
    """A rank that says that it is ready, and nothing else."""
    argv = [sys.executable, "-S", "-c", IDLE, controller_url]
    return [ProcessSpec("trainer-0", argv, env={"ARL_TOKEN": token}, finite=True)]


def test_ranks_that_ask_for_nothing_are_started_again_until_there_have_been_enough(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer_ranks, "trainer_processes", idle_rank)
    monkeypatch.setattr(trainer_ranks, "LOOK_EVERY_S", 0.05)
    config = Config(trainer=TrainerConfig(max_restarts=1, stall_timeout_s=0.3))

    async def play() -> None:
        async with (
            asyncio.timeout(120),
            served(tmp_path) as s,
            serving(RanksApi(ranks := HttpRanks(1)), host="127.0.0.1", port=0) as url,
            LocalProcesses(tmp_path / "logs", stop_timeout_s=0.2) as processes,
        ):
            loop = Loop(s.controller, ranks)
            running = asyncio.create_task(loop.run())
            file = tmp_path / "config.toml"
            setup = EngineSetup.of(config)
            group = TrainerGroup(
                config.trainer,
                config.steps,
                file,
                tmp_path,
                tmp_path,
                processes,
                s.controller,
                ranks,
                loop,
                Fleet(setup, file, processes, model_dir=BUNDLED),
                s.log,
                EvalQueue(tmp_path, tmp_path, steps=config.steps, scheduled=False),
                NOTHING,
            )
            await group.start(url)
            with pytest.raises(ProcessDied) as gave_up:
                await group.watch()
            assert group.restarts == 1
            assert "started again 1 times (trainer.max_restarts)" in str(gave_up.value)
            assert "no rank has answered or finished a pass" in str(gave_up.value)
            running.cancel()
            await ranks.close()

    asyncio.run(play())
