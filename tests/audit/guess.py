"""An environment whose verifier can be changed, and what it takes to record episodes of it."""

from __future__ import annotations

import asyncio

from agentgym_rl import Env
from agentgym_rl.config import Config, dump_toml
from agentgym_rl.core import Group, Outcome, SandboxError, Task, Trajectory
from agentgym_rl.gym import Step, make
from agentgym_rl.rollout import EpisodeEnv
from agentgym_rl.storage import EpisodeLog


class Guess(Env):
    """Say the task's number; a tool call is answered with a hint. Class attributes are what
    a later version of it may do otherwise."""

    tolerance = 0
    hint = "it is even"
    lost = 0
    """Sandboxes that are lost before one works."""
    broken = False

    max_turns = 4

    async def reset(self, *, seed=None, options=None):
        self.number = options["task"].data["number"]
        return [{"role": "user", "content": "which number?"}], {}

    async def step(self, action):
        if Guess.lost:
            Guess.lost -= 1
            raise SandboxError("the sandbox is gone")
        if Guess.broken:
            raise RuntimeError("a bug")
        if calls := action.get("tool_calls"):
            return Step(
                [{"role": "tool", "tool_call_id": calls[0]["id"], "content": Guess.hint}],
                0.125,
                False,
                False,
                {},
            )
        off = abs(int(action["content"]) - self.number)
        verdict = "ok" if off <= Guess.tolerance else "wrong"
        info = {"verifier": verdict, "verifier_detail": f"off by {off}"}
        return Step([], float(verdict == "ok"), True, False, info)


def call(id: str = "c1") -> dict:
    function = {"name": "hint", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def say(number: int) -> dict:
    return {"role": "assistant", "content": str(number)}


async def played(name: str, number: int, actions: list[dict]) -> tuple[Task, Trajectory]:
    """An episode in which the agent does `actions` whatever happens."""
    task = Task(f"t{name}", 0, {"number": number})
    env = EpisodeEnv(make(f"{__name__}:Guess"), task)
    await env.start()
    messages = list((await env.reset())[0])
    for action in actions:
        messages += [action, *(await env.step(action)).observation]
    outcome = Outcome.COMPLETED if env.terminated else Outcome.TRUNCATED
    return task, Trajectory(
        name, f"g{name}", task.id, outcome, env.reward, [], len(actions), {}, messages,
        actions_json=env.transcript.actions, answers=env.transcript.answers,
    )  # fmt: skip


def record(folder, episodes: list[tuple[Task, Trajectory]]) -> None:
    """A run's folder that holds `episodes`."""
    config = Config.model_validate({"env": {"id": f"{__name__}:Guess"}})
    (folder / "config.toml").write_text(dump_toml(config))
    log = EpisodeLog(folder / "episodes.db")
    for index, (task, episode) in enumerate(episodes):
        group = Group(episode.group_id, task.id, [episode])
        asyncio.run(log.add_group(task, index, group))
    log.close()
