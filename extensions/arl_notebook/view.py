"""The view of a run in a notebook: HTML in the output of the cell, replaced as the run goes on. It
needs IPython alone, no widgets.

A cell that is interrupted ends with one line: what was interrupted, and how to continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import Any

from agentgym_rl.config import LoggingConfig
from agentgym_rl.report import Progress, eval_line
from agentgym_rl.run import LivePart, TrainingRun
from agentgym_rl.storage import EvalRecord
from agentgym_rl.storage.run_folder import shown

from .charts import REWARD, curve_svg

_EVERY_S = 0.5
"""The least time between two updates, in seconds: notebooks keep each of them for a while."""


class Interrupted(asyncio.CancelledError):
    """The cancellation of a cell, which IPython shows as one line in place of the traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class NotebookView(Progress):
    """The view of a run or an evaluation."""

    def __init__(self, total_steps: int) -> None:
        self.run_dir: Path | None = None
        """The folder of the run, once it has one."""
        self._total, self._begun_s, self._shown_s = total_steps, time.monotonic(), 0.0
        self._phase, self._evaluated = "starting", ""
        self._rewards: list[float] = []
        self._handle: Any = _ipython().display(self._html(), display_id=True)

    @property
    def done(self) -> int:
        """Return the number of batches that were trained while this view was open."""
        return len(self._rewards)

    def phase(self, text: str) -> None:
        self._phase = text
        self._update()

    def evaluating(self, done: int, total: int) -> None:
        self._phase = f"evaluated {done} of {total} held-out episodes"
        self._update(now=done == total)

    def evaluated(self, record: EvalRecord) -> None:
        self._evaluated = eval_line(record)
        self._update(now=True)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rewards.append(metrics[REWARD])
        self._phase = f"batch {step + 1} of {self._total}, reward {metrics[REWARD]:.2f}"
        self._update()

    def close(self) -> None:
        self._update(now=True)

    def end(self, text: str) -> None:
        """Show how the run has ended."""
        self._phase = text
        self._update(now=True)

    def _update(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if now or moment - self._shown_s >= _EVERY_S:
            self._shown_s = moment
            self._handle.update(self._html())

    def _html(self) -> Any:
        bar = f'<progress max="{self._total}" value="{self.done}"></progress> ' * bool(self._total)
        lines = [f"{bar}{time.monotonic() - self._begun_s:.0f} s · {escape(self._phase)}"]
        lines += [escape(self._evaluated)] if self._evaluated else []
        return _ipython().HTML(f"<div>{'<br>'.join(lines)}</div>{curve_svg(self._rewards)}")


class RunFolder(LivePart):
    """The part of a run that makes its folder known to the view."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        if isinstance(run.progress, NotebookView):
            run.progress.run_dir = run.run_dir


def open_view(
    config: LoggingConfig, total_steps: int
) -> AbstractContextManager[NotebookView] | None:
    """Return the view as a context; None if this is not the cell of a notebook."""
    return _opened(total_steps) if in_notebook() else None


def in_notebook() -> bool:
    """Return whether the program is a notebook: an IPython shell with a kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None  # pyright: ignore[reportUnknownVariableType]
    return getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def _opened(total_steps: int) -> Iterator[NotebookView]:
    view = NotebookView(total_steps)
    try:
        yield view
    except asyncio.CancelledError:
        view.end(
            f"interrupted, after {view.done} of {total_steps} batches"
            if total_steps
            else "interrupted"
        )
        raise Interrupted(_line(view)) from None
    except BaseException:
        view.end("failed: the error is below")
        raise
    view.end("done")


def _ipython() -> Any:
    """Return the module of displays, whose package need not be installed."""
    return importlib.import_module("IPython.display")


def _line(view: NotebookView) -> str:
    """Return the line of an interrupted cell."""
    if view.run_dir is None:
        return "Interrupted."
    return f"Interrupted. Continue with: await train(resume={shown(view.run_dir)!r})"
