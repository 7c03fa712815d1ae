"""The trackers of a run. A tracker that fails is left out from then on; the run goes on."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ConfigError

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """A receiver of numbers by name; a step may come in several parts, steps never go back."""

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


def open_trackers(config: Config, run_dir: Path, *, settings: Mapping[str, Any]) -> Trackers:
    """Open the trackers of `logging.trackers`, for a run named like its folder.

    Args:
        settings: The configuration that the trackers show.

    Raises:
        ConfigError: the package of a tracker is not installed, or the tracker cannot be opened.
    """
    opened: dict[str, Tracker] = {}
    for name in config.logging.trackers:
        try:
            with _stdout_kept():
                opened[name] = _kind(name)(run_dir, config.logging.project, settings)
        except Exception as error:
            Trackers(opened).close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"logging.trackers: {name} cannot be opened: {error}") from error
    return Trackers(opened)


def _kind(name: str) -> Callable[[Path, str, Mapping[str, Any]], Tracker]:
    try:
        return import_module(f".{name}_tracker", __package__).open_tracker
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ConfigError(
            f"logging.trackers has {name}, whose package is not installed: "
            f"pip install 'agentgym-rl[{name}]'"
        ) from error


@contextlib.contextmanager
def _stdout_kept() -> Iterator[None]:
    """Redirect the output of trackers to stderr: stdout is for the command's result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
