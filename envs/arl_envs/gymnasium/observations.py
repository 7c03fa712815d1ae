"""The text of any observation: numbers, words, lists of them; a dict has a line for each key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from agentgym_rl import ConfigError

MAX_NUMBERS = 1024
"""The largest array that is written as text."""

_DIGITS = 4


def num_numbers(space: spaces.Space[Any]) -> int:
    """Return how many numbers the text of an element of `space` has at most; 0 for text, and for
    parts of which that cannot be known: sequences, graphs, and spaces that are not Gymnasium's."""
    match space:
        case spaces.Discrete():
            return 1
        case spaces.Text():
            return 0
        case spaces.Dict():
            return sum(map(num_numbers, space.spaces.values()))
        case spaces.Tuple():
            return sum(map(num_numbers, space.spaces))
        case spaces.OneOf():
            return max(map(num_numbers, space.spaces))
        case _ if space.shape is not None:
            return math.prod(space.shape)
    return 0


def check_readable(space: spaces.Space[Any]) -> None:
    """Refuse an observation space that no chat model should read.

    Raises:
        ConfigError: an observation holds a larger array than MAX_NUMBERS, an image most likely.
    """
    size = num_numbers(space)
    if size > MAX_NUMBERS:
        raise ConfigError(
            f"the observation space {space} holds {size} numbers, at most {MAX_NUMBERS} are put "
            'into words; with render="ansi" the drawing of the environment takes their place, if '
            "it has one, or a gymnasium.ObservationWrapper may make text of them"
        )


def describe(observation: Any) -> str:
    """Return `observation` as text; numbers have four significant digits."""
    value = plain(observation)
    match value:
        case str():
            return value
        case dict():
            return "\n".join(f"{key}: {_inline(part)}" for key, part in value.items())
    return _inline(value)


def plain(value: Any) -> Any:
    """Return `value` as JSON: arrays become lists, named tuples and mappings become dicts."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return [plain(part) for part in value] if value.ndim else plain(value[()])
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if hasattr(value, "_asdict"):  # a graph
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return str(value)


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return value
    flat = isinstance(value, list) and not any(isinstance(part, list | dict) for part in value)
    if flat:
        return ", ".join(map(_inline, value))
    return json.dumps(value, ensure_ascii=False)
