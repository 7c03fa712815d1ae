"""A toy taskset, written against the real API; runs in any Python that has verifiers."""

import asyncio
import os
import sys
import time

import verifiers.v1 as vf

__all__ = ["SumTaskset"]


meeting = asyncio.Barrier(2)


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.75)
    async def exact(self, task, trace):
        reply = trace.last_reply
        print("a scorer may print", reply[:10])
        match reply:
            case "raise":
                raise RuntimeError("boom")
            case "die":
                os._exit(3)
            case "hang":
                time.sleep(600)  # noqa: ASYNC251 (it is what is tested)
            case "work":
                time.sleep(0.4)  # noqa: ASYNC251 (it is what is tested)
            case "meet":
                await meeting.wait()
            case "wait":
                await asyncio.sleep(600)
            case "nan":
                return float("nan")
        return float(reply == str(task.answer))

    @vf.reward(weight=0.25)
    async def number(self, trace):
        return float(trace.last_reply.isdecimal())

    @vf.metric
    async def letters(self, trace):
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    first: int = 0
    count: int = 40
    kind: str = ""


class WithRuntime(SumTask):
    @vf.reward
    async def ran(self, trace, runtime):
        return 1.0


class InContainer(SumTask):
    NEEDS_CONTAINER = True


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    @property
    def bounded(self):
        return self.config.kind != "endless"

    def load(self):
        print("a taskset may print", file=sys.stdout)
        kinds = {"runtime": WithRuntime, "container": InContainer}
        kind = kinds.get(self.config.kind, SumTask)
        if self.config.kind == "broken":
            raise RuntimeError("no such file")
        number = self.config.first
        while self.config.kind == "endless" or number < self.config.first + self.config.count:
            prompt = f"{number} + {number}?"
            if self.config.kind == "unprompted":
                prompt = None
            elif self.config.kind == "messages":
                prompt = [vf.UserMessage(content="1 + 1?"), vf.AssistantMessage(content="2")]
                prompt.append(vf.UserMessage(content=f"{number} + {number}?"))
            data = SumData(prompt=prompt, system_prompt="Add.", answer=2 * number)
            yield kind(data, self.config.task)
            number += 1
