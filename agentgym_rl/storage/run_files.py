"""The files of a run that a loop in this process writes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.core import StepReport

from .episode_log import EpisodeLog
from .metrics import MetricsFile, finite
from .run_folder import EPISODES, create_run_dir, file_name, held
from .weights_folder import WeightsFolder


@dataclass(frozen=True)
class Run:
    """A run in this process: its configuration, model and files, from which the other parts of a
    loop are made (`runs.new` and `runs.temporary` return one)."""

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

    @classmethod
    @contextmanager
    def opened(cls, config: Config, *, model_dir: Path, kind: str = "") -> Generator[Run]:
        """Open the files of a new run in `config.run`, or in `runs/KIND-TIME`, for a context.

        Raises:
            ConfigError: the folder holds a run already, or cannot be written.
        """
        folder, config_file = create_run_dir(config, kind=kind)
        with (
            held(folder),
            closing(EpisodeLog(folder / EPISODES)) as log,
            closing(MetricsFile(folder / "metrics.jsonl")) as metrics,
            WeightsFolder(file_name(folder.name)) as weights,
        ):
            log.begin(step=0, checkpoint="", num_ranks=1)
            yield cls(config, model_dir, folder, config_file, log, metrics, weights)

    async def record(self, report: StepReport) -> None:
        """Record a batch whose version was published. The record is on disk when this returns, so
        that the batch is never trained again."""
        await self.log.publish(report, finite(report.metrics))
        self.metrics.write(report.step, report.metrics)
