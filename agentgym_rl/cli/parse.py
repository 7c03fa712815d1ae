"""The parser of the command line of `arl`. It imports only the command that is named, and all
commands for the list of `arl --help`."""

from __future__ import annotations

import argparse
import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO, cast

from agentgym_rl import __version__
from agentgym_rl.core import ConfigError, missing_member, near_of

from . import registry
from .command import GROUPS, Command
from .config_keys import dotted_keys, key_help
from .output import in_colour

DESCRIPTION = """\
Train any agent that speaks the OpenAI API, by asynchronous reinforcement
learning.
"""
_ONCE = frozenset({"data", "out", "preset", "resume", "run"})
"""The flags of files and recipes, which can be given only once: with two, a user would expect both
to apply, and one would be dropped silently. For any other flag the last value counts, as for
`--section.key=value`, so that a script's flags can be overridden after them."""


def parse(argv: Sequence[str]) -> Namespace:
    """Parse the command (`command`), its flags, and the dotted keys (`overrides`).

    Raises:
        ConfigError: an unknown or misused argument; the message names the near match.
        SystemExit: after --help, --version, or no arguments at all.
    """
    parser, commands = make_parser(argv)
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        if rest:
            parser.error(f"unknown argument {rest[0]!r} before the command")
        parser.print_help()
        raise SystemExit(2)
    args.__dict__.pop("_given", None)
    if getattr(args, "config", None) is not None:
        args.config_files, args.config = args.config, _layered(args.config)
    args.overrides = dotted_keys(
        rest,
        commands[args.command],
        given=vars(args),
        commands_with=commands_with,
    )
    return args


def make_parser(argv: Sequence[str]) -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """Return the parser for `argv` and its commands. Only the command that `argv` names is imported
    and has its flags. If `argv` names none, all are imported, for their lines in `arl --help`.

    Raises:
        ConfigError: the command that is named cannot be loaded.
    """
    parser = _Parser(
        "arl",
        usage="arl [-h] [--version] COMMAND ...",
        epilog="arl COMMAND --help shows what a command does, and its flags.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"arl {__version__}")
    group = parser.add_subparsers(dest="command", prog="arl", help=argparse.SUPPRESS)
    names = registry.command_names()
    first = next((word for word in argv if not word.startswith("-")), None)
    before = argv if first is None else argv[: argv.index(first)]
    named = first if first in names and not {"-h", "--help"} & set(before) else None
    _warn(named)
    if named is None:
        rows = registry.all_commands()
    else:
        rows = [registry.Listed(name, None) for name in names if name != named]
        _add_command(group, named, registry.load_command(named))
    examples = [line for row in rows if row.command for line in row.command.examples]
    text = [DESCRIPTION, *(f"  {line}" for line in examples), *_listing(rows)]
    parser.description = "\n".join(text)
    for row in rows:
        group.add_parser(row.name, add_help=False)
    return parser, dict(group.choices)


def _listing(rows: Sequence[registry.Listed]) -> Iterator[str]:
    """Yield the lines of commands under the headings of their groups."""
    width = max((len(row.name) for row in rows), default=0) + 2
    for title in dict.fromkeys([*GROUPS, *(row.group for row in rows if row.group)]):
        if its := [row for row in rows if row.group == title]:
            yield f"\n{title}:"
        for row in its:
            begin = f"  {row.name:<{width}}"
            yield from textwrap.wrap(
                row.summary, 80, initial_indent=begin, subsequent_indent=" " * 4
            )


def _add_command(group: Any, name: str, command: Command) -> None:
    """Add a command with its flags."""
    parser = group.add_parser(
        name,
        description=command.description or command.summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    shown = parser.add_argument("-h", "--help", action=_Help, nargs=0, help="show this and end")
    command.flags(parser)
    if parser.epilog:
        shown.nargs, shown.metavar = "?", "SECTION"
        shown.help = "show this; or what a section's keys do, as with --help algo.kl"


def _warn(named: str | None) -> None:
    for text in registry.warnings(named):
        print(f"arl: warning: {text}", file=sys.stderr)


def commands_with(flag: str) -> list[str]:
    """Return the commands that have `flag`, which includes its dashes."""
    return [name for name, flags in _flags_of_all() if flag in flags]


def _flags_of_all() -> Iterator[tuple[str, set[str]]]:
    for row in registry.all_commands():
        if row.command is not None:
            parser = ArgumentParser(add_help=False)
            row.command.flags(parser)
            yield row.name, set(parser._option_string_actions)


class _Parser(ArgumentParser):
    """A parser that raises ConfigErrors for mistakes, like the rest of the package."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:
        super()._print_message(in_colour("help", message, cast("TextIO", file or sys.stderr)), file)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` shows the flags")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuse a text that is not of the type of its flag."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kinds = {int: "a whole number", float: "a number"}
            if (kind := kinds.get(action.type)) is None:  # type: ignore[arg-type]
                raise
            names = "/".join(action.option_strings) or action.metavar
            self.error(f"{names}: expected {kind}, got {arg_string!r}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is not one of the choices; the message has the nearest choice."""
        if action.choices is None or value in action.choices:
            return
        if action.dest == "command":
            missing = missing_member(registry.GROUP, str(value), f"{value!r} is a command")
            if missing:
                raise ConfigError(missing)
        what = "command" if action.dest == "command" else "/".join(action.option_strings)
        near = near_of(str(value), map(str, action.choices))
        self.error(f"unknown {what or action.dest} {value!r}; {near}")


class _Once(argparse.Action):
    """A flag that takes one value (see `_ONCE`)."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given = namespace.__dict__.setdefault("_given", {})
        if self.dest in _ONCE and option_string and given.get(self.dest, values) != values:
            parser.error(
                f"{option_string} is given twice, as {given[self.dest]} and as {values}: leave "
                "one of them out"
            )
        given[self.dest] = values
        setattr(namespace, self.dest, values)


class _Help(argparse.Action):
    """The flag --help: the text of its command; or with a value that of a section or a key."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        text = key_help(values) if isinstance(values, str) else parser.format_help().rstrip()
        print(in_colour("help", text, sys.stdout))
        parser.exit()


def _layered(files: Sequence[Path]) -> Path | dict[str, Any]:
    """Return the one file of --config, or the tables of several, each on top of those before it."""
    if len(files) == 1:
        return files[0]
    from agentgym_rl.config import Config
    from agentgym_rl.config.file import layered

    return layered(Config, files)
