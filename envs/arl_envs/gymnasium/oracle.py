"""A search for shortest paths in environments that show their transitions (toy-text ones do)."""

from __future__ import annotations

from collections import deque
from typing import Any


def shortest_path(env: Any) -> list[int] | None:
    """Return the fewest actions from the state of `env` (unwrapped) to its best-paid end.

    The result is None if `env.P` (state -> action -> [(probability, next state, reward, ended)]) is
    missing or random, no end can be reached, or the table does not describe everything.
    """
    table, start = getattr(env, "P", None), getattr(env, "s", None)
    if not isinstance(table, dict) or start is None or getattr(env, "fickle_passenger", False):
        return None
    if any(len(moves) != 1 for actions in table.values() for moves in actions.values()):
        return None
    came_from: dict[int, tuple[int, int] | None] = {int(start): None}
    waiting = deque([int(start)])
    best: tuple[float, int, int] | None = None  # reward, state and action of the last step
    while waiting:
        state = waiting.popleft()
        for action, ((_, after, reward, ended),) in table[state].items():
            if ended and (best is None or reward > best[0]):
                best = (reward, state, action)
            if not ended and int(after) not in came_from:
                came_from[int(after)] = (state, action)
                waiting.append(int(after))
    return None if best is None else [*_path_to(best[1], came_from), best[2]]


def _path_to(state: int, came_from: dict[int, tuple[int, int] | None]) -> list[int]:
    path: list[int] = []
    while (step := came_from[state]) is not None:
        state, action = step
        path.append(action)
    return path[::-1]
