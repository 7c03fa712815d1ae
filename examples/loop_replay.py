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
        for step in range(run.config.steps):
            groups = await buffer.batch()  # none older than the bound; leased in the log
            report = await trainer.train(step, groups, dropped=buffer.dropped)
            if before:  # a second optimizer step, on a batch of before
                await trainer.train(step, draws.choice(before))
            before = [*before, groups][-4:]
            await trainer.publish(fleet, report.version)  # while the engines sample
            await run.record(report)  # durable: the batch is never trained again
            buffer.publish(report.version)  # admits the groups of another batch
            print(f"batch {step}: reward {report.metrics['reward/mean']:.3f}", flush=True)
        playing.cancel()


async def main(overrides):
    """Evaluate, train and evaluate again; return both results."""
    with runs.new(overrides=overrides, kind="loop") as run, Trainer.started(run) as trainer:
        total = run.config.steps * run.config.rollout.groups_per_batch
        buffer = Buffer(run.config.rollout, total_groups=total, log=run.log)
        async with (
            Fleet.started(run) as fleet,
            Rollout.started(run, fleet, buffer=buffer) as rollout,
        ):
            before = await evaluate(rollout=rollout)
            await learn(run, buffer, rollout, trainer, fleet)
            after = await evaluate(rollout=rollout)
            print(f"held-out: {before.reward:.3f}, then {after.reward:.3f}; see {run.folder}")
    return before, after


if __name__ == "__main__":
    asyncio.run(main(dict(word.split("=", 1) for word in sys.argv[1:])))
