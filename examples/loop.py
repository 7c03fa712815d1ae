"""The training loop, written out (docs/loop.md): python examples/loop.py [KEY=VALUE ...]"""

import asyncio
import sys
from contextlib import closing
from functools import partial

import torch

from agentgym_rl.cluster.local import LocalProcesses
from agentgym_rl.config import load_config
from agentgym_rl.controller.batches import batch_metrics, split_batch
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.core.batch import StepReport
from agentgym_rl.engines.kind import EngineSetup
from agentgym_rl.evaluate.evaluate import evaluate
from agentgym_rl.fleet.fleet import Fleet
from agentgym_rl.models.fitted import fitted
from agentgym_rl.models.resolve import model_folder, resolve_paths
from agentgym_rl.rollout.groups import FinishedGroups
from agentgym_rl.rollout.player import env_spec, serving_policy
from agentgym_rl.rollout.producer import TaskCursor, play_member
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile, finite
from agentgym_rl.storage.run_folder import EPISODES, create_run_dir, file_name
from agentgym_rl.storage.weights_folder import WeightsFolder
from agentgym_rl.trainer.agreement import Agreement
from agentgym_rl.trainer.step import make_stepper
from agentgym_rl.trainer.usage import Phases
from agentgym_rl.trainer.versions_out import make_publisher
from agentgym_rl.trainer.world import join_world
from agentgym_rl.weights.files import prune


async def rollout(config, player, buffer, finished):
    """Play groups until cancelled, as many at once as the staleness bound admits."""
    tasks = env_spec(config.env, config.rollout).task_source("train", seed=config.seed)
    cursor = TaskCursor(config.rollout, tasks, seed=config.seed)
    async with asyncio.TaskGroup() as groups:
        while True:
            index, task = await cursor.next()
            await buffer.wait_room()
            buffer.admit()
            groups.create_task(play_group(config, player, finished, index, task))


async def play_group(config, player, finished, index, task):
    """Play a task `group_size` times at once; the finished group waits in the buffer."""
    group, ids = f"g{index}", [f"g{index}-{n}" for n in range(config.rollout.group_size)]
    play = partial(play_member, config.rollout, player, task, seed=config.seed, group_id=group)
    async with asyncio.TaskGroup() as members:
        playing = [members.create_task(play(episode_id=id)) for id in ids]
    episodes = [member.result() for member in playing]
    for episode in episodes:
        finished.count(episode)  # ends the run if episodes keep failing
    await finished.finish(group, task, index, episodes)


async def next_batch(config, buffer, log, step):
    """Wait for a batch; return its groups, none of them older than the staleness bound."""
    wait = {"who": "trainer", "what": f"batch {step}", "timeout_s": config.trainer.batch_timeout_s}
    while True:
        await buffer.changes.wait_for(lambda: buffer.complete, **wait)
        if not (stale := buffer.drop_stale()):
            break
        await log.drop(stale, "stale")
    groups = buffer.take()
    await log.lease(groups, step)
    return groups


def train(config, stepper, groups, step):
    """Train a batch whose log-probs are the engine's; return its metrics and the new weights."""
    (shard,) = split_batch(
        groups,
        step=step,
        num_ranks=1,
        num_minibatches=config.trainer.num_minibatches,
        turn_discount=config.algo.turn_discount,
    )
    same = Agreement(stepper.policy, config.trainer, engine_dtype=config.own_engine.dtype)
    check = lambda tokens, logprobs, advantages: same.check(step, tokens, logprobs)  # noqa: E731
    metrics = stepper.train(shard, Phases(), on_tokens=check)
    return metrics, stepper.policy.trained_state()


async def publish(fleet, publisher, weights, version):
    """Give the engines new weights, while they sample."""
    await asyncio.to_thread(publisher.prepare, version, weights)
    engines = await fleet.begin_publication(version)
    done = await asyncio.to_thread(publisher.publish, engines, version)
    await fleet.end_publication(version, served=done.served, failed=done.failed)


async def learn(config, fleet, player, stepper, log, metrics_file, weights_dir):
    """Train `config.steps` batches while groups are played."""
    buffer = Buffer(config.rollout, total_groups=config.steps * config.rollout.groups_per_batch)
    finished = FinishedGroups(config.rollout, buffer=buffer, episodes=log)
    publisher = make_publisher(config, weights_dir)
    async with asyncio.TaskGroup() as tasks:
        playing = tasks.create_task(rollout(config, player, buffer, finished))
        for step in range(config.steps):
            groups = await next_batch(config, buffer, log, step)
            metrics, weights = await asyncio.to_thread(train, config, stepper, groups, step)
            metrics |= batch_metrics(groups, step, buffer.dropped)
            await publish(fleet, publisher, weights, step + 1)
            prune(weights_dir, keep=2)
            names = [group.group_id for group in groups]
            await log.publish(StepReport(step, step + 1, metrics, group_ids=names), finite(metrics))
            metrics_file.write(step, metrics)
            buffer.publish(step + 1)  # admits the groups of another batch
            print(f"batch {step}: reward {metrics['reward/mean']:.3f}", flush=True)
        playing.cancel()


async def main(config):
    """Evaluate, train and evaluate again; return both results."""
    torch.set_num_threads(config.trainer.num_threads)
    model_dir = model_folder(config.model, config.env.id)
    config = fitted(resolve_paths(config), model_dir)
    run_dir, config_file = create_run_dir(config, kind="loop")
    with (
        closing(EpisodeLog(run_dir / EPISODES)) as log,
        closing(MetricsFile(run_dir / "metrics.jsonl")) as metrics_file,
        WeightsFolder(file_name(run_dir.name)) as weights,
        join_world(device=config.trainer.device) as world,
    ):
        log.begin(step=0, checkpoint="", num_ranks=1)
        stepper = make_stepper(config, world, model_dir)
        async with LocalProcesses(run_dir / "logs", stop_timeout_s=5) as processes:
            setup = EngineSetup.of(config)
            fleet = Fleet(setup, config_file, processes, model_dir=model_dir, weights_dir=weights)
            test = partial(evaluate, config.eval, config.rollout, seed=config.seed)
            tasks = env_spec(config.env, config.rollout).task_source("eval", seed=config.eval.seed)
            async with fleet.running(), serving_policy(config, fleet) as player:
                before = await test(player, tasks)
                await learn(config, fleet, player, stepper, log, metrics_file, weights)
                after = await test(player, tasks)
                print(f"held-out: {before.reward:.3f}, then {after.reward:.3f}; see {run_dir}")
    return before, after


if __name__ == "__main__":
    asyncio.run(main(load_config(None, dict(word.split("=", 1) for word in sys.argv[1:]))))
