"""The progress of `arl train`: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from agentgym_rl.config import LoggingConfig
from agentgym_rl.core import extension_names, load_extension
from agentgym_rl.storage import EvalRecord

from .evaluation import eval_line
from .figures import env_rewards, step_line

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY_S = 2.0


class Progress(Protocol):
    """A receiver of a run's events, which may display them. All times are wall-clock seconds."""

    def phase(self, text: str) -> None:
        """Report that a new phase begins ("starting the engine")."""

    def evaluating(self, done: int, total: int) -> None:
        """Report the evaluation episodes finished so far."""

    def evaluated(self, record: EvalRecord) -> None:
        """Report that the evaluation of a version has ended."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report that a training step has finished."""

    def close(self) -> None:
        """Restore the terminal; idempotent."""


VIEWS = "views"
OpenView = Callable[[LoggingConfig, int], AbstractContextManager[Progress] | None]
"""A member of the group of views: opens a view for this number of steps; None: it does not apply
here, as that of notebooks in a script."""


def make_progress(style: Literal["auto", "rich", "plain", "none"], *, total_steps: int) -> Progress:
    """Return the progress view for this stderr; only results go to stdout."""
    if style == "auto":
        style = "rich" if sys.stderr.isatty() else "plain"
    if style == "none":
        return _Silent()
    return _Rich(total_steps) if style == "rich" else _Plain(total_steps)


_run: ContextVar[str] = ContextVar("_run", default="")
_live: list[str] = []


@contextmanager
def named(run: str) -> Iterator[None]:
    """Name the run of this task and of those that it starts, for a context: its lines begin with
    the name while other runs are live in this process."""
    _run.set(run)
    _live.append(run)
    try:
        yield
    finally:
        _live.remove(run)


@contextmanager
def reporting_to(
    progress: Progress | None, config: LoggingConfig, *, total_steps: int
) -> Iterator[Progress]:
    """Yield `progress`, which its owner closes; None: yield a view as configured, which is closed
    at the end.

    "auto" then means a view of an extension that applies, or plain lines: a live view replaces
    sys.stdout and sys.stderr, which belong to the calling program.
    """
    if progress is not None:
        yield progress
        return
    for name in extension_names(VIEWS) if config.progress == "auto" else ():
        open_view: OpenView = load_extension(VIEWS, name)
        if (view := open_view(config, total_steps)) is not None:
            with view as progress:
                yield progress
            return
    style = "plain" if config.progress == "auto" else config.progress
    with closing(make_progress(style, total_steps=total_steps)) as progress:
        yield progress


class _Silent(Progress):
    """A receiver that displays nothing."""


class _Plain:
    """A progress view of one line per event, readable at 80 columns and without color."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._start = time.monotonic()
        self._left = _TimeLeft(total_steps)
        self._said = 0.0

    def phase(self, text: str) -> None:
        self._say(text)

    def evaluating(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._said >= _PLAIN_EVERY_S:
            self._say(f"  evaluated {done}/{total}")

    def evaluated(self, record: EvalRecord) -> None:
        self._say(eval_line(record))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        left = self._left.after(step)
        overlap = metrics.get("overlap", float("nan"))
        # 0 if all tokens of the batch were sampled before the last one was trained
        speed = metrics["throughput/generated_tokens_per_s"]
        self._say(
            f"step {step:>3} {(step + 1) / self._total:>4.0%}  reward {metrics['reward/mean']:.2f}"
            f"  stale {metrics['staleness/mean']:.1f}/{metrics['staleness/max']:.0f}"
            f" tok/s {f'{speed:.0f}' if speed else '-':>5}"
            f" overlap {'  - ' if overlap != overlap else f'{overlap:4.0%}'}"
            f" {left}"
        )
        if envs := step_line(metrics, width=60):
            self._say(f"{'':>10}{envs}")

    def close(self) -> None: ...

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        name = f"{_run.get()} ".lstrip() if len(_live) > 1 else ""
        print(f"{name}{self._said - self._start:5.1f}s {text}", file=sys.stderr, flush=True)


class _Rich:
    """A live table with a sparkline of the reward."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._start = time.monotonic()
        self._left = _TimeLeft(total_steps)
        self._phase = "starting"
        self._rewards: list[float] = []
        self._metrics: Mapping[str, float] = {}
        self._evaluated = ""
        self._live = Live(
            get_renderable=self._view, console=Console(stderr=True), refresh_per_second=4
        )
        self._live.start()

    def phase(self, text: str) -> None:
        self._phase = text

    def evaluating(self, done: int, total: int) -> None:
        self._phase = f"evaluating held-out tasks: {done}/{total}"

    def evaluated(self, record: EvalRecord) -> None:
        self._evaluated = eval_line(record)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rewards.append(metrics["reward/mean"])
        self._metrics = metrics
        done = f"{step + 1} of {self._total} done"
        self._phase = f"step {step}, {done}  {self._left.after(step)}"

    def close(self) -> None:
        self._live.stop()

    def _view(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_row("time", f"{time.monotonic() - self._start:.0f} s")
        table.add_row("now", self._phase)
        if self._evaluated:
            table.add_row("held-out", self._evaluated)
        if self._rewards:
            table.add_row("reward", f"{sparkline(self._rewards[-60:])} {self._rewards[-1]:.2f}")
            for env_id, reward in env_rewards(self._metrics).items():
                table.add_row("", f"{reward:.2f}  {env_id}")
            for name, label, form in _SHOWN:
                if name in self._metrics:
                    table.add_row(label, form.format(self._metrics[name]))
        return table


_SHOWN = (
    ("staleness/mean", "staleness", "{:.2f} versions (mean of the batch)"),
    ("staleness/max", "", "{:.0f} (oldest group)"),
    ("throughput/generated_tokens_per_s", "sampled", "{:,.0f} tokens/s"),
    ("throughput/trained_tokens_per_s", "trained", "{:,.0f} tokens/s"),
    ("trainer/idle_share", "idle", "{:.0%} of the ranks' passes, waiting for the fullest"),
    ("overlap", "overlap", "{:.0%} of tokens sampled while the trainer computed"),
)


def sparkline(values: list[float]) -> str:
    """Draw values as blocks between 0 and 1 (widened to fit)."""
    low, high = min([0.0, *values]), max([1.0, *values])
    scale = (len(_BLOCKS) - 1) / ((high - low) or 1.0)
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)


class _TimeLeft:
    """The remaining time of a run, estimated from the pace of this process only: the first steps
    of a resumed run were trained by an earlier process."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._first: tuple[int, float] | None = None
        """The first step that this process finished, and the time at which it finished."""

    def after(self, step: int) -> str:
        """Return "eta 12 s"; "" until the pace is known."""
        now = time.monotonic()
        if self._first is None or step <= self._first[0]:
            self._first = step, now
            return ""
        first, began_s = self._first
        return f"eta {(now - began_s) / (step - first) * (self._total - step - 1):.0f} s"
