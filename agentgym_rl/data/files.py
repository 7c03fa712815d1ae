"""Files of rows: found by name or pattern, opened by their suffix."""

from __future__ import annotations

import glob
from pathlib import Path

from agentgym_rl.errors import ConfigError

from .json_file import JsonFile
from .parquet_file import ParquetFile
from .reader import Reader


def files_of(path: str) -> list[Path]:
    """The files that `path` names, which may be a pattern with `*`, `?` or `[`; sorted.

    Raises:
        ConfigError: there is none.
    """
    names = [path] if Path(path).is_file() else sorted(glob.glob(path, recursive=True))
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        hint = f"; of a folder, name the files: {path}/*.parquet" if Path(path).is_dir() else ""
        raise ConfigError(f"path: {path!r} is no file, and no pattern that fits any{hint}")
    return files


def open_file(file: Path) -> Reader:
    """
    Raises:
        ConfigError: it is of no kind that can be read, or what reads it is not installed.
    """
    suffix = file.suffix.lower()
    if suffix in (".jsonl", ".json"):
        return JsonFile(file)
    if suffix == ".parquet":
        return ParquetFile(file)
    raise ConfigError(f"{file}: files of rows end in .jsonl, .json or .parquet, not {suffix!r}")
