"""A run's folder, opened again: by one process, with a configuration that it can go on with."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

from .config import Config, dump_toml
from .config.difference import differences
from .episode_log import EpisodeLog
from .errors import ConfigError
from .eval_records import EvalRecords
from .metrics import finite, rewrite_metrics
from .recovery import NOTHING, Recovered, recover
from .run_dir import MARK, shown
from .trainer.manifest import newest_checkpoint, read_manifest

log = logging.getLogger(__name__)

FREE = (
    *("run", "cluster", "logging", "eval", "gateway", "weights"),
    *("trainer.num_ranks", "trainer.device", "trainer.gpus", "trainer.num_threads"),
    *("trainer.num_replicas", "trainer.activation_checkpointing", "trainer.cpu_offload"),
    *("trainer.head_chunk_tokens", "trainer.compile", "trainer.attention"),
    *("trainer.max_tokens_per_microbatch", "trainer.checkpoint_every"),
    "trainer.checkpoint_every_minutes",
    *("trainer.keep_checkpoints", "trainer.keep_best", "trainer.best_metric"),
    *("trainer.start_timeout_s", "trainer.batch_timeout_s", "trainer.finish_timeout_s"),
    *("trainer.max_restarts", "trainer.stall_timeout_s"),
    *("engine.device", "engine.num_servers", "engine.num_threads", "engine.max_num_seqs"),
    *("engine.stream_interval", "engine.max_restarts", "engine.start_timeout_s"),
    *("engine.stall_timeout_s", "engine.request_timeout_s", "engine.fused", "engine.urls"),
    *("engine.python", "engine.gpus", "engine.tensor_parallel_size", "engine.flags", "engine.env"),
    *("engine.gpu_memory_utilization", "engine.kv_cache_gib", "engine.prefix_cache"),
    *("rollout.workers", "rollout.worker_cpus", "rollout.max_restarts"),
    *("rollout.max_concurrent", "rollout.interrupt", "rollout.max_retries"),
    *("rollout.concurrency", "rollout.start_concurrent", "rollout.min_concurrent"),
    *("rollout.turn_timeout_s", "rollout.episode_timeout_s", "rollout.max_rejected"),
)
"""Keys a run may go on with other values of: where and how fast things run, what is kept and
shown. All else decides what is played and learned."""


def check_resumable(folder: Path, config: Config) -> None:
    """Refuse a configuration that the run in `folder` cannot go on with.

    More `steps` are possible where the learning rate does not depend on how many there are.

    Raises:
        ConfigError: says what differs.
    """
    before = tomllib.loads((folder / MARK).read_text(encoding="utf-8"))
    longer = config.trainer.schedule == "constant" and config.steps >= before["steps"]
    free = (*FREE, "steps") if longer else FREE
    different = differences(before, tomllib.loads(dump_toml(config)), free=free)
    if different:
        hint = ""
        if config.steps != before["steps"] and not longer:
            hint = " (steps may grow under trainer.schedule 'constant' alone)"
        raise ConfigError(
            f"--resume {shown(folder)}: the run cannot go on with another configuration: "
            f"{'; '.join(different)}{hint}. Leave that out, or begin a new run"
        )


def check_unfinished(folder: Path, config: Config) -> None:
    """Refuse a run that has nothing left to do.

    Raises:
        ConfigError: it has exported the weights of its last batch, and evaluated them.
    """
    newest = newest_checkpoint(folder / "checkpoints")
    done = read_manifest(newest).step if newest else 0
    last = EvalRecords(folder).read().get(config.steps)
    evaluated = last is None or last.status != "waiting" or not config.eval.num_tasks
    if done >= config.steps and (folder / "export").exists() and evaluated:
        raise ConfigError(
            f"--resume {shown(folder)}: the run is finished, with all its {config.steps} batches"
        )


def rewrite_config(folder: Path, config: Config) -> Path:
    """Put the configuration that a run goes on with in place of the one it had."""
    beside = folder / f".{MARK}.tmp"
    beside.write_text(dump_toml(config), encoding="utf-8")
    return beside.replace(folder / MARK)


def begin(config: Config, run_dir: Path, episodes: EpisodeLog) -> Recovered:
    """What there is of the run, and the log and the metrics file brought to where it goes on.

    Raises:
        ConfigError: see `recover`.
    """
    checkpoint = newest_checkpoint(run_dir / "checkpoints")
    step = read_manifest(checkpoint).step if checkpoint else 0
    incarnation = episodes.begin(
        step=step, checkpoint=str(checkpoint or ""), num_ranks=config.trainer.num_ranks
    )
    if not incarnation:
        if episodes.num_groups:
            raise ConfigError(
                f"{shown(run_dir)}: the run was begun by an earlier version of this package, whose "
                "log does not say enough to go on; begin a new run"
            )
        return NOTHING
    found = recover(
        run_dir / "episodes.db", step=step, checkpoint=checkpoint, incarnation=incarnation
    )
    rewrite_metrics(run_dir / "metrics.jsonl", [finite(metrics) for metrics in found.history])
    log.info(
        "going on from %s: %d batches that were handed out since then are trained from the log, "
        "%d groups wait, %d have begun",
        *(f"step {step}", len(found.leased), len(found.waiting), len(found.begun)),
    )
    return found
