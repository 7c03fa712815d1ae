"""The command `arl new`: a package or a folder with an environment to begin from."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import Command, json_flag, print_result

_HELP = """\
Write a small package with an environment of your own (arl docs environments),
or with --harbor a task in Harbor's format (arl docs coding-gym).

  arl new env shop            write the folder shop/: shop.py, a test, ...
  pip install -e shop         after this, `arl list` shows shop-v0
  arl check shop              test the promises of an environment
  arl train --env shop --model FOLDER
                              train a model that knows English; the bundled one
                              earns nothing on words that it has never seen
  arl new env --harbor fix    write the task folder fix/
  arl check harbor:fix        play its solution, and agents that deserve nothing
"""


def _flags(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=["env"], help="the part to write")
    parser.add_argument(
        "name", metavar="NAME", help="lower-case letters, digits and _ (- becomes _)"
    )
    parser.add_argument("--into", type=Path, metavar="DIR", help="folder to write; default: NAME")
    parser.add_argument(
        "--harbor", action="store_true", help="a task in Harbor's format, for --env harbor:NAME"
    )
    json_flag(parser)


def new(args: Namespace) -> int:
    from arl_check.scaffold import new_env, new_task

    name = args.name if args.harbor else args.name.replace("-", "_")
    folder = args.into or Path(name)
    write = new_task if args.harbor else new_env
    files = [str(file) for file in write(name, folder)]
    install = f"pip install -e {folder} && arl check {name}"
    then = f"next: {f'arl check harbor:{folder}' if args.harbor else install}"
    lines = ["wrote", *(f"  {file}" for file in files), "", then]
    if name != args.name:
        lines.insert(0, f"{args.name} is named {name}: a Python module's name has no hyphen")
    print_result({"files": files}, "\n".join(lines), as_json=args.json)
    return 0


COMMAND = Command(
    summary="write a package with an environment of your own",
    description=_HELP,
    flags=_flags,
    run=new,
    group="environments and agents",
    order=150,
)
