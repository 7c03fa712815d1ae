"""The coding gym: rewards, episodes per second, and leftovers on the machine.

A scripted oracle and four players that do not solve the task play generated tasks of every level,
each episode in a sandbox of its own and verified in a fresh one: with the local sandbox, and with
docker if a daemon answers. The oracle plays again while its sandboxes, programs, episodes and
process are killed; then the leftovers on the machine are counted. `ARL_CODING_EPISODES` sets the
number of episodes of each player, and `ARL_CODING_PLAYERS` names some of them ("oracle,killed").
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from arl_check.policies import calling
from arl_envs.harbor.env import HarborEnv

from agentgym_rl import SandboxUnavailable
from agentgym_rl.core import Message
from agentgym_rl.gym import SandboxBackend

from ._common import hardware, say, versions
from ._kills import (
    CHILD_SHARE,
    CROWD,
    LOSSES,
    Player,
    kill_children,
    killed_rounds,
    opened,
    oracle,
    played,
    tasks,
    together,
)
from ._left_over import Footprint, own_footprint
from ._toy import sized

NUM_EPISODES = sized({"local": 1_000, "docker": 50}, toy={"local": 7, "docker": 7})
GOALS = {"oracle": 1.0, "others": 0.0, "unpaid_after_loss": 0, "left_over": 0}

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

KILLED = "killed"


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench coding --json`."""
    with own_footprint() as footprint:
        rows = [row for sandbox in NUM_EPISODES for row in _sandbox(sandbox, footprint)]
    oracle = [row["reward"] for row in rows if row["player"] == "oracle"]
    others = [row["reward"] for row in rows if row["player"] not in ("oracle", KILLED)]
    figures = {
        "oracle": min(oracle, default=1.0),
        "others": max(others, default=0.0),
        "unpaid_after_loss": sum(row.get("unpaid_after_loss", 0) for row in rows),
        "left_over": sum(len(row["left_over"]) for row in rows),
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
        yield calling(("bash", {"command": command}))
        yield {"role": "assistant", "content": "Done."}

    return play


PLAYERS: dict[str, Player] = {
    "oracle": oracle,
    "nothing": _say_done,
    "echo": _echo,
    "delete the tests": _command(DELETE_TESTS),
    "patch the runner": _command(PATCH_RUNNER),
}


def _sandbox(name: str, footprint: Footprint) -> list[dict[str, Any]]:
    """Return a row for each player in a sandbox; none if this machine lacks it."""
    count = int(os.environ.get("ARL_CODING_EPISODES", 0)) or NUM_EPISODES[name]
    wanted = os.environ.get("ARL_CODING_PLAYERS", ",".join((*PLAYERS, KILLED))).split(",")
    rows: list[dict[str, Any]] = []
    try:
        typical_s = asyncio.run(_typical_s(name))  # and all that a process loads once is loaded
        before = footprint.census()
        for player in wanted:
            play = (
                _killed(name, count, typical_s) if player == KILLED else _calm(name, player, count)
            )
            row = {"sandbox": name, **asyncio.run(play)}
            if player == KILLED:
                row["episodes"] += kill_children(name, _in_children(count), typical_s, footprint)
                asyncio.run(_open_and_close(name))  # as the next run does, which cleans up
            row["left_over"] = footprint.left_since(before)
            rows.append(row)
            say(f"{name}: {player}: {_words(row)}")
    except SandboxUnavailable as error:
        say(f"{name}: left out: {error}")
    return rows


def _words(row: dict[str, Any]) -> str:
    what = row.get("ends") or f"{row['reward']:.4f}"
    left = row["left_over"]
    return f"{what} over {row['episodes']} episodes, {len(left)} left over {left[:10] or ''}"


def _in_children(count: int) -> int:
    return max(1, round(CHILD_SHARE * count))


async def _open_and_close(name: str) -> None:
    async with opened(name):
        pass


async def _typical_s(name: str) -> float:
    """Return the seconds of an oracle's episode among others."""
    async with opened(name) as backend:
        row = await _played("oracle", backend, 4 * CROWD)
    return CROWD / row["episodes_per_s"]


async def _calm(name: str, player: str, count: int) -> dict[str, Any]:
    async with opened(name) as backend:
        return await _played(player, backend, count)


async def _killed(name: str, count: int, typical_s: float) -> dict[str, Any]:
    """Play, with strikes, the episodes that are not in separate killed processes."""
    count -= _in_children(count)
    begun = time.perf_counter()
    async with opened(name) as backend:
        ends = await killed_rounds(backend, count, typical_s)
        in_use = backend.stats().in_use
    return {
        "player": KILLED,
        "episodes": count,
        "ends": dict(sorted(ends.items())),
        "unpaid_after_loss": sum(ends[f"{strike}: unpaid"] for strike in set(LOSSES)),
        "sandboxes_in_use": in_use,
        "episodes_per_s": round(count / (time.perf_counter() - begun), 2),
    }


async def _played(name: str, sandboxes: SandboxBackend, count: int) -> dict[str, Any]:
    """Play `count` tasks of both splits and all levels, `CROWD` at once."""
    remaining = tasks(count)
    rewards: list[float] = []
    verdicts: Counter[str] = Counter()
    unpaid: list[str] = []
    begun = time.perf_counter()

    async def play() -> None:
        for options, task in remaining:
            step = await played(options, task, sandboxes, PLAYERS[name])
            rewards.append(step.reward)
            if name == "oracle" and step.reward < 1:
                unpaid.append(f"{task.id}: {step.info['verifier_detail']}")
            verdicts[step.info["verifier"]] += 1

    await together(play)
    seconds = time.perf_counter() - begun
    return {
        "player": name,
        "reward": sum(rewards) / len(rewards),
        "episodes": len(rewards),
        "verdicts": dict(verdicts),
        "unpaid": unpaid,
        "episodes_per_s": round(len(rewards) / seconds, 2),
    }
