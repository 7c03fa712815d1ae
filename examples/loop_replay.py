"""The training loop with a replay: python examples/loop_replay.py [KEY=VALUE ...]"""

import asyncio
import sys
from random import Random

from agentgym_rl import Buffer, Fleet, Rollout, Trainer, evaluate, runs


async def play(rollout):
    """Play groups until cancelled, as many at once as the staleness bound admits."""
    async with asyncio.TaskGroup() as groups:
        async for index, task in rollout.admitted():
            groups.create_task(play_group(rollout, index, task))


async def play_group(rollout, index, task):
    """Play a task `group_size` times at once; the group waits in the buffer, logged."""
    group = await rollout.group(task, index=index)
    await rollout.finish(task, group)


async def learn(run, buffer, rollout, trainer, fleet):
    """Train `config.steps` batches while groups are played."""
    before, draws = [], Random(run.config.seed)
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(play(rollout))
        for step in range(run.step, run.config.steps):
            groups = await buffer.batch()  # none older than the bound; leased in the log
            report = await trainer.train(step, groups, dropped=buffer.dropped)
            if before:  # a second optimizer step, on a batch of before
                await trainer.train(step, draws.choice(before))
            before = [*before, groups][-4:]
            await trainer.publish(fleet, report.version)  # while the engines sample
            await run.record(report)  # on disk, with its metrics
            buffer.publish(report.version)  # admits the groups of another batch
            if trainer.checkpoint_due(step + 1):
                await trainer.save(step + 1)  # `resume` continues from here
            print(f"batch {step}: reward {report.metrics['reward/mean']:.3f}", flush=True)
        playing.cancel()


def opened(overrides):
    """Open a new run, or the one in the folder `resume`, from its newest checkpoint on."""
    if folder := overrides.pop("resume", ""):
        return runs.resumed(folder, overrides=overrides)
    return runs.new(overrides=overrides, kind="loop")


async def main(overrides):
    """Evaluate, train and evaluate again; return both results."""
    with opened(overrides) as run, Trainer.started(run) as trainer:
        buffer = Buffer.of(run)
        async with (
            Fleet.started(run) as fleet,
            Rollout.started(run, fleet, buffer=buffer) as rollout,
        ):
            if run.step:
                await trainer.publish(fleet, run.step)  # the weights of the checkpoint
            before = await evaluate(rollout=rollout)
            await learn(run, buffer, rollout, trainer, fleet)
            after = await evaluate(rollout=rollout)
            print(f"held-out: {before.reward:.3f}, then {after.reward:.3f}; see {run.folder}")
    return before, after


if __name__ == "__main__":
    asyncio.run(main(dict(word.split("=", 1) for word in sys.argv[1:])))
