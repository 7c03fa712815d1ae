"""The coding gym: what is paid, episodes per second, and what is left over.

A scripted oracle and four players who do not do the task play generated tasks of every level, each
episode in a sandbox of its own and verified in a fresh one: with the local sandbox, and with docker
if a daemon answers. `ARL_CODING_EPISODES` sets the number of episodes of each player.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from arl_envs.harbor.env import HarborEnv

from agentgym_rl import SandboxUnavailable
from agentgym_rl.core.chat import Message
from agentgym_rl.core.task import Task
from agentgym_rl.gym.registry import make_sandbox
from agentgym_rl.gym.sandbox import SandboxBackend

from ._common import hardware, say, versions

NUM_EPISODES = {"local": 1_000, "docker": 50}
CROWD = 4
SOURCES = (("bugs", (1, 2, 3, 4)), ("chores", (1, 2, 3)))
GOALS = {"oracle": 1.0, "others": 0.0, "left_over": 0}

DELETE_TESTS = "rm -rf tests test* /tests /logs; mkdir -p tests; touch tests/__init__.py; ls -a"
PATCH_RUNNER = r"""
printf 'import os\nos._exit(0)\n' | tee sitecustomize.py usercustomize.py conftest.py unittest.py \
    json.py harness.py pytest.py > /dev/null
printf '[tool:pytest]\naddopts = --co\n' | tee setup.cfg pytest.ini tox.ini > /dev/null
mkdir -p bin /tests /logs/verifier
printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n' | tee bin/python3 bin/sh /tests/test.sh \
    > /dev/null
chmod +x bin/* /tests/test.sh; echo "export PATH=$PWD/bin:$PATH" | tee .bashrc .profile > /dev/null
echo 1 > /logs/verifier/reward.txt; echo '{"reward": 1}' > /logs/verifier/reward.json
"""

Player = Callable[[HarborEnv, Sequence[Message]], Iterator[Message]]


def run() -> dict[str, Any]:
    """Measure; the result is what `arl bench coding --json` prints."""
    rows = [row for sandbox in NUM_EPISODES for row in asyncio.run(_sandbox(sandbox))]
    oracle = [row["reward"] for row in rows if row["player"] == "oracle"]
    others = [row["reward"] for row in rows if row["player"] != "oracle"]
    figures = {
        "oracle": min(oracle),
        "others": max(others),
        "left_over": sum(row["left_over"] for row in rows),
    }
    return {
        "name": "coding",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "figures": figures,
        "goal": GOALS,
        "met": {name: figures[name] == goal for name, goal in GOALS.items()},
    }


def _say_done(env: HarborEnv, asked: Sequence[Message]) -> Iterator[Message]:
    yield {"role": "assistant", "content": "Done."}


def _echo(env: HarborEnv, asked: Sequence[Message]) -> Iterator[Message]:
    yield {"role": "assistant", "content": asked[-1]["content"]}


def _command(command: str) -> Player:
    def play(env: HarborEnv, asked: Sequence[Message]) -> Iterator[Message]:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": "call_0", "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "assistant", "content": "Done."}

    return play


def _oracle(env: HarborEnv, asked: Sequence[Message]) -> Iterator[Message]:
    yield from env.solve() or ()


PLAYERS: dict[str, Player] = {
    "oracle": _oracle,
    "nothing": _say_done,
    "echo": _echo,
    "delete the tests": _command(DELETE_TESTS),
    "patch the runner": _command(PATCH_RUNNER),
}


async def _sandbox(name: str) -> list[dict[str, Any]]:
    """Return a row for each player in a sandbox; none if this machine lacks it."""
    count = int(os.environ.get("ARL_CODING_EPISODES", 0)) or NUM_EPISODES[name]
    rows: list[dict[str, Any]] = []
    before = _mounts_and_processes()
    try:
        async with make_sandbox(name) as sandboxes:
            for player in PLAYERS:
                row = await _played(player, sandboxes, count)
                rows.append({"sandbox": name, **row})
                say(f"{name}: {player}: {row['reward']:.4f} over {count} episodes")
    except SandboxUnavailable as error:
        say(f"{name}: left out: {error}")
        return rows
    left_over = len(_mounts_and_processes() - before)
    return [{**row, "left_over": left_over if row is rows[-1] else 0} for row in rows]


async def _played(name: str, sandboxes: SandboxBackend, count: int) -> dict[str, Any]:
    """Play `count` tasks of both splits and all levels, `CROWD` at once."""
    remaining = iter(_tasks(count))
    rewards: list[float] = []
    verdicts: Counter[str] = Counter()
    begun = time.perf_counter()

    async def play() -> None:
        for options, task in remaining:
            env = HarborEnv(**options)
            try:
                given = {"task": task, "sandboxes": sandboxes}
                asked, _ = await env.reset(options=given)
                for message in PLAYERS[name](env, asked):
                    step = await env.step(message)
                rewards.append(step.reward)
                verdicts[step.info["verifier"]] += 1
            finally:
                await env.close()

    async with asyncio.TaskGroup() as players:
        for _ in range(CROWD):
            players.create_task(play())
    seconds = time.perf_counter() - begun
    return {
        "player": name,
        "reward": sum(rewards) / len(rewards),
        "episodes": len(rewards),
        "verdicts": dict(verdicts),
        "episodes_per_s": round(len(rewards) / seconds, 2),
    }


def _tasks(count: int) -> Iterator[tuple[dict[str, Any], Task]]:
    """Yield tasks with the options of their environment: every kind and level in turn."""
    kinds = [{"source": source, "level": level} for source, levels in SOURCES for level in levels]
    sources = [
        (options, HarborEnv.task_source(split, seed=7, **options))
        for options in kinds
        for split in ("train", "eval")
    ]
    for number in range(count):
        options, tasks = sources[number % len(sources)]
        yield options, tasks[number // len(sources)]


def _mounts_and_processes() -> set[str]:
    """Return the mounts of this machine, and the children of this process."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return mounts | set(children)
