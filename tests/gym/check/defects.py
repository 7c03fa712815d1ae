"""The good toy with one defect each; the class's `planted` is the criterion that must fail."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

from toys import Sums, Toy

from agentgym_rl import EnvSpec, Message, Step, SyncEnv, Task, TaskSource, ToolEnv, tool
from agentgym_rl.core import EnvError, SandboxError
from agentgym_rl.gym import Spec, to_async


# ---------------------------------------------------------------- protocol
class PositionalSeed(Toy):
    planted = "signature"

    async def reset(self, seed=None, options=None):  # type: ignore
        return await super().reset(seed=seed, options=options)


class AsyncInSync(SyncEnv):
    planted = "signature"

    async def reset(self, *, seed=None, options=None):  # type: ignore
        return [], {}

    def step(self, action: Message) -> Step:
        return Step([], 0.0, True, False, {})


class NoInfo(Toy):
    planted = "reset-tuple"

    async def reset(self, **options: Any):  # type: ignore
        return (await super().reset(**options))[0]


class Exits(Toy):
    planted = "reset-tuple"

    async def reset(self, **options: Any):  # type: ignore
        raise SystemExit(0)


class TaskOnly(Toy):
    planted = "reset-tuple"

    async def reset(self, *, seed=None, options: Mapping[str, Any] | None = None):
        return await super().reset(options={"task": (options or {})["task"]})


class FourTuple(Toy):
    planted = "step-tuple"

    async def step(self, action: Message):  # type: ignore
        return (await super().step(action))[:4]


class NaNReward(Toy):
    planted = "reward"

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        return step._replace(reward=float("nan")) if action.get("content") == "0" else step


class NumberAsBool(Toy):
    planted = "bools"

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        return step._replace(terminated=int(step.terminated))  # type: ignore


class WordsAsMetric(Toy):
    planted = "info"

    async def step(self, action: Message) -> Step:
        return (await super().step(action))._replace(info={"metrics": {"right": "no"}})


class NumberAsStopReason(Toy):
    planted = "info"

    async def step(self, action: Message) -> Step:
        return (await super().step(action))._replace(info={"stop_reason": 3})


class Unsendable(Toy):
    planted = "spec"

    def __init__(self, judge: object = None) -> None:
        super().__init__()

    @classmethod
    def task_source(cls, split: str, *, seed: int, judge: object = None) -> TaskSource:
        return Sums(split, seed)


# ---------------------------------------------------------------- messages
class UnknownRole(Toy):
    planted = "first-messages"

    def opening(self, task: Task) -> list[Message]:
        return [*super().opening(task), {"role": "robot", "content": "Beep."}]


class SurrogateQuestion(Toy):
    planted = "first-messages"

    def opening(self, task: Task) -> list[Message]:
        return [*super().opening(task), {"role": "user", "content": "\ud83d"}]


class BadSchema(Toy):
    planted = "tools"
    tools = ({"type": "function", "function": {"name": "add", "parameters": {"required": ["a"]}}},)


class NumberAsContent(Toy):
    planted = "observations"

    def called(self, function: Any) -> Any:
        return 5


class EchoesSurrogates(Toy):
    planted = "observations"

    def called(self, function: Any) -> str:
        return f"error: no {function.get('name')}" if isinstance(function, dict) else "error"


class OneAnswerForAll(Toy):
    planted = "tool-results"

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        return step._replace(observation=[{**m, "tool_call_id": "x"} for m in step.observation])


class WholeHistory(Toy):
    planted = "new-messages"

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        assert self.task is not None
        return step._replace(observation=[*self.opening(self.task), *step.observation])


class ChangesActions(Toy):
    planted = "nothing-mutated"

    async def step(self, action: Message) -> Step:
        step = await super().step(dict(action))
        action["seen"] = True  # type: ignore
        return step


class GrowingList(Toy):
    planted = "nothing-mutated"

    async def reset(self, *, seed=None, options=None):
        self.messages, info = await super().reset(seed=seed, options=options)
        return self.messages, info

    async def step(self, action: Message) -> Step:
        self.messages.append({"role": "user", "content": "seen"})
        return await super().step(action)


# ---------------------------------------------------------------- tasks and seeds
class CountingTasks(TaskSource):
    def __init__(self, split: str, seed: int) -> None:
        self.source, self.count = Sums(split, seed), 0

    def __getitem__(self, index: int, /) -> Task:
        self.count += 1
        return self.source[self.count]


class OwnOptions(Toy):
    planted = "tasks"

    def __init__(self, level: int = 1) -> None:
        super().__init__()


class TrainOnly(Toy):
    planted = "tasks"

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> Any:
        return [Sums(split, seed)[0]] if split == "train" else []


class NextTask(Toy):
    planted = "task-source"

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return CountingTasks(split, seed)


class HashedTasks(Sums):
    def __getitem__(self, index: int, /) -> Task:
        return Sums(self.split, hash(self.split))[index]


class TasksByHash(Toy):
    planted = "task-source"

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return HashedTasks(split, seed)


class SameIds(Sums):
    def __getitem__(self, index: int, /) -> Task:
        task = super().__getitem__(index)
        return Task(
            id=f"{self.split}-{index % 100}", seed=task.seed, data=task.data, split=task.split
        )


class TwoWithOneId(Toy):
    planted = "task-data"

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return SameIds(split, seed)


class SameRows(Sums):
    def __getitem__(self, index: int, /) -> Task:
        task = Sums("train", self.seed)[index]
        return Task(id=f"{self.split}-{index}", seed=task.seed, data=task.data, split=self.split)  # type: ignore


class TrainsOnHeldOut(Toy):
    planted = "splits-disjoint"

    @classmethod
    def task_source(cls, split: str, *, seed: int) -> TaskSource:
        return SameRows(split, seed)


class OneOpeningForMany(Toy):
    """No defect: many tasks open alike, with other numbers behind a tool."""

    def opening(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": f"What is the sum of order {task.data['b'] % 9}?"}]


class AsksOneOfNine(OneOpeningForMany):
    """A defect: nothing is behind the opening, and it is drawn from too few."""

    def solve(self) -> None:
        return None


class GlobalRandom(Toy):
    planted = "global-rng"

    def opening(self, task: Task) -> list[Message]:
        return [*super().opening(task), {"role": "user", "content": f"({random.random()})"}]


class SeedsGlobally(Toy):
    planted = "global-rng"

    async def reset(self, *, seed=None, options=None):
        random.seed(seed)
        return await super().reset(seed=seed, options=options)


class NewEachTime(Toy):
    planted = "seed-determinism"

    def opening(self, task: Task) -> list[Message]:
        return [*super().opening(task), {"role": "user", "content": f"({uuid.uuid4()})"}]


class NewInEachProcess(Toy):
    planted = "seed-determinism"

    def opening(self, task: Task) -> list[Message]:
        return [*super().opening(task), {"role": "user", "content": f"({hash('word')})"}]


class IgnoresTheTask(Toy):
    planted = "seeds-differ"

    async def reset(self, *, seed=None, options=None):
        return await super().reset(options={"task": Task("t", 1, {"a": 123456, "b": 654321})})


class NoisyTool(Toy):
    planted = "replay"

    def called(self, function: Any) -> str:
        return os.urandom(4).hex()


class Remembers(Toy):
    planted = "reset-again"

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def called(self, function: Any) -> str:
        self.count += 1
        return f"call {self.count}"


# ---------------------------------------------------------------- episodes
class NeverEnds(Toy):
    planted = "ends"
    max_turns = None

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        if step.reward or not step.terminated:
            return step
        return Step([{"role": "user", "content": "Again."}], 0.0, False, False, {})


class BothFlags(Toy):
    planted = "truncation"

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        return step._replace(truncated=step.terminated)


class BareSpec(EnvSpec):
    """Makes environments without the wrappers of `make`."""

    def make(self, **options: Any) -> Any:
        made = Spec.make(self, **options)
        made.spec = self
        return to_async(made) if isinstance(made, SyncEnv) else made


class StepsBeforeReset(Toy):
    planted = "step-before-reset"
    over = False

    async def reset(self, *, seed=None, options=None):
        self.over = False
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Message) -> Step:
        if self.over:
            raise EnvError("over")
        step = await super().step(action) if self.task else Step([], 0.0, True, False, {})
        self.over = step.terminated
        return step


class StepsOn(Toy):
    planted = "step-after-done"

    async def step(self, action: Message) -> Step:
        if self.task is None:
            raise EnvError("call reset first")
        return await super().step(action)

    async def close(self) -> None:
        self.task = None


class ClosesOnce(Toy):
    planted = "close"
    file: Any = None

    async def reset(self, *, seed=None, options=None):
        self.file = self.file or tempfile.TemporaryFile()  # noqa: SIM115
        return await super().reset(seed=seed, options=options)

    async def close(self) -> None:
        self.file.close()


class HangsInClose(Toy):
    planted = "close"

    async def close(self) -> None:
        await asyncio.sleep(3600)


class RaisesOnBadJson(Toy):
    planted = "malformed-actions"

    def called(self, function: Any) -> str:
        json.loads(function["arguments"]) if isinstance(function, dict) else None
        return super().called(function)


class SlowRegex(Toy):
    planted = "event-loop"

    async def step(self, action: Message) -> Step:
        if len(str(action.get("content"))) > 10_000:
            time.sleep(0.12)  # noqa: ASYNC251
        return await super().step(action)


class SharedTotal(Toy):
    planted = "isolation"
    total: dict[str, str] = {}  # noqa: RUF012

    async def reset(self, *, seed=None, options=None):
        self.total["calls"] = ""
        return await super().reset(seed=seed, options=options)

    def called(self, function: Any) -> str:
        self.total["calls"] += "x"
        return self.total["calls"]


class LeavesTasks(Toy):
    planted = "cancel"

    async def step(self, action: Message) -> Step:
        self.kept = asyncio.create_task(asyncio.sleep(300))
        await asyncio.sleep(0.01)
        self.kept.cancel()
        return await super().step(action)


class LeavesFiles(Toy):
    planted = "cancel"
    left: Sequence[Any] = ()

    async def step(self, action: Message) -> Step:
        file = os.open(os.devnull, os.O_RDONLY)
        await asyncio.sleep(0.01)
        os.close(file)
        return await super().step(action)


# ---------------------------------------------------------------- rewards
class WrongGold(Toy):
    planted = "gold"

    def solve(self) -> list[Message]:
        return [{"role": "assistant", "content": f"The answer is {self.gold()}."}]


class PaysSilence(Toy):
    planted = "no-op"

    def paid(self, content: Any) -> float:
        return super().paid(content) or float(content == "")


class PaysTheQuestion(Toy):
    planted = "echo"

    def paid(self, content: Any) -> float:
        return super().paid(content) or float("What is" in str(content))


class PaysCalls(Toy):
    planted = "call-everything"

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        calls = action.get("tool_calls")
        return step if step.terminated or not calls else step._replace(reward=0.1)

    def solve(self) -> list[Message]:
        return super().solve()[1:]


class PaysContaining(Toy):
    planted = "bad-answers"

    def opening(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": f"{task.data['a']}, {task.data['b']}: which is last?"}]

    def paid(self, content: Any) -> float:
        return super().paid(content) or float(self.gold()[-1] + " " in str(content))


class PaysYes(Toy):
    planted = "bad-answers"

    def paid(self, content: Any) -> float:
        return super().paid(content) or float(content == "yes")


class RaisesAtAll(Toy):
    async def step(self, action: Message) -> Step:
        raise RuntimeError("at all")


class SandboxGone(Toy):
    """Its sandboxes fail as soon as another task runs beside it."""

    async def reset(self, *, seed=None, options=None):
        if len(asyncio.all_tasks()) > 1:
            raise SandboxError("gone")
        return await super().reset(seed=seed, options=options)


# ---------------------------------------------------------------- of a ToolEnv


class TwoNumbers(ToolEnv):
    planted = "step-tuple"

    def begin(self, task: Task) -> str:
        return f"Guess {self.random.random()}."

    def finish(self, text: str):  # type: ignore
        return 0.0, True


class NeverPays(ToolEnv):
    planted = "pays"

    def begin(self, task: Task) -> str:
        return f"Guess {self.random.random()}."


class UnsendableResult(NeverPays):
    planted = "tool-results"
    max_turns = 3

    def finish(self, text: str) -> float:
        return 0.0

    @tool
    def look(self) -> object:
        return object()


class WrongColumn(NeverPays):
    planted = "tool-results"
    max_turns = 3

    def finish(self, text: str) -> float:
        return 0.0

    @tool
    def price(self, name: str) -> str:
        with closing(sqlite3.connect(":memory:")) as rows:
            rows.execute("CREATE TABLE items (name TEXT, price REAL)")
            return str(rows.execute("SELECT cost FROM items WHERE name = ?", [name]).fetchall())


class SecondTable(NeverPays):
    """An environment that works once in a process."""

    tables: ClassVar[set[str]] = set()

    def begin(self, task: Task) -> str:
        if "orders" in self.tables:
            raise RuntimeError("table orders already exists")
        self.tables.add("orders")
        return super().begin(task)


class Unjudgeable(NeverPays):
    """An environment whose `step` is no method."""

    step = None  # type: ignore
