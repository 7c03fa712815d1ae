"""The experiment trackers of a run's metrics: TensorBoard, Weights & Biases, trackio, and trackers
of other packages and users.

`metrics.jsonl` is the record; a tracker is a copy of it, to be viewed with the tracker's tools. A
tracker that fails gets no more metrics; the run continues. `logging.trackers` has names of the
entry points `agentgym_rl.trackers`, or `module:function`. Each is a function

    def open_tracker(run_dir: Path, project: str, settings: Mapping[str, Any]) -> Tracker

that imports the tracker's package; a run is named like its folder.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError, install_command, is_function_path, load_extension
from agentgym_rl.runtime import import_function

from .keys import GROUP, TrackerKeys

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """A receiver of numbers by name. A step may be logged in several parts; step numbers never
    decrease."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """The trackers of a run, by name.

    A tracker is a copy of `metrics.jsonl`, so its failure (a server that is gone, a full disk) is
    logged once and ends that tracker, never the run.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers of a step; those that are not finite are left out."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._each(lambda tracker: tracker.log(step, finite))

    def close(self) -> None:
        """Write all pending metrics, and close the trackers; idempotent."""
        self._each(lambda tracker: tracker.close())
        self._trackers = {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                with _stdout_kept():
                    act(tracker)
            except Exception as error:  # foreign code, and its network
                log.warning("%s gets no more metrics of this run: %r", name, error)
                del self._trackers[name]


class _Logged:
    """A tracker that wraps a run with `log` and `finish`, like that of wandb and compatible
    packages."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class TensorBoard:
    """The tracker for TensorBoard: it writes event files into the run's folder. `tensorboard
    --logdir runs` shows all runs.

    https://www.tensorflow.org/tensorboard
    """

    def __init__(self, run_dir: Path, project: str, settings: Mapping[str, Any]) -> None:
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingTypeStubs]: has none

        self._writer: Any = Writer(str(run_dir / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_wandb(run_dir: Path, project: str, settings: Mapping[str, Any]) -> Tracker:
    """Open a run of Weights & Biases. wandb itself reads WANDB_API_KEY, WANDB_MODE=offline etc.

    https://docs.wandb.ai/ref/python
    """
    import wandb

    name = run_dir.name
    run = wandb.init(project=project, name=name, dir=run_dir, config=dict(settings))
    # An evaluation ends several steps after the version that it evaluates.
    run.define_metric("eval/version")
    run.define_metric("eval/*", step_metric="eval/version")
    return _Logged(run)


def open_trackio(run_dir: Path, project: str, settings: Mapping[str, Any]) -> Tracker:
    """Open a run of trackio: a database in the folder TRACKIO_DIR; `trackio show` displays it.

    https://huggingface.co/docs/trackio
    """
    import trackio

    return _Logged(
        cast("Any", trackio).init(  # types some of its parameters only
            project,
            name=run_dir.name,
            config=dict(settings),
            embed=False,  # no page inside a notebook
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
    )


def open_trackers(config: Config, run_dir: Path) -> Trackers:
    """Open the trackers of `logging.trackers`, which show the configuration, for a run named like
    its folder.

    Raises:
        ConfigError: the package of a tracker is not installed, or the tracker cannot be opened.
    """
    keys = config.logging.part(TrackerKeys)
    settings = config.model_dump(mode="json") if keys.trackers else {}
    opened: dict[str, Tracker] = {}
    for name in keys.trackers:
        try:
            with _stdout_kept():
                opened[name] = _opener(name)(run_dir, keys.project, settings)
                _check(opened[name])
        except Exception as error:
            opened.pop(name, None)
            Trackers(opened).close()
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                raise ConfigError(
                    f"logging.trackers has {name}, whose package is not installed: "
                    f"{install_command(name)}"
                ) from error
            raise ConfigError(f"logging.trackers: {name} cannot be opened: {error}") from error
    return Trackers(opened)


def _opener(name: str) -> Callable[[Path, str, Mapping[str, Any]], Tracker]:
    if is_function_path(name):
        return import_function("logging.trackers", name, gets="run_dir, project, settings")
    return load_extension(GROUP, name)


def _check(tracker: object) -> None:
    """Raise TypeError if `tracker` is not a tracker."""
    for method in ("log", "close"):
        if not callable(getattr(tracker, method, None)):
            raise TypeError(
                f"it made a {type(tracker).__name__} without a method {method}; expected log(step, "
                "metrics) and close()"
            )


@contextlib.contextmanager
def _stdout_kept() -> Generator[None]:
    """Redirect the output of trackers to stderr: stdout is for the command's result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
