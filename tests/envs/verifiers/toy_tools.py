"""A toy taskset with tools, written against the real API: what is in the box?"""

import verifiers.v1 as vf

__all__ = ["BoxTaskset"]


class Opened(vf.State):
    times: int = 0


class Box(vf.Toolset[vf.ToolsetConfig, Opened]):
    """The tools of one episode; they know its task, and count in its state."""

    async def setup_task(self, task):
        self.content = task.content

    @vf.tool
    async def look(self, box: str = "red") -> str:
        """Look into a box."""
        self.state.times += 1
        if box != "red":
            raise ValueError(f"there is no {box} box")
        return self.content


class Dictionary(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    """A tool that all episodes share, set up once."""

    TOOL_PREFIX = None
    setups = 0

    async def setup(self):
        type(self).setups += 1

    @vf.tool
    def spell(self, word: str) -> list[str]:
        """Spell a word."""
        return [*word, str(self.setups)]


class BoxData(vf.TaskData):
    content: str


class BoxTask(vf.Task[BoxData, Opened, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Box(vf.ToolsetConfig())]

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.state.times >= 3

    @vf.reward
    async def right(self, task, trace):
        return float(trace.last_reply == task.content)

    @vf.metric
    async def looks(self, trace):
        return float(trace.state.times)


class BoxConfig(vf.TasksetConfig):
    remote: bool = False


class BoxTaskset(vf.Taskset[BoxTask, BoxConfig]):
    @classmethod
    def toolsets(cls, config):
        url = "http://elsewhere:1/mcp" if config.remote else None
        return [Dictionary(vf.SharedToolsetConfig(url=url))]

    def load(self):
        for number in range(20):
            data = BoxData(prompt="What is in the red box?", content=f"ball {number}")
            yield BoxTask(data, self.config.task)
