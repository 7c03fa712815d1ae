"""What `arl eval` evaluates: models, a run, checkpoints, as they stand on the command line."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentgym_rl.config import Config, load_config, section_types
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.evaluate.target import Asked
from agentgym_rl.storage.run_folder import MARK, config_of

from .parse import load_configuration

_CHECKPOINT = re.compile(r"step-(\d+)")
ENGINES = {
    kind.model_fields["type"].default: kind for kind in section_types(Config.model_fields["engine"])
}
"""The sections of `engine`, by type."""


def evaluated(args: Namespace) -> list[Asked]:
    """The models of `arl eval`; they differ in model and engine alone.

    Raises:
        ConfigError: `--run`, `--checkpoint` or `--model` is not what it has to be; says what is
            there.
    """
    names: Sequence[str] = args.model or ()
    if len(names) > 1:
        if args.checkpoint:
            raise ConfigError(
                f"--checkpoint {args.checkpoint} and several models: make it one of them, "
                f"--model {args.checkpoint}"
            )
        _check_different(names)
    if args.run and args.config:
        raise ConfigError(
            f"--run {args.run} and --config {args.config}: give one of them; --run takes the "
            "configuration of that run"
        )
    checkpoint = _checked_checkpoint(args.checkpoint) if args.checkpoint else None
    if args.run:
        args.config = config_of(Path(args.run), f"--run {args.run}")
        if not (checkpoint or names or "model.path" in args.overrides):
            return [_export(args)]
    elif checkpoint and not args.config:
        said = f"--checkpoint {args.checkpoint} without --run or --config"
        args.config = config_of(_run_of(checkpoint), said)
    if checkpoint or not names:
        args.model = names[0] if names else None
        return [Asked(load_configuration(args), checkpoint)]
    default = (
        args.engine or args.overrides.get("engine.type") or load_config(args.config).engine.type
    )
    used = {_split(name)[0] or default for name in names}
    return [_named(args, name, default=default, used=used) for name in names]


def _export(args: Namespace) -> Asked:
    """The model that `--run` came to."""
    args.model = str(_export_of(Path(args.run)))
    config = load_configuration(args)
    if config.engine.type in ("openai", "litellm"):
        raise ConfigError(
            f"--run {args.run} with --engine={config.engine.type}: the weights of a run are "
            "evaluated by an engine of our own (--engine=embedded or vllm); to evaluate another "
            "model in the same way, add --model NAME"
        )
    return Asked(config)


def _named(args: Namespace, name: str, *, default: str, used: Iterable[str]) -> Asked:
    """One `--model`: [ENGINE:]NAME, where NAME may be the folder of a run or a checkpoint.

    Keys of `engine` that its engine has not are another one's of those that are `used`.
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
        own.model = str(_export_of(folder))
    if not (folder / "manifest.json").exists():
        return Asked(load_configuration(own))
    checkpoint = _checked_checkpoint(folder)
    run = load_config(config_of(_run_of(checkpoint), f"--model {name}"))
    own.model = None
    config = load_configuration(own)
    # what its weights are put into, and how they were written
    config = config.model_copy(update={"model": run.model, "trainer": run.trainer})
    return Asked(config, checkpoint)


def _split(name: str) -> tuple[str, str]:
    """ "litellm:gemini/x" as ("litellm", "gemini/x"); "" where no engine of ours is named."""
    engine, colon, path = name.partition(":")
    return (engine, path) if colon and engine in ENGINES else ("", name)


def _has(engine: str, key: str) -> bool:
    """Whether `key` is one of that engine, or of no engine at all."""
    section, _, name = key.partition(".")
    if section != "engine":
        return True
    return engine in ENGINES and name.partition(".")[0] in ENGINES[engine].model_fields


def _check_different(names: Sequence[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--model {twice[0]} is there twice")


def _checked_checkpoint(path: Path) -> Path:
    if not path.is_dir():
        raise ConfigError(f"--checkpoint {path}: no such folder (in {Path.cwd()})")
    if not (path / "manifest.json").exists():
        inside = _checkpoints(path) or _checkpoints(path / "checkpoints")
        hint = f"try {inside[-1]}" if inside else "expected RUN/checkpoints/step-N"
        raise ConfigError(f"--checkpoint {path}: no checkpoint, manifest.json is missing; {hint}")
    return path.resolve()


def _run_of(checkpoint: Path) -> Path:
    """The run whose `checkpoints/step-N` this is."""
    return checkpoint.parent.parent


def _export_of(run: Path) -> Path:
    if (run / "export").is_dir():
        return run / "export"
    found = _checkpoints(run / "checkpoints")
    if not found:
        raise ConfigError(
            f"--run {run}: this run did not finish: it has neither export/ nor checkpoints/ "
            "(--trainer.checkpoint_every=N writes some on the way)"
        )
    raise ConfigError(
        f"--run {run}: this run did not finish, there is no export/; try --checkpoint {found[-1]} "
        f"(there: {', '.join(path.name for path in found)})"
    )


def _checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first (without torch, which trainer/checkpoint.py needs)."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _CHECKPOINT.fullmatch(p.name))]
    return [path for _, path in sorted(found) if (path / "manifest.json").exists()]
