"""The file `.env` of the working folder, whose keys of services are set for commands that use them.

Only names of keys and tokens are read. An address, such as OPENAI_BASE_URL, could send the keys of
the environment elsewhere, and the folder may be somebody else's.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from agentgym_rl.core import ConfigError

_COMMANDS = frozenset({"train", "eval", "serve", "check", "plan", "doctor"})
"""The commands that may need a key of a service."""
_READ = re.compile(
    r"(?!ARL_)[A-Z][A-Z0-9_]*_(API_KEY|TOKEN)|WANDB_(PROJECT|ENTITY|MODE)"
    r"|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY)"
)
_LINE = re.compile(
    r"""(?:export\s+)?(?P<name>\w+)\s*=\s*
    (?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<plain>(?:[^\s'"\#](?:\S|\s+(?=[^\s\#]))*)?))\s*(?:\#.*)?""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t"}
_MOST_BYTES = 1 << 20


def read_env(args: Namespace) -> None:
    """Set the keys of `.env` that the environment does not set, and name them on stderr.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = Path(".env")
    if args.command not in _COMMANDS or not file.is_file():
        return
    found = dict(_pairs(file))
    new = [name for name in found if _READ.fullmatch(name) and name not in os.environ]
    os.environ.update({name: found[name] for name in new})
    said = [f"sets {', '.join(new)}"] if new else []
    if ours := [name for name in found if name.startswith("ARL_")]:
        said.append(
            f"cannot set {', '.join(ours)}: it has keys of services; keys of the configuration go "
            "into a --config file, or are set as --section.key=value"
        )
    if said and not getattr(args, "q", False):
        print(f"arl: .env {', and '.join(said)}", file=sys.stderr)


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a file."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file.absolute()}: {error}") from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        pair, name = _LINE.fullmatch(line), re.match(r"(?:export\s+)?(\w+)", line)
        if pair is None and not (name and _READ.fullmatch(name[1])):
            continue  # another program may understand it
        if pair is None:
            raise ConfigError(
                f"line {number} of {file.absolute()} is not NAME=value (it is not shown, since it "
                "may have a key); quote a value with a space, a quote or #"
            )
        value = pair["single"] if pair["single"] is not None else pair["plain"]
        if pair["double"] is not None:
            value = re.sub(r"\\(.)", lambda it: _ESCAPES.get(it[1], it[1]), pair["double"])
        yield pair["name"], value
