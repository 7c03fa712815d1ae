"""The command `arl list`: the registered parts, including those of other packages."""

from __future__ import annotations

import inspect
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentgym_rl.cli import registry
from agentgym_rl.cli.command import Command, json_flag
from agentgym_rl.cli.output import print_json
from agentgym_rl.core import ConfigError, entry_points_of, is_ours, load_extension

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
    from agentgym_rl.gym import listing

    found = [*listing("env"), *listing("agent"), *listing("sandbox")]
    rows = [*map(_row, found), *map(_command_row, registry.foreign_commands()), *_part_rows()]
    if args.json:
        print_json({"rows": rows})
        return 0
    width = max(len(row["id"]) for row in rows)
    kinds = max(8, *(len(row["kind"]) for row in rows))
    for row in rows:
        broken = row["error"].strip().splitlines()[-1:]
        text = f"BROKEN: {broken[0]}" if broken else row["description"]
        begin = f"{row['kind']:<{kinds}} {row['id']:<{width}}  "
        wrap = textwrap.TextWrapper(80, begin, " " * len(begin), break_on_hyphens=False)
        print(wrap.fill(text))
    return 0


def _row(row: Listed) -> dict[str, str]:
    description = row.spec.description if row.spec else ""
    return {"kind": row.kind, "id": row.id, "description": description, "error": row.error}


def _command_row(row: registry.Listed) -> dict[str, str]:
    description = row.command.summary if row.command else ""
    return {"kind": "command", "id": row.name, "description": description, "error": row.error}


_PARTS = {
    "processes": "cluster",
    "producers": "producer",
    "players": "player",
    "opponents": "opponents",
    "draws": "choice of tasks",
    "additions": "addition to episodes",
    "engines": "engine",
    "preparations": "preparation",
    "receivers": "receiver of metrics",
    "measurements": "measurement",
    "views": "view of a run",
    "episode_views": "view of episodes",
    "trials": "trial of users' code",
    "prompt_checks": "check of first prompts",
    "turn_checks": "check of turns",
    "turns": "turns",
    "live_parts": "live part",
    "objectives": "term",
    "adapters": "adapter",
    "attentions": "attention",
    "model_optimizers": "optimizer",
    "trackers": "tracker",
    "transports": "transport",
    "dialects": "dialect",
    "parsers": "parser of calls",
    "thoughts": "parser of thoughts",
    "grammars": "grammars",
    "config_files": "format of configurations",
    "checks": "check before a run",
    "before_commands": "work before a command",
    "hints": "hint",
    "colours": "colour",
    "data_formats": "kind of files",
    "row_forms": "form of rows",
    "row_indexes": "index of rows",
}
"""The groups of parts of a run, and the kind of their members."""


def _part_rows() -> Iterator[dict[str, str]]:
    """Yield the parts of runs that other packages add, with the first line of their docstrings."""
    for group, kind in _PARTS.items():
        for name, point in sorted(entry_points_of(group).items()):
            if is_ours(point):
                continue
            row = {"kind": kind, "id": name, "description": "", "error": ""}
            try:
                member = load_extension(group, name)
            except ConfigError as error:
                row["error"] = str(error)
            else:
                shown = member if callable(member) else type(member)
                row["description"] = (inspect.getdoc(shown) or "").partition("\n\n")[0]
            yield row


COMMAND = Command(
    summary="list environments, agents and sandboxes, plugins included",
    description=_HELP,
    flags=_flags,
    run=list_parts,
    examples=("arl list                                   environments, agents, sandboxes",),
    group="environments and agents",
    order=130,
)
