"""The kinds of files of rows, and the choice of the readers for a run's rows."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from pathlib import Path

from agentgym_rl.core import ConfigError, Split, load_extensions, near_match, relative
from agentgym_rl.gym import data
from agentgym_rl.gym.data import Rows

from .hub import hub_splits

DATA_FORMATS = "data_formats"
"""The group of entry points of objects of `DataFormat`."""

HELD_OUT = ("eval", "test", "validation", "valid", "val", "dev", "heldout", "held_out")
"""The names that splits of held-out rows often have."""

Readers = list[tuple[data.Reader, Split | None]]
"""Readers with their splits; None: the reader's rows are divided between the splits."""


def files_of(path: str) -> list[Path]:
    """Return the files that `path` names, sorted, or the folder of a data set; it may be a pattern
    with `*`, `?` or `[`.

    Raises:
        ConfigError: there is none.
    """
    names = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
    files = [Path(name) for name in names if Path(name).is_file() or _format_of(Path(name))]
    if not files:
        beside = (it.name for it in Path(path).parent.glob("*") if it.is_file())
        hint = near_match(Path(path).name, beside)
        if Path(path).is_dir():
            hint = f"; of a folder, name the files{_inside(path)}"
        id = relative(path)
        endings = tuple(ending for known in _formats().values() for ending in known.endings)
        if re.fullmatch(r"[\w.-]+/[\w.-]+", id) and not id.endswith(endings):
            hint = f"; a data set of the Hugging Face hub is --env.options.rows.dataset={id}"
        raise ConfigError(f"path: {path!r} is no file, and no pattern that fits any{hint}")
    return files


def _inside(folder: str) -> str:
    """Return a pattern for the files of rows in a folder, or the endings that none of them has."""
    endings = [ending for known in _formats().values() for ending in known.endings]
    found = [ending for ending in endings if any(Path(folder).glob(f"*{ending}"))]
    return f": {folder}/*{found[0]}" if found else f" of rows: none ends in {', '.join(endings)}"


def open_file(file: Path) -> data.Reader | Mapping[str, data.Reader]:
    """Open a file of rows; or a folder of them, with the readers of its splits by name.

    Raises:
        ConfigError: no format reads it, or the package that reads it is not installed.
    """
    known = _format_of(file)
    if known is None:
        *most, last = [ending for known in _formats().values() for ending in known.endings]
        endings = f"{', '.join(most)} or {last}" if most else last
        raise ConfigError(f"{file}: files of rows end in {endings}, not {file.suffix.lower()!r}")
    return known.open(file)


def _formats() -> dict[str, data.DataFormat]:
    return load_extensions(DATA_FORMATS, of=data.DataFormat)


def _format_of(path: Path) -> data.DataFormat | None:
    return next((known for known in _formats().values() if known.fits(path)), None)


def stamps_of(rows: Rows) -> tuple[object, ...]:
    """Return the size and modification time of every file, so that a changed file is read again."""
    named = [path for path in (rows.path, rows.eval_path) if path]
    found = [file for path in named for file in files_of(path)]
    files = [part for file in found for part in (sorted(file.rglob("*")) or [file])]
    return tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def readers_of(rows: Rows) -> Readers:
    """Return the readers of the rows, those of the eval split first, with their splits.

    Raises:
        ConfigError: there is no such file, data set or split.
    """
    if rows.dataset:
        known = _format_of(Path(rows.dataset))  # a folder that `datasets` saved
        found = known.open(Path(rows.dataset)) if known else None
        if isinstance(found, data.Reader):
            return [(found, None)]
        hub = found or hub_splits(rows.dataset, config=rows.config, revision=rows.revision)
        return _of_splits(rows, f"data set {rows.dataset}", hub)
    return _of_files(rows)


def _of_files(rows: Rows) -> Readers:
    evals = files_of(rows.eval_path) if rows.eval_path else []
    trains = files_of(rows.path) if rows.path else []
    if both := set(evals) & set(trains):
        raise ConfigError(f"path and eval_path both name {', '.join(map(str, sorted(both)))}")
    split: Split | None = "train" if evals else None
    found = [
        *((file, open_file(file), "eval", rows.eval_split) for file in evals),
        *((file, open_file(file), split, rows.train_split) for file in trains),
    ]
    readers: Readers = []
    with_splits = False
    for file, opened, side, name in found:
        if isinstance(opened, data.Reader):
            readers.append((opened, side))
        elif evals:  # a folder for each split
            readers.append((_one_split(file, opened, side, name), side))
            with_splits = True
        else:
            readers += _of_splits(rows, str(file), opened)
            with_splits = True
    if (rows.train_split or rows.eval_split) and not with_splits:
        raise ConfigError(
            "train_split, eval_split: only with a data set, or a folder of one that has splits; "
            "of files, eval_path (or eval_data) names those that are held out"
        )
    return sorted(readers, key=lambda it: it[1] != "eval")


def _one_split(
    file: Path, splits: Mapping[str, data.Reader], side: str | None, name: str | None
) -> data.Reader:
    if name is None and len(splits) == 1:
        (name,) = splits
    if name is None or name not in splits:
        raise ConfigError(
            f"{file} has the splits {sorted(splits)}; got {side}_split={name}: name the one to "
            f"{'evaluate' if side == 'eval' else 'train'} on"
        )
    return splits[name]


def _of_splits(rows: Rows, name: str, splits: Mapping[str, data.Reader]) -> Readers:
    train, evals = rows.train_split, rows.eval_split
    if train is None and evals is None and len(splits) == 1:
        (train,) = splits
    if train is None and evals is None and len(splits) == 2:
        others = [split for split in splits if split != "train"]
        if len(others) == 1 and others[0].lower() in HELD_OUT:
            train, evals = "train", others[0]
    if train is None or not {train, evals or train} <= set(splits) or train == evals:
        raise ConfigError(
            f"{name} has the splits {sorted(splits)}; got train_split="
            f"{train}, eval_split={evals}: name one for each, or train_split alone to have "
            "it divided"
        )
    if evals is None:
        return [(splits[train], None)]
    return [(splits[evals], "eval"), (splits[train], "train")]
