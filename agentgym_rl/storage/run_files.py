"""The files of a run that a loop in this process writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.core import StepReport

from .episode_log import EpisodeLog
from .metrics import MetricsFile, finite
from .recovery import NOTHING, Recovered
from .run_folder import EPISODES, MARK, file_name
from .weights_folder import WeightsFolder


def begun(log: EpisodeLog) -> Recovered:
    """Begin the log of a new run of one rank; return its state."""
    log.begin(step=0, checkpoint="", num_ranks=1)
    return NOTHING


@dataclass(frozen=True)
class Run:
    """A run in this process: its configuration, model and files, from which the other parts of a
    loop are made (`runs.new`, `runs.resumed` and `runs.temporary` return one)."""

    config: Config
    """The configuration, with the defaults that depend on the model filled in."""
    model_dir: Path
    """The folder of the run's initial model."""
    folder: Path
    """The folder that `arl inspect`, `arl ledger` and `arl runs` read."""
    config_file: Path
    log: EpisodeLog
    """The durable log of episodes."""
    metrics: MetricsFile
    weights: Path
    """The folder, in shared memory, of the policy versions that engines read."""
    recovered: Recovered = NOTHING
    """The state from which it continues, with which the other parts begin."""

    @classmethod
    @contextmanager
    def opened(
        cls,
        config: Config,
        folder: Path,
        *,
        model_dir: Path,
        begin: Callable[[EpisodeLog], Recovered] = begun,
    ) -> Generator[Run]:
        """Open the files of the run in `folder`, which this process holds, for a context. `begin`
        begins its log, and returns the state from which it continues."""
        with (
            WeightsFolder(f"{file_name(folder.name)}-{os.getpid()}") as weights,
            closing(EpisodeLog(folder / EPISODES)) as log,
        ):
            recovered = begin(log)
            with closing(MetricsFile(folder / "metrics.jsonl")) as metrics:
                files = (folder, folder / MARK, log, metrics, weights)
                yield cls(config, model_dir, *files, recovered)

    @property
    def step(self) -> int:
        """Return the number of batches from which the run continues; 0 for a new one."""
        return self.recovered.step

    async def record(self, report: StepReport) -> None:
        """Record a batch whose version was published. The record is on disk when this returns."""
        await self.log.publish(report, finite(report.metrics))
        self.metrics.write(report.step, report.metrics)
