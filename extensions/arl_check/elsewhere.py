"""The same environment in another process, to find results that depend on the process.

The other process hashes strings differently and has drawn no random number yet. Like a rollout
worker, it knows only the environment's spec as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from agentgym_rl.core import Split
from agentgym_rl.gym import EnvSpec

from .support import Closing, Wanted, first_tasks, started, task_text

TIMEOUT_S = 600.0
SEEDS = (0, 1, 2, 2**31, 2**53)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The results of the other process."""

    problem: str = ""
    """The reason why there are no results; "" if there are."""
    by_seed: dict[str, Any] = field(default_factory=dict[str, Any])
    """The first messages by seed, as JSON texts."""
    by_task: list[str] = field(default_factory=list[str])
    """The first messages of the first training tasks, as JSON texts."""
    tasks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The first tasks of the splits, as JSON texts."""


async def look_elsewhere(
    spec: EnvSpec, *, wanted: Wanted, source_seed: int, count: int, close_s: float
) -> Elsewhere:
    """Start another process and return its results; a failure there is not raised but reported.

    `close_s` is the longest time, in seconds, that closing an environment may take there.
    """
    try:
        order = {
            "spec": spec.to_json(),
            "wanted": wanted.to_json(),
            "source_seed": source_seed,
            "count": count,
            "close_s": close_s,
        }
        text = json.dumps(order)
    except (ValueError, TypeError) as error:
        return Elsewhere(problem=f"the spec cannot be sent as JSON: {error}")
    path = [entry or os.getcwd() for entry in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "12345"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "arl_check.elsewhere"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate(text.encode())
    except TimeoutError:
        return Elsewhere(problem=f"the other process took more than {TIMEOUT_S:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return Elsewhere(problem=err.decode(errors="replace").strip()[-800:])
    return Elsewhere(**json.loads(out))


# ---------------------------------------------------------------- in the other process
async def _look(order: dict[str, Any]) -> Elsewhere:
    spec = EnvSpec.from_json(order["spec"])
    tasks = {
        split: [task_text(task) for task in _first(spec, split, order)] for split in get_args(Split)
    }
    by_seed: dict[str, Any] = {}
    by_task: list[str] = []
    wanted, closing = Wanted.from_json(order["wanted"]), Closing(order["close_s"])
    async with started(spec.make(), wanted, closing) as given:
        for seed in SEEDS:
            by_seed[str(seed)] = await first_messages(spec, given, closing, seed=seed)
        for task in _first(spec, "train", order):
            opening = await first_messages(spec, given, closing, seed=task.seed, task=task)
            by_task.append(opening)
    return Elsewhere(by_seed=by_seed, by_task=by_task, tasks=tasks)


def _first(spec: EnvSpec, split: Split, order: dict[str, Any]) -> list[Any]:
    return first_tasks(spec.task_source(split, seed=order["source_seed"]), order["count"])


async def first_messages(
    spec: EnvSpec, given: Any, closing: Closing, *, seed: int, task: Any = None
) -> str:
    """Return the first messages of a new environment, as JSON text."""
    env = spec.make()
    try:
        options = dict(given) | ({} if task is None else {"task": task})
        messages, _ = await env.reset(seed=seed, options=options)
        return json.dumps(messages)
    finally:
        await closing.close(env)


def main() -> None:
    """Read the order from stdin, write the results to stdout; the environment prints to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    found = asyncio.run(_look(json.load(sys.stdin)))
    with open(answer, "w") as file:
        json.dump(asdict(found), file)


if __name__ == "__main__":
    main()
