"""The command `arl list`: the members of registries, those of other packages included."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentgym_rl.cli import registry
from agentgym_rl.cli.command import Command, json_flag
from agentgym_rl.cli.output import print_json
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.extensions import entry_points_of, is_ours

if TYPE_CHECKING:
    from agentgym_rl.gym.registry import Listed

_HELP = """\
List the environments (for --env), agents (for --agent) and sandboxes (for
--sandbox), those of installed plugins included, and the commands and engines
that plugins add. The version at the end of an id can be left out: --env math is math-v0.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)


def list_parts(args: Namespace) -> int:
    from agentgym_rl.gym.registry import listing

    found = [*listing("env"), *listing("agent"), *listing("sandbox")]
    rows = [*map(_row, found), *map(_command_row, registry.foreign_commands()), *_engine_rows()]
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


def _engine_rows() -> Iterator[dict[str, str]]:
    """Yield the kinds of engines that other packages add."""
    points = entry_points_of("engines")
    for name in sorted(name for name, point in points.items() if not is_ours(point)):
        row = {"kind": "engine", "id": name, "description": "", "error": ""}
        try:
            from agentgym_rl.config import ENGINES

            row["description"] = " ".join((ENGINES[name].section.__doc__ or "").split())
        except ConfigError as error:
            row["error"] = str(error)
        yield row


COMMAND = Command(
    summary="list environments, agents and sandboxes, plugins included",
    description=_HELP,
    flags=_flags,
    run=list_parts,
    order=130,
)
