"""The known formats, and the way to tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentgym_rl import ConfigError
from agentgym_rl.gym.data import Row

from . import apps, deepcoder, humaneval, kodcode, livecodebench, mbpp
from .draft import Draft


class Format(NamedTuple):
    fields: tuple[str, ...]
    """The fields that every row of this format has."""
    draft_of: Callable[[Row], Draft]


FORMATS: dict[str, Format] = {
    "livecodebench": Format(("question_content", "public_test_cases"), livecodebench.draft_of),
    "humaneval": Format(("prompt", "entry_point", "test"), humaneval.draft_of),
    "mbpp": Format(("test_list",), mbpp.draft_of),
    "apps": Format(("question", "input_output"), apps.draft_of),
    "kodcode": Format(("question", "test"), kodcode.draft_of),
    "deepcoder": Format(("tests",), deepcoder.draft_of),
}
"""The formats by name, in the order in which they are tried."""


def format_of(row: Row, where: str) -> str:
    """Return the name of the first format whose fields `row` has.

    Raises:
        ConfigError: `row` does not have all fields of any format.
    """
    for name, known in FORMATS.items():
        if all(field in row for field in known.fields):
            return name
    formats = "; ".join(f"{name}: {', '.join(known.fields)}" for name, known in FORMATS.items())
    raise ConfigError(
        f"{where}: fields {sorted(map(str, row))} are those of no known format ({formats}); "
        "set `format` if it is one of them all the same"
    )


def check_format(name: str) -> str:
    """Return `name` if a format has this name.

    Raises:
        ConfigError: no format has it.
    """
    if name not in FORMATS:
        raise ConfigError(f"no row format is called {name!r}; allowed: {', '.join(FORMATS)}")
    return name
