"""The contract of a command of `arl` (its line and text in --help, its flags, its body), and the
flags that several commands share.

A package adds a command by an entry point of the group `agentgym_rl.commands`, which names a
`Command`. `arl --help` imports the modules of all commands. Such a module therefore imports slow
modules inside functions: the configuration, for example, takes 0.3 s.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_rl.core import ConfigError

if TYPE_CHECKING:
    from agentgym_rl.config import Config

GROUPS = (
    *("train and evaluate", "look at runs", "environments and agents", "serve and scale"),
    "keys, examples and documentation",
)
_KEYS = "flag_keys"
_LOUDNESS: Mapping[str, Mapping[str, str]] = {
    "q": {"logging.progress": "none", "logging.level": "warning"},
    "v": {"logging.level": "debug"},
}
"""The keys that -q and -v stand for; a key that is given as well takes precedence."""


def _no_flags(parser: ArgumentParser) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of `arl`."""

    summary: str
    """Its line in `arl --help`."""
    run: Callable[[Namespace], int]
    """Its body, which returns the exit code: 0, or 1 (failed); a ConfigError becomes 2."""
    description: str = ""
    """The text above its flags in its own --help; empty: the summary."""
    flags: Callable[[ArgumentParser], None] = _no_flags
    """Adds its flags."""
    examples: tuple[str, ...] = ()
    """Its lines among the examples of `arl --help`: a command, and from column 44 what it does."""
    group: str = "other commands"
    """The heading of its line there, one of `GROUPS` or another; empty: it is not shown."""
    order: int = 1000
    """Its place in `arl --help`: the least number is first, then the names decide."""


def json_flag(parser: ArgumentParser) -> None:
    """Add --json: the body calls `print_json` with its result if `args.json` is True."""
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run_argument(parser: ArgumentParser) -> None:
    """Add the argument RUN, the folder of a run."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, like runs/NAME")


def first_model_flag(parser: ArgumentParser, name: str = "--model") -> None:
    """Add the flag for the model that a run began with."""
    text = "the model that the run began with, if it is not where it was"
    parser.add_argument(name, default="", metavar="FOLDER", help=text)


def take_keys(parser: ArgumentParser) -> None:
    """Let the command take `--section.key=value`, and show the table of keys in its --help."""
    from .config_keys import key_table

    parser.epilog = key_table()
    parser.set_defaults(config=None)


def config_flag(parser: ArgumentParser) -> None:
    """Add --config, and `--section.key=value`: `load_configuration` returns what they select."""
    take_keys(parser)
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        metavar="FILE",
        help="configuration file; again for a file on top",
    )


def config_flags(parser: ArgumentParser, *, action: str = "store") -> None:
    """Add the flags of a command that needs a model; `action` "append": it takes several."""
    config_flag(parser)
    several = "; again for more" if action == "append" else ""
    text = f"bundled, a folder, or a hub id{several}"
    key_flag(parser, "--model", "model.path", "-m", action=action, metavar="MODEL", help=text)
    seed_flag(parser, "seed of tasks and sampling")


def seed_flag(parser: ArgumentParser, text: str) -> None:
    """Add --seed with this help text."""
    key_flag(parser, "--seed", "seed", type=int, metavar="N", help=text)


def play_flags(parser: ArgumentParser, engines: str = "embedded, vllm or sglang") -> None:
    """Add the flags of a command that plays episodes, with the help text of --engine."""
    env_flag(parser, "environment: an id or module:Class")
    data_flag(parser)
    agent_flag(parser, "agent: an id or module:Class")
    engine_flag(parser, engines)
    sandbox_flag(parser)
    loudness_flags(parser)


def loudness_flags(parser: ArgumentParser) -> None:
    """Add -q and -v, short forms of keys of `logging`."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-q", action="store_true", help="show only warnings and the result")
    either.add_argument("-v", action="store_true", help="show what is logged for debugging, too")


def env_flag(parser: ArgumentParser, text: str) -> None:
    """Add --env with this help text."""
    key_flag(parser, "--env", "env.id", metavar="ID", help=text)


def agent_flag(parser: ArgumentParser, text: str) -> None:
    """Add --agent with this help text."""
    key_flag(parser, "--agent", "agent.id", metavar="ID", help=text)


