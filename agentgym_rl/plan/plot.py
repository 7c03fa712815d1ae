"""A plan as a picture: when the trainer does what, and what else was tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .prediction import Prediction
from .search import Tried

_COLORS = {
    "rollout_wait": "#dddddd",
    "proximal": "#9ecae1",
    "reference": "#c6dbef",
    "forward_backward": "#1f77b4",
    "optimizer": "#08306b",
    "weight_sync": "#d62728",
}
_SHOWN = 12
"""Batches, the last ones."""


def plot_plan(
    path: Path, prediction: Prediction, tried: Sequence[Tried], best: Tried | None
) -> None:
    """Draw the trainer's batches above the configurations that were tried."""
    from matplotlib.figure import Figure  # 0.3 s: only when a picture is wanted

    figure = Figure(figsize=(8, 4 + 0.25 * len(tried)), layout="constrained")
    if len(tried) > 1:
        top, bottom = figure.subplots(2, 1, height_ratios=[2.5, 1 + 0.25 * len(tried)])
    else:
        top, bottom = figure.subplots(), None
    steps = list(enumerate(prediction.steps))[-_SHOWN:]
    named: set[str] = set()
    for number, step in steps:
        for phase, start, end in step.intervals:
            label = phase if phase not in named else None
            named.add(phase)
            top.barh(number, end - start, left=start, color=_COLORS[phase], label=label, height=0.8)
    top.set(
        xlabel="virtual time, s",
        ylabel="batch",
        title=f"{prediction.episodes_per_s:.3g} episodes/s, staleness "
        f"{prediction.staleness_mean:.2f}, trainer idle {prediction.trainer_idle:.0%}, "
        f"engines idle {prediction.engine_idle:.0%}",
    )
    top.invert_yaxis()
    top.legend(fontsize="small", ncols=3)
    if bottom is not None:
        labels = [_label(each) for each in tried]
        speeds = [each.prediction.episodes_per_s for each in tried]
        colors = ["#2ca02c" if each is best else "#7f7f7f" for each in tried]
        bottom.barh(range(len(tried)), speeds, color=colors)
        bottom.set_yticks(range(len(tried)), labels, fontsize="small")
        bottom.invert_yaxis()
        bottom.set(xlabel="episodes/s (green: recommended)")
        bottom.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)


def _label(tried: Tried) -> str:
    values = list(tried.changes.values())
    return "{} engines : {} ranks, η {}, batch {}, {} at once".format(*values)
