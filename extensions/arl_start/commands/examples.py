"""The command `arl examples`: a list of the examples, and copies of them."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import Command, json_flag, print_result
from agentgym_rl.core import ConfigError

_HELP = """\
List the examples that the package contains, or copy some: configurations,
agents, environments, and the requirements of the CPU builds of vLLM and SGLang.

  arl examples                        the names, each with its first line
  arl examples math.toml own_env.py   copy two files into this folder
  arl examples node_agent --out demo  copy a folder into the folder demo
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples to copy")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder of the copies (default: .)"
    )


def examples(args: Namespace) -> int:
    """List the examples, or copy those that are named."""
    from arl_start.examples import all_examples, first_line

    known = all_examples()
    if not args.names:
        lines = {name: first_line(path) for name, path in known.items()}
        width = max(map(len, lines))
        text = "\n".join(f"{name:{width}}  {line}" for name, line in lines.items())
        print_result({"examples": lines}, text, as_json=args.json)
        return 0
    copies = [(_found(name, known), args.out / Path(name).name) for name in args.names]
    if there := [str(to) for _, to in copies if to.exists()]:
        raise ConfigError(
            f"{', '.join(there)}: there already, and nothing was copied; choose another folder "
            "with --out"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    for source, to in copies:
        shutil.copytree(source, to) if source.is_dir() else shutil.copyfile(source, to)
    written = [str(to) for _, to in copies]
    print_result({"files": written}, "\n".join(["wrote", *written]), as_json=args.json)
    return 0


def _found(name: str, known: dict[str, Path]) -> Path:
    from arl_start.pages import unknown

    name = name.removeprefix("examples/").removesuffix("/")
    if name not in known:
        raise unknown(f"no example {name!r}", name, list(known))
    return known[name]


COMMAND = Command(
    summary="list examples, or copy them into a folder",
    description=_HELP,
    flags=_flags,
    run=examples,
    group="keys, examples and documentation",
    order=131,
)
