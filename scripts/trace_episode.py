"""The files of this project that one episode runs through: python scripts/trace_episode.py

Episodes of two turns with a tool call are played on the embedded engine, and the files that all of
them enter are listed in order; then those of chat turns, each one request of the OpenAI client to
the gateway. Background work, such as the watch over the engines, is not in all of them. Only this
process counts (environment, agent, gateway and engine client), not the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from agentgym_rl.cluster import LocalProcesses
from agentgym_rl.config import Config, dump_toml, load_config
from agentgym_rl.core import Task, Trajectory
from agentgym_rl.engines import EngineSetup
from agentgym_rl.fleet import Fleet
from agentgym_rl.gateway import SessionSampling
from agentgym_rl.models import model_folder, resolve_paths
from agentgym_rl.rollout import Player, env_spec, serving_policy

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("agentgym_rl/", "envs/", "agents/", "sandboxes/", "extensions/")
SAMPLES = 8
TRIES = 200


@contextmanager
def traced() -> Iterator[list[str]]:
    """Yield the list of files that are entered meanwhile, in that order."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            entered[frame.f_code.co_filename] = None

    files: list[str] = []
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        inside = (name.removeprefix(f"{ROOT}/") for name in entered)
        files += [name for name in inside if name.startswith(FOLDERS)]


async def play(player: Player, task: Task, index: int) -> Trajectory:
    sampling = SessionSampling(temperature=1.0, max_tokens=48, seed=index, train=True)
    return await player.play(task, episode_id=f"e{index}", group_id=f"g{index}", sampling=sampling)


async def chat_turn(player: Player) -> list[str]:
    sampling = SessionSampling(temperature=1.0, max_tokens=8, seed=1, train=True)
    session = player.gateway.open_session(sampling=sampling, session_id="turn")
    client = player.clients.for_session(session)
    messages: Any = [{"role": "user", "content": "2 + 2 ="}]
    try:
        with traced() as files:
            await client.chat.completions.create(model=player.model_name, messages=messages)
    finally:
        player.gateway.close_session(session)
    return files


async def main(env: str) -> None:
    config = resolve_paths(load_config(None, {"env.id": env}))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(dump_toml(config), encoding="utf-8")
        async with LocalProcesses(Path(folder) / "logs", stop_timeout_s=5.0) as processes:
            setup = EngineSetup.of(config)
            model_dir = model_folder(config.model, config.env.id)
            fleet = Fleet(setup, file, processes, model_dir=model_dir)
            async with fleet.running(), serving_policy(config, fleet) as player:
                show("an episode of two turns and a tool call", await episodes(player, config))
                show("a chat turn", in_all([await chat_turn(player) for _ in range(SAMPLES)]))


async def episodes(player: Player, config: Config) -> list[str]:
    tasks = env_spec(config.env, config.rollout).task_source("train", seed=1)
    found: list[list[str]] = []
    for index in range(TRIES):
        task = tasks[index]
        with traced() as files:
            episode = await play(player, task, index)
        if index and episode.num_turns == 2 and episode.metrics.get("tool_calls"):
            found.append(files)
        if len(found) == SAMPLES:
            return in_all(found)
    raise SystemExit(f"{len(found)} of {TRIES} episodes have two turns and a call")


def in_all(found: list[list[str]]) -> list[str]:
    return [file for file in found[0] if all(file in files for files in found)]


def show(what: str, files: list[str]) -> None:
    print(f"{what}: {len(files)} files")
    print("".join(f"  {file}\n" for file in files))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="math")
    asyncio.run(main(parser.parse_args().env))
