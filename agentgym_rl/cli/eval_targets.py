"""The models, runs and checkpoints that the command line of `arl eval` selects."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentgym_rl.config import Config, load_config, section_types
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.evaluate.folder import Asked
from agentgym_rl.evaluate.target import (
    checked_checkpoint,
    chosen,
    config_of_run,
    export_of,
    run_of,
)
from agentgym_rl.storage.run_folder import MARK, config_of

from .parse import load_configuration, overrides_of

ENGINES = {
    kind.model_fields["type"].default: kind for kind in section_types(Config.model_fields["engine"])
}
"""The sections of `engine`, by type."""


def evaluated(args: Namespace) -> list[Asked]:
    """Return the models of `arl eval`; they differ only in model and engine.

    Raises:
        ConfigError: `--run`, `--checkpoint` or `--model` is invalid; the message lists the
            available ones.
    """
    names: Sequence[str] = args.model or ()
    if len(names) > 1:
        if args.checkpoint:
            raise ConfigError(
                f"--checkpoint {args.checkpoint} and several models: make it one of them, "
                f"--model {args.checkpoint}"
            )
        _check_different(names)
    if args.checkpoint or not names:
        args.model = names[0] if names else None
        overrides = overrides_of(args)
        return [chosen(args.config, overrides, run=args.run, checkpoint=args.checkpoint)]
    if args.run:
        args.config = config_of_run(Path(args.run), args.config)
    default = (
        args.engine or args.overrides.get("engine.type") or load_config(args.config).engine.type
    )
    used = {_split(name)[0] or default for name in names}
    return [_named(args, name, default=default, used=used) for name in names]


def _named(args: Namespace, name: str, *, default: str, used: Iterable[str]) -> Asked:
    """Return the model of one `--model` [ENGINE:]NAME; NAME may be the folder of a run or a
    checkpoint.

    Keys of `engine` that its engine lacks are dropped if another of the `used` engines has them.
    """
    engine, path = _split(name)
    own = Namespace(**vars(args))
    own.model, own.overrides = path, dict(args.overrides)
    if engine:
        own.engine = engine
        own.overrides.pop("engine.type", None)
    for key in args.overrides:
        if not _has(engine or default, key) and any(_has(other, key) for other in used):
            del own.overrides[key]
    folder = Path(path)
    if (folder / MARK).exists() and (folder / "checkpoints").exists():
        own.model = str(export_of(folder))
    if not (folder / "manifest.json").exists():
        return Asked(load_configuration(own))
    checkpoint = checked_checkpoint(folder)
    run = load_config(config_of(run_of(checkpoint), f"--model {name}"))
    own.model = None
    config = load_configuration(own)
    # the weights need the run's model, and their format its trainer section
    config = config.model_copy(update={"model": run.model, "trainer": run.trainer})
    return Asked(config, checkpoint)


def _split(name: str) -> tuple[str, str]:
    """Split "litellm:gemini/x" into ("litellm", "gemini/x"); "" if no known engine is named."""
    engine, colon, path = name.partition(":")
    return (engine, path) if colon and engine in ENGINES else ("", name)


def _has(engine: str, key: str) -> bool:
    """Return whether `key` belongs to `engine`, or to no engine at all."""
    section, _, name = key.partition(".")
    if section != "engine":
        return True
    return engine in ENGINES and name.partition(".")[0] in ENGINES[engine].model_fields


def _check_different(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--model {twice[0]} is given twice")
