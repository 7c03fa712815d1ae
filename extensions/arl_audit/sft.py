"""The export of recorded episodes as training data of other programs, one JSON object a line:
supervised data as chat messages or exact tokens, all or the best of each group; pairs for DPO; and
labelled episodes for KTO. The columns are those that TRL's trainers read.

`messages` and `tools` are those of the episode's last request and its reply, in OpenAI's format,
except that the arguments of tool calls are objects, as chat templates of Hugging Face expect. An
episode that forked (its agent rewrote history, or held several conversations) gives only its last
conversation; the form `tokens` has every recorded conversation.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, Row, Split, Task, Trajectory
from agentgym_rl.core.row import IGNORED
from agentgym_rl.runtime import new_file
from agentgym_rl.storage import EpisodeReader, config_of

Form = Literal["messages", "tokens"]
Kind = Literal["sft", "filtered", "pairs", "kto"]
_ROUNDING = 1e-9
"""The tolerance of `min_reward`, since rewards are sums of steps' rewards."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The selection of episodes that become data, and their form."""

    form: Form = "messages"
    min_reward: float | None = None
    """The lowest reward of an episode that is wanted; with "kto", of a good one; with "pairs", of a
    chosen one."""
    split: Split | None = None
    kind: Kind = "sft"
    most: int = 1
    """The greatest number of pairs, or of the best episodes, of each group."""
    margin: float = 0.0
    """The difference of rewards that a pair must exceed."""

    def __post_init__(self) -> None:
        if self.min_reward is None and self.kind in ("kto", "filtered"):
            raise ConfigError(f"--{self.kind} needs --min-reward X, the lowest reward of good ones")
        if self.min_reward is not None and not math.isfinite(self.min_reward):
            raise ConfigError(f"--min-reward {self.min_reward:g}: expected a finite number")
        if self.most < 1 or not 0 <= self.margin < math.inf:
            raise ConfigError(
                f"{self.most} of each group (--most) with a margin of {self.margin:g} (--margin): "
                "expected a number from 1, and a difference of rewards from 0"
            )

    def refusal(self, episode: Trajectory, task: Task) -> str:
        """Return the reason why the episode is left out; "" if it is not."""
        if not episode.outcome.trains:
            return episode.outcome.value
        if self.split is not None and task.split != self.split:
            return f"split {task.split}"
        if self.kind in ("sft", "filtered") and not self.is_good(episode.reward):
            return "reward"
        if self.form == "messages":
            return "" if episode.messages else "no messages"
        return "" if episode.num_tokens else "no tokens"

    def is_good(self, reward: float) -> bool:
        """Return whether a reward is at least `min_reward`, if there is one."""
        return self.min_reward is None or reward >= self.min_reward - _ROUNDING


