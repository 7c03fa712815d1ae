"""The texts of Gymnasium's toy-text environments; they are short, so that many turns fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of an environment. The functions get the unwrapped environment."""

    actions: tuple[str, ...]
    rules: Callable[[Any], str]
    """A function that returns the rules, shown once, before the first observation."""
    observe: Callable[[Any, Any], str]
    """A function that returns the text of (environment, observation)."""


def words_of(id: str) -> Words | None:
    """Return the texts for an id like "FrozenLake-v1"; None for all but the toy-text ones."""
    return _WORDS.get(id.rpartition(":")[2].partition("-v")[0])


def _cell(row: int, column: int) -> str:
    return f"row {row + 1}, column {column + 1}"


def _map(desc: Any) -> str:
    return "\n".join(b"".join(row).decode() for row in desc)


def _lake(env: Any) -> str:
    return f"Cross the ice from S to G; H is a hole.\n{_map(env.desc)}"


def _lake_cell(env: Any, state: Any) -> str:
    row, column = divmod(int(state), env.ncol)
    return f"Row {row + 1}, column {column + 1}."


def _cliff(env: Any) -> str:
    rows, columns = env.shape
    return (
        f"Walk to {_cell(rows - 1, columns - 1)}. Between there and {_cell(rows - 1, 0)} is a "
        "cliff: who steps on it starts again."
    )


def _cliff_cell(env: Any, state: Any) -> str:
    row, column = divmod(int(state), env.shape[1])
    return f"Row {row + 1}, column {column + 1}."


def _taxi(env: Any) -> str:
    return (
        "Drive to the passenger, pick them up, drive to the destination, drop them off. "
        f"A | is a wall, a : is none.\n{_map(env.desc)}"
    )


def _taxi_state(env: Any, state: Any) -> str:
    row, column, passenger, destination = env.decode(int(state))
    where = "in the taxi" if passenger == len(env.locs) else f"at {_stop(env, passenger)}"
    return f"Taxi: {_cell(row, column)}. Passenger {where}. Destination {_stop(env, destination)}."


def _stop(env: Any, index: int) -> str:
    return f"{'RGYB'[index]} ({_cell(*env.locs[index])})"


def _blackjack(env: Any) -> str:
    return "Get a higher sum than the dealer, but not above 21."


def _hand(env: Any, observation: Any) -> str:
    total, dealer, ace = (int(number) for number in observation)
    return f"Your sum is {total}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."


_WORDS = {
    "FrozenLake": Words(("left", "down", "right", "up"), _lake, _lake_cell),
    "FrozenLake8x8": Words(("left", "down", "right", "up"), _lake, _lake_cell),
    "CliffWalking": Words(("up", "right", "down", "left"), _cliff, _cliff_cell),
    "CliffWalkingSlippery": Words(("up", "right", "down", "left"), _cliff, _cliff_cell),
    "Taxi": Words(("south", "north", "east", "west", "pickup", "dropoff"), _taxi, _taxi_state),
    "Blackjack": Words(("stick", "hit"), _blackjack, _hand),
}
