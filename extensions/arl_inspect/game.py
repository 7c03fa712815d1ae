"""A game as it went: the moves of all seats in the order of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from agentgym_rl.core import NOT_SAMPLED, Trajectory

Message = Mapping[str, Any]


def seats_of(episode: Trajectory) -> list[dict[str, Any]]:
    """Return the seats of a game with their players and rewards; [] if the episode is no game."""
    return [
        {
            **{"seat": seat.seat, "player": seat.player, "outcome": seat.outcome.value},
            **{"reward": seat.reward, "parts": dict(seat.reward_parts), "turns": seat.num_turns},
        }
        for seat in episode.seats
    ]


def moves_of(episode: Trajectory) -> list[dict[str, Any]]:
    """Return the moves of a game: the number of the seat, the messages up to and including its
    reply, and the time of the reply's first token, None if it is not recorded.

    If the times of some seat are not recorded, the seats are taken to reply in turns.
    """
    moves: list[tuple[float, int, int, list[Message]]] = []
    timed = all(_times(seat) is not None for seat in episode.seats)
    for k, seat in enumerate(episode.seats):
        times = _times(seat) if timed else None
        for number, messages in enumerate(_split(seat.messages)):
            at = number if times is None else times[number] if number < len(times) else inf
            moves.append((at, number, k, messages))
    return [
        {"seat": k, "messages": messages, "time_s": at if timed and at < inf else None}
        for at, _, k, messages in sorted(moves, key=lambda move: move[:3])
    ]


def _split(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages in portions, each of which ends with a reply; the last may lack it."""
    found: list[list[Message]] = [[]]
    for message in messages:
        found[-1].append(message)
        if message.get("role") == "assistant":
            found.append([])
    return found if found[-1] else found[:-1]


def _times(seat: Trajectory) -> list[float] | None:
    """Return the time of the first token of each reply of a seat; None if the recorded turns are
    not those of its messages."""
    first: dict[int, float] = {}
    for row in seat.rows:
        sampled = (row.policy_versions != NOT_SAMPLED) & (row.times_s > 0)
        for turn in np.unique(row.turn_ids[sampled]).tolist():
            at = float(row.times_s[sampled & (row.turn_ids == turn)].min())
            first[turn] = min(at, first.get(turn, inf))
    replies = sum(message.get("role") == "assistant" for message in seat.messages)
    return [first[turn] for turn in sorted(first)] if len(first) == replies else None