def export_sft(
    folder: Path,
    out: Path,
    wanted: Wanted,
    *,
    on_progress: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Write the episodes of a run or an evaluation to `out`, as `wanted`; return the JSON of
    `arl export`.

    The run in `folder` may be unfinished, and is only read. `out` appears once it is complete.

    Raises:
        ConfigError: no run or evaluation in `folder`, a log that cannot be read, no episode that
            fits, or `out` exists.
    """
    config = load_config(config_of(folder, f"arl export {folder}"))
    with contextlib.closing(EpisodeReader(folder / "episodes.db")) as reader:
        groups = _recorded(reader, on_progress, by_group=wanted.kind in ("filtered", "pairs"))
        counts = _write(groups, out, wanted, config.env.id, str(folder))
    return {"out": str(out), **counts.report()}


def export_solutions(
    episodes: Iterable[tuple[Trajectory, Task]], out: Path, wanted: Wanted, *, env_id: str
) -> dict[str, Any]:
    """Write the episodes of an environment's oracle to `out`; return the JSON of `arl export`, in
    which `failed` names the first of those left out. `out` appears once it is complete.

    Raises:
        ConfigError: no episode fits, or `out` exists.
    """
    counts = _write(([one] for one in episodes), out, wanted, env_id, f"the oracle of {env_id}")
    return {"out": str(out), **counts.report(), "failed": counts.failed}


Played = Sequence[tuple[Trajectory, Task]]
"""Episodes with their tasks: those of one group at one seat, or a single one."""


def _recorded(
    reader: EpisodeReader, on_progress: Callable[[int], None], *, by_group: bool
) -> Iterator[Played]:
    """Yield the episodes with their tasks; a game is one episode for each seat of the policy. Seats
    are not compared with each other: one may have the better chances."""
    names = [[name] for name in reader.episode_ids(untrained=True)]
    for members in reader.members() if by_group else names:
        episodes = [reader.trajectory(name) for name in members]
        on_progress(len(episodes))
        parts = [(part, reader.task(one.task_id)) for one in episodes for part in one.parts]
        for seat in dict.fromkeys(part.seat for part, _ in parts):
            yield [(part, task) for part, task in parts if part.seat == seat]


def _write(
    groups: Iterable[Played], out: Path, wanted: Wanted, env_id: str, source: str
) -> _Counts:
    counts = _Counts()
    with new_file(out, argument=f"--out {out}") as file:
        for group in groups:
            usable: list[tuple[Trajectory, Task]] = []
            for episode, task in group:
                if why := wanted.refusal(episode, task):
                    counts.leave_out(episode, why)
                else:
                    usable.append((episode, task))
            for line in _KINDS[wanted.kind](usable, wanted, env_id, counts):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if not counts.lines:
            left_out = dict(counts.left_out) or "none is finished yet"
            named = f"; {counts.failed[0]}" if counts.failed else ""
            raise ConfigError(f"{source}: no episode matches; left out: {left_out}{named}")
    return counts


def _each(group: Played, wanted: Wanted, env_id: str, counts: _Counts) -> Iterator[dict[str, Any]]:
    """Yield the lines of supervised data of every episode."""
    for episode, task in group:
        about = _about(episode, task, env_id)
        lines = [line | about for line in _lines(episode, wanted.form)]
        counts.add(episode, task, lines=len(lines))
        yield from lines


def _best(group: Played, wanted: Wanted, env_id: str, counts: _Counts) -> Iterator[dict[str, Any]]:
    """Yield the lines of the best episodes of a group; equal conversations count as one."""
    seen: set[str] = set()
    for episode, task in sorted(group, key=lambda one: -one[0].reward):
        text = json.dumps(_conversation(episode), sort_keys=True)
        if text in seen:
            counts.leave_out(episode, "the same conversation")
        elif len(seen) == wanted.most:
            counts.leave_out(episode, "not among the best")
        else:
            seen.add(text)
            yield from _each([(episode, task)], wanted, env_id, counts)


def _labelled(
    group: Played, wanted: Wanted, env_id: str, counts: _Counts
) -> Iterator[dict[str, Any]]:
    """Yield the lines for KTO: `prompt`, `completion`, and the label of a good episode."""
    for episode, task in group:
        messages = _conversation(episode)
        start = _first_sampled(episode)
        if start >= len(messages):
            counts.leave_out(episode, "no reply")
            continue
        good = wanted.is_good(episode.reward)
        counts.labels["good" if good else "bad"] += 1
        counts.add(episode, task, lines=1)
        turns = {"prompt": messages[:start], "completion": messages[start:], "label": good}
        yield {**turns, "tools": list(episode.tools), **_about(episode, task, env_id)}


def _pairs(group: Played, wanted: Wanted, env_id: str, counts: _Counts) -> Iterator[dict[str, Any]]:
    """Yield the lines for DPO: of two episodes of a group that begin alike, `chosen` and `rejected`
    from where they differ. The best is compared with the worst, the second best with the second
    worst, and so on: each episode is in one pair at most."""
    left = sorted(group, key=lambda one: -one[0].reward)
    found = 0
    while len(left) > 1 and found < wanted.most:
        (good, task), *_ = left
        if not wanted.is_good(good.reward):
            break
        others = [one for one, _ in reversed(left[1:]) if good.reward - one.reward > wanted.margin]
        if not others:
            break
        bad = next((one for one in others if _shared(good, one) is not None), None)
        left = [one for one in left if one[0] is not good and one[0] is not bad]
        if bad is None:
            counts.leave_out(good, "no pair: other prompt or tools")
            continue
        found += 1
        counts.add(good, task, lines=1)
        counts.add(bad, task, lines=0)
        yield _pair(good, bad) | _about(good, task, env_id)
    for episode, _ in left:
        counts.leave_out(episode, f"no pair: {_why_unpaired(group, left, wanted, found)}")


def _why_unpaired(group: Played, left: Played, wanted: Wanted, found: int) -> str:
    if len(group) == 1:
        return "alone in its group"
    if found == wanted.most:
        return "its group has enough pairs"
    return "rewards too close" if wanted.is_good(left[0][0].reward) else "reward"


def _pair(good: Trajectory, bad: Trajectory) -> dict[str, Any]:
    chosen, rejected, start = _conversation(good), _conversation(bad), _shared(good, bad)
    return {
        "prompt": chosen[:start],
        "chosen": chosen[start:],
        "rejected": rejected[start:],
        "tools": list(good.tools),
        "rejected_reward": bad.reward,
        "rejected_episode_id": bad.episode_id,
    }


def _shared(one: Trajectory, other: Trajectory) -> int | None:
    """Return the number of messages before the first that differs, if both differ in replies under
    the same tools; else None. Turns that both have in common would cancel in a pair's loss."""
    mine, theirs = _conversation(one), _conversation(other)
    pairs = zip(mine, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None or [*one.tools] != [*other.tools]:
        return None
    return at if mine[at]["role"] == theirs[at]["role"] == "assistant" else None


def _conversation(episode: Trajectory) -> list[dict[str, Any]]:
    """Return the messages up to the last reply: messages after it train nothing."""
    messages = [_message(message) for message in episode.messages]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def _first_sampled(episode: Trajectory) -> int:
    """Return the index of the first reply that was sampled: the prompt may hold example replies."""
    replies = [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]
    given = 0 if episode.metrics.get("forks") else max(0, len(replies) - episode.num_turns)
    return [*replies, len(episode.messages)][given]


_KINDS: dict[Kind, Callable[[Played, Wanted, str, _Counts], Iterator[dict[str, Any]]]] = {
    "sft": _each,
    "filtered": _best,
    "pairs": _pairs,
    "kto": _labelled,
}


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
    labels: Counter[str] = field(default_factory=Counter[str])
    """The number of good and bad episodes, of those with labels."""

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
            **({"labels": dict(self.labels)} if self.labels else {}),
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
