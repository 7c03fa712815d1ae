"""The details of an episode, token by token, and of a group."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from agentgym_rl.core import NOT_SAMPLED, ConfigError, FloatArray, Row, Trajectory
from agentgym_rl.storage import EpisodeReader
from agentgym_rl.storage.trained_tokens import read_tokens, row_key

from .folders import InspectedRun
from .game import moves_of, seats_of
from .query import missing
from .texts import SEAT, answer_of, expected_of
from .views import with_views

Trained = Mapping[int, tuple[FloatArray, FloatArray]]
"""The values of trained tokens, as `trained_tokens.read_tokens` returns them."""


def episode_detail(run: InspectedRun, episode_id: str) -> dict[str, Any]:
    """Return all recorded data of an episode; per row, arrays over its tokens. Blocking.

    Raises:
        HttpError: there is no such episode.
        ConfigError: the episode, or the record of its training, cannot be read.
    """
    summary = run.index.of(episode_id)
    found, task_data = _read(run, episode_id)
    trained = _trained(run, summary["step"])
    credit, config = found.credit, run.config()
    paid = credit.turn_rewards
    lineages = [*credit.lineages, *[0] * (len(credit.parents) - len(credit.lineages))]
    return {
        **summary,
        "error": found.error,
        "verdict": found.verdict,
        "expected": expected_of(task_data),
        "answer": answer_of(found.messages),
        "messages": with_views(_messages(found), found.env_id, task_data),
        "seats": seats_of(found),
        "moves": _moves(found, task_data),
        "tools": found.tools,
        "metrics": found.metrics,
        "task_data": task_data,
        "tree": [
            {"turn": k, "parent": parent, "lineage": lineage, "reward": paid[k] if paid else None}
            for k, (parent, lineage) in enumerate(zip(credit.parents, lineages, strict=True))
        ],
        "rows": [_row(run, row, trained, config) for row in found.rows],
    }


def group_detail(
    run: InspectedRun, group_id: str, *, kept: Container[str] | None = None
) -> dict[str, Any]:
    """Return a group with its members' conversations side by side, or only with those of the
    episodes in `kept`; `left_out` is the number of the others. Blocking.

    `advantage` is the mean over an episode's trained tokens. All of them have the same one, except
    with rewards of turns, KL in the reward or a critic. None: no advantages are recorded.

    Raises:
        HttpError: there is no such group.
        ConfigError: the group cannot be read.
    """
    summaries = run.index.members(group_id)
    if not summaries:
        raise missing(f"no group {group_id[:80]!r} in run {run.id}")
    first, members = summaries[0], list[dict[str, Any]]()
    trained, task_data = _trained(run, first["step"]), dict[str, Any]()
    of_file = [it for it in summaries if kept is None or it["id"] in kept]
    for summary in of_file:
        episode, task_data = _read(run, summary["id"])
        known = [trained[key][1] for row in episode.rows if (key := row_key(row)) in trained]
        joined = np.concatenate(known) if known else np.zeros(0)
        members.append(
            {
                **summary,
                "error": episode.error,
                "verdict": episode.verdict,
                "seats": seats_of(episode),
                "moves": _moves(episode, task_data),
                "advantage": float(joined.mean()) if len(joined) else None,
                "messages": with_views(_messages(episode), episode.env_id, task_data),
            }
        )
    head = {name: first[name] for name in ("status", "cause", "step", "task")}
    known = {"task_data": task_data, "expected": expected_of(task_data)}
    left_out = len(summaries) - len(of_file)
    return {"id": group_id, **head, **known, "members": members, "left_out": left_out}


def _read(run: InspectedRun, episode_id: str) -> tuple[Trajectory, Mapping[str, Any]]:
    with closing(EpisodeReader(run.folder / "episodes.db")) as log:
        episode = log.trajectory(episode_id)
        try:
            return episode, log.task(episode.task_id).data
        except ConfigError:  # the task is logged with the complete group
            return episode, {}


def _moves(episode: Trajectory, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**move, "messages": with_views(move["messages"], episode.env_id, task)}
        for move in moves_of(episode)
    ]


def _messages(episode: Trajectory) -> list[Mapping[str, Any]]:
    """Return the conversation of an episode; those of a game one after the other, each under a line
    that names the seat."""
    if not episode.seats:
        return [*episode.messages]
    found: list[Mapping[str, Any]] = []
    for seat in episode.seats:
        said = f"Seat {seat.seat}, played by {seat.player}: reward {seat.reward:g}"
        found += [{"role": SEAT, "content": said}, *seat.messages]
    return found


def _trained(run: InspectedRun, step: int | None) -> Trained:
    return {} if step is None else read_tokens(run.folder, step)


def _row(
    run: InspectedRun, row: Row, trained: Trained, config: Mapping[str, Any]
) -> dict[str, Any]:
    sampled = row.policy_versions != NOT_SAMPLED
    proximal, advantages = trained.get(row_key(row), (None, None))
    return {
        "lineage": row.lineage,
        "text": run.texts.of(row.tokens.tolist(), config),
        "tokens": row.tokens.tolist(),
        "trains": row.loss_mask.astype(int).tolist(),
        "turn": row.turn_ids.tolist(),
        "version": _where(sampled, row.policy_versions),
        "admitted": _where(sampled, row.admitted_versions),
        "behavior": _where(sampled, row.behavior_logprobs),
        "proximal": _spread(row, proximal),
        "advantage": _spread(row, advantages),
        "temperature": [round(value, 6) for value in row.temperatures.tolist()],
        "time_s": _where(row.times_s > 0, row.times_s),
    }


def _where(known: np.ndarray, values: np.ndarray) -> list[float | None]:
    """Return the values as a list, with None where they are not known."""
    pairs = zip(known.tolist(), values.tolist(), strict=True)
    return [value if is_known else None for is_known, value in pairs]


def _spread(row: Row, of_trained: FloatArray | None) -> list[float | None] | None:
    """Spread the values of trained tokens over all tokens; None if no values are recorded."""
    if of_trained is None or len(of_trained) != row.num_trained:
        return None
    values = np.zeros(len(row), np.float32)
    values[row.loss_mask] = of_trained
    return _where(row.loss_mask & ~np.isnan(values), values)  # NaN: not computed
