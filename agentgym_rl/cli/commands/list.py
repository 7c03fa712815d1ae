"""The command `arl list`: the members of registries, those of other packages included."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from agentgym_rl.cli import registry
from agentgym_rl.cli.command import Command, json_flag
from agentgym_rl.cli.output import print_json

if TYPE_CHECKING:
    from agentgym_rl.gym.registry import Listed

_HELP = """\
List the environments (for --env), agents (for --agent) and sandboxes (for
--sandbox), those of installed plugins included, and the commands that plugins
add. The version at the end of an id can be left out: --env math is math-v0.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)


def list_parts(args: Namespace) -> int:
    from agentgym_rl.gym.registry import listing

    found = [*listing("env"), *listing("agent"), *listing("sandbox")]
    rows = [*map(_row, found), *map(_command_row, registry.foreign_commands())]
    if args.json:
        print_json({"rows": rows})
        return 0
    width = max(len(row["id"]) for row in rows)
    for row in rows:
        broken = row["error"].strip().splitlines()[-1:]
        text = f"BROKEN: {broken[0]}" if broken else row["description"]
        begin = f"{row['kind']:<8} {row['id']:<{width}}  "
        wrap = textwrap.TextWrapper(80, begin, " " * len(begin), break_on_hyphens=False)
        print(wrap.fill(text))
    return 0


def _row(row: Listed) -> dict[str, str]:
    description = row.spec.description if row.spec else ""
    return {"kind": row.kind, "id": row.id, "description": description, "error": row.error}


def _command_row(row: registry.Listed) -> dict[str, str]:
    description = row.command.summary if row.command else ""
    return {"kind": "command", "id": row.name, "description": description, "error": row.error}


COMMAND = Command(
    summary="list environments, agents and sandboxes, plugins included",
    description=_HELP,
    flags=_flags,
    run=list_parts,
    order=130,
)
