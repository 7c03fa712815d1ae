"""A reader of replies as actions, which looks at the end of a reply.

    Discrete        the reply ends with the name (or number) of an action: "I go *down*."
    MultiDiscrete   its last line is the numbers, nothing else: "0 3 1"
    Text            the complete reply, without surrounding white space

Actions of other spaces cannot be written in a few words; the environment refuses such a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from agentgym_rl import ConfigError

MAX_NAMED = 32
"""The longest list of action numbers shown in full; a longer one shows the first and the last."""

_TAIL_CHARS = 200
"""The number of characters read at a reply's end; no action's name is longer."""


@dataclass(frozen=True, slots=True)
class Actions:
    """The text form of actions."""

    instruction: str
    """The instruction for the agent, one sentence."""
    read: Callable[[str], Any]
    """A function that returns the action of a reply, None if the reply is not an action. Never
    raises."""
    say: Callable[[Any], str]
    """A function that returns a reply that `read` reads as this action."""


def actions_of(space: spaces.Space[Any], names: Sequence[str] | None) -> Actions:
    """Return the text form of the actions of `space`; `names` are those of a Discrete one.

    Raises:
        ConfigError: there is no text form, or the names do not fit.
    """
    if names is not None and not isinstance(space, spaces.Discrete):
        raise ConfigError(f"actions: names are for a Discrete action space, this one is {space}")
    match space:
        case spaces.Discrete():
            return _discrete(space, names)
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return _multi_discrete(space)
        case spaces.Text():
            return _text(space)
    raise ConfigError(
        f"the action space {space} cannot be played in text; allowed: Discrete, Text, and "
        "MultiDiscrete of one dimension (a gymnasium.ActionWrapper can make one of them)"
    )


def _discrete(space: spaces.Discrete[Any], names: Sequence[str] | None) -> Actions:
    first, count = int(space.start), int(space.n)
    named = [str(first + i) for i in range(count)] if names is None else list(names)
    if len(named) != count or len({_key(name) for name in named} - {""}) != count:
        raise ConfigError(
            f"actions: got {named}, expected {count} different names, of actions {first} to "
            f"{first + count - 1}"
        )
    by_name = {_key(name): first + i for i, name in enumerate(named)}
    longest_first = sorted(map(re.escape, by_name), key=len, reverse=True)
    ends_with = re.compile(rf"(?<![\w-])(?<!\d\.)({'|'.join(longest_first)})\W*\Z")

    def read(reply: str) -> int | None:
        found = ends_with.search(_key(reply[-_TAIL_CHARS:]))
        return None if found is None else by_name[found[1]]

    listed = ", ".join(named) if count <= MAX_NAMED else f"a number from {named[0]} to {named[-1]}"
    return Actions(f"Reply with one action: {listed}.", read, lambda a: named[int(a) - first])


def _multi_discrete(space: spaces.MultiDiscrete) -> Actions:
    ranges = ", ".join(
        f"{start} to {start + n - 1}" for start, n in zip(space.start, space.nvec, strict=True)
    )

    def read(reply: str) -> Any:
        line = reply.rstrip()[-_TAIL_CHARS:].rpartition("\n")[2].replace(",", " ").split()
        if not all(re.fullmatch(r"-?[0-9]{1,9}", word) for word in line):
            return None
        action = np.array([int(word) for word in line], dtype=np.int64)
        if action.shape != space.nvec.shape or not _within(action, space):
            return None
        return action.astype(space.dtype)

    instruction = f"Reply with {len(space.nvec)} numbers, space between them: {ranges}."
    return Actions(instruction, read, lambda action: " ".join(str(int(n)) for n in action))


def _within(action: Any, space: spaces.MultiDiscrete) -> bool:
    return bool(((action >= space.start) & (action < space.start + space.nvec)).all())


def _text(space: spaces.Text) -> Actions:
    def read(reply: str) -> str | None:
        reply = reply.strip()
        return reply if space.contains(reply) else None

    letters = "".join(sorted(space.characters))
    shown = repr(letters if len(letters) <= 80 else f"{letters[:80]}...")
    instruction = (
        f"Reply with a text of {space.min_length} to {space.max_length} characters out of {shown}."
    )
    return Actions(instruction, read, str)


def _key(text: str) -> str:
    """Normalize case and the amount of white space."""
    return " ".join(text.casefold().split())
