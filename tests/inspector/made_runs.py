"""Runs made up: folders with a log, metrics and phases, as `arl train` leaves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from arl_inspect.app import Changes, InspectorApp
from arl_inspect.folders import Runs

from agentgym_rl.core import Credit, Group, Outcome, Row, Task, Trajectory
from agentgym_rl.storage import EpisodeLog

TOKENS = [1, 40, 60, 41, 60, 61]
CONFIG = """steps = 3
[env]
id = "math"
[agent]
id = "react"
[engine]
type = "embedded"
[model]
path = "bundled/math"
"""


def make_row(*, start_s: float = 100.0) -> Row:
    """Three tokens given, three sampled, of which two train."""
    sampled = np.array([False, False, False, True, True, True])
    return Row(
        tokens=np.array(TOKENS, np.int32),
        loss_mask=np.array([False, False, False, True, True, False]),
        behavior_logprobs=np.where(sampled, -0.5, 0).astype(np.float32),
        policy_versions=np.where(sampled, 2, -1).astype(np.int32),
        admitted_versions=np.where(sampled, 1, -1).astype(np.int32),
        temperatures=sampled.astype(np.float32),
        turn_ids=np.where(sampled, 0, -1).astype(np.int32),
        times_s=np.where(sampled, start_s + np.arange(6), 0.0),
    )


def make_episode(episode_id: str, group_id: str, **changed: Any) -> Trajectory:
    start_s = changed.pop("start_s", 100.0)
    return replace(
        Trajectory(
            episode_id=episode_id,
            group_id=group_id,
            task_id=f"task-{group_id}",
            outcome=Outcome.COMPLETED,
            reward=1.0,
            rows=[make_row(start_s=start_s)],
            num_turns=1,
            metrics={"forks": 0.0, "forks_seam": 0.0},
            messages=[{"role": "user", "content": "hello"}],
            env_id="math",
            credit=Credit(parents=[-1], lineages=[0]),
        ),
        **changed,
    )


def make_run(folder: Path, groups: Mapping[str, Sequence[Trajectory]]) -> Path:
    """The first group is trained at step 0, the second waits, the others are dropped."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "reward/mean": 0.5}) + "\n")
    phases = {"step": 0, "phases": [["proximal", 99.0, 110.0]], "others": {}}
    (folder / "phases.jsonl").write_text(json.dumps(phases) + "\n")

    async def record(log: EpisodeLog) -> None:
        for k, (name, members) in enumerate(groups.items()):
            group = Group(name, members[0].task_id, members)
            task = Task(members[0].task_id, k, data={"question": name})
            await log.add_group(task, k, group, dropped="" if k < 2 else "filtered")
            if k == 0:
                await log.lease([group], 0)

    with closing(EpisodeLog(folder / "episodes.db")) as log:
        asyncio.run(record(log))
    return folder


class Client:
    """Asks an app as a browser would."""

    def __init__(self, app: InspectorApp, headers: Mapping[str, str] | None = None) -> None:
        self.app, self.headers = app, {"host": "127.0.0.1:80", **(headers or {})}
        self.answered: dict[str, str] = {}

    def raw(self, url: str, *, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
        return asyncio.run(self._raw(url, method, body))

    def __call__(self, url: str, *, status: int = 200) -> Any:
        found, body = self.raw(url)
        assert (found, status) == (status, found), body
        return msgspec.json.decode(body)

    async def _raw(self, url: str, method: str, body: bytes) -> tuple[int, bytes]:
        path, _, query = url.partition("?")
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        headers = [(k.encode(), v.encode()) for k, v in self.headers.items()]
        scope = {"method": method, "path": path, "raw_path": path.encode(), "headers": headers}
        await self.app(scope | {"query_string": query.encode()}, receive, send)
        self.answered = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def make_client(place: Path, headers: Mapping[str, str] | None = None, **options: Any) -> Client:
    runs = Runs([place])
    return Client(InspectorApp(runs, Changes(runs), **options), headers)
