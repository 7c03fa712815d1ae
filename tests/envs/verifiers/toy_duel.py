"""A toy taskset whose environment has two agents: take the last of some matches."""

import asyncio

import verifiers.v1 as vf

__all__ = ["DuelEnv", "DuelTaskset"]

START = "3 or 4 matches"


class DuelData(vf.TaskData):
    matches: int


class Table(vf.Toolset[vf.ToolsetConfig, vf.State]):
    """A tool that both have."""

    async def setup_task(self, task):
        self.matches = task.matches

    @vf.tool
    async def count(self) -> str:
        """Count the matches of the beginning."""
        return str(self.matches)


class DuelTask(vf.Task[DuelData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Table(vf.ToolsetConfig())]


class DuelConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(max_turns=4)
    second: vf.AgentConfig = vf.AgentConfig(max_turns=4)
    kind: str = ""


class DuelEnv(vf.Env[DuelConfig]):
    async def setup(self, agents):
        agents.second.trainable = False

    async def run(self, task, agents):
        match self.config.kind:
            case "together":  # both speak without having heard the other
                await asyncio.gather(self.once(task, agents.first), self.once(task, agents.second))
            case "alone":
                await self.once(task, agents.second)
            case _:
                await self.in_turns(task, agents)

    async def once(self, task, agent):
        async with agent.interaction(task) as interaction:
            await interaction.turn(START)

    async def in_turns(self, task, agents):
        left, told = task.data.matches, None
        async with agents.first.interaction(task) as one, agents.second.interaction(task) as other:
            sides = (one, other)
            while left > 0:
                segment = await sides[0].turn(told or START)
                if segment.terminated:
                    return
                if self.config.kind == "raises":
                    raise RuntimeError("the table fell over")
                left -= 2 if "2" in segment.last_reply else 1
                told, sides = f"{left} left", sides[::-1]
        sides[1].trace.record_reward("won", 1.0)
        sides[0].trace.record_reward("won", -1.0)

    async def finalize(self, task, episode):
        names = [trace.agent.name for trace in episode.traces]
        for trace in episode.traces:
            trace.record_metric("agents", float(len(names)))
            trace.record_metric("trainable", float(trace.agent.trainable))


class DuelTaskset(vf.Taskset[DuelTask, vf.TasksetConfig]):
    def load(self):
        for number in range(20):
            data = DuelData(prompt=None, system_prompt="Take 1 or 2.", matches=3 + number % 2)
            yield DuelTask(data, self.config.task)