def engine_flag(parser: ArgumentParser, text: str = "embedded, vllm or sglang") -> None:
    """Add --engine with this help text."""
    key_flag(parser, "--engine", "engine.type", metavar="TYPE", help=text)


def data_flag(parser: ArgumentParser) -> None:
    """Add --data, the rows of an environment or of a warm-up."""
    text = "rows of tasks, if the env takes rows"
    key_flag(parser, "--data", "env.options.data", metavar="FILE", help=text)


def sandbox_flag(parser: ArgumentParser) -> None:
    """Add --sandbox."""
    text = "local, docker, e2b or module:Class"
    key_flag(parser, "--sandbox", "sandbox.id", metavar="ID", help=text)


def steps_flag(parser: ArgumentParser) -> None:
    """Add --steps."""
    key_flag(parser, "--steps", "steps", type=int, metavar="N", help="training batches")


def key_flag(parser: ArgumentParser, flag: str, key: str, *also: str, **options: Any) -> None:
    """Add a flag that is a short form of a key, and its other spellings; the other arguments are
    those of `add_argument`."""
    action = parser.add_argument(*also, flag, **options)
    parser.set_defaults(**{_KEYS: {**(parser.get_default(_KEYS) or {}), action.dest: key}})


def load_configuration(args: Namespace, *, defaults: Mapping[str, object] | None = None) -> Config:
    """Load the configuration file of `args`, with its flags and dotted keys on top; `defaults`:
    dotted keys that count where there is no file.

    Raises:
        ConfigError: see `load_config`; or a key is given twice.
    """
    from agentgym_rl.config import load_config

    usual = (defaults or {}) if args.config is None else {}
    return load_config(args.config, {**usual, **overrides_of(args)})


def overrides_of(args: Namespace) -> dict[str, Any]:
    """Return the dotted keys of `args`, with its flags converted to dotted keys.

    Raises:
        ConfigError: a key is given twice.
    """
    overrides: dict[str, Any] = dict(args.overrides)
    for name, key in getattr(args, _KEYS, {}).items():
        value = getattr(args, name)
        if value is None:
            continue
        if name == "data":  # stored in a run's folder, where a relative path would be ambiguous
            value = str(Path(value).absolute())
            if _warms_up(args):  # environments also have --env.options.data
                key = "init.data"
        if key in overrides:
            flag = f"--{name}={value}" if len(name) > 1 else f"-{name} {value}"
            raise ConfigError(f"{flag} and --{key}={overrides[key]}: give one of them")
        # Encode as a TOML string, so that `--run 7` stays text.
        overrides[key] = json.dumps(value) if isinstance(value, str) else value
    chosen = (keys for flag, keys in _LOUDNESS.items() if getattr(args, flag, False))
    return {**next(chosen, {}), **overrides}


def given_arguments(args: Namespace) -> dict[str, Any]:
    """Return the arguments that were given, by name; the dotted keys as "overrides"."""
    own = ("command", "config_files", _KEYS)
    given = {name: value for name, value in vars(args).items() if name not in own}
    return {name: value for name, value in given.items() if value not in (None, {}, False)}


def _warms_up(args: Namespace) -> bool:
    """Return whether a flag, a key or the configuration file selects a warm-up."""
    if not hasattr(args, "init"):  # only `arl train` has one
        return False
    method = args.init or args.overrides.get("init.method")
    if method is None and args.config is not None:
        from agentgym_rl.config.file import read_file

        values = read_file(args.config) if isinstance(args.config, Path) else args.config
        section = values.get("init")
        method = section.get("method") if isinstance(section, dict) else None
    return isinstance(method, str) and method.strip("\"'") == "sft"


def begin_process_of_run() -> None:
    """Watch for a thread start that hangs, and for a parent process that is frozen: the beginning
    of a command that a run starts."""
    from agentgym_rl.runtime.frozen import watch_starter
    from agentgym_rl.runtime.memory import watch_thread_starts

    watch_thread_starts()
    watch_starter()


def controller_token(command: str) -> str:
    """Return the token with which this process authenticates to the controller.

    Raises:
        ConfigError: there is none.
    """
    if not (token := os.environ.get("ARL_TOKEN", "")):
        raise ConfigError(
            f"ARL_TOKEN is not set: `arl {command}` is started by `arl train`, which gives it the "
            "controller's token there"
        )
    return token
