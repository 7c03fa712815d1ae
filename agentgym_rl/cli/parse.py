"""What stands on the command line of `arl`, and the configuration it asks for."""

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
    """The command (`command`), its flags, and the dotted keys (`overrides`).

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
    args.overrides = dotted_keys(
        rest,
        commands[args.command],
        takes_config=hasattr(args, "config"),
        commands_with=commands_with,
    )
    return args


def load_configuration(args: Namespace) -> Config:
    """The configuration file of `args` with its flags and dotted keys on top.

    Raises:
        ConfigError: see `load_config`; or a key is given twice.
    """
    from agentgym_rl.config import load_config

    short_forms = _SHORT_FORMS | ({"run": "run"} if args.command in ("train", "serve") else {})
    overrides: dict[str, Any] = dict(args.overrides)
    for name, key in short_forms.items():
        value = getattr(args, name, None)
        if value is None:
            continue
        if name == "data":  # written into a run's folder, it means the same from anywhere
            value = str(Path(value).absolute())
            if getattr(args, "init", None) == "sft":  # environments have --env.options.data too
                key = "init.data"
        if key in overrides:
            raise ConfigError(f"--{name}={value} and --{key}={overrides[key]}: give one of them")
        # As a TOML string, so that `--run 7` stays text.
        overrides[key] = json.dumps(value) if isinstance(value, str) else value
    if getattr(args, "resume", None) is not None and args.command in ("train", "serve"):
        return _resumed(args, overrides)
    return load_config(args.config, overrides)


def _resumed(args: Namespace, overrides: dict[str, Any]) -> Config:
    """The configuration of the run that goes on, or the file that is given, with `overrides`.

    Raises:
        ConfigError: there is no run, or it cannot go on with that.
    """
    from agentgym_rl.config import load_config
    from agentgym_rl.models.resolve import model_folder, resolve_learning_rate, resolve_paths
    from agentgym_rl.run.resume import check_begun_with, check_resumable
    from agentgym_rl.storage.run_folder import config_of

    if "run" in overrides:
        raise ConfigError("--resume goes on in the run's own folder: leave out --run")
    file = config_of(args.resume, f"--resume {args.resume}")
    check_begun_with(args.resume)
    config = resolve_paths(load_config(args.config or file, overrides))
    config = resolve_learning_rate(config, model_folder(config))
    check_resumable(args.resume, config)
    return config
