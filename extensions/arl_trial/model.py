"""The start of the trial of a model: a process of its own, with the modules of a rank."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agentgym_rl.cluster import LocalProcesses, ProcessSpec
from agentgym_rl.config import Config, TrainerConfig
from agentgym_rl.core import ConfigError, is_function_path, too_slow
from agentgym_rl.models import BUNDLED_MODELS, other_folders
from agentgym_rl.report import Progress
from agentgym_rl.run import Opened
from agentgym_rl.trainer import rank_environment, rank_imports


async def tried_model(opened: Opened, progress: Progress) -> Config:
    """Refuse the model of a new run (or a frozen model beside it), or a user's own part of
    training, that ranks would refuse, before an engine is started. Bundled models are known to
    work. On a cluster of other machines the ranks find out.

    Raises:
        ConfigError: the model lacks tensors, cannot be packed, or could not be exported; or a
            function does not keep its contract; the message says which.
        ProcessDied: the trial failed for another reason.
    """
    config = opened.config
    if opened.is_new and config.cluster.kind.here:
        progress.phase("trying the model")
        await _try_model(opened)
    return config


async def _try_model(opened: Opened) -> None:
    """Try the model, unless it is a bundled one without parts of the user; see `tried_model`."""
    config, run_dir = opened.config, opened.run_dir
    own_parts = (config.algo.loss, config.algo.advantage or "", config.trainer.optimizer)
    known = {opened.model_dir, *other_folders(config.algo)} <= {*BUNDLED_MODELS.values()}
    if known and not any(map(is_function_path, own_parts)):
        return
    answer = run_dir / "trial.json"
    async with LocalProcesses(
        run_dir / "logs", stop_timeout_s=config.cluster.stop_timeout_s, forks=opened.forks
    ) as own:
        await own.start(_process(config.trainer, opened.config_file, answer))
        try:
            async with asyncio.timeout(config.trainer.start_timeout_s):
                await own.watch()
        except TimeoutError as error:
            limit_s = config.trainer.start_timeout_s
            raise ConfigError(
                too_slow("the trial of the model", "trainer.start_timeout_s", limit_s)
            ) from error
    why = json.loads(answer.read_text(encoding="utf-8"))["refusal"]
    answer.unlink()
    if why:
        raise ConfigError(f"{why} (nothing was started)")


def _process(config: TrainerConfig, config_file: Path, answer: Path) -> ProcessSpec:
    """Return the process that tests the configured model and writes a refusal's reason to
    `answer`."""
    return ProcessSpec(
        name="trial",
        argv=[
            *(sys.executable, "-m", "arl_trial.model_process"),
            *(str(config_file), str(answer)),
        ],
        env=rank_environment(config),
        finite=True,
        imports=rank_imports(config),
    )
