"""The grading of programs: rewards, tests per second, and the cost of isolation.

First, every family's reference solutions and agents without knowledge are graded as in training.
Then the same submissions are graded by three systems in turn: ours (each test a fresh process in a
sandbox, compared outside), an unisolated subprocess per test, and one unisolated subprocess per
submission that runs all its tests and holds the answers, which is what graders derived from
LiveCodeBench do. Only the first of them pays no exploit.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from arl_envs.code.driver import encode
from arl_envs.code.env import CodeEnv
from arl_envs.code.generated import Recipe, solution_of, submission
from arl_envs.code.grader import DRIVER, Grader
from arl_envs.code.problem import CallTest, Problem

from agentgym_rl.core import Message, Task
from agentgym_rl.gym import SandboxBackend, make_sandbox
from agentgym_rl.runtime.event_loop import LoopLag

from ._common import hardware, say, versions
from ._toy import sized

NUM_TASKS = sized(2_000, toy=20)
ROUNDS, SAMPLE, CROWD = sized((5, 24, 16), toy=(1, 3, 4))
GOALS = {"reference_accepted": 1.0, "ignorant_paid": 0.0, "stall_p99_ms": 5.0}
COMMAND = [os.path.realpath(sys.executable), "-I", "-S", "-c"]
_ALL_IN_ONE = """
import json, sys
order = json.load(sys.stdin)
names = {}
exec(order["source"], names)
for args, expected in order["tests"]:
    assert names[order["entry"]](*args) == expected
"""

Agent = Callable[[Task, str], str]


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench code --json`."""
    return asyncio.run(_run())


async def _run() -> dict[str, Any]:
    async with make_sandbox("local") as sandboxes:
        rows = [await _agent(name, agent, sandboxes) for name, agent in AGENTS.items()]
        speeds = await _speeds(sandboxes)
    reference, *ignorant = rows
    figures = {
        "reference_accepted": reference["reward"],
        "ignorant_paid": max(row["reward"] for row in ignorant),
        "stall_p99_ms": max(row["stall_p99_ms"] for row in rows),
    }
    mine, *others = speeds
    return {
        "name": "code",
        "hardware": hardware(),
        "versions": versions(),
        "rows": [*rows, *speeds],
        "ratios": {
            f"sandboxed / {row['system']}": round(mine["tests_per_s"] / row["tests_per_s"], 3)
            for row in others
        },
        "figures": figures,
        "goal": GOALS,
        "met": {
            "reference_accepted": figures["reference_accepted"] == 1.0,
            "ignorant_paid": figures["ignorant_paid"] == 0.0,
            "stall_p99_ms": figures["stall_p99_ms"] < GOALS["stall_p99_ms"],
        },
    }


# ---------------------------------------------------------------------- what is paid
def _examples(task: Task, statement: str) -> str:
    """Return a program that knows the answers of the examples, and returns the first one for
    anything else."""
    name = task.data["family"]
    if task.data["form"] == "text":
        blocks = statement.split("Example input:\n")[1:]
        shown = [block.partition("Example output:\n") for block in blocks]
        table = {given.strip(): answer.strip() for given, _, answer in shown}
        first = next(iter(table.values()))
        return f"import sys\nprint({table!r}.get(sys.stdin.read().strip(), {first!r}))\n"
    lines = [line for line in statement.splitlines() if line.startswith(f"{name}(")]
    pairs = [line.removeprefix(name).rsplit(" == ", 1) for line in lines]
    known = "".join(f"    if repr(args) == repr({_tuple(a)}): return {b}\n" for a, b in pairs)
    return f"def {name}(*args):\n{known}    return {pairs[0][1]}\n"


def _tuple(args: str) -> str:
    return f"{args[:-1]},)"


def _echo(task: Task, statement: str) -> str:
    if task.data["form"] == "text":
        return "import sys\nprint(sys.stdin.read())\n"
    return f"def {task.data['family']}(*args):\n    return args[0]\n"


AGENTS: dict[str, Agent] = {
    "reference": lambda task, statement: submission(solution_of(task))["content"],
    "empty": lambda task, statement: "",
    "echo of the statement": lambda task, statement: f"```python\n{statement}\n```",
    "echo of the input": lambda task, statement: submission(_echo(task, statement))["content"],
    "the examples": lambda task, statement: submission(_examples(task, statement))["content"],
}


