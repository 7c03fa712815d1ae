"""The command `arl config`: the configuration as a file with comments."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agentgym_rl.cli import (
    Command,
    config_flags,
    json_flag,
    key_flag,
    load_configuration,
    overrides_of,
    play_flags,
    print_result,
    steps_flag,
)

_HELP = """\
Print the configuration as a TOML file, in which comments describe each key.
With flags, keys or files: the values that a run with them would use, those that
fit its model included. Without any: the defaults.

  arl config > my.toml                every key with its default
  arl config algo.kl                  one section or key
  arl config engine --engine vllm     the keys of another engine
  arl config --config my.toml --preset dapo --json
                                      what a run would use, as JSON
"""


def _flags(parser: ArgumentParser) -> None:
    from agentgym_rl.config import preset_names

    json_flag(parser)
    parser.add_argument("section", nargs="?", metavar="SECTION", help="a section, or a key of one")
    config_flags(parser)
    play_flags(parser)
    steps_flag(parser)
    text = f"a published recipe: {', '.join(preset_names())}"
    key_flag(parser, "--preset", "preset", metavar="NAME", help=text)


def config(args: Namespace) -> int:
    """Print the configuration, or a section or key of it."""
    from agentgym_rl.config import OwnEngineConfig
    from agentgym_rl.models import model_folder, with_model_defaults
    from arl_start.configuration import as_toml, values_of

    found = load_configuration(args)
    has_model = isinstance(found.engine, OwnEngineConfig)
    if has_model and (args.config is not None or overrides_of(args)):
        found = with_model_defaults(found, model_folder(found.model, found.env.id))
    name = args.section or ""
    value = values_of(found, name)
    print_result({name or "config": value}, as_toml(found, name).rstrip(), as_json=args.json)
    return 0


COMMAND = Command(
    summary="print the configuration: every key, its default and its meaning",
    description=_HELP,
    flags=_flags,
    run=config,
    examples=("arl config > my.toml                       every key with its default",),
    group="keys, examples and documentation",
    order=130,
)
