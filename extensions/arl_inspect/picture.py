"""The picture of a run, `reward.png`: reward and staleness over its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgym_rl.run import LivePart

from .keys import PictureKeys


class Picture(LivePart):
    """The part of a run that draws the picture at its end."""

    def finish(self) -> None:
        run = self.run
        if not run.config.logging.part(PictureKeys).plot:
            return
        records = run.evaluations.records.read()
        rewards = {v: record.metrics.get("eval/reward") for v, record in records.items()}
        plot_reward(
            run.run_dir / "reward.png",
            run.controller.history,
            title=run.title,
            evaluations={v: reward for v, reward in rewards.items() if reward is not None},
        )


def plot_reward(
    path: Path,
    history: Sequence[Mapping[str, float]],
    *,
    title: str,
    evaluations: Mapping[int, float],
) -> None:
    """Draw reward and staleness over steps.

    Args:
        history: Metrics of each step, in order.
        evaluations: Held-out reward by policy version.
    """
    from matplotlib.figure import Figure  # takes 0.3 s: import it only for a picture

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    steps = range(len(history))
    means = [m["reward/mean"] for m in history]
    top.plot(steps, means, color="#1f77b4", alpha=0.45, label="training batches")
    top.plot(steps, _smooth(means), color="#1f77b4", label="mean of 5")
    if evaluations:
        top.plot(
            list(evaluations), list(evaluations.values()), "o", color="#d62728", label="held-out"
        )
        for version, reward in evaluations.items():
            where = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center"}
            top.annotate(f"{reward:.2f}", (version, reward), **where)
    top.set(ylabel="reward", title=title)
    top.legend(loc="lower right")
    top.grid(alpha=0.3)
    bottom.plot(steps, [m["staleness/mean"] for m in history], label="mean", color="#2ca02c")
    bottom.plot(steps, [m["staleness/max"] for m in history], ":", label="max", color="#2ca02c")
    bottom.set(xlabel="training batch = policy version", ylabel="staleness")
    bottom.legend(loc="lower right", ncols=2)
    bottom.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Return trailing means of at most `width` values."""
    return [
        sum(values[max(0, i - width + 1) : i + 1]) / min(width, i + 1) for i in range(len(values))
    ]
