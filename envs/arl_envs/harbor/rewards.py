"""The reading of a reward file, which the agent's code may have written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MOST = 1e300
"""The largest number, so that the mean of many is finite, too."""

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
ROUNDING = 1e-6
"""The distance from its range at which a reward is a sum of rounded shares."""


class OutOfRange(ValueError):
    """The error of a reward that the task does not declare."""


class Tampered(Exception):
    """The error of a reward file without the nonce of the tests."""


def rewards_of(data: bytes, nonce: str | None) -> dict[str, float]:
    """Return the numbers of a reward.json. With a nonce, it has to be in the file.

    Raises:
        ValueError: the file is no JSON object of finite numbers.
        Tampered: it does not have the nonce.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        if nonce is not None:
            raise Tampered from error
        raise ValueError(f"reward.json is no JSON: {error}") from error
    if nonce is not None and not (isinstance(found, dict) and found.pop("nonce", None) == nonce):
        raise Tampered
    found = found if isinstance(found, dict) else {"reward": found}
    if not found:
        raise ValueError("reward.json is empty")
    for name in found:
        if not name.isprintable():
            raise ValueError(f"reward.json: {name!r:.60} is no name of a number")
    return {name: number_of(f"reward.json: {name}", value) for name, value in found.items()}


def number_in(text: str) -> float:
    """Return the number of a reward.txt: decimal, in ASCII, with blanks around it.

    Raises:
        ValueError: it is no finite number.
    """
    if not _DECIMAL.fullmatch(text.strip()):
        raise ValueError(f"reward.txt: got {text!r:.60}, expected a number")
    return number_of("reward.txt", float(text))


def number_of(name: str, value: Any) -> float:
    """Return a value of JSON as a number.

    Raises:
        ValueError: it is no finite number.
    """
    try:
        if isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: got {value!r:.60}, expected a number") from None
    if not abs(number) <= MOST:
        raise ValueError(f"{name}: got {number}, expected a finite number")
    return number


def reward_of(rewards: Mapping[str, float], allowed: tuple[float, float]) -> float:
    """Return the episode's reward: the number called "reward", or else the mean of all.

    Args:
        allowed: The least and the full reward by the task's declaration.

    Raises:
        OutOfRange: the reward is outside of it, so programs under test have written the file, or
            the task declares another range than it has.
    """
    found = rewards.get("reward", sum(rewards.values()) / len(rewards))
    low, full = allowed
    if not low - ROUNDING <= found <= full + ROUNDING:
        raise OutOfRange(
            f"the reward is {found:g}, and the task allows {low:g} to {full:g}: if its tests give "
            "such rewards, task.toml has to declare them, as in [metadata] arl_reward_range = "
            f"[{min(low, found):g}, {max(full, found):g}]"
        )
    return min(max(found, low), full)
