"""The text of a plan, 80 columns wide, and its picture: the trainer's phases over time, and the
configurations that were tried."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from .rates import Gpu
from .search import Tried
from .simulation import Prediction
from .trainer import TrainerMemory

_COLORS = {
    "rollout_wait": "#dddddd",
    "proximal": "#9ecae1",
    "reference": "#c6dbef",
    "teacher": "#c6dbef",
    "forward_backward": "#1f77b4",
    "optimizer": "#08306b",
    "weight_sync": "#d62728",
}
_SHOWN = 12
"""The number of batches in the picture, the last ones."""


def plot_plan(
    path: Path, prediction: Prediction, tried: Sequence[Tried], best: Tried | None
) -> None:
    """Draw the trainer's batches above the configurations that were tried."""
    from matplotlib.figure import Figure  # takes 0.3 s: import it only for a picture

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


_WIDTH = 80


def prediction_text(prediction: Prediction) -> str:
    """Return the prediction for a run as text."""
    p = prediction
    rows = [
        ("episodes trained", f"{_figures(p.episodes_per_s)}/s"),
        ("tokens trained", f"{_figures(p.trained_tokens_per_s)}/s"),
        ("tokens sampled", f"{_figures(p.generated_tokens_per_s)}/s"),
        ("a batch takes", f"{_figures(p.step_s)} s"),
        ("  the trainer waits", f"{p.trainer_idle:.0%}"),
        ("  and publishes weights for", f"{_figures(p.weight_sync_s)} s"),
        ("staleness", f"{p.staleness_mean:.2f} on average, {p.staleness_max:.0f} at most"),
        ("groups dropped as too old", f"{p.dropped_groups}"),
        ("groups played at once, at most", f"{p.max_concurrent:.3g}"),
        ("engines idle", f"{p.engine_idle:.0%}"),
        ("  busy with prompts", f"{p.engine_prefill:.0%}"),
        ("  paused for new weights", f"{p.engine_paused:.1%}"),
        ("  requests at a time, each", f"{p.requests_per_engine:.1f}"),
        ("tokens sampled while training", f"{p.overlap:.0%}"),
    ]
    if p.tests_s:
        model_s = p.episode_s - p.in_line_s - p.sandbox_start_s - p.tools_s - p.tests_s
        rows += [
            ("an episode takes", f"{_figures(p.episode_s)} s"),
            ("  of it the model", f"{_figures(model_s)} s"),
            ("  tools, in a sandbox", f"{_figures(p.tools_s)} s"),
            ("  the tests, in another", f"{_figures(p.tests_s)} s"),
            ("  starts of both", f"{_figures(p.sandbox_start_s)} s"),
            ("  in line for sandboxes", f"{_figures(p.in_line_s)} s"),
        ]
    if p.rollout_busy:
        rows.append(("rollout process busy", f"{p.rollout_busy:.0%}"))
    if p.preemptions:
        rows.append(("requests put back (KV memory full)", f"{p.preemptions}"))
    lines = [f"  {name:<36}{value}" for name, value in rows]
    for note in p.notes:
        lines += textwrap.wrap(
            f"note: {note}", _WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return "\n".join(lines)


def memory_text(memory: TrainerMemory | None, *, gpu: Gpu | None) -> str:
    """Return the memory of the trainer as text; `gpu`: the one that each rank has, if known."""
    if memory is None:
        return "The trainer's memory is not known: its model is not on this machine."
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "state of the optimizer": memory.optimizer,
        "a reference that moves": memory.moving,
        "frozen models: reference, teachers": memory.frozen,
        "copies for trainer.layer_metrics": memory.noted,
        "a critic, and its optimizer": memory.critic,
    }
    lines = [f"  {name:<36}{_gigabytes(size)}" for name, size in parts.items() if size]
    lines.append(f"  {'each rank':<36}{_gigabytes(memory.rank)}, and its activations")
    if gpu is not None and memory.rank > gpu.gb * 1e9:
        note = (
            f"note: that does not fit {gpu.gb:g} GB: use more trainer.num_ranks, trainer.optimizer "
            "adamw8bit, trainer.cpu_offload or lora.rank"
        )
        lines += textwrap.wrap(note, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(["The trainer's memory, all ranks of a copy of the model together:", *lines])


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def search_text(tried: Sequence[Tried], best: Tried) -> str:
    """Return a line for each configuration that was tried, and the recommendation."""
    head = ("varied", "engines", "ranks", "stale", "batch", "at once")
    head += ("episodes/s", "stale", "trainer", "engines")
    lines = ["                                          |  result            idle", _line(head)]
    for each in tried:
        values, p = dict(each.changes), each.prediction
        if values.pop("rollout.concurrency") == "adaptive":
            values["rollout.max_concurrent"] = "adapted"
        lines.append(
            _line(
                (
                    ("*" if each is best else "") + each.axis,
                    *(str(value) for value in values.values()),
                    _figures(p.episodes_per_s),
                    f"{p.staleness_mean:.1f}",
                    f"{p.trainer_idle:.0%}",
                    f"{p.engine_idle:.0%}",
                )
            )
        )
    return "\n".join([*lines, "", *_recommended(tried[0], best)])


def _recommended(first: Tried, best: Tried) -> list[str]:
    if best is first:
        return ["Nothing that was tried is worth a change."]
    gain = best.prediction.episodes_per_s / first.prediction.episodes_per_s - 1
    flags = [
        f"--{key}={value}" for key, value in best.changes.items() if first.changes[key] != value
    ]
    text = f"Recommended, {gain:+.0%}: {' '.join(flags)}"
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _line(cells: Sequence[str]) -> str:
    widths = (-12, 8, 6, 6, 6, 8, 12, 6, 8, 8)
    return "".join(
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, width in zip(cells, widths, strict=True)
    ).rstrip()


def _figures(value: float) -> str:
    """Format a number with three significant figures and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
