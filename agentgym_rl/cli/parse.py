"""The arguments on the command line of `arl`, and the configuration they select."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_rl.core.errors import ConfigError

from .config_keys import dotted_keys
from .flags import commands_with, make_parser

if TYPE_CHECKING:
    from agentgym_rl.config import Config

_SHORT_FORMS = {
    "env": "env.id",
    "agent": "agent.id",
    "model": "model.path",
    "preset": "preset",
    "init": "init.method",
    "engine": "engine.type",
    "sandbox": "sandbox.id",
    "data": "env.options.data",
    "backend": "engine.type",
    "cluster": "cluster.type",
    "address": "cluster.address",
    "steps": "steps",
    "seed": "seed",
}


def parse(argv: Sequence[str]) -> Namespace:
    """Parse the command (`command`), its flags, and the dotted keys (`overrides`).

    Raises:
        ConfigError: an unknown or misused argument; the message names the near match.
        SystemExit: after --help, --version, or no arguments at all.
    """
    parser, commands = make_parser(asked=argv)
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        if rest:
            parser.error(f"unknown argument {rest[0]!r} before the command")
        parser.print_help()
        raise SystemExit(2)
    args.__dict__.pop("_given", None)
    if getattr(args, "config", None) is not None:
        args.config = _layered(args.config)
    args.overrides = dotted_keys(
        rest,
        commands[args.command],
        takes_config=hasattr(args, "config"),
        commands_with=commands_with,
    )
    return args


def _layered(files: Sequence[Path]) -> Path | dict[str, Any]:
    """Return the one file of --config, or the tables of several, each on top of those before it."""
    if len(files) == 1:
        return files[0]
    from agentgym_rl.config import Config
    from agentgym_rl.config.file import layered

    return layered(Config, files)


def load_configuration(args: Namespace) -> Config:
    """Load the configuration file of `args`, or that of the run to resume, with its flags and
    dotted keys on top.

    Raises:
        ConfigError: see `load_config` and `resumed_config`; or a key is given twice.
    """
    from agentgym_rl.config import load_config

    overrides = overrides_of(args)
    if getattr(args, "resume", None) is None or args.command not in ("train", "serve"):
        return load_config(args.config, overrides)
    from agentgym_rl.run.resume import resumed_config

    return resumed_config(args.resume, args.config, overrides)


def overrides_of(args: Namespace) -> dict[str, Any]:
    """Return the dotted keys of `args`, and its flags as such.

    Raises:
        ConfigError: a key is given twice.
    """
    short_forms = _SHORT_FORMS | ({"run": "run"} if args.command in ("train", "serve") else {})
    overrides: dict[str, Any] = dict(args.overrides)
    for name, key in short_forms.items():
        value = getattr(args, name, None)
        if value is None or isinstance(value, bool):  # a flag: `arl export --model`
            continue
        if name == "data":  # stored in a run's folder, where a relative path would be ambiguous
            value = str(Path(value).absolute())
            if _warms_up(args):  # environments also have --env.options.data
                key = "init.data"
        if key in overrides:
            raise ConfigError(f"--{name}={value} and --{key}={overrides[key]}: give one of them")
        # Encode as a TOML string, so that `--run 7` stays text.
        overrides[key] = json.dumps(value) if isinstance(value, str) else value
    return overrides


def _warms_up(args: Namespace) -> bool:
    """Return whether a flag, a key or the configuration file asks for a warm-up."""
    if not hasattr(args, "init"):  # only `arl train` has one
        return False
    method = args.init or args.overrides.get("init.method")
    if method is None and args.config is not None:
        from agentgym_rl.config.file import read_toml

        values = read_toml(args.config) if isinstance(args.config, Path) else args.config
        section = values.get("init")
        method = section.get("method") if isinstance(section, dict) else None
    return isinstance(method, str) and method.strip("\"'") == "sft"
