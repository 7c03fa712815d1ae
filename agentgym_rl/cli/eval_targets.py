"""The models, runs and checkpoints that the command line of `arl eval` selects."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgym_rl.config import ENGINES, load_config
from agentgym_rl.core import ConfigError, extension_names
from agentgym_rl.evaluate import EvalTarget, checked_checkpoint, config_of_run, export_of, run_of
from agentgym_rl.evaluate.target import chosen
from agentgym_rl.storage import config_of
from agentgym_rl.storage.run_folder import MARK

from .command import load_configuration, overrides_of


def evaluated(args: Namespace) -> list[EvalTarget]:
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
    chosen_type = args.engine or args.overrides.get("engine.type", "").strip("\"'")
    default = chosen_type or load_config(args.config).engine.type
    types = {name: _split(name)[0] or chosen_type or _type_of(name) or default for name in names}
    return [_named(args, name, types=types, default=default) for name in names]


def _named(args: Namespace, name: str, *, types: Mapping[str, str], default: str) -> EvalTarget:
    """Return the model of one `--model` [ENGINE:]NAME; NAME may be the folder of a run or a
    checkpoint, whose engine has the keys of its run.

    `types`: the engine of each name. Keys of `engine` that this engine lacks are dropped if
    another one has them.
    """
    path, engine = _split(name)[1], types[name]
    own = Namespace(**vars(args))
    own.model, own.overrides = path, dict(args.overrides)
    if engine != default:
        own.engine = engine
        own.overrides.pop("engine.type", None)
    for key in args.overrides:
        if not _has(engine, key) and any(_has(other, key) for other in types.values()):
            del own.overrides[key]
    folder, run = Path(path), _run_with(path)
    if run is None:
        return EvalTarget(load_configuration(own))
    is_checkpoint = (folder / "manifest.json").exists()
    checkpoint = checked_checkpoint(folder) if is_checkpoint else None
    own.model = None if is_checkpoint else str(export_of(folder))
    given = {key: value for key, value in own.overrides.items() if key.startswith("engine.")}
    trained = load_config(run)
    config = load_configuration(own)
    if trained.engine.type == engine:
        config = config.model_copy(update={"engine": load_config(run, given).engine})
    if is_checkpoint:  # the weights need the run's model, and their format its trainer section
        update = {"model": trained.model, "trainer": trained.trainer}
        config = config.model_copy(update=update)
    return EvalTarget(config, checkpoint)


def _run_with(path: str) -> Path | None:
    """Return the configuration file of the run with folder or checkpoint `path`; None: it is
    neither."""
    folder = Path(path)
    if (folder / "manifest.json").exists():
        return config_of(run_of(checked_checkpoint(folder)), f"--model {path}")
    is_run = (folder / MARK).exists() and (folder / "checkpoints").exists()
    return folder / MARK if is_run else None


def _type_of(path: str) -> str:
    """Return the type of the engine of the run that `path` belongs to; "" if it belongs to no
    run."""
    run = _run_with(path)
    return load_config(run).engine.type if run else ""


def _split(name: str) -> tuple[str, str]:
    """Split "litellm:gemini/x" into ("litellm", "gemini/x"); "" if no known engine is named."""
    engine, colon, path = name.partition(":")
    return (engine, path) if colon and engine in extension_names(ENGINES.group) else ("", name)


def _has(engine: str, key: str) -> bool:
    """Return whether `key` belongs to `engine`, or to no engine at all."""
    section, _, name = key.partition(".")
    if section != "engine":
        return True
    known = engine in extension_names(ENGINES.group)
    return known and name.partition(".")[0] in ENGINES[engine].section.model_fields


def _check_different(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--model {twice[0]} is given twice")
