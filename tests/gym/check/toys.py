"""A good environment, async and sync: what two numbers make, with a tool that adds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from agentgym_rl import Env, EnvSpec, Message, Step, SyncEnv, Task, TaskSource

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class Sums(TaskSource):
    """Even first numbers are for training."""

    def __init__(self, split: str = "train", seed: int = 0) -> None:
        self.split, self.seed = split, seed

    def __getitem__(self, index: int, /) -> Task:
        rng = random.Random(f"{self.split}/{self.seed}/{index}")
        a = 2 * rng.randrange(50_000) + (self.split == "eval")
        data = {"a": a, "b": rng.randrange(100_000)}
        key = f"{self.split}-{self.seed}-{index}"
        return Task(id=key, seed=rng.getrandbits(53), data=data, split=self.split)  # type: ignore


class Toy(Env):
    """Asks for a sum; right is the number alone."""

    tools = (ADD,)
    max_turns = 5

    def __init__(self) -> None:
        self.task: Task | None = None

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return Sums(split, seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self.task = (options or {}).get("task") or Sums(seed=seed or 0)[0]
        return self.opening(self.task), {"task_id": self.task.id}

    def opening(self, task: Task) -> list[Message]:
        return [
            {"role": "system", "content": "Say the number alone."},
            {"role": "user", "content": f"What is {task.data['a']} + {task.data['b']}?"},
        ]

    async def step(self, action: Message) -> Step:
        calls = action.get("tool_calls")
        if calls:
            said = [self.answer(c) for c in (calls if isinstance(calls, list) else [calls])]
            return Step(said, 0.0, False, False, {})
        paid = self.paid(action.get("content"))
        return Step([], paid, True, False, {"metrics": {"right": paid}, "stop_reason": "answer"})

    def answer(self, call: Any) -> Message:
        found = call if isinstance(call, Mapping) else {}
        id = found.get("id") if isinstance(found.get("id"), str) else ""
        return {"role": "tool", "tool_call_id": id, "content": self.called(found.get("function"))}

    def called(self, function: Any) -> str:
        try:
            given = json.loads(function["arguments"])
            return str(int(given["a"]) + int(given["b"]))
        except (KeyError, TypeError, ValueError, RecursionError, OverflowError):
            return "error: expected add(a, b)"

    def paid(self, content: Any) -> float:
        return float(content == self.gold())

    def gold(self) -> str:
        assert self.task is not None
        return str(self.task.data["a"] + self.task.data["b"])

    def solve(self) -> list[Message]:
        assert self.task is not None
        function = {"name": "add", "arguments": json.dumps(dict(self.task.data))}
        call = {"id": "c", "type": "function", "function": function}
        first = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [first, {"role": "assistant", "content": self.gold()}]


class SyncToy(SyncEnv):
    """The same without async."""

    tools = (ADD,)
    max_turns = 5

    def __init__(self) -> None:
        self.toy = Toy()

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return Sums(split, seed)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None):
        return _now(self.toy.reset(seed=seed, options=options))

    def step(self, action: Message) -> Step:
        return _now(self.toy.step(action))

    def solve(self) -> list[Message]:
        return self.toy.solve()


class ThreadedToy(SyncToy):
    """The same in a thread."""

    executor = "thread"


class OwnWords(Env):
    """A good one with the least there is: no tools, no solve, tasks that are seeds alone."""

    max_turns = 1

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        task = (options or {}).get("task")
        self.number = random.Random(seed if task is None else task.seed).randrange(10**12)
        return [{"role": "user", "content": f"Write {self.number} backwards."}], {}

    async def step(self, action: Message) -> Step:
        right = action.get("content") == str(self.number)[::-1]
        return Step([], float(right), True, False, {})


class OneGame(OwnWords):
    """A game that is always the same, and says so."""

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return [Task(id="game", seed=5, split=split)]  # type: ignore

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return await super().reset(seed=5)


def _now(work: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


TOY = EnvSpec(id="toy-v0", entry_point="toys:Toy", description="sums")
