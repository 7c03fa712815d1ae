"""The runs on this machine (`agentgym_rl.runs`): those in their folders, and new ones for loops of
one's own.

>>> from agentgym_rl import runs
>>> with runs.temporary(overrides={"env.id": "math", "steps": 3}) as run:
...     run.config.steps, run.config.trainer.learning_rate  # the one that fits the model
(3, 0.0003)
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, load_config
from agentgym_rl.models import model_folder, resolve_paths, with_model_defaults
from agentgym_rl.storage import RunSummary, find_runs
from agentgym_rl.storage.run_files import Run

__all__ = ["Run", "RunSummary", "find", "new", "temporary"]


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
    with Run.opened(
        with_model_defaults(resolve_paths(loaded), model_dir), model_dir=model_dir, kind=kind
    ) as run:
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
