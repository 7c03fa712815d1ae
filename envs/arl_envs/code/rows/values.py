"""The values that a test may hold."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.data import RowRefused, check_text
from arl_envs.code.driver import encode

MAX_INTEGER_BITS = 13_000
"""The most bits of a whole number: Python reads and writes no number above 4300 digits."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def check_value(value: Any, what: str, *, from_json: bool) -> Any:
    """Return `value` if a test can hold it: numbers and text in containers.

    With `from_json`, numbers must be finite, and dictionaries must not have keys that read like
    whole numbers: the data set's author may have meant numbers, which JSON cannot write as keys.

    Raises:
        RowRefused: no test can hold it.
    """
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowRefused(f"{what}: {error or 'nested too deeply'}") from error
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            _check_keys(item, what, from_json=from_json)
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | deque):
            pending += item
        else:
            _check_scalar(item, what, from_json=from_json)
    return value


def _check_keys(value: Mapping[Any, Any], what: str, *, from_json: bool) -> None:
    if from_json and (key := next(filter(_WHOLE_NUMBER.fullmatch, value), None)):
        raise RowRefused(f"{what}: the key {key!r} may stand for a number: JSON cannot tell")


def _check_scalar(item: Any, what: str, *, from_json: bool) -> None:
    if isinstance(item, float) and (math.isnan(item) or (from_json and math.isinf(item))):
        raise RowRefused(f"{what}: {item} is no finite number")
    if isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
        raise RowRefused(f"{what}: a whole number of {item.bit_length()} bits is too large")
    if isinstance(item, str):
        check_text(item, what)
