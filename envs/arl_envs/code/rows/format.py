"""The known formats, and the way to distinguish them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentgym_rl import ConfigError
from agentgym_rl.gym.data import Row

from . import (
    apps,
    code_contests,
    codeforces,
    deepcoder,
    humaneval,
    kodcode,
    leetcode,
    livecodebench,
    mbpp,
    verifiable,
    verl,
)
from .draft import Draft


class Format(NamedTuple):
    fields: tuple[str, ...]
    """The fields that every row of this format has."""
    draft_of: Callable[[Row], Draft]


FORMATS: dict[str, Format] = {
    "livecodebench": Format(("question_content", "public_test_cases"), livecodebench.draft_of),
    "leetcode": Format(("entry_point", "test", "starter_code"), leetcode.draft_of),
    "humaneval": Format(("prompt", "entry_point", "test"), humaneval.draft_of),
    "mbpp": Format(("test_list",), mbpp.draft_of),
    "apps": Format(("question", "input_output"), apps.draft_of),
    "kodcode": Format(("question", "test"), kodcode.draft_of),
    "deepcoder": Format(("tests",), deepcoder.draft_of),
    "code_contests": Format(("description", "public_tests"), code_contests.draft_of),
    "codeforces": Format(("description", "official_tests"), codeforces.draft_of),
    "verifiable": Format(("prompt", "verification_info"), verifiable.draft_of),
    "verl": Format(("prompt", "reward_model"), verl.draft_of),
}
"""The formats by name, in the order in which they are tried."""


_BIGCODEBENCH = ("complete_prompt", "test", "entry_point")
_NO_BIGCODEBENCH = (
    "a row of BigCodeBench: its tests are unittest classes with mocks, which have to run in the "
    "process of the program, where it could read or replace them. --env code grades only tests "
    "whose answers stay outside of the sandbox. Make tasks in Harbor's format of these rows "
    "(--env harbor: an image with the libraries in `libs`, and the tests in tests/)"
)


def format_of(row: Row, where: str) -> str:
    """Return the name of the first format whose fields `row` has.

    Raises:
        ConfigError: `row` does not have all fields of any format.
    """
    if all(field in row for field in _BIGCODEBENCH):
        raise ConfigError(f"{where}: {_NO_BIGCODEBENCH}")
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