async def _agent(name: str, agent: Agent, sandboxes: SandboxBackend) -> dict[str, Any]:
    """Play the tasks of both splits, `CROWD` at once."""
    half = NUM_TASKS // 2
    tasks = [
        source[i]
        for source in (CodeEnv.task_source(split, seed=11) for split in ("train", "eval"))
        for i in range(half)
    ]
    rewards: list[float] = []
    verdicts: Counter[str] = Counter()
    before, begun, remaining = sandboxes.stats().executions, time.perf_counter(), iter(tasks)

    async def player() -> None:
        for task in remaining:
            env = CodeEnv()
            messages, _ = await env.reset(options={"task": task, "sandboxes": sandboxes})
            action: Message = {"role": "assistant", "content": agent(task, messages[1]["content"])}
            step = await env.step(action)
            rewards.append(step.reward)
            verdicts[step.info["verifier"]] += 1

    lag = LoopLag()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(lag.run())
        async with asyncio.TaskGroup() as players:
            for _ in range(CROWD):
                players.create_task(player())
        watch.cancel()
    seconds = time.perf_counter() - begun
    tests = sandboxes.stats().executions - before
    say(f"{name}: {sum(rewards) / len(rewards):.4f} over {len(rewards)} tasks, {tests} tests")
    return {
        "system": f"agent: {name}",
        "reward": sum(rewards) / len(rewards),
        "tasks": len(rewards),
        "families": len({task.data["family"] for task in tasks}),
        "verdicts": dict(verdicts),
        "episodes_per_s": round(len(rewards) / seconds, 1),
        "tests_per_s_per_core": round(tests / seconds / len(os.sched_getaffinity(0)), 1),
        "stall_p99_ms": round(lag.summary()["p99"], 3),
    }


# ---------------------------------------------------------------------- what it costs
async def _speeds(sandboxes: SandboxBackend) -> list[dict[str, Any]]:
    """Return the tests per second of each system, on reference solutions in call form."""
    tasks = CodeEnv.task_source("train", seed=5, form="call")
    work = [_work(tasks[i]) for i in range(SAMPLE)]
    systems: dict[str, Callable[[Problem, str], Awaitable[None]]] = {
        "sandboxed": lambda problem, source: _sandboxed(sandboxes, problem, source),
        "a subprocess per test": _each_separately,
        "a subprocess per submission": _all_in_one,
    }
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(ROUNDS):
        for name, grade in systems.items():
            rates[name].append(await _rate(grade, work))
        say(f"round {number + 1} of {ROUNDS}")
    cores = len(os.sched_getaffinity(0))
    return [
        {
            "system": name,
            "tests_per_s": round(statistics.median(values), 1),
            "tests_per_s_per_core": round(statistics.median(values) / cores, 1),
            "rounds": len(values),
        }
        for name, values in rates.items()
    ]


def _work(task: Task) -> tuple[Problem, str]:
    recipe = Recipe.from_json(task.data, seed=task.seed)
    return recipe.problem(num_hidden=20), recipe.solution()


async def _rate(
    grade: Callable[[Problem, str], Awaitable[None]], work: Sequence[tuple[Problem, str]]
) -> float:
    """Return the tests per second with `CROWD` submissions at once."""
    remaining, begun = iter(work), time.perf_counter()

    async def worker() -> None:
        for problem, source in remaining:
            await grade(problem, source)

    async with asyncio.TaskGroup() as workers:
        for _ in range(CROWD):
            workers.create_task(worker())
    return sum(len(problem.hidden) for problem, _ in work) / (time.perf_counter() - begun)


async def _sandboxed(sandboxes: SandboxBackend, problem: Problem, source: str) -> None:
    grade = await Grader(sandboxes).grade(problem, source)
    if grade.passed != grade.total:
        raise RuntimeError(f"a reference solution was not accepted: {grade}")


async def _each_separately(problem: Problem, source: str) -> None:
    for test in problem.hidden:
        assert isinstance(test, CallTest)
        order = {"source": source, "prelude": "", "entry": problem.entry}
        said = await _python(DRIVER, order | {"args": encode(list(test.args))})
        if json.loads(said)["value"] != encode(test.expected):
            raise RuntimeError(f"a reference solution was not accepted: {test}")


async def _all_in_one(problem: Problem, source: str) -> None:
    tests = [(test.args, test.expected) for test in problem.hidden if isinstance(test, CallTest)]
    await _python(_ALL_IN_ONE, {"source": source, "entry": problem.entry, "tests": tests})


async def _python(code: str, order: dict[str, Any]) -> bytes:
    """Return the output of an unisolated Python, which must succeed."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate(json.dumps(order).encode())
    if process.returncode:
        raise RuntimeError(f"a reference solution failed with exit code {process.returncode}")
    return said
