"""The runs on this machine (`agentgym_rl.runs`): those in their folders, and runs of loops of one's
own, new or resumed.

>>> from agentgym_rl import runs
>>> with runs.temporary(overrides={"env.id": "math", "steps": 3}) as run:
...     run.config.steps, run.config.trainer.learning_rate  # the one that fits the model
(3, 0.0003)
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, dump_record, load_config
from agentgym_rl.models import model_folder, resolve_paths, with_model_defaults
from agentgym_rl.rollout import env_spec
from agentgym_rl.runtime import replace_text
from agentgym_rl.storage import RunSummary, find_runs, recorded_end
from agentgym_rl.storage.run_files import Run
from agentgym_rl.storage.run_folder import MARK, create_run_dir, held

from .resume import begin, check_kept, record_model, resumed_config, schedule_moved

log = logging.getLogger(__name__)

__all__ = ["Run", "RunSummary", "find", "new", "resumed", "temporary"]


def find(*places: Path | str) -> list[RunSummary]:
    """Return the runs in these folders (default: `runs/`), the newest first; each place is a run or
    a folder of runs.

    Raises:
        ConfigError: a place does not exist.
    """
    return find_runs([Path(place) for place in places or ("runs",)])


@contextmanager
def new(
    config: Config | Mapping[str, Any] | Path | str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    kind: str = "",
) -> Generator[Run]:
    """Begin a run whose loop is in this process, for a context: with its folder, its log and the
    values that fit its model. Arguments are those of `train`; `kind` begins the folder's name.

    Raises:
        ConfigError: the configuration is wrong, there is no such model, or `run` names a folder
            that holds a run already.
    """
    loaded = load_config(config, overrides)
    model_dir = model_folder(loaded.model, loaded.env.id)
    fitted = with_model_defaults(resolve_paths(loaded), model_dir)
    folder, _ = create_run_dir(fitted, kind=kind)
    with (
        held(folder),
        recorded_end(folder, "train", is_new=True),
        Run.opened(fitted, folder, model_dir=model_dir) as run,
    ):
        record_model(folder, model_dir)
        yield run


@contextmanager
def resumed(folder: Path | str, *, overrides: Mapping[str, Any] | None = None) -> Generator[Run]:
    """Continue the run in `folder` from its newest checkpoint (`Trainer.save`), in this process,
    for a context. Parts that are made from the run begin in its state: the `Trainer` has the
    weights, the `Buffer` the groups that wait and the batches to train again, and the `Rollout`
    plays the other tasks. Engines get the weights with the first `publish`.

    Raises:
        ConfigError: there is no run, a file of it is missing or damaged, it cannot continue with
            these `overrides`, or a running process has it.
    """
    folder = Path(os.path.abspath(folder))
    config = resumed_config(folder, None, overrides or {})
    with held(folder):
        tasks = env_spec(config.env, config.rollout).task_source("train", seed=config.seed)
        checkpoint = check_kept(folder, config, tasks)
        if moved := schedule_moved(folder, config.steps, config.trainer.schedule):
            log.warning("%s", moved)
        replace_text(folder / MARK, dump_record(config, folder))
        with (
            recorded_end(folder, "train", is_new=False),
            Run.opened(
                config,
                folder,
                model_dir=model_folder(config.model, config.env.id),
                begin=lambda log: begin(
                    folder, log, checkpoint, num_ranks=1, num_steps=config.steps
                ),
            ) as run,
        ):
            yield run


@contextmanager
def temporary(
    config: Config | Mapping[str, Any] | Path | str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Generator[Run]:
    """Begin a run whose folder is removed in the end; see `new`."""
    with tempfile.TemporaryDirectory(prefix="arl-run-") as name:
        folder = Path(name) / Path(name).name  # a name of its own, for its weights folder
        with new(config, overrides={**(overrides or {}), "run": str(folder)}) as run:
            yield run
