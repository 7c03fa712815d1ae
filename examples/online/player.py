"""Plays the math environment against `arl serve`, from outside: any program could be in its place.

arl serve --run runs/mine --steps 20 &
python examples/online/player.py runs/mine --groups 160
"""

import argparse
import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path

import openai

import agentgym_rl


class Admin:
    """What has the admin key."""

    def __init__(self, run: str) -> None:
        self.told = json.loads((Path(run) / "serve.json").read_text())

    async def ask(self, path: str, **body) -> dict:
        """POST, asking again while there is no room (429)."""
        headers = {"authorization": f"Bearer {self.told['admin_key']}"}
        url = f"{self.told['admin_url']}/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        while True:
            try:
                return json.load(await asyncio.to_thread(urllib.request.urlopen, request, None, 30))
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise
                await asyncio.sleep(0.2)
            except urllib.error.URLError as error:
                raise SystemExit(f"the run is over, or cannot be reached: {error}") from None


async def episode(admin: Admin, task) -> None:
    """One session: play, say what it was worth, close."""
    session = await admin.ask("sessions", task=task.id)
    client = openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"])
    env, reward = agentgym_rl.make("math"), 0.0
    messages, _ = await env.reset(seed=task.seed, options={"task": task})
    async with client:
        while True:
            reply = await client.chat.completions.create(
                model="bundled", messages=messages, tools=[*env.tools]
            )
            action = reply.choices[0].message.model_dump(exclude_none=True)
            step = await env.step(action)
            reward += step.reward
            if step.terminated or step.truncated:
                break
            messages = [*messages, action, *step.observation]
    await env.close()
    await admin.ask(f"sessions/{session['id']}/close", reward=reward)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of a run of `arl serve`")
    parser.add_argument("--groups", type=int, default=8, help="tasks to play")
    args = parser.parse_args()
    admin = Admin(args.run)
    size = (await asyncio.to_thread(_status, admin))["group_size"]
    tasks = agentgym_rl.spec("math").task_source("train", seed=1)
    room = asyncio.Semaphore(16)

    async def group(task) -> None:
        async with room, asyncio.TaskGroup() as members:
            for _ in range(size):
                members.create_task(episode(admin, task))

    async with asyncio.TaskGroup() as groups:
        for number in range(args.groups):
            groups.create_task(group(tasks[number]))


def _status(admin: Admin) -> dict:
    headers = {"authorization": f"Bearer {admin.told['admin_key']}"}
    request = urllib.request.Request(f"{admin.told['admin_url']}/status", headers=headers)
    return json.load(urllib.request.urlopen(request, timeout=30))


asyncio.run(main())
