"""The kind of producers with rollout workers (`rollout.workers`), as a run finds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl.cluster import ProcessSpec
from agentgym_rl.config import Config
from agentgym_rl.run import Forked, ProducerKind
from arl_scale.keys import WorkerKeys
from arl_scale.workers import IMPORTS

if TYPE_CHECKING:  # slow imports, made when a run begins
    from agentgym_rl.rollout import Cursor, OpenGroups, Player
    from agentgym_rl.run import TrainingRun
    from arl_scale.workers.elastic import ElasticWorkers


class WorkersKind(ProducerKind):
    """The kind of runs whose groups are played by processes of their own."""

    def takes(self, config: Config) -> bool:
        return config.of(WorkerKeys).workers > 0

    def forked(self, config: Config) -> Forked:
        return Forked(config.of(WorkerKeys).workers, IMPORTS)

    def processes(
        self, config: Config, config_file: Path, *, controller_url: str
    ) -> list[ProcessSpec]:
        from arl_scale.workers.workers import worker_process

        url, keys = controller_url, config.of(WorkerKeys)
        return [
            worker_process(
                config_file, index=index, cpus=keys.worker_cpus, controller_url=url, token=""
            )
            for index in range(keys.workers)
        ]

    def producer(
        self, run: TrainingRun, groups: OpenGroups, cursor: Cursor, player: Player
    ) -> ElasticWorkers:
        from arl_scale.mirrors import Followers
        from arl_scale.workers.elastic import ElasticWorkers
        from arl_scale.workers.leases import Leases

        config = run.config
        return ElasticWorkers(
            config.rollout,
            run.config_file,
            run.processes,
            Leases(config.rollout, groups, cursor, numbers=run.controller.rollout_metrics),
            Followers.of(run.fleet),
            engine_timeout_s=config.own_engine.start_timeout_s,
            stop_timeout_s=config.cluster.stop_timeout_s,
            on_error=run.controller.fail,
        )


KIND = WorkersKind()
