"""The curves of a run: as SVG, which needs no package, and as figures of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from agentgym_rl.core import ConfigError, near_match

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 320.0, 60.0
REWARD = "reward/mean"


def curve_svg(values: Sequence[float]) -> str:
    """Return a line through the values, whose range includes 0 and 1; "" for fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(0.0, *values), max(1.0, *values)
    points = " ".join(
        f"{_WIDTH * place / (len(values) - 1):.1f},{_HEIGHT * (high - value) / (high - low):.1f}"
        for place, value in enumerate(values)
    )
    return (
        f'<svg viewBox="-2 -2 {_WIDTH + 4:.0f} {_HEIGHT + 4:.0f}" width="{_WIDTH:.0f}" role="img" '
        f'aria-label="reward of {len(values)} batches, the last {values[-1]:.2f}">'
        f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="2"/></svg>'
    )


def curve_figure(
    history: Sequence[Mapping[str, float | None]],
    held_out: Mapping[int, float],
    *,
    metrics: Sequence[str],
    title: str,
) -> Figure:
    """Return the curves of metrics over the batches of a run; that of the reward has the held-out
    rewards, by policy version.

    Raises:
        ConfigError: the run has no metric of that name.
    """
    figure = _figure(figsize=(7, 1 + 2.4 * len(metrics)), layout="constrained")
    for axes, name in zip(figure.subplots(len(metrics), squeeze=False)[:, 0], metrics, strict=True):
        values = [
            (step, value) for step, it in enumerate(history) if (value := it.get(name)) is not None
        ]
        if not values:
            known = sorted({key for it in history for key in it})
            near = near_match(name, known) or f"; it has {', '.join(known)}"
            raise ConfigError(f"the run has no metric {name!r}{near}")
        axes.plot(*zip(*values, strict=True), label=name)
        if name == REWARD and held_out:
            axes.plot(list(held_out), list(held_out.values()), "o", label="held-out reward")
        axes.set(ylabel=name)
        axes.legend()
        axes.grid(alpha=0.3)
        axes.set_xlabel("batch")
    figure.suptitle(title)
    return figure


def rewards_figure(rewards: Mapping[str, Sequence[float]], *, mean: float, title: str) -> Figure:
    """Return the curve of the mean rewards of tasks, from the worst to the best."""
    figure = _figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    means = sorted(sum(its) / len(its) for its in rewards.values())
    axes.plot(range(1, len(means) + 1), means, drawstyle="steps-mid", label="mean reward of a task")
    axes.axhline(mean, linestyle=":", label=f"mean {mean:.3f}")
    axes.set(xlabel="tasks, by their reward", ylabel="reward", title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def _figure(*, figsize: tuple[float, float], layout: Literal["constrained"]) -> Figure:
    """Return an empty figure, which notebooks show without pyplot."""
    from matplotlib.figure import Figure  # takes 0.3 s

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            image = io.BytesIO()
            self.savefig(image, format="png")
            return image.getvalue()

    return ShownFigure(figsize=figsize, layout=layout)
