"""The attributes that results of `train` and `evaluate` have beside their fields: the held-out
reward in one form, `_repr_html_`, `plot`, `episodes`.

Each function here is a member of the group `agentgym_rl.results`: it gets a result and returns the
value of the attribute.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_rl.core import ConfigError, Trajectory
from agentgym_rl.evaluate import EvalResult
from agentgym_rl.run import TrainResult
from agentgym_rl.storage import EPISODES, EpisodeReader

from .charts import REWARD, curve_figure, curve_svg, rewards_figure
from .frames import episodes_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AnyResult = TrainResult | EvalResult


def line_of(result: AnyResult) -> str:
    """Return the attribute `line`, the text of a result's repr."""
    evaluated = _held_out(result)
    if isinstance(result, TrainResult):
        return f"{result.run}: {result.state}, {result.steps} steps, {evaluated}"
    return f"{result.name or 'a model'}: {result.num_tasks} tasks, {evaluated}"


def name_of(result: TrainResult) -> str:
    """Return the attribute `name` of a run: that of its folder."""
    return Path(result.run).name


def reward_of(result: TrainResult) -> float | None:
    """Return the attribute `reward` of a run: the held-out reward of the last evaluated version;
    None: none was evaluated."""
    return _last(result).get("eval/reward")


def interval_of(result: TrainResult) -> tuple[float, float] | None:
    """Return the attribute `reward_ci` of a run: the 95 % confidence interval of `reward`."""
    low, high = (_last(result).get(f"eval/reward_{end}") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def state_of(result: EvalResult) -> str:
    """Return the attribute `state` of an evaluation, which has ended."""
    return "finished"


def steps_of(result: EvalResult) -> int:
    """Return the attribute `steps` of an evaluation: the number of batches after which the model
    was evaluated, as far as known."""
    return max(result.versions, default=0)


def _last(result: TrainResult) -> Mapping[str, Any]:
    """Return the last evaluation that has ended."""
    done = [it for it in result.evaluations if it.get("eval/reward") is not None]
    return done[-1] if done else {}


def _held_out(result: AnyResult) -> str:
    """Return the held-out reward as text, with its interval."""
    reward, ci = result.reward, result.reward_ci
    interval = f" [{ci[0]:.3f}, {ci[1]:.3f}]" if ci else ""
    return "not evaluated" if reward is None else f"held-out reward {reward:.3f}{interval}"


def html_of(result: AnyResult) -> Callable[[], str]:
    """Return the method `_repr_html_`, by which notebooks show a result as a table."""

    def html() -> str:
        rows = [
            f"<tr><th>{escape(name)}</th><td>{escape(it)}</td></tr>" for name, it in _facts(result)
        ]
        curve = curve_svg(_rewards(result)) if isinstance(result, TrainResult) else ""
        return f"<table>{''.join(rows)}</table>{curve}"

    return html


def plot_of(result: AnyResult) -> Callable[..., Figure]:
    """Return the method `plot`."""

    def plot(*metrics: str) -> Figure:
        """Return a figure: the curves of metrics over the batches of a run, by default that of the
        reward; the rewards of the tasks of an evaluation.

        Raises:
            ConfigError: the run's folder is not there, or has no such metric.
        """
        if isinstance(result, EvalResult):
            return rewards_figure(result.rewards, mean=result.reward, title=result.name)
        evaluated = {
            int(it["version"]): float(it["eval/reward"])  # pyright: ignore[reportArgumentType]
            for it in result.evaluations
            if it.get("eval/reward") is not None
        }
        shown = metrics or (REWARD,)
        return curve_figure(_history(result), evaluated, metrics=shown, title=result.name)

    return plot


def episodes_of(result: AnyResult) -> Any:
    """Return the attribute `episodes`, a data frame: of a run those that it logged, which leaves
    out its evaluations.

    Raises:
        ConfigError: pandas is not installed, or the episodes are not there.
    """
    if isinstance(result, TrainResult):
        return episodes_frame(_logged(Path(result.run)))
    if not result.played:
        raise ConfigError(
            "this evaluation has no episodes: those of a run are in the folder evaluations/ of the "
            "run; evaluate() returns its own"
        )
    return episodes_frame(result.played)


def _logged(folder: Path) -> Iterator[Trajectory]:
    with contextlib.closing(EpisodeReader(_there(folder / EPISODES))) as reader:
        for name in reader.episode_ids(untrained=True):
            yield reader.trajectory(name)


def _history(result: TrainResult) -> list[Mapping[str, float | None]]:
    file = _there(Path(result.run) / "metrics.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _there(file: Path) -> Path:
    """Return a file of a run's folder.

    Raises:
        ConfigError: it is not there.
    """
    if not file.exists():
        raise ConfigError(
            f"{file} is not there: the run's folder was moved or removed, or the program has "
            "changed its working folder since (`result.run` is relative to it)"
        )
    return file


def _rewards(result: TrainResult) -> list[float]:
    """Return the mean reward of each batch; none if the run's folder is gone."""
    try:
        history = _history(result)
    except ConfigError:
        return []
    return [value for it in history if (value := it.get(REWARD)) is not None]


def _facts(result: AnyResult) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of a result."""
    yield "name", result.name
    yield "state", result.state
    yield "steps", f"{result.steps:,}"
    yield "held-out", _held_out(result)
    if isinstance(result, TrainResult):
        before = "-" if result.eval_before is None else f"{result.eval_before:.3f}"
        yield "before training", before
    else:
        yield "tasks", f"{result.num_tasks:,}"
        yield from ((f"pass@{k}", f"{it.value:.3f}") for k, it in result.pass_at.items())
    yield "episodes", f"{result.num_episodes:,}"
    yield "seconds", f"{result.duration_s:.0f}"
