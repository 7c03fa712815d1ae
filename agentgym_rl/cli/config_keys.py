"""The configuration keys on the command line: the table of --help, and `--section.key=value`.

Only functions that need the configuration import it: that takes 0.3 s, and most commands have no
keys.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentgym_rl.core.errors import ConfigError

from .help_texts import KEYS

if TYPE_CHECKING:
    from pydantic import BaseModel


def key_table() -> str:
    """Return the keys of every section, wrapped to 80 columns."""
    from agentgym_rl.config import Config

    lines = [KEYS]
    for section, kind, keys in _sections(Config):
        name = f"{section} ({kind})" if kind else section
        text = f"{name}: {', '.join(keys)}" if section else ", ".join(keys)
        lines.append(textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)


def dotted_keys(
    rest: Sequence[str],
    command: ArgumentParser,
    *,
    takes_config: bool,
    commands_with: Callable[[str], list[str]],
) -> dict[str, str]:
    """Parse `--a.b=c` and `--a.b c` to {"a.b": "c"}; any other word is an error, for which
    `commands_with` returns the other commands that have it."""
    found: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not (takes_config and word.startswith("--") and "." in key):
            near = _near(word, command, takes_config, commands_with)
            command.error(f"unknown argument {word!r}{near}")
        if not equals:
            following = next(words, None)
            if following is None:
                raise ConfigError(f"--{key} has no value; write --{key}=value")
            value = following
        found[key] = value
    return found


def _near(
    word: str,
    command: ArgumentParser,
    takes_config: bool,
    commands_with: Callable[[str], list[str]],
) -> str:
    """Return a hint: "; did you mean --steps?", or --rollout.max_staleness if only the section was
    missing, or the commands that have the argument; "" if there is none."""
    name = word.removeprefix("--").partition("=")[0]
    if name == word:
        return ""
    flags = {flag: flag for flag in re.findall(r"--([\w-]+)", command.format_usage())}
    if name in flags:
        return f"; it goes after the command: {command.prog} {word}"
    from agentgym_rl.config import Config

    keys = (
        {k: f"{s}.{k}" for s, _, ks in _sections(Config) if s for k in ks} if takes_config else {}
    )
    plays = command.prog.endswith(" serve") and name in ("env", "agent", "data")
    ours = name in keys or difflib.get_close_matches(name, flags, cutoff=0.8)
    others = commands_with(f"--{name}") if plays or not ours else []
    if others:
        why = "; programs of yours play the episodes of `arl serve` (docs/serve.md)" * plays
        return f", which is for {', '.join(f'`arl {other}`' for other in others)}{why}"
    for known in (flags, keys):
        for spelled in (name, name.replace("-", "_")):
            for near in difflib.get_close_matches(spelled, known, n=1, cutoff=0.65):
                return f"; did you mean --{known[near]}?"
    return ""


def _sections(
    model: type[BaseModel], prefix: str = "", kind: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each section, its type and its own keys; the section of the top-level keys is "".

    A section with several types is yielded once per type, its key `type` first; the type is ""
    if there is only one.
    """
    from agentgym_rl.config import section_types

    inner = {key: kinds for key, f in model.model_fields.items() if (kinds := section_types(f))}
    keys = [key for key in model.model_fields if key not in inner]
    yield prefix, kind, sorted(keys, key=lambda key: key != "type")
    for key, kinds in inner.items():
        for each in kinds:
            name = str(each.model_fields["type"].default) if len(kinds) > 1 else ""
            yield from _sections(each, f"{prefix}.{key}".lstrip("."), name)
