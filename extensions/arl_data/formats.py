"""The kinds of files of rows, and the choice of the readers for a run's rows."""

from __future__ import annotations

import glob
from pathlib import Path

from agentgym_rl.core import ConfigError, Split, load_extensions
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Rows

from .hub import hub_splits

DATA_FORMATS = "data_formats"
"""The group of entry points of objects of `DataFormat`."""

Readers = list[tuple[data.Reader, Split | None]]
"""Readers with their splits; None: the reader's rows are divided between the splits."""


def files_of(path: str) -> list[Path]:
    """Return the files that `path` names, sorted; it may be a pattern with `*`, `?` or `[`.

    Raises:
        ConfigError: there is none.
    """
    names = [path] if Path(path).is_file() else sorted(glob.glob(path, recursive=True))
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        hint = f"; of a folder, name the files: {path}/*.parquet" if Path(path).is_dir() else ""
        raise ConfigError(f"path: {path!r} is no file, and no pattern that fits any{hint}")
    return files


def open_file(file: Path) -> data.Reader:
    """Open a file of rows.

    Raises:
        ConfigError: no format reads it, or the package that reads it is not installed.
    """
    formats = load_extensions(DATA_FORMATS, of=data.DataFormat).values()
    for known in formats:
        if known.fits(file):
            return known.open(file)
    *most, last = [ending for known in formats for ending in known.endings]
    endings = f"{', '.join(most)} or {last}" if most else last
    raise ConfigError(f"{file}: files of rows end in {endings}, not {file.suffix.lower()!r}")


def stamps_of(rows: Rows) -> tuple[object, ...]:
    """Return the size and modification time of every file, so that a changed file is read again."""
    files = [file for path in (rows.path, rows.eval_path) if path for file in files_of(path)]
    return tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def readers_of(rows: Rows) -> Readers:
    """Return the readers of the rows, those of the eval split first, with their splits.

    Raises:
        ConfigError: there is no such file, data set or split.
    """
    return _of_data_set(rows, rows.dataset) if rows.dataset else _of_files(rows)


def _of_files(rows: Rows) -> Readers:
    evals = files_of(rows.eval_path) if rows.eval_path else []
    trains = files_of(rows.path) if rows.path else []
    if both := set(evals) & set(trains):
        raise ConfigError(f"path and eval_path both name {', '.join(map(str, sorted(both)))}")
    split: Split | None = "train" if evals else None
    return [
        *((open_file(file), "eval") for file in evals),
        *((open_file(file), split) for file in trains),
    ]


def _of_data_set(rows: Rows, dataset: str) -> Readers:
    splits = hub_splits(dataset, config=rows.config, revision=rows.revision)
    train, evals = rows.train_split, rows.eval_split
    if train is None and evals is None and len(splits) == 1:
        (train,) = splits
    if train is None or not {train, evals or train} <= set(splits) or train == evals:
        raise ConfigError(
            f"data set {dataset} has the splits {sorted(splits)}; got train_split="
            f"{train}, eval_split={evals}: name one for each, or train_split alone to have "
            "it divided"
        )
    if evals is None:
        return [(splits[train], None)]
    return [(splits[evals], "eval"), (splits[train], "train")]
