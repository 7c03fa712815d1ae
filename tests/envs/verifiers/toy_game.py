"""A toy taskset that brings its environment, the user: guess a number in a few turns."""

import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    secret: int


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def short(self, trace):
        return 1.0 / trace.num_turns


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=4)
    raises: bool = False
    twice: bool = False


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        won = False
        async with agents.player.interaction(task) as interaction:
            said = None if task.data.prompt else "A number from 0 to 9."
            segment = await interaction.turn(said)
            while not segment.terminated and not won:
                if self.config.raises:
                    raise RuntimeError("the board fell over")
                won = segment.last_reply == str(task.data.secret)
                if not won:
                    is_low = segment.last_reply < str(task.data.secret)
                    segment = await interaction.turn("higher" if is_low else "lower")
        interaction.trace.record_reward("won", float(won))
        if self.config.twice:
            await agents.player.run(task)

    async def finalize(self, task, episode):
        episode.traces[0].record_metric("episodes", len(episode.traces))


class GuessTasksetConfig(vf.TasksetConfig):
    opens: bool = False


class GuessTaskset(vf.Taskset[GuessTask, GuessTasksetConfig]):
    def load(self):
        for number in range(20):
            prompt = None if self.config.opens else "Guess a number from 0 to 9."
            data = GuessData(prompt=prompt, system_prompt="Play.", secret=number % 10)
            yield GuessTask(data, self.config.task)
