"""The export of recorded episodes as supervised data: one JSON object a line, with chat messages or
exact tokens.

`messages` and `tools` are those of the episode's last request and its reply, in OpenAI's format,
except that the arguments of tool calls are objects, as chat templates of Hugging Face expect. An
episode that forked (its agent rewrote history, or held several conversations) gives its last
conversation alone; the form `tokens` has every conversation that was recorded.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentgym_rl.config import load_config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.task import Split, Task
from agentgym_rl.core.trajectory import IGNORED, Row, Trajectory
from agentgym_rl.runtime.atomic_file import new_file
from agentgym_rl.storage.episode_reader import EpisodeReader
from agentgym_rl.storage.run_folder import config_of

Form = Literal["messages", "tokens"]
_ROUNDING = 1e-9
"""The tolerance of `min_reward`, since rewards are sums of steps' rewards."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The selection of episodes that become data, and their form."""

    form: Form = "messages"
    min_reward: float | None = None
    split: Split | None = None

    def refusal(self, episode: Trajectory, task: Task) -> str:
        """Return the reason why the episode is left out; "" if it is not."""
        if not episode.outcome.trains:
            return episode.outcome.value
        if self.split is not None and task.split != self.split:
            return f"split {task.split}"
        if self.min_reward is not None and episode.reward < self.min_reward - _ROUNDING:
            return "reward"
        if self.form == "messages":
            return "" if episode.messages else "no messages"
        return "" if episode.num_tokens else "no tokens"


def export_sft(
    folder: Path,
    out: Path,
    wanted: Wanted,
    *,
    on_progress: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Write the episodes of a run or an evaluation to `out`; return the JSON of `arl export`.

    The run in `folder` is only read, finished or not. `out` appears once it is complete.

    Raises:
        ConfigError: no run or evaluation in `folder`, a log that cannot be read, no episode that
            fits, or `out` exists.
    """
    config = load_config(config_of(folder, f"arl export {folder}"))
    with contextlib.closing(EpisodeReader(folder / "episodes.db")) as reader:
        counts = _write(_recorded(reader, on_progress), out, wanted, config.env.id, str(folder))
    return {"out": str(out), **counts.report()}


def export_solutions(
    episodes: Iterable[tuple[Trajectory, Task]], out: Path, wanted: Wanted, *, env_id: str
) -> dict[str, Any]:
    """Write the episodes of an environment's oracle to `out`; return the JSON of `arl export`, in
    which `failed` names the first of those left out. `out` appears once it is complete.

    Raises:
        ConfigError: no episode fits, or `out` exists.
    """
    counts = _write(episodes, out, wanted, env_id, f"the oracle of {env_id}")
    return {"out": str(out), **counts.report(), "failed": counts.failed}


def _recorded(
    reader: EpisodeReader, on_progress: Callable[[int], None]
) -> Iterator[tuple[Trajectory, Task]]:
    for name in reader.episode_ids(untrained=True):
        episode = reader.trajectory(name)
        on_progress(1)
        yield episode, reader.task(episode.task_id)


def _write(
    episodes: Iterable[tuple[Trajectory, Task]], out: Path, wanted: Wanted, env_id: str, source: str
) -> _Counts:
    counts = _Counts()
    with new_file(out, said=f"--out {out}") as file:
        for episode, task in episodes:
            if why := wanted.refusal(episode, task):
                counts.leave_out(episode, why)
                continue
            about = _about(episode, task, env_id)
            lines = [line | about for line in _lines(episode, wanted.form)]
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            counts.add(episode, task, lines=len(lines))
        if not counts.episodes:
            left_out = dict(counts.left_out) or "none is finished yet"
            named = f"; {counts.failed[0]}" if counts.failed else ""
            raise ConfigError(f"{source}: no episode matches; left out: {left_out}{named}")
    return counts


_NAMED = 5
"""The number of failed episodes that are named."""


@dataclass(slots=True)
class _Counts:
    """The counts of episodes that were written, and of those that were left out."""

    episodes: int = 0
    lines: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    """The number of episodes left out for each reason."""
    forked: int = 0
    splits: Counter[str] = field(default_factory=Counter[str])
    failed: list[str] = field(default_factory=list[str])
    """The first episodes that failed or earned too little, each with its reason."""

    def leave_out(self, episode: Trajectory, why: str) -> None:
        """Count an episode that does not become data."""
        self.left_out[why] += 1
        if len(self.failed) < _NAMED and (why == "reward" or episode.error):
            said = episode.error or f"reward {episode.reward:g}"
            verdict = f" ({episode.verdict})" if episode.verdict and not episode.error else ""
            self.failed.append(f"task {episode.task_id}: {said}{verdict}")

    def add(self, episode: Trajectory, task: Task, *, lines: int) -> None:
        """Count an episode that became `lines` lines."""
        self.episodes += 1
        self.lines += lines
        self.forked += episode.metrics.get("forks", 0.0) > 0
        self.splits[task.split] += 1

    def report(self) -> dict[str, Any]:
        """Return the counts for `arl export --json`."""
        return {
            "episodes": self.episodes,
            "lines": self.lines,
            "left_out": dict(self.left_out),
            "forked": self.forked,
            "splits": dict(self.splits),
        }


def _lines(episode: Trajectory, form: Form) -> Iterator[dict[str, Any]]:
    if form == "tokens":
        yield from (_tokens(row) for row in episode.rows)
    else:
        messages = [_message(message) for message in episode.messages]
        yield {"messages": messages, "tools": list(episode.tools)}


def _tokens(row: Row) -> dict[str, Any]:
    """Return `input_ids`, and `labels` that equal them on sampled tokens and are IGNORED elsewhere.

    A turn that is shared by forked conversations is labelled in each of them.
    """
    labels = np.where(row.turn_ids >= 0, row.tokens, IGNORED)
    return {"input_ids": row.tokens.tolist(), "labels": labels.tolist()}


def _about(episode: Trajectory, task: Task, env_id: str) -> dict[str, Any]:
    versions = {int(v) for row in episode.rows for v in row.policy_versions if v >= 0}
    return {
        "reward": episode.reward,
        "task_id": episode.task_id,
        "env": episode.env_id or env_id,
        "split": task.split,
        "episode_id": episode.episode_id,
        "policy_versions": sorted(versions),
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without null values (except its content), with tool arguments as objects."""
    kept = {key: value for key, value in message.items() if value is not None or key == "content"}
    if calls := kept.pop("tool_calls", None):
        kept["tool_calls"] = [_call(call) for call in calls]
    return kept


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call with its name first: a template that writes calls by `tojson` teaches their
    order, and clients' SDKs sort the keys of calls."""
    function = dict(call.get("function") or {})
    with contextlib.suppress(ValueError, TypeError):  # malformed arguments stay a string
        arguments = json.loads(function["arguments"])
        function["arguments"] = arguments if isinstance(arguments, dict) else function["arguments"]
    named = {"name": function.pop("name", ""), **function}
    return {"id": call.get("id", ""), "type": "function", **call, "function": named}
